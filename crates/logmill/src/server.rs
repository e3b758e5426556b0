//! `logmill run`: the server, from taking the data folder to releasing it.
//!
//! ```text
//!   preflight ─▶ folder ─▶ stores ─▶ tasks: runner, schedule, chains, meter, checks ─▶ ready
//!                                     │
//!        signal, or a task that ends ─┴─▶ stop ─▶ tasks wind down ─▶ stores, folder
//! ```
//!
//! Guarantees: after one signal no new job is claimed, running jobs are finished or released within their deadline,
//! and the exit code is 0; a second signal ends it at once. It ends within `work.stop_deadline_ms` even if the
//! database hangs, then with an error; the next process takes over its leases and jobs. A task that fails ends the
//! server with its error, because a restart is better than running without that task. Leaves to others: what the
//! tasks do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::{BlobStore, Entropy, OsEntropy, Sql, SystemClock, Tasks, millis};
use logmill_pipeline::derive::Tables;
use logmill_serve::http::{self, Metering};
use logmill_serve::readiness::stores::{BlobCheck, DiskCheck, SqlCheck};
use logmill_serve::readiness::usage::UsageCheck;
use logmill_serve::readiness::{Cause, Finding, Readiness, Service};
use logmill_serve::rpc::ServedChain;
use logmill_serve::usage::Usage;
use logmill_serve::usage::chain_usage::Blocks;
use logmill_serve::usage::relay::Relay;
use logmill_work::{Backoff, Queue};
use tokio::sync::{mpsc, watch};

use crate::config::Settings;
use crate::control::{self, Control, Queues};
use crate::error::{Error, Result};
use crate::stores::index::IndexStores;
use crate::stores::{Databases, Stores, preflight, tables};

pub(crate) mod chains;
mod handover;
mod listen;
mod maintenance;
mod signals;
pub(crate) mod usage;

use chains::checks::{ChainCheck, HeadDuty, TablesCheck};
use chains::{OpenChain, OpenChains};
use handover::Handovers;
use listen::listen;
pub(crate) use listen::{listen_at, listen_for_health};
pub(crate) use signals::Signals;
use usage::OpenMeter;

/// Delays between attempts to learn the chain id from the nodes while it is unknown.
const IDENTIFY_WAITS: Backoff = Backoff::Exponential {
    first: Duration::from_millis(250),
    max: Duration::from_secs(3),
    jitter_percent: 0,
};
/// Minimum time limit of a stop, whatever the settings say: even an idle server needs a moment.
const STOP_MIN: Duration = Duration::from_secs(1);

/// Serves until a stop signal.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    // First: a signal during opening must not end the process half-way.
    let mut signals = Signals::new()?;
    if let Some(open_files) = logmill_io::raise_open_files() {
        tracing::debug!(open_files, "raised the limit on open files and sockets");
    }
    let opening = Box::pin(open_and_start(settings));
    let Some(running) = signals.or_stopped(opening).await? else { return Ok(()) };
    let RunningServer { stores: _stores, tasks, stop } = running;
    until_stopped(signals, tasks, stop, settings.work.stop_deadline()).await
}

struct RunningServer {
    /// Dropped last: the folder's lock is held for as long as anything is open.
    stores: Stores,
    tasks: Tasks<TaskResult>,
    stop: watch::Sender<bool>,
}

