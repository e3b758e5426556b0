//! Which chunks are published, which of them are covered, and which changes are valid. Pure.
//!
//! A chunk's own hashes prove that it is consistent, not that it is canonical. So an entry is covered only if it is
//! anchored: it was sealed from the tail, holds a configured anchor, or is linked to such an entry or to the tail by
//! parent hashes through its neighbours. Where an anchored entry meets a neighbour that contradicts it, the neighbour
//! is dropped.
//!
//! Guarantees: no two entries overlap; [`ChunkList::plan_add`] returns a change that preserves this, or an error.
//! Leaves to others: storing changes ([`crate::publish`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::B256;

use crate::error::{Error, Result};
use crate::records::chunks::{Change, ChunkEntry};
use crate::records::replacement::ReplacementPosition;
use crate::records::tail_state::TailState;
use crate::types::BlockRange;

/// Everything that is published, as of one change.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkList {
    /// Number of the last change.
    pub(crate) seq: u64,
    /// Lowest block that is kept.
    pub(crate) floor: u64,
    /// End of the log of replacements.
    pub(crate) replacements: ReplacementPosition,
    entries: BTreeMap<u64, Arc<ChunkEntry>>,
}

/// How to publish an entry.
#[derive(Debug)]
pub(crate) enum PublishPlan {
    /// An identical entry is already published.
    Published(Arc<ChunkEntry>),
    /// Commit this change.
    Change(Change),
}

impl ChunkList {
    pub(crate) fn empty(replacements: ReplacementPosition) -> Self {
        Self { replacements, ..Self::default() }
    }

