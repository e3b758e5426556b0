//! `ClaimKeeper`: the jobs of one kind that one owner holds, from their claim until they are settled.
//!
//! The [`crate::Runner`] keeps a task beside each claim; a component that works in batches keeps its claims here
//! too, and decides itself how many it claims and when their results are recorded.
//!
//! ```text
//!     claim ──▶ held ── every third of a lease: heartbeat ──▶ lost
//!                 └──▶ settled, or released
//! ```
//!
//! Guarantees:
//! - A held claim is heartbeated until it is settled, released or lost. A claim is settled under its own token
//!   only, because the same job may have been claimed again.
//! - [`ClaimKeeper::look_ahead`] finds the next job that comes due or lease that ends, so an idle owner sends no
//!   statement in between.
//! - Leases that have ended are noticed even by an owner that always finds more to claim
//!   ([`ClaimKeeper::tidy`]), and so are claims of ended processes and times written by a clock that was ahead
//!   ([`ClaimKeeper::reclaim`]).
//!
//! Leaves to others: when to call all this ([`crate::claim_loop`]), and what is done with a claim.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::Clock;
use logmill_io::sql::Waiter;

use crate::error::Result;
use crate::queue::{Claim, ClaimOutcome, Claimer, Queue, Reclaimer};

/// How often a busy owner ends leases that have run out.
const TIDY_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct ClaimSettings {
    pub kind: String,
    /// Holder of the claims; unique to each process and each run.
    pub owner: String,
    /// Duration of a claim without a heartbeat.
    pub lease: Duration,
    /// How far [`ClaimKeeper::look_ahead`] looks at most, in case a wake-up was lost.
    pub slow_poll: Duration,
    /// Maximum delay of a job. One that is due later than this from now was put off by a clock that was ahead,
    /// and becomes due.
    pub wait_max: Duration,
    /// Interval between checks for such jobs.
    pub clock_look: Duration,
}

/// Claims of one kind, each with what its holder keeps beside it.
pub struct ClaimKeeper<T> {
    queue: Queue,
    settings: ClaimSettings,
    clock: Arc<dyn Clock>,
    claimer: Claimer,
    reclaimer: Reclaimer,
    waiter: Waiter,
    /// By key.
    held: BTreeMap<String, (Claim, T)>,
    /// On the monotonic clock, like all times here.
    heartbeat_at: Duration,
    tidy_at: Duration,
}

impl<T> ClaimKeeper<T> {
    pub fn new(queue: Queue, settings: ClaimSettings) -> Result<Self> {
        let ClaimSettings { kind, owner, lease, wait_max, clock_look, .. } = &settings;
        Ok(Self {
            clock: Arc::clone(queue.sql().clock()),
            claimer: Claimer::new(queue.clone(), kind, owner, *lease),
            reclaimer: Reclaimer::new(queue.clone(), kind, owner, *lease)
                .with_wait_max(*wait_max, *clock_look),
            waiter: queue.wakes().waiter(kind)?,
            queue,
            settings,
            held: BTreeMap::new(),
            heartbeat_at: Duration::ZERO,
            tidy_at: Duration::ZERO,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Claim, T)> {
        self.held.values()
    }

    /// What is kept beside a claim, if it is still held.
    pub fn get_mut(&mut self, key: &str, token: i64) -> Option<&mut T> {
        let (claim, kept) = self.held.get_mut(key)?;
        (claim.token == token).then_some(kept)
    }

    /// Waits for a wake-up of the kind.
    pub async fn wait(&mut self) {
        self.waiter.wait().await;
    }

    /// Completes held jobs, which are settled thereby, and claims up to `most` others, all in one transaction.
    /// The caller passes each new claim to [`Self::hold`].
    pub async fn claim(&mut self, done: &[Claim], most: usize) -> Result<ClaimOutcome> {
        self.waiter.clear();
        let outcome = self.claimer.complete_and_claim(done, most).await?;
        done.iter().for_each(|claim| self.settle(claim));
        Ok(outcome)
    }

    pub fn hold(&mut self, claim: Claim, kept: T) {
        if self.held.is_empty() {
            self.heartbeat_at = self.clock.monotonic() + self.settings.lease / 3;
        }
        self.held.insert(claim.key.clone(), (claim, kept));
    }

    /// Forgets the claims whose job is settled already.
    pub fn retain(&mut self, is_open: impl Fn(&T) -> bool) {
        self.held.retain(|_, (_, kept)| is_open(kept));
    }

    /// Forgets a claim whose result is recorded.
    pub fn settle(&mut self, claim: &Claim) {
        if self.held.get(&claim.key).is_some_and(|(held, _)| held.token == claim.token) {
            self.held.remove(&claim.key);
        }
    }

    /// Prolongs the leases of all claims, if it is time; returns those that were lost, which are no longer held.
    pub async fn heartbeat(&mut self) -> Result<Vec<(Claim, T)>> {
        let now = self.clock.monotonic();
        if self.held.is_empty() || now < self.heartbeat_at {
            return Ok(Vec::new());
        }
        let lost = self.queue.heartbeat(&self.claims(), self.settings.lease).await?;
        self.heartbeat_at = now + self.settings.lease / 3;
        Ok(lost.iter().filter_map(|claim| self.held.remove(&claim.key)).collect())
    }

    /// When the next heartbeat is due, if any claim is held.
    pub fn heartbeat_at(&self) -> Option<Duration> {
        (!self.held.is_empty()).then_some(self.heartbeat_at)
    }

    /// Ends leases that have run out, if it is time; returns whether it was. For an owner that is too busy to
    /// look ahead: otherwise the jobs of a dead process would wait behind the whole backlog.
    pub async fn tidy(&mut self) -> Result<bool> {
        let now = self.clock.monotonic();
        if now < self.tidy_at {
            return Ok(false);
        }
        self.tidy_at = now + TIDY_INTERVAL;
        self.queue.reap(&self.settings.kind).await?;
        Ok(true)
    }

    /// Takes jobs back that no process will finish, if it is time to look; returns whether there were any.
    pub async fn reclaim(&mut self) -> Result<bool> {
        Ok(self.reclaimer.look().await? > 0)
    }

    /// The interval at which to call [`Self::reclaim`] while other processes hold jobs.
    pub fn reclaim_within(&self) -> Option<Duration> {
        self.reclaimer.look_within()
    }

    /// Returns the time until the next job comes due or lease ends, at most the slow poll. If that is now, ends
    /// leases that have run out and returns zero: there may be something to claim.
    pub async fn look_ahead(&self) -> Result<Duration> {
        let (kind, slow_poll) = (&self.settings.kind, self.settings.slow_poll);
        let (now, due) = self.queue.next_due(kind).await?;
        match due {
            Some(due) if due <= now => {
                self.queue.reap(kind).await?;
                Ok(Duration::ZERO)
            }
            Some(due) => Ok(due.since(now).min(slow_poll)),
            None => Ok(slow_poll),
        }
    }

    /// Returns all claims to the queue; their attempts do not count.
    pub async fn release(&mut self) -> Result<()> {
        self.queue.release_many(&self.claims()).await?;
        self.held.clear();
        Ok(())
    }

    fn claims(&self) -> Vec<Claim> {
        self.held.values().map(|(claim, _)| claim.clone()).collect()
    }
}

impl<T> std::fmt::Debug for ClaimKeeper<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClaimKeeper({}, {} held)", self.settings.kind, self.held.len())
    }
}