/// Opens everything, then starts all tasks: no task runs before everything is open.
async fn open_and_start(settings: &Settings) -> Result<RunningServer> {
    let stores = open_stores(settings).await?;
    let http = listen(settings).await?;
    // Before any task: what is counted without a recorder is lost.
    let metrics = http.as_ref().map(|_| http::record_metrics()).transpose()?;
    let queue = &stores.queue;
    let control = stores.folder.as_ref().map(Control::listen).transpose()?;
    let control_path = control.as_ref().map(|control| control.path().display().to_string());
    let (stop, stopped) = watch::channel(false);
    let health = listen_for_health(settings).await?;
    let health_address = health.as_ref().map(|(_, address)| address.to_string());
    let http_address = http.as_ref().map(|(_, address)| address.to_string());
    let opening = open_shared(&stores.databases, queue).await?;
    let (chains, unknown) = opening.open().await?;
    let chains: Vec<Arc<OpenChain>> = chains.into_iter().map(Arc::new).collect();
    let metered = usage::open(&stores.databases).await?;
    let usage_jobs = metered.as_ref().filter(|_| settings.postgres().is_none());
    let usage_jobs = usage_jobs.map(|metered| metered.queue.clone());
    let table_jobs = opening.tables.as_ref().filter(|_| settings.postgres().is_none());
    let tables = table_jobs.map(|tables| tables.queue().clone());
    let queues = Queues { all: queue.clone(), usage: usage_jobs, tables };
    let mut tasks = start(settings, queues, control, &opening.owner, &stopped)?;
    let metered_blobs = metered.as_ref().map(|metered| Arc::clone(&metered.blobs));
    let metering = start_metering(settings, metered, &opening.owner, &stopped, &mut tasks)?;
    let has_chain = !chains.is_empty() || unknown.is_some();
    let readiness = readiness(&opening, &metering, metered_blobs, has_chain);
    let tables = opening.tables.clone();
    let running = RunningChains::new(opening, readiness, metering.usage.clone(), stopped);
    for chain in &chains {
        running.start(chain, &mut tasks);
    }
    let late_chains = unknown.map(|error| running.start_late(&error, &mut tasks));
    // The recorder ends when all its senders are dropped: no handle may outlive the tasks.
    let RunningChains { readiness, stopped, opening, usage, handovers } = running;
    drop((opening, usage, handovers));
    start_checks(&readiness, &stopped, &mut tasks);
    if let Some((listener, _)) = http {
        let state = state(settings, &chains, tables, readiness);
        let state = http::ServerParts { metering, late_chains, metrics, ..state };
        let stop = stop_requested(stopped.clone());
        tasks.spawn(async move {
            let health = health.map(|(listener, _)| listener);
            let outcome = http::serve_with_health(listener, health, state, stop).await;
            TaskResult { task: "the HTTP server", outcome: outcome.map_err(Error::from) }
        });
    }
    tracing::info!(
        pid = std::process::id(),
        version = env!("CARGO_PKG_VERSION"),
        data = %settings.data.display(),
        database = queue.sql().engine_name(),
        control = control_path,
        http = http_address,
        health = health_address,
        slots = settings.work.slots,
        "ready"
    );
    Ok(RunningServer { stores, tasks, stop })
}

/// Starts the readiness checks.
fn start_checks(
    readiness: &Arc<Readiness>,
    stopped: &watch::Receiver<bool>,
    tasks: &mut Tasks<TaskResult>,
) {
    let (readiness, stop) = (Arc::clone(readiness), stop_requested(stopped.clone()));
    tasks.spawn(async move {
        TaskResult {
            task: "the readiness checks",
            outcome: readiness.run(stop).await.map_err(Error::from),
        }
    });
}

/// Opens the stores after checking their requirements.
async fn open_stores(settings: &Settings) -> Result<Stores> {
    preflight::check_database(settings).await?;
    let stores = Stores::open(settings).await?;
    preflight::check_blobs(settings).await?;
    Ok(stores)
}

/// Opens what chains need before any of them is opened.
async fn open_shared(databases: &Databases, queue: &Queue) -> Result<OpenChains> {
    let settings = Arc::clone(&databases.settings);
    let owner = format!("logmill-{}-{:x}", std::process::id(), OsEntropy.mark());
    // Before anything is held under this name: other processes must not consider its owner dead.
    let owner = queue.wakes().prove_alive(&owner).await;
    let stores = IndexStores::open(databases).await?;
    let tables = match settings.derives_nothing() {
        true => None,
        false => Some(tables::open(databases).await?),
    };
    Ok(OpenChains { settings, queue: queue.clone(), stores: Arc::new(stores), tables, owner })
}

