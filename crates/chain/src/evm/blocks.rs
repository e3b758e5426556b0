//! Fetches blocks from the nodes of a chain as one source.
//!
//! Guarantees: all calls for one block go to one node; if a node cannot return a block, or returns a false one, the
//! others are asked. Leaves to others: which blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use alloy_primitives::B256;
use futures::{StreamExt, stream};

use super::fetch::{BlockQuery, fetch};
use super::node::Node;
use super::node_error::NodeError;
use super::pool::Pool;
use super::pool_request::PoolRequest;
use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use crate::mismatch::Mismatch;

/// Blocks up to the first error.
struct FetchedRange {
    blocks: Vec<Block>,
    error: Option<Error>,
}

impl Pool {
    /// The blocks of a range, from several nodes at once.
    pub(super) async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        let parts = stream::iter(self.split(range.clone()))
            .map(|part| async move { (part.clone(), self.part(part, None).await) })
            .buffered(self.settings.concurrent_max.max(1));
        let mut parts = std::pin::pin!(parts);
        let mut blocks: Vec<Block> = Vec::new();
        while let Some((range, mut part)) = parts.next().await {
            let before = blocks.last().map(|block| block.at.hash);
            if let (Some(before), Some(first)) = (before, part.blocks.first())
                && first.at.parent_hash != before
            {
                // The nodes disagree: finds one that continues from the blocks so far.
                part = self.part(range, Some(before)).await;
            }
            blocks.extend(part.blocks);
            if let Some(error) = part.error {
                return if blocks.is_empty() { Err(error) } else { Ok(blocks) };
            }
        }
        Ok(blocks)
    }

    /// Splits a range into parts that one request can probably return.
    fn split(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let nodes = self.nodes.iter().zip(self.rests());
        let awake = nodes.filter(|(_, rest)| rest.is_none());
        let size = awake.map(|(node, _)| node.blocks_at_once()).max().unwrap_or(1);
        let mut from = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min(from.saturating_add(size));
            let part = from..end;
            from = end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// The blocks of a range, each request to one node; the first block's parent is `after`.
    async fn part(&self, range: Range<u64>, mut after: Option<B256>) -> FetchedRange {
        let mut blocks: Vec<Block> = Vec::new();
        let mut from = range.start;
        let mut request = self.start_request(format!("block {from}"), Some(from));
        while from < range.end {
            let Ok((index, node)) = self.next(&mut request).await else {
                if self.lower_for(&request) {
                    request = self.start_request(format!("block {from}"), Some(from));
                    continue;
                }
                return FetchedRange { blocks, error: Some(request.into_error(&self.nodes)) };
            };
            let asked = node.blocks_at_once().min(range.end - from);
            let last_resort = asked == 1;
            let query = BlockQuery::Numbers(from..from + asked);
            let mut fetched = fetch(&node, &query, self.read_options().await).await;
            if let (Some(first), Some(before)) = (fetched.blocks.first(), after)
                && first.at.parent_hash != before
            {
                request.record(index, self.stray(&node, first.at, before), last_resort);
                continue;
            }
            self.resize(&node, asked, fetched.error.as_ref());
            if fetched.blocks.is_empty() {
                let unknown = NodeError::failed("it returned no block");
                let error = fetched.error.unwrap_or(unknown);
                self.record_error(&mut request, index, error, last_resort);
                continue;
            }
            self.passed(&fetched.blocks);
            after = fetched.blocks.last().map(|block| block.at.hash);
            from += u64::try_from(fetched.blocks.len()).unwrap_or(u64::MAX);
            blocks.append(&mut fetched.blocks);
            request = self.start_request(format!("block {from}"), Some(from));
        }
        FetchedRange { blocks, error: None }
    }

    pub(super) async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        let mut request = self.start_request(format!("block {hash}"), None);
        loop {
            let (index, node) = match self.next(&mut request).await {
                Ok(next) => next,
                Err(()) if request.is_missing() => return Ok(None),
                Err(()) if self.lower_for(&request) => {
                    request = self.start_request(format!("block {hash}"), None);
                    continue;
                }
                Err(()) => return Err(request.into_error(&self.nodes)),
            };
            let mut fetched =
                fetch(&node, &BlockQuery::Hash(hash), self.read_options().await).await;
            self.passed(&fetched.blocks);
            if let Some(block) = fetched.blocks.pop() {
                return Ok(Some(block));
            }
            self.resize(&node, 1, fetched.error.as_ref());
            let error = fetched.error.unwrap_or(NodeError::Missing);
            self.record_error(&mut request, index, error, true);
        }
    }

    /// Records a node's error for a request for blocks.
    fn record_error(
        &self,
        request: &mut PoolRequest,
        index: usize,
        error: NodeError,
        last_resort: bool,
    ) {
        let head = self.nodes.get(index).and_then(|node| Some(node.head()?.0));
        let now = self.clock.monotonic();
        match (error, request.number) {
            (NodeError::Late { number, why }, _) => request.was_late(index, now, number, why, head),
            (NodeError::Missing, Some(number)) if head.is_some_and(|head| head >= number) => {
                request.was_missing(index, now, number, head);
            }
            (error, _) => request.record(index, self.advise(error), last_resort),
        }
    }

    /// Adapts the number of blocks per request.
    fn resize(&self, node: &Node, asked: u64, error: Option<&NodeError>) {
        match error {
            Some(NodeError::TooMuch { .. } | NodeError::Slow { .. }) => {
                node.blocks_were_too_many(asked);
            }
            Some(_) => {}
            None => node.blocks_went_well(asked),
        }
    }

    /// A node is on a different branch than the blocks so far. Below the final block that makes its block false.
    fn stray(&self, node: &Node, at: BlockRef, before: B256) -> NodeError {
        let BlockRef { number, hash, parent_hash: parent, .. } = at;
        let chain = &self.settings.chain;
        tracing::warn!(%chain, node = %node.name, block = number, %parent, %before, "a node is on another branch");
        if number <= self.finalized.load(Ordering::Relaxed) {
            let what = format!("it has the parent {parent}, but the block before it is {before}");
            return node.note(NodeError::Lie {
                number,
                hash,
                mismatch: Mismatch::Malformed { what },
            });
        }
        node.note(NodeError::Unlinked { number, parent, before })
    }
}
