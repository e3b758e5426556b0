//! The error type of this crate, and the kinds that tell a caller what to do about it.
//!
//! Guarantees: every error names the operation and its object, keeps its cause as a source, and has a
//! [`Error::kind`]. Leaves to others: logging (an error is logged where it ends) and deciding how often to
//! retry.

use std::path::PathBuf;

use tokio_postgres::error::SqlState;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a transaction is over if its database is closed or the writer thread is gone.
pub(crate) const DATABASE_CLOSED: &str = "the database was closed";

/// What the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Retry later: nothing is wrong with the request.
    Transient,
    /// Another writer was first: read again and decide again.
    Conflict,
    /// The caller's lease or token is stale: stop, and change nothing.
    Fenced,
    NotFound,
    /// The request or the configuration is wrong: a retry fails the same way.
    Invalid,
    /// Stored data is not what was written: stop and alert the operator.
    Corrupt,
    /// A bug, or a handle that may no longer be used.
    Internal,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sqlite: {doing}")]
    Sqlite {
        doing: String,
        #[source]
        source: rusqlite::Error,
    },
    #[error("postgresql: {doing}")]
    Postgres {
        doing: String,
        #[source]
        source: tokio_postgres::Error,
    },
    #[error("postgresql: no free connection within {waited_ms} ms (pool of {connections})")]
    PoolTimeout {
        waited_ms: u64,
        /// Maximum size of the pool.
        connections: usize,
    },
    /// The outcome of a commit is unknown, because its answer was lost.
    #[error("the answer to a commit was lost, so it may or may not have happened: {doing}")]
    InDoubt {
        doing: String,
        #[source]
        source: Box<Error>,
    },
    #[error("migrate the schema of {component} in {database}")]
    Migration {
        /// Owner of the tables.
        component: &'static str,
        /// Path of the file, or name of the engine.
        database: String,
        #[source]
        source: Box<refinery_core::Error>,
    },
    /// A newer Logmill wrote the database.
    #[error(
        "the database holds version {found} of the {component} tables, and this program knows only up to \
         {known}: run a Logmill at least as new as the one that wrote it"
    )]
    SchemaTooNew {
        /// Owner of the tables.
        component: &'static str,
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// Another process holds the lock of the data folder.
    #[error(
        "the data folder {} is in use by another Logmill{}: stop that one, or send the command to it",
        folder.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    FolderInUse {
        folder: PathBuf,
        /// The process that holds the lock, if it recorded its id.
        pid: Option<u32>,
    },
    /// A database holds less than it once did.
    #[error("the database {} has stepped back: {what}", path.display())]
    SteppedBack {
        path: PathBuf,
        /// What it holds, and what it held.
        what: String,
    },
    /// The pages of a SQLite file are inconsistent.
    #[error("the database {} is malformed: {what}", path.display())]
    Malformed {
        path: PathBuf,
        /// The first problem that SQLite reported.
        what: String,
    },
    #[error("{doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The object store refused a request or could not be reached.
    #[error("object store: {doing} {name}")]
    Object {
        doing: &'static str,
        name: String,
        #[source]
        source: object_store::Error,
    },
    #[error("http: {doing} {place}")]
    Http {
        doing: &'static str,
        /// Host and port.
        place: String,
        /// The cause, without the URL.
        #[source]
        source: reqwest::Error,
    },
    #[error("socket: {doing} {place}")]
    Socket {
        doing: &'static str,
        /// Host and port, or path of the socket.
        place: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request or its answer is not allowed.
    #[error("http: {place} is refused: {why}")]
    Refused {
        /// Host and port.
        place: String,
        why: String,
    },
    #[error("the answer of {what} has more than {limit_bytes} bytes")]
    TooLarge {
        /// The server or request.
        what: String,
        limit_bytes: usize,
    },
    /// The condition of a write did not hold.
    #[error("{what} was changed by another writer")]
    Conflict {
        /// The key or blob.
        what: String,
    },
    /// The fence of a write is stale.
    #[error("fenced: {fence} is no longer held at {counter}")]
    Fenced {
        fence: String,
        /// The caller's counter.
        counter: i64,
    },
    #[error("{what} does not exist")]
    NotFound { what: String },
    #[error("{what}")]
    Invalid {
        /// The problem and what would be valid.
        what: String,
    },
    /// Stored data is not what was written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// The data and the symptom.
        what: String,
    },
    /// A sync failed earlier: the content of the disk is unknown, so the handle refuses all further use.
    #[error(
        "{what} refuses further use: an earlier sync to disk failed; check the disk and restart"
    )]
    Poisoned {
        /// The handle.
        what: String,
    },
    /// An operation exceeded its time limit.
    #[error("{doing}: no answer within {limit_ms} ms")]
    TooSlow { doing: &'static str, limit_ms: u64 },
    /// A transaction was used after its end, or committed after it had failed.
    #[error("the transaction is over: {why}")]
    TransactionOver { why: &'static str },
    /// A test injected a fault.
    #[error("injected fault at operation {operation}")]
    Injected { operation: u64 },
    /// The simulated process crashed at an earlier operation.
    #[error("crashed at operation {operation}")]
    Crashed { operation: u64 },
}

impl Error {
    /// Tells the caller what to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Sqlite { source, .. } => sqlite_kind(source),
            Self::Postgres { source, .. } => postgres_kind(source),
            Self::Object { source, .. } => object_kind(source),
            Self::File { source, .. } => file_kind(source),
            Self::Migration { source, .. } => migration_kind(source),
            Self::PoolTimeout { .. }
            | Self::TooSlow { .. }
            | Self::Http { .. }
            | Self::Socket { .. }
            | Self::TooLarge { .. }
            | Self::InDoubt { .. }
            | Self::Injected { .. } => ErrorKind::Transient,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Fenced { .. } => ErrorKind::Fenced,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Invalid { .. }
            | Self::Refused { .. }
            | Self::SchemaTooNew { .. }
            | Self::FolderInUse { .. } => ErrorKind::Invalid,
            Self::Corrupt { .. } | Self::SteppedBack { .. } | Self::Malformed { .. } => {
                ErrorKind::Corrupt
            }
            Self::Poisoned { .. } | Self::TransactionOver { .. } | Self::Crashed { .. } => {
                ErrorKind::Internal
            }
        }
    }

    /// Whether the handle that returned this can never work again: it must be reopened, so a process that
    /// depends on it must exit. A commit whose sync failed first returns `InDoubt`; later operations return a
    /// fatal error.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Poisoned { .. } | Self::Crashed { .. } => true,
            Self::TransactionOver { why } => *why == DATABASE_CLOSED,
            Self::Sqlite { .. } => self.kind() == ErrorKind::Internal,
            _ => false,
        }
    }

    /// Whether a statement used a table that does not exist.
    pub fn is_missing_table(&self) -> bool {
        match self {
            // SQLite has no error code for this.
            Self::Sqlite { source, .. } => source.to_string().contains("no such table"),
            Self::Postgres { source, .. } => source.code() == Some(&SqlState::UNDEFINED_TABLE),
            _ => false,
        }
    }

    /// Whether running the whole transaction again may succeed and cannot apply it twice.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            // A statement that hit its time limit would hit it again on every retry.
            Self::Postgres { source, .. } if source.code() == Some(&SqlState::QUERY_CANCELED) => {
                false
            }
            // A migration is one transaction that reads the history again.
            Self::Sqlite { .. }
            | Self::Postgres { .. }
            | Self::Migration { .. }
            | Self::Injected { .. } => self.kind() == ErrorKind::Transient && !self.is_disk_full(),
            _ => false,
        }
    }

    /// Converts an error that occurred before the commit was sent: nothing is in doubt then.
    pub(crate) fn before_commit(self) -> Self {
        match self {
            Self::InDoubt { source, .. } => *source,
            other => other,
        }
    }

    /// Converts the error of a commit: after a time-out it may still happen.
    pub(crate) fn doubt_if_slow(self) -> Self {
        match self {
            Self::TooSlow { doing, .. } => {
                Self::InDoubt { doing: doing.to_owned(), source: Box::new(self) }
            }
            other => other,
        }
    }

    /// Whether a SQLite file is damaged, or is not a database.
    pub fn is_malformed_file(&self) -> bool {
        let is_sqlite = match self {
            Self::Malformed { .. } | Self::Sqlite { .. } => true,
            Self::Migration { source, .. } => migration_cause::<rusqlite::Error>(source).is_some(),
            _ => false,
        };
        is_sqlite && self.kind() == ErrorKind::Corrupt
    }

    /// Whether the disk is full; an immediate retry is useless, but nothing is broken.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => sqlite_disk_full(source),
            Self::Postgres { source, .. } => source.code() == Some(&SqlState::DISK_FULL),
            Self::Migration { source, .. } => migration_cause(source).is_some_and(sqlite_disk_full),
            Self::File { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// The message and all its causes, on one line.
    pub fn chain(&self) -> String {
        error_chain(self)
    }
}

