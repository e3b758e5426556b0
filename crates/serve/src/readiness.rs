//! Readiness: the one place that decides whether this process may be sent requests.
//!
//! ```text
//!   checks, each in a loop of its own ──▶ slots ─┐
//!   components that report by themselves ────────┴─▶ reasons ──▶ /ready, /ready/SERVICE, /status, metrics, log
//! ```
//!
//! Ready means: this process serves, its stores answer, none of its tasks has stopped, and its view is at most
//! `ready.lag_blocks` behind a head that was seen within `ready.head_seen_within_ms`, whichever process writes.
//!
//! | module | role |
//! |---|---|
//! | [`cause`] | every cause, its code, and the services that it makes unavailable |
//! | [`stores`] | whether databases, blobs and disk answer |
//! | [`chain`] | the state of a chain, judged from its view and the last seen head |
//! | [`tables`] | progress of derived and collected tables |
//!
//! Guarantees: a query only reads memory and never waits. Checks cannot pile up: a hanging check stays the only one
//! of its kind, and counts as failed once it takes longer than `ready.store_timeout_ms`. A store that can never work
//! again ends [`Readiness::run`], and with it the process. Leaves to others: serving the answers ([`crate::http`]).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use logmill_io::{Clock, Timestamp};
use serde::Serialize;
use tokio::sync::Notify;

pub use cause::{Cause, Service};

use crate::error::Result;

pub mod cause;
pub mod chain;
pub mod stores;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod usage;

/// Pause between two runs of a check.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long after the start a reason that every start goes through is not logged.
const START_QUIET: Duration = Duration::from_secs(10);

/// Checks one part of the process.
#[async_trait]
pub trait Check: Send + Sync + std::fmt::Debug {
    /// Current problems. An error ends the process.
    async fn check(&self) -> Result<Vec<Finding>>;

    /// The finding if there is no answer in time.
    fn silence(&self) -> Finding;

    /// Pause between two runs.
    fn every(&self) -> Duration {
        CHECK_EVERY
    }
}

/// A cause that applies now, and its symptom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub cause: Cause,
    pub chain_id: Option<u64>,
    pub reason: String,
}

impl Finding {
    pub fn new(cause: Cause, chain_id: Option<u64>, reason: impl Into<String>) -> Self {
        Self { cause, chain_id, reason: crate::one_line::brief(&reason.into()) }
    }
}

/// A finding as it is serialized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub component: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<u64>,
    pub code: &'static str,
    pub reason: String,
    /// Start time, as RFC 3339.
    pub since: String,
    #[serde(skip)]
    pub cause: Cause,
}

/// Whether this process, or one service of it, is ready, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub ready: bool,
    pub reasons: Vec<Reason>,
    /// Findings that need attention but make no service unavailable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Reason>,
}

/// Findings with their reason and start time.
type FindingMap = BTreeMap<(Cause, Option<u64>), (String, Timestamp)>;

/// A check and its last result.
#[derive(Debug)]
struct Slot {
    check: Arc<dyn Check>,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// `None` until the first run has ended.
    found: Option<FindingMap>,
    /// Start of the current run: on the monotonic clock, and as wall-clock time.
    running: Option<(Duration, Timestamp)>,
    added: Timestamp,
}

/// Readiness of this process.
#[derive(Debug)]
pub struct Readiness {
    clock: Arc<dyn Clock>,
    timeout: Duration,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Number of slots whose loop has started.
    started: Mutex<usize>,
    added: Notify,
    reports: Mutex<FindingMap>,
    /// Services that this process does not offer, and why.
    absent: BTreeMap<Service, &'static str>,
    created: Timestamp,
}

