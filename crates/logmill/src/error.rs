//! The one error of the binary: what the person at the terminal is told.
//!
//! Guarantees: every error has an exit code (1 for what went wrong while running, 2 for a wrong command or
//! configuration), and where there is something to do about it, a hint. Leaves to others: printing
//! ([`crate::output`]), and not putting secrets into messages in the first place.

use std::path::PathBuf;

use logmill_io::ErrorKind;

/// Result of a command.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{origin}: unknown key {key}")]
    UnknownKey { origin: String, key: String },
    #[error("{origin}: {key}: {why}")]
    BadValue { origin: String, key: String, why: String },
    #[error("{origin}:{line}: {why}")]
    ConfigSyntax { origin: String, line: usize, why: String },
    #[error("read the config file {}", path.display())]
    ConfigFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// One of the variables of `logmill collect`.
    #[error("{variable}: {why}")]
    Collect { variable: &'static str, why: String },
    #[error("{ranges} ranges are missing: nobody could collect them")]
    Missing { ranges: u64 },
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    #[error(transparent)]
    Work(#[from] logmill_work::Error),
    #[error(transparent)]
    Chain(#[from] logmill_chain::Error),
    #[error(transparent)]
    Pipeline(#[from] logmill_pipeline::Error),
    #[error(transparent)]
    Meter(#[from] logmill_meter::Error),
    #[error("nothing is metered: there are no event types")]
    NothingMetered,
    #[error("{partials} partials did not equal their events; {repaired} were mended")]
    Miscounted { partials: u64, repaired: u64 },
    #[error("recorded usage of {blocks} blocks is not what the stored chain says")]
    ChainMiscounted { blocks: u64 },
    #[error("{blocks} stored blocks are damaged")]
    Damaged { blocks: u64 },
    #[error("{what} ({setting})")]
    Preflight {
        setting: &'static str,
        what: String,
        hint: &'static str,
        #[source]
        source: Box<Error>,
    },
    #[error("the preflight failed: {what}")]
    PreflightFailed { what: String },
    #[error("there is no database {}", path.display())]
    NoDatabase { path: PathBuf },
    #[error("{secrets} secrets of webhooks cannot be decrypted with any key that is configured")]
    SecretsUnreadable { secrets: u64 },
    #[error("there are webhooks, and no key to encrypt their secrets with")]
    NoSecretKey,
    #[error("databases have stepped back: {}", all(databases))]
    SteppedBack { databases: Vec<logmill_io::Error> },
    #[error("there is no job {kind}/{key}")]
    NoJob { kind: String, key: String },
    #[error("there is no log index: nothing is in {place}")]
    NoIndex { place: String },
    #[error("there is no log index of chain {chain}, but of {}", list(known))]
    NoIndexOfChain { chain: u64, known: Vec<u64> },
    #[error("there are log indexes of several chains: {}", list(known))]
    ManyIndexes { known: Vec<u64> },
    #[error("the log index of chain {chain}")]
    Index {
        chain: u64,
        #[source]
        source: Box<finalized_log_index::Error>,
    },
    #[error(
        "{} has the data folder {}, and this command needs it for itself",
        holder(*pid), folder.display()
    )]
    FolderNeeded { folder: PathBuf, pid: Option<u32> },
    #[error("{doing} the control socket {}", path.display())]
    Socket {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} has the data folder {}, but does not answer on its control socket",
        holder(*pid), folder.display()
    )]
    NoAnswer {
        folder: PathBuf,
        pid: Option<u32>,
        #[source]
        source: Box<Error>,
    },
    #[error("speak to the server through {}", path.display())]
    Http {
        path: PathBuf,
        #[source]
        source: hyper::Error,
    },
    #[error(
        "the server did not answer within {waited_ms} ms, so the change may or may not have happened"
    )]
    NoAnswerInTime { waited_ms: u64 },
    #[error("the server gave an answer that is not understood: {what}")]
    Garbled { what: String },
    #[error("the server refused: {message}")]
    Refused { message: String, hint: Option<String> },
    #[error("{task} ended unexpectedly")]
    TaskEnded { task: &'static str },
    #[error("{task} failed")]
    TaskFailed {
        task: &'static str,
        #[source]
        source: Box<Error>,
    },
    #[error("a task did not return")]
    Panicked {
        #[from]
        source: logmill_io::Panicked,
    },
    #[error(
        "stopped at once by a second signal: jobs that ran are given back when their leases end"
    )]
    StoppedAtOnce,
    #[error(
        "stopped after {deadline_ms} ms (work.stop_deadline_ms) although not everything had ended: does the database \
         hang? What was held is taken over by the next process"
    )]
    StoppedUnfinished { deadline_ms: i64 },
    #[error("stopped by a signal")]
    Interrupted,
    #[error("listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("{address} can be reached from elsewhere, and there are no keys")]
    NoKeys { address: std::net::SocketAddr },
    #[error("{doing}")]
    System {
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the demo found what must not be: {what}")]
    Demo { what: String },
    #[error("write to standard output")]
    Output(#[source] std::io::Error),
    #[error("{what}")]
    Internal { what: String },
}

impl Error {
    /// What the log index of a chain refuses.
    pub(crate) fn of_index(chain: u64) -> impl Fn(finalized_log_index::Error) -> Self {
        move |error| Self::Index { chain, source: Box::new(error) }
    }

    /// Whether a store can never work again; see [`logmill_io::Error::is_fatal`].
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Store(error) => error.is_fatal(),
            Self::Work(error) => error.is_fatal(),
            Self::Pipeline(error) => error.is_fatal(),
            Self::Meter(error) => error.is_fatal(),
            Self::Index { source, .. } => source.is_fatal(),
            Self::TaskFailed { source, .. } => source.is_fatal(),
            _ => false,
        }
    }

    /// Whether it may pass by itself.
    pub(crate) fn is_transient(&self) -> bool {
        let kind = match self {
            Self::Store(error) => error.kind(),
            Self::Work(error) => error.kind(),
            Self::Chain(error) => error.kind(),
            Self::Pipeline(error) => error.kind(),
            Self::Meter(error) => error.kind(),
            Self::Index { source, .. } => source.kind(),
            _ => return false,
        };
        kind == ErrorKind::Transient
    }

    /// 2 if the command or the configuration is wrong, else 1.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownKey { .. }
            | Self::BadValue { .. }
            | Self::ConfigSyntax { .. }
            | Self::ConfigFile { .. }
            | Self::ManyIndexes { .. }
            | Self::NothingMetered
            | Self::NoSecretKey
            | Self::NoKeys { .. } => 2,
            Self::Index { source, .. } if is_wrong_question(source) => 2,
            _ => 1,
        }
    }

    /// Whether whoever read our output went away, which is no failure: `logmill jobs list … | head`.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// What to do about it, where the message does not say.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { .. } => Some("`logmill config default` shows all keys"),
            Self::Preflight { hint, .. } => Some(hint),
            Self::NoDatabase { .. } => {
                Some("`logmill run` makes one; --data names another data folder")
            }
            Self::NoIndex { .. } => {
                Some("ingest makes it with the first block; --data names another data folder")
            }
            Self::NoIndexOfChain { .. } => Some("`logmill index status` shows all that there are"),
            Self::ManyIndexes { .. } => Some("--chain says which is meant"),
            Self::Index { source, .. } => index_hint(source),
            Self::FolderNeeded { .. } => Some(
                "stop it, or wait until it has ended; `logmill index status` and `logs` work beside it",
            ),
            Self::NoAnswer { .. } => Some("if it is starting or stopping, try again in a moment"),
            Self::NoAnswerInTime { .. } | Self::Http { .. } => {
                Some("every command may be given again: what has happened happens only once")
            }
            Self::Collect { .. } => Some("`logmill config default` says how each can be set"),
            Self::NothingMetered => Some("[meter.events] of the configuration names them"),
            Self::Miscounted { repaired: 0, .. } => {
                Some("--repair mends them; aggregates that were wrong are then corrected")
            }
            Self::ChainMiscounted { .. } => Some(
                "a running server corrects usage of replaced blocks by itself; see docs/metering.md, Proof",
            ),
            Self::Missing { .. } => {
                Some("`logmill collect --check` lists them; --redrive has them tried again")
            }
            Self::NoKeys { .. } => Some("set server.keys, or listen on 127.0.0.1"),
            Self::Listen { .. } => Some("server.listen names another address or port"),
            Self::NoJob { .. } => Some("`logmill jobs status` shows the kinds that there are"),
            Self::Work(logmill_work::Error::Store(error))
            | Self::Meter(logmill_meter::Error::Store(error))
            | Self::Store(error) => store_hint(error),
            Self::SteppedBack { .. } => Some(STEPPED_BACK),
            Self::NoSecretKey => {
                Some("set secrets.keys or secrets.key_file; `logmill secrets generate` makes a key")
            }
            Self::SecretsUnreadable { .. } => {
                Some("add the keys that encrypted them; see docs/runbooks/webhook-secret-keys.md")
            }
            Self::Refused { hint, .. } => hint.as_deref(),
            Self::TaskFailed { source, .. } => source.hint(),
            _ => None,
        }
    }
}

