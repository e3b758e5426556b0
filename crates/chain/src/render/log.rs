//! A log as JSON, with its place in the chain.
//!
//! Guarantees: no allocation for a log; [`log_bytes_max`] is never exceeded. Leaves to others: which logs.

use alloy_primitives::{Address, B256};

use super::json::{bytes, list, quantity};

/// A log with its place in the chain.
#[derive(Clone, Copy, Debug)]
pub struct LogFields<'a> {
    /// The contract that wrote it.
    pub address: &'a Address,
    /// Its topics.
    pub topics: &'a [B256],
    /// Its data.
    pub data: &'a [u8],
    /// The number of its block.
    pub block_number: u64,
    /// The hash of its block.
    pub block_hash: &'a B256,
    /// The time of its block, in seconds since 1970.
    pub block_timestamp: u64,
    /// The hash of its transaction.
    pub transaction_hash: &'a B256,
    /// The position of its transaction in the block.
    pub transaction_index: u64,
    /// Its own position in the block.
    pub log_index: u64,
    /// Whether its block is not part of the chain any more.
    pub removed: bool,
}

/// The names, signs and hashes of a log, and its four numbers at their longest.
const FIXED_BYTES: usize = 412;
/// A topic with its quotes and comma.
const TOPIC_BYTES: usize = 69;

/// The most bytes that a log of so many topics and bytes of data takes.
pub fn log_bytes_max(topics: usize, data_bytes: usize) -> usize {
    FIXED_BYTES + TOPIC_BYTES * topics + 2 * data_bytes
}

/// Writes a log.
pub fn log(out: &mut Vec<u8>, log: &LogFields<'_>) {
    out.reserve(log_bytes_max(log.topics.len(), log.data.len()));
    out.extend_from_slice(b"{\"address\":");
    bytes(out, log.address.as_slice());
    out.extend_from_slice(b",\"topics\":");
    list(out, log.topics, |out, topic| bytes(out, topic.as_slice()));
    out.extend_from_slice(b",\"data\":");
    bytes(out, log.data);
    out.extend_from_slice(b",\"blockNumber\":");
    quantity(out, log.block_number);
    out.extend_from_slice(b",\"transactionHash\":");
    bytes(out, log.transaction_hash.as_slice());
    out.extend_from_slice(b",\"transactionIndex\":");
    quantity(out, log.transaction_index);
    out.extend_from_slice(b",\"blockHash\":");
    bytes(out, log.block_hash.as_slice());
    out.extend_from_slice(b",\"blockTimestamp\":");
    quantity(out, log.block_timestamp);
    out.extend_from_slice(b",\"logIndex\":");
    quantity(out, log.log_index);
    out.extend_from_slice(match log.removed {
        true => b",\"removed\":true}",
        false => b",\"removed\":false}",
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_logs_stays_within_its_bound() {
        let topics = [B256::repeat_byte(0xff); 4];
        for topics in [&topics[..], &[]] {
            let fields = LogFields {
                address: &Address::repeat_byte(0xff),
                topics,
                data: &[0xff; 100],
                block_number: u64::MAX,
                block_hash: &B256::repeat_byte(0xff),
                block_timestamp: u64::MAX,
                transaction_hash: &B256::repeat_byte(0xff),
                transaction_index: u64::MAX,
                log_index: u64::MAX,
                removed: false,
            };
            let mut out = Vec::new();
            log(&mut out, &fields);
            let most = log_bytes_max(topics.len(), 100);
            assert!(out.len() <= most && out.len() + 16 > most, "{} of {most}", out.len());
            let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
            assert_eq!(value["logIndex"], "0xffffffffffffffff");
        }
    }
}
