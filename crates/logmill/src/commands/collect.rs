//! `logmill collect`: stores events of contracts, each in a table of its own, without an archive, and serves an API
//! over them.
//!
//! | flag | worker | API | on SQLite |
//! |---|---|---|---|
//! | none | yes | yes | takes the folder |
//! | `--worker-only` | yes | no | takes the folder |
//! | `--api-only` | no | yes | reads beside the worker |
//! | `--check` | reports its progress | | reads beside the worker |
//! | `--redrive` | retries dead ranges | | takes the folder |
//!
//! Several processes work together over PostgreSQL.
//!
//! Guarantees: wrong settings, a wrong chain and a missing contract end it with exit code 1 before anything is
//! collected. A signal ends it with 0, and ranges being collected are released at once. Leaves to others: collecting
//! ([`logmill_pipeline::ingest::collect`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::sql::DataFolder;
use logmill_io::{Entropy, OsEntropy, SystemClock, Tasks};
use logmill_pipeline::derive::Tables;
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::ingest::collect::event::{LogProcessor, event_processor};
use logmill_pipeline::ingest::collect::status::{CollectReport, FoundStatus, progress_age};
use logmill_pipeline::ingest::collect::{self, CollectStatus, Collector, Mode};
use logmill_serve::http::{self, CollectorStatus};
use logmill_serve::readiness::chain::silence;
use logmill_serve::readiness::stores::{DiskCheck, SqlCheck};
use logmill_serve::readiness::{Cause, Check, Finding, Readiness, Service};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cli::Collect;
use crate::config::Settings;
use crate::config::collect::Job;
use crate::error::{Error, Result};
use crate::output;
use crate::server::chains;
use crate::server::{self, Signals, TaskResult, stop_requested, until_stopped};
use crate::stores::preflight;
use crate::stores::{self, Database, Databases, OpenMode, tables};

pub(crate) async fn run(args: &Collect, settings: &Settings) -> Result<()> {
    if args.check {
        return check(settings).await;
    }
    if args.redrive {
        return redrive(settings).await;
    }
    serve(args, settings).await
}

/// Collects, serves, or both, until a stop signal.
async fn serve(args: &Collect, settings: &Settings) -> Result<()> {
    // First: a signal during opening must not end the process half-way.
    let mut signals = Signals::new()?;
    let starting = Box::pin(start(args, settings));
    let Some(running) = signals.or_stopped(starting).await? else { return Ok(()) };
    let RunningCollector { tasks, stop, folder: _folder } = running;
    until_stopped(signals, tasks, stop, settings.work.stop_deadline()).await
}

/// RunningCollector tasks, and how to stop them.
struct RunningCollector {
    tasks: Tasks<TaskResult>,
    stop: watch::Sender<bool>,
    /// Dropped last: the lock is held for as long as anything is open.
    folder: Option<DataFolder>,
}

/// Opens everything and starts the requested tasks. Nothing runs before all of it is open.
async fn start(args: &Collect, settings: &Settings) -> Result<RunningCollector> {
    // The database first, because every worker needs it. SQLite has no server to reach: its folder is taken once it is
    // known what to collect, so that a wrong setting creates no files.
    preflight::check_database(settings).await?;
    let job = match args.api_only {
        true => None,
        false => {
            let job = settings.collect.job(settings)?;
            let events = events(settings, job.chain_id)?;
            Some((job, events))
        }
    };
    let listener = match args.worker_only {
        true => None,
        false => Some(server::listen_at(settings.collect.listen(settings)).await?),
    };
    let address = listener.as_ref().map(|(_, address)| address.to_string());
    let health = match args.worker_only {
        true => None,
        false => server::listen_for_health(settings).await?,
    };
    let health_address = health.as_ref().map(|(_, address)| address.to_string());
    let metrics = listener.as_ref().map(|_| http::record_metrics()).transpose()?;
    let folder = match job.is_some() && settings.postgres().is_none() {
        true => Some(stores::take(&settings.data).await?),
        false => None,
    };
    let mode = if job.is_some() { OpenMode::Write } else { OpenMode::Read };
    let tables = tables::open(&Databases::open(settings, mode).await?).await?;
    let collectors = match &job {
        Some((job, events)) => begin_all(args, settings, job, events, &tables).await?,
        None => Vec::new(),
    };
    let (stop, stopped) = watch::channel(false);
    let mut tasks = Tasks::new();
    for collector in collectors.clone() {
        let stopped = stopped.clone();
        tasks.spawn(async move {
            let outcome = collector.run(|| stop_requested(stopped.clone())).await;
            TaskResult { task: "the collector", outcome: outcome.map_err(Error::from) }
        });
    }
    if let Some((listener, _)) = listener {
        let state = http::ServerParts { metrics, ..state(settings, tables.clone(), collectors) };
        let (readiness, stop) = (Arc::clone(&state.readiness), stop_requested(stopped.clone()));
        tasks.spawn(async move {
            TaskResult {
                task: "the readiness checks",
                outcome: readiness.run(stop).await.map_err(Error::from),
            }
        });
        let stop = stop_requested(stopped);
        tasks.spawn(async move {
            let health = health.map(|(listener, _)| listener);
            let outcome = http::serve_with_health(listener, health, state, stop).await;
            TaskResult { task: "the HTTP server", outcome: outcome.map_err(Error::from) }
        });
    }
    tracing::info!(
        pid = std::process::id(),
        version = env!("CARGO_PKG_VERSION"),
        database = tables.sql().engine_name(),
        chain = job.as_ref().map(|(job, _)| job.chain_id),
        workers = job.as_ref().map(|(job, _)| job.settings.workers),
        http = address,
        health = health_address,
        "ready"
    );
    Ok(RunningCollector { tasks, stop, folder })
}

