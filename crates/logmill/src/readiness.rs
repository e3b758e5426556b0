//! Readiness: the one place that decides whether this process may be sent requests.
//!
//! ```text
//!   checks, each in a loop of its own ──▶ slots ─┐
//!   components that report by themselves ────────┴─▶ reasons ──▶ /ready, /ready/SERVICE, /status, metrics, log
//! ```
//!
//! Ready means: this process serves, its stores answer, nothing that it owns has stopped, and its view is at most
//! `ready.lag_blocks` behind a head that was seen within `ready.head_seen_within_ms`, whichever process writes.
//!
//! | module | what |
//! |---|---|
//! | [`cause`] | every cause, its code, and the services that it takes away |
//! | [`stores`] | whether databases, blobs and disk answer |
//! | [`chain`] | how a chain is, judged from its view and the head that was seen |
//! | [`tables`] | how far derived and collected tables are |
//!
//! Guarantees: asking costs no more than reading memory, waits for nothing, and cannot pile up: a check that hangs
//! stays the only one of its kind, and counts as failed once it takes longer than `ready.store_timeout_ms`. A store
//! that can never work again ends [`Readiness::run`], and with it the process. Leaves to others: serving the answers
//! ([`crate::http`]).

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

pub(crate) use cause::{Cause, Service};

use crate::error::Result;

pub(crate) mod cause;
pub(crate) mod chain;
pub(crate) mod stores;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
pub(crate) mod usage;

/// How long a check rests between two runs.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Looks whether a part of the process is as it should be.
#[async_trait]
pub(crate) trait Check: Send + Sync + std::fmt::Debug {
    /// What is wrong now. An error ends the process.
    async fn check(&self) -> Result<Vec<Finding>>;

    /// What it means if there is no answer in time.
    fn silence(&self) -> Finding;

    /// How long it rests between two runs.
    fn every(&self) -> Duration {
        CHECK_EVERY
    }
}

/// A cause that holds, and how it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) cause: Cause,
    pub(crate) chain_id: Option<u64>,
    pub(crate) reason: String,
}

impl Finding {
    pub(crate) fn new(cause: Cause, chain_id: Option<u64>, reason: impl Into<String>) -> Self {
        Self { cause, chain_id, reason: crate::output::brief(&reason.into()) }
    }
}

/// A finding as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Reason {
    pub(crate) component: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chain_id: Option<u64>,
    pub(crate) code: &'static str,
    pub(crate) reason: String,
    /// Since when, as RFC 3339.
    pub(crate) since: String,
    #[serde(skip)]
    pub(crate) cause: Cause,
}

/// Whether this process, or one service of it, is ready, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) ready: bool,
    pub(crate) reasons: Vec<Reason>,
}

/// Which findings there are, and since when.
type Held = BTreeMap<(Cause, Option<u64>), (String, Timestamp)>;

/// A check, and what it found last.
#[derive(Debug)]
struct Slot {
    check: Arc<dyn Check>,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// None until the first run has ended.
    found: Option<Held>,
    /// When the run under way began: on the monotonic clock, and as a moment.
    running: Option<(Duration, Timestamp)>,
    added: Timestamp,
}

/// What this process knows of its own readiness.
#[derive(Debug)]
pub(crate) struct Readiness {
    clock: Arc<dyn Clock>,
    timeout: Duration,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// How many slots have a loop.
    started: Mutex<usize>,
    added: Notify,
    reports: Mutex<Held>,
    /// Services that this process does not have, and why.
    absent: BTreeMap<Service, &'static str>,
    made: Timestamp,
}

impl Readiness {
    /// Nothing is checked yet. A check may take `timeout`; `absent` are services that are not served, and why.
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        timeout: Duration,
        absent: BTreeMap<Service, &'static str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            made: clock.now(),
            clock,
            timeout,
            slots: Mutex::default(),
            started: Mutex::new(0),
            added: Notify::new(),
            reports: Mutex::default(),
            absent,
        })
    }

    /// Adds a check, also while they run; until it has run once, this process is starting.
    pub(crate) fn add(&self, check: Arc<dyn Check>) {
        let state = SlotState { found: None, running: None, added: self.clock.now() };
        let slot = Slot { check, state: Mutex::new(state) };
        lock(&self.slots).push(Arc::new(slot));
        self.added.notify_one();
    }

    /// What a component has found out by itself; it holds until it is cleared.
    pub(crate) fn report(&self, finding: Finding) {
        let now = self.clock.now();
        let mut reports = lock(&self.reports);
        let held = reports.entry((finding.cause, finding.chain_id)).or_insert((String::new(), now));
        held.0 = finding.reason;
    }

    /// What was reported is over.
    pub(crate) fn clear(&self, cause: Cause, chain_id: Option<u64>) {
        lock(&self.reports).remove(&(cause, chain_id));
    }

    /// Runs all checks until `stop` completes; the error is one after which this process must end.
    pub(crate) async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
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
                    let why = "this process was told to stop";
                    self.report(Finding::new(Cause::Stopping, None, why));
                    self.show();
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

    /// Runs one check again and again; gives the error that ends the process.
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
        loop {
            let mut now = self.show();
            // Nobody needs to be told that a start takes a second.
            now.retain(|(cause, _), _| *cause != Cause::Starting);
            for (key, reason) in now.iter().filter(|(key, _)| !before.contains_key(*key)) {
                let (cause, chain) = key;
                tracing::warn!(code = cause.code(), chain, reason, "unready: a reason has come up");
            }
            for ((cause, chain), _) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
                tracing::info!(code = cause.code(), chain, "unready: the reason is gone");
            }
            before = now;
            self.clock.sleep(CHECK_EVERY).await;
        }
    }

    /// Sets the metrics; gives what is wrong.
    fn show(&self) -> BTreeMap<(Cause, Option<u64>), String> {
        let gauge = |holds: bool| f64::from(u8::from(holds));
        let reasons = self.reasons();
        metrics::gauge!("logmill_ready", "service" => "all").set(gauge(reasons.is_empty()));
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

    /// Whether this process is ready, or one service of it.
    pub(crate) fn verdict(&self, service: Option<Service>) -> Verdict {
        let mut reasons = self.reasons();
        if let Some(service) = service {
            reasons.retain(|reason| reason.cause.services().contains(&service));
            if let Some(why) = self.absent.get(&service) {
                let finding = Finding::new(Cause::NotServed, None, *why);
                reasons.push(shown(&finding, self.made));
            }
        }
        Verdict { ready: reasons.is_empty(), reasons }
    }

    /// Everything that is wrong now, by cause.
    pub(crate) fn reasons(&self) -> Vec<Reason> {
        let now = self.clock.monotonic();
        let mut all: Held = lock(&self.reports).clone();
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
                    let reason = "not everything was checked yet".to_owned();
                    Held::from([((Cause::Starting, None), (reason, state.added))])
                }
            };
            for (key, held) in found {
                all.entry(key).or_insert(held);
            }
        }
        let finding = |((cause, chain_id), (reason, since))| {
            shown(&Finding { cause, chain_id, reason }, since)
        };
        all.into_iter().map(finding).collect()
    }
}

/// New findings; those that held before keep their beginning.
fn merge(found: Vec<Finding>, before: &Held, now: Timestamp) -> Held {
    let mut held = Held::new();
    for Finding { cause, chain_id, reason } in found {
        let key = (cause, chain_id);
        let since = before.get(&key).map_or(now, |(_, since)| *since);
        held.entry(key).or_insert((reason, since));
    }
    held
}

fn shown(finding: &Finding, since: Timestamp) -> Reason {
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
