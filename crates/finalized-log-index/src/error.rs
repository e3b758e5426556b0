//! The error type of this crate.

use alloy_primitives::B256;
use logmill_io::ErrorKind;

use crate::types::BlockRange;

/// Result of an operation of the index.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every way in which an operation of the index can fail.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store failed.
    #[error("the store of the log index failed")]
    Store(#[from] logmill_io::Error),
    /// The writer lease could not be read, renewed or checked, or is lost.
    #[error("cannot use the writer lease of the log index")]
    Lease(#[from] logmill_work::Error),
    /// Another process holds the writer lease: stand by.
    #[error("the log index is written by another process")]
    Standby,
    /// A block is not the successor of the indexed head.
    #[error("block {got} does not follow the indexed head: {expected} is next")]
    InvalidSequence {
        /// Number of the next block.
        expected: u64,
        /// Number of the block that was passed.
        got: u64,
    },
    /// A block violates a limit or the order of its logs.
    #[error("block {number} is invalid: {what}")]
    InvalidBlock {
        /// Number of the block.
        number: u64,
        /// Which rule it violates.
        what: String,
    },
    /// A block or chunk contradicts what is indexed as final.
    #[error("finality violation: {what}")]
    FinalityViolation {
        /// Names the block and both hashes.
        what: String,
    },
    /// A block that should replace a stored one belongs to another chain.
    #[error(
        "block {number} belongs to another chain: {what}; nothing was changed. Check which chain the node serves; if \
         the chain was reset, stop the server and run `logmill index resolve rebuild-from {number}`"
    )]
    Foreign {
        /// Number of the block.
        number: u64,
        /// Names both hashes.
        what: String,
    },
    /// The index refuses to continue until an operator resolves it.
    #[error("the log index is degraded and refuses this: {reason}")]
    Degraded {
        /// Same text as in the health report.
        reason: String,
    },
    /// Concurrent changes or a cancelled commit prevented the operation; it can be retried.
    #[error("the log index is busy: {what}")]
    Throttled {
        /// What prevented it.
        what: String,
    },
    /// The filter cannot be run.
    #[error("{what}")]
    InvalidFilter {
        /// Which part is wrong.
        what: String,
    },
    /// One position of the filter has too many alternatives.
    #[error("query too broad: {actual} alternatives at one position, at most {max}")]
    QueryTooBroad {
        /// Number of alternatives in the filter.
        actual: usize,
        /// Number of alternatives allowed.
        max: usize,
    },
    /// The range contains blocks that are not covered.
    #[error(
        "blocks {} to {} are not all indexed; covered: {}", wanted.start, wanted.end - 1, list(covered)
    )]
    NotCovered {
        /// Requested range.
        wanted: BlockRange,
        /// Covered ranges, in ascending order.
        covered: Vec<BlockRange>,
    },
    /// The range begins below the floor, where history was pruned on purpose.
    #[error("pruned history unavailable: blocks below {floor} were removed")]
    Pruned {
        /// Lowest block that was kept.
        floor: u64,
    },
    /// No indexed block has this hash.
    #[error("Block not found.")]
    BlockNotFound {
        /// Requested hash.
        hash: B256,
    },
    /// A query exceeded its time limit.
    #[error("the query took longer than {limit_ms} ms")]
    DeadlineExceeded {
        /// The time limit.
        limit_ms: u64,
    },
    /// A chunk overlaps or contradicts what is published.
    #[error("the chunk of blocks {} to {} cannot be published: {what}", blocks.start, blocks.end - 1)]
    Unpublishable {
        /// Blocks of the chunk.
        blocks: BlockRange,
        /// What it contradicts.
        what: String,
    },
    /// Garbage collection gave this build attempt up, or the attempt has already published.
    #[error("fenced: the build attempt {token} can no longer publish")]
    AttemptOver {
        /// Token of the attempt, in hexadecimal.
        token: String,
    },
    /// The blob of a published chunk does not exist.
    #[error("{chunk}: its blob is missing")]
    ChunkMissing {
        /// Blocks and token of the chunk.
        chunk: String,
    },
    /// Stored bytes differ from the bytes that were written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which bytes, and which check failed.
        what: String,
        /// The chunk that holds them, if a chunk does.
        chunk: Option<String>,
        /// The block they are of, if they are of one and it is known.
        block: Option<u64>,
    },
    /// A request of the operator or the program is invalid.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl Error {
    /// Tells the caller what to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Lease(error) => error.kind(),
            Self::Standby | Self::AttemptOver { .. } => ErrorKind::Fenced,
            Self::Throttled { .. } | Self::DeadlineExceeded { .. } => ErrorKind::Transient,
            Self::FinalityViolation { .. } | Self::Foreign { .. } | Self::Unpublishable { .. } => {
                ErrorKind::Conflict
            }
            Self::BlockNotFound { .. } | Self::NotCovered { .. } | Self::Pruned { .. } => {
                ErrorKind::NotFound
            }
            Self::InvalidSequence { .. }
            | Self::InvalidBlock { .. }
            | Self::InvalidFilter { .. }
            | Self::QueryTooBroad { .. }
            | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Corrupt { .. } | Self::ChunkMissing { .. } => ErrorKind::Corrupt,
            Self::Degraded { .. } => ErrorKind::Internal,
        }
    }

    /// Whether a store can never work again; see [`logmill_io::Error::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Store(error) => error.is_fatal(),
            Self::Lease(error) => error.is_fatal(),
            _ => false,
        }
    }

    /// Shorthand for [`Error::Corrupt`].
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), chunk: None, block: None }
    }

    /// Adds to a corruption error the thing in which it was found.
    pub(crate) fn within(self, thing: &str) -> Self {
        match self {
            Self::Corrupt { what, chunk, block } => {
                Self::Corrupt { what: format!("{thing}: {what}"), chunk, block }
            }
            other => other,
        }
    }

    /// Adds to a corruption error the chunk in which it was found.
    pub(crate) fn in_chunk(self, name: &str) -> Self {
        match self.within(name) {
            Self::Corrupt { what, block, .. } => {
                Self::Corrupt { what, chunk: Some(name.to_owned()), block }
            }
            other => other,
        }
    }

    /// The same error, saying at which block the corruption was found.
    pub(crate) fn at_block(self, number: u64) -> Self {
        match self {
            Self::Corrupt { what, chunk, .. } => Self::Corrupt { what, chunk, block: Some(number) },
            other => other,
        }
    }

    /// The block whose bytes are damaged, if it is known.
    pub(crate) fn damaged_block(&self) -> Option<u64> {
        match self {
            Self::Corrupt { block, .. } => *block,
            _ => None,
        }
    }

    /// The chunk that is damaged or missing, by its blocks and its attempt, if it is one.
    pub fn damaged_chunk(&self) -> Option<&str> {
        match self {
            Self::Corrupt { chunk, .. } => chunk.as_deref(),
            Self::ChunkMissing { chunk } => Some(chunk),
            _ => None,
        }
    }
}

fn list(ranges: &[BlockRange]) -> String {
    if ranges.is_empty() {
        return "nothing".to_owned();
    }
    let shown = ranges.iter().map(|range| format!("{} to {}", range.start, range.end - 1));
    shown.collect::<Vec<_>>().join(", ")
}
