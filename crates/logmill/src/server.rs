//! `logmill run`: the server, from taking its folder to giving it back.
//!
//! ```text
//!   preflight ─▶ folder ─▶ stores ─▶ tasks: runner, schedule, chains, meter, checks ─▶ ready
//!                                     │
//!        signal, or a task that ends ─┴─▶ stop ─▶ tasks wind down ─▶ stores, folder
//! ```
//!
//! Guarantees: after one signal no new job is claimed, jobs that run are finished or given back within their
//! deadline, and the exit code is 0; a second signal ends it at once. It ends within `work.stop_deadline_ms` even if
//! the database hangs, then with an error; what it held is taken over by the next process. A task that fails ends the
//! server with its error, as one that limps is worse than one that is restarted. Leaves to others: what the tasks do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::{BlobStore, Entropy, OsEntropy, Sql, SystemClock, Tasks, millis};
use logmill_pipeline::derive::Tables;
use logmill_work::Queue;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::chains::{OpenChain, OpenChains};
use crate::config::Settings;
use crate::control::{self, Control, Queues};
use crate::error::{Error, Result};
use crate::http::{self, Metering};
use crate::maintenance;
use crate::meter::relay::{Blocks, Relay};
use crate::meter::{self, OpenMeter, Usage};
use crate::preflight;
use crate::readiness::chain::{ChainCheck, HeadDuty};
use crate::readiness::stores::{BlobCheck, DiskCheck, SqlCheck};
use crate::readiness::tables::TablesCheck;
use crate::readiness::usage::UsageCheck;
use crate::readiness::{Cause, Finding, Readiness, Service};
use crate::rpc::Served;
use crate::stores::index::IndexStores;
use crate::stores::{Stores, tables};

/// How often the nodes are asked which chain is meant, as long as that is not known.
const MEET_EVERY: Duration = Duration::from_secs(3);
/// A stop may take this long, whatever the settings say: it takes a moment even with nothing to do.
const STOP_MIN: Duration = Duration::from_secs(1);

