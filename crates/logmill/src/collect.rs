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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::{Entropy, OsEntropy, SystemClock, Tasks};
use logmill_pipeline::derive::Tables;
use logmill_pipeline::ingest::collect::event::{LogProcessor, collected};
use logmill_pipeline::ingest::collect::status::Report;
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
use crate::preflight;
use crate::readiness::stores::SqlCheck;
use crate::readiness::{Cause, Check, Finding, Readiness, Service};
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
    preflight::database(settings).await?;
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
        let (readiness, stop) = (Arc::clone(&state.readiness), told(stopped.clone()));
        tasks.spawn(async move {
            Ended { task: "the readiness checks", outcome: readiness.run(stop).await }
        });
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
    let poll = settings.collect.longest_poll();
    let seen_within = settings.ready.limits(poll).seen_within;
    let collecting = Arc::new(Shown { tables: tables.clone(), consumer, collector, seen_within });
    let absent = BTreeMap::from([
        (Service::Rpc, "a collector serves no chain"),
        (Service::Meter, "a collector meters nothing"),
    ]);
    let readiness = Readiness::new(SystemClock::shared(), settings.ready.store_timeout(), absent);
    let what = "the database of tables";
    readiness.add(SqlCheck::new(Cause::TablesStoreSilent, what, tables.sql().clone()));
    readiness.add(Arc::clone(&collecting) as Arc<dyn Check>);
    Ok(http::State {
        chains: Default::default(),
        late_chains: None,
        readiness,
        tables: Some(tables),
        collecting: Some(collecting),
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
    /// How long ago a node must have answered.
    seen_within: Duration,
}

/// What is wrong with a collector of this process.
fn judge(chain_id: u64, report: &Report, seen_within: Duration) -> Vec<Finding> {
    let finding = |cause, why: String| Finding::new(cause, Some(chain_id), why);
    let mut found = Vec::new();
    if let Some(why) = &report.halted {
        found.push(finding(Cause::CollectorStopped, why.clone()));
    }
    found.extend(report.collected.as_ref().and_then(incomplete));
    let seen_ago = report.seen_ms_ago.map(Duration::from_millis);
    let silent = |long: String| {
        let last = report.last_error.as_deref().unwrap_or("no error was seen");
        finding(Cause::NodeSilent, format!("no node has answered {long}; last error: {last}"))
    };
    match (report.lag, seen_ago) {
        // The head is not asked for while there is enough to do.
        (Some(lag), _) if report.mode == Mode::Historical.name() => {
            found.push(finding(Cause::CollectorBehind, format!("{lag} final blocks behind")));
        }
        (_, None) => found.push(silent("yet".to_owned())),
        (_, Some(ago)) if ago > seen_within => {
            found.push(silent(format!("for {} s", ago.as_secs())));
        }
        _ => {}
    }
    found
}

fn incomplete(status: &Status) -> Option<Finding> {
    let why = format!("{} ranges are missing that nobody could collect", status.dead);
    let finding = Finding::new(Cause::CollectorIncomplete, Some(status.chain_id), why);
    (status.dead > 0).then_some(finding)
}

#[async_trait]
impl Check for Shown {
    async fn check(&self) -> Result<Vec<Finding>> {
        if let Some(collector) = &self.collector {
            let chain_id = self.consumer.map_or(0, |(chain_id, _)| chain_id);
            return Ok(judge(chain_id, &collector.report().await, self.seen_within));
        }
        let Some((chain_id, name)) = self.consumer else { return Ok(Vec::new()) };
        match Status::find(&self.tables, chain_id, name).await {
            Ok(status) => Ok(status.iter().filter_map(incomplete).collect()),
            Err(error) if error.is_fatal() => Err(error.into()),
            Err(error) => {
                let why =
                    format!("what is collected cannot be read: {}", logmill_io::chain(&error));
                Ok(vec![Finding::new(Cause::TablesStoreSilent, Some(chain_id), why)])
            }
        }
    }

    fn silence(&self) -> Finding {
        Finding::new(Cause::TablesStoreSilent, None, "reading how far collecting is")
    }
}

#[async_trait]
impl Collecting for Shown {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_says_why_it_is_not_ready() {
        let status = |dead| Status {
            chain_id: 1,
            consumer: "fees".to_owned(),
            start: 0,
            cursor: 90,
            covered: Vec::new(),
            blocks: 90,
            pending: 0,
            running: 0,
            dead,
            missing: Vec::new(),
        };
        let fine = Report {
            collected: Some(status(0)),
            mode: Mode::Realtime.name(),
            finalized: Some(90),
            latest: Some(100),
            seen_ms_ago: Some(500),
            lag: Some(0),
            scanned_blocks: 0,
            found_events: 0,
            failures: 0,
            last_error: None,
            halted: None,
        };
        let codes = |report: &Report| -> Vec<&str> {
            let found = judge(1, report, Duration::from_secs(60));
            found.iter().map(|finding| finding.cause.code()).collect()
        };
        assert!(codes(&fine).is_empty());
        let halted = Some("the final block changed".to_owned());
        assert_eq!(codes(&Report { halted, ..fine.clone() }), ["collector_stopped"]);
        let collected = Some(status(2));
        assert_eq!(codes(&Report { collected, ..fine.clone() }), ["collector_incomplete"]);
        let mode = Mode::Historical.name();
        assert_eq!(codes(&Report { mode, ..fine.clone() }), ["collector_behind"]);
        for seen_ms_ago in [None, Some(60_001)] {
            assert_eq!(codes(&Report { seen_ms_ago, ..fine.clone() }), ["node_silent"]);
        }
    }
}
