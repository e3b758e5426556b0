//! `logmill collect`: one event of a contract, without an archive, and an API over it.
//!
//! | asked | worker | API | on SQLite |
//! |---|---|---|---|
//! | nothing | yes | yes | takes the folder |
//! | `--worker-only` | yes | no | takes the folder |
//! | `--api-only` | no | yes | reads beside the worker |
//! | `--check` | says how far it is | | reads beside the worker |
//! | `--redrive` | tries dead ranges again | | takes the folder |
//!
//! Several processes work together over PostgreSQL.
//!
//! Guarantees: wrong settings, a wrong chain and a missing contract end it before anything is collected, with 1; a
//! signal ends it with 0, and what was being collected is given back at once. Leaves to others: collecting
//! ([`logmill_pipeline::ingest::collect`]).

use std::sync::Arc;

use async_trait::async_trait;
use logmill_io::{Entropy, OsEntropy, SystemClock, Tasks};
use logmill_pipeline::derive::Tables;
use logmill_pipeline::ingest::collect::event::{LogProcessor, collected};
use logmill_pipeline::ingest::collect::{self, Collector, Mode, Status};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::chains;
use crate::cli::Collect;
use crate::config::Settings;
use crate::config::collect::Job;
use crate::error::{Error, Result};
use crate::http::{self, Collecting};
use crate::output;
use crate::server::{self, Ended, Signals, told, until_stopped};
use crate::stores::{self, tables};

/// Does what is asked.
pub(crate) async fn run(asked: &Collect, settings: &Settings) -> Result<()> {
    if asked.check {
        return check(settings).await;
    }
    if asked.redrive {
        return redrive(settings).await;
    }
    serve(asked, settings).await
}

/// Collects, serves, or both, until it is told to stop.
async fn serve(asked: &Collect, settings: &Settings) -> Result<()> {
    // First: a signal that comes while we open must not end us half-way.
    let signals = Signals::new()?;
    let job = match asked.api_only {
        true => None,
        false => {
            let job = settings.collect.job(settings)?;
            let event = event(settings, job.chain_id)?;
            Some((job, event))
        }
    };
    let listener = match asked.worker_only {
        true => None,
        false => Some(server::listen_at(settings.collect.listen(settings)).await?),
    };
    let address = listener.as_ref().map(|(_, address)| address.to_string());
    // The last to go: the lock is held for as long as anything is open.
    let _folder = match job.is_some() && settings.postgres().is_none() {
        true => Some(stores::take(&settings.data).await?),
        false => None,
    };
    let tables = match &job {
        Some(_) => tables::open_to_write(settings).await?,
        None => tables::open_to_read(settings).await?,
    };
    let collector = match &job {
        Some((job, event)) => Some(begin(settings, job, event, &tables).await?),
        None => None,
    };
    let (stop, stopped) = watch::channel(false);
    let mut tasks = Tasks::new();
    if let Some(collector) = collector.clone() {
        let stopped = stopped.clone();
        tasks.spawn(async move {
            let outcome = collector.run(|| told(stopped.clone())).await;
            Ended { task: "the collector", outcome: outcome.map_err(Error::from) }
        });
    }
    if let Some((listener, _)) = listener {
        let state = state(settings, tables.clone(), collector)?;
        let stop = told(stopped.clone());
        tasks.spawn(async move {
            Ended { task: "the HTTP server", outcome: http::serve(listener, state, stop).await }
        });
    }
    tracing::info!(
        pid = std::process::id(),
        version = env!("CARGO_PKG_VERSION"),
        database = tables.sql().engine_name(),
        chain = job.as_ref().map(|(job, _)| job.chain_id),
        workers = job.as_ref().map(|(job, _)| job.settings.workers),
        http = address,
        "ready"
    );
    until_stopped(signals, tasks, stop, settings.work.stop_deadline()).await
}

