//! What can go wrong between a chain and us.
//!
//! Guarantees: [`Error::kind`] says what to do about it; no error carries the credentials of a node's address.
//! Leaves to others: trying again.

use alloy_primitives::B256;
use logmill_io::ErrorKind;

use crate::verify::Mismatch;

/// The outcome of asking a chain.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a chain gave no answer, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node could be reached, or none answered in time.
    #[error("ask the chain for {what}: {why}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// What each node said.
        why: String,
    },
    /// The chain has no such block yet.
    #[error("block {number} does not exist yet")]
    NotYet {
        /// Its number.
        number: u64,
    },
    /// No node keeps history that far down.
    #[error("block {number} is below the history that the nodes keep")]
    Pruned {
        /// The block that was asked for.
        number: u64,
    },
    /// Every node that answered gave a block that contradicts itself.
    #[error("block {number} ({hash}) of {node}")]
    Mismatch {
        /// Which node, by its name.
        node: String,
        /// The block's number.
        number: u64,
        /// The hash that the node gave it.
        hash: B256,
        /// What is wrong with it.
        #[source]
        mismatch: Mismatch,
    },
    /// Two consecutive blocks do not link: the chain changed between two answers, or a node mixes branches.
    #[error("block {number} has the parent {parent}, but the block before it is {before}")]
    Unlinked {
        /// The number of the upper block.
        number: u64,
        /// The parent that it names.
        parent: B256,
        /// The hash of the block before it.
        before: B256,
    },
    /// A node is of another chain than it should be.
    #[error("{node} is of chain {got}, not {expected}")]
    WrongChain {
        /// Which node, by its name.
        node: String,
        /// The chain that it should be of.
        expected: u64,
        /// The chain that it says it is of.
        got: u64,
    },
    /// A node answered with a JSON-RPC error that is ours to pass on.
    #[error("{message} (code {code})")]
    Rpc {
        /// Its code.
        code: i64,
        /// Its message.
        message: String,
    },
    /// Something given to us can not be.
    #[error("{what}")]
    Invalid {
        /// What.
        what: String,
    },
    /// Stored bytes are not what they should be.
    #[error("{what}")]
    Corrupt {
        /// What.
        what: String,
    },
    /// A store or a socket failed.
    #[error(transparent)]
    Io(#[from] logmill_io::Error),
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. } | Self::Mismatch { .. } | Self::Unlinked { .. } => {
                ErrorKind::Transient
            }
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
