//! Async workers: what derived tables need beyond blocks, range by range, apart from the derivers.
//!
//! | module | what |
//! |---|---|
//! | [`token_metadata`] | what tokens are called, and their decimals |
//! | [`contract_code`] | the code of contracts that transactions created |
//! | [`nft_items`] | what items of collections are called, and what they show |
//! | [`reconcile`] | owners and balances, compared with what contracts say |
//! | [`standing`] | how far a worker is |
//! | `derived` | values of the rows that they read of derived tables |
//!
//! A worker goes over the heights that those before it have done (its gates), in ranges that end at multiples of
//! the range size. A range is a job: claimed with its coverage, tried again when it fails, a dead letter after so many
//! attempts. All of that is [`logmill_work`]'s; here is which ranges, and when.
//!
//! What a poller had timers for, and what is left of them:
//!
//! | every | was for | now |
//! |---|---|---|
//! | 1 s | looking for a range | [`AsyncSettings::poll`]: whether the gates have moved; runners are woken |
//! | 5 s | committing checkpoints | none: a range is covered in the transaction that completes its job |
//! | 30 s | reaping leases | none: a runner knows when the next lease ends, and wakes then |
//! | 60 s | looking for gaps | [`AsyncSettings::watch`]: saying so; the next look fills a gap like any range |
//!
//! Guarantees: a range is covered once what it asks for is done, and not before; a range that has neither coverage
//! nor a job is found again, and no checkpoint passes it; an attempt counts once. A range that fails holds up no
//! other. Leaves to others: what is done in a range, which is the same however often it is done.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::Clock;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::From;
use logmill_work::{
    Backoff, Coverage, Failure, Handler, Heights, IntervalSet, NewJob, Outcome, Queue, Runner,
    RunnerSettings, Running, Scope, State,
};
use serde::{Deserialize, Serialize};

use crate::derive::{Reader, Tables};
use crate::error::{Error, Result};

pub mod contract_code;
mod derived;
pub mod nft_items;
pub mod reconcile;
pub mod standing;
#[cfg(test)]
mod tests;
pub mod token_metadata;

pub use standing::{Jobs, Standing};

/// How a worker goes over ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncSettings {
    /// Ranges end at multiples of this many heights.
    pub range_size: u64,
    /// How many ranges that have not failed yet wait or run at a time.
    pub look_ahead: usize,
    /// How often a range may be tried before it is a dead letter.
    pub attempts: u32,
    /// How many ranges this process works on at a time.
    pub slots: usize,
    /// How often to look whether the gates have moved.
    pub poll: Duration,
    /// How often to say what is stuck.
    pub watch: Duration,
    /// How long a range is held without a heartbeat.
    pub lease: Duration,
    /// How long to wait between attempts.
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

/// What is done in a range.
#[async_trait]
pub trait RangeWork: Send + Sync + fmt::Debug + 'static {
    /// Its name: that of its checkpoint and of its coverage.
    fn name(&self) -> &'static str;

    /// A changed version goes over everything again.
    fn version(&self) -> u32;

    /// The processors that must have done a height before it does.
    fn gates(&self) -> &'static [&'static str];

    /// The heights that it may go over, of those that all gates have done.
    fn ready(&self, gates: IntervalSet) -> IntervalSet {
        gates
    }

    /// The kind of the jobs of single items that its ranges make, if they do.
    fn item_kind(&self) -> Option<String> {
        None
    }

    /// Does a range. It may have been done before, in part or in full.
    async fn run(&self, range: &Heights) -> Result<()>;
}

/// A worker of one chain.
#[derive(Clone, Debug)]
pub struct AsyncWorker {
    work: Arc<dyn RangeWork>,
    reader: Reader,
    queue: Queue,
    settings: AsyncSettings,
}

/// What a job of a range says.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    start: u64,
    end: u64,
    version: u32,
}

impl AsyncWorker {
    /// A worker over the derived tables of a chain.
    pub fn new(
        work: Arc<dyn RangeWork>,
        tables: Tables,
        chain_id: u64,
        settings: AsyncSettings,
    ) -> Self {
        let queue = tables.queue().clone();
        Self { work, reader: Reader::new(tables, chain_id), queue, settings }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.work.name()
    }

    /// The kind of its jobs.
    pub fn kind(&self) -> String {
        format!("{}-{}", self.work.name(), self.reader.chain_id())
    }

    /// Whose coverage its ranges have. When stored blocks were replaced, and the tables of its gates have been derived
    /// again, it goes over everything again: what it knows by then it does not ask for.
    pub async fn scope(&self) -> Result<Scope> {
        let standings = self.reader.standings(self.work.gates()).await?;
        let applied = standings.iter().map(|standing| standing.replacements_applied).min();
        Ok(Scope {
            chain_id: self.reader.chain_id(),
            consumer: self.work.name().to_owned(),
            version: version_after(self.work.version(), applied.unwrap_or(0)),
        })
    }

    /// The heights that it may go over.
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

