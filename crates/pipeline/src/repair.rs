//! Repair: stored final blocks are fetched again, and what was fetched takes their place.
//!
//! ```text
//!   asked for ──▶ fetched and verified ──▶ same hash, links to its neighbours ──▶ one commit swaps it
//!        │               │                              │
//!        │               └── no node: tried again       └── another chain: refused
//!        └── empty, or above the final head: refused
//! ```
//!
//! A repair is a job, done by the process that writes the index. A block in a chunk is rewritten with its chunk, whose
//! other blocks keep their content; those that cannot be read are fetched too. A block of the tail is rewritten alone.
//!
//! Guarantees: nothing is removed, so a repair that fails leaves everything as it was; finality is kept, as a block is
//! only replaced by one of the same hash; content that changed is recorded, and all that was computed from it follows
//! ([`finalized_log_index::Replacement`]). Leaves to others: another chain under the same id (`index resolve
//! rebuild-from`).

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use finalized_log_index::{
    ChunkEntry, Error as IndexError, FinalizedBlock, Origin, Rewritten, RewrittenBlock,
    TAIL_REWRITE_BLOCKS_MAX, Writer,
};
use futures::{StreamExt, stream};
use logmill_chain::{Block, Sender, Verify};
use logmill_io::ErrorKind;
use logmill_work::{Failure, Handler, NewJob, Outcome, Running};
use serde::{Deserialize, Serialize};

use crate::block::{finalized, stored_block};
use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::ingest::Backward;

const REPAIR_JOB: &str = "repair";
/// Blocks of a chunk that are read or fetched as one piece of work.
const PIECE_BLOCKS: u64 = 32;

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    start: u64,
    end: u64,
}

/// The kind of the repair jobs of a chain.
pub fn kind(chain_id: u64) -> String {
    format!("{REPAIR_JOB}-{chain_id}")
}

/// The job of a repair; `mark` makes it another than those before.
pub fn job(chain_id: u64, range: Range<u64>, mark: &str) -> Result<NewJob> {
    if range.is_empty() {
        return Err(Error::Invalid { what: format!("the range {range:?} is empty") });
    }
    let payload = serde_json::to_string(&Asked { start: range.start, end: range.end });
    let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
    let key = format!("{}-{}-{mark}", range.start, range.end - 1);
    Ok(NewJob::new(kind(chain_id), key, payload))
}

/// Refuses a range that is empty, or that has no or not only final blocks.
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
    Ok(())
}

/// Who asks for a repair, and so what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mandate {
    /// A person: the content of blocks may change.
    Operator,
    /// The auditor: logs must be those that were published, and what was verified must be verified again.
    Auditor,
}

/// Repairs: the jobs of one chain, where its writer is.
#[derive(Clone, Debug)]
pub struct RepairHandler {
    writer: Arc<Writer>,
    backward: Arc<Backward>,
}

impl RepairHandler {
    /// Repairs what this writer writes.
    pub fn new(writer: Arc<Writer>, backward: Arc<Backward>) -> Self {
        Self { writer, backward }
    }

    /// Fetches the blocks of a range again and puts them in the place of what is stored.
    pub async fn repair(&self, range: Range<u64>) -> Result<()> {
        let chain = self.backward.chain();
        check_range(chain, &range)?;
        let told = self.backward.chain_id_of_source().await?;
        if told != chain.chain_id() {
            let ours = chain.chain_id();
            let what =
                format!("the node serves chain {told}, and blocks of chain {ours} are stored");
            return Err(Error::Invalid { what });
        }
        self.rewrite(range, Mandate::Operator, "an operator had blocks repaired").await
    }

    /// Writes a damaged block again, if the block that is fetched has the stored hash, passes the verification that is
    /// recorded with the stored one, and has the logs that were published; else nothing is changed.
    pub async fn refill(&self, number: u64) -> Result<()> {
        let reason = "the auditor refilled a damaged block";
        self.rewrite(number..number + 1, Mandate::Auditor, reason).await
    }

    /// Stops writes until a person has decided about a damaged block.
    pub(crate) async fn report_damage(&self, number: u64, what: &str) -> Result<()> {
        Ok(self.writer.report_damage(format!("block {number}: {what}")).await?)
    }

    async fn rewrite(&self, range: Range<u64>, mandate: Mandate, reason: &str) -> Result<()> {
        let index = self.writer.index();
        let mut next = range.start;
        while next < range.end {
            let chunks = index.chunks();
            let chunk = chunks.iter().find(|entry| entry.blocks.end > next);
            let asked = next..range.end;
            let done = match chunk.filter(|entry| entry.blocks.start < range.end) {
                Some(entry) => {
                    self.rewrite_chunk(entry, &asked, mandate, reason).await?;
                    entry.blocks.end
                }
                None => self.rewrite_tail(&asked, mandate, reason).await?,
            };
            next = done.max(next + 1);
        }
        self.backward.chain().announce_replacements().await
    }

    async fn rewrite_chunk(
        &self,
        entry: &ChunkEntry,
        asked: &Range<u64>,
        mandate: Mandate,
        reason: &str,
    ) -> Result<()> {
        let failure = Mutex::new(None);
        let pieces = pieces(&entry.blocks).into_iter().map(|piece| async {
            self.rewritten(piece, asked, mandate).await.unwrap_or_else(|error| {
                let what = logmill_io::chain(&error);
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                vec![Err(IndexError::Invalid { what })]
            })
        });
        let blocks = stream::iter(pieces).buffered(1).flat_map(stream::iter);
        let only_same_logs = mandate == Mandate::Auditor;
        let written = self.writer.rewrite_chunk(entry.token, blocks, reason, only_same_logs).await;
        let cause = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = cause {
            return Err(cause);
        }
        log_outcome(&entry.blocks, written?);
        Ok(())
    }

