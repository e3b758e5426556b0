//! Replacements: records that stored final blocks were removed, or their content changed.
//!
//! ```text
//!   blocks removed or replaced, counted in `chunks`, repl/SEQ written   (one commit, fenced)
//! ```
//!
//! Consumers of blocks (derived tables, usage, subscribers) live in other stores, so they cannot change in the same
//! transaction. Each consumer stores the position up to which it has applied the log of replacements, and is complete
//! only while that position equals [`LogIndex::replacement_position`].
//!
//! A position is a number and a mark. The mark of number 0 is random and drawn when the index is created; the mark of
//! a replacement is derived from its record. An index that was created again, or restored from a backup and then
//! changed, uses the same numbers for other replacements. Then a consumer's mark differs from the mark of its number
//! here, or the number does not exist ([`LogIndex::has_position`]), and all data of the consumer counts as replaced.
//!
//! Guarantees: a reader that has followed the store never sees a changed block together with a position before its
//! replacement. Pruning is not a replacement: pruned blocks were right. Leaves to others: how consumers react.

use std::cmp::Ordering;

use alloy_primitives::B256;
use logmill_io::{Batch, Condition, ErrorKind, MetaStoreExt, Version};

use crate::codec::as_u64;
use crate::error::Result;
use crate::index::LogIndex;
use crate::records::chunks::Change;
use crate::records::replacement::{
    OLD_HASHES_MAX, Replacement, ReplacementKind, ReplacementPosition, missing_replacement,
};
use crate::records::{identity, number_of};
use crate::section::BlockRow;
use crate::state::{IndexState, SharedIndex};
use crate::types::BlockRange;

/// Page size of [`LogIndex::replacements_after`].
const REPLACEMENTS_PER_CALL: usize = 64;

/// Blocks that a commit removes or changes.
#[derive(Debug)]
pub(crate) struct ReplacedBlocks {
    pub(crate) blocks: BlockRange,
    pub(crate) kind: ReplacementKind,
    pub(crate) reason: String,
}

impl LogIndex {
    /// The number of the last replacement that this handle has followed; 0 before the first.
    ///
    /// To read blocks safely, read this first, then the blocks, and store both together. The blocks may be newer than
    /// the number, never older.
    pub fn last_replacement(&self) -> u64 {
        self.replacement_position().seq
    }

    /// The end of the log of replacements, as far as this handle has followed; its number is
    /// [`LogIndex::last_replacement`].
    pub fn replacement_position(&self) -> ReplacementPosition {
        self.shared.snapshot().list.replacements
    }

    /// The mark of a position; none if the log, as far as this handle has followed, does not reach it.
    pub async fn replacement_mark(&self, seq: u64) -> Result<Option<u64>> {
        let end = self.replacement_position();
        match seq.cmp(&end.seq) {
            Ordering::Less => Ok(Some(self.shared.position_at(seq).await?.mark)),
            Ordering::Equal => Ok(Some(end.mark)),
            Ordering::Greater => Ok(None),
        }
    }

    /// Whether the log of replacements contains this position. If not, the index was created again or restored since
    /// the position was read. Call [`LogIndex::refresh`] first: the position may be newer than this handle.
    pub async fn has_position(&self, position: ReplacementPosition) -> Result<bool> {
        let mark = self.replacement_mark(position.seq).await?;
        Ok(mark.is_some_and(|mark| position.is_same(ReplacementPosition { mark, ..position })))
    }

    /// Replacements after number `seq`, in order, at most 64, none newer than [`LogIndex::last_replacement`].
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
                return Err(missing_replacement(seq + as_u64(found.len()) + 1));
            }
            found.push(replacement);
        }
        if found.is_empty() {
            return Err(missing_replacement(seq + 1));
        }
        Ok(found)
    }
}

impl SharedIndex {
    /// Commits a change of the list that removes or changes stored blocks, together with `batch` and, if readers
    /// could see those blocks, the record of the replacement.
    pub(crate) async fn commit_replacement(
        &self,
        followed: &mut IndexState,
        change: &Change,
        batch: Batch,
        replaced: Option<ReplacedBlocks>,
    ) -> Result<Vec<Option<Version>>> {
        let Some(ReplacedBlocks { blocks, kind, reason }) = replaced else {
            return self.commit_change(followed, change, batch).await;
        };
        let seq = followed.list.replacements.seq + 1;
        let old_hashes = self.last_hashes(followed, &blocks).await;
        let at = self.stores.meta.now().await?;
        tracing::warn!(
            seq,
            first_block = blocks.start,
            block_num = blocks.end - 1,
            ?kind,
            reason,
            "replacing stored final blocks"
        );
        let record = Replacement { seq, blocks, kind, old_hashes, reason, at };
        let encoded = record.encode();
        let position = ReplacementPosition::after(seq, &encoded);
        let batch = batch.put(self.keys.replacement(seq), encoded, Condition::Absent);
        let count = record.blocks.end - record.blocks.start;
        let committed = self.commit_list(followed, change, batch, position).await?;
        self.metrics.replaced(count);
        Ok(committed)
    }

    /// Draws the random number that identifies this index, unless it has one.
    pub(crate) async fn ensure_identity(&self) -> Result<()> {
        if self.identity().await?.is_some() {
            return Ok(());
        }
        let drawn = identity::encode(self.stores.entropy.next_u64().clamp(1, u64::MAX - 1));
        match self.stores.meta.put(self.keys.identity(), drawn, Condition::Absent).await {
            // Another process was first.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            put => Ok(put.map(|_| ())?),
        }
    }

    /// Hashes of the last blocks of a range, lowest first, down to the first that cannot be read. They only help
    /// consumers, so a failure to read them must not prevent the replacement of damaged blocks.
    async fn last_hashes(&self, followed: &IndexState, blocks: &BlockRange) -> Vec<B256> {
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

    /// The rows of the chunk or tail section that holds block `end - 1`, and the number of its first block.
    async fn rows_below(&self, followed: &IndexState, end: u64) -> Option<(u64, Vec<BlockRow>)> {
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
