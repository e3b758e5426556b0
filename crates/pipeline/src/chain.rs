//! `Chain`: read access to the stored blocks of one chain.
//!
//! `view` has the [`View`], a chain at one moment.
//!
//! Guarantees: a [`View`] never changes; a [`Change`] is sent after its blocks are stored. Leaves to others: writing
//! ([`crate::tip`] and the ingesters).

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

mod view;

pub use view::View;

/// Changes that are buffered for a slow listener; one that falls further behind gets a lag error.
const CHANGES_KEPT: usize = 256;

/// Blocks that were already final when fetched are announced only within this distance of the head.
pub(crate) const ANNOUNCE_WITHIN: u64 = 64;

/// The stored blocks of one chain. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Chain {
    pub(crate) shared: Arc<SharedState>,
}

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) chain_id: u64,
    pub(crate) index: LogIndex,
    pub(crate) tip: Tip,
    /// Replaced by a sender that nothing is sent to once another handle to this chain takes over.
    changes: Mutex<broadcast::Sender<Arc<Change>>>,
    /// The block after the highest announced one.
    next_unannounced: AtomicU64,
    /// Cache of the indexed head, which every view needs.
    finalized: ArcSwapOption<BlockRef>,
    announced: Mutex<Announcements>,
    /// Held from computing a change until it is announced.
    announcing: tokio::sync::Mutex<()>,
}

/// What has been announced to listeners.
#[derive(Debug, Default)]
struct Announcements {
    /// The newest blocks, in the order of their announcement.
    blocks: VecDeque<Arc<Block>>,
    /// Number of the last announced replacement of stored blocks.
    replacement: u64,
}

/// A change of the blocks that are not final yet.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Blocks that left the chain, highest first.
    pub removed: Vec<Arc<Block>>,
    /// New blocks, lowest first.
    pub added: Vec<Arc<Block>>,
}

