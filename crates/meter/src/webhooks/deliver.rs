//! The deliverer: claims due deliveries, sends them and records the results; many at a time.
//!
//! ```text
//!          wake-up, a delivery that comes due, a lease that ends, slow poll
//!                                │
//!                                ▼
//!     record ◀── ended ── [requests] ◀── endpoint queues ◀── load ◀── claim, per class
//!        │                                   │
//!        └────────── postponed ◀─────────────┘
//! ```
//!
//! One task does all of this; each request has a task of its own. Three things run concurrently, and none waits for
//! another: requests start and end (`in_flight`), results are recorded, and more is claimed and loaded (`claims`).
//! Requests that end while a batch is recorded go into the next one.
//!
//! Guarantees:
//! - A claim is recorded, released or, if this process dies, claimed by another process once its lease has ended. A
//!   result that cannot be recorded now is kept, with heartbeats, and recorded later.
//! - An idle deliverer sends no statement until a wake-up, the next due time, or the slow poll.
//! - On the stop signal nothing new is claimed; requests under way may finish, and the rest is released.
//!
//! Leaves to others: which delivery is sent next (`endpoint_queues`), what a response means (`verdict`), when to take
//! the next step ([`logmill_work::claim_loop`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use logmill_io::{Clock, ErrorKind};
use logmill_work::claim_loop::{ClaimWorker, finish_tasks, work_until};

use super::Webhooks;
use super::claims::{ClaimedBatch, Claims};
use super::endpoint_queues::PATIENCE;
use super::in_flight::InFlightDeliveries;
use super::record::{RecordEffects, SettledClaim};
use crate::error::{Error, Result};

/// Maximum number of results that one transaction records.
const RECORD_MAX: usize = 1_000;
/// How long a stop waits for requests, beyond their timeout.
const STOP_GRACE: Duration = Duration::from_secs(1);

pub struct Deliverer {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    claims: Claims,
    in_flight: InFlightDeliveries,
}

impl Webhooks {
    /// `owner` must be unique to this process and run.
    pub fn deliverer(&self, owner: &str) -> Result<Deliverer> {
        let settings = &self.settings;
        let slots = [settings.first_slots, settings.overflow_slots, settings.retry_slots];
        Ok(Deliverer {
            clock: Arc::clone(self.sql().clock()),
            claims: Claims::new(self, owner, slots)?,
            in_flight: InFlightDeliveries::new(self.clone(), slots),
            hooks: self.clone(),
        })
    }
}

impl Deliverer {
    /// Delivers until `stop` completes, then shuts down.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let clock = Arc::clone(&self.clock);
        work_until(&mut self, &*clock, stop).await?;
        self.in_flight.drop_waiting();
        let deadline = self.hooks.settings.timeout + STOP_GRACE;
        finish_tasks(&mut self, &*clock, deadline).await;
        self.wind_down().await
    }

    /// Delivers everything that is due now, and what becomes due because of it; returns the number of requests made.
    /// For tests, and for callers that must be sure before they continue.
    pub async fn drain(&mut self) -> Result<u64> {
        let sent = self.in_flight.sent;
        loop {
            let claimed = self.claims.claimed;
            self.claims.check_all_classes();
            Box::pin(self.step()).await?;
            while !self.in_flight.is_empty() {
                while self.in_flight.has_requests() {
                    self.in_flight.end_next().await;
                }
                Box::pin(self.step()).await?;
            }
            // A stale lease has ended just now.
            if self.claims.claimed == claimed && !self.claims.may_have_due() {
                return Ok(self.in_flight.sent - sent);
            }
        }
    }

    /// Does everything that can be done now.
    pub(super) async fn step(&mut self) -> Result<()> {
        // Lets requests end that are about to.
        tokio::task::yield_now().await;
        self.in_flight.end_ready().await;
        self.in_flight.postpone_late();
        self.in_flight.start();
        // Boxed, because nested futures would grow beyond the stack.
        self.in_flight.during(Box::pin(self.claims.tend())).await?;
        let batch = self.in_flight.take_settled(RECORD_MAX);
        let recording = Box::pin(record(&self.hooks, &batch));
        let both = join(recording, Box::pin(self.claims.claim_due()));
        let (recorded, looked) = self.in_flight.during(both).await;
        let noted = Box::pin(self.note(batch, recorded)).await;
        if let Some(ClaimedBatch { targets, loaded }) = looked? {
            self.in_flight.learn(&targets);
            self.in_flight.admit(loaded);
        }
        self.in_flight.start();
        noted
    }

    /// Processes the outcome of a recording. Results that cannot be recorded now stay, and are heartbeated.
    async fn note(
        &mut self,
        batch: Vec<SettledClaim>,
        recorded: Result<RecordEffects>,
    ) -> Result<()> {
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(error) => {
                self.in_flight.put_back(batch);
                return Err(error);
            }
        };
        self.claims.drop_recorded(&batch);
        self.claims.check_first_class(recorded.advanced);
        if !recorded.disabled.is_empty() {
            // The other endpoints are notified, and any process may deliver to them.
            self.hooks.wake();
        }
        for endpoint in recorded.disabled {
            self.in_flight.during(Box::pin(self.hooks.cancel_open(endpoint))).await?;
        }
        Ok(())
    }

    /// Time until there is something else to do, if nothing happens before.
    fn pause(&self) -> Duration {
        let now = self.clock.monotonic();
        if self.in_flight.is_settled() || self.claims.can_claim() {
            return Duration::ZERO;
        }
        let mut at = self.claims.next_at(now);
        if self.in_flight.is_waiting() {
            at = at.min(now + PATIENCE);
        }
        at.saturating_sub(now)
    }

    /// Records what has ended and releases the rest.
    async fn wind_down(mut self) -> Result<()> {
        self.in_flight.abort();
        while self.in_flight.is_settled() {
            let batch = self.in_flight.take_settled(RECORD_MAX);
            let recorded = self.hooks.record(&batch).await;
            self.note(batch, recorded).await?;
        }
        self.claims.release().await
    }
}

impl ClaimWorker for Deliverer {
    type Error = Error;

    async fn work(&mut self) -> Result<Duration> {
        Box::pin(self.step()).await?;
        Ok(self.pause())
    }

    async fn event(&mut self) {
        let has_requests = self.in_flight.has_requests();
        tokio::select! {
            biased;
            () = self.in_flight.end_next(), if has_requests => {}
            () = self.claims.wait() => {}
        }
    }

    async fn end_next(&mut self) {
        self.in_flight.end_next().await;
    }

    fn has_tasks(&self) -> bool {
        self.in_flight.has_requests()
    }

    async fn heartbeat(&mut self) -> Result<()> {
        self.claims.heartbeat().await
    }

    fn error_kind(error: &Error) -> ErrorKind {
        error.kind()
    }

    fn log_failure(&self, error: &Error) {
        tracing::warn!(error = error.chain(), "delivering webhooks failed, retrying");
    }

    fn log_missed_heartbeat(&self, error: &Error) {
        tracing::warn!(error = error.chain(), "cannot extend the leases of webhook deliveries");
    }
}

async fn record(hooks: &Webhooks, batch: &[SettledClaim]) -> Result<RecordEffects> {
    if batch.is_empty() {
        return Ok(RecordEffects::default());
    }
    hooks.record(batch).await
}

impl std::fmt::Debug for Deliverer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Deliverer({:?})", self.in_flight)
    }
}