    /// Claims the next ranges, as many as may wait; gives how many.
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
        for range in next_ranges(&ready, &taken, self.settings.range_size, free) {
            let most = range.end - range.start;
            let claim = RangeClaim { within: range, most, from: From::Below };
            let job = |range: &Heights| self.job(range, scope.version);
            // None if another process was faster.
            let got = Coverage::claim_next(&self.queue, &scope, &claim, job).await?;
            claimed += usize::from(got.is_some());
        }
        Ok(claimed)
    }

    /// How many ranges wait or run that have not failed: one that waits for its next attempt is no reason not to go on.
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

    /// How far it is.
    pub async fn standing(&self) -> Result<Standing> {
        let ready = self.ready().await?;
        let coverage = Coverage::read(self.queue.sql(), &self.scope().await?).await?;
        let counts = self.queue.counts().await?;
        let mut standing = Standing::of(self.work.name(), self.work.gates(), &ready, &coverage);
        standing.jobs = Jobs::of(&self.kind(), &counts);
        standing.items = self.work.item_kind().map(|kind| Jobs::of(&kind, &counts));
        Ok(standing)
    }

    /// What runs its ranges. `owner` is different in every process and every run.
    pub fn runner(&self, owner: &str) -> Result<Runner> {
        let settings = &self.settings;
        let settings = RunnerSettings {
            lease: settings.lease,
            slow_poll: Duration::from_secs(15).min(settings.lease),
            backoff: settings.backoff.clone(),
            // What waits for a node is given back at once; asking again does no harm.
            stop_deadline: Duration::ZERO,
            ..RunnerSettings::new(&self.kind(), owner, settings.slots.max(1))
        };
        Ok(Runner::new(self.queue.clone(), Arc::new(self.clone()), settings)?)
    }

    /// Claims ranges and runs them until `stop` completes.
    pub async fn run(&self, owner: &str, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let runner = self.runner(owner)?;
        tokio::select! {
            biased;
            ended = runner.run(stop) => Ok(ended?),
            never = self.look() => match never {},
        }
    }

    /// Looks for ranges for as long as it is polled.
    pub async fn look(&self) -> Infallible {
        let clock: Arc<dyn Clock> = Arc::clone(self.queue.sql().clock());
        let mut watched = clock.monotonic();
        loop {
            if let Err(error) = self.plan().await {
                tracing::warn!(worker = self.name(), error = logmill_io::chain(&error), "no plan");
            }
            if clock.monotonic().saturating_sub(watched) >= self.settings.watch {
                watched = clock.monotonic();
                self.watch().await;
            }
            clock.sleep(self.settings.poll).await;
        }
    }

    /// Says what is stuck.
    async fn watch(&self) {
        match self.standing().await {
            Ok(standing) if standing.jobs.dead > 0 || !standing.gaps.is_empty() => tracing::warn!(
                worker = standing.name,
                checkpoint = standing.checkpoint,
                dead = standing.jobs.dead,
                gaps = standing.gaps_total,
                "ranges are missing"
            ),
            Ok(_) => {}
            Err(error) => {
                let error = logmill_io::chain(&error);
                tracing::warn!(worker = self.name(), error, "its standing is not known");
            }
        }
    }

    async fn do_range(&self, running: &Running, scope: &Scope, range: &Heights) -> Result<()> {
        self.work.run(range).await?;
        let queue = &self.queue;
        let covered = queue.sql().write(|tx| async move {
            Coverage::cover(&tx, scope, range).await?;
            Ok(queue.complete_in(&tx, &running.claim).await?)
        });
        Ok(covered.await?)
    }
}

#[async_trait]
impl Handler for AsyncWorker {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let asked: Asked = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload: {error}")))?;
        let scope = self.scope().await.map_err(|error| failure(&error))?;
        if asked.version != scope.version {
            // Left from before a change: the range has a job of the new version, or will have one.
            return Ok(Outcome::Done);
        }
        match self.do_range(&running, &scope, &(asked.start..asked.end)).await {
            Ok(()) => Ok(Outcome::Completed),
            Err(error) => Err(failure(&error)),
        }
    }
}

/// The version of a worker's coverage: its own, and the replacement of stored blocks that its gates have applied.
fn version_after(version: u32, replacement: u64) -> u32 {
    let round = u32::try_from(replacement % (1 << 16)).unwrap_or(0);
    version.wrapping_add(round << 16)
}

/// An attempt that failed, with all that is known of why.
fn failure(error: &Error) -> Failure {
    Failure::again(logmill_io::chain(error))
}

/// The next ranges that are ready and not taken, lowest first; none goes over a multiple of `size`.
fn next_ranges(ready: &IntervalSet, taken: &IntervalSet, size: u64, most: usize) -> Vec<Heights> {
    let size = size.max(1);
    let mut next = Vec::new();
    let gaps = ready.ranges().flat_map(|range| taken.gaps(&range));
    for gap in gaps {
        let mut start = gap.start;
        while start < gap.end {
            if next.len() >= most {
                return next;
            }
            let border = (start / size + 1).saturating_mul(size);
            let end = border.min(gap.end);
            next.push(start..end);
            start = end;
        }
    }
    next
}
