//! A simulated chain as a source, with scripted faults.
//!
//! Guarantees: the same seed and sequence of calls produce the same answers; waits use the given clock;
//! returned blocks are verified, so a lie appears as [`Error::Mismatch`], as from a pool whose nodes all lie.
//! Leaves to others: when the chain grows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use logmill_io::{Clock, Entropy};

use super::SimChain;
use super::lie::Lie;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::source::{BlockSource, ChainInfo, ChainSource, Finality, Heads, NodeStatus};
use crate::verify::verify;
use crate::verify_level::VerifyLevel;

/// Name of the source's only node.
const NODE: &str = "sim";

/// The faults to inject; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimFaults {
    /// Minimum delay of an answer.
    pub delay: Duration,
    /// Upper bound of the extra delay; the actual delay is random.
    pub delay_more: Duration,
    /// Every n-th call fails; none if 0.
    pub fail_every: u64,
    /// Missing blocks, each with the number of requests for which it stays missing.
    pub missing: BTreeMap<u64, u64>,
    /// Blocks below this one are pruned.
    pub floor: u64,
    pub lie: Option<Lie>,
    /// Every n-th returned block is falsified; all if 0.
    pub lie_every: u64,
    /// Before every n-th call the chain is reorganized, never below the final block; never if 0.
    pub reorg_every: u64,
    /// How many blocks such a reorg replaces; the new branch is one block longer.
    pub reorg_depth: u64,
    /// How many blocks the source lags behind the chain.
    pub behind: u64,
}

#[derive(Debug)]
pub struct SimSource {
    chain: SimChain,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    faults: Mutex<SimFaults>,
    /// The version of the chain at the last call of `heads`.
    seen: AtomicU64,
    calls: AtomicU64,
    failures: AtomicU64,
    blocks: AtomicU64,
    lies: AtomicU64,
}

impl SimSource {
    /// A source without faults.
    pub fn new(chain: SimChain, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Arc<Self> {
        Arc::new(Self {
            chain,
            clock,
            entropy,
            faults: Mutex::default(),
            // Not a version of the chain: the first wait ends immediately, because there may be something new.
            seen: AtomicU64::new(u64::MAX),
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            lies: AtomicU64::new(0),
        })
    }

    /// Replaces the faults from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        *self.script() = faults;
    }

    pub fn chain(&self) -> &SimChain {
        &self.chain
    }

    fn script(&self) -> MutexGuard<'_, SimFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the faults that affect every call.
    async fn call(&self, what: &str) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let faults = self.script().clone();
        let more = u64::try_from(faults.delay_more.as_millis()).unwrap_or(u64::MAX);
        let delay = faults.delay + Duration::from_millis(self.entropy.below(more));
        if !delay.is_zero() {
            self.clock.sleep(delay).await;
        }
        if is_due(call, faults.reorg_every) {
            self.reorg(faults.reorg_depth);
        }
        if is_due(call, faults.fail_every) {
            self.failures.fetch_add(1, Ordering::SeqCst);
            let why = format!("injected failure of call {call}");
            return Err(Error::Unavailable { what: what.to_owned(), why });
        }
        Ok(())
    }

    /// Replaces up to `depth` blocks, but no final ones.
    fn reorg(&self, depth: u64) {
        let Heads { latest, finalized, .. } = self.chain.heads();
        let depth = depth.min(latest.number - finalized.map_or(0, |at| at.number));
        // Fails only if another caller changed the chain in between, and then it has changed, as intended.
        let _ = self.chain.reorg(depth, depth + 1);
    }

    fn visible(&self) -> Heads {
        let mut heads = self.chain.heads();
        let behind = self.script().behind;
        let number = heads.latest.number.saturating_sub(behind);
        if let Some(at) = self.chain.at(number) {
            heads.latest = at;
        }
        heads.safe = heads.safe.filter(|at| at.number <= number);
        heads.finalized = heads.finalized.filter(|at| at.number <= number);
        heads
    }

    fn read(&self, number: u64, latest: u64) -> Result<Block> {
        {
            let mut faults = self.script();
            if number < faults.floor {
                return Err(Error::Pruned { number });
            }
            if let Some(times) = faults.missing.get_mut(&number).filter(|times| **times > 0) {
                *times -= 1;
                let why = "the node does not have it".to_owned();
                return Err(Error::Unavailable { what: format!("block {number}"), why });
            }
        }
        if number > latest {
            return Err(Error::NotYet { number });
        }
        let block = self.chain.block(number).ok_or(Error::NotYet { number })?;
        self.checked(Block::clone(&block))
    }

    fn checked(&self, mut block: Block) -> Result<Block> {
        let (number, hash) = (block.at.number, block.at.hash);
        let count = self.blocks.fetch_add(1, Ordering::SeqCst) + 1;
        let (lie, every) = {
            let faults = self.script();
            (faults.lie, faults.lie_every.max(1))
        };
        if let Some(lie) = lie.filter(|_| is_due(count, every)) {
            lie.apply(&mut block);
        }
        let checked = verify(&mut block, VerifyLevel::Full);
        checked.map(|()| block).map_err(|mismatch| {
            self.lies.fetch_add(1, Ordering::SeqCst);
            Error::Mismatch { node: NODE.to_owned(), number, hash, mismatch }
        })
    }
}