async fn begin_all(
    args: &Collect,
    settings: &Settings,
    job: &Job,
    events: &[Arc<dyn LogProcessor>],
    tables: &Tables,
) -> Result<Vec<Arc<Collector>>> {
    let permit = Permit { allows_empty: args.allow_empty, ..Permit::default() };
    let mut collectors = Vec::new();
    for event in events {
        collectors.push(begin(settings, job, event, tables).await?);
        tables.permit(job.chain_id, event.name(), permit).await?;
    }
    Ok(collectors)
}

/// Opens a collector, tests its connection and seeds its cursor.
async fn begin(
    settings: &Settings,
    job: &Job,
    event: &Arc<dyn LogProcessor>,
    tables: &Tables,
) -> Result<Arc<Collector>> {
    let source = chains::head_source(settings, &SystemClock::shared())?;
    let owner = format!("collect-{}-{:x}", std::process::id(), OsEntropy.mark());
    let owner = tables.queue().wakes().prove_alive(&owner).await;
    let (chain_id, tables, event) = (job.chain_id, tables.clone(), Arc::clone(event));
    let collector = Collector::new(chain_id, source, tables, event, job.settings.clone(), owner);
    let collector = Arc::new(collector);
    collector.test_connection().await?;
    let start = collector.seed_cursor().await?;
    tracing::info!(chain = chain_id, start, kind = collector.kind(), "started collecting");
    Ok(collector)
}

fn events(settings: &Settings, chain_id: u64) -> Result<Vec<Arc<dyn LogProcessor>>> {
    let contracts = settings.collect.contracts()?;
    let event = |event: &str| {
        event_processor(chain_id, &contracts, event).map_err(|error| Error::Collect {
            variable: "EVENT",
            why: format!("cannot be used: {error}"),
        })
    };
    let events = settings.collect.events().into_iter().map(event);
    let mut events = events.collect::<Result<Vec<Arc<dyn LogProcessor>>>>()?;
    // The same event may be written in several ways.
    events.sort_by_key(|event| event.name());
    events.dedup_by_key(|event| event.name());
    Ok(events)
}

/// Chain id, and the consumer names of its events.
fn consumers(settings: &Settings) -> Result<(u64, Vec<&'static str>)> {
    let (chain_id, events) = chain_events(settings)?;
    Ok((chain_id, events.iter().map(|event| event.name()).collect()))
}

/// Chain id, and its events.
fn chain_events(settings: &Settings) -> Result<(u64, Vec<Arc<dyn LogProcessor>>)> {
    let why = "is not set: give the id of the chain";
    let missing = || Error::Collect { variable: "ACTIVE_CHAIN", why: why.to_owned() };
    let chain_id = settings.chain.id().ok_or_else(missing)?;
    Ok((chain_id, events(settings, chain_id)?))
}

/// The status of an event; an error if it was never collected, or only from other contracts.
async fn status_of(
    tables: &Tables,
    chain_id: u64,
    event: &dyn LogProcessor,
) -> Result<CollectStatus> {
    let (consumer, parameters) = (event.name(), event.parameters());
    match CollectStatus::find_with(tables, chain_id, consumer, &parameters).await? {
        FoundStatus::Collected(status) => Ok(status),
        FoundStatus::Nothing => Err(Error::NothingCollected { chain_id, consumer }),
        FoundStatus::OtherParameters(stored) => {
            let (collected, requested) = (contracts_in(&stored), contracts_in(&parameters));
            Err(Error::OtherContracts { chain_id, consumer, collected, requested })
        }
    }
}

