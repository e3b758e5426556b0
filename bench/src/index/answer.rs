//! Answers as bytes, to compare engines that represent logs differently.

use finalized_log_index::Log;

use super::engine::{FoundLogs, QueryOutcome};

/// Concatenates the bytes of all logs; `duckdb.py` writes the same.
pub fn encode(logs: &[Log]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(logs.len() * 256);
    for log in logs {
        bytes.extend_from_slice(&log.block_number.to_le_bytes());
        bytes.extend_from_slice(log.block_hash.as_slice());
        bytes.extend_from_slice(&log.block_timestamp.to_le_bytes());
        let log = &log.log;
        bytes.extend_from_slice(&log.log_index.to_le_bytes());
        bytes.extend_from_slice(&log.transaction_index.to_le_bytes());
        bytes.extend_from_slice(log.transaction_hash.as_slice());
        bytes.extend_from_slice(log.address.as_slice());
        for topic in &log.topics {
            bytes.extend_from_slice(topic.as_slice());
        }
        bytes.extend_from_slice(&log.data);
        bytes.extend_from_slice(b"\n");
    }
    bytes
}

/// Hash of the logs of an answer; none if they were not requested.
pub fn digest(answer: &QueryOutcome) -> Option<blake3::Hash> {
    Some(match answer.found.as_ref()? {
        FoundLogs::Logs(logs) => blake3::hash(&encode(logs)),
        FoundLogs::Encoded(bytes) => blake3::hash(bytes),
    })
}
