//! The backward ingester (`history_ingester`): fills history, newest first, with any number of workers and processes.
//!
//! The unit is a cell of the log index. [`Backward::plan`] finds missing cells and enqueues a job for each, a few at a
//! time; the worker that runs a job fetches, builds and publishes the cell. Missing cells follow from the published
//! ones, so no other state is kept, and a cell whose job was lost is found again. The coverage is the list of chunks,
//! so a job is claimed by its key instead of by [`logmill_work::Coverage`].
//!
//! Guarantees: a cell is published whole and once, whichever worker builds it and however often; a cell that fails is
//! retried while others go on. Listeners are not notified of history. Leaves to others: running jobs
//! ([`logmill_work::Runner`]).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use finalized_log_index::{Error as IndexError, FinalizedBlock, LogIndex};
use futures::{Stream, StreamExt, stream};
use logmill_chain::{Block, BlockSource, Error as ChainError};
use logmill_io::Clock;
use logmill_work::ranges::{self, RangeDriver, Step};
use logmill_work::{
    Backoff, EnqueueResult, Failure, Handler, IntervalSet, NewJob, Outcome, Queue, RunningJob,
    State,
};
use serde::{Deserialize, Serialize};

use super::{IngestSettings, Progress};
use crate::block::to_finalized;
use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::senders;

/// Prefix of the job kind, before the chain id.
pub(crate) const CELL_JOB: &str = "history-cell";
/// Queued cells per worker: enough that none idles, few enough that the newest go first.
const WAITING_PER_WORKER: usize = 2;
/// Missing cells that are considered: those that wait after a failure do not delay the others.
const LOOKED_AT_MAX: usize = 256;
/// Interval of plans before the first block is final.
const FIRST_PLAN_WAIT: Duration = Duration::from_millis(100);
const PLAN_EVERY: Duration = Duration::from_secs(2);
/// A cell that is missing though its job is done gets a job under another key, at most this many times.
const REPEATS_MAX: u32 = 16;
/// Batches that one job fetches ahead of the build.
const FETCHED_AHEAD: usize = 3;

#[derive(Debug)]
pub struct Backward {
    chain: Chain,
    source: Arc<dyn BlockSource>,
    queue: Queue,
    settings: IngestSettings,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
    /// Lowest block that the nodes have. Each process learns it again, as nodes come and go.
    floor: AtomicU64,
    /// When dead letters were last redriven, on the monotonic clock.
    revived: std::sync::Mutex<Duration>,
}

/// How long a dead cell waits until it is tried again.
const REVIVE_EVERY: Duration = Duration::from_secs(600);

/// Payload of a job.
#[derive(Debug, Serialize, Deserialize)]
struct CellPayload {
    start: u64,
    end: u64,
}

impl Backward {
    pub fn new(
        chain: Chain,
        source: Arc<dyn BlockSource>,
        queue: Queue,
        settings: IngestSettings,
        progress: Arc<Progress>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let floor = AtomicU64::new(settings.history_stop);
        let revived = std::sync::Mutex::new(clock.monotonic());
        Self { chain, source, queue, settings, progress, clock, floor, revived }
    }

    pub fn kind(&self) -> String {
        kind(self.chain.chain_id())
    }

    /// Plans for as long as it is polled; returns an error after which no plan can succeed.
    pub async fn run(&self) -> Error {
        ranges::drive(self, &*self.clock, &**self.queue.sql().entropy()).await
    }

    /// Enqueues jobs for the newest missing cells; returns the total number of missing blocks.
    pub async fn plan(&self) -> Result<u64> {
        let index = self.chain.index();
        index.refresh().await?;
        let floor = self.floor.load(Ordering::SeqCst).max(index.pruned_below());
        let missing = missing_cells(index, floor);
        let blocks: u64 = missing.iter().map(|range| range.end - range.start).sum();
        self.progress.set_history_left(blocks, floor);
        let most = self.settings.history_workers.max(1) * WAITING_PER_WORKER;
        let now = self.clock.monotonic();
        let revive = {
            let mut revived =
                self.revived.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let due = now.saturating_sub(*revived) >= REVIVE_EVERY;
            if due {
                *revived = now;
            }
            due
        };
        let mut waiting = 0;
        for range in missing.iter().rev().take(LOOKED_AT_MAX) {
            if waiting == most {
                break;
            }
            waiting += usize::from(self.enqueue(range, revive).await?);
        }
        Ok(blocks)
    }

