//! A tip that is set from outside: what tests and simulations have instead of an ingester.
//!
//! Guarantees: as of the ingester's own commits: stored first, then told. Leaves to others: whether the blocks link.

use std::sync::Arc;

use logmill_chain::{Block, BlockRef};
use logmill_io::Fence;

use crate::chain::{Chain, Change};
use crate::error::Result;

impl Chain {
    /// Makes these blocks the tip, lowest first, and tells listeners what changed. Blocks that left the tip because
    /// they are final by now are not told of.
    pub async fn stage(
        &self,
        blocks: Vec<Arc<Block>>,
        safe: Option<BlockRef>,
        fence: Fence,
    ) -> Result<()> {
        let replaced = self.shared.tip.replace(blocks, safe, fence).await?;
        let finalized = self.shared.index.indexed_finalized_head()?;
        let is_final = |block: &Arc<Block>| finalized.is_some_and(|to| block.at.number <= to);
        let removed = replaced.gone.into_iter().rev().filter(|block| !is_final(block));
        let change = Change { removed: removed.collect(), added: replaced.added };
        self.shared.tell(change);
        Ok(())
    }
}
