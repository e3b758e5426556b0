//! The one error of this crate.
//!
//! Guarantees: [`Error::kind`] says what the caller should do, and no message holds a secret. Leaves to others:
//! statuses of HTTP.

use logmill_io::ErrorKind;

/// Result of an operation of the meter.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with metering.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    /// The work kernel failed.
    #[error(transparent)]
    Work(#[from] logmill_work::Error),
    /// The request is wrong.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// There is no such thing.
    #[error("there is no {what}")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// It contradicts what is there.
    #[error("{what}")]
    Conflict {
        /// What contradicts what.
        what: String,
    },
    /// It can not be done now.
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
    DamagedEvent {
        /// Its number.
        seq: i64,
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
            Self::Work(error) => error.kind(),
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Unavailable { .. } => ErrorKind::Transient,
            Self::Corrupt { .. } | Self::DamagedEvent { .. } => ErrorKind::Corrupt,
        }
    }

    /// Whether a store can never work again; see [`logmill_io::Error::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Store(error) => error.is_fatal(),
            Self::Work(error) => error.is_fatal(),
            _ => false,
        }
    }

    /// The request is wrong.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound { what: what.into() }
    }

    pub(crate) fn conflict(what: impl Into<String>) -> Self {
        Self::Conflict { what: what.into() }
    }

    /// It can not be done now.
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable { what: what.into() }
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
            Error::Work(error) => error.into(),
            Error::Invalid { what } => Self::Invalid { what },
            Error::NotFound { what } => Self::NotFound { what },
            Error::Conflict { what } => Self::Conflict { what },
            Error::Unavailable { what } => Self::Conflict { what },
            Error::Corrupt { what } => Self::Corrupt { what },
            Error::DamagedEvent { .. } => Self::Corrupt { what: error.to_string() },
        }
    }
}
