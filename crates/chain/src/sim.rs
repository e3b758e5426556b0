//! A chain in process, made from a seed: the demo's chain, and the tests' adversary.
//!
//! Tokens, NFTs, swaps, collected fees and plain transfers, by few who do much and many who do little. The blocks are
//! real: signed transactions, receipts and headers that hash to what they say. A chain grows and is reorganised when it
//! is told to; [`SimSource`] asks it as a node would be asked, with faults; [`rpc`] answers for it in JSON.
//!
//! ```
//! use logmill_chain::sim::{Shape, SimChain};
//!
//! let chain = SimChain::new(7, Shape::sparse());
//! chain.grow(100);
//! let before = chain.block(100).unwrap();
//! chain.reorg(3, 4).unwrap();
//! assert_eq!(chain.latest().number, 101);
//! assert_ne!(chain.block(100).unwrap().at, before.at);
//! assert_eq!(chain.block_by_hash(before.at.hash).unwrap(), before);
//! ```
//!
//! Guarantees: block N of branch B on a given parent has the same bytes everywhere, and passes
//! [`crate::Verify::Full`]. A chain keeps some 250 bytes per block; what is in a block is built again when it is asked
//! for, unless it is among the last [`CACHE_BYTES_MAX`] that were. Leaves to others: a state. No balances are kept.

pub mod action;
mod build;
mod draw;
mod envelope;
mod history;
pub mod lie;
pub mod rpc;
mod shape;
mod sign;
pub mod source;
mod state;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_primitives::B256;
use tokio::sync::watch;

use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use crate::source::Heads;
use state::{Entry, State};

pub use lie::Lie;
pub use shape::{Fork, Shape};
pub use source::{SimFaults, SimSource};
pub use state::{CACHE_BYTES_MAX, DEAD_BLOCKS_MAX};
pub use world::{FEE_COLLECTOR, WETH, World};

/// What a simulated chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimSettings {
    /// Another seed is another chain.
    pub seed: u64,
    /// How full its blocks are.
    pub shape: Shape,
    /// Its id, as of EIP-155.
    pub chain_id: u64,
    /// When its first block was made, in seconds since 1970.
    pub genesis_s: u64,
    /// Seconds between blocks.
    pub slot_s: u64,
    /// How many blocks stand on the newest final one; none if only [`SimChain::set_finalized`] decides.
    pub finality_lag: Option<u64>,
}

impl Default for SimSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            shape: Shape::sparse(),
            chain_id: 1_337,
            genesis_s: 1_700_000_000,
            slot_s: 12,
            finality_lag: Some(64),
        }
    }
}

/// A simulated chain. Clones are the same chain.
#[derive(Clone, Debug)]
pub struct SimChain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: SimSettings,
    world: World,
    state: Mutex<State>,
    /// Counts the changes of the chain.
    version: watch::Sender<u64>,
}

