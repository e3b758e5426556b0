//! What goes in and what comes out: finalized blocks with their logs, and logs with their place in the chain.
//!
//! Guarantees: [`FinalizedBlock::validate`] refuses what no block can be, so that everything behind it may rely
//! on order and limits. Leaves to others: whether the block is canonical (the caller's promise), and whether its
//! logs are those of its header (the caller's check).

use std::ops::Range;

use alloy_primitives::{Address, B256, Bytes};
use arrayvec::ArrayVec;

use crate::error::{Error, Result};

/// The most topics of a log.
pub const TOPICS_MAX: usize = 4;
/// The most logs of one block: about ten times what a gas limit of a billion allows.
pub const BLOCK_LOGS_MAX: usize = 1 << 20;
/// The most bytes of data of one block's logs.
pub const BLOCK_DATA_BYTES_MAX: usize = 32 << 20;

/// The most bytes of one block's body.
pub const BLOCK_BODY_BYTES_MAX: usize = 32 << 20;
/// The most transactions of one block's body.
pub const BLOCK_TRANSACTIONS_MAX: usize = 1 << 17;

/// The topics of a log.
pub type Topics = ArrayVec<B256, TOPICS_MAX>;

/// A finalized block, as it is given to the index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FinalizedBlock {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The hash of the block before it.
    pub parent_hash: B256,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Its logs, in the order of their `log_index`.
    pub logs: Vec<BlockLog>,
    /// What else is kept of it, if anything is.
    pub body: Option<Body>,
}

/// What is kept of a block beside its logs. The index does not look inside; it gives it back by the block's number,
/// and by the hash of any of its transactions.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Body {
    /// Any bytes.
    pub bytes: Bytes,
    /// The hashes of the block's transactions.
    pub transactions: Vec<B256>,
}

/// A log within its block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BlockLog {
    /// The contract that wrote it.
    pub address: Address,
    /// Its topics.
    pub topics: Topics,
    /// Its data.
    pub data: Bytes,
    /// The hash of its transaction.
    pub transaction_hash: B256,
    /// The position of its transaction in the block.
    pub transaction_index: u32,
    /// Its own position in the block.
    pub log_index: u32,
}

/// A log with its place in the chain, as a query gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The number of its block.
    pub block_number: u64,
    /// The hash of its block.
    pub block_hash: B256,
    /// The time of its block, in seconds since 1970.
    pub block_timestamp: u64,
    /// The log itself.
    pub log: BlockLog,
}

/// A block without its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The hash of the block before it.
    pub parent_hash: B256,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// How many logs it has.
    pub log_count: u32,
}

impl FinalizedBlock {
    /// Refuses what can not be a block: too much of anything, or logs out of order.
    pub fn validate(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::InvalidBlock { number: self.number, what });
        if self.number == u64::MAX {
            return invalid("its number is the end of all numbers".to_owned());
        }
        if self.logs.len() > BLOCK_LOGS_MAX {
            return invalid(format!("{} logs, at most {BLOCK_LOGS_MAX}", self.logs.len()));
        }
        let bytes: usize = self.logs.iter().map(|log| log.data.len()).sum();
        if bytes > BLOCK_DATA_BYTES_MAX {
            return invalid(format!("{bytes} bytes of data, at most {BLOCK_DATA_BYTES_MAX}"));
        }
        if let Some(body) = &self.body {
            let (bytes, transactions) = (body.bytes.len(), body.transactions.len());
            if bytes > BLOCK_BODY_BYTES_MAX || transactions > BLOCK_TRANSACTIONS_MAX {
                return invalid(format!(
                    "a body of {bytes} bytes and {transactions} transactions, at most \
                     {BLOCK_BODY_BYTES_MAX} and {BLOCK_TRANSACTIONS_MAX}"
                ));
            }
        }
        for pair in self.logs.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            if before.log_index >= after.log_index
                || before.transaction_index > after.transaction_index
            {
                return invalid(format!("log {} is out of order", after.log_index));
            }
            let same_index = before.transaction_index == after.transaction_index;
            if same_index != (before.transaction_hash == after.transaction_hash) {
                return invalid(format!("log {} mixes up transactions", after.log_index));
            }
        }
        Ok(())
    }

    /// The block without its logs.
    pub fn info(&self) -> BlockInfo {
        BlockInfo {
            number: self.number,
            hash: self.hash,
            parent_hash: self.parent_hash,
            timestamp: self.timestamp,
            log_count: u32::try_from(self.logs.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Block numbers from `start` up to but without `end`.
pub type BlockRange = Range<u64>;
