//! The error type of this crate.
//!
//! Guarantees: [`Error::kind`] tells the caller what to do, and no message contains a secret. Leaves to others: HTTP
//! statuses.

use logmill_io::ErrorKind;
use logmill_io::sql::TransactionError;

use crate::damage::DamagedRecord;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    #[error(transparent)]
    Work(#[from] logmill_work::Error),
    /// The request is wrong.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what would be right.
        what: String,
    },
    #[error("there is no {what}")]
    NotFound {
        /// The missing thing.
        what: String,
    },
    /// The request contradicts the stored state.
    #[error("{what}")]
    Conflict { what: String },
    /// It cannot be done now.
    #[error("{what}")]
    Unavailable {
        /// What is missing.
        what: String,
    },
    /// The row of an event is not what was written.
    #[error(
        "the stored usage event with sequence {seq} is damaged: it is not what was recorded; see \
         docs/runbooks/damaged-usage.md"
    )]
    DamagedEvent { seq: i64 },
    /// The name of a customer or of a series is not what was written.
    #[error(
        "{record} is damaged: its stored name is not what was recorded; see \
         docs/runbooks/damaged-usage.md"
    )]
    DamagedName { record: DamagedRecord },
    /// A stored record is not what was written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which record, and how the damage shows.
        what: String,
    },
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Work(error) => error.kind(),
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Unavailable { .. } => ErrorKind::Transient,
            Self::Corrupt { .. } | Self::DamagedEvent { .. } | Self::DamagedName { .. } => {
                ErrorKind::Corrupt
            }
        }
    }

    /// Whether a store has failed for good; see [`logmill_io::Error::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Store(error) => error.is_fatal(),
            Self::Work(error) => error.is_fatal(),
            _ => false,
        }
    }

    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into() }
    }

    pub(crate) fn conflict(what: impl Into<String>) -> Self {
        Self::Conflict { what: what.into() }
    }

    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable { what: what.into() }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// The message and all its causes, on one line.
    pub fn chain(&self) -> String {
        logmill_io::error_chain(self)
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
