//! `Runner`: a bounded number of slots that run the jobs of one kind.
//!
//! One task claims, heartbeats, acknowledges and reaps; each job runs in its own task. No counter tracks free
//! slots: their number is the number of slots minus the number of existing tasks. So no path through the code
//! (an empty or failed claim, a handler that panics or is aborted) can leak a slot.
//!
//! ```text
//!            wake-up, a job that comes due, a lease that ends, slow poll
//!                                   │
//!                                   ▼
//!     acknowledge ◀── finished ── [slots] ◀── claim as many as are free
//!                                   │
//!                                   └── every third of a lease: heartbeat; fenced jobs are aborted
//! ```
//!
//! Guarantees:
//! - When a handler returns, fails or panics, its job is acknowledged accordingly, as long as the lease can be
//!   kept.
//! - A handler whose claim is lost is aborted at its next await; its acknowledgement would be refused anyway.
//! - An idle runner sends no statement until a wake-up, the next due time, or the slow poll.
//! - After the stop signal of [`Runner::run`] nothing new is claimed. Running jobs may finish until the
//!   deadline; the rest are released, and their attempts do not count.
//!
//! Leaves to others: what a job does. A handler must not block between awaits, or it cannot be aborted in time.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::sql::Waiter;
use logmill_io::{Clock, ErrorKind, Tasks};

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::queue::{Claim, Claimer, FailedClaim, Queue, Reclaimer};

#[async_trait]
pub trait Handler: Send + Sync + 'static {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure>;
}

/// A job that is being run.
#[derive(Clone, Debug)]
pub struct RunningJob {
    pub claim: Claim,
    /// For handlers that complete their job in the transaction that writes its results.
    pub queue: Queue,
}

/// How a job succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runner must complete the job.
    Done,
    /// The handler has completed the job with [`Queue::complete_in`].
    Completed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Error text for the operator.
    pub error: String,
    pub retry: Retry,
}

/// Whether and when to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After the runner's backoff.
    Backoff,
    /// After a delay that the handler chose.
    After(Duration),
    /// Makes the job a dead letter now.
    Never,
}

impl Failure {
    /// A failure that a retry may solve.
    pub fn again(error: impl Into<String>) -> Self {
        Self { error: error.into(), retry: Retry::Backoff }
    }

    /// A failure that a retry cannot solve.
    pub fn for_good(error: impl Into<String>) -> Self {
        Self { error: error.into(), retry: Retry::Never }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::again(error.chain())
    }
}

impl From<logmill_io::Error> for Failure {
    fn from(error: logmill_io::Error) -> Self {
        Self::again(error.chain())
    }
}

#[derive(Clone, Debug)]
pub struct RunnerSettings {
    pub kind: String,
    /// Holder of the claims; unique to each process and each run.
    pub owner: String,
    /// Maximum number of concurrent jobs.
    pub slots: usize,
    /// Duration of a claim without a heartbeat.
    pub lease: Duration,
    /// How often an idle runner polls, in case a wake-up was lost. At most the lease, so that it knows the end
    /// of any lease in advance.
    pub slow_poll: Duration,
    pub backoff: Backoff,
    /// Maximum delay between attempts; overrides backoff and handlers. A job that is due later than this from
    /// now was put off by a clock that was ahead, and becomes due.
    pub wait_max: Duration,
    /// How long a stop waits for running jobs.
    pub stop_deadline: Duration,
    /// Estimated duration of a job until one was measured.
    pub expected_job_time: Duration,
}

impl RunnerSettings {
    /// The default settings.
    pub fn new(kind: &str, owner: &str, slots: usize) -> Self {
        Self {
            kind: kind.to_owned(),
            owner: owner.to_owned(),
            slots,
            lease: Duration::from_secs(60),
            slow_poll: Duration::from_secs(15),
            backoff: Backoff::default(),
            wait_max: WAIT_MAX,
            stop_deadline: Duration::from_secs(20),
            expected_job_time: Duration::from_secs(1),
        }
    }
}