/// Serves until it is told to stop.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    // First: a signal that comes while we open must not end us half-way.
    let mut signals = Signals::new()?;
    if let Some(open_files) = logmill_io::raise_open_files() {
        tracing::debug!(open_files, "the most files and sockets that may be open");
    }
    let stores = tokio::select! {
        biased;
        opened = open_stores(settings) => opened?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping");
            return Ok(());
        }
    };
    let http = listen(settings).await?;
    let queue = &stores.queue;
    let control = stores.folder.as_ref().map(Control::listen).transpose()?;
    let control_path = control.as_ref().map(|control| control.path().display().to_string());
    let (stop, stopped) = watch::channel(false);
    let health = match settings.server.health_listen() {
        Some(address) => Some(listen_at(address).await?),
        None => None,
    };
    let health_address = health.as_ref().map(|(_, address)| address.to_string());
    let http_address = http.as_ref().map(|(_, address)| address.to_string());
    let opening = opening(settings, queue).await?;
    let (chains, is_unknown) = opening.open().await?;
    let chains: Vec<Arc<OpenChain>> = chains.into_iter().map(Arc::new).collect();
    let metered = meter::open(settings).await?;
    let usage_jobs = metered.as_ref().filter(|_| settings.postgres().is_none());
    let usage_jobs = usage_jobs.map(|metered| metered.queue.clone());
    let queues = Queues { all: queue.clone(), usage: usage_jobs };
    let mut tasks = start(settings, queues, control, &opening.owner, &stopped)?;
    let metered_blobs = metered.as_ref().map(|metered| Arc::clone(&metered.blobs));
    let metering = start_metering(settings, metered, &opening.owner, &stopped, &mut tasks)?;
    let has_chain = !chains.is_empty() || is_unknown;
    let readiness = readiness(&opening, &metering, metered_blobs, has_chain);
    let tables = opening.tables.clone();
    let running = RunningChains { opening, readiness, usage: metering.usage.clone(), stopped };
    for chain in &chains {
        running.start(chain, &mut tasks);
    }
    let late_chains = is_unknown.then(|| running.start_late(&mut tasks));
    // The recorder ends when nothing can send to it any more: no handle may outlive the tasks.
    let RunningChains { readiness, stopped, opening, usage } = running;
    drop((opening, usage));
    start_checks(&readiness, &stopped, &mut tasks);
    if let Some((listener, _)) = http {
        let state = state(settings, &chains, tables, readiness)?;
        let state = http::State { metering, late_chains, ..state };
        let stop = told(stopped.clone());
        tasks.spawn(async move {
            let health = health.map(|(listener, _)| listener);
            let outcome = http::serve_with_health(listener, health, state, stop).await;
            Ended { task: "the HTTP server", outcome }
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
    until_stopped(signals, tasks, stop, settings.work.stop_deadline()).await
}

/// Starts asking whether everything answers.
fn start_checks(
    readiness: &Arc<Readiness>,
    stopped: &watch::Receiver<bool>,
    tasks: &mut Tasks<Ended>,
) {
    let (readiness, stop) = (Arc::clone(readiness), told(stopped.clone()));
    tasks.spawn(async move {
        Ended { task: "the readiness checks", outcome: readiness.run(stop).await }
    });
}

/// Opens the stores, once what they need is there.
async fn open_stores(settings: &Settings) -> Result<Stores> {
    preflight::database(settings).await?;
    let stores = Stores::open(settings).await?;
    preflight::blobs(settings).await?;
    Ok(stores)
}

/// What chains are opened with.
async fn opening(settings: &Settings, queue: &Queue) -> Result<OpenChains> {
    let owner = format!("logmill-{}-{:x}", std::process::id(), OsEntropy.mark());
    // Before anything is held under this name: others must not take its owner for gone.
    let owner = queue.wakes().prove_alive(&owner).await;
    let stores = IndexStores::open_to_write(settings).await?;
    let tables = match settings.ingest.raw_only {
        true => None,
        false => Some(tables::open_to_write(settings).await?),
    };
    let settings = Arc::new(settings.clone());
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
        absent.insert(Service::Rpc, "no chain is stored, and chain.rpc_urls names no node");
    }
    if opening.tables.is_none() {
        absent.insert(Service::Tables, "nothing is derived: ingest.raw_only is set");
    }
    if metering.usage.is_none() {
        absent.insert(Service::Meter, "nothing is metered: meter.events names no event type");
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
        readiness.add(SqlCheck::of_meter(usage.meter.sql().clone(), usage.suspect.clone()));
        readiness.add(UsageCheck::new(usage.meter.clone()));
    }
    let is_bucket = settings.s3().is_some();
    readiness.add(BlobCheck::new(Arc::clone(blobs), is_bucket));
    // A handle on files fails for itself; a bucket is the same for all.
    if let Some(blobs) = metered_blobs.filter(|_| !is_bucket) {
        readiness.add(BlobCheck::new(blobs, is_bucket));
    }
    if preflight::uses_folder(settings) {
        let (folder, free_mib_min) = (settings.data.clone(), settings.ready.free_disk_mib);
        readiness.add(Arc::new(DiskCheck { folder, free_mib_min }));
    }
    readiness
}

/// Waits for a signal, or for a task that ends, and then for the end of all tasks, for `deadline` at most: a database
/// that hangs must not keep the process from ending.
pub(crate) async fn until_stopped(
    mut signals: Signals,
    mut tasks: Tasks<Ended>,
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
            Some(Ok(Ended { task, outcome: Ok(()) })) => Err(Error::TaskEnded { task }),
            ended => ended.map_or(Ok(()), checked),
        },
    };
    // Nobody listening means that all tasks have ended.
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

/// A task of the server that is over.
pub(crate) struct Ended {
    pub(crate) task: &'static str,
    pub(crate) outcome: Result<()>,
}

