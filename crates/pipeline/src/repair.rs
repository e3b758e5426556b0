//! Repair: fetches stored final blocks again and replaces the stored content.
//!
//! ```text
//!   requested ──▶ fetched and verified ──▶ same hash, links to its neighbours ──▶ one commit swaps it
//!        │               │                              │
//!        │               └── no node: retried           └── another chain: refused
//!        └── empty, or above the final head: refused
//! ```
//!
//! A repair is a job, run by the process that writes the index. A block in a chunk is rewritten with its chunk, whose
//! other blocks keep their content; those that cannot be read are fetched too. A block of the tail is rewritten alone.
//!
//! Guarantees: nothing is removed, so a failed repair leaves everything as it was. Finality is kept: a block is only
//! replaced by one with the same hash. Changed content is recorded ([`finalized_log_index::Replacement`]), and
//! everything derived from it follows. Leaves to others: another chain under the same id (`index resolve
//! rebuild-from`).

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use finalized_log_index::{
    ChunkEntry, Error as IndexError, FinalizedBlock, Origin, RewriteOutcome, RewrittenBlock,
    TAIL_REWRITE_BLOCKS_MAX, Writer,
};
use futures::{StreamExt, stream};
use logmill_chain::{Block, Sender, VerifyLevel, stored};
use logmill_io::{ErrorKind, Fence};
use logmill_work::{Failure, Handler, IntervalSet, NewJob, Outcome, RunningJob};
use serde::{Deserialize, Serialize};

use crate::block::{stored_block, to_finalized};
use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::ingest::Backward;

const REPAIR_JOB: &str = "repair";
/// Blocks of a chunk that are read or fetched together.
const PIECE_BLOCKS: u64 = 32;

#[derive(Debug, Serialize, Deserialize)]
struct RepairPayload {
    start: u64,
    end: u64,
}

pub fn kind(chain_id: u64) -> String {
    format!("{REPAIR_JOB}-{chain_id}")
}

/// The jobs of a repair, one for each chunk that it touches and one for the tail, so that a failure in one does not
/// repeat the others; `mark` makes their keys unique.
pub fn jobs(chain: &Chain, range: Range<u64>, mark: &str) -> Result<Vec<NewJob>> {
    let mut jobs = Vec::new();
    let mut next = range.start;
    for entry in chain.index().chunks().iter() {
        let end = entry.blocks.end.min(range.end);
        if end > next && entry.blocks.start < range.end {
            jobs.push(job(chain.chain_id(), next..end, mark)?);
            next = end;
        }
    }
    if next < range.end || jobs.is_empty() {
        jobs.push(job(chain.chain_id(), next..range.end, mark)?);
    }
    Ok(jobs)
}

fn job(chain_id: u64, range: Range<u64>, mark: &str) -> Result<NewJob> {
    if range.is_empty() {
        return Err(Error::Invalid { what: format!("the range {range:?} is empty") });
    }
    let payload = serde_json::to_string(&RepairPayload { start: range.start, end: range.end });
    let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
    let key = format!("{}-{}-{mark}", range.start, range.end - 1);
    Ok(NewJob::new(kind(chain_id), key, payload))
}

/// Refuses a range that is empty, or contains blocks that are not final and covered.
pub fn check_range(chain: &Chain, range: &Range<u64>) -> Result<()> {
    let invalid = |what: String| Err(Error::Invalid { what });
    if range.is_empty() {
        return invalid(format!("the range {range:?} is empty"));
    }
    let Some(head) = chain.index().indexed_finalized_head()? else {
        return invalid("no final block is stored yet: there is nothing to repair".to_owned());
    };
    let last = range.end - 1;
    if last > head {
        return invalid(format!(
            "block {last} is above the newest final block that is stored, {head}: only final blocks are repaired"
        ));
    }
    let stored: IntervalSet = chain.index().coverage().into_iter().collect();
    let Some(gap) = stored.gaps(range).into_iter().next() else { return Ok(()) };
    let (first, floor) = (gap.start, chain.index().pruned_below());
    if first < floor {
        return invalid(format!("block {first} was pruned: blocks below {floor} are not kept"));
    }
    invalid(format!(
        "block {first} is not stored, so there is nothing to repair: missing history is fetched automatically"
    ))
}

