//! `Chain`: what is stored of one chain, to be read.
//!
//! Guarantees: a [`View`] never changes; a [`Change`] is sent after what it tells of is stored. Leaves to others:
//! writing ([`crate::tip`] and the ingesters).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alloy_primitives::B256;
use arc_swap::ArcSwapOption;
use finalized_log_index::LogIndex;
use logmill_chain::{Block, BlockRef};
use tokio::sync::broadcast;

use crate::error::{Error, Result};
use crate::sighting::Sightings;
use crate::tip::Tip;
use crate::view::View;

/// Changes that a listener may be behind before it loses some, and is told so.
const CHANGES_KEPT: usize = 256;

/// Listeners hear of blocks that were final when they came only if they are this near to the head.
pub(crate) const TOLD_WITHIN: u64 = 64;

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
    changes: broadcast::Sender<Arc<Change>>,
    /// The block after the highest that listeners have heard of.
    unheard: AtomicU64,
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
        let (unheard, finalized) = (AtomicU64::new(0), ArcSwapOption::empty());
        Self { shared: Arc::new(Shared { chain_id, index, tip, changes, unheard, finalized }) }
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

    /// The chain's head as the process that writes last saw it.
    pub fn sightings(&self) -> Sightings {
        self.shared.tip.sightings()
    }

    /// Looks at what another process has written, and tells listeners of it.
    pub async fn follow(&self) -> Result<()> {
        let shared = &self.shared;
        let (before, final_before) = (shared.tip.now(), shared.index.indexed_finalized_head());
        let stored = shared.tip.stored().await?;
        shared.index.refresh().await?;
        // Not earlier: what has left the tip by now is in the index that readers see.
        shared.tip.show(Arc::clone(&stored));
        let view = self.view().await?;
        let mut removed = Vec::new();
        for block in before.blocks.iter().rev() {
            if view.block_ref(block.at.number).await?.is_none_or(|now| now.hash != block.at.hash) {
                removed.push(Arc::clone(block));
            }
        }
        let known = |hash: &B256| before.blocks.iter().any(|block| block.at.hash == *hash);
        let mut added = Vec::new();
        if let (Some(head), Some(last)) = (view.head(), view.finalized()) {
            let first = final_before.ok().flatten().map_or(0, |number| number + 1);
            let near = (head.number + 1).saturating_sub(TOLD_WITHIN);
            for number in first.max(near).max(shared.unheard(&removed))..=last.number {
                if shared.block_ref(number).await?.is_none_or(|at| known(&at.hash)) {
                    continue;
                }
                added.extend(shared.archived(number).await?);
            }
        }
        let is_new = |block: &&Arc<Block>| {
            !known(&block.at.hash) && view.finalized().is_none_or(|at| at.number < block.at.number)
        };
        added.extend(stored.blocks.iter().filter(is_new).cloned());
        shared.tell(Change { removed, added });
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
    /// Tells listeners what changed, unless nothing did.
    pub(crate) fn tell(&self, change: Change) {
        if change.removed.is_empty() && change.added.is_empty() {
            return;
        }
        let last = change.added.last().map(|block| block.at.number + 1);
        let unheard = last.unwrap_or_else(|| self.unheard(&change.removed));
        self.unheard.store(unheard, Ordering::SeqCst);
        // Nobody may be listening.
        let _ = self.changes.send(Arc::new(change));
    }

    /// The first block that listeners have not heard of, once these are removed.
    pub(crate) fn unheard(&self, removed: &[Arc<Block>]) -> u64 {
        let heard = self.unheard.load(Ordering::SeqCst);
        removed.last().map_or(heard, |lowest| heard.min(lowest.at.number))
    }

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
