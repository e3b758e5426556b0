//! A log as JSON, with its place in the chain.
//!
//! Guarantees: no allocation per log; a log never exceeds [`log_bytes_max`]. Leaves to others: choosing the logs.

use alloy_primitives::{Address, B256};

use super::json::{bytes, list, quantity};

#[derive(Clone, Copy, Debug)]
pub struct LogFields<'a> {
    pub address: &'a Address,
    pub topics: &'a [B256],
    pub data: &'a [u8],
    pub block_number: u64,
    pub block_hash: &'a B256,
    /// Seconds since 1970.
    pub block_timestamp: u64,
    pub transaction_hash: &'a B256,
    pub transaction_index: u64,
    /// Position in the block.
    pub log_index: u64,
    /// Whether its block is no longer canonical.
    pub removed: bool,
}

/// Names, punctuation and hashes of a log, and its four numbers at their maximum length.
const FIXED_BYTES: usize = 412;
/// A topic with its quotes and comma.
const TOPIC_BYTES: usize = 69;

/// Maximum bytes of a rendered log.
pub fn log_bytes_max(topics: usize, data_bytes: usize) -> usize {
    FIXED_BYTES + TOPIC_BYTES * topics + 2 * data_bytes
}

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
    fn the_largest_log_stays_within_its_bound() {
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
