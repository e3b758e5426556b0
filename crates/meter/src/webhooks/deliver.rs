//! The deliverer: claims deliveries that are due, sends them, records what became of them; many at a time.
//!
//! ```text
//!          wake-up, a delivery that comes due, a lease that ends, slow poll
//!                                │
//!                                ▼
//!     record ◀── ended ── [requests] ◀── lanes ◀── load ◀── claim, per class
//!        │                                 │
//!        └────────── put off ◀─────────────┘
//! ```
//!
//! One task does all of this; each request has a task of its own. Three things go on at once, and none waits for
//! another: requests begin and end (`flight`), what has ended is recorded, and more is claimed and loaded (`claims`).
//! What ends while a record is written goes into the next one.
//!
//! Guarantees:
//! - What is claimed is recorded, released or, when this process dies, claimed by another once its lease has ended.
//!   What can not be recorded now is kept, with heartbeats, and recorded later.
//! - Idle means idle: no statement is sent until a wake-up, the next due time, or the slow poll.
//! - On the stop signal nothing new is claimed; what is under way may finish, and the rest is released.
//!
//! Leaves to others: what is sent next (`lanes`), what an answer means (`verdict`).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use logmill_io::{Clock, ErrorKind};

use super::Webhooks;
use super::claims::{Claims, Looked};
use super::flight::Flight;
use super::lanes::PATIENCE;
use super::record::{Recorded, Settled};
use crate::error::Result;

/// The most that one transaction records.
const RECORD_MAX: usize = 1_000;
/// After how long a failed statement is tried again.
const AGAIN_WAIT: Duration = Duration::from_millis(500);
/// How long a stop waits for requests, beyond their timeout.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Delivers messages until it is told to stop.
pub struct Deliverer {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    claims: Claims,
    flight: Flight,
}

impl Webhooks {
    /// What delivers their messages. `owner` is different in every process and every run.
    pub fn deliverer(&self, owner: &str) -> Result<Deliverer> {
        let settings = &self.settings;
        let slots = [settings.first_slots, settings.overflow_slots, settings.retry_slots];
        Ok(Deliverer {
            clock: Arc::clone(self.sql().clock()),
            claims: Claims::new(self, owner, slots)?,
            flight: Flight::new(self.clone(), slots),
            hooks: self.clone(),
        })
    }
}

impl Deliverer {
    /// Delivers until `stop` completes, then winds down.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        loop {
            let wait = match Box::pin(self.turn()).await {
                Ok(()) => self.pause(),
                // A handle that refuses to go on will not recover: whoever started us must open it anew.
                Err(error) if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Corrupt) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "delivering was interrupted");
                    AGAIN_WAIT
                }
            };
            let is_flying = self.flight.is_flying();
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = self.flight.end_next(), if is_flying => {}
                () = self.claims.wait() => {}
                () = self.clock.sleep(wait) => {}
            }
        }
        self.wind_down().await
    }

    /// Delivers what is due now, and what comes due by it; gives how many requests were made. For tests, and for
    /// whoever wants to be sure before going on.
    pub async fn drain(&mut self) -> Result<u64> {
        let sent = self.flight.sent;
        loop {
            let claimed = self.claims.claimed;
            self.claims.look_anyway();
            Box::pin(self.turn()).await?;
            while !self.flight.is_empty() {
                while self.flight.is_flying() {
                    self.flight.end_next().await;
                }
                Box::pin(self.turn()).await?;
            }
            // A lease that was stale has ended just now.
            if self.claims.claimed == claimed && !self.claims.may_look() {
                return Ok(self.flight.sent - sent);
            }
        }
    }

    /// Everything that can be done now.
    pub(super) async fn turn(&mut self) -> Result<()> {
        // Those that are just about to end may.
        tokio::task::yield_now().await;
        self.flight.end_ready().await;
        self.flight.put_off_late();
        self.flight.start();
        // On the heap, all of them: futures within futures grow beyond what a stack has room for.
        self.flight.during(Box::pin(self.claims.tend())).await?;
        let batch = self.flight.take_settled(RECORD_MAX);
        let recording = Box::pin(record(&self.hooks, &batch));
        let both = join(recording, Box::pin(self.claims.look()));
        let (recorded, looked) = self.flight.during(both).await;
        let noted = Box::pin(self.note(batch, recorded)).await;
        if let Some(Looked { targets, loaded }) = looked? {
            self.flight.learn(&targets);
            self.flight.admit(loaded);
        }
        self.flight.start();
        noted
    }

    /// Takes note of what was recorded. What can not be recorded now stays, and is heartbeated.
    async fn note(&mut self, batch: Vec<Settled>, recorded: Result<Recorded>) -> Result<()> {
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(error) => {
                self.flight.put_back(batch);
                return Err(error);
            }
        };
        self.claims.let_go(&batch);
        self.claims.look_at_first(recorded.advanced);
        if !recorded.disabled.is_empty() {
            // They tell the others, wherever those are delivered to.
            self.hooks.wake();
        }
        for endpoint in recorded.disabled {
            self.flight.during(Box::pin(self.hooks.cancel_open(endpoint))).await?;
        }
        Ok(())
    }

    /// How long until there is something else to do, if nothing happens before.
    fn pause(&self) -> Duration {
        let now = self.clock.monotonic();
        if self.flight.is_settled() || self.claims.can_look() {
            return Duration::ZERO;
        }
        let mut at = self.claims.next_at(now);
        if self.flight.is_waiting() {
            at = at.min(now + PATIENCE);
        }
        at.saturating_sub(now)
    }

    async fn wind_down(mut self) -> Result<()> {
        let deadline = self.clock.monotonic() + self.hooks.settings.timeout + STOP_GRACE;
        self.flight.drop_waiting();
        while self.flight.is_flying() && self.clock.monotonic() < deadline {
            if let Err(error) = self.claims.heartbeat().await {
                tracing::warn!(error = error.chain(), "no heartbeat");
            }
            let left = deadline.saturating_sub(self.clock.monotonic());
            tokio::select! {
                biased;
                () = self.flight.end_next() => {}
                () = self.clock.sleep(left.min(AGAIN_WAIT)) => {}
            }
        }
        self.flight.abort();
        while self.flight.is_settled() {
            let batch = self.flight.take_settled(RECORD_MAX);
            let recorded = self.hooks.record(&batch).await;
            self.note(batch, recorded).await?;
        }
        self.claims.release().await
    }
}

async fn record(hooks: &Webhooks, batch: &[Settled]) -> Result<Recorded> {
    if batch.is_empty() {
        return Ok(Recorded::default());
    }
    hooks.record(batch).await
}

impl std::fmt::Debug for Deliverer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Deliverer({:?})", self.flight)
    }
}
