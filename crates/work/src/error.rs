//! The one error of this crate.

use logmill_io::ErrorKind;

/// Result of an operation of the work kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    /// Somebody else holds the job now, or nobody does: what was done under the old claim must not count.
    #[error("fenced: the job {kind}/{key} is no longer held under token {token}")]
    Fenced {
        /// The kind of the job.
        kind: String,
        /// Its key.
        key: String,
        /// The token that the caller carried.
        token: i64,
    },
    /// The lease was lost, or may have been.
    #[error("fenced: the lease {name} is no longer held in epoch {epoch}")]
    LeaseLost {
        /// The name of the lease.
        name: String,
        /// The epoch in which the caller held it.
        epoch: i64,
    },
    /// There is no such job.
    #[error("there is no job {kind}/{key}")]
    NoSuchJob {
        /// The kind of the job.
        kind: String,
        /// Its key.
        key: String,
    },
    /// The request is wrong.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// A stored record is not what was written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which record, and how it shows.
        what: String,
    },
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Fenced { .. } | Self::LeaseLost { .. } => ErrorKind::Fenced,
            Self::NoSuchJob { .. } => ErrorKind::NotFound,
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }

    /// Whether a store can never work again; see [`logmill_io::Error::is_fatal`].
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
        logmill_io::chain(self)
    }
}

/// Inside a transaction of [`logmill_io::Sql`] errors are the store's; this carries ours through it.
impl From<Error> for logmill_io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error,
            Error::Fenced { kind, key, token } => {
                Self::Fenced { fence: format!("the job {kind}/{key}"), counter: token }
            }
            Error::LeaseLost { name, epoch } => Self::Fenced { fence: name, counter: epoch },
            Error::NoSuchJob { kind, key } => {
                Self::NotFound { what: format!("the job {kind}/{key}") }
            }
            Error::Invalid { what } => Self::Invalid { what },
            Error::Corrupt { what } => Self::Corrupt { what },
        }
    }
}
