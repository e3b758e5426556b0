//! Input and output types: finalized blocks with their logs, and logs with their position in the chain.
//!
//! Guarantees: none; these are plain values. Leaves to others: the order and limits of a block
//! ([`FinalizedBlock::validate`]).

use std::ops::Range;

use alloy_primitives::{Address, B256, Bytes};
use arrayvec::ArrayVec;

/// Maximum number of topics of a log, as the EVM defines it.
pub const TOPICS_MAX: usize = 4;
/// Maximum number of logs in a block: about ten times what a gas limit of a billion allows.
pub const BLOCK_LOGS_MAX: usize = 1 << 20;
/// Maximum total size of the log data of a block.
pub const BLOCK_DATA_BYTES_MAX: usize = 32 << 20;

/// Maximum size of [`Body::bytes`].
pub const BLOCK_BODY_BYTES_MAX: usize = 32 << 20;
/// Maximum number of transaction hashes in a [`Body`].
pub const BLOCK_TRANSACTIONS_MAX: usize = 1 << 17;

/// Topics of a log, by position.
pub type Topics = ArrayVec<B256, TOPICS_MAX>;

/// A finalized block, as the caller adds it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FinalizedBlock {
    /// Height of the block.
    pub number: u64,
    /// Hash of the block's header; the index does not compute it.
    pub hash: B256,
    /// Hash of the previous block.
    pub parent_hash: B256,
    /// Seconds since the Unix epoch.
    pub timestamp: u64,
    /// Logs, ordered by `log_index`.
    pub logs: Vec<BlockLog>,
    /// Everything else the caller wants to keep, if anything.
    pub body: Option<Body>,
}

/// Data of a block that is kept beside its logs. The index treats it as opaque and returns it by block number or by
/// the hash of any of its transactions.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Body {
    /// Opaque to the index.
    pub bytes: Bytes,
    /// Hashes by which the body can be looked up.
    pub transactions: Vec<B256>,
}

/// A log and its position within its block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BlockLog {
    /// Contract that emitted the log.
    pub address: Address,
    /// Indexed values, up to [`TOPICS_MAX`].
    pub topics: Topics,
    /// Unindexed values, ABI-encoded by most contracts.
    pub data: Bytes,
    /// Transaction that emitted the log.
    pub transaction_hash: B256,
    /// Position of that transaction in the block.
    pub transaction_index: u32,
    /// Position of the log in the block, counted over all transactions.
    pub log_index: u32,
}

/// A log and its position in the chain, as a query returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Height of its block.
    pub block_number: u64,
    /// Hash of its block.
    pub block_hash: B256,
    /// Timestamp of its block, in seconds since the Unix epoch.
    pub block_timestamp: u64,
    /// The log as it was added.
    pub log: BlockLog,
}

/// A block without its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Height.
    pub number: u64,
    /// Hash of the header.
    pub hash: B256,
    /// Hash of the previous block.
    pub parent_hash: B256,
    /// Seconds since the Unix epoch.
    pub timestamp: u64,
    /// Number of logs of the block.
    pub log_count: u32,
}

impl FinalizedBlock {
    /// Everything but logs and body.
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

/// Half-open range of block numbers.
pub type BlockRange = Range<u64>;