/// The addresses in the parameters of a processor, each once.
fn contracts_in(parameters: &str) -> String {
    let words = parameters.split(|c: char| !c.is_ascii_alphanumeric());
    let addresses: BTreeSet<&str> = words.filter(|word| word.starts_with("0x")).collect();
    addresses.into_iter().collect::<Vec<_>>().join(", ")
}

/// Prints the progress of collecting; an error if ranges are missing whose attempts have all failed.
async fn check(settings: &Settings) -> Result<()> {
    let (chain_id, events) = chain_events(settings)?;
    let tables = tables::open(&Databases::open(settings, OpenMode::Read).await?).await?;
    let mut all = Vec::new();
    for event in events {
        all.push(status_of(&tables, chain_id, &*event).await?);
    }
    output::json(&one_or_all(all.iter().map(|status| json!(status)).collect()))?;
    match all.iter().map(|status| status.dead).sum() {
        0 => Ok(()),
        ranges => Err(Error::Missing { ranges }),
    }
}

/// A single status, or a list of several.
fn one_or_all(mut all: Vec<Value>) -> Value {
    if all.len() == 1 { all.remove(0) } else { all.into() }
}

/// Gives dead ranges all their attempts again.
async fn redrive(settings: &Settings) -> Result<()> {
    let (chain_id, events) = chain_events(settings)?;
    Database::Tables.expect(settings)?;
    let _folder = match settings.postgres() {
        None => Some(stores::take(&settings.data).await?),
        Some(_) => None,
    };
    let tables = tables::open(&Databases::open(settings, OpenMode::Write).await?).await?;
    let mut ranges = 0;
    for event in events {
        status_of(&tables, chain_id, &*event).await?;
        ranges += tables.queue().redrive_dead(&collect::kind(chain_id, event.name())).await?;
    }
    output::line(&format!("{ranges} ranges will be retried"))
}

/// State of the HTTP server, without its metrics.
fn state(
    settings: &Settings,
    tables: Tables,
    collectors: Vec<Arc<Collector>>,
) -> http::ServerParts {
    let consumers = consumers(settings).ok();
    let poll = settings.collect.longest_poll();
    let seen_within = settings.ready.limits(poll).seen_within;
    let chain_id = consumers.as_ref().map(|(chain_id, _)| *chain_id);
    let is_archived = chain_id.is_some_and(|chain_id| settings.ready.is_archived(chain_id));
    let collecting = Arc::new(CollectorMonitor {
        tables: tables.clone(),
        consumers,
        collectors,
        seen_within,
        is_archived,
    });
    let absent = BTreeMap::from([
        (Service::Rpc, "a collector does not serve a chain"),
        (Service::Meter, "a collector does not meter usage"),
    ]);
    let readiness = Readiness::new(SystemClock::shared(), settings.ready.store_timeout(), absent);
    let what = "the database of tables";
    readiness.add(SqlCheck::new(Cause::TablesStoreSilent, what, tables.sql().clone()));
    readiness.add(Arc::clone(&collecting) as Arc<dyn Check>);
    if settings.postgres().is_none() {
        let (folder, free_mib_min) = (settings.data.clone(), settings.ready.free_disk_mib);
        readiness.add(Arc::new(DiskCheck { folder, free_mib_min }));
    }
    http::ServerParts {
        chains: Default::default(),
        late_chains: None,
        readiness,
        tables: Some(tables),
        collecting: Some(collecting),
        metering: http::Metering::default(),
        limits: settings.server.limits(),
        rpc: settings.rpc.limits(settings.ready.lag_blocks),
        clock: SystemClock::shared(),
        entropy: OsEntropy::shared(),
        metrics: None,
    }
}

