//! The one error of this crate, and the kinds that tell a caller what to do about it.
//!
//! Guarantees: every error names what was being done and to which thing, keeps its cause as a source, and
//! answers [`Error::kind`]. Leaves to others: logging (an error is logged where it ends) and deciding how
//! often to try again.

use std::path::PathBuf;

use tokio_postgres::error::SqlState;

/// Result of an operation on the outside world.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Try again later: nothing is wrong with the request.
    Transient,
    /// Somebody else was first: read again and decide anew.
    Conflict,
    /// The caller's lease or token is stale: stop, and touch nothing.
    Fenced,
    /// The thing named does not exist.
    NotFound,
    /// The request or the configuration is wrong: trying again gives the same answer.
    Invalid,
    /// Stored data is not what was written: stop and tell the operator.
    Corrupt,
    /// A bug, or a handle that may no longer be used.
    Internal,
}

/// Everything that can go wrong on the way to the outside world.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite refused a statement or could not open a file.
    #[error("sqlite: {doing}")]
    Sqlite {
        /// What was being done.
        doing: String,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// PostgreSQL refused a statement or the connection broke.
    #[error("postgresql: {doing}")]
    Postgres {
        /// What was being done.
        doing: String,
        /// What the server or the socket said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// No PostgreSQL connection could be had in time.
    #[error("postgresql: no free connection within {waited_ms} ms (pool of {connections})")]
    PoolTimeout {
        /// How long the caller waited.
        waited_ms: u64,
        /// How many connections the pool holds at most.
        connections: usize,
    },
    /// The outcome of a commit is unknown: the answer was lost on the way.
    #[error("the answer to a commit was lost, so it may or may not have happened: {doing}")]
    InDoubt {
        /// What was being committed.
        doing: String,
        /// How the answer was lost.
        #[source]
        source: Box<Error>,
    },
    /// A migration failed.
    #[error("migrate the schema of {component}")]
    Migration {
        /// Whose tables.
        component: &'static str,
        /// What went wrong.
        #[source]
        source: Box<refinery_core::Error>,
    },
    /// The database was written by a newer Logmill.
    #[error(
        "the database holds version {found} of the {component} tables, and this program knows only up to \
         {known}: run a Logmill at least as new as the one that wrote it"
    )]
    SchemaTooNew {
        /// Whose tables.
        component: &'static str,
        /// The version in the database.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// Another process holds the data folder.
    #[error(
        "the data folder {} is in use by another Logmill{}: stop that one, or send the command to it",
        folder.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    FolderInUse {
        /// The folder.
        folder: PathBuf,
        /// Who holds it, if it said so.
        pid: Option<u32>,
    },
    /// A database holds less than it once did.
    #[error("the database {} has stepped back: {what}", path.display())]
    SteppedBack {
        /// The file.
        path: PathBuf,
        /// What it holds, and what it held.
        what: String,
    },
    /// A file operation failed.
    #[error("{doing} {}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The object store refused or could not be reached.
    #[error("object store: {doing} {name}")]
    Object {
        /// What was being done.
        doing: &'static str,
        /// To which blob.
        name: String,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
    /// A server could not be reached by HTTP, or the connection broke.
    #[error("http: {doing} {place}")]
    Http {
        /// What was being done.
        doing: &'static str,
        /// Host and port.
        place: String,
        /// What went wrong, without the address.
        #[source]
        source: reqwest::Error,
    },
    /// A WebSocket or a Unix socket could not be opened, or broke.
    #[error("socket: {doing} {place}")]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// Host and port, or the name of the file.
        place: String,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A server was not asked, or its answer not taken, because that is not allowed.
    #[error("http: {place} is refused: {why}")]
    Refused {
        /// Host and port.
        place: String,
        /// Why.
        why: String,
    },
    /// An answer is larger than it may be.
    #[error("the answer of {what} has more than {limit_bytes} bytes")]
    TooLarge {
        /// Whose answer.
        what: String,
        /// How large it may be.
        limit_bytes: usize,
    },
    /// The condition of a write did not hold.
    #[error("{what} was changed by somebody else")]
    Conflict {
        /// The key or blob.
        what: String,
    },
    /// The fence of a write is stale.
    #[error("fenced: {fence} is no longer held at {counter}")]
    Fenced {
        /// The name of the fence.
        fence: String,
        /// The counter that the caller carried.
        counter: i64,
    },
    /// The thing named does not exist.
    #[error("{what} does not exist")]
    NotFound {
        /// The thing.
        what: String,
    },
    /// The request is wrong.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// Stored data is not what was written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which data, and how it shows.
        what: String,
    },
    /// A sync failed earlier: what the disk holds is unknown, so the handle refuses all further use.
    #[error("{what} refuses to go on: an earlier sync to disk failed; check the disk and restart")]
    Poisoned {
        /// The handle.
        what: String,
    },
    /// Something took longer than anything should.
    #[error("{doing}: no answer within {limit_ms} ms")]
    TooSlow {
        /// What was being done.
        doing: &'static str,
        /// How long that may take.
        limit_ms: u64,
    },
    /// A transaction was used after its end, or was to be committed although it had failed.
    #[error("the transaction is over: {why}")]
    TransactionOver {
        /// Why.
        why: &'static str,
    },
    /// A fault put there on purpose by a test.
    #[error("injected fault at operation {operation}")]
    Injected {
        /// The number of the operation.
        operation: u64,
    },
    /// The simulated process died at an earlier operation.
    #[error("crashed at operation {operation}")]
    Crashed {
        /// The operation at which it died.
        operation: u64,
    },
}