    /// The blocks of a piece of a chunk: as fetched where they were asked for or cannot be read, else as stored.
    async fn rewritten(
        &self,
        piece: Range<u64>,
        asked: &Range<u64>,
        mandate: Mandate,
    ) -> Result<Vec<finalized_log_index::Result<RewrittenBlock>>> {
        let index = self.writer.index();
        let mut blocks = Vec::new();
        let mut next = piece.start;
        while next < piece.end {
            let is_asked = asked.contains(&next);
            match stored_block(index, next).await {
                Ok(block) if !is_asked => {
                    blocks.push(Ok(RewrittenBlock { block, origin: Origin::Stored }));
                    next += 1;
                    continue;
                }
                Err(error) if !is_asked && error.kind() != ErrorKind::Corrupt => return Err(error),
                _ => {}
            }
            let end = if is_asked { asked.end.min(piece.end) } else { next + 1 };
            blocks.extend(self.fetch(next..end, mandate).await?.into_iter().map(Ok));
            next = end;
        }
        Ok(blocks)
    }

    /// Rewrites blocks of the tail, as many as one commit takes; returns the block after them.
    async fn rewrite_tail(
        &self,
        asked: &Range<u64>,
        mandate: Mandate,
        reason: &str,
    ) -> Result<u64> {
        let most = u64::try_from(TAIL_REWRITE_BLOCKS_MAX).unwrap_or(u64::MAX);
        let range = asked.start..asked.end.min(asked.start.saturating_add(most));
        let blocks = self.fetch(range.clone(), mandate).await?;
        if mandate == Mandate::Auditor {
            for rewritten in &blocks {
                self.check_logs(&rewritten.block).await?;
            }
        }
        log_outcome(&range, self.writer.rewrite_tail(&blocks, reason).await?);
        Ok(range.end)
    }

    /// Refuses a block of the tail whose logs are not those that are stored.
    async fn check_logs(&self, block: &FinalizedBlock) -> Result<()> {
        let number = block.number;
        let filter = finalized_log_index::Filter::range(number..=number);
        let stored = self.writer.index().query_finalized(&filter).await?.logs;
        if stored.into_iter().map(|log| log.log).eq(block.logs.iter().cloned()) {
            return Ok(());
        }
        let what = "its logs are not those that are stored".to_owned();
        Err(IndexError::Foreign { number, what }.into())
    }

    /// Fetches blocks, and compares them with what is known of the stored ones.
    async fn fetch(&self, range: Range<u64>, mandate: Mandate) -> Result<Vec<RewrittenBlock>> {
        let blocks = self.backward.fetch(range).await?;
        let mut rewritten = Vec::with_capacity(blocks.len());
        for block in blocks {
            let origin = self.check_fetched(&block, mandate).await?;
            let block = logmill_io::compute(move || finalized(block)).await;
            rewritten.push(RewrittenBlock { block, origin });
        }
        Ok(rewritten)
    }

    async fn check_fetched(&self, block: &Block, mandate: Mandate) -> Result<Origin> {
        let (chain, number) = (self.backward.chain(), block.at.number);
        // What cannot be read cannot be compared; parent hashes are compared in any case.
        if let Ok(Some(stored)) = chain.shared.block_ref(number).await
            && stored.hash != block.at.hash
        {
            let (stored, got) = (stored.hash, block.at.hash);
            let what = format!("it is stored as {stored}, and the node has {got}");
            return Err(IndexError::Foreign { number, what }.into());
        }
        let stored = chain.shared.archived(number).await.ok().flatten();
        let recorded = stored.as_ref().map(|stored| stored.verified);
        let wanted = match mandate {
            Mandate::Operator => recorded.unwrap_or(Verify::Off),
            Mandate::Auditor => recorded.unwrap_or(Verify::Full),
        };
        if block.verified < wanted {
            let got = block.verified;
            return Err(Error::Invalid {
                what: format!(
                    "block {number} is stored as verified {wanted:?}, and what was fetched is verified {got:?} only: \
                     set `verify` to \"full\""
                ),
            });
        }
        let is_same = stored.is_some_and(|stored| has_same_content(&stored, block));
        Ok(if is_same { Origin::SameBody } else { Origin::Fetched })
    }
}

/// Whether all that can be computed from two blocks is the same: what was checked of them makes no difference, nor
/// does a sender that was not stored before, as it was recovered by each reader.
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

fn log_outcome(blocks: &Range<u64>, outcome: Rewritten) {
    let (start, end) = (blocks.start, blocks.end);
    match outcome {
        Rewritten::Same => tracing::info!(start, end, "blocks were written again, unchanged"),
        Rewritten::Changed { seq } => {
            tracing::warn!(start, end, replacement = seq, "blocks were replaced");
        }
    }
}

#[async_trait]
impl Handler for RepairHandler {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let asked: Asked = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload: {error}")))?;
        match self.repair(asked.start..asked.end).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if is_refusal(&error) => Err(Failure::for_good(logmill_io::chain(&error))),
            Err(error) => Err(Failure::again(logmill_io::chain(&error))),
        }
    }
}

/// Whether a repair would fail in the same way again.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Invalid { .. } | Error::Index(IndexError::Foreign { .. }))
}