/// Runs the jobs of one kind until stopped.
pub struct Runner {
    queue: Queue,
    handler: Arc<dyn Handler>,
    settings: RunnerSettings,
    clock: Arc<dyn Clock>,
    claimer: Claimer,
    reclaimer: Reclaimer,
    waiter: Waiter,
    tasks: Tasks<EndedTask>,
    /// Jobs that run, or ended and are not acknowledged yet, by key.
    held: BTreeMap<String, HeldJob>,
    /// Duration of a job, as a moving average.
    job_time: Duration,
    heartbeat_at: Duration,
    /// When a busy runner next checks for stale leases, on the monotonic clock.
    tidy_at: Duration,
}

struct HeldJob {
    claim: Claim,
    /// On the monotonic clock.
    started: Duration,
    /// `None` while the task runs.
    ended: Option<Result<Outcome, Failure>>,
    abort: Option<tokio::sync::oneshot::Sender<()>>,
}

struct EndedTask {
    key: String,
    token: i64,
    outcome: Result<Outcome, Failure>,
}

/// Delay before a failed statement is retried.
const AGAIN_WAIT: Duration = Duration::from_millis(500);
/// Default of [`RunnerSettings::wait_max`].
const WAIT_MAX: Duration = Duration::from_secs(2 * 24 * 3_600);
/// How often a busy runner checks for stale leases.
const TIDY_INTERVAL: Duration = Duration::from_millis(500);

impl Runner {
    /// Creates a runner without starting it.
    pub fn new(queue: Queue, handler: Arc<dyn Handler>, settings: RunnerSettings) -> Result<Self> {
        if settings.slots == 0 || settings.lease.is_zero() || settings.slow_poll > settings.lease {
            return Err(Error::invalid(format!(
                "a runner for {} needs at least one slot, a lease, and a slow poll no longer than the lease",
                settings.kind
            )));
        }
        let waiter = queue.wakes().waiter(&settings.kind)?;
        let claimer = Claimer::new(queue.clone(), &settings.kind, &settings.owner, settings.lease);
        let reclaimer =
            Reclaimer::new(queue.clone(), &settings.kind, &settings.owner, settings.lease)
                .with_wait_max(settings.wait_max);
        let clock = Arc::clone(queue.sql().clock());
        let job_time = settings.expected_job_time;
        Ok(Self {
            queue,
            handler,
            clock,
            claimer,
            reclaimer,
            waiter,
            settings,
            tasks: Tasks::new(),
            held: BTreeMap::new(),
            job_time,
            heartbeat_at: Duration::ZERO,
            tidy_at: Duration::ZERO,
        })
    }