/// The origin of a repair, which decides what it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mandate {
    /// The content of blocks may change.
    Operator,
    /// Logs must be the published ones, and the block must reach the recorded verification level.
    Auditor,
    /// Fetches only blocks that were stored without node fields; logs and verification as for the auditor.
    Refetch,
}

impl Mandate {
    fn keeps_logs(self) -> bool {
        self != Self::Operator
    }
}

/// Runs the repair jobs of one chain, in the process that writes its index.
#[derive(Clone, Debug)]
pub struct RepairHandler {
    writer: Arc<Writer>,
    backward: Arc<Backward>,
}

impl RepairHandler {
    pub fn new(writer: Arc<Writer>, backward: Arc<Backward>) -> Self {
        Self { writer, backward }
    }

    /// The fence of the writer.
    pub(crate) fn fence(&self) -> Fence {
        self.writer.fence()
    }

    /// Fetches the blocks of a range again and replaces the stored ones.
    pub async fn repair(&self, range: Range<u64>) -> Result<()> {
        let chain = self.backward.chain();
        check_range(chain, &range)?;
        let served = self.backward.chain_id_of_source().await?;
        if served != chain.chain_id() {
            let ours = chain.chain_id();
            let what = format!(
                "the node serves chain {served}, but the stored blocks are of chain {ours}"
            );
            return Err(Error::Invalid { what });
        }
        self.rewrite(range, Mandate::Operator, "an operator had blocks repaired").await
    }

    /// Writes a damaged block again if the fetched block has the stored hash, the published logs and at least the
    /// verification level recorded with the stored one; else nothing changes.
    pub async fn refill(&self, number: u64) -> Result<()> {
        let reason = "the auditor refilled a damaged block";
        self.rewrite(number..number + 1, Mandate::Auditor, reason).await
    }

    /// Fetches those blocks of a range again that were stored without node fields. Each must have the stored hash, the
    /// published logs and at least the recorded verification level. A chunk without such blocks is left alone, so that
    /// after an error only the rest is repeated.
    pub(crate) async fn refetch_uncompared(&self, range: Range<u64>) -> Result<()> {
        let reason = "blocks were fetched again with their node fields";
        self.rewrite(range, Mandate::Refetch, reason).await
    }

    /// Whether this mandate fetches a block.
    async fn wants(&self, number: u64, mandate: Mandate) -> bool {
        if mandate != Mandate::Refetch {
            return true;
        }
        // Unreadable blocks are left to the auditor.
        let body = self.writer.index().body(number).await;
        matches!(body, Ok(Some(body)) if !stored::is_compared(&body))
    }

    /// The first run of consecutive blocks in a range that this mandate fetches.
    async fn first_wanted(&self, range: Range<u64>, mandate: Mandate) -> Range<u64> {
        if mandate != Mandate::Refetch {
            return range;
        }
        let mut start = range.start;
        while start < range.end && !self.wants(start, mandate).await {
            start += 1;
        }
        let mut end = start;
        while end < range.end && self.wants(end, mandate).await {
            end += 1;
        }
        start..end
    }

    /// Degrades the index, which stops writes until an operator decides about the damaged block.
    pub(crate) async fn report_damage(&self, number: u64, what: &str) -> Result<()> {
        let blocks = number..number.saturating_add(1);
        Ok(self.writer.report_damage(blocks, format!("block {number}: {what}")).await?)
    }