impl Readiness {
    /// Starts without checks. `timeout` limits a run of a check; `absent` lists services that are not served, and
    /// why.
    pub fn new(
        clock: Arc<dyn Clock>,
        timeout: Duration,
        absent: BTreeMap<Service, &'static str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            created: clock.now(),
            clock,
            timeout,
            slots: Mutex::default(),
            started: Mutex::new(0),
            added: Notify::new(),
            reports: Mutex::default(),
            absent,
        })
    }

    /// Adds a check, also while others run; until it has run once, this process counts as starting.
    pub fn add(&self, check: Arc<dyn Check>) {
        let state = SlotState { found: None, running: None, added: self.clock.now() };
        let slot = Slot { check, state: Mutex::new(state) };
        lock(&self.slots).push(Arc::new(slot));
        self.added.notify_one();
    }

    /// Records a finding of a component; it applies until it is cleared.
    pub fn report(&self, finding: Finding) {
        let now = self.clock.now();
        let mut reports = lock(&self.reports);
        let entry =
            reports.entry((finding.cause, finding.chain_id)).or_insert((String::new(), now));
        entry.0 = finding.reason;
    }

    /// Removes a recorded finding.
    pub fn clear(&self, cause: Cause, chain_id: Option<u64>) {
        lock(&self.reports).remove(&(cause, chain_id));
    }

    /// Runs all checks until `stop` completes; an error means that this process must end.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let mut loops = FuturesUnordered::new();
        let mut stop = std::pin::pin!(stop);
        let mut watching = std::pin::pin!(self.watch());
        loop {
            while let Some(slot) = self.next_unstarted() {
                loops.push(self.check_always(slot));
            }
            tokio::select! {
                biased;
                () = &mut stop => {
                    let why = "this process is stopping";
                    self.report(Finding::new(Cause::Stopping, None, why));
                    self.update_metrics();
                    return Ok(());
                }
                Some(error) = loops.next() => return Err(error),
                () = self.added.notified() => {}
                () = &mut watching => {}
            }
        }
    }

    fn next_unstarted(&self) -> Option<Arc<Slot>> {
        let mut started = lock(&self.started);
        let slot = lock(&self.slots).get(*started).cloned()?;
        *started += 1;
        Some(slot)
    }

    /// Runs one check repeatedly; returns the error that ends the process.
    async fn check_always(&self, slot: Arc<Slot>) -> crate::error::Error {
        loop {
            lock(&slot.state).running = Some((self.clock.monotonic(), self.clock.now()));
            let found = match slot.check.check().await {
                Ok(found) => found,
                Err(error) => return error,
            };
            let now = self.clock.now();
            {
                let mut state = lock(&slot.state);
                let before = state.found.take().unwrap_or_default();
                state.found = Some(merge(found, &before, now));
                state.running = None;
            }
            self.clock.sleep(slot.check.every()).await;
        }
    }

    /// Keeps metrics and log up to date.
    async fn watch(&self) {
        let mut before = BTreeMap::new();
        let begun = self.clock.monotonic();
        loop {
            let mut now = self.update_metrics();
            let is_start = self.clock.monotonic().saturating_sub(begun) < START_QUIET;
            // A start that goes well needs no warning.
            now.retain(|(cause, _), _| {
                *cause != Cause::Starting && !(is_start && cause.is_usual_at_start())
            });
            for (key, reason) in now.iter().filter(|(key, _)| !before.contains_key(*key)) {
                let (cause, chain) = key;
                match cause.services().is_empty() {
                    true => {
                        tracing::warn!(code = cause.code(), chain, reason, "readiness warning");
                    }
                    false => {
                        tracing::warn!(code = cause.code(), chain, reason, "unready: new reason");
                    }
                }
            }
            for ((cause, chain), _) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
                match cause.services().is_empty() {
                    true => {
                        tracing::info!(code = cause.code(), chain, "readiness warning resolved");
                    }
                    false => {
                        tracing::info!(code = cause.code(), chain, "unready: reason resolved");
                    }
                }
            }
            before = now;
            self.clock.sleep(CHECK_EVERY).await;
        }
    }

    /// Sets the metrics; returns the current problems.
    fn update_metrics(&self) -> BTreeMap<(Cause, Option<u64>), String> {
        let gauge = |holds: bool| f64::from(u8::from(holds));
        let reasons = self.reasons();
        let all = self.verdict(None).ready;
        metrics::gauge!("logmill_ready", "service" => "all").set(gauge(all));
        for service in Service::ALL {
            let ready = self.verdict(Some(service)).ready;
            metrics::gauge!("logmill_ready", "service" => service.name()).set(gauge(ready));
        }
        for cause in Cause::ALL {
            let holds = reasons.iter().any(|reason| reason.cause == cause);
            metrics::gauge!("logmill_not_ready", "code" => cause.code()).set(gauge(holds));
        }
        let key = |reason: Reason| ((reason.cause, reason.chain_id), reason.reason);
        reasons.into_iter().map(key).collect()
    }

    /// Readiness of this process, or of one service of it.
    pub fn verdict(&self, service: Option<Service>) -> Verdict {
        let takes_some = |reason: &Reason| !reason.cause.services().is_empty();
        let (mut reasons, mut warnings): (Vec<_>, Vec<_>) =
            self.reasons().into_iter().partition(takes_some);
        if let Some(service) = service {
            warnings.clear();
            reasons.retain(|reason| reason.cause.services().contains(&service));
            if let Some(why) = self.absent.get(&service) {
                let finding = Finding::new(Cause::NotServed, None, *why);
                reasons.push(to_reason(&finding, self.created));
            }
        }
        Verdict { ready: reasons.is_empty(), reasons, warnings }
    }

    /// All current problems, by cause.
    pub fn reasons(&self) -> Vec<Reason> {
        let now = self.clock.monotonic();
        let mut all: FindingMap = lock(&self.reports).clone();
        for slot in lock(&self.slots).iter() {
            let state = lock(&slot.state);
            let overdue =
                state.running.filter(|(began, _)| now.saturating_sub(*began) > self.timeout);
            let found = match (overdue, &state.found) {
                (Some((_, since)), found) => {
                    let silence = slot.check.silence();
                    let mut found = found.clone().unwrap_or_default();
                    let waited = self.timeout.as_millis();
                    let reason = format!("{}: no answer within {waited} ms", silence.reason);
                    found.insert((silence.cause, silence.chain_id), (reason, since));
                    found
                }
                (None, Some(found)) => found.clone(),
                (None, None) => {
                    let reason = "not all checks have run yet".to_owned();
                    FindingMap::from([((Cause::Starting, None), (reason, state.added))])
                }
            };
            for (key, finding) in found {
                all.entry(key).or_insert(finding);
            }
        }
        let finding = |((cause, chain_id), (reason, since))| {
            to_reason(&Finding { cause, chain_id, reason }, since)
        };
        all.into_iter().map(finding).collect()
    }
}

/// Adds start times to new findings; those that were present before keep theirs.
fn merge(found: Vec<Finding>, before: &FindingMap, now: Timestamp) -> FindingMap {
    let mut merged = FindingMap::new();
    for Finding { cause, chain_id, reason } in found {
        let key = (cause, chain_id);
        let since = before.get(&key).map_or(now, |(_, since)| *since);
        merged.entry(key).or_insert((reason, since));
    }
    merged
}

fn to_reason(finding: &Finding, since: Timestamp) -> Reason {
    let since = jiff::Timestamp::from_millisecond(since.millis());
    Reason {
        component: finding.cause.component(),
        chain_id: finding.chain_id,
        code: finding.cause.code(),
        reason: finding.reason.clone(),
        since: since.map(|since| since.to_string()).unwrap_or_default(),
        cause: finding.cause,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
