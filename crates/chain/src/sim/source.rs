//! A simulated chain as a source, with faults that follow a script.
//!
//! Guarantees: one seed and one sequence of calls give one sequence of answers; waits are the clock's; what it gives
//! has been verified, so a lie comes out as [`Error::Mismatch`], as from a pool whose nodes all lie. Leaves to others:
//! when the chain grows.

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
use crate::source::{ChainInfo, ChainSource, Finality, Heads, NodeStatus};
use crate::verify::{Verify, verify};

/// What the only node of the source is called.
const NODE: &str = "sim";

/// What goes wrong. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimFaults {
    /// How long an answer takes, at least.
    pub delay: Duration,
    /// How much longer it may take; how much does is drawn.
    pub delay_more: Duration,
    /// Each call of this number fails; none if 0.
    pub fail_every: u64,
    /// Blocks that are not there for so many of the calls that ask for them.
    pub missing: BTreeMap<u64, u64>,
    /// Blocks below this one are pruned.
    pub floor: u64,
    /// How blocks are lied about.
    pub lie: Option<Lie>,
    /// Each block of this number is lied about, counted over all answers; all if 0.
    pub lie_every: u64,
    /// Before each call of this number the chain is reorganised; never if 0. Never deeper than what is final.
    pub reorg_every: u64,
    /// How many blocks such a reorg replaces, by one more.
    pub reorg_depth: u64,
    /// How many blocks it is behind the chain.
    pub behind: u64,
}

/// A simulated chain as a source.
#[derive(Debug)]
pub struct SimSource {
    chain: SimChain,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    faults: Mutex<SimFaults>,
    /// The version of the chain that the last heads were of.
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
            // No version of the chain: the first wait ends at once, as there may be something new.
            seen: AtomicU64::new(u64::MAX),
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            lies: AtomicU64::new(0),
        })
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        *self.script() = faults;
    }

    /// The chain behind it.
    pub fn chain(&self) -> &SimChain {
        &self.chain
    }

    fn script(&self) -> MutexGuard<'_, SimFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every call goes through.
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
            let why = format!("call {call} fails");
            return Err(Error::Unavailable { what: what.to_owned(), why });
        }
        Ok(())
    }

    /// Replaces as much as may be.
    fn reorg(&self, depth: u64) {
        let Heads { latest, finalized, .. } = self.chain.heads();
        let depth = depth.min(latest.number - finalized.map_or(0, |at| at.number));
        // Refused only if somebody else has changed the chain in between, and then it has changed, as was wanted.
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
            lie.tell(&mut block);
        }
        let checked = verify(&mut block, Verify::Full);
        checked.map(|()| block).map_err(|mismatch| {
            self.lies.fetch_add(1, Ordering::SeqCst);
            Error::Mismatch { node: NODE.to_owned(), number, hash, mismatch }
        })
    }
}

#[async_trait]
impl ChainSource for SimSource {
    async fn info(&self) -> Result<ChainInfo> {
        self.call("the chain id").await?;
        Ok(ChainInfo {
            chain_id: self.chain.settings().chain_id,
            finality: Finality::Tags,
            client: NODE.to_owned(),
        })
    }

    async fn heads(&self) -> Result<Heads> {
        self.call("the heads").await?;
        // Before the heads are read: a change in between is then seen by the next wait.
        self.seen.store(self.chain.version(), Ordering::SeqCst);
        Ok(self.visible())
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

    async fn changed(&self, at_most: Duration) {
        let seen = self.seen.load(Ordering::SeqCst);
        tokio::select! {
            biased;
            () = self.chain.changed(seen) => {}
            () = self.clock.sleep(at_most) => {}
        }
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        vec![NodeStatus {
            name: NODE.to_owned(),
            healthy: true,
            head: Some(self.visible().latest.number),
            requests: self.calls.load(Ordering::SeqCst),
            failures: self.failures.load(Ordering::SeqCst),
            lies: self.lies.load(Ordering::SeqCst),
            last_error: None,
        }]
    }
}

/// The chain may change while a range is read; what does not link is not given.
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
