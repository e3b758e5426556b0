//! `Runner`: a bounded number of slots that run the jobs of one kind.
//!
//! One task claims, heartbeats, acknowledges and reaps; each job runs in a task of its own. The number of free
//! slots is not counted up and down anywhere: it is the number of slots less the number of tasks that exist. So
//! no path through the code, be it an empty claim, a claim that fails, a handler that panics or is aborted, can
//! leak a slot.
//!
//! ```text
//!            wake-up, a job that comes due, a lease that ends, slow poll
//!                                   │
//!                                   ▼
//!     acknowledge ◀── finished ── [slots] ◀── claim as many as are free
//!                                   │
//!                                   └── every third of a lease: heartbeat; who is fenced is aborted
//! ```
//!
//! Guarantees:
//! - A handler that returns, fails or panics has its job acknowledged accordingly, as long as the lease can be kept.
//! - A handler whose claim is lost is aborted at its next await; its acknowledgement would be refused anyway.
//! - Idle means idle: no statement is sent until a wake-up, the next due time, or the slow poll.
//! - On [`Runner::run`]'s stop signal nothing new is claimed; what runs may finish until the deadline, and the rest
//!   is released, its attempt not counted.
//!
//! Leaves to others: what a job does, and stopping in time when a `Running` is told that it lost its claim.

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

/// Does the jobs of one kind.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does one job.
    async fn run(&self, running: Running) -> Result<Outcome, Failure>;
}

/// A job under way.
#[derive(Clone, Debug)]
pub struct Running {
    /// The job, and what proves that we hold it.
    pub claim: Claim,
    /// The queue, for handlers that complete their job in the transaction that writes its results.
    pub queue: Queue,
}

/// How a job ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done; the runner completes it.
    Done,
    /// It is done, and the handler completed it with [`Queue::complete_in`].
    Completed,
}

/// How a job ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, for the operator.
    pub error: String,
    /// Whether trying again is of any use.
    pub retry: Retry,
}

/// Whether and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// As the runner's backoff says.
    Backoff,
    /// After this long, because somebody said so.
    After(Duration),
    /// Never: a dead letter at once.
    Never,
}

impl Failure {
    /// A failure after which it is worth trying again.
    pub fn again(error: impl Into<String>) -> Self {
        Self { error: error.into(), retry: Retry::Backoff }
    }