/// Reads the status of collecting, in a process that collects or one that only reads.
#[derive(Debug)]
struct CollectorMonitor {
    tables: Tables,
    /// Chain id, and the name of every event.
    consumers: Option<(u64, Vec<&'static str>)>,
    collectors: Vec<Arc<Collector>>,
    /// Maximum age of a node's last response.
    seen_within: Duration,
    /// Whether no more blocks are expected.
    is_archived: bool,
}

/// Problems of a collector of this process.
fn judge(chain_id: u64, report: &CollectReport, seen_within: Duration) -> Vec<Finding> {
    let finding = |cause, why: String| Finding::new(cause, Some(chain_id), why);
    let mut found = Vec::new();
    if let Some(why) = &report.halted {
        found.push(finding(Cause::CollectorStopped, why.clone()));
    }
    found.extend(report.incomplete.clone().map(|why| finding(Cause::TablesKept, why)));
    found.extend(report.collected.as_ref().and_then(incomplete));
    let seen_ago = report.seen_ms_ago.map(Duration::from_millis);
    let silent =
        |long: String| finding(Cause::NodeSilent, silence(&long, report.last_error.as_deref()));
    match (report.lag, seen_ago) {
        // The head is not queried while the collector is far behind.
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

/// A problem of the collectors of other processes, judged by when they last published their status.
fn judge_worker(chain_id: u64, ago: Option<Duration>, within: Duration) -> Option<Finding> {
    let long = match ago {
        Some(ago) if ago <= within => return None,
        Some(ago) => format!("for {} s", ago.as_secs()),
        None => "yet".to_owned(),
    };
    let why = format!("no process has collected blocks or seen the chain's head {long}");
    Some(Finding::new(Cause::CollectorStopped, Some(chain_id), why))
}

fn incomplete(status: &CollectStatus) -> Option<Finding> {
    let why = format!("{} ranges are missing: all attempts to collect them failed", status.dead);
    let finding = Finding::new(Cause::CollectorIncomplete, Some(status.chain_id), why);
    (status.dead > 0).then_some(finding)
}

impl CollectorMonitor {
    /// Status of every event, from the database.
    async fn statuses(&self) -> logmill_pipeline::Result<Vec<Option<CollectStatus>>> {
        let mut all = Vec::new();
        if let Some((chain_id, names)) = &self.consumers {
            for name in names {
                all.push(CollectStatus::find(&self.tables, *chain_id, name).await?);
            }
        }
        Ok(all)
    }

    /// Problems of the collectors of other processes, from the database.
    async fn judge_others(&self) -> logmill_pipeline::Result<Vec<Finding>> {
        let statuses = self.statuses().await?;
        let mut found: Vec<Finding> = statuses.iter().flatten().filter_map(incomplete).collect();
        if let Some((chain_id, names)) = self.consumers.as_ref().filter(|_| !self.is_archived) {
            for name in names {
                let ago = progress_age(&self.tables, *chain_id, name).await?;
                found.extend(judge_worker(*chain_id, ago, self.seen_within));
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl Check for CollectorMonitor {
    async fn check(&self) -> logmill_serve::Result<Vec<Finding>> {
        let chain_id = self.consumers.as_ref().map_or(0, |(chain_id, _)| *chain_id);
        if !self.collectors.is_empty() {
            let mut found = Vec::new();
            for collector in &self.collectors {
                found.extend(judge(chain_id, &collector.report().await, self.seen_within));
            }
            return Ok(found);
        }
        match self.judge_others().await {
            Ok(found) => Ok(found),
            Err(error) if error.is_fatal() => Err(error.into()),
            Err(error) => {
                let why = format!(
                    "the collected tables cannot be read: {}",
                    logmill_io::error_chain(&error)
                );
                Ok(vec![Finding::new(Cause::TablesStoreSilent, Some(chain_id), why)])
            }
        }
    }

    fn silence(&self) -> Finding {
        Finding::new(Cause::TablesStoreSilent, None, "reading the progress of collecting")
    }
}

#[async_trait]
impl CollectorStatus for CollectorMonitor {
    async fn status_json(&self) -> Value {
        if !self.collectors.is_empty() {
            let mut reports = Vec::new();
            for collector in &self.collectors {
                reports.push(json!(collector.report().await));
            }
            return one_or_all(reports);
        }
        if self.consumers.is_none() {
            return Value::Null;
        }
        match self.statuses().await {
            Ok(all) => {
                one_or_all(all.iter().map(|status| json!({ "collected": status })).collect())
            }
            Err(error) => {
                let error = output::brief(&logmill_io::error_chain(&error));
                tracing::warn!(error, "cannot read the progress of collecting");
                json!({ "error": "the progress cannot be read; the log says why" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_says_why_it_is_not_ready() {
        let status = |dead| CollectStatus {
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
        let fine = CollectReport {
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
            incomplete: None,
        };
        let codes = |report: &CollectReport| -> Vec<&str> {
            let found = judge(1, report, Duration::from_secs(60));
            found.iter().map(|finding| finding.cause.code()).collect()
        };
        assert!(codes(&fine).is_empty());
        let halted = Some("the final block changed".to_owned());
        assert_eq!(codes(&CollectReport { halted, ..fine.clone() }), ["collector_stopped"]);
        let incomplete = Some("the settings have changed".to_owned());
        assert_eq!(codes(&CollectReport { incomplete, ..fine.clone() }), ["tables_kept"]);
        let collected = Some(status(2));
        assert_eq!(codes(&CollectReport { collected, ..fine.clone() }), ["collector_incomplete"]);
        let mode = Mode::Historical.name();
        assert_eq!(codes(&CollectReport { mode, ..fine.clone() }), ["collector_behind"]);
        for seen_ms_ago in [None, Some(60_001)] {
            assert_eq!(codes(&CollectReport { seen_ms_ago, ..fine.clone() }), ["node_silent"]);
        }
    }
}
