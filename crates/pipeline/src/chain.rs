//! `Chain`: what is stored of one chain, to be read.
//!
//! Guarantees: a [`View`] never changes; a [`Change`] is sent after what it tells of is stored. Leaves to others:
//! writing ([`crate::tip`] and the ingesters).

use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::B256;
use arc_swap::ArcSwapOption;
use finalized_log_index::LogIndex;
use logmill_chain::{Block, BlockRef};
use tokio::sync::broadcast;

use crate::error::{Error, Result};
use crate::tip::Tip;
use crate::view::View;

/// Changes that a listener may be behind before it loses some, and is told so.
const CHANGES_KEPT: usize = 256;

/// What is stored of one chain. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Chain {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) chain_id: u64,
    pub(crate) index: LogIndex,
    pub(crate) tip: Tip,
    pub(crate) changes: broadcast::Sender<Arc<Change>>,
    /// The indexed head as of the last look: every view asks for it.
    finalized: ArcSwapOption<BlockRef>,
}

/// How the blocks that are not final yet changed.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Blocks that are not part of the chain any more, highest first.
    pub removed: Vec<Arc<Block>>,
    /// Blocks that are new, lowest first.
    pub added: Vec<Arc<Block>>,
}

impl Chain {
    /// What is stored: an index, and the tip beside it.
    pub fn new(chain_id: u64, index: LogIndex, tip: Tip) -> Self {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let finalized = ArcSwapOption::empty();
        Self { shared: Arc::new(Shared { chain_id, index, tip, changes, finalized }) }
    }

    /// Which chain it is, as of EIP-155.
    pub fn chain_id(&self) -> u64 {
        self.shared.chain_id
    }

    /// The log index of its finalized blocks.
    pub fn index(&self) -> &LogIndex {
        &self.shared.index
    }

    /// All of it at this moment.
    pub async fn view(&self) -> Result<View> {
        // The tip first: what leaves it is in the index by then.
        let tip = self.shared.tip.now();
        let finalized = self.shared.finalized().await?;
        Ok(View::new(Arc::clone(&self.shared), tip, finalized))
    }

    /// Looks at what another process has written, and tells listeners of it.
    pub async fn follow(&self) -> Result<()> {
        let before = self.shared.tip.now();
        self.shared.tip.reload().await?;
        self.shared.index.refresh().await?;
        let now = self.shared.tip.now();
        let has = |list: &[Arc<Block>], block: &Arc<Block>| {
            list.iter().any(|other| other.at.hash == block.at.hash)
        };
        let finalized = self.shared.index.indexed_finalized_head()?;
        let final_now = |block: &Arc<Block>| finalized.is_some_and(|to| block.at.number <= to);
        let gone = before.blocks.iter().rev().filter(|b| !has(&now.blocks, b) && !final_now(b));
        let added = now.blocks.iter().filter(|block| !has(&before.blocks, block));
        let change = Change { removed: gone.cloned().collect(), added: added.cloned().collect() };
        if !change.removed.is_empty() || !change.added.is_empty() {
            // Nobody may be listening.
            let _ = self.shared.changes.send(Arc::new(change));
        }
        Ok(())
    }

    /// Changes of the tip from now on.
    pub fn changes(&self) -> broadcast::Receiver<Arc<Change>> {
        self.shared.changes.subscribe()
    }

    /// What is stored, lowest first.
    pub fn covered(&self) -> Vec<Range<u64>> {
        let tip = self.shared.tip.now();
        crate::view::covered(&self.shared.index, &tip)
    }
}

impl Shared {
    /// The highest finalized block.
    async fn finalized(&self) -> Result<Option<BlockRef>> {
        let Some(head) = self.index.indexed_finalized_head()? else {
            return Ok(None);
        };
        if let Some(known) = self.finalized.load_full().filter(|known| known.number == head) {
            return Ok(Some(*known));
        }
        let found = self.block_ref(head).await?;
        let found = found.ok_or_else(|| Error::corrupt(format!("block {head} is not indexed")))?;
        self.finalized.store(Some(Arc::new(found)));
        Ok(Some(found))
    }

    /// A finalized block by its number.
    pub(crate) async fn block_ref(&self, number: u64) -> Result<Option<BlockRef>> {
        Ok(self.index.block_by_number(number).await?.map(|block| block_ref(&block)))
    }

    /// A finalized block by its hash.
    pub(crate) async fn block_ref_by_hash(&self, hash: &B256) -> Result<Option<BlockRef>> {
        Ok(self.index.block_by_hash(hash).await?.map(|block| block_ref(&block)))
    }
}

fn block_ref(block: &finalized_log_index::BlockInfo) -> BlockRef {
    BlockRef {
        number: block.number,
        hash: block.hash,
        parent_hash: block.parent_hash,
        timestamp: block.timestamp,
    }
}
