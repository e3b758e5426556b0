//! Errors that a request to one node can end with.
//!
//! Guarantees: no text in them is longer than a line. Leaves to others: the error over all nodes
//! ([`crate::Error`]).

use std::time::Duration;

use alloy_primitives::B256;
use logmill_io::{Error as IoError, error_chain};

use super::error_class::{ErrorClass, classify_error};
use super::rpc::{BodyError, RpcError, one_line};
use crate::mismatch::Mismatch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeError {
    /// It cannot be reached, refuses, or returned something invalid.
    Failed { why: String, retry_after: Option<Duration> },
    /// It exceeded a time limit, ours or its own.
    Slow { why: String },
    /// The request was too large; `better` blocks would be accepted.
    TooMuch { why: String, better: Option<u64> },
    /// It refused several calls in one request, which reveals nothing about the calls.
    BatchRefused { why: String, because: BatchLimit },
    /// It does not support a method.
    NoMethod { why: String },
    /// Any other JSON-RPC error, including a revert.
    Rpc(RpcError),
    /// It does not know the block.
    Missing,
    /// It no longer has the block.
    Pruned,
    /// It has the block, but not yet all of its parts.
    Late { number: u64, why: String },
    /// Its answers are from different branches.
    Moved,
    /// Its block does not follow the previous one.
    Unlinked { number: u64, parent: B256, before: B256 },
    /// Its block contradicts itself.
    Lie { number: u64, hash: B256, mismatch: Mismatch },
    /// Its block cannot be checked, which is not the node's fault.
    Unverifiable { number: u64, hash: B256, mismatch: Mismatch },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchLimit {
    /// The size of its answers, which differs from batch to batch.
    Bytes,
    /// The number of its calls, as far as can be told.
    Calls,
    /// The node accepts no batches, as far as can be told.
    Single,
}

impl NodeError {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), retry_after: None }
    }

    /// A block that failed its checks.
    pub(super) fn mismatch(number: u64, hash: B256, mismatch: Mismatch) -> Self {
        if mismatch.is_lie() {
            Self::Lie { number, hash, mismatch }
        } else {
            Self::Unverifiable { number, hash, mismatch }
        }
    }

    /// One line for people.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Failed { why, .. }
            | Self::Slow { why }
            | Self::TooMuch { why, .. }
            | Self::BatchRefused { why, .. }
            | Self::NoMethod { why } => why.clone(),
            Self::Rpc(error) => format!("{} (code {})", error.message, error.code),
            Self::Missing => "it does not have the block".to_owned(),
            Self::Pruned => "it no longer has the block".to_owned(),
            Self::Late { number, why } => format!("block {number}: {why}"),
            Self::Moved => "its answers are from different branches".to_owned(),
            Self::Unlinked { number, .. } => {
                format!("its block {number} does not follow the one before")
            }
            Self::Lie { number, mismatch, .. } | Self::Unverifiable { number, mismatch, .. } => {
                format!("block {number}: {mismatch}")
            }
        }
    }

    /// Removes the secrets of an address.
    pub(super) fn redacted(self, redact: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Failed { why, retry_after } => Self::Failed { why: redact(&why), retry_after },
            Self::Slow { why } => Self::Slow { why: redact(&why) },
            Self::TooMuch { why, better } => Self::TooMuch { why: redact(&why), better },
            Self::BatchRefused { why, because } => {
                Self::BatchRefused { why: redact(&why), because }
            }
            Self::NoMethod { why } => Self::NoMethod { why: redact(&why) },
            Self::Rpc(error) => Self::Rpc(RpcError { message: redact(&error.message), ..error }),
            Self::Lie { number, hash, mismatch } => {
                Self::Lie { number, hash, mismatch: redacted_mismatch(mismatch, redact) }
            }
            Self::Unverifiable { number, hash, mismatch } => {
                Self::Unverifiable { number, hash, mismatch: redacted_mismatch(mismatch, redact) }
            }
            other => other,
        }
    }
}

/// Removes the secrets of an address from the texts that came from a node.
fn redacted_mismatch(mismatch: Mismatch, redact: impl Fn(&str) -> String) -> Mismatch {
    let each = |names: Vec<String>| names.iter().map(|name| redact(name)).collect();
    match mismatch {
        Mismatch::Malformed { what } => Mismatch::Malformed { what: redact(&what) },
        Mismatch::UnreadableHeader { why } => Mismatch::UnreadableHeader { why: redact(&why) },
        Mismatch::ForeignTransaction { index, what } => {
            Mismatch::ForeignTransaction { index, what: redact(&what) }
        }
        Mismatch::UnreadableTransaction { index, why } => {
            Mismatch::UnreadableTransaction { index, why: redact(&why) }
        }
        Mismatch::ForeignHeader { computed, claimed, unknown } => {
            Mismatch::ForeignHeader { computed, claimed, unknown: each(unknown) }
        }
        Mismatch::ForeignBlock { computed, claimed, index, what } => {
            Mismatch::ForeignBlock { computed, claimed, index, what: redact(&what) }
        }
        Mismatch::HeaderHash { computed, claimed, unknown } => {
            Mismatch::HeaderHash { computed, claimed, unknown: each(unknown) }
        }
        other => other,
    }
}

impl From<RpcError> for NodeError {
    fn from(error: RpcError) -> Self {
        let why = format!("{} (code {})", error.message, error.code);
        match classify_error(&error) {
            ErrorClass::TooMuch { blocks } => Self::TooMuch { why, better: blocks },
            ErrorClass::BatchTooLarge => Self::BatchRefused { why, because: BatchLimit::Calls },
            ErrorClass::NoBatches => Self::BatchRefused { why, because: BatchLimit::Single },
            ErrorClass::Throttled => Self::failed(why),
            ErrorClass::Slow => Self::Slow { why },
            ErrorClass::NoMethod => Self::NoMethod { why },
            ErrorClass::Pruned => Self::Pruned,
            ErrorClass::NoBlock => Self::Missing,
            ErrorClass::Reverted | ErrorClass::Other => Self::Rpc(error),
        }
    }
}

impl From<BodyError> for NodeError {
    fn from(answer: BodyError) -> Self {
        match answer {
            BodyError::Malformed(what) => Self::failed(what),
            BodyError::Incomplete(what) => {
                Self::BatchRefused { why: what, because: BatchLimit::Calls }
            }
            // One error for all calls is about the batch, unless it is clearly about the node.
            BodyError::Error(error) => match Self::from(error.clone()) {
                refused @ (Self::Failed { .. } | Self::Slow { .. } | Self::BatchRefused { .. }) => {
                    refused
                }
                other => {
                    // "Invalid request": the node accepts only single calls.
                    let is_unread = matches!(error.code, -32_600 | -32_700);
                    let because = if is_unread { BatchLimit::Single } else { BatchLimit::Calls };
                    Self::BatchRefused { why: other.why(), because }
                }
            },
        }
    }
}

impl From<IoError> for NodeError {
    fn from(error: IoError) -> Self {
        let why = one_line(&error_chain(&error));
        match error {
            IoError::TooSlow { .. } => Self::Slow { why },
            IoError::TooLarge { .. } => Self::TooMuch { why, better: None },
            _ => Self::failed(why),
        }
    }
}
