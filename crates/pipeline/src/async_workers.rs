//! Async workers: fetch what derived tables need beyond blocks, range by range, apart from the derivers.
//!
//! | module | what |
//! |---|---|
//! | [`token_metadata`] | names, symbols and decimals of tokens |
//! | [`contract_code`] | code of contracts that transactions created |
//! | [`nft_items`] | metadata of NFT items |
//! | [`reconcile`] | comparison of owners and balances with the answers of contracts |
//! | `progress` | progress of a worker |
//! | `derived` | typed access to rows of derived tables |
//!
//! A worker processes the heights that its gates (the processors it depends on) have done, in ranges that end at
//! multiples of the range size. A range is a job: claimed with its coverage, retried when it fails, a dead letter after
//! too many attempts. [`logmill_work`] does all of that; this module decides which ranges, and when.
//!
//! Timers that a polling design would need, and what replaces them:
//!
//! | every | purpose | here |
//! |---|---|---|
//! | 1 s | look for a range | [`AsyncSettings::poll`]: check whether the gates have moved; runners are woken |
//! | 5 s | commit checkpoints | none: a range is covered in the transaction that completes its job |
//! | 30 s | reap leases | none: a runner knows when the next lease ends, and wakes then |
//! | 60 s | look for gaps | [`AsyncSettings::watch`]: only logs them; the next plan fills a gap like any range |
//!
//! Guarantees: a range is covered once its work is done, and not before; a range with neither coverage nor a job is
//! found again, and no checkpoint passes it; an attempt counts once. A failing range does not delay others. Leaves to
//! others: the work in a range, which must be idempotent.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use finalized_log_index::ReplacementPosition;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::SearchOrder;
use logmill_work::ranges::{self, RangeDriver, Step};
use logmill_work::{
    Backoff, Coverage, Failure, Handler, Heights, IntervalSet, NewJob, Outcome, Queue, Runner,
    RunnerSettings, RunningJob, Scope, State,
};
use serde::{Deserialize, Serialize};

use crate::derive::store::checkpoints::Checkpoint;
use crate::derive::{Reader, Tables};
use crate::error::{Error, Result};

pub mod contract_code;
mod derived;
pub mod nft_items;
mod progress;
pub mod reconcile;
#[cfg(test)]
mod tests;
pub mod token_metadata;

pub use progress::{JobCounts, WorkerProgress};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncSettings {
    /// Ranges end at multiples of this many heights.
    pub range_size: u64,
    /// Maximum number of ranges without a failure that are queued or running.
    pub look_ahead: usize,
    /// Attempts of a range before it is a dead letter.
    pub attempts: u32,
    /// Ranges that this process works on concurrently.
    pub slots: usize,
    /// How often to check whether the gates have moved.
    pub poll: Duration,
    /// How often to log missing ranges.
    pub watch: Duration,
    /// Lease of a range without a heartbeat.
    pub lease: Duration,
    pub backoff: Backoff,
}

impl Default for AsyncSettings {
    fn default() -> Self {
        Self {
            range_size: 1_000,
            look_ahead: 5,
            attempts: 20,
            slots: 2,
            poll: Duration::from_secs(1),
            watch: Duration::from_secs(60),
            lease: Duration::from_secs(300),
            backoff: Backoff::default(),
        }
    }
}

/// The work in a range.
#[async_trait]
pub trait RangeWork: Send + Sync + fmt::Debug + 'static {
    /// Name of its checkpoint and of its coverage.
    fn name(&self) -> &'static str;

    /// A changed version processes everything again.
    fn version(&self) -> u32;

    /// Processors that must have done a height before this worker does.
    fn gates(&self) -> &'static [&'static str];

    /// The heights that it may process, out of those that all gates have done.
    fn ready(&self, gates: IntervalSet) -> IntervalSet {
        gates
    }

    /// The kind of the per-item jobs that its ranges enqueue, if any.
    fn item_kind(&self) -> Option<String> {
        None
    }

    /// Processes a range, which may have been processed before, in part or in full.
    async fn run(&self, range: &Heights) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct AsyncWorker {
    work: Arc<dyn RangeWork>,
    reader: Reader,
    queue: Queue,
    settings: AsyncSettings,
}

/// Payload of a range job.
#[derive(Debug, Serialize, Deserialize)]
struct RangePayload {
    start: u64,
    end: u64,
    version: u32,
}

