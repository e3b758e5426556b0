//! What can go wrong between a chain and what is stored of it.
//!
//! Guarantees: [`Error::kind`] says what to do about it. Leaves to others: the wording of JSON-RPC.

use std::ops::Range;

use alloy_primitives::B256;
use logmill_io::ErrorKind;

/// The outcome of an operation of the pipeline.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log index.
    #[error(transparent)]
    Index(#[from] finalized_log_index::Error),
    /// The source of blocks.
    #[error(transparent)]
    Chain(#[from] logmill_chain::Error),
    /// A store.
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    /// Jobs.
    #[error(transparent)]
    Work(#[from] logmill_work::Error),
    /// Blocks were asked for that are not stored.
    #[error("blocks {} to {} are not all there", wanted.start, wanted.end.saturating_sub(1))]
    NotCovered {
        /// What was asked for.
        wanted: Range<u64>,
        /// What is there, lowest first.
        covered: Vec<Range<u64>>,
    },
    /// Blocks were asked for that were removed on purpose.
    #[error("blocks below {floor} were removed")]
    Pruned {
        /// The lowest block that was kept.
        floor: u64,
        /// What is there, lowest first.
        covered: Vec<Range<u64>>,
    },
    /// No stored block has this hash.
    #[error("block {hash} is not there")]
    BlockNotFound {
        /// The hash.
        hash: B256,
    },
    /// The chain changed further back than is allowed.
    #[error(
        "the chain has changed at or below block {number}, more than {max} blocks deep: if that is right, raise \
         MAX_REORG_DEPTH"
    )]
    ReorgTooDeep {
        /// The lowest block that was looked at.
        number: u64,
        /// The setting `max_reorg_depth`.
        max: u64,
    },
    /// The chain contradicts what it had called final.
    #[error("block {number} was final as {stored}, and now the chain says {said}")]
    FinalityReverted {
        /// Which block.
        number: u64,
        /// What is stored.
        stored: B256,
        /// What the chain says now.
        said: B256,
    },
    /// Something asked for makes no sense.
    #[error("{what}")]
    Invalid {
        /// What.
        what: String,
    },
    /// A row does not fit its table: a processor is wrong.
    #[error("a row of {table} does not fit it: {row}")]
    Misfit {
        /// Which table.
        table: &'static str,
        /// The row.
        row: String,
    },
    /// A processor failed: by a panic, or because the database refused its rows.
    #[error("{processor}: {what}")]
    Processor {
        /// Which processor.
        processor: &'static str,
        /// What went wrong.
        what: String,
    },
    /// A table was asked for that no processor has derived here.
    #[error(
        "{table} of chain {chain_id} is not derived here: the processor that fills it has not run"
    )]
    NotDerived {
        /// Which table.
        table: &'static str,
        /// Of which chain.
        chain_id: u64,
    },
    /// What was to be written was planned from a state that has changed since: plan again.
    #[error("another has written what {processor} was about to write")]
    Overtaken {
        /// Whose tables.
        processor: &'static str,
    },
    /// A node gave no answer that could be used.
    #[error("ask a node for {what}: {why}")]
    Unanswered {
        /// What was asked for.
        what: String,
        /// What it said, or did not.
        why: String,
    },
    /// Stored bytes are not what they should be.
    #[error("{what}")]
    Corrupt {
        /// What.
        what: String,
    },
}

impl Error {
    /// What the caller should do.
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

    /// Whether a store can never work again; see [`logmill_io::Error::is_fatal`].
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
