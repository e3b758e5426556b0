//! The flight: deliveries in their lanes, requests under way, and what has ended and is not recorded.
//!
//! Guarantees: while somebody waits for the database ([`Flight::during`]) requests begin and end, so that neither waits
//! for the other; what ended is here until it is taken to be recorded. Leaves to others: what is sent next (`lanes`),
//! what an answer means (`verdict`), claims.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use logmill_io::{Clock, Panicked, Tasks};

use super::Webhooks;
use super::complaints::{Complaints, FailedAttempt};
use super::lanes::{Ended, Lanes, PutOff};
use super::load::{Held, Loaded};
use super::record::{Attempt, Ending, Settled};
use super::send::{Sent, send};
use super::targets::Snapshot;
use super::verdict::{Answered, Next, judge};

/// What this process has in hand between its claims and their records.
pub(super) struct Flight {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    lanes: Lanes<Held>,
    tasks: Tasks<Sent>,
    /// Ended, and not recorded.
    settled: Vec<Settled>,
    /// The number of changes to endpoints that the lanes know of.
    version: Option<i64>,
    /// How often retries were asked for, by endpoint, as far as the lanes know.
    retries: BTreeMap<i64, i64>,
    complaints: Complaints,
    /// How many requests have ended.
    pub(super) sent: u64,
}

impl Flight {
    pub(super) fn new(hooks: Webhooks, slots: [usize; 3]) -> Self {
        Self {
            clock: Arc::clone(hooks.sql().clock()),
            lanes: Lanes::new(slots, hooks.settings.endpoint_slots),
            tasks: Tasks::new(),
            settled: Vec::new(),
            version: None,
            retries: BTreeMap::new(),
            complaints: Complaints::default(),
            sent: 0,
            hooks,
        }
    }

    /// Waits for work that is not about requests; requests begin and end meanwhile.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.end_next(), if self.is_flying() => {}
            }
            self.end_ready().await;
            self.start();
        }
    }

    /// Waits for a request to end, and takes note of it.
    pub(super) async fn end_next(&mut self) {
        if let Some(ended) = self.tasks.join_next().await {
            self.end(ended);
        }
    }

    /// Takes note of every request that is over, without waiting for any.
    pub(super) async fn end_ready(&mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.end_next(), if self.is_flying() => {}
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Whether nothing waits, is under way, or is to be recorded.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_flying() && !self.is_waiting() && !self.is_settled()
    }

    /// Whether requests are under way.
    pub(super) fn is_flying(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Whether deliveries wait for their turn.
    pub(super) fn is_waiting(&self) -> bool {
        self.lanes.is_waiting()
    }

    /// Whether something has ended and is not recorded.
    pub(super) fn is_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Starts as many requests as there are slots for.
    pub(super) fn start(&mut self) {
        for start in self.lanes.start() {
            self.tasks.spawn(send(self.hooks.clone(), start.item));
        }
    }

    /// Learns of changes to endpoints.
    pub(super) fn learn(&mut self, targets: &Snapshot) {
        let known = self.version.replace(targets.version);
        if known.is_none() {
            let failing = targets.by_seq.values().filter(|target| target.failing);
            failing.for_each(|target| self.lanes.set_failing(target.seq));
        }
        if known == Some(targets.version) {
            return;
        }
        self.lanes.retain(|endpoint| targets.by_seq.contains_key(&endpoint));
        self.complaints.retain(|endpoint| targets.by_seq.contains_key(&endpoint));
        for target in targets.by_seq.values() {
            let before = self.retries.insert(target.seq, target.retries);
            if before.is_some_and(|before| before != target.retries) {
                self.lanes.resume(target.seq);
            }
        }
        self.retries.retain(|endpoint, _| targets.by_seq.contains_key(endpoint));
    }

    /// Takes what was loaded in.
    pub(super) fn admit(&mut self, loaded: Vec<Loaded>) {
        let now = self.clock.monotonic();
        for loaded in loaded {
            match loaded {
                Loaded::Settle(settled) => self.settled.push(settled),
                Loaded::Send(held) => {
                    let put_off = self.lanes.admit(held.of.endpoint, held.class, held, now);
                    self.put_off(put_off);
                }
            }
        }
    }

    /// Puts off what has waited for too long.
    pub(super) fn put_off_late(&mut self) {
        let late = self.lanes.put_off_late(self.clock.monotonic());
        self.put_off(late);
    }

    /// Takes the oldest of what has ended, to be recorded.
    pub(super) fn take_settled(&mut self, most: usize) -> Vec<Settled> {
        let most = most.min(self.settled.len());
        self.settled.drain(..most).collect()
    }

    /// Takes back what could not be recorded, or may have been.
    pub(super) fn put_back(&mut self, batch: Vec<Settled>) {
        let again = batch.into_iter().map(|settled| Settled { again: true, ..settled });
        self.settled.splice(..0, again);
    }

    /// Drops what has not been sent.
    pub(super) fn drop_waiting(&mut self) {
        drop(self.lanes.take_waiting());
    }

    /// Stops what is under way.
    pub(super) fn abort(&mut self) {
        self.tasks.abort_all();
    }

    fn put_off(&mut self, put_off: impl IntoIterator<Item = PutOff<Held>>) {
        for PutOff { item, class, wait } in put_off {
            self.settle(item, Ending::PutOff { class, wait });
        }
    }

    fn settle(&mut self, held: Held, ending: Ending) {
        let Held { claim, class, of, attempts, .. } = held;
        self.settled.push(Settled { claim, class, of, attempts, ending, again: false });
    }

    /// Judges a request that is over.
    fn end(&mut self, ended: Result<Sent, Panicked>) {
        // The task turns panics into failures, so one that vanished was stopped with us.
        let Ok(Sent { held, at, took, answered, error, response }) = ended else {
            return;
        };
        self.sent += 1;
        let entropy = self.hooks.sql().entropy();
        let verdict = judge(&answered, held.attempts + 1, &self.hooks.settings, &**entropy);
        let how = match (&answered, &verdict.next) {
            (_, Next::Succeeded) => Ended::Well,
            (Answered::Status { .. }, _) => Ended::Badly { pause: verdict.pause },
            _ => Ended::Silent,
        };
        let (endpoint, now) = (held.of.endpoint, self.clock.monotonic());
        let unwanted = self.lanes.end(endpoint, held.class, how, took, now);
        self.put_off(unwanted);
        self.hooks.targets.set_failing(endpoint, self.lanes.is_failing(endpoint));
        let status = match answered {
            Answered::Status { status, .. } => Some(status),
            _ => None,
        };
        let (next, dry_run) = (verdict.next, answered == Answered::DryRun);
        let failed = FailedAttempt {
            endpoint: &held.target.id,
            message: &held.message.id,
            attempt: held.attempts + 1,
            status,
            error: error.as_deref(),
        };
        self.complaints.note(endpoint, &next, &failed, now);
        let attempt = Attempt { at, took, status, error, response, dry_run, next };
        self.settle(held, Ending::Attempted(attempt));
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flight({} sent, {} under way)", self.sent, self.tasks.len())
    }
}
