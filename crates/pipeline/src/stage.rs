//! Sets the tip directly, for tests and simulations that run no ingester.
//!
//! Guarantees: as in the ingester's own commits, blocks are stored first and announced after. Leaves to others: whether
//! the blocks link.

use std::sync::Arc;

use logmill_chain::{Block, BlockRef};
use logmill_io::Fence;

use crate::chain::{Chain, Change};
use crate::error::Result;

impl Chain {
    /// Replaces the tip with these blocks, lowest first, and notifies listeners of the change. Blocks that left the tip
    /// because they are final now are not announced.
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
        self.shared.announce_change(change);
        Ok(())
    }
}