/// The checks of everything but chains.
fn readiness(
    opening: &OpenChains,
    metering: &Metering,
    metered_blobs: Option<Arc<dyn BlobStore>>,
    has_chain: bool,
) -> Arc<Readiness> {
    let settings = &opening.settings;
    let mut absent = BTreeMap::new();
    if !has_chain {
        absent.insert(Service::Rpc, "no chain is stored, and chain.rpc_urls is not set");
    }
    if opening.tables.is_none() {
        absent.insert(Service::Tables, "no tables are derived: ingest.raw_only is set");
    }
    if metering.usage.is_none() {
        absent.insert(Service::Meter, "usage is not metered: meter.events has no event type");
    }
    let timeout = settings.ready.store_timeout();
    let readiness = Readiness::new(SystemClock::shared(), timeout, absent);
    let add_sql = |cause, what, sql: &Sql| readiness.add(SqlCheck::new(cause, what, sql.clone()));
    let (index, blobs) = opening.stores.probed();
    add_sql(Cause::JobsStoreSilent, "the database of jobs", opening.queue.sql());
    add_sql(Cause::IndexStoreSilent, "the database of the log index", index);
    if let Some(tables) = &opening.tables {
        add_sql(Cause::TablesStoreSilent, "the database of tables", tables.sql());
    }
    if let Some(usage) = &metering.usage {
        readiness.add(SqlCheck::of_meter(usage.meter.sql().clone(), usage.write_alarm.clone()));
        readiness.add(UsageCheck::new(usage.meter.clone()));
    }
    let is_bucket = settings.s3().is_some();
    readiness.add(BlobCheck::new(Arc::clone(blobs), is_bucket));
    // A handle on files can fail by itself; a bucket is the same for all handles.
    if let Some(blobs) = metered_blobs.filter(|_| !is_bucket) {
        readiness.add(BlobCheck::new(blobs, is_bucket));
    }
    if preflight::uses_folder(settings) {
        let (folder, free_mib_min) = (settings.data.clone(), settings.ready.free_disk_mib);
        readiness.add(Arc::new(DiskCheck { folder, free_mib_min }));
    }
    readiness
}

/// Waits for a signal or the end of a task, and then for the end of all tasks, for `deadline` at most: a hanging
/// database must not keep the process from ending.
pub(crate) async fn until_stopped(
    mut signals: Signals,
    mut tasks: Tasks<TaskResult>,
    stop: watch::Sender<bool>,
    deadline: Duration,
) -> Result<()> {
    let outcome = tokio::select! {
        biased;
        name = signals.next() => {
            tracing::info!(signal = name, "stopping");
            Ok(())
        }
        ended = tasks.join_next() => match ended {
            Some(Ok(TaskResult { task, outcome: Ok(()) })) => Err(Error::TaskEnded { task }),
            ended => ended.map_or(Ok(()), check_result),
        },
    };
    // Without a receiver all tasks have ended.
    let _ = stop.send(true);
    let wound_down = tokio::select! {
        biased;
        wound_down = wind_down(&mut tasks) => wound_down,
        _ = signals.next() => Err(Error::StoppedAtOnce),
        () = SystemClock::shared().sleep(deadline.max(STOP_MIN)) => {
            Err(Error::StoppedUnfinished { deadline_ms: millis(deadline) })
        }
    };
    outcome.and(wound_down)?;
    tracing::info!("stopped");
    Ok(())
}

/// The name of a task that has ended, and its outcome.
pub(crate) struct TaskResult {
    pub(crate) task: &'static str,
    pub(crate) outcome: Result<()>,
}

/// Starts the tasks of the meter, if usage is metered; returns the handle that HTTP serves.
fn start_metering(
    settings: &Settings,
    metered: Option<OpenMeter>,
    owner: &str,
    stopped: &watch::Receiver<bool>,
    tasks: &mut Tasks<TaskResult>,
) -> Result<Metering> {
    let config = settings.meter.redacted_json();
    let Some(metered) = metered else { return Ok(Metering { usage: None, config }) };
    let (usage, all) = metered.start(settings, owner, || stop_requested(stopped.clone()))?;
    for (task, running) in all {
        tasks.spawn(async move { TaskResult { task, outcome: running.await } });
    }
    Ok(Metering { usage: Some(usage), config })
}

