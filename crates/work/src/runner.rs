//! `Runner`: a bounded number of slots that run the jobs of one kind.
//!
//! One task claims and acknowledges; each job runs in its own task. No counter tracks free slots: their number
//! is the number of slots minus the number of existing tasks. So no path through the code (an empty or failed
//! claim, a handler that panics or is aborted) can leak a slot.
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
//! Leaves to others: keeping claims ([`ClaimKeeper`]), the loop ([`crate::claim_loop`]), and what a job does. A
//! handler must not block between awaits, or it cannot be aborted in time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::{Clock, ErrorKind, Tasks};

use crate::backoff::Backoff;
use crate::claim_keeper::{ClaimKeeper, ClaimSettings};
use crate::claim_loop::{ClaimWorker, finish_tasks, work_until};
use crate::error::{Error, Result};
use crate::queue::{Claim, FailedClaim, Queue};

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
    tasks: Tasks<EndedTask>,
    /// Jobs that run, or ended and are not acknowledged yet.
    held: ClaimKeeper<JobTask>,
    /// Duration of a job, as a moving average.
    job_time: Duration,
}

/// The task of a held job.
struct JobTask {
    /// On the monotonic clock.
    started: Duration,
    /// `None` while the task runs.
    ended: Option<Result<Outcome, Failure>>,
    abort: tokio::sync::oneshot::Sender<()>,
}

struct EndedTask {
    key: String,
    token: i64,
    outcome: Result<Outcome, Failure>,
}

/// Default of [`RunnerSettings::wait_max`].
const WAIT_MAX: Duration = Duration::from_secs(2 * 24 * 3_600);
/// Interval between checks for times written by a clock that was ahead.
const CLOCK_LOOK: Duration = Duration::from_secs(60);

impl Runner {
    /// Creates a runner without starting it.
    pub fn new(queue: Queue, handler: Arc<dyn Handler>, settings: RunnerSettings) -> Result<Self> {
        if settings.slots == 0 || settings.lease.is_zero() || settings.slow_poll > settings.lease {
            return Err(Error::invalid(format!(
                "a runner for {} needs at least one slot, a lease, and a slow poll no longer than the lease",
                settings.kind
            )));
        }
        let claims = ClaimSettings {
            kind: settings.kind.clone(),
            owner: settings.owner.clone(),
            lease: settings.lease,
            slow_poll: settings.slow_poll,
            wait_max: settings.wait_max,
            clock_look: CLOCK_LOOK,
        };
        Ok(Self {
            held: ClaimKeeper::new(queue.clone(), claims)?,
            clock: Arc::clone(queue.sql().clock()),
            queue,
            handler,
            tasks: Tasks::new(),
            job_time: settings.expected_job_time,
            settings,
        })
    }