    /// A failure that would only come again.
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

/// How a runner behaves.
#[derive(Clone, Debug)]
pub struct RunnerSettings {
    /// The kind of jobs.
    pub kind: String,
    /// Who holds them: different in every process and every run.
    pub owner: String,
    /// The most jobs at a time.
    pub slots: usize,
    /// How long a claim lasts without a heartbeat.
    pub lease: Duration,
    /// How often an idle runner looks, in case a wake-up was lost. At most the lease, so that the end of anybody's
    /// lease is known before it comes.
    pub slow_poll: Duration,
    /// How long to wait between attempts.
    pub backoff: Backoff,
    /// The longest wait between attempts, whatever backoff and handlers say. A job that is due later than this from now
    /// was put off by a clock that was ahead, and is due.
    pub wait_max: Duration,
    /// How long a stop waits for jobs that run.
    pub stop_deadline: Duration,
    /// How long a job probably takes, before any was measured.
    pub expected_job_time: Duration,
}

impl RunnerSettings {
    /// The usual settings.
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

/// Runs the jobs of one kind until it is told to stop.
pub struct Runner {
    queue: Queue,
    handler: Arc<dyn Handler>,
    settings: RunnerSettings,
    clock: Arc<dyn Clock>,
    claimer: Claimer,
    reclaimer: Reclaimer,
    waiter: Waiter,
    tasks: Tasks<Ended>,
    /// What runs, and what ended and is not yet acknowledged, by key.
    held: BTreeMap<String, Held>,
    /// How long a job takes, as a moving average.
    job_time: Duration,
    heartbeat_at: Duration,
    /// When to look for stale leases while busy, on the monotonic clock.
    tidy_at: Duration,
}

struct Held {
    claim: Claim,
    /// On the monotonic clock.
    started: Duration,
    /// None while the task runs.
    ended: Option<Result<Outcome, Failure>>,
    abort: Option<tokio::sync::oneshot::Sender<()>>,
}

struct Ended {
    key: String,
    token: i64,
    outcome: Result<Outcome, Failure>,
}

/// After how long a failed statement is tried again.
const AGAIN_WAIT: Duration = Duration::from_millis(500);
/// The longest wait between attempts, where the settings say no other.
const WAIT_MAX: Duration = Duration::from_secs(2 * 24 * 3_600);
/// How often a busy runner looks for stale leases.
const TIDY_INTERVAL: Duration = Duration::from_millis(500);

impl Runner {
    /// A runner that has not started.
    pub fn new(queue: Queue, handler: Arc<dyn Handler>, settings: RunnerSettings) -> Result<Self> {
        if settings.slots == 0 || settings.lease.is_zero() || settings.slow_poll > settings.lease {
            return Err(Error::invalid(format!(
                "a runner for {}: at least one slot, a lease, and a slow poll no longer than the lease",
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
                // A handle that refuses to go on will not recover: whoever started us must open it anew.
                Err(error) if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Corrupt) => {
                    return Err(error);
                }
                Err(error) => {
                    // The store is away; jobs that run go on, and so do we.
                    tracing::warn!(
                        kind = self.settings.kind,
                        error = error.chain(),
                        "runner step failed"
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

    /// Everything that can be done now; gives how long until something else can, if nothing happens before.
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

    /// What an idle runner does whenever it looks, a busy one does at times: jobs of a dead process would else wait
    /// behind the whole backlog.
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

    /// Ends a stale lease if there is one, and gives how long until the next job comes due or lease ends.
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
                // What came due meanwhile is claimed by the next step, at once.
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
        let running = Running { claim: claim.clone(), queue: self.queue.clone() };
        let (key, token) = (claim.key.clone(), claim.token);
        let (abort, aborted) = tokio::sync::oneshot::channel();
        self.tasks.spawn(async move {
            let outcome = run_guarded(handler, running, aborted).await;
            Ended { key, token, outcome }
        });
        let now = self.clock.monotonic();
        if self.held.is_empty() {
            self.heartbeat_at = now + self.settings.lease / 3;
        }
        let held = Held { claim, started: now, ended: None, abort: Some(abort) };
        self.held.insert(held.claim.key.clone(), held);
    }

    fn end(&mut self, ended: Result<Ended, logmill_io::Panicked>) {
        // The guard inside the task turns panics into outcomes, so a task that vanished was aborted with us.
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

    /// Takes note of every task that has ended, without waiting for any but those that are just about to: what ends
    /// together shares a trip to the store.
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

    /// Records what failed, in one batch. What can not be acknowledged now stays, and is heartbeated.
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

    /// Completes what is done and claims up to `most`, in one transaction; gives what it claimed.
    async fn acknowledge_done(&mut self, most: usize) -> Result<Vec<Claim>> {
        self.held.retain(|_, held| held.ended != Some(Ok(Outcome::Completed)));
        let is_done = |held: &&Held| held.ended == Some(Ok(Outcome::Done));
        let done = self.held.values().filter(is_done).map(|held| held.claim.clone());
        let done: Vec<Claim> = done.collect();
        let turn = self.claimer.complete_and_claim(&done, most).await?;
        // Before the claims start: a job that was fenced may be among them, under its new token.
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
                "came too late: fenced"
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
                "lost its claim"
            );
            if let Some(mut held) = self.held.remove(&claim.key)
                && let Some(abort) = held.abort.take()
            {
                // The task may have ended by itself.
                let _ = abort.send(());
            }
        }
        Ok(())
    }

    async fn wind_down(mut self) -> Result<()> {
        let deadline = self.clock.monotonic() + self.settings.stop_deadline;
        while !self.tasks.is_empty() && self.clock.monotonic() < deadline {
            if let Err(error) = self.heartbeat().await {
                tracing::warn!(kind = self.settings.kind, error = error.chain(), "no heartbeat");
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
            // Only estimates count runners, and those forget one that is not heard of.
            tracing::debug!(kind = self.settings.kind, error = error.chain(), "not retired");
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
    running: Running,
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
            None => Err(Failure::again("the handler vanished")),
        },
        Ok(()) = aborted => Err(Failure::again("the claim was lost")),
    }
}