/// Context in which the chains of this server run.
#[derive(Clone)]
struct RunningChains {
    opening: OpenChains,
    readiness: Arc<Readiness>,
    usage: Option<Usage>,
    stopped: watch::Receiver<bool>,
    handovers: Handovers,
}

impl RunningChains {
    fn new(
        opening: OpenChains,
        readiness: Arc<Readiness>,
        usage: Option<Usage>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self { opening, readiness, usage, stopped, handovers: Handovers::default() }
    }

    /// Starts the tasks of a chain.
    fn start(&self, chain: &Arc<OpenChain>, tasks: &mut Tasks<TaskResult>) {
        self.add_checks(chain);
        self.handovers.spawn(chain, self.relay(chain), &self.stopped, tasks);
    }

    /// Starts waiting for a node that reports the chain id, after the attempt of the start has failed; returns a
    /// channel that receives the chain.
    fn start_late(
        &self,
        error: &str,
        tasks: &mut Tasks<TaskResult>,
    ) -> mpsc::Receiver<ServedChain> {
        let (sender, receiver) = mpsc::channel(1);
        let why = "no node has reported its chain id yet";
        let reason = format!("{why}; last error: {error}");
        self.readiness.report(Finding::new(Cause::ChainUnknown, None, reason));
        if let Some(usage) = &self.usage {
            usage.relays.lack(None, why.to_owned());
        }
        let this = self.clone();
        tasks.spawn(async move {
            TaskResult { task: "the chain", outcome: Box::pin(this.run_late(sender)).await }
        });
        receiver
    }

    async fn run_late(&self, found: mpsc::Sender<ServedChain>) -> Result<()> {
        let (clock, mut failed) = (SystemClock::shared(), 0);
        let chain = loop {
            let error = match self.open_late().await {
                Ok(chain) => break Arc::new(chain),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => crate::output::brief(&logmill_io::error_chain(&error)),
            };
            let why = format!("the chain of the nodes cannot be opened yet; last error: {error}");
            self.readiness.report(Finding::new(Cause::ChainUnknown, None, why));
            failed += 1;
            tokio::select! {
                biased;
                () = stop_requested(self.stopped.clone()) => return Ok(()),
                () = clock.sleep(IDENTIFY_WAITS.wait(failed, &OsEntropy)) => {}
            }
        };
        self.add_checks(&chain);
        self.readiness.clear(Cause::ChainUnknown, None);
        // Without HTTP there is no receiver.
        let _ = found.send(chain.served()).await;
        let relay = self.relay(&chain);
        if let Some(usage) = &self.usage {
            usage.relays.chain_is_known();
        }
        let relaying = async {
            match relay {
                Some(relay) => Ok(relay.run(stop_requested(self.stopped.clone())).await?),
                None => Ok(()),
            }
        };
        // Boxed: the state of both is too large for a thread's stack.
        let running = Box::pin(chain.run(|| stop_requested(self.stopped.clone())));
        futures::future::try_join(running, Box::pin(relaying)).await.map(|_| ())
    }

    /// Opens the chain that the nodes report. A failed call can be repeated.
    async fn open_late(&self) -> Result<OpenChain> {
        let followed = self.opening.identify_again().await?;
        // The chain may already be served from the stores.
        self.handovers.take(followed.chain_id).await;
        self.opening.open_followed(&self.opening.settings, followed).await
    }

    fn add_checks(&self, chain: &Arc<OpenChain>) {
        let settings = &chain.settings;
        let is_shared = settings.postgres().is_some();
        let limits = settings.ready.limits(settings.ingest().poll);
        let follows = chain.ingest.as_ref().is_some_and(|ingest| ingest.roles.forward);
        let duty = match chain.ingest {
            _ if settings.ready.is_archived(chain.chain.chain_id()) => HeadDuty::Archive,
            Some(_) if follows || is_shared => HeadDuty::Followed,
            None if is_shared => HeadDuty::PerhapsFollowed,
            _ => HeadDuty::Archive,
        };
        self.readiness.add(Arc::new(ChainCheck { chain: Arc::clone(chain), limits, duty }));
        // Where no process derives new blocks, tables are behind on purpose.
        if chain.derive.is_some() && (is_shared || settings.derive.settings().live) {
            let lag_blocks = limits.lag_blocks;
            self.readiness.add(Arc::new(TablesCheck { chain: Arc::clone(chain), lag_blocks }));
        }
    }

