//! Errors of chain sources.
//!
//! Guarantees: [`Error::kind`] tells the caller what to do; no error contains the credentials of a node's address.
//! Leaves to others: retrying.

use alloy_primitives::B256;
use logmill_io::ErrorKind;

use crate::mismatch::Mismatch;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a chain returned no answer, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node could be reached, or none answered in time.
    #[error("no answer from the chain for {what}: {why}")]
    Unavailable {
        /// What was requested.
        what: String,
        /// The error of each node.
        why: String,
    },
    /// The chain has no such block yet.
    #[error("block {number} does not exist yet")]
    NotYet { number: u64 },
    /// The nodes have the block, but not yet all of its parts.
    #[error("block {number}: {why}")]
    Late {
        number: u64,
        /// The missing part.
        why: String,
    },
    /// No node keeps history that far back.
    #[error("block {number} is below the history that the nodes keep")]
    Pruned { number: u64 },
    /// Every node that answered returned a block that contradicts itself.
    #[error("block {number} ({hash}) from {node} is invalid")]
    Mismatch {
        /// The node's name.
        node: String,
        number: u64,
        /// The hash that the node reported.
        hash: B256,
        #[source]
        mismatch: Mismatch,
    },
    /// Two consecutive blocks do not link: the chain changed between two answers, or a node mixes branches.
    #[error("block {number} has the parent {parent}, but the block before it is {before}")]
    Unlinked {
        /// Of the upper block.
        number: u64,
        /// The parent hash of the upper block.
        parent: B256,
        /// The hash of the block below it.
        before: B256,
    },
    /// A node serves a different chain than expected.
    #[error("wrong RPC chain id: {node} serves chain {got}, not {expected}")]
    WrongChain {
        /// The node's name.
        node: String,
        expected: u64,
        /// The chain id that the node reported.
        got: u64,
    },
    /// A JSON-RPC error of a node that is passed on to the client.
    #[error("{message} (code {code})")]
    Rpc {
        code: i64,
        message: String,
        /// The error's `data` member, as JSON.
        data: Option<String>,
    },
    /// Invalid input.
    #[error("{what}")]
    Invalid { what: String },
    /// Stored bytes are not valid.
    #[error("{what}")]
    Corrupt { what: String },
    /// A store or a socket failed.
    #[error(transparent)]
    Io(#[from] logmill_io::Error),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. }
            | Self::Late { .. }
            | Self::Mismatch { .. }
            | Self::Unlinked { .. } => ErrorKind::Transient,
            Self::NotYet { .. } | Self::Pruned { .. } => ErrorKind::NotFound,
            Self::WrongChain { .. } | Self::Rpc { .. } | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Io(error) => error.kind(),
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}
