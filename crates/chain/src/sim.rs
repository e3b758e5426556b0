//! An in-process chain, generated from a seed: the demo's chain, and the adversary of the tests.
//!
//! It has tokens, NFTs, swaps, collected fees and plain transfers, from a few very active accounts and many
//! that do little. The blocks are real: signed transactions, receipts, and headers with correct hashes. A chain
//! grows and is reorganized on command. [`SimSource`] queries it like a node, with faults; [`rpc`] answers for
//! it in JSON.
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
//! Guarantees: block N of branch B on a given parent always has the same bytes, and passes
//! [`crate::VerifyLevel::Full`]. A chain stores about 250 bytes per block. The content of a block is built again on
//! request, unless it is among the last [`CACHE_BYTES_MAX`] that were built. There is no state: balances are
//! not tracked.

pub mod action;
mod actors;
mod build;
mod draw;
mod envelope;
mod extra_transaction;
mod history;
pub mod lie;
pub mod rpc;
mod shape;
mod sign;
pub mod source;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_primitives::B256;
use tokio::sync::watch;

use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use crate::source::Heads;
use state::{Entry, State};

pub use actors::{Actors, FEE_COLLECTOR, WETH};
pub use extra_transaction::{ExtraTransaction, ExtraTransactions};
pub use lie::Lie;
pub use shape::{Fork, Shape};
pub use source::{SimFaults, SimSource};
pub use state::{CACHE_BYTES_MAX, DEAD_BLOCKS_MAX};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimSettings {
    /// Each seed makes a different chain.
    pub seed: u64,
    pub shape: Shape,
    pub chain_id: u64,
    /// Timestamp of the first block, in seconds since 1970.
    pub genesis_s: u64,
    /// Seconds between blocks.
    pub slot_s: u64,
    /// How many blocks the newest final block is behind the head; `None` if only [`SimChain::set_finalized`]
    /// decides.
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

/// A simulated chain. Clones are handles to the same chain.
#[derive(Clone, Debug)]
pub struct SimChain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: SimSettings,
    extra: ExtraTransactions,
    actors: Actors,
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
        Self::with_extra_transactions(settings, extra_transaction::NONE)
    }

    /// The same, with additional transactions in each block.
    pub fn with_extra_transactions(settings: SimSettings, extra: ExtraTransactions) -> Self {
        let genesis = build::genesis(&settings);
        let inner = Inner {
            actors: Actors::new(settings.seed, settings.shape),
            state: Mutex::new(State::new(genesis, settings.finality_lag)),
            version: watch::Sender::new(0),
            settings,
            extra,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Copies the chain; from now on the copy evolves separately.
    #[must_use]
    pub fn fork(&self) -> Self {
        let inner = Inner {
            settings: self.inner.settings,
            extra: self.inner.extra,
            actors: self.inner.actors.clone(),
            state: Mutex::new(self.state().clone()),
            version: watch::Sender::new(self.version()),
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn settings(&self) -> &SimSettings {
        &self.inner.settings
    }

    pub fn actors(&self) -> &Actors {
        &self.inner.actors
    }

    /// Adds blocks and returns the newest.
    pub fn grow(&self, count: u64) -> BlockRef {
        let mut state = self.state();
        let branch = state.branch();
        for _ in 0..count {
            self.extend(&mut state, branch);
        }
        self.finish(state)
    }

    /// Replaces the last `depth` blocks with `length` blocks of a new branch; returns the newest.
    pub fn reorg(&self, depth: u64, length: u64) -> Result<BlockRef> {
        let mut state = self.state();
        let branch = state.cut(depth)?;
        for _ in 0..length {
            self.extend(&mut state, branch);
        }
        Ok(self.finish(state))
    }

    /// Makes a block and all before it final. If there is no lag, only this call advances finality.
    pub fn set_finalized(&self, number: u64) -> Result<()> {
        let mut state = self.state();
        state.set_finalized(number)?;
        self.finish(state);
        Ok(())
    }

    /// Sets the number of blocks that the newest final block is behind the head; with `None` only
    /// [`SimChain::set_finalized`] decides.
    pub fn set_finality_lag(&self, lag: Option<u64>) {
        let mut state = self.state();
        state.set_finality_lag(lag);
        self.finish(state);
    }

    pub fn latest(&self) -> BlockRef {
        self.state().latest()
    }

    pub fn heads(&self) -> Heads {
        self.state().heads()
    }

    /// Number, hashes and time of a canonical block.
    pub fn at(&self, number: u64) -> Option<BlockRef> {
        self.state().canonical(number).map(|entry| entry.at)
    }

    /// Returns a canonical block.
    pub fn block(&self, number: u64) -> Option<Arc<Block>> {
        let entry = self.state().canonical(number)?;
        Some(self.content(entry))
    }

    /// Finds a block by its hash, including the last [`DEAD_BLOCKS_MAX`] blocks that were reorganized out.
    pub fn block_by_hash(&self, hash: B256) -> Option<Arc<Block>> {
        let entry = self.state().by_hash(hash)?;
        Some(self.content(entry))
    }

    pub fn is_canonical(&self, hash: B256) -> bool {
        let state = self.state();
        let entry = state.by_hash(hash);
        entry.is_some_and(|entry| {
            state.canonical(entry.at.number).is_some_and(|now| now.at.hash == hash)
        })
    }

    /// Number of changes so far.
    pub fn version(&self) -> u64 {
        *self.inner.version.borrow()
    }

    /// Completes when the chain has changed since `version`.
    pub async fn changed(&self, version: u64) {
        let mut changes = self.inner.version.subscribe();
        // The sender lives as long as this chain.
        let _ = changes.wait_for(|now| *now != version).await;
    }

    fn extend(&self, state: &mut State, branch: u32) {
        let parent = state.latest();
        let Inner { settings, actors, extra, .. } = &*self.inner;
        let block = build::next(settings, actors, parent, branch, *extra);
        state.push(block, branch);
    }

    fn content(&self, entry: Entry) -> Arc<Block> {
        if let Some(block) = self.state().cached(entry.at.hash) {
            return block;
        }
        let Inner { settings, actors, .. } = &*self.inner;
        // Building a block needs only the reference of its parent.
        let parent = BlockRef {
            number: entry.at.number.wrapping_sub(1),
            hash: entry.at.parent_hash,
            parent_hash: B256::ZERO,
            timestamp: entry.at.timestamp.saturating_sub(settings.slot_s),
        };
        let block = match entry.at.number {
            0 => build::genesis(settings),
            _ => build::next(settings, actors, parent, entry.branch, self.inner.extra),
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

/// Error of an impossible request to a chain.
fn refused<T>(what: String) -> Result<T> {
    Err(Error::Invalid { what })
}

#[cfg(test)]
mod tests;
