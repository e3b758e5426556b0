//! `Layered`: sources on top of each other: the first that has a range is asked.
//!
//! History files come before nodes: they cost nothing. Heads, lookups by hash and all else are the last layer's.
//!
//! Guarantees: those of each source; a range is never put together from sources that do not link. Leaves to others:
//! which sources there are.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use logmill_chain::{Block, ChainInfo, ChainSource, Error, Heads, NodeStatus, Result};

/// A source that has only these ranges.
pub type Layer = (Vec<Range<u64>>, Arc<dyn ChainSource>);

/// Sources, the cheapest first. The last is the one that follows the chain.
#[derive(Debug)]
pub struct Layered {
    below: Vec<Layer>,
    last: Arc<dyn ChainSource>,
}

impl Layered {
    /// Sources that have only these ranges, above one that has all.
    pub fn new(below: Vec<Layer>, last: Arc<dyn ChainSource>) -> Self {
        Self { below, last }
    }

    /// The source for blocks from `start` on, and up to where it has them.
    fn layer_of(&self, start: u64) -> (&Arc<dyn ChainSource>, u64) {
        let mut until = u64::MAX;
        for (ranges, source) in &self.below {
            if let Some(range) = ranges.iter().find(|range| range.contains(&start)) {
                return (source, range.end.min(until));
            }
            let next = ranges.iter().map(|range| range.start).filter(|next| *next > start).min();
            until = until.min(next.unwrap_or(u64::MAX));
        }
        (&self.last, until)
    }
}

#[async_trait]
impl ChainSource for Layered {
    async fn info(&self) -> Result<ChainInfo> {
        self.last.info().await
    }

    async fn heads(&self) -> Result<Heads> {
        self.last.heads().await
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut next = range.start;
        while next < range.end {
            let (source, until) = self.layer_of(next);
            let end = until.min(range.end);
            let more = match source.blocks(next..end).await {
                // What there is so far is given; the rest is asked for again.
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

    async fn changed(&self, at_most: Duration) {
        self.last.changed(at_most).await;
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        let below = self.below.iter().flat_map(|(_, source)| source.nodes());
        below.chain(self.last.nodes()).collect()
    }

    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        self.last.pass(method, params).await
    }
}
