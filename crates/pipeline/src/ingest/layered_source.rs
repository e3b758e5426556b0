//! `LayeredSource`: a stack of sources; each range is fetched from the first source that has it.
//!
//! History files come before nodes because reading them costs nothing. Heads and lookups by hash go to the last layer.
//!
//! Guarantees: those of each source; blocks of two sources are only joined if they link. Leaves to others: which
//! sources there are.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use logmill_chain::{Block, BlockSource, ChainInfo, ChainSource, Error, Heads, NodeStatus, Result};

/// A source, and the only ranges that it has.
pub(crate) type Layer = (Vec<Range<u64>>, Arc<dyn BlockSource>);

/// Sources, cheapest first. The last one follows the chain.
#[derive(Debug)]
pub struct LayeredSource {
    below: Vec<Layer>,
    last: Arc<dyn ChainSource>,
}

impl LayeredSource {
    pub fn new(below: Vec<Layer>, last: Arc<dyn ChainSource>) -> Self {
        Self { below, last }
    }

    /// The source for blocks from `start` on, and the end of the range that it has.
    fn layer_of(&self, start: u64) -> (&dyn BlockSource, u64) {
        let mut until = u64::MAX;
        for (ranges, source) in &self.below {
            if let Some(range) = ranges.iter().find(|range| range.contains(&start)) {
                return (&**source, range.end.min(until));
            }
            let next = ranges.iter().map(|range| range.start).filter(|next| *next > start).min();
            until = until.min(next.unwrap_or(u64::MAX));
        }
        (&*self.last, until)
    }
}

#[async_trait]
impl BlockSource for LayeredSource {
    async fn info(&self) -> Result<ChainInfo> {
        self.last.info().await
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut next = range.start;
        while next < range.end {
            let (source, until) = self.layer_of(next);
            let end = until.min(range.end);
            let more = match source.blocks(next..end).await {
                // Returns the blocks fetched so far; the caller asks again for the rest.
                Err(_) if !blocks.is_empty() => return Ok(blocks),
                more => more?,
            };
            if let (Some(before), Some(first)) = (blocks.last(), more.first())
                && before.at.hash != first.at.parent_hash
            {
                return Err(Error::Unlinked {
                    number: first.at.number,
                    parent: first.at.parent_hash,
                    before: before.at.hash,
                });
            }
            let count = u64::try_from(more.len()).unwrap_or(u64::MAX);
            blocks.extend(more);
            if count < end - next {
                return Ok(blocks);
            }
            next = end;
        }
        Ok(blocks)
    }

    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        self.last.block_by_hash(hash).await
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        let below = self.below.iter().flat_map(|(_, source)| source.nodes());
        below.chain(self.last.nodes()).collect()
    }
}

#[async_trait]
impl ChainSource for LayeredSource {
    async fn heads(&self) -> Result<Heads> {
        self.last.heads().await
    }

    async fn changed(&self, at_most: Duration) {
        self.last.changed(at_most).await;
    }
}