#[async_trait]
impl BlockSource for SimSource {
    async fn info(&self) -> Result<ChainInfo> {
        self.call("the chain id").await?;
        Ok(ChainInfo {
            chain_id: self.chain.settings().chain_id,
            finality: Finality::Tags,
            client: NODE.to_owned(),
        })
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        self.call(&format!("the blocks {} to {}", range.start, range.end)).await?;
        let latest = self.visible().latest.number;
        let mut blocks: Vec<Block> = Vec::new();
        for number in range {
            let block = self.read(number, latest).and_then(|block| linked(blocks.last(), block));
            match block {
                Ok(block) => blocks.push(block),
                Err(error) if blocks.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(blocks)
    }

    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        self.call(&format!("the block {hash}")).await?;
        let Some(block) = self.chain.block_by_hash(hash) else {
            return Ok(None);
        };
        if block.at.number < self.script().floor {
            return Err(Error::Pruned { number: block.at.number });
        }
        self.checked(Block::clone(&block)).map(Some)
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        vec![NodeStatus {
            name: NODE.to_owned(),
            healthy: true,
            head: Some(self.visible().latest.number),
            requests: self.calls.load(Ordering::SeqCst),
            failures: self.failures.load(Ordering::SeqCst),
            lies: self.lies.load(Ordering::SeqCst),
            lacks: Vec::new(),
            last_error: None,
        }]
    }
}

#[async_trait]
impl ChainSource for SimSource {
    async fn heads(&self) -> Result<Heads> {
        self.call("the heads").await?;
        // Before the heads are read, so that the next wait notices a change in between.
        self.seen.store(self.chain.version(), Ordering::SeqCst);
        Ok(self.visible())
    }

    async fn changed(&self, at_most: Duration) {
        let seen = self.seen.load(Ordering::SeqCst);
        tokio::select! {
            biased;
            () = self.chain.changed(seen) => {}
            () = self.clock.sleep(at_most) => {}
        }
    }
}

/// The chain may change while a range is read; a block that does not link is not returned.
fn linked(before: Option<&Block>, block: Block) -> Result<Block> {
    match before {
        Some(before) if before.at.hash != block.at.parent_hash => Err(Error::Unlinked {
            number: block.at.number,
            parent: block.at.parent_hash,
            before: before.at.hash,
        }),
        _ => Ok(block),
    }
}

fn is_due(count: u64, every: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
}

#[cfg(test)]
mod tests;
