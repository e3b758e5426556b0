//! The blocks of a simulated chain: the canonical ones, those that a reorg removed, and the last ones built.
//!
//! Guarantees: the canonical blocks link by parent hash from block 0 on; final blocks are never replaced.
//! Leaves to others: building blocks, and notifying waiters.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use alloy_primitives::B256;

use super::refused;
use crate::block::{Block, BlockRef};
use crate::error::Result;
use crate::source::Heads;

/// Maximum weight of cached blocks, in bytes.
pub const CACHE_BYTES_MAX: u64 = 32 << 20;
/// How many removed blocks a chain remembers.
pub const DEAD_BLOCKS_MAX: usize = 4_096;

/// A block's reference and branch: enough to build it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: BlockRef,
    pub(super) branch: u32,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    canonical: Vec<Entry>,
    numbers: BTreeMap<B256, usize>,
    dead: BTreeMap<B256, Entry>,
    dead_order: VecDeque<B256>,
    /// The branches so far; the next reorg starts one more.
    branches: u32,
    finalized: Option<usize>,
    finality_lag: Option<u64>,
    cache: Cache,
}

#[derive(Clone, Debug, Default)]
struct Cache {
    blocks: BTreeMap<B256, Arc<Block>>,
    order: VecDeque<B256>,
    bytes: u64,
}

impl State {
    pub(super) fn new(genesis: Block, finality_lag: Option<u64>) -> Self {
        let mut state = Self {
            canonical: Vec::new(),
            numbers: BTreeMap::new(),
            dead: BTreeMap::new(),
            dead_order: VecDeque::new(),
            branches: 0,
            finalized: None,
            finality_lag,
            cache: Cache::default(),
        };
        state.push(genesis, 0);
        state
    }

    pub(super) fn latest(&self) -> BlockRef {
        // There is always the first block.
        self.canonical.last().map(|entry| entry.at).unwrap_or_default()
    }

    /// The branch of the newest block.
    pub(super) fn branch(&self) -> u32 {
        self.canonical.last().map_or(0, |entry| entry.branch)
    }

    pub(super) fn canonical(&self, number: u64) -> Option<Entry> {
        self.canonical.get(usize::try_from(number).ok()?).copied()
    }

    pub(super) fn by_hash(&self, hash: B256) -> Option<Entry> {
        let canonical = self.numbers.get(&hash).and_then(|at| self.canonical.get(*at));
        canonical.or_else(|| self.dead.get(&hash)).copied()
    }

    pub(super) fn push(&mut self, block: Block, branch: u32) {
        self.numbers.insert(block.at.hash, self.canonical.len());
        self.canonical.push(Entry { at: block.at, branch });
        self.cache.put(Arc::new(block));
        self.advance_finality();
    }

    /// Removes the last blocks and returns the number of the new branch.
    pub(super) fn cut(&mut self, depth: u64) -> Result<u32> {
        let latest = self.latest().number;
        let kept = self.finalized.unwrap_or(0) + 1;
        let left = usize::try_from(depth)
            .ok()
            .and_then(|depth| self.canonical.len().checked_sub(depth).filter(|left| *left >= kept));
        let Some(left) = left else {
            return refused(format!(
                "cannot replace {depth} blocks: the newest is {latest}, and blocks below {kept} are final"
            ));
        };
        for entry in self.canonical.split_off(left) {
            self.numbers.remove(&entry.at.hash);
            self.dead.insert(entry.at.hash, entry);
            self.dead_order.push_back(entry.at.hash);
        }
        while self.dead_order.len() > DEAD_BLOCKS_MAX {
            let forgotten = self.dead_order.pop_front();
            forgotten.and_then(|hash| self.dead.remove(&hash));
        }
        self.branches += 1;
        Ok(self.branches)
    }

    pub(super) fn set_finalized(&mut self, number: u64) -> Result<()> {
        let at = usize::try_from(number).ok().filter(|at| *at < self.canonical.len());
        let Some(at) = at else {
            return refused(format!("block {number} cannot become final before it exists"));
        };
        if self.finalized.is_some_and(|now| at < now) {
            return refused(format!("cannot move finality back to block {number}"));
        }
        self.finalized = Some(at);
        Ok(())
    }

    pub(super) fn set_finality_lag(&mut self, lag: Option<u64>) {
        self.finality_lag = lag;
        self.advance_finality();
    }

    pub(super) fn heads(&self) -> Heads {
        let top = self.canonical.len().saturating_sub(1);
        let at = |at: usize| self.canonical.get(at).map(|entry| entry.at);
        // As on mainnet, the safe block is halfway between final and latest.
        let safe = self.finalized.map(|finalized| finalized + (top - finalized.min(top)) / 2);
        Heads {
            latest: self.latest(),
            safe: safe.and_then(at),
            finalized: self.finalized.and_then(at),
        }
    }

    pub(super) fn cached(&self, hash: B256) -> Option<Arc<Block>> {
        self.cache.blocks.get(&hash).cloned()
    }

    pub(super) fn cache(&mut self, block: Arc<Block>) {
        self.cache.put(block);
    }

    /// Clears the cache.
    #[cfg(test)]
    pub(super) fn forget(&mut self) {
        self.cache = Cache::default();
    }

    fn advance_finality(&mut self) {
        let Some(lag) = self.finality_lag.and_then(|lag| usize::try_from(lag).ok()) else {
            return;
        };
        let final_now = self.canonical.len().saturating_sub(1).checked_sub(lag);
        self.finalized = self.finalized.max(final_now);
    }
}

impl Cache {
    fn put(&mut self, block: Arc<Block>) {
        let (hash, size) = (block.at.hash, weight(&block));
        if self.blocks.insert(hash, block).is_some() {
            return;
        }
        self.order.push_back(hash);
        self.bytes += size;
        while self.bytes > CACHE_BYTES_MAX {
            let Some(block) = self.order.pop_front().and_then(|hash| self.blocks.remove(&hash))
            else {
                return;
            };
            self.bytes = self.bytes.saturating_sub(weight(&block));
        }
    }
}

/// Approximate memory of a block.
fn weight(block: &Block) -> u64 {
    let logs = block.receipts.iter().flat_map(|receipt| &receipt.logs);
    let logs: usize = logs.map(|log| size_of_val(log) + log.data.len()).sum();
    block.size.saturating_mul(2).saturating_add(u64::try_from(logs).unwrap_or(u64::MAX))
}
