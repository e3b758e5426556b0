//! Replacements: what is recorded when stored final blocks are removed, or their content changes.
//!
//! ```text
//!   blocks removed or replaced, `chunks` counts it, repl/SEQ written   (one commit, fenced)
//! ```
//!
//! Consumers of blocks (derived tables, usage, subscribers) live in other stores, so they cannot change in the same
//! transaction. Each stores the number of the last replacement that it has applied, and is complete only while that
//! equals [`LogIndex::last_replacement`].
//!
//! Guarantees: no reader sees a changed block under an older number than that of its replacement, once it has followed
//! the store. Pruning is no replacement: pruned blocks were right. Leaves to others: what consumers do about it.

use alloy_primitives::B256;
use logmill_io::{Batch, Condition, Version};

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::index::{Followed, LogIndex, Shared};
use crate::metric;
use crate::records::chunks::Change;
use crate::records::number_of;
use crate::records::replacement::{OLD_HASHES_MAX, Replacement, ReplacementKind};
use crate::section::BlockRow;
use crate::types::BlockRange;

/// The most replacements of one call.
const REPLACEMENTS_PER_CALL: usize = 64;

/// Blocks that a commit removes or replaces.
#[derive(Debug)]
pub(crate) struct ReplacedBlocks {
    pub(crate) blocks: BlockRange,
    pub(crate) kind: ReplacementKind,
    pub(crate) reason: String,
}

impl LogIndex {
    /// The number of the last replacement of stored blocks, as of what this handle has followed; 0 before the first.
    ///
    /// To read blocks safely: read this first, then the blocks, and store both together. Blocks that were read after
    /// it may be newer, never older.
    pub fn last_replacement(&self) -> u64 {
        self.shared.snapshot().list.replacements
    }

    /// Replacements with a higher number than `seq`, in order, at most 64, none newer than
    /// [`LogIndex::last_replacement`].
    pub async fn replacements_after(&self, seq: u64) -> Result<Vec<Replacement>> {
        let (shared, last) = (&self.shared, self.last_replacement());
        if seq >= last {
            return Ok(Vec::new());
        }
        let range = shared.keys.replacements().after(shared.keys.replacement(seq));
        let records = shared.stores.meta.scan(&range, REPLACEMENTS_PER_CALL).await?;
        let mut found = Vec::new();
        for (key, record) in &records {
            let number = number_of(key)?;
            if number > last {
                break;
            }
            let replacement = Replacement::decode(&record.value)?;
            if replacement.seq != number || number != seq + as_u64(found.len()) + 1 {
                return Err(missing(seq + as_u64(found.len()) + 1));
            }
            found.push(replacement);
        }
        if found.is_empty() {
            return Err(missing(seq + 1));
        }
        Ok(found)
    }
}

fn missing(seq: u64) -> Error {
    Error::corrupt(format!("the record of replacement {seq} is missing"))
}

impl Shared {
    /// Commits a change of the list that removes or replaces stored blocks, together with `batch` and, if readers could
    /// see those blocks, the record that tells them.
    pub(crate) async fn commit_replacement(
        &self,
        followed: &mut Followed,
        change: &Change,
        batch: Batch,
        replaced: Option<ReplacedBlocks>,
    ) -> Result<Vec<Option<Version>>> {
        let Some(ReplacedBlocks { blocks, kind, reason }) = replaced else {
            return self.commit_change(followed, change, batch).await;
        };
        let seq = followed.list.replacements + 1;
        let old_hashes = self.last_hashes(followed, &blocks).await;
        let at = self.stores.meta.now().await?;
        tracing::warn!(
            seq,
            first_block = blocks.start,
            block_num = blocks.end - 1,
            ?kind,
            reason,
            "stored final blocks are replaced"
        );
        let record = Replacement { seq, blocks, kind, old_hashes, reason, at };
        let batch = batch.put(self.keys.replacement(seq), record.encode(), Condition::Absent);
        let count = record.blocks.end - record.blocks.start;
        let committed = self.commit_list(followed, change, batch, seq).await?;
        metric::replaced(count);
        Ok(committed)
    }

    /// Hashes of the last blocks of a range, lowest first, down to the first that cannot be read. An aid for consumers,
    /// so failing to read them does not keep anyone from replacing damaged blocks.
    async fn last_hashes(&self, followed: &Followed, blocks: &BlockRange) -> Vec<B256> {
        let mut found: Vec<B256> = Vec::new();
        let mut end = blocks.end;
        while end > blocks.start && found.len() < OLD_HASHES_MAX {
            let Some((start, rows)) = self.rows_below(followed, end).await else {
                break;
            };
            let count = usize::try_from(end - start.max(blocks.start)).unwrap_or(usize::MAX);
            let below = usize::try_from(end - start).unwrap_or(usize::MAX);
            let Some(rows) = rows.get(..below) else {
                break;
            };
            let room = OLD_HASHES_MAX - found.len();
            found.extend(rows.iter().rev().take(count.min(room)).map(|row| row.hash));
            end = start.max(blocks.start);
        }
        found.reverse();
        found
    }

    /// The rows of the chunk, or of the section of the tail, that holds the block below `end`, with its first block.
    async fn rows_below(&self, followed: &Followed, end: u64) -> Option<(u64, Vec<BlockRow>)> {
        let last = end.checked_sub(1)?;
        if let Some(tail) = followed.tail.as_ref().filter(|tail| last >= tail.state.start) {
            let view = tail.view();
            let section = view.iter().find(|section| section.blocks.contains(&last))?;
            return Some((section.blocks.start, section.rows().copied().collect()));
        }
        let entry = followed.list.containing(last)?;
        let directory = self.reader.directory(entry).await.ok()?;
        let rows = self.reader.blocks(entry, &directory).await.ok()?;
        Some((entry.blocks.start, rows.to_vec()))
    }
}