/// Starts what there is to do for usage, if any is metered; gives what is served of it.
fn start_metering(
    settings: &Settings,
    metered: Option<OpenMeter>,
    owner: &str,
    stopped: &watch::Receiver<bool>,
    tasks: &mut Tasks<Ended>,
) -> Result<Metering> {
    let config = settings.meter.shown();
    let Some(metered) = metered else { return Ok(Metering { usage: None, config }) };
    let (usage, all) = metered.start(settings, owner, || told(stopped.clone()))?;
    for (task, running) in all {
        tasks.spawn(async move { Ended { task, outcome: running.await } });
    }
    Ok(Metering { usage: Some(usage), config })
}

/// What the chains of this server are run with.
#[derive(Clone)]
struct RunningChains {
    opening: OpenChains,
    readiness: Arc<Readiness>,
    usage: Option<Usage>,
    stopped: watch::Receiver<bool>,
}

impl RunningChains {
    /// Starts what there is to do for a chain.
    fn start(&self, chain: &Arc<OpenChain>, tasks: &mut Tasks<Ended>) {
        self.add_checks(chain);
        if let Some(relay) = self.relay(chain) {
            let stop = told(self.stopped.clone());
            tasks.spawn(async move {
                Ended { task: "usage of a chain", outcome: relay.run(stop).await }
            });
        }
        let (chain, stopped) = (Arc::clone(chain), self.stopped.clone());
        tasks.spawn(async move {
            let outcome = chain.run(|| told(stopped.clone())).await;
            Ended { task: "the chain", outcome }
        });
    }

    /// Starts waiting for a node that tells which chain is meant; gives where the chain comes out.
    fn start_late(&self, tasks: &mut Tasks<Ended>) -> mpsc::Receiver<Served> {
        let (sender, receiver) = mpsc::channel(1);
        let why = "no node has told yet which chain it is of";
        self.readiness.report(Finding::new(Cause::ChainUnknown, None, why));
        if let Some(usage) = &self.usage {
            usage.relays.lack(None, why.to_owned());
        }
        let this = self.clone();
        tasks.spawn(async move {
            Ended { task: "the chain", outcome: Box::pin(this.run_late(sender)).await }
        });
        receiver
    }

    async fn run_late(&self, found: mpsc::Sender<Served>) -> Result<()> {
        let clock = SystemClock::shared();
        let chain = loop {
            let error = match self.opening.meet().await {
                Ok(chain) => break Arc::new(chain),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => crate::output::brief(&logmill_io::chain(&error)),
            };
            let why = format!("no node has told which chain it is of; last error: {error}");
            self.readiness.report(Finding::new(Cause::ChainUnknown, None, why));
            tokio::select! {
                biased;
                () = told(self.stopped.clone()) => return Ok(()),
                () = clock.sleep(MEET_EVERY) => {}
            }
        };
        self.add_checks(&chain);
        self.readiness.clear(Cause::ChainUnknown, None);
        // Nobody serves it where there is no HTTP.
        let _ = found.send(chain.served()).await;
        let relay = self.relay(&chain);
        if let Some(usage) = &self.usage {
            usage.relays.chain_is_known();
        }
        let relaying = async {
            match relay {
                Some(relay) => relay.run(told(self.stopped.clone())).await,
                None => Ok(()),
            }
        };
        // On the heap, both: what they hold is too much for a thread's stack.
        let running = Box::pin(chain.run(|| told(self.stopped.clone())));
        futures::future::try_join(running, Box::pin(relaying)).await.map(|_| ())
    }

    fn add_checks(&self, chain: &Arc<OpenChain>) {
        let settings = &self.opening.settings;
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
        // Where no process derives what is new, tables are as old as they are on purpose.
        if chain.derive.is_some() && (is_shared || settings.derive.settings().live) {
            let lag_blocks = limits.lag_blocks;
            self.readiness.add(Arc::new(TablesCheck { chain: Arc::clone(chain), lag_blocks }));
        }
    }