impl AsyncWorker {
    pub fn new(
        work: Arc<dyn RangeWork>,
        tables: Tables,
        chain_id: u64,
        settings: AsyncSettings,
    ) -> Self {
        let queue = tables.queue().clone();
        Self { work, reader: Reader::new(tables, chain_id), queue, settings }
    }

    pub fn name(&self) -> &'static str {
        self.work.name()
    }

    pub fn kind(&self) -> String {
        format!("{}-{}", self.work.name(), self.reader.chain_id())
    }

    /// The scope of its coverage. After stored blocks were replaced and the gates' tables were derived again, it
    /// processes everything again; it does not ask again for what it knows.
    pub async fn scope(&self) -> Result<Scope> {
        let generations = self.reader.progress(self.work.gates()).await?;
        let applied = generations.iter().map(|one| one.replacements_applied);
        let applied = applied.min_by_key(|applied| applied.seq);
        Ok(Scope {
            chain_id: self.reader.chain_id(),
            consumer: self.work.name().to_owned(),
            version: version_after(self.work.version(), applied.unwrap_or_default()),
        })
    }

    /// The heights that it may process.
    async fn ready(&self) -> Result<IntervalSet> {
        let mut ready: Option<IntervalSet> = None;
        for gate in self.work.gates() {
            let done = self.reader.covered(gate).await?.done;
            ready = Some(match ready {
                None => done,
                Some(ready) => done.ranges().flat_map(|range| ready.overlap(&range)).collect(),
            });
        }
        Ok(self.work.ready(ready.unwrap_or_default()))
    }

    /// Claims the next ranges, up to the look-ahead; returns how many.
    pub async fn plan(&self) -> Result<usize> {
        let free = self.settings.look_ahead.saturating_sub(self.fresh_jobs().await?);
        if free == 0 {
            return Ok(0);
        }
        let (ready, scope) = (self.ready().await?, self.scope().await?);
        let coverage = Coverage::read(self.queue.sql(), &scope).await?;
        let mut taken = coverage.done;
        taken.extend(&coverage.claimed);
        let mut claimed = 0;
        for range in ranges::missing(&ready, &taken, self.settings.range_size).take(free) {
            let most = range.end - range.start;
            let claim = RangeClaim { within: range, most, order: SearchOrder::LowestFirst };
            let job = |range: &Heights| self.job(range, scope.version);
            // None if another process has claimed it first.
            let got = Coverage::claim_next(&self.queue, &scope, &claim, job).await?;
            claimed += usize::from(got.is_some());
        }
        Ok(claimed)
    }

    /// Number of ranges without a failure that are queued or running. A range that waits for a retry does not keep the
    /// worker from going on.
    async fn fresh_jobs(&self) -> Result<usize> {
        let (kind, most) = (self.kind(), logmill_work::queue::LIST_MAX);
        let pending = self.queue.list(&kind, State::Pending, None, most).await?;
        let running = self.queue.list(&kind, State::Running, None, most).await?;
        let fresh = pending.iter().filter(|job| job.attempts == 0);
        Ok(fresh.count() + running.iter().filter(|job| job.attempts <= 1).count())
    }

    fn job(&self, range: &Heights, version: u32) -> NewJob {
        let (start, end) = (range.start, range.end);
        let payload = format!(r#"{{"start":{start},"end":{end},"version":{version}}}"#);
        let key = format!("{start:020}-{end:020}-v{version}");
        NewJob { attempts_max: self.settings.attempts, ..NewJob::new(self.kind(), key, payload) }
    }

    pub async fn progress(&self) -> Result<WorkerProgress> {
        let ready = self.ready().await?;
        let coverage = Coverage::read(self.queue.sql(), &self.scope().await?).await?;
        let counts = self.queue.counts().await?;
        let mut progress =
            WorkerProgress::of(self.work.name(), self.work.gates(), &ready, &coverage);
        progress.jobs = JobCounts::of(&self.kind(), &counts);
        progress.items = self.work.item_kind().map(|kind| JobCounts::of(&kind, &counts));
        Ok(progress)
    }

    /// The runner of its ranges. `owner` must be unique for every run of every process.
    pub fn runner(&self, owner: &str) -> Result<Runner> {
        let settings = &self.settings;
        let settings = RunnerSettings {
            lease: settings.lease,
            slow_poll: Duration::from_secs(15).min(settings.lease),
            backoff: settings.backoff.clone(),
            // Jobs that wait for a node are released at once; asking again does no harm.
            stop_deadline: Duration::ZERO,
            ..RunnerSettings::new(&self.kind(), owner, settings.slots.max(1))
        };
        Ok(Runner::new(self.queue.clone(), Arc::new(self.clone()), settings)?)
    }

    pub async fn run(&self, owner: &str, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let (runner, sql) = (self.runner(owner)?, self.queue.sql());
        tokio::select! {
            biased;
            ended = runner.run(stop) => Ok(ended?),
            error = ranges::drive(self, &**sql.clock(), &**sql.entropy()) => Err(error),
            never = self.watch() => match never {},
        }
    }

    /// Logs dead letters and gaps, for as long as it is polled.
    async fn watch(&self) -> Infallible {
        loop {
            self.queue.sql().clock().sleep(self.settings.watch).await;
            match self.progress().await {
                Ok(progress) if progress.jobs.dead > 0 || !progress.gaps.is_empty() => {
                    tracing::warn!(
                        worker = progress.name,
                        checkpoint = progress.checkpoint,
                        dead = progress.jobs.dead,
                        gaps = progress.gaps_total,
                        "ranges of the worker are missing"
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    let (worker, error) = (self.name(), logmill_io::error_chain(&error));
                    tracing::warn!(worker, error, "cannot read the worker's progress");
                }
            }
        }
    }

    async fn do_range(&self, running: &RunningJob, scope: &Scope, range: &Heights) -> Result<()> {
        self.work.run(range).await?;
        let queue = &self.queue;
        let covered = queue.sql().write(|tx| async move {
            Coverage::cover(&tx, scope, range).await?;
            queue.complete_in(&tx, &running.claim).await
        });
        covered.await?;
        // The range is done; a checkpoint that cannot be stored now is stored with the next range.
        if let Err(error) = self.put_checkpoint().await {
            let error = logmill_io::error_chain(&error);
            tracing::warn!(worker = self.name(), error, "cannot store the checkpoint");
        }
        Ok(())
    }

    /// Stores its progress for readers of `indexing_checkpoints`.
    async fn put_checkpoint(&self) -> Result<()> {
        let progress = self.progress().await?;
        let from = progress.ranges.first().map(|(start, _)| *start);
        let last = progress.checkpoint.and_then(|next| next.checked_sub(1));
        let last = last.filter(|last| from.is_some_and(|from| from <= *last));
        let checkpoint = Checkpoint { name: self.name(), from, last };
        let tables = self.reader.tables();
        tables.put_checkpoints(None, self.reader.chain_id(), &[checkpoint]).await
    }
}

#[async_trait]
impl Handler for AsyncWorker {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let payload: RangePayload = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        let scope = self.scope().await.map_err(|error| failure(&error))?;
        if payload.version != scope.version {
            // Left over from an earlier version: the range has, or will have, a job of the new version.
            return Ok(Outcome::Done);
        }
        match self.do_range(&running, &scope, &(payload.start..payload.end)).await {
            Ok(()) => Ok(Outcome::Completed),
            Err(error) => Err(failure(&error)),
        }
    }
}

#[async_trait]
impl RangeDriver for AsyncWorker {
    type Error = Error;

    async fn claim(&self) -> Result<Step> {
        // One plan claims as much as the look-ahead allows.
        self.plan().await.map(|_| Step::Busy)
    }

    async fn wait(&self, _: Step) {
        self.queue.sql().clock().sleep(self.settings.poll).await;
    }

    fn retry(&self, error: Error) -> Result<Backoff> {
        let (worker, error) = (self.name(), logmill_io::error_chain(&error));
        tracing::warn!(worker, error, "cannot plan ranges, retrying");
        Ok(Backoff::Constant { wait: self.settings.poll })
    }
}

/// The version of a worker's coverage: its own, combined with the last replacement that its gates have applied.
fn version_after(version: u32, applied: ReplacementPosition) -> u32 {
    let round = applied.seq.wrapping_add(applied.mark) % (1 << 16);
    let round = u32::try_from(round).unwrap_or(0);
    version.wrapping_add(round << 16)
}

fn failure(error: &Error) -> Failure {
    Failure::again(logmill_io::error_chain(error))
}