impl SimChain {
    /// The chain of a seed, at its first block.
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self::with(SimSettings { seed, shape, ..SimSettings::default() })
    }

    /// The chain of these settings, at its first block.
    pub fn with(settings: SimSettings) -> Self {
        let genesis = build::genesis(&settings);
        let inner = Inner {
            world: World::new(settings.seed, settings.shape),
            state: Mutex::new(State::new(genesis, settings.finality_lag)),
            version: watch::Sender::new(0),
            settings,
        };
        Self { inner: Arc::new(inner) }
    }

    /// A chain that has been the same up to now, and goes its own way from here.
    #[must_use]
    pub fn fork(&self) -> Self {
        let inner = Inner {
            settings: self.inner.settings,
            world: self.inner.world.clone(),
            state: Mutex::new(self.state().clone()),
            version: watch::Sender::new(self.version()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What the chain is.
    pub fn settings(&self) -> &SimSettings {
        &self.inner.settings
    }

    /// Who there is on it.
    pub fn world(&self) -> &World {
        &self.inner.world
    }

    /// Adds blocks, and gives the newest.
    pub fn grow(&self, count: u64) -> BlockRef {
        let mut state = self.state();
        let branch = state.branch();
        for _ in 0..count {
            self.extend(&mut state, branch);
        }
        self.finish(state)
    }

    /// Replaces the last `depth` blocks by `length` blocks of a new branch, and gives the newest.
    pub fn reorg(&self, depth: u64, length: u64) -> Result<BlockRef> {
        let mut state = self.state();
        let branch = state.cut(depth)?;
        for _ in 0..length {
            self.extend(&mut state, branch);
        }
        Ok(self.finish(state))
    }

    /// Makes a block and all before it final. From now on only this decides, unless there is a lag.
    pub fn set_finalized(&self, number: u64) -> Result<()> {
        let mut state = self.state();
        state.set_finalized(number)?;
        self.finish(state);
        Ok(())
    }

    /// How many blocks stand on the newest final one from now on; none if only [`SimChain::set_finalized`] decides.
    pub fn set_finality_lag(&self, lag: Option<u64>) {
        let mut state = self.state();
        state.set_finality_lag(lag);
        self.finish(state);
    }

    /// The newest block's place.
    pub fn latest(&self) -> BlockRef {
        self.state().latest()
    }

    /// Where the chain is.
    pub fn heads(&self) -> Heads {
        self.state().heads()
    }

    /// The place of a block.
    pub fn at(&self, number: u64) -> Option<BlockRef> {
        self.state().canonical(number).map(|entry| entry.at)
    }

    /// A block of the chain as it is now.
    pub fn block(&self, number: u64) -> Option<Arc<Block>> {
        let entry = self.state().canonical(number)?;
        Some(self.content(entry))
    }

    /// A block by its hash, also one that is no longer of the chain, as long as it is among the last
    /// [`DEAD_BLOCKS_MAX`] of those.
    pub fn block_by_hash(&self, hash: B256) -> Option<Arc<Block>> {
        let entry = self.state().by_hash(hash)?;
        Some(self.content(entry))
    }

    /// Whether a block is of the chain as it is now.
    pub fn is_canonical(&self, hash: B256) -> bool {
        let state = self.state();
        let entry = state.by_hash(hash);
        entry.is_some_and(|entry| {
            state.canonical(entry.at.number).is_some_and(|now| now.at.hash == hash)
        })
    }

    /// How often the chain has changed.
    pub fn version(&self) -> u64 {
        *self.inner.version.borrow()
    }

    /// Completes when the chain has changed since `version`.
    pub async fn changed(&self, version: u64) {
        let mut changes = self.inner.version.subscribe();
        // The sender lives as long as this chain does.
        let _ = changes.wait_for(|now| *now != version).await;
    }

    fn extend(&self, state: &mut State, branch: u32) {
        let parent = state.latest();
        let block = build::next(&self.inner.settings, &self.inner.world, parent, branch);
        state.push(block, branch);
    }

    fn content(&self, entry: Entry) -> Arc<Block> {
        if let Some(block) = self.state().cached(entry.at.hash) {
            return block;
        }
        let Inner { settings, world, .. } = &*self.inner;
        // Only the place of its parent is needed to build a block again.
        let parent = BlockRef {
            number: entry.at.number.wrapping_sub(1),
            hash: entry.at.parent_hash,
            parent_hash: B256::ZERO,
            timestamp: entry.at.timestamp.saturating_sub(settings.slot_s),
        };
        let block = match entry.at.number {
            0 => build::genesis(settings),
            _ => build::next(settings, world, parent, entry.branch),
        };
        let block = Arc::new(block);
        self.state().cache(Arc::clone(&block));
        block
    }

    fn finish(&self, state: MutexGuard<'_, State>) -> BlockRef {
        let latest = state.latest();
        drop(state);
        self.inner.version.send_modify(|version| *version += 1);
        latest
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A refusal of something that a chain can not do.
fn refused<T>(what: String) -> Result<T> {
    Err(Error::Invalid { what })
}

#[cfg(test)]
mod tests;
