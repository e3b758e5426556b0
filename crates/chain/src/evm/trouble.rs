//! What can go wrong with one node.
//!
//! Guarantees: no text in it is longer than a line. Leaves to others: what all nodes together mean
//! ([`crate::Error`]).

use std::time::Duration;

use alloy_primitives::B256;
use logmill_io::{Error as IoError, chain};

use super::rpc::{NoAnswer, RpcError, said};
use super::wording::{Meaning, meaning};
use crate::verify::Mismatch;

/// What went wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It can not be reached, refuses, or makes no sense.
    Failed { why: String, retry_after: Option<Duration> },
    /// It took too long.
    Slow { why: String },
    /// It was asked for too much at once; `better` blocks would do.
    TooMuch { why: String, better: Option<u64> },
    /// It takes no batches.
    NoBatches,
    /// It lacks a method.
    NoMethod { why: String },
    /// It answered with an error that is not about us.
    Rpc(RpcError),
    /// It does not know the block.
    Missing,
    /// It no longer has the block.
    Pruned,
    /// It has the block, and not yet what belongs to it.
    Late { number: u64, why: String },
    /// Its answers are of different branches.
    Moved,
    /// Its block does not follow the one that we have.
    Unlinked { number: u64, parent: B256, before: B256 },
    /// Its block contradicts itself.
    Lie { number: u64, hash: B256, mismatch: Mismatch },
    /// Its block cannot be checked, which is no fault of the node.
    Unverifiable { number: u64, hash: B256, mismatch: Mismatch },
}

impl Trouble {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), retry_after: None }
    }

    /// A block that does not pass its checks.
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
            | Self::NoMethod { why } => why.clone(),
            Self::NoBatches => "it takes no batches".to_owned(),
            Self::Rpc(error) => format!("{} (code {})", error.message, error.code),
            Self::Missing => "it does not have the block".to_owned(),
            Self::Pruned => "it does not keep the block".to_owned(),
            Self::Late { number, why } => format!("block {number}: {why}"),
            Self::Moved => "its answers are of different branches".to_owned(),
            Self::Unlinked { number, .. } => {
                format!("its block {number} does not follow the one before")
            }
            Self::Lie { number, mismatch, .. } | Self::Unverifiable { number, mismatch, .. } => {
                format!("block {number}: {mismatch}")
            }
        }
    }

    /// The same, without the secrets of an address.
    pub(super) fn redacted(self, redact: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Failed { why, retry_after } => Self::Failed { why: redact(&why), retry_after },
            Self::Slow { why } => Self::Slow { why: redact(&why) },
            Self::TooMuch { why, better } => Self::TooMuch { why: redact(&why), better },
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

/// A mismatch without the secrets of an address, in the parts of it that a node wrote.
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
        Mismatch::HeaderHash { computed, claimed, unknown } => {
            Mismatch::HeaderHash { computed, claimed, unknown: each(unknown) }
        }
        other => other,
    }
}

impl From<RpcError> for Trouble {
    fn from(error: RpcError) -> Self {
        let why = format!("{} (code {})", error.message, error.code);
        match meaning(&error) {
            Meaning::TooMuch { blocks } => Self::TooMuch { why, better: blocks },
            Meaning::BatchTooLarge => Self::TooMuch { why, better: None },
            Meaning::NoBatches => Self::NoBatches,
            Meaning::Throttled => Self::failed(why),
            Meaning::Slow => Self::Slow { why },
            Meaning::NoMethod => Self::NoMethod { why },
            Meaning::Pruned => Self::Pruned,
            Meaning::NoBlock => Self::Missing,
            Meaning::Reverted | Meaning::Other => Self::Rpc(error),
        }
    }
}

impl From<NoAnswer> for Trouble {
    fn from(answer: NoAnswer) -> Self {
        match answer {
            NoAnswer::Malformed(what) => Self::failed(what),
            // "Invalid request" to a batch as a whole: the node reads single calls only.
            NoAnswer::Error(error) if matches!(error.code, -32_600 | -32_700) => {
                match Self::from(error) {
                    Self::Rpc(_) => Self::NoBatches,
                    other => other,
                }
            }
            NoAnswer::Error(error) => Self::from(error),
        }
    }
}

impl From<IoError> for Trouble {
    fn from(error: IoError) -> Self {
        let why = said(&chain(&error));
        match error {
            IoError::TooSlow { .. } => Self::Slow { why },
            IoError::TooLarge { .. } => Self::TooMuch { why, better: None },
            _ => Self::failed(why),
        }
    }
}
