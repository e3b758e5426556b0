//! The error type of this crate.

use logmill_io::ErrorKind;
use logmill_io::sql::TransactionError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    /// The job no longer runs under this claim; results of the claim must be discarded.
    #[error("fenced: the job {kind}/{key} is no longer held under token {token}")]
    Fenced {
        kind: String,
        key: String,
        /// The caller's token.
        token: i64,
    },
    /// The lease is lost, or may be.
    #[error("fenced: the lease {name} is no longer held in epoch {epoch}")]
    LeaseLost {
        name: String,
        /// The epoch in which the caller held the lease.
        epoch: i64,
    },
    #[error("there is no job {kind}/{key}")]
    NoSuchJob { kind: String, key: String },
    /// The request is invalid.
    #[error("{what}")]
    Invalid {
        /// The problem and what would be valid.
        what: String,
    },
    /// A stored record is damaged.
    #[error("corrupt: {what}")]
    Corrupt {
        /// The record and the symptom.
        what: String,
    },
}

impl Error {
    /// Tells the caller what to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Fenced { .. } | Self::LeaseLost { .. } => ErrorKind::Fenced,
            Self::NoSuchJob { .. } => ErrorKind::NotFound,
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }

    /// Whether the store can never work again; see [`logmill_io::Error::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_fatal())
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
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
            own => Err(own),
        }
    }
}