impl Error {
    /// What the caller should do.
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
            Self::Corrupt { .. } | Self::SteppedBack { .. } => ErrorKind::Corrupt,
            Self::Poisoned { .. } | Self::TransactionOver { .. } | Self::Crashed { .. } => {
                ErrorKind::Internal
            }
        }
    }

    /// Whether the handle that returned this can never work again: it must be opened again, and so a process that
    /// depends on it must end. A commit whose sync failed is in doubt first; what follows it is fatal.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Poisoned { .. } | Self::Crashed { .. } => true,
            Self::TransactionOver { why } => *why == crate::sql::CLOSED,
            Self::Sqlite { .. } => self.kind() == ErrorKind::Internal,
            _ => false,
        }
    }

    /// Whether a statement named a table that does not exist.
    pub fn is_missing_table(&self) -> bool {
        match self {
            // SQLite has no code of its own for it.
            Self::Sqlite { source, .. } => source.to_string().contains("no such table"),
            Self::Postgres { source, .. } => source.code() == Some(&SqlState::UNDEFINED_TABLE),
            _ => false,
        }
    }

    /// Whether the same transaction, run again from its start, may well succeed and can not apply twice.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            // A statement that ran into its time limit would do so ten times over.
            Self::Postgres { source, .. } if source.code() == Some(&SqlState::QUERY_CANCELED) => {
                false
            }
            // A migration is one transaction that looks at the history anew.
            Self::Sqlite { .. }
            | Self::Postgres { .. }
            | Self::Migration { .. }
            | Self::Injected { .. } => self.kind() == ErrorKind::Transient && !self.is_disk_full(),
            _ => false,
        }
    }

    /// The same error, known to have happened before the commit was sent: then there is no doubt.
    pub(crate) fn before_commit(self) -> Self {
        match self {
            Self::InDoubt { source, .. } => *source,
            other => other,
        }
    }

    /// The same error of a commit: one that was too slow may still happen.
    pub(crate) fn doubt_if_slow(self) -> Self {
        match self {
            Self::TooSlow { doing, .. } => {
                Self::InDoubt { doing: doing.to_owned(), source: Box::new(self) }
            }
            other => other,
        }
    }

    /// Whether the disk is full; trying again at once is useless, but nothing is broken.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => sqlite_disk_full(source),
            Self::Postgres { source, .. } => source.code() == Some(&SqlState::DISK_FULL),
            Self::Migration { source, .. } => migration_cause(source).is_some_and(sqlite_disk_full),
            Self::File { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// Shorthand for [`Error::Invalid`].
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    /// Shorthand for [`Error::Corrupt`].
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// The message and all its causes, on one line, for the place where an error ends.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// The message of any error with all its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
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
        // A statement that is wrong, or a function of ours that refused; without a code, a wrong parameter or column.
        Some(Code::Unknown | Code::TooBig | Code::TypeMismatch | Code::ParameterOutOfRange)
        | None => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    }
}

fn sqlite_disk_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// What the database said while it was migrated; nothing changed unless the whole migration was done.
fn migration_kind(error: &refinery_core::Error) -> ErrorKind {
    let of_sqlite = migration_cause(error).map(sqlite_kind);
    let of_postgres = || migration_cause(error).map(postgres_kind);
    match of_sqlite.or_else(of_postgres) {
        Some(ErrorKind::Transient) => ErrorKind::Transient,
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
        // The session waited too long inside of a transaction: this process was held up.
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

/// Whether the socket failed: refused, reset, closed.
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
