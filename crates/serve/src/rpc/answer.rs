//! The result of one call: rendered JSON, or logs that are rendered while they are streamed.
//!
//! Guarantees: an upper bound of its size is known before it is rendered. Leaves to others: streaming
//! ([`super::answers`]).

use finalized_log_index::Log;
use logmill_chain::render;

use super::error::{RpcError, RpcResult};

/// Result of a call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Rendered JSON.
    Text(Vec<u8>),
    /// Logs, rendered while they are streamed.
    Logs(LogAnswer),
}

/// Logs as a list, with JSON before and after it.
#[derive(Debug)]
pub(crate) struct LogAnswer {
    pub(crate) before: Vec<u8>,
    pub(crate) logs: Vec<Log>,
    pub(crate) after: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(value: &impl serde::Serialize) -> RpcResult<Self> {
        serde_json::to_vec(value).map(Self::Text).map_err(|_| RpcError::internal())
    }

    pub(crate) fn null() -> Self {
        Self::Text(b"null".to_vec())
    }

    pub(crate) fn quantity(number: u64) -> Self {
        let mut out = Vec::new();
        render::quantity(&mut out, number);
        Self::Text(out)
    }

    /// Bytes as a hex string with `0x`.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        let mut out = Vec::with_capacity(2 * bytes.len() + 4);
        render::bytes(&mut out, bytes);
        Self::Text(out)
    }

    pub(crate) fn logs(logs: Vec<Log>) -> Self {
        Self::Logs(LogAnswer { before: Vec::new(), logs, after: Vec::new() })
    }

    /// Upper bound of the rendered size.
    pub(crate) fn bytes_max(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Logs(LogAnswer { before, logs, after }) => {
                let logs: usize = logs.iter().map(log_bytes).sum();
                before.len() + logs + after.len()
            }
        }
    }
}

/// Upper bound of the rendered size of a log, with its comma.
pub(crate) fn log_bytes(log: &Log) -> usize {
    1 + render::log_bytes_max(log.log.topics.len(), log.log.data.len())
}

pub(crate) fn write_log(out: &mut Vec<u8>, log: &Log, removed: bool) {
    render::log(
        out,
        &render::LogFields {
            address: &log.log.address,
            topics: &log.log.topics,
            data: &log.log.data,
            block_number: log.block_number,
            block_hash: &log.block_hash,
            block_timestamp: log.block_timestamp,
            transaction_hash: &log.log.transaction_hash,
            transaction_index: log.log.transaction_index.into(),
            log_index: log.log.log_index.into(),
            removed,
        },
    );
}