    /// Enqueues a job for a range, unless it has one; if its job is done though the range is missing, enqueues a
    /// successor. Returns false if the job has failed and waits for a retry.
    async fn enqueue(&self, range: &Range<u64>, revive: bool) -> Result<bool> {
        for repeat in 0..REPEATS_MAX {
            let job = self.job(range, repeat)?;
            if !revive && let Some(known) = self.queue.get(&job.kind, &job.key).await? {
                match known.state {
                    State::Done => continue,
                    State::Running => return Ok(true),
                    State::Pending => return Ok(known.attempts == 0),
                    State::Dead | State::Cancelled => return Ok(false),
                }
            }
            match self.queue.enqueue(&job).await? {
                EnqueueResult::Exists(State::Done) => {}
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    fn job(&self, range: &Range<u64>, repeat: u32) -> Result<NewJob> {
        let cell = CellPayload { start: range.start, end: range.end };
        let payload = serde_json::to_string(&cell);
        let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
        let key = format!("{:016x}-{:016x}-{repeat}", range.start, range.end);
        let mut job = NewJob::new(self.kind(), key, payload);
        let cells = range.start / self.chain.index().settings().cell_blocks;
        job.priority = i32::try_from(cells).unwrap_or(i32::MAX);
        Ok(job)
    }

    /// Fetches, builds and publishes the missing parts of a cell.
    pub async fn fill(&self, range: Range<u64>) -> Result<()> {
        let index = self.chain.index();
        index.refresh().await?;
        let floor = self.floor.load(Ordering::SeqCst);
        let start = range.start.max(floor).min(range.end);
        for part in gaps(index, &(start..range.end)) {
            match self.build(part.clone()).await {
                Err(Error::Chain(ChainError::Pruned { .. })) => {
                    let floor = self.find_floor(part.clone()).await?;
                    self.floor.fetch_max(floor, Ordering::SeqCst);
                    let chain = self.chain.chain_id();
                    tracing::info!(chain, floor, "the nodes have no history below this block");
                    if floor < part.end {
                        self.build(floor..part.end).await?;
                    }
                }
                built => built?,
            }
        }
        Ok(())
    }

    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }

    pub(crate) async fn chain_id_of_source(&self) -> Result<u64> {
        Ok(self.source.info().await?.chain_id)
    }

    /// Fetches and verifies all blocks of a range.
    pub(crate) async fn fetch(&self, range: Range<u64>) -> Result<Vec<Block>> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut next = range.start;
        while next < range.end {
            let fetched = self.source.blocks(next..range.end).await?;
            let Some(last) = fetched.last() else {
                return Err(ChainError::NotYet { number: next }.into());
            };
            next = last.at.number + 1;
            blocks.extend(fetched);
        }
        if self.settings.store_senders {
            senders::recover(&mut blocks).await;
        }
        Ok(blocks)
    }

    async fn build(&self, range: Range<u64>) -> Result<()> {
        let failure = Arc::new(std::sync::Mutex::new(None));
        let blocks = self.stream(range.clone(), Arc::clone(&failure));
        let built = self.chain.index().build_chunk(range.clone(), blocks).await;
        let cause = failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        match (built, cause) {
            (Err(_), Some(cause)) => Err(cause),
            // Another process has published it first.
            (Err(IndexError::Unpublishable { .. }), None)
                if gaps(self.chain.index(), &range).is_empty() =>
            {
                Ok(())
            }
            (built, _) => Ok(built.map(|_| ())?),
        }
    }

    /// The blocks of a range, fetched ahead. An error of the source is stored in `failure`.
    fn stream(
        &self,
        range: Range<u64>,
        failure: Arc<std::sync::Mutex<Option<Error>>>,
    ) -> impl Stream<Item = finalized_log_index::Result<FinalizedBlock>> {
        let batch = self.settings.history_batch.max(1);
        let starts = range.clone().step_by(usize::try_from(batch).unwrap_or(usize::MAX));
        let ranges = starts.map(move |start| start..(start + batch).min(range.end));
        let (source, progress) = (Arc::clone(&self.source), Arc::clone(&self.progress));
        let store_senders = self.settings.store_senders;
        let batches = stream::iter(ranges).map(move |range| {
            let (source, progress) = (Arc::clone(&source), Arc::clone(&progress));
            async move { prepare(&*source, &progress, store_senders, range).await }
        });
        batches.buffered(FETCHED_AHEAD).flat_map(move |fetched| {
            let items: Vec<finalized_log_index::Result<FinalizedBlock>> = match fetched {
                Ok(blocks) => blocks.into_iter().map(Ok).collect(),
                Err(error) => {
                    let what = logmill_io::error_chain(&error);
                    let mut failure =
                        failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    *failure = Some(error);
                    vec![Err(IndexError::Invalid { what })]
                }
            };
            stream::iter(items)
        })
    }

    /// The lowest block of a range that the nodes still have; the end of the range if they have none.
    async fn find_floor(&self, range: Range<u64>) -> Result<u64> {
        let (mut low, mut high) = (range.start, range.end);
        while low < high {
            let middle = low.midpoint(high);
            match self.source.blocks(middle..middle + 1).await {
                Err(ChainError::Pruned { .. }) => low = middle + 1,
                Err(error) => return Err(error.into()),
                Ok(_) => high = middle,
            }
        }
        Ok(low)
    }
}

/// Fetches all blocks of a range and converts them for the index.
async fn prepare(
    source: &dyn BlockSource,
    progress: &Progress,
    store_senders: bool,
    range: Range<u64>,
) -> Result<Vec<FinalizedBlock>> {
    let mut next = range.start;
    let mut all = Vec::new();
    while next < range.end {
        let fetched = source.blocks(next..range.end).await?;
        let Some(last) = fetched.last() else {
            return Err(ChainError::NotYet { number: next }.into());
        };
        next = last.at.number + 1;
        let logs: usize = fetched.iter().map(Block::log_count).sum();
        progress.count_history(fetched.len() as u64, logs as u64);
        let prepare = move || {
            let one = |mut block: Block| {
                if store_senders {
                    block.recover_senders();
                }
                to_finalized(block)
            };
            fetched.into_iter().map(one).collect::<Vec<_>>()
        };
        all.extend(logmill_io::compute(prepare).await);
    }
    Ok(all)
}

pub(crate) fn kind(chain_id: u64) -> String {
    format!("{CELL_JOB}-{chain_id}")
}

/// Missing ranges below the tail, one per cell, lowest first.
pub(crate) fn missing_cells(index: &LogIndex, floor: u64) -> Vec<Range<u64>> {
    let Some(end) = index.health().tail_start else {
        return Vec::new();
    };
    let wanted = std::iter::once(floor..end.max(floor)).collect();
    ranges::missing(&wanted, &stored(index), index.settings().cell_blocks).collect()
}

/// The parts of a range that neither a chunk nor the tail holds.
fn gaps(index: &LogIndex, range: &Range<u64>) -> Vec<Range<u64>> {
    stored(index).gaps(range)
}

/// The blocks that need not be fetched: those of chunks, and all from the start of the tail on.
fn stored(index: &LogIndex) -> IntervalSet {
    let chunks = index.chunks();
    let tail = index.health().tail_start.map(|start| start..u64::MAX);
    chunks.iter().map(|entry| entry.blocks.clone()).chain(tail).collect()
}

#[async_trait]
impl RangeDriver for Backward {
    type Error = Error;