    /// In the order of their blocks.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<ChunkEntry>> {
        self.entries.values()
    }

    pub(crate) fn containing(&self, block: u64) -> Option<&Arc<ChunkEntry>> {
        let (_, entry) = self.entries.range(..=block).next_back()?;
        entry.blocks.contains(&block).then_some(entry)
    }

    pub(crate) fn by_token(&self, token: u64) -> Option<&Arc<ChunkEntry>> {
        self.iter().find(|entry| entry.token == token)
    }

    /// The entries that hold blocks of the range.
    pub(crate) fn overlapping(
        &self,
        blocks: &BlockRange,
    ) -> impl Iterator<Item = &Arc<ChunkEntry>> {
        let before = self.entries.range(..blocks.start).next_back();
        let first = before.filter(|(_, entry)| entry.blocks.end > blocks.start);
        let start = first.map_or(blocks.start, |(start, _)| *start);
        self.entries.range(start..blocks.end.max(start)).map(|(_, entry)| entry)
    }

    /// Applies a change; one that does not fit the list is corrupt.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<()> {
        for token in &change.remove {
            let start = self.by_token(*token).map(|entry| entry.blocks.start);
            let start = start.ok_or_else(|| {
                Error::corrupt(format!("a change removes {token:016x}, which is not listed"))
            })?;
            self.entries.remove(&start);
        }
        for entry in &change.add {
            if self.overlapping(&entry.blocks).next().is_some() {
                return Err(Error::corrupt(format!("a change adds {:016x} twice", entry.token)));
            }
            self.entries.insert(entry.blocks.start, Arc::clone(entry));
        }
        self.floor = self.floor.max(change.floor);
        self.seq += 1;
        Ok(())
    }

    /// The whole list, as one change to an empty list.
    pub(crate) fn checkpoint(&self) -> Change {
        Change { add: self.iter().cloned().collect(), remove: Vec::new(), floor: self.floor }
    }

    /// Rebuilds the list from a checkpoint.
    pub(crate) fn from_checkpoint(checkpoint: &Change, seq: u64) -> Result<Self> {
        let mut list = Self::default();
        list.apply(checkpoint)?;
        list.seq = seq;
        Ok(list)
    }

    /// Plans the change that publishes `entry` in place of the entries with the tokens `replaced`.
    pub(crate) fn plan_add(
        &self,
        entry: &Arc<ChunkEntry>,
        replaced: &[u64],
        tail: Option<&TailState>,
    ) -> Result<PublishPlan> {
        let refused =
            |what: String| Err(Error::Unpublishable { blocks: entry.blocks.clone(), what });
        if let Some(published) = self.entries.get(&entry.blocks.start)
            && published.blocks == entry.blocks
            && published.blake3 == entry.blake3
        {
            return Ok(PublishPlan::Published(Arc::clone(published)));
        }
        if entry.blocks.start < self.floor {
            return refused(format!("blocks below {} were pruned", self.floor));
        }
        let replaced_there = replaced.iter().all(|token| self.by_token(*token).is_some());
        if !replaced_there {
            return refused("a piece that it was merged from is gone".to_owned());
        }
        let overlapped = self.overlapping(&entry.blocks).find(|e| !replaced.contains(&e.token));
        if let Some(other) = overlapped {
            let (start, end) = (other.blocks.start, other.blocks.end - 1);
            return refused(format!("blocks {start} to {end} are already published"));
        }
        if let Some(tail) = tail
            && entry.blocks.end > tail.start
        {
            return refused(format!("blocks from {} on are in the tail", tail.start));
        }
        let mut change =
            Change { add: vec![Arc::clone(entry)], remove: replaced.to_vec(), floor: self.floor };
        let mut after = self.clone();
        after.apply(&change)?;
        let dropped = after.settle(tail)?;
        if dropped.contains(&entry.token) {
            return refused("it contradicts an anchored neighbour".to_owned());
        }
        change.remove.extend(dropped);
        Ok(PublishPlan::Change(change))
    }

    /// Plans the change that removes entries or raises the floor; none if there is nothing to do.
    pub(crate) fn plan_remove(&self, tokens: &[u64], floor: u64) -> Option<Change> {
        let there = tokens.iter().copied().filter(|token| self.by_token(*token).is_some());
        let remove: Vec<u64> = there.collect();
        let changes = !remove.is_empty() || floor > self.floor;
        changes.then(|| Change { add: Vec::new(), remove, floor: floor.max(self.floor) })
    }

    /// Drops entries that contradict an anchored neighbour until none does; returns the tokens of the dropped ones.
    fn settle(&mut self, tail: Option<&TailState>) -> Result<Vec<u64>> {
        let mut dropped = Vec::new();
        while let Some(token) = self.contradiction(tail)? {
            dropped.push(token);
            self.entries.retain(|_, entry| entry.token != token);
        }
        Ok(dropped)
    }

    /// Finds an entry that an anchored neighbour contradicts.
    fn contradiction(&self, tail: Option<&TailState>) -> Result<Option<u64>> {
        let runs = self.runs(tail);
        for pair in runs.windows(2) {
            let (low, high) = (&pair[0], &pair[1]);
            if low.blocks.end != high.blocks.start {
                continue;
            }
            match (low.anchored, high.anchored) {
                (true, true) => {
                    return Err(Error::FinalityViolation {
                        what: format!(
                            "anchored chunks contradict each other at {}",
                            low.blocks.end
                        ),
                    });
                }
                (true, false) => return Ok(self.at(high.blocks.start)),
                (false, true) => return Ok(self.ending_at(low.blocks.end)),
                (false, false) => {}
            }
        }
        let Some((tail, last)) = tail.zip(runs.last()) else {
            return Ok(None);
        };
        if last.blocks.end == tail.start && last.last_hash != tail.start_parent {
            if last.anchored {
                return Err(Error::FinalityViolation {
                    what: format!("the tail contradicts anchored chunks at {}", tail.start),
                });
            }
            return Ok(self.ending_at(last.blocks.end));
        }
        Ok(None)
    }

    fn at(&self, start: u64) -> Option<u64> {
        self.entries.get(&start).map(|entry| entry.token)
    }

    fn ending_at(&self, end: u64) -> Option<u64> {
        let before = self.entries.range(..end).next_back();
        before.map(|(_, entry)| entry.token)
    }

    /// Runs of entries linked by parent hashes, lowest first.
    fn runs(&self, tail: Option<&TailState>) -> Vec<LinkedRun> {
        let mut runs: Vec<LinkedRun> = Vec::new();
        for entry in self.iter() {
            let linked = runs.last_mut().filter(|run| {
                run.blocks.end == entry.blocks.start && run.last_hash == entry.parent_hash
            });
            match linked {
                Some(run) => {
                    run.blocks.end = entry.blocks.end;
                    run.last_hash = entry.last_hash;
                    run.anchored |= entry.anchored;
                }
                None => runs.push(LinkedRun {
                    blocks: entry.blocks.clone(),
                    last_hash: entry.last_hash,
                    anchored: entry.anchored,
                }),
            }
        }
        if let (Some(tail), Some(last)) = (tail, runs.last_mut())
            && last.blocks.end == tail.start
            && last.last_hash == tail.start_parent
        {
            last.anchored = true;
        }
        runs
    }

    /// Blocks that readers may rely on: anchored chunks and the tail, in ascending order.
    pub(crate) fn coverage(&self, tail: Option<&TailState>) -> Vec<BlockRange> {
        let runs = self.runs(tail).into_iter().filter(|run| run.anchored);
        let mut covered: Vec<BlockRange> = runs.map(|run| run.blocks).collect();
        let Some(tail) = tail.filter(|tail| tail.end > tail.start) else {
            return covered;
        };
        match covered.last_mut().filter(|last| last.end == tail.start) {
            Some(last) => last.end = tail.end,
            None => covered.push(tail.start..tail.end),
        }
        covered
    }

    /// The pieces of each complete chunk.
    pub(crate) fn mergeable(&self) -> Vec<Vec<Arc<ChunkEntry>>> {
        let mut groups = Vec::new();
        let mut group: Vec<Arc<ChunkEntry>> = Vec::new();
        for entry in self.iter() {
            let follows = group.last().is_some_and(|last| {
                last.blocks.end == entry.blocks.start
                    && last.last_hash == entry.parent_hash
                    && last.chunk_start == entry.chunk_start
            });
            if !follows {
                group.clear();
                if entry.chunk_start != entry.blocks.start {
                    continue;
                }
            }
            group.push(Arc::clone(entry));
            if entry.ends_chunk {
                let complete = std::mem::take(&mut group);
                if complete.len() > 1 {
                    groups.push(complete);
                }
            }
        }
        groups
    }
}

#[derive(Debug)]
struct LinkedRun {
    blocks: BlockRange,
    last_hash: B256,
    anchored: bool,
}

#[cfg(test)]
mod tests;