    async fn rewrite(&self, range: Range<u64>, mandate: Mandate, reason: &str) -> Result<()> {
        let index = self.writer.index();
        let mut next = range.start;
        while next < range.end {
            let chunks = index.chunks();
            let chunk = chunks.iter().find(|entry| entry.blocks.end > next);
            let requested = next..range.end;
            let done = match chunk.filter(|entry| entry.blocks.start < range.end) {
                Some(entry) => {
                    let within = entry.blocks.start.max(requested.start)
                        ..entry.blocks.end.min(requested.end);
                    if !self.first_wanted(within, mandate).await.is_empty() {
                        self.rewrite_chunk(entry, &requested, mandate, reason).await?;
                    }
                    entry.blocks.end
                }
                None => self.rewrite_tail(&requested, mandate, reason).await?,
            };
            next = done.max(next + 1);
        }
        self.backward.chain().announce_replacements().await
    }

    async fn rewrite_chunk(
        &self,
        entry: &ChunkEntry,
        requested: &Range<u64>,
        mandate: Mandate,
        reason: &str,
    ) -> Result<()> {
        let failure = Mutex::new(None);
        let pieces = pieces(&entry.blocks).into_iter().map(|piece| async {
            self.rewritten_blocks(piece, requested, mandate).await.unwrap_or_else(|error| {
                let what = logmill_io::error_chain(&error);
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                vec![Err(IndexError::Invalid { what })]
            })
        });
        let blocks = stream::iter(pieces).buffered(1).flat_map(stream::iter);
        let only_same_logs = mandate.keeps_logs();
        let written = self.writer.rewrite_chunk(entry.token, blocks, reason, only_same_logs).await;
        let cause = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = cause {
            return Err(cause);
        }
        log_outcome(&entry.blocks, written?);
        Ok(())
    }

    /// The blocks of a piece of a chunk: fetched where they are requested or cannot be read, else as stored.
    async fn rewritten_blocks(
        &self,
        piece: Range<u64>,
        requested: &Range<u64>,
        mandate: Mandate,
    ) -> Result<Vec<finalized_log_index::Result<RewrittenBlock>>> {
        let index = self.writer.index();
        let mut blocks = Vec::new();
        let mut next = piece.start;
        while next < piece.end {
            let is_requested = requested.contains(&next) && self.wants(next, mandate).await;
            match stored_block(index, next).await {
                Ok(block) if !is_requested => {
                    blocks.push(Ok(RewrittenBlock { block, origin: Origin::Stored }));
                    next += 1;
                    continue;
                }
                Err(error) if !is_requested && error.kind() != ErrorKind::Corrupt => {
                    return Err(error);
                }
                _ => {}
            }
            let end = match is_requested {
                true => self.first_wanted(next..requested.end.min(piece.end), mandate).await.end,
                false => next + 1,
            };
            blocks.extend(self.fetch(next..end, mandate).await?.into_iter().map(Ok));
            next = end;
        }
        Ok(blocks)
    }

    /// Rewrites as many blocks of the tail as one commit takes; returns the block after them.
    async fn rewrite_tail(
        &self,
        requested: &Range<u64>,
        mandate: Mandate,
        reason: &str,
    ) -> Result<u64> {
        let most = u64::try_from(TAIL_REWRITE_BLOCKS_MAX).unwrap_or(u64::MAX);
        let range = requested.start..requested.end.min(requested.start.saturating_add(most));
        let range = self.first_wanted(range, mandate).await;
        if range.is_empty() {
            return Ok(range.end);
        }
        let blocks = self.fetch(range.clone(), mandate).await?;
        if mandate.keeps_logs() {
            for rewritten in &blocks {
                self.check_logs(&rewritten.block).await?;
            }
        }
        log_outcome(&range, self.writer.rewrite_tail(&blocks, reason).await?);
        Ok(range.end)
    }

    /// Refuses a tail block whose logs differ from the stored ones.
    async fn check_logs(&self, block: &FinalizedBlock) -> Result<()> {
        let number = block.number;
        let filter = finalized_log_index::Filter::range(number..=number);
        let stored = self.writer.index().query_finalized(&filter).await?.logs;
        if stored.into_iter().map(|log| log.log).eq(block.logs.iter().cloned()) {
            return Ok(());
        }
        let what = "its logs differ from the stored ones".to_owned();
        Err(IndexError::Foreign { number, what }.into())
    }