    async fn claim(&self) -> Result<Step> {
        // One plan enqueues as many cells as the workers can do until the next one.
        self.plan().await.map(|_| Step::Busy)
    }

    async fn wait(&self, _: Step) {
        // There is no history before the first block is final.
        let begun = self.chain.index().health().tail_start.is_some();
        self.clock.sleep(if begun { PLAN_EVERY } else { FIRST_PLAN_WAIT }).await;
    }

    fn retry(&self, error: Error) -> Result<Backoff> {
        if error.is_fatal() {
            return Err(error);
        }
        let (chain, text) = (self.chain.chain_id(), logmill_io::error_chain(&error));
        tracing::warn!(chain, error = text, "cannot plan history jobs, retrying");
        self.progress.set_last_error(text);
        Ok(Backoff::Constant { wait: self.settings.error_wait })
    }
}

/// Runs the jobs of a [`Backward`].
#[derive(Debug)]
pub struct CellHandler(pub Arc<Backward>);

#[async_trait]
impl Handler for CellHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let cell: CellPayload = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        if cell.start >= cell.end {
            return Err(Failure::for_good("the job's cell is empty"));
        }
        match self.0.fill(cell.start..cell.end).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                let text = logmill_io::error_chain(&error);
                self.0.progress.set_last_error(format!(
                    "blocks {} to {}: {text}",
                    cell.start,
                    cell.end - 1
                ));
                Err(Failure::again(text))
            }
        }
    }
}