/// The message of any error and all its causes, on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

fn sqlite_kind(error: &rusqlite::Error) -> ErrorKind {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(
            Code::DatabaseBusy
            | Code::DatabaseLocked
            | Code::FileLockingProtocolFailed
            | Code::DiskFull,
        ) => ErrorKind::Transient,
        Some(Code::ConstraintViolation) => ErrorKind::Conflict,
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => ErrorKind::Corrupt,
        Some(Code::PermissionDenied | Code::ReadOnly | Code::CannotOpen) => ErrorKind::Invalid,
        // An invalid statement, or an error of one of our SQL functions; without a code, an invalid parameter
        // or column.
        Some(Code::Unknown | Code::TooBig | Code::TypeMismatch | Code::ParameterOutOfRange)
        | None => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    }
}

fn sqlite_disk_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// Kind of the database's error during a migration; a migration that failed changed nothing.
fn migration_kind(error: &refinery_core::Error) -> ErrorKind {
    let of_sqlite = migration_cause(error).map(sqlite_kind);
    let of_postgres = || migration_cause(error).map(postgres_kind);
    match of_sqlite.or_else(of_postgres) {
        Some(kind @ (ErrorKind::Transient | ErrorKind::Corrupt)) => kind,
        _ => ErrorKind::Internal,
    }
}