/// A collector whose connection is fine and whose tables are there.
async fn begin(
    settings: &Settings,
    job: &Job,
    event: &Arc<dyn LogProcessor>,
    tables: &Tables,
) -> Result<Arc<Collector>> {
    let source = chains::live(settings, &SystemClock::shared())?;
    let owner = format!("collect-{}-{:x}", std::process::id(), OsEntropy.mark());
    let owner = tables.queue().wakes().prove_alive(&owner).await;
    let (chain_id, tables, event) = (job.chain_id, tables.clone(), Arc::clone(event));
    let collector = Collector::new(chain_id, source, tables, event, job.settings.clone(), owner);
    let collector = Arc::new(collector);
    collector.test_connection().await?;
    let start = collector.seed_cursor().await?;
    tracing::info!(chain = chain_id, start, kind = collector.kind(), "collecting");
    Ok(collector)
}

fn event(settings: &Settings, chain_id: u64) -> Result<Arc<dyn LogProcessor>> {
    let (contracts, event) = (settings.collect.contracts()?, &settings.collect.event);
    collected(chain_id, &contracts, event)
        .map_err(|error| Error::Collect { variable: "EVENT", why: error.to_string() })
}

/// Which chain, and under which name it is collected.
fn consumer(settings: &Settings) -> Result<(u64, &'static str)> {
    let missing = || Error::Collect { variable: "ACTIVE_CHAIN", why: "it is missing".to_owned() };
    let chain_id = settings.chain.id().ok_or_else(missing)?;
    Ok((chain_id, event(settings, chain_id)?.name()))
}

/// Says how far collecting is; an error if ranges are missing that nobody could collect.
async fn check(settings: &Settings) -> Result<()> {
    let (chain_id, name) = consumer(settings)?;
    let tables = tables::open_to_read(settings).await?;
    let status = Status::find(&tables, chain_id, name).await?;
    output::json(&status)?;
    match status {
        Some(status) if status.dead > 0 => Err(Error::Missing { ranges: status.dead }),
        _ => Ok(()),
    }
}

/// Gives ranges that nobody could collect all their attempts again.
async fn redrive(settings: &Settings) -> Result<()> {
    let (chain_id, name) = consumer(settings)?;
    let _folder = match settings.postgres() {
        None => Some(stores::take(&settings.data).await?),
        Some(_) => None,
    };
    let tables = tables::open_to_write(settings).await?;
    let ranges = tables.queue().redrive_dead(&collect::kind(chain_id, name)).await?;
    output::line(&format!("{ranges} ranges are tried again"))
}

/// What is served.
fn state(
    settings: &Settings,
    tables: Tables,
    collector: Option<Arc<Collector>>,
) -> Result<http::State> {
    let consumer = consumer(settings).ok();
    let collecting = Shown { tables: tables.clone(), consumer, collector };
    Ok(http::State {
        chains: Default::default(),
        tables: Some(tables),
        collecting: Some(Arc::new(collecting)),
        metering: http::Metering::default(),
        limits: settings.server.limits(),
        rpc: settings.rpc.limits(),
        clock: SystemClock::shared(),
        entropy: OsEntropy::shared(),
        metrics: Some(http::record_metrics()?),
    })
}

/// What is told of collecting, by who does it or by who only reads.
#[derive(Debug)]
struct Shown {
    tables: Tables,
    consumer: Option<(u64, &'static str)>,
    collector: Option<Arc<Collector>>,
}

#[async_trait]
impl Collecting for Shown {
    async fn behind(&self) -> Option<String> {
        let report = self.collector.as_ref()?.report().await;
        let dead = report.collected.as_ref().map_or(0, |status| status.dead);
        match report.lag {
            _ if report.halted.is_some() => report.halted,
            _ if report.collected.is_none() => Some("the database does not answer".to_owned()),
            _ if dead > 0 => Some(format!("{dead} ranges are missing that nobody could collect")),
            None => Some("the chain has not been reached yet".to_owned()),
            Some(lag) if report.mode == Mode::Historical.name() => {
                Some(format!("{lag} final blocks behind"))
            }
            Some(_) => None,
        }
    }

    async fn shown(&self) -> Value {
        if let Some(collector) = &self.collector {
            return json!(collector.report().await);
        }
        let Some((chain_id, name)) = self.consumer else {
            return Value::Null;
        };
        match Status::find(&self.tables, chain_id, name).await {
            Ok(status) => json!({ "collected": status }),
            Err(error) => {
                let error = output::brief(&logmill_io::chain(&error));
                tracing::warn!(error, "read how far collecting is");
                json!({ "error": "it can not be read; the log says why" })
            }
        }
    }
}