    /// Fetches blocks and checks them against the stored ones.
    async fn fetch(&self, range: Range<u64>, mandate: Mandate) -> Result<Vec<RewrittenBlock>> {
        let blocks = self.backward.fetch(range).await?;
        let mut rewritten = Vec::with_capacity(blocks.len());
        for block in blocks {
            let origin = self.check_fetched(&block, mandate).await?;
            let block = logmill_io::compute(move || to_finalized(block)).await;
            rewritten.push(RewrittenBlock { block, origin });
        }
        Ok(rewritten)
    }

    async fn check_fetched(&self, block: &Block, mandate: Mandate) -> Result<Origin> {
        let (chain, number) = (self.backward.chain(), block.at.number);
        // A stored block that cannot be read is not compared; parent hashes are compared in any case.
        if let Ok(Some(stored)) = chain.shared.block_ref(number).await
            && stored.hash != block.at.hash
        {
            let (stored, got) = (stored.hash, block.at.hash);
            let what = format!("it is stored as {stored}, but the node has {got}");
            return Err(IndexError::Foreign { number, what }.into());
        }
        let stored = chain.shared.archived(number).await.ok().flatten();
        let recorded = stored.as_ref().map(|stored| stored.verified);
        let wanted = match mandate {
            Mandate::Operator | Mandate::Refetch => recorded.unwrap_or(VerifyLevel::Off),
            Mandate::Auditor => recorded.unwrap_or(VerifyLevel::Full),
        };
        if block.verified < wanted {
            let got = block.verified;
            return Err(Error::Invalid {
                what: format!(
                    "block {number} is stored as verified with `{wanted}`, but the fetched block is verified only \
                     with `{got}`: set `chain.verify` to \"{wanted}\""
                ),
            });
        }
        if mandate == Mandate::Refetch && !block.node_fields.is_compared() {
            let what = format!("the node fields of block {number}");
            let why = "the source has only the block itself".to_owned();
            return Err(Error::Unanswered { what, why });
        }
        let is_same = stored.is_some_and(|stored| has_same_content(&stored, block));
        Ok(if is_same { Origin::SameBody } else { Origin::Fetched })
    }
}

/// Whether everything that can be derived from two blocks is the same. The verification level does not matter, nor does
/// a sender that was not stored before, because each reader recovered it.
fn has_same_content(stored: &Block, fetched: &Block) -> bool {
    let mut fetched = Block { verified: stored.verified, ..fetched.clone() };
    for (new, old) in fetched.transactions.iter_mut().zip(&stored.transactions) {
        if old.sender == Sender::Unknown {
            new.sender = Sender::Unknown;
        }
    }
    *stored == fetched
}

fn pieces(range: &Range<u64>) -> Vec<Range<u64>> {
    let starts = range.clone().step_by(usize::try_from(PIECE_BLOCKS).unwrap_or(usize::MAX));
    starts.map(|start| start..(start + PIECE_BLOCKS).min(range.end)).collect()
}

fn log_outcome(blocks: &Range<u64>, outcome: RewriteOutcome) {
    let (start, end) = (blocks.start, blocks.end);
    match outcome {
        RewriteOutcome::Same => tracing::info!(start, end, "blocks were written again, unchanged"),
        RewriteOutcome::Changed { seq } => {
            tracing::warn!(start, end, replacement = seq, "blocks were replaced");
        }
    }
}

#[async_trait]
impl Handler for RepairHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let payload: RepairPayload = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        match self.repair(payload.start..payload.end).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if is_refusal(&error) => {
                Err(Failure::for_good(logmill_io::error_chain(&error)))
            }
            Err(error) => Err(Failure::again(logmill_io::error_chain(&error))),
        }
    }
}

/// Whether a retry would fail in the same way.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Invalid { .. } | Error::Index(IndexError::Foreign { .. }))
}