    /// Runs jobs until `stop` completes, then winds down.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let clock = Arc::clone(&self.clock);
        work_until(&mut self, &*clock, stop).await?;
        let deadline = self.settings.stop_deadline;
        finish_tasks(&mut self, &*clock, deadline).await;
        self.wind_down().await
    }

    /// Does the periodic checks of an idle runner while this one is busy.
    async fn tidy(&mut self) -> Result<()> {
        if self.held.tidy().await? {
            self.announce().await?;
            self.held.reclaim().await?;
        }
        Ok(())
    }

    async fn announce(&self) -> Result<()> {
        let RunnerSettings { kind, owner, slots, .. } = &self.settings;
        self.queue.announce(owner, kind, *slots, self.job_time).await
    }

    /// Ends stale leases; returns the time until the next job comes due or lease ends.
    async fn until_due(&mut self) -> Result<Duration> {
        self.announce().await?;
        if self.held.reclaim().await? {
            return Ok(Duration::ZERO);
        }
        // If there may be jobs now, the next step, which follows at once, claims them.
        let due = self.held.look_ahead().await?;
        Ok(self.held.reclaim_within().map_or(due, |within| due.min(within)))
    }

    /// Time until the next heartbeat, at most `idle`.
    fn until_heartbeat(&self, idle: Duration) -> Duration {
        let now = self.clock.monotonic();
        self.held.heartbeat_at().map_or(idle, |at| at.saturating_sub(now).min(idle))
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
        let started = self.clock.monotonic();
        self.held.hold(claim, JobTask { started, ended: None, abort });
    }

    fn end(&mut self, ended: Result<EndedTask, logmill_io::TaskPanic>) {
        // The guard inside the task turns panics into outcomes, so a task without an outcome was aborted with
        // the runner.
        let Ok(ended) = ended else {
            return;
        };
        if let Some(task) = self.held.get_mut(&ended.key, ended.token) {
            let took = self.clock.monotonic().saturating_sub(task.started);
            self.job_time = (self.job_time * 7 + took) / 8;
            task.ended = Some(ended.outcome);
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
        for (claim, task) in self.held.iter() {
            if let Some(Err(failure)) = &task.ended {
                failed.push(self.failed(claim, failure));
            }
        }
        let fenced = self.queue.fail_many(&failed).await?;
        failed.iter().for_each(|failed| self.held.settle(&failed.claim));
        log_fenced(&fenced);
        Ok(())
    }

    /// Completes done jobs and claims up to `most` others in one transaction; returns the claims.
    async fn acknowledge_done(&mut self, most: usize) -> Result<Vec<Claim>> {
        self.held.retain(|task| task.ended != Some(Ok(Outcome::Completed)));
        let done = self.held.iter().filter(|(_, task)| task.ended == Some(Ok(Outcome::Done)));
        let done: Vec<Claim> = done.map(|(claim, _)| claim.clone()).collect();
        let outcome = self.held.claim(&done, most).await?;
        log_fenced(&outcome.fenced);
        Ok(outcome.claims)
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

    /// Acknowledges what has ended and releases the rest.
    async fn wind_down(mut self) -> Result<()> {
        self.collect_ended().await;
        self.tasks.abort_all();
        self.acknowledge_failed().await?;
        self.acknowledge_done(0).await?;
        self.held.release().await?;
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

impl ClaimWorker for Runner {
    type Error = Error;

    async fn work(&mut self) -> Result<Duration> {
        self.collect_ended().await;
        self.acknowledge_failed().await?;
        self.heartbeat().await?;
        let free = self.settings.slots.saturating_sub(self.tasks.len());
        if free == 0 {
            return Ok(self.until_heartbeat(self.settings.lease));
        }
        let claims = self.acknowledge_done(free).await?;
        let found = claims.len();
        claims.into_iter().for_each(|claim| self.start(claim));
        if found == free {
            self.tidy().await?;
            return Ok(self.until_heartbeat(self.settings.lease));
        }
        let idle = self.until_due().await?;
        Ok(self.until_heartbeat(idle))
    }

    async fn event(&mut self) {
        tokio::select! {
            biased;
            Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
            () = self.held.wait() => {}
        }
    }

    async fn end_next(&mut self) {
        if let Some(ended) = self.tasks.join_next().await {
            self.end(ended);
        }
    }

    fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    async fn heartbeat(&mut self) -> Result<()> {
        for (claim, task) in self.held.heartbeat().await? {
            tracing::warn!(
                kind = claim.kind,
                key = claim.key,
                token = claim.token,
                "job aborted: its claim is lost"
            );
            // The task may already have ended.
            let _ = task.abort.send(());
        }
        Ok(())
    }

    fn error_kind(error: &Error) -> ErrorKind {
        error.kind()
    }

    fn log_failure(&self, error: &Error) {
        let (kind, error) = (&self.settings.kind, error.chain());
        tracing::warn!(kind, error, "runner step failed, retrying");
    }

    fn log_missed_heartbeat(&self, error: &Error) {
        let (kind, error) = (&self.settings.kind, error.chain());
        tracing::warn!(kind, error, "cannot send heartbeats, retrying");
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner({}, {} of {})", self.settings.kind, self.tasks.len(), self.settings.slots)
    }
}

fn log_fenced(fenced: &[Claim]) {
    for claim in fenced {
        tracing::warn!(
            kind = claim.kind,
            key = claim.key,
            token = claim.token,
            "job result refused: the claim is fenced"
        );
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
