//! Deliveries between claim and record: queued per endpoint, under way, or with a result that is not recorded yet.
//!
//! Guarantees: requests start and end while the deliverer waits for the database ([`InFlightDeliveries::during`]), so
//! that neither waits for the other. Results stay here until they are taken to be recorded. Leaves to others: which
//! delivery is sent next (`endpoint_queues`), what a response means (`verdict`), claims.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use logmill_io::{Clock, TaskPanic, Tasks};

use super::Webhooks;
use super::complaints::{AttemptInfo, Complaints};
use super::endpoint_queues::{EndpointQueues, PostponedDelivery, RequestResult};
use super::load::{ClaimAction, ReadyDelivery};
use super::record::{Attempt, Ending, SettledClaim};
use super::send::{SentRequest, send};
use super::targets::Snapshot;
use super::verdict::{NextStep, RequestOutcome, judge};

/// Deliveries of this process between claim and record.
pub(super) struct InFlightDeliveries {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    queues: EndpointQueues<ReadyDelivery>,
    tasks: Tasks<SentRequest>,
    /// Ended, not recorded yet.
    settled: Vec<SettledClaim>,
    /// Version of the endpoints that the queues reflect.
    version: Option<i64>,
    /// Number of requested retries per endpoint that the queues reflect.
    retries: BTreeMap<i64, i64>,
    complaints: Complaints,
    /// Number of requests that have ended.
    pub(super) sent: u64,
}

impl InFlightDeliveries {
    pub(super) fn new(hooks: Webhooks, slots: [usize; 3]) -> Self {
        Self {
            clock: Arc::clone(hooks.sql().clock()),
            queues: EndpointQueues::new(slots, hooks.settings.endpoint_slots),
            tasks: Tasks::new(),
            settled: Vec::new(),
            version: None,
            retries: BTreeMap::new(),
            complaints: Complaints::default(),
            sent: 0,
            hooks,
        }
    }

    /// Waits for other work; requests start and end meanwhile.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.end_next(), if self.has_requests() => {}
            }
            self.end_ready().await;
            self.start();
        }
    }

    /// Waits for a request to end, and processes its result.
    pub(super) async fn end_next(&mut self) {
        if let Some(ended) = self.tasks.join_next().await {
            self.end(ended);
        }
    }

    /// Processes every request that has ended, without waiting for any.
    pub(super) async fn end_ready(&mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.end_next(), if self.has_requests() => {}
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Whether nothing waits, is under way, or has to be recorded.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_requests() && !self.is_waiting() && !self.is_settled()
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.tasks.is_empty()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.queues.is_waiting()
    }

    /// Whether there are results to record.
    pub(super) fn is_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Starts as many requests as there are free slots.
    pub(super) fn start(&mut self) {
        for started in self.queues.start() {
            self.tasks.spawn(send(self.hooks.clone(), started.item));
        }
    }

    /// Applies changes of endpoints to the queues.
    pub(super) fn learn(&mut self, targets: &Snapshot) {
        let known = self.version.replace(targets.version);
        if known.is_none() {
            let failing = targets.by_seq.values().filter(|target| target.failing);
            failing.for_each(|target| self.queues.set_failing(target.seq));
        }
        if known == Some(targets.version) {
            return;
        }
        self.queues.retain(|endpoint| targets.by_seq.contains_key(&endpoint));
        self.complaints.retain(|endpoint| targets.by_seq.contains_key(&endpoint));
        for target in targets.by_seq.values() {
            let before = self.retries.insert(target.seq, target.retries);
            if before.is_some_and(|before| before != target.retries) {
                self.queues.resume(target.seq);
            }
        }
        self.retries.retain(|endpoint, _| targets.by_seq.contains_key(endpoint));
    }

    /// Puts loaded deliveries into the queues of their endpoints.
    pub(super) fn admit(&mut self, loaded: Vec<ClaimAction>) {
        let now = self.clock.monotonic();
        for loaded in loaded {
            match loaded {
                ClaimAction::Settle(settled) => self.settled.push(settled),
                ClaimAction::Send(ready) => {
                    let postponed =
                        self.queues.admit(ready.delivery.endpoint, ready.class, ready, now);
                    self.postpone(postponed);
                }
            }
        }
    }

    /// Postpones deliveries that have waited too long.
    pub(super) fn postpone_late(&mut self) {
        let late = self.queues.postpone_late(self.clock.monotonic());
        self.postpone(late);
    }

    /// Takes the oldest results, to be recorded.
    pub(super) fn take_settled(&mut self, most: usize) -> Vec<SettledClaim> {
        let most = most.min(self.settled.len());
        self.settled.drain(..most).collect()
    }

    /// Takes back results whose recording failed or is in doubt.
    pub(super) fn put_back(&mut self, batch: Vec<SettledClaim>) {
        let again = batch.into_iter().map(|settled| SettledClaim { again: true, ..settled });
        self.settled.splice(..0, again);
    }

    /// Drops deliveries that have not been sent.
    pub(super) fn drop_waiting(&mut self) {
        drop(self.queues.take_waiting());
    }

    /// Aborts requests under way.
    pub(super) fn abort(&mut self) {
        self.tasks.abort_all();
    }

    fn postpone(&mut self, postponed: impl IntoIterator<Item = PostponedDelivery<ReadyDelivery>>) {
        for PostponedDelivery { item, class, wait } in postponed {
            let why = "postponed: its endpoint is busy or failing";
            self.settle(item, Ending::Postponed { class, wait, why });
        }
    }

    fn settle(&mut self, ready: ReadyDelivery, ending: Ending) {
        let ReadyDelivery { claim, class, delivery, attempts, .. } = ready;
        self.settled.push(SettledClaim { claim, class, delivery, attempts, ending, again: false });
    }

    /// Judges a request that has ended.
    fn end(&mut self, ended: Result<SentRequest, TaskPanic>) {
        // The task turns panics into failures, so a task that vanished was aborted by us.
        let Ok(SentRequest { ready, at, took, outcome, error, response }) = ended else {
            return;
        };
        self.sent += 1;
        let entropy = self.hooks.sql().entropy();
        let verdict = judge(&outcome, ready.attempts + 1, &self.hooks.settings, &**entropy);
        let how = match (&outcome, &verdict.next) {
            (_, NextStep::Succeeded) => RequestResult::Success,
            (RequestOutcome::Status { .. }, _) => RequestResult::Failure { pause: verdict.pause },
            _ => RequestResult::NoResponse,
        };
        let (endpoint, now) = (ready.delivery.endpoint, self.clock.monotonic());
        let unwanted = self.queues.end(endpoint, ready.class, how, took, now);
        self.postpone(unwanted);
        self.hooks.targets.set_failing(endpoint, self.queues.is_failing(endpoint));
        let status = match outcome {
            RequestOutcome::Status { status, .. } => Some(status),
            _ => None,
        };
        let (next, dry_run) = (verdict.next, outcome == RequestOutcome::DryRun);
        let info = AttemptInfo {
            endpoint: &ready.target.id,
            message: &ready.message.id,
            attempt: ready.attempts + 1,
            status,
            error: error.as_deref(),
        };
        self.complaints.note(endpoint, &next, &info, now);
        let attempt = Attempt { at, took, status, error, response, dry_run, next };
        self.settle(ready, Ending::Attempted(attempt));
    }
}

impl std::fmt::Debug for InFlightDeliveries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InFlightDeliveries({} sent, {} under way)", self.sent, self.tasks.len())
    }
}
