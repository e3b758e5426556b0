//! Errors of the pipeline.
//!
//! Guarantees: [`Error::kind`] tells the caller what to do. Leaves to others: the wording of JSON-RPC errors.

use std::ops::Range;

use alloy_primitives::B256;
use logmill_io::ErrorKind;
use logmill_io::sql::TransactionError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Index(#[from] finalized_log_index::Error),
    #[error(transparent)]
    Chain(#[from] logmill_chain::Error),
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    #[error(transparent)]
    Work(#[from] logmill_work::Error),
    /// The requested blocks are not all stored.
    #[error("blocks {} to {} are not all stored", wanted.start, wanted.end.saturating_sub(1))]
    NotCovered {
        wanted: Range<u64>,
        /// Stored ranges, lowest first.
        covered: Vec<Range<u64>>,
    },
    /// The requested blocks were pruned.
    #[error("blocks below {floor} were pruned")]
    Pruned {
        /// Lowest block that is kept.
        floor: u64,
        /// Stored ranges, lowest first.
        covered: Vec<Range<u64>>,
    },
    #[error("block {hash} is not stored")]
    BlockNotFound { hash: B256 },
    /// A reorganization is deeper than `max_reorg_depth`.
    #[error(
        "the chain was reorganized at or below block {number}, more than {max} blocks deep: if that is right, raise \
         MAX_REORG_DEPTH"
    )]
    ReorgTooDeep {
        /// Lowest block that may be replaced.
        number: u64,
        /// The setting `max_reorg_depth`.
        max: u64,
    },
    /// The chain now has another block at a height that it had finalized.
    #[error("block {number} was finalized as {stored}, but the chain now has {reported}")]
    FinalityReverted {
        number: u64,
        stored: B256,
        /// Hash that the chain reports now.
        reported: B256,
    },
    /// The request makes no sense.
    #[error("{what}")]
    Invalid { what: String },
    /// A row does not fit its table: a processor is wrong.
    #[error("a row does not fit the table {table}: {row}")]
    Misfit { table: &'static str, row: String },
    /// A processor failed: by a panic, or because the database refused its rows.
    #[error("{processor}: {what}")]
    Processor { processor: &'static str, what: String },
    /// The requested table has not been derived by any processor here.
    #[error(
        "{table} of chain {chain_id} is not derived here: the processor that fills it has not run"
    )]
    NotDerived { table: &'static str, chain_id: u64 },
    /// The planned write is based on a state that has changed since: plan again.
    #[error("another process has already written rows of {processor}")]
    Overtaken { processor: &'static str },
    /// No node returned a usable answer.
    #[error("cannot get {what}: {why}")]
    Unanswered {
        what: String,
        /// The node's error, or that it did not answer.
        why: String,
    },
    /// Stored bytes are damaged.
    #[error("{what}")]
    Corrupt { what: String },
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Index(error) => error.kind(),
            Self::Chain(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Work(error) => error.kind(),
            Self::NotDerived { .. } => ErrorKind::NotFound,
            Self::NotCovered { .. } | Self::Pruned { .. } | Self::BlockNotFound { .. } => {
                ErrorKind::NotFound
            }
            Self::ReorgTooDeep { .. } | Self::FinalityReverted { .. } => ErrorKind::Conflict,
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Misfit { .. } | Self::Processor { .. } => ErrorKind::Internal,
            Self::Overtaken { .. } => ErrorKind::Conflict,
            Self::Unanswered { .. } => ErrorKind::Transient,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }

    /// Whether a store has failed permanently; see [`logmill_io::Error::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Index(error) => error.is_fatal(),
            Self::Store(error) => error.is_fatal(),
            Self::Work(error) => error.is_fatal(),
            _ => false,
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}

impl TransactionError for Error {
    fn into_store(self) -> Result<logmill_io::Error, Self> {
        match self {
            Self::Store(error) => Ok(error),
            Self::Work(error) => error.into_store().map_err(Self::Work),
            own => Err(own),
        }
    }
}
