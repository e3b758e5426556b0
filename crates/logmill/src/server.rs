//! `logmill run`: the server, from taking its folder to giving it back.
//!
//! ```text
//!   folder ─▶ stores ─▶ tasks: runner, schedule, control socket ─▶ ready
//!                                     │
//!        signal, or a task that ends ─┴─▶ stop ─▶ tasks wind down ─▶ stores, folder
//! ```
//!
//! Guarantees: after one signal no new job is claimed, jobs that run are finished or given back within their
//! deadline, and the exit code is 0; a second signal ends it at once. A task that fails ends the server with
//! its error, as one that limps is worse than one that is restarted. Leaves to others: what the tasks do.

use std::net::SocketAddr;
use std::sync::Arc;

use logmill_io::{Entropy, OsEntropy, SystemClock, Tasks};
use logmill_pipeline::derive::Tables;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::chains::{self, OpenChain};
use crate::config::Settings;
use crate::control::{self, Control, Queues};
use crate::error::{Error, Result};
use crate::http::{self, Metering};
use crate::maintenance;
use crate::meter::relay::{Blocks, Relay};
use crate::meter::{self, OpenMeter};
use crate::stores::index::IndexStores;
use crate::stores::{Stores, tables};

/// Serves until it is told to stop.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    // First: a signal that comes while we open must not end us half-way.
    let signals = Signals::new()?;
    if let Some(open_files) = logmill_io::raise_open_files() {
        tracing::debug!(open_files, "the most files and sockets that may be open");
    }
    let stores = Stores::open(settings).await?;
    let queue = &stores.queue;
    let control = stores.folder.as_ref().map(Control::listen).transpose()?;
    let control_path = control.as_ref().map(|control| control.path().display().to_string());
    let (stop, stopped) = watch::channel(false);
    let http = listen(settings).await?;
    let http_address = http.as_ref().map(|(_, address)| address.to_string());
    let owner = format!("logmill-{}-{:x}", std::process::id(), OsEntropy.mark());
    let indexes = IndexStores::open_to_write(settings).await?;
    let tables = match settings.ingest.raw_only {
        true => None,
        false => Some(tables::open_to_write(settings).await?),
    };
    let chains = chains::open(settings, queue, &indexes, tables.as_ref(), &owner).await?;
    let chains: Vec<Arc<OpenChain>> = chains.into_iter().map(Arc::new).collect();
    let metered = meter::open(settings).await?;
    let usage_jobs = metered.as_ref().filter(|_| settings.postgres().is_none());
    let usage_jobs = usage_jobs.map(|metered| metered.queue.clone());
    let queues = Queues { all: queue.clone(), usage: usage_jobs };
    let mut tasks = start(settings, queues, control, &owner, &stopped)?;
    let metering = start_metering(settings, metered, &owner, &stopped, &mut tasks)?;
    start_relays(settings, &chains, &metering, &stopped, &mut tasks);
    for chain in &chains {
        let (chain, stopped) = (Arc::clone(chain), stopped.clone());
        tasks.spawn(async move {
            let outcome = chain.run(|| told(stopped.clone())).await;
            Ended { task: "the chain", outcome }
        });
    }
    if let Some((listener, _)) = http {
        let state = http::State { metering, ..state(settings, &chains, tables)? };
        let stop = told(stopped.clone());
        tasks.spawn(async move {
            Ended { task: "the HTTP server", outcome: http::serve(listener, state, stop).await }
        });
    }
    tracing::info!(
        pid = std::process::id(),
        version = env!("CARGO_PKG_VERSION"),
        data = %settings.data.display(),
        database = queue.sql().engine_name(),
        control = control_path,
        http = http_address,
        slots = settings.work.slots,
        "ready"
    );
    until_stopped(signals, tasks, stop).await
}

/// Waits for a signal, or for a task that ends, and then for the end of all tasks.
pub(crate) async fn until_stopped(
    mut signals: Signals,
    mut tasks: Tasks<Ended>,
    stop: watch::Sender<bool>,
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

/// Starts carrying usage of chains to the meter, where there are rules for it.
fn start_relays(
    settings: &Settings,
    chains: &[Arc<OpenChain>],
    metering: &Metering,
    stopped: &watch::Receiver<bool>,
    tasks: &mut Tasks<Ended>,
) {
    let Some(usage) = &metering.usage else { return };
    for chain in chains {
        let chain_id = chain.chain.chain_id();
        let Some(worker) = settings.meter.usage(chain_id) else { continue };
        let Some(derive) = &chain.derive else {
            usage.relays.lack(format!("chain {chain_id}: nothing is derived here"));
            continue;
        };
        let progress = chain.ingest.as_ref().map(|ingest| Arc::clone(&ingest.progress));
        let lowest = settings.ingest.lowest().filter(|_| progress.is_some());
        let blocks = Blocks { chain: chain.chain.clone(), progress, lowest };
        let relay = Relay::new(derive.reader.clone(), blocks, usage.meter.clone(), &worker);
        usage.relays.add(relay.clone());
        let stop = told(stopped.clone());
        tasks.spawn(
            async move { Ended { task: "usage of a chain", outcome: relay.run(stop).await } },
        );
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
) -> Result<http::State> {
    Ok(http::State {
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
