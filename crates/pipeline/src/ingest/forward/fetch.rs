//! Fetches the next blocks, and those of a branch.
//!
//! Guarantees: blocks are in order and link to each other; those before the first failure are returned. Leaves to
//! others: what is done with them.

use std::ops::Range;

use alloy_primitives::B256;
use futures::{StreamExt, stream};
use logmill_chain::{Block, Heads};

use super::Forward;
use crate::error::Result;
use crate::ingest::batch_size;

impl Forward {
    /// The next blocks, by several concurrent fetches.
    pub(super) async fn fetch(&self, from: u64, heads: &Heads) -> Result<Vec<Block>> {
        let behind = (heads.latest.number + 1).saturating_sub(from);
        let batch = batch_size(&self.settings, behind);
        let workers = u64::try_from(self.settings.latest_workers.max(1)).unwrap_or(1);
        let starts = (0..workers).map(|worker| from + worker * batch);
        let ranges: Vec<Range<u64>> = starts
            .map(|start| start..(start + batch).min(heads.latest.number + 1))
            .filter(|range| !range.is_empty())
            .collect();
        let wanted: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        let fetches = ranges.into_iter().map(|range| self.source.blocks(range));
        let fetches: Vec<_> =
            stream::iter(fetches).buffered(self.settings.latest_workers.max(1)).collect().await;
        let mut blocks: Vec<Block> = Vec::new();
        for (fetched, wanted) in fetches.into_iter().zip(wanted) {
            let fetched: Vec<Block> = match fetched {
                Ok(fetched) => fetched,
                // Blocks before the first failure are saved; the rest is requested again.
                Err(_) if !blocks.is_empty() => return Ok(blocks),
                Err(error) => return Err(error.into()),
            };
            let links = |last: &Block| {
                fetched.first().is_none_or(|first| first.at.parent_hash == last.at.hash)
            };
            if !blocks.last().is_none_or(links) {
                return Ok(blocks);
            }
            let whole = u64::try_from(fetched.len()).is_ok_and(|count| count == wanted);
            blocks.extend(fetched);
            if !whole {
                return Ok(blocks);
            }
        }
        Ok(blocks)
    }

    /// Blocks of the branch whose last block has this hash, fetched by number; or that block alone, if nodes disagree.
    /// Empty if the branch is gone.
    pub(super) async fn of_branch(
        &self,
        range: Range<u64>,
        last: Option<B256>,
    ) -> Result<Vec<Block>> {
        let fetched = self.source.blocks(range.clone()).await?;
        let whole = fetched.len() as u64 == range.end - range.start;
        let is_last = |block: &Block| last.is_none_or(|last| block.at.hash == last);
        if whole && fetched.last().is_some_and(is_last) {
            return Ok(fetched);
        }
        let Some(last) = last else {
            return Ok(Vec::new());
        };
        let block = self.source.block_by_hash(last).await?;
        Ok(block.filter(|block| block.at.number + 1 == range.end).into_iter().collect())
    }
}