fn migration_cause<E: std::error::Error + 'static>(error: &refinery_core::Error) -> Option<&E> {
    match error.kind() {
        refinery_core::error::Kind::Connection(_, cause) => cause.downcast_ref(),
        _ => None,
    }
}

fn postgres_kind(error: &tokio_postgres::Error) -> ErrorKind {
    let Some(code) = error.code() else {
        return if connection_lost(error) { ErrorKind::Transient } else { ErrorKind::Invalid };
    };
    match code.code() {
        // The session was idle in a transaction for too long: this process was delayed.
        "25P03" => return ErrorKind::Transient,
        "XX001" | "XX002" => return ErrorKind::Corrupt,
        _ => {}
    }
    match code.code().get(..2).unwrap_or_default() {
        "08" | "40" | "53" | "57" | "55" => ErrorKind::Transient,
        "23" => ErrorKind::Conflict,
        "0A" | "22" | "28" | "3D" | "42" | "54" => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    }
}

/// Whether the socket failed: refused, reset or closed.
pub(crate) fn connection_lost(error: &tokio_postgres::Error) -> bool {
    use std::error::Error as _;
    let by_socket = || error.source().is_some_and(|cause| cause.is::<std::io::Error>());
    error.code().is_none() && (error.is_closed() || by_socket())
}

fn object_kind(error: &object_store::Error) -> ErrorKind {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => ErrorKind::Conflict,
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::UnknownConfigurationKey { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Transient,
    }
}

fn file_kind(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as K;
    match error.kind() {
        K::NotFound => ErrorKind::NotFound,
        K::PermissionDenied | K::ReadOnlyFilesystem | K::NotADirectory | K::InvalidInput => {
            ErrorKind::Invalid
        }
        K::AlreadyExists => ErrorKind::Conflict,
        K::StorageFull | K::QuotaExceeded | K::Interrupted | K::TimedOut => ErrorKind::Transient,
        _ => ErrorKind::Internal,
    }
}