    /// Runs jobs until `stop` completes, then winds down.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        loop {
            let wait = match self.step().await {
                Ok(wait) => wait,
                // A store handle with this error does not recover: the caller must reopen it.
                Err(error) if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Corrupt) => {
                    return Err(error);
                }
                Err(error) => {
                    // The store is unavailable. Running jobs go on; the runner retries.
                    tracing::warn!(
                        kind = self.settings.kind,
                        error = error.chain(),
                        "runner step failed, retrying"
                    );
                    AGAIN_WAIT
                }
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
                () = self.waiter.wait() => {}
                () = self.clock.sleep(wait) => {}
            }
        }
        self.wind_down().await
    }

    /// Does everything that can be done now; returns the time to the next work if no event comes earlier.
    async fn step(&mut self) -> Result<Duration> {
        self.collect_ended().await;
        self.acknowledge_failed().await?;
        self.heartbeat().await?;
        let free = self.settings.slots.saturating_sub(self.tasks.len());
        if free == 0 {
            return Ok(self.until_heartbeat());
        }
        self.waiter.clear();
        let claims = self.acknowledge_done(free).await?;
        let found = claims.len();
        claims.into_iter().for_each(|claim| self.start(claim));
        if found == free {
            self.tidy().await?;
            return Ok(self.until_heartbeat());
        }
        let idle = self.until_due().await?;
        Ok(if self.held.is_empty() { idle } else { idle.min(self.until_heartbeat()) })
    }

    /// Does the periodic checks of an idle runner while this one is busy; otherwise the jobs of a dead process
    /// would wait behind the whole backlog.
    async fn tidy(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        if now < self.tidy_at {
            return Ok(());
        }
        self.tidy_at = now + TIDY_INTERVAL;
        let (kind, owner) = (&self.settings.kind, &self.settings.owner);
        self.queue.announce(owner, kind, self.settings.slots, self.job_time).await?;
        self.queue.reap(kind).await?;
        self.reclaimer.look().await?;
        Ok(())
    }

    /// Ends stale leases; returns the time until the next job comes due or lease ends.
    async fn until_due(&mut self) -> Result<Duration> {
        let (kind, owner) = (&self.settings.kind, &self.settings.owner);
        self.queue.announce(owner, kind, self.settings.slots, self.job_time).await?;
        if self.reclaimer.look().await? > 0 {
            return Ok(Duration::ZERO);
        }
        let slow_poll = self.settings.slow_poll;
        let slow_poll = self.reclaimer.look_within().map_or(slow_poll, |wait| wait.min(slow_poll));
        let (now, due) = self.queue.next_due(kind).await?;
        match due {
            Some(due) if due <= now => {
                self.queue.reap(kind).await?;
                // The next step, which follows at once, claims jobs that came due meanwhile.
                Ok(Duration::ZERO)
            }
            Some(due) => Ok(due.since(now).min(slow_poll)),
            None => Ok(slow_poll),
        }
    }

    fn until_heartbeat(&self) -> Duration {
        self.heartbeat_at.saturating_sub(self.clock.monotonic())
    }

    fn start(&mut self, claim: Claim) {
        let handler = Arc::clone(&self.handler);
        let running = RunningJob { claim: claim.clone(), queue: self.queue.clone() };
        let (key, token) = (claim.key.clone(), claim.token);
        let (abort, aborted) = tokio::sync::oneshot::channel();
        self.tasks.spawn(async move {
            let outcome = run_guarded(handler, running, aborted).await;
            EndedTask { key, token, outcome }
        });
        let now = self.clock.monotonic();
        if self.held.is_empty() {
            self.heartbeat_at = now + self.settings.lease / 3;
        }
        let held = HeldJob { claim, started: now, ended: None, abort: Some(abort) };
        self.held.insert(held.claim.key.clone(), held);
    }

    fn end(&mut self, ended: Result<EndedTask, logmill_io::TaskPanic>) {
        // The guard inside the task turns panics into outcomes, so a task without an outcome was aborted with
        // the runner.
        let Ok(ended) = ended else {
            return;
        };
        if let Some(held) = self.held.get_mut(&ended.key)
            && held.claim.token == ended.token
        {
            let took = self.clock.monotonic().saturating_sub(held.started);
            self.job_time = (self.job_time * 7 + took) / 8;
            held.ended = Some(ended.outcome);
        }
    }

    /// Records the outcome of all tasks that have ended. Yields once for tasks about to end, so that they share
    /// a round trip to the store.
    async fn collect_ended(&mut self) {
        tokio::task::yield_now().await;
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Records failed jobs in one batch. Those that cannot be acknowledged now stay held and are heartbeated.
    async fn acknowledge_failed(&mut self) -> Result<()> {
        let mut failed = Vec::new();
        for held in self.held.values() {
            if let Some(Err(failure)) = &held.ended {
                failed.push(self.failed(&held.claim, failure));
            }
        }
        let fenced = self.queue.fail_many(&failed).await?;
        let claims: Vec<Claim> = failed.into_iter().map(|failed| failed.claim).collect();
        self.settle(&claims, &fenced);
        Ok(())
    }

    /// Completes done jobs and claims up to `most` others in one transaction; returns the claims.
    async fn acknowledge_done(&mut self, most: usize) -> Result<Vec<Claim>> {
        self.held.retain(|_, held| held.ended != Some(Ok(Outcome::Completed)));
        let is_done = |held: &&HeldJob| held.ended == Some(Ok(Outcome::Done));
        let done = self.held.values().filter(is_done).map(|held| held.claim.clone());
        let done: Vec<Claim> = done.collect();
        let turn = self.claimer.complete_and_claim(&done, most).await?;
        // Settle before starting the claims: a fenced job may be among them, under its new token.
        self.settle(&done, &turn.fenced);
        Ok(turn.claims)
    }

    fn settle(&mut self, claims: &[Claim], fenced: &[Claim]) {
        for claim in claims {
            self.held.remove(&claim.key);
        }
        for claim in fenced {
            tracing::warn!(
                kind = claim.kind,
                key = claim.key,
                token = claim.token,
                "job result refused: the claim is fenced"
            );
        }
    }

    fn failed(&self, claim: &Claim, failure: &Failure) -> FailedClaim {
        let entropy = self.queue.sql().entropy();
        let retry_after = match failure.retry {
            Retry::Backoff => Some(self.settings.backoff.wait(claim.attempt, &**entropy)),
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        };
        let retry_after = retry_after.map(|wait| wait.min(self.settings.wait_max));
        FailedClaim { claim: claim.clone(), error: failure.error.clone(), retry_after }
    }

    async fn heartbeat(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        if self.held.is_empty() || now < self.heartbeat_at {
            return Ok(());
        }
        let claims: Vec<Claim> = self.held.values().map(|held| held.claim.clone()).collect();
        let fenced = self.queue.heartbeat(&claims, self.settings.lease).await?;
        self.heartbeat_at = now + self.settings.lease / 3;
        for claim in fenced {
            tracing::warn!(
                kind = claim.kind,
                key = claim.key,
                token = claim.token,
                "job aborted: its claim is lost"
            );
            if let Some(mut held) = self.held.remove(&claim.key)
                && let Some(abort) = held.abort.take()
            {
                // The task may already have ended.
                let _ = abort.send(());
            }
        }
        Ok(())
    }

    async fn wind_down(mut self) -> Result<()> {
        let deadline = self.clock.monotonic() + self.settings.stop_deadline;
        while !self.tasks.is_empty() && self.clock.monotonic() < deadline {
            if let Err(error) = self.heartbeat().await {
                tracing::warn!(
                    kind = self.settings.kind,
                    error = error.chain(),
                    "cannot send heartbeats, retrying"
                );
            }
            let left = deadline.saturating_sub(self.clock.monotonic());
            let wait = self.until_heartbeat().max(AGAIN_WAIT).min(left);
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
                () = self.clock.sleep(wait) => {}
            }
        }
        self.collect_ended().await;
        self.tasks.abort_all();
        self.acknowledge_failed().await?;
        self.acknowledge_done(0).await?;
        let left: Vec<Claim> = self.held.values().map(|held| held.claim.clone()).collect();
        self.queue.release_many(&left).await?;
        if let Err(error) = self.queue.retire(&self.settings.owner, &self.settings.kind).await {
            // Only estimates count runners, and they ignore stale entries.
            tracing::debug!(
                kind = self.settings.kind,
                error = error.chain(),
                "cannot remove the runner's entry"
            );
        }
        Ok(())
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner({}, {} of {})", self.settings.kind, self.tasks.len(), self.settings.slots)
    }
}

/// Runs a handler until it returns, panics or loses its claim.
async fn run_guarded(
    handler: Arc<dyn Handler>,
    running: RunningJob,
    aborted: tokio::sync::oneshot::Receiver<()>,
) -> Result<Outcome, Failure> {
    // A panic unwinds only the inner task.
    let mut inner = Tasks::new();
    inner.spawn(async move { handler.run(running).await });
    tokio::select! {
        biased;
        ended = inner.join_next() => match ended {
            Some(Ok(outcome)) => outcome,
            Some(Err(panicked)) => Err(Failure::again(panicked.to_string())),
            None => Err(Failure::again("the handler ended without a result")),
        },
        Ok(()) = aborted => Err(Failure::again("the claim was lost")),
    }
}