impl Chain {
    pub fn new(chain_id: u64, index: LogIndex, tip: Tip) -> Self {
        let changes = Mutex::new(broadcast::channel(CHANGES_KEPT).0);
        let (next_unannounced, finalized) = (AtomicU64::new(0), ArcSwapOption::empty());
        let replacement = index.last_replacement();
        let announced = Mutex::new(Announcements { blocks: VecDeque::new(), replacement });
        let announcing = tokio::sync::Mutex::default();
        let shared = SharedState {
            chain_id,
            index,
            tip,
            changes,
            next_unannounced,
            finalized,
            announced,
            announcing,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The EIP-155 chain id.
    pub fn chain_id(&self) -> u64 {
        self.shared.chain_id
    }

    pub fn index(&self) -> &LogIndex {
        &self.shared.index
    }

    /// The chain at this moment.
    pub async fn view(&self) -> Result<View> {
        // The tip first: a block leaves it only after it is in the index.
        let tip = self.shared.tip.now();
        let finalized = self.shared.finalized().await?;
        Ok(View::new(Arc::clone(&self.shared), tip, finalized))
    }

    /// The chain's head as the writing process last saw it.
    pub fn sightings(&self) -> Sightings {
        self.shared.tip.sightings()
    }

    /// Reads what another process has written, and announces it to listeners.
    pub async fn follow(&self) -> Result<()> {
        let shared = &self.shared;
        let _announcing = shared.announcing.lock().await;
        let (before, final_before) = (shared.tip.now(), shared.index.indexed_finalized_head());
        let stored = shared.tip.read_stored().await?;
        shared.index.refresh().await?;
        // Only after the refresh: blocks that have left the tip are now in the index that readers see.
        shared.tip.install_snapshot(Arc::clone(&stored));
        let (replaced, last) = self.unannounced_replacements().await?;
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
            let near = (head.number + 1).saturating_sub(ANNOUNCE_WITHIN);
            let first = first.max(near).max(shared.next_unannounced(&removed));
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
        shared.announce_change(Change { removed, added });
        // Only now: a change that could not be announced is found again.
        shared.announced().replacement = last;
        Ok(())
    }

    /// Announces replacements of stored blocks since the last call: of the recently announced blocks, the old ones are
    /// removed, and the blocks stored in their place are added.
    pub(crate) async fn announce_replacements(&self) -> Result<()> {
        let _announcing = self.shared.announcing.lock().await;
        let (change, last) = self.unannounced_replacements().await?;
        self.shared.announce_change(change);
        self.shared.announced().replacement = last;
        Ok(())
    }

    /// The change that results from unannounced replacements, and the number of the last of them.
    async fn unannounced_replacements(&self) -> Result<(Change, u64)> {
        let (shared, mut change) = (&self.shared, Change::default());
        let mut seq = shared.announced().replacement;
        // If the tip does not follow the index, its blocks are removed first, as they are on top.
        while shared.tip_follows() {
            let replaced = shared.index.replacements_after(seq).await?;
            let Some(newest) = replaced.last().map(|one| one.seq) else {
                break;
            };
            // The cached head may be one of the replaced blocks.
            shared.finalized.store(None);
            let is_replaced =
                |block: &&Arc<Block>| replaced.iter().any(|r| r.blocks.contains(&block.at.number));
            let announced: Vec<Arc<Block>> =
                shared.announced().blocks.iter().filter(is_replaced).cloned().collect();
            for block in announced {
                match shared.archived(block.at.number).await {
                    Ok(Some(stored)) if stored == block => {}
                    Ok(stored) => {
                        change.added.extend(stored);
                        change.removed.push(block);
                    }
                    // The stored block cannot be read, so whether it changed is unknown.
                    Err(error) if error.kind() == ErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            seq = newest;
        }
        change.removed.sort_by_key(|block| std::cmp::Reverse(block.at.number));
        change.removed.dedup_by_key(|block| block.at.number);
        change.added.sort_by_key(|block| block.at.number);
        change.added.dedup_by_key(|block| block.at.number);
        Ok((change, seq))
    }

    pub fn changes(&self) -> broadcast::Receiver<Arc<Change>> {
        self.shared.changes().subscribe()
    }

    /// Disconnects the listeners of this handle, because another handle to the same chain takes over.
    pub fn close_changes(&self) {
        *self.shared.changes() = broadcast::channel(CHANGES_KEPT).0;
    }

    /// Stored ranges, lowest first.
    pub fn covered(&self) -> Vec<Range<u64>> {
        let tip = self.shared.tip.now();
        view::covered(&self.shared.index, &tip)
    }
}

impl SharedState {
    /// Announces a change, unless it is empty.
    pub(crate) fn announce_change(&self, change: Change) {
        if change.removed.is_empty() && change.added.is_empty() {
            return;
        }
        let last = change.added.last().map(|block| block.at.number + 1);
        let next_unannounced = last.unwrap_or_else(|| self.next_unannounced(&change.removed));
        self.next_unannounced.store(next_unannounced, Ordering::SeqCst);
        self.announced().note(&change);
        // There may be no listeners.
        let _ = self.changes().send(Arc::new(change));
    }

    /// Whether the tip directly follows the indexed blocks, or is empty.
    fn tip_follows(&self) -> bool {
        let health = self.index.health();
        let next = health.tail_start.map(|start| start + health.tail_blocks);
        let tip = self.tip.now();
        let first = tip.blocks.first().map(|block| block.at.number);
        next.zip(first).is_none_or(|(next, first)| first <= next)
    }

    fn changes(&self) -> MutexGuard<'_, broadcast::Sender<Arc<Change>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announced(&self) -> MutexGuard<'_, Announcements> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first unannounced block, once these are removed.
    pub(crate) fn next_unannounced(&self, removed: &[Arc<Block>]) -> u64 {
        let next = self.next_unannounced.load(Ordering::SeqCst);
        removed.last().map_or(next, |lowest| next.min(lowest.at.number))
    }

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

    pub(crate) async fn block_ref(&self, number: u64) -> Result<Option<BlockRef>> {
        Ok(self.index.block_by_number(number).await?.map(|block| block_ref(&block)))
    }

    pub(crate) async fn block_ref_by_hash(&self, hash: &B256) -> Result<Option<BlockRef>> {
        Ok(self.index.block_by_hash(hash).await?.map(|block| block_ref(&block)))
    }
}

impl Announcements {
    fn note(&mut self, change: &Change) {
        let is_removed = |block: &Arc<Block>| change.removed.iter().any(|gone| gone.at == block.at);
        self.blocks.retain(|block| !is_removed(block));
        self.blocks.extend(change.added.iter().cloned());
        let most = usize::try_from(ANNOUNCE_WITHIN).unwrap_or(usize::MAX);
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