    /// The relay that carries usage of a chain to the meter, if there are rules for it.
    fn relay(&self, chain: &Arc<OpenChain>) -> Option<Relay> {
        let (usage, settings) = (self.usage.as_ref()?, &chain.settings);
        let chain_id = chain.chain.chain_id();
        let worker = settings.meter.usage(chain_id)?;
        let Some(derive) = &chain.derive else {
            let why = format!("chain {chain_id}: this process derives no tables");
            usage.relays.lack(Some(chain_id), why);
            return None;
        };
        let progress = chain.ingest.as_ref().map(|ingest| Arc::clone(&ingest.progress));
        let lowest = settings.ingest.lowest().filter(|_| progress.is_some());
        let is_archived = settings.ready.is_archived(chain_id);
        let is_shared = settings.postgres().is_some() && !is_archived;
        let chain = chain.chain.clone();
        let blocks = Blocks { chain, progress, is_shared, lowest, is_archived };
        let (reader, readiness) = (derive.reader.clone(), Arc::clone(&self.readiness));
        let relay = Relay::new(reader, blocks, &usage.meter, &worker, readiness);
        usage.relays.add(relay.clone());
        Some(relay)
    }
}

fn start(
    settings: &Settings,
    queues: Queues,
    control: Option<Control>,
    owner: &str,
    stopped: &watch::Receiver<bool>,
) -> Result<Tasks<TaskResult>> {
    let runner = maintenance::runner(&queues.all, &settings.work, owner)?;
    let cron = maintenance::cron(&queues.all)?;
    let mut tasks = Tasks::new();
    let stop = stop_requested(stopped.clone());
    tasks.spawn(async move {
        TaskResult {
            task: "the maintenance runner",
            outcome: runner.run(stop).await.map_err(Error::from),
        }
    });
    let stop = stop_requested(stopped.clone());
    tasks.spawn(async move {
        let outcome = tokio::select! {
            biased;
            () = stop => Ok(()),
            ended = cron.run() => ended.map_err(Error::from),
        };
        TaskResult { task: "the maintenance schedule", outcome }
    });
    if let Some(control) = control {
        let stopped = stopped.clone();
        tasks.spawn(async move {
            let outcome = control::serve(control, queues, || stop_requested(stopped.clone())).await;
            TaskResult { task: "the control socket", outcome }
        });
    }
    Ok(tasks)
}

/// State of the HTTP server, without metering, metrics and chains that become known later.
fn state(
    settings: &Settings,
    chains: &[Arc<OpenChain>],
    tables: Option<Tables>,
    readiness: Arc<Readiness>,
) -> http::ServerParts {
    http::ServerParts {
        late_chains: None,
        readiness,
        tables,
        collecting: None,
        metering: Metering::default(),
        chains: chains.iter().map(|open| (open.chain.chain_id(), open.served())).collect(),
        limits: settings.server.limits(),
        rpc: settings.rpc.limits(settings.ready.lag_blocks),
        clock: SystemClock::shared(),
        entropy: OsEntropy::shared(),
        metrics: None,
    }
}

/// Completes when the server stops.
pub(crate) async fn stop_requested(mut stopped: watch::Receiver<bool>) {
    // A dropped sender means that the server has stopped too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Waits for all tasks; returns the first error.
async fn wind_down(tasks: &mut Tasks<TaskResult>) -> Result<()> {
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(check_result(ended));
    }
    outcome
}

fn check_result(ended: Result<TaskResult, logmill_io::TaskPanic>) -> Result<()> {
    let TaskResult { task, outcome } = ended?;
    outcome.map_err(|source| Error::TaskFailed { task, source: Box::new(source) })
}