    /// What carries usage of a chain to the meter, where there are rules for it.
    fn relay(&self, chain: &Arc<OpenChain>) -> Option<Relay> {
        let (usage, settings) = (self.usage.as_ref()?, &self.opening.settings);
        let chain_id = chain.chain.chain_id();
        let worker = settings.meter.usage(chain_id)?;
        let Some(derive) = &chain.derive else {
            let why = format!("chain {chain_id}: nothing is derived here");
            usage.relays.lack(Some(chain_id), why);
            return None;
        };
        let progress = chain.ingest.as_ref().map(|ingest| Arc::clone(&ingest.progress));
        let lowest = settings.ingest.lowest().filter(|_| progress.is_some());
        let blocks = Blocks { chain: chain.chain.clone(), progress, lowest };
        let (reader, readiness) = (derive.reader.clone(), Arc::clone(&self.readiness));
        let relay = Relay::new(reader, blocks, usage.meter.clone(), &worker, readiness);
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
) -> Result<Tasks<Ended>> {
    let runner = maintenance::runner(&queues.all, &settings.work, owner)?;
    let cron = maintenance::cron(&queues.all)?;
    let mut tasks = Tasks::new();
    let stop = told(stopped.clone());
    tasks.spawn(async move {
        Ended {
            task: "the maintenance runner",
            outcome: runner.run(stop).await.map_err(Error::from),
        }
    });
    let stop = told(stopped.clone());
    tasks.spawn(async move {
        let outcome = tokio::select! {
            biased;
            () = stop => Ok(()),
            ended = cron.run() => ended.map_err(Error::from),
        };
        Ended { task: "the maintenance schedule", outcome }
    });
    if let Some(control) = control {
        let stopped = stopped.clone();
        tasks.spawn(async move {
            let outcome = control::serve(control, queues, || told(stopped.clone())).await;
            Ended { task: "the control socket", outcome }
        });
    }
    Ok(tasks)
}

/// Listens for HTTP, if it is to be served; first of all, so that a port that is taken shows at once.
async fn listen(settings: &Settings) -> Result<Option<(TcpListener, SocketAddr)>> {
    match settings.server.listen() {
        None => Ok(None),
        Some(address) => Ok(Some(listen_at(address).await?)),
    }
}

/// Listens at an address; gives the one that it is, where any port will do.
pub(crate) async fn listen_at(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = http::listen(address).await?;
    let address = listener.local_addr();
    let address =
        address.map_err(|source| Error::System { doing: "read the address served", source })?;
    Ok((listener, address))
}

/// What is served.
fn state(
    settings: &Settings,
    chains: &[Arc<OpenChain>],
    tables: Option<Tables>,
    readiness: Arc<Readiness>,
) -> Result<http::State> {
    Ok(http::State {
        late_chains: None,
        readiness,
        tables,
        collecting: None,
        metering: Metering::default(),
        chains: chains.iter().map(|open| (open.chain.chain_id(), open.served())).collect(),
        limits: settings.server.limits(),
        rpc: settings.rpc.limits(),
        clock: SystemClock::shared(),
        entropy: OsEntropy::shared(),
        metrics: Some(http::record_metrics()?),
    })
}

/// Completes when the server stops.
pub(crate) async fn told(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone has stopped too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Waits for all tasks; gives the first error.
async fn wind_down(tasks: &mut Tasks<Ended>) -> Result<()> {
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(checked(ended));
    }
    outcome
}

fn checked(ended: Result<Ended, logmill_io::Panicked>) -> Result<()> {
    let Ended { task, outcome } = ended?;
    outcome.map_err(|source| Error::TaskFailed { task, source: Box::new(source) })
}

/// SIGINT and SIGTERM.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on they no longer end the process by themselves.
    pub(crate) fn new() -> Result<Self> {
        let listen = |kind| {
            signal(kind).map_err(|source| Error::System { doing: "listen for signals", source })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