/// What to do about a database that holds less than it once did.
const STEPPED_BACK: &str = "restore it from a backup; or start once with --accept-loss, and what is missing is \
    lost for good. docs/runbooks/database-stepped-back.md in the source tree says how to tell";

fn all(errors: &[logmill_io::Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

fn list(chains: &[u64]) -> String {
    chains.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn is_wrong_question(error: &finalized_log_index::Error) -> bool {
    matches!(error, finalized_log_index::Error::InvalidFilter { .. })
}

fn index_hint(error: &finalized_log_index::Error) -> Option<&'static str> {
    use finalized_log_index::Error as E;
    match error {
        E::Store(error) => store_hint(error),
        E::Degraded { .. } => {
            Some("`logmill index status` says what to do; see docs/runbooks in the source tree")
        }
        E::Standby => Some(
            "stop the process that writes it, and try again; if it crashed, its lease ends within \
             half a minute",
        ),
        E::Corrupt { .. } | E::ChunkMissing { .. } => {
            Some("docs/runbooks/corrupt-chunk.md in the source tree says what to do")
        }
        E::NotCovered { .. } | E::Pruned { .. } => {
            Some("`logmill index status` shows what is covered")
        }
        E::QueryTooBroad { .. } => Some("see index.max_or_terms and index.broad_policy"),
        E::DeadlineExceeded { .. } => Some("ask for fewer blocks, or see index.query_deadline_ms"),
        _ => None,
    }
}

pub(crate) fn store_hint(error: &logmill_io::Error) -> Option<&'static str> {
    use logmill_io::Error as E;
    if error.is_disk_full() {
        return Some("free some space; what was acknowledged is safe, what was not did not happen");
    }
    match error {
        E::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Some("run as the owner of the data folder, or name another with --data")
        }
        E::Sqlite { .. } if error.kind() == ErrorKind::Invalid => {
            Some("check that this user may read and write the data folder, and all files in it")
        }
        E::SteppedBack { .. } => Some(STEPPED_BACK),
        E::Postgres { source, .. } => match source.code().map(|code| code.code()) {
            Some("28P01" | "28000") => Some("check user and password of database.url"),
            Some("3D000") => Some("create the database, or name another in database.url"),
            Some("42501") => Some("the user of database.url needs the right to create tables"),
            Some(_) => None,
            None => Some("check that PostgreSQL runs, and host and port of database.url"),
        },
        E::PoolTimeout { .. } => {
            Some("check that PostgreSQL runs, and host and port of database.url")
        }
        _ => None,
    }
}
