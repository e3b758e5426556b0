//! The one error of this crate.

use alloy_primitives::B256;
use logmill_io::ErrorKind;

use crate::types::BlockRange;

/// Result of an operation of the index.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with the index.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store failed.
    #[error("the log index's store")]
    Store(#[from] logmill_io::Error),
    /// The writer lease could not be read, renewed or checked, or is lost.
    #[error("the log index's writer lease")]
    Lease(#[from] logmill_work::Error),
    /// Somebody else writes this index: the caller stands by.
    #[error("the log index is written by another process: stand by")]
    Standby,
    /// A block does not follow the head.
    #[error("block {got} does not follow the indexed head: {expected} is next")]
    InvalidSequence {
        /// The number that would.
        expected: u64,
        /// The number given.
        got: u64,
    },
    /// A block can not be one.
    #[error("block {number} is invalid: {what}")]
    InvalidBlock {
        /// Its number.
        number: u64,
        /// What is wrong.
        what: String,
    },
    /// A block or chunk contradicts what is indexed as final.
    #[error("finality violation: {what}")]
    FinalityViolation {
        /// Which block, and both hashes.
        what: String,
    },
    /// A block that was to take the place of a stored one is of another chain.
    #[error(
        "block {number} is of another chain: {what}; nothing was changed. Check which chain the node serves; if the \
         chain was reset, stop the server and run `logmill index resolve rebuild-from {number}`"
    )]
    Foreign {
        /// Its number.
        number: u64,
        /// Both hashes.
        what: String,
    },
    /// The index refuses to go on until an operator has looked.
    #[error("the log index is degraded and refuses this: {reason}")]
    Degraded {
        /// Why, as `health` shows it.
        reason: String,
    },
    /// Too much waits for garbage collection or sealing.
    #[error("ingest is throttled: {what}")]
    Throttled {
        /// What there is too much of.
        what: String,
    },
    /// The filter is wrong.
    #[error("{what}")]
    InvalidFilter {
        /// What is wrong with it.
        what: String,
    },
    /// One position of the filter has too many alternatives.
    #[error("query too broad: {actual} alternatives at one position, at most {max}")]
    QueryTooBroad {
        /// How many there are.
        actual: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The range is not covered.
    #[error(
        "blocks {} to {} are not all indexed; covered: {}", wanted.start, wanted.end - 1, list(covered)
    )]
    NotCovered {
        /// What was asked for.
        wanted: BlockRange,
        /// What is there, in rising order.
        covered: Vec<BlockRange>,
    },
    /// The range reaches below what was pruned on purpose.
    #[error("pruned history unavailable: blocks below {floor} were removed")]
    Pruned {
        /// The lowest block that was kept.
        floor: u64,
    },
    /// No indexed block has this hash.
    #[error("Block not found.")]
    BlockNotFound {
        /// The hash.
        hash: B256,
    },
    /// A query took longer than it may.
    #[error("the query took longer than {limit_ms} ms")]
    DeadlineExceeded {
        /// How long it may take.
        limit_ms: u64,
    },
    /// A chunk overlaps or contradicts what is published.
    #[error("the chunk of blocks {} to {} can not be published: {what}", blocks.start, blocks.end - 1)]
    Unpublishable {
        /// Its blocks.
        blocks: BlockRange,
        /// Why.
        what: String,
    },
    /// The attempt to build was given up by garbage collection, or its publication is done already.
    #[error("fenced: the build attempt {token} can not publish any more")]
    AttemptOver {
        /// The attempt.
        token: String,
    },
    /// The blob of a published chunk is gone.
    #[error("{chunk}: its blob is missing")]
    ChunkMissing {
        /// Which chunk.
        chunk: String,
    },
    /// Stored bytes are not what was written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which bytes, and how it shows.
        what: String,
        /// The chunk they are of, if they are of one.
        chunk: Option<String>,
    },
    /// A request of the operator or the program makes no sense.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl Error {
    /// What the caller should do.
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

    /// Shorthand for [`Error::Corrupt`].
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), chunk: None }
    }

    /// The same error, saying in which thing the corruption was found.
    pub(crate) fn within(self, thing: &str) -> Self {
        match self {
            Self::Corrupt { what, chunk } => {
                Self::Corrupt { what: format!("{thing}: {what}"), chunk }
            }
            other => other,
        }
    }

    /// The same error, saying in which chunk the corruption was found.
    pub(crate) fn in_chunk(self, name: &str) -> Self {
        match self.within(name) {
            Self::Corrupt { what, .. } => Self::Corrupt { what, chunk: Some(name.to_owned()) },
            other => other,
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
