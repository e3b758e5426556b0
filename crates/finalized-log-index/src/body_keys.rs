//! Which blocks have bodies, and which transactions those hold.
//!
//! Guarantees: only the beginning of a transaction hash is kept, so what is found are candidates. Leaves to others:
//! the bodies ([`crate::bodies`]), and comparing the full hash.

use std::sync::Arc;

use alloy_primitives::B256;
use logmill_work::IntervalSet;

use crate::types::FinalizedBlock;

/// Runs of the tail are joined unless the previous one is at least this many times larger.
const RUN_RATIO: usize = 2;

/// The block of a transaction; `key` is the beginning of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransactionAt {
    pub(crate) key: u64,
    pub(crate) block: u64,
}

/// Which blocks have bodies, and which transactions those hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyKeys {
    /// Blocks with bodies, ascending.
    pub(crate) blocks: Vec<u64>,
    pub(crate) transactions: Vec<TransactionAt>,
}

impl BodyKeys {
    pub(crate) fn of(blocks: &[FinalizedBlock]) -> Self {
        let mut keys = Self::default();
        for (block, body) in blocks.iter().filter_map(|b| Some((b.number, b.body.as_ref()?))) {
            keys.blocks.push(block);
            let transactions = body.transactions.iter();
            keys.transactions
                .extend(transactions.map(|hash| TransactionAt { key: key_of(hash), block }));
        }
        keys
    }

    /// Drops the keys of a block.
    pub(crate) fn without(mut self, number: u64) -> Self {
        self.blocks.retain(|block| *block != number);
        self.transactions.retain(|at| at.block != number);
        self
    }

    /// Adds the keys of other blocks.
    pub(crate) fn join(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.blocks.sort_unstable();
        self.transactions.extend(other.transactions);
    }

    /// Keeps the keys of blocks from `first` on.
    pub(crate) fn from(mut self, first: u64) -> Self {
        self.blocks.retain(|block| *block >= first);
        self.transactions.retain(|at| at.block >= first);
        self
    }
}

/// Keys of the bodies in the tail, shared with readers; transactions are in sorted runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailBodies {
    blocks: IntervalSet,
    runs: Vec<Arc<Vec<TransactionAt>>>,
}

impl TailBodies {
    pub(crate) fn add(&mut self, fresh: BodyKeys) {
        for block in fresh.blocks {
            self.blocks.insert(&(block..block + 1));
        }
        let mut fresh = fresh.transactions;
        if fresh.is_empty() {
            return;
        }
        fresh.sort_unstable();
        while let Some(before) = self.runs.pop_if(|run| run.len() < fresh.len() * RUN_RATIO) {
            fresh.extend_from_slice(&before);
            fresh.sort_unstable();
        }
        self.runs.push(Arc::new(fresh));
    }

    pub(crate) fn forget_below(&mut self, block: u64) {
        self.blocks.remove(&(0..block));
        for run in &mut self.runs {
            if run.iter().any(|at| at.block < block) {
                *run = Arc::new(run.iter().filter(|at| at.block >= block).copied().collect());
            }
        }
        self.runs.retain(|run| !run.is_empty());
    }

    /// Whether a block has a body.
    pub(crate) fn has(&self, block: u64) -> bool {
        self.blocks.contains(block)
    }

    pub(crate) fn blocks_of(&self, key: u64) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(move |run| {
            let first = run.partition_point(|at| at.key < key);
            run[first..].iter().take_while(move |at| at.key == key).map(|at| at.block)
        })
    }
}

/// The first eight bytes of a transaction hash.
pub(crate) fn key_of(hash: &B256) -> u64 {
    let [first, ..] = hash.0.as_chunks::<8>().0 else {
        return 0;
    };
    u64::from_be_bytes(*first)
}
