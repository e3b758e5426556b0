//! `Chain`: what is stored of one chain, to be read.
//!
//! Guarantees: a [`View`] never changes; a [`Change`] is sent after what it tells of is stored. Leaves to others:
//! writing ([`crate::tip`] and the ingesters).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_primitives::B256;
use arc_swap::ArcSwapOption;
use finalized_log_index::LogIndex;
use logmill_chain::{Block, BlockRef};
use logmill_io::ErrorKind;
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
    announced: Mutex<Announced>,
}

/// What listeners have heard of.
#[derive(Debug, Default)]
struct Announced {
    /// The newest blocks, in the order in which they were announced.
    blocks: VecDeque<Arc<Block>>,
    /// The last replacement of stored blocks.
    replacement: u64,
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
        let replacement = index.last_replacement();
        let announced = Mutex::new(Announced { blocks: VecDeque::new(), replacement });
        let shared = Shared { chain_id, index, tip, changes, unheard, finalized, announced };
        Self { shared: Arc::new(shared) }
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
        let replaced = self.replaced().await?;
        let view = self.view().await?;
        let mut removed = Vec::new();
        for block in before.blocks.iter().rev() {
            if view.block_ref(block.at.number).await?.is_none_or(|now| now.hash != block.at.hash) {
                removed.push(Arc::clone(block));
            }
        }
        let known = |hash: &B256| before.blocks.iter().any(|block| block.at.hash == *hash);
        removed.extend(replaced.removed);
        let mut added = replaced.added;
        if let (Some(head), Some(last)) = (view.head(), view.finalized()) {
            let first = final_before.ok().flatten().map_or(0, |number| number + 1);
            let near = (head.number + 1).saturating_sub(TOLD_WITHIN);
            let first = first.max(near).max(shared.unheard(&removed));
            let first = added.last().map_or(first, |block| first.max(block.at.number + 1));
            for number in first..=last.number {
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

    /// Tells listeners of stored blocks that were replaced since the last call: of those that they have heard of
    /// lately, the old ones are removed, and what is stored in their place is new.
    pub async fn announce_replacements(&self) -> Result<()> {
        let change = self.replaced().await?;
        self.shared.tell(change);
        Ok(())
    }

    /// How replacements that listeners have not heard of change what they know.
    async fn replaced(&self) -> Result<Change> {
        let (shared, mut change) = (&self.shared, Change::default());
        // Blocks of a tip that does not follow what is stored go first, as they are on top.
        while shared.tip_follows() {
            let seq = shared.announced().replacement;
            let replaced = shared.index.replacements_after(seq).await?;
            let Some(newest) = replaced.last().map(|one| one.seq) else {
                break;
            };
            // The head may be one of them.
            shared.finalized.store(None);
            let is_replaced =
                |block: &&Arc<Block>| replaced.iter().any(|r| r.blocks.contains(&block.at.number));
            let heard: Vec<Arc<Block>> =
                shared.announced().blocks.iter().filter(is_replaced).cloned().collect();
            for block in heard {
                match shared.archived(block.at.number).await {
                    Ok(Some(stored)) if stored == block => {}
                    Ok(stored) => {
                        change.added.extend(stored);
                        change.removed.push(block);
                    }
                    // What is stored cannot be read: nothing is known about it.
                    Err(error) if error.kind() == ErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            shared.announced().replacement = newest;
        }
        change.removed.sort_by_key(|block| std::cmp::Reverse(block.at.number));
        change.removed.dedup_by_key(|block| block.at.number);
        change.added.sort_by_key(|block| block.at.number);
        change.added.dedup_by_key(|block| block.at.number);
        Ok(change)
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
        self.announced().note(&change);
        // Nobody may be listening.
        let _ = self.changes.send(Arc::new(change));
    }

    /// Whether the tip follows what is final, or is empty.
    fn tip_follows(&self) -> bool {
        let health = self.index.health();
        let next = health.tail_start.map(|start| start + health.tail_blocks);
        let tip = self.tip.now();
        let first = tip.blocks.first().map(|block| block.at.number);
        next.zip(first).is_none_or(|(next, first)| first <= next)
    }

    fn announced(&self) -> MutexGuard<'_, Announced> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Announced {
    fn note(&mut self, change: &Change) {
        let is_removed = |block: &Arc<Block>| change.removed.iter().any(|gone| gone.at == block.at);
        self.blocks.retain(|block| !is_removed(block));
        self.blocks.extend(change.added.iter().cloned());
        let most = usize::try_from(TOLD_WITHIN).unwrap_or(usize::MAX);
        let over = self.blocks.len().saturating_sub(most);
        self.blocks.drain(..over);
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
