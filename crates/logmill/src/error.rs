//! The one error type of the binary: what the user at the terminal sees.
//!
//! Guarantees: every error has an exit code (1 for failures at run time, 2 for a wrong command or configuration), and
//! a hint where there is a remedy. Leaves to others: printing ([`crate::output`]), and keeping secrets out of messages.

use std::path::PathBuf;

use logmill_io::ErrorKind;
use logmill_serve::Error as ServeError;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

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
    /// An invalid environment variable of `logmill collect`.
    #[error("invalid chain config: {variable} {why}")]
    Collect { variable: &'static str, why: String },
    #[error("{ranges} ranges are missing: all attempts to collect them failed")]
    Missing { ranges: u64 },
    #[error("nothing has been collected for {consumer} on chain {chain_id}")]
    NothingCollected { chain_id: u64, consumer: &'static str },
    #[error(
        "{consumer} on chain {chain_id} has been collected from {collected}, and never from {requested}"
    )]
    OtherContracts { chain_id: u64, consumer: &'static str, collected: String, requested: String },
    #[error("nothing was verified: no block of chain {chain_id} is stored in this range")]
    NothingVerified { chain_id: u64 },
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
    #[error("usage is not metered: no event type is configured")]
    NothingMetered,
    #[error(
        "{partials} partials or aggregates did not match their events or revisions; {repaired} were repaired"
    )]
    Miscounted { partials: u64, repaired: u64 },
    #[error("recorded usage of {blocks} blocks differs from the stored chain")]
    ChainMiscounted { blocks: u64 },
    #[error("{processor} still serves its old tables: {why}")]
    TablesKept { processor: &'static str, why: String },
    #[error("the server did not complete the job {kind} {key}: {why}")]
    NotDoneByServer { kind: String, key: String, why: String },
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
    #[error("preflight checks failed: {what}")]
    PreflightFailed { what: String },
    #[error("no database at {}", path.display())]
    NoDatabase { path: PathBuf },
    #[error("{secrets} webhook secrets cannot be decrypted with any configured key")]
    SecretsUnreadable { secrets: u64 },
    #[error("the disk of {} has {free_mib} MiB left; ready.free_disk_mib requires {wanted}", folder.display())]
    DiskLow { folder: PathBuf, free_mib: u64, wanted: u64 },
    #[error("there are webhooks, but no key to encrypt their secrets")]
    NoSecretKey,
    #[error("several databases hold less than they once did: {}", all(databases))]
    SteppedBack { databases: Vec<logmill_io::Error> },
    #[error("several databases cannot be used: {}", all(databases))]
    BrokenDatabases { databases: Vec<logmill_io::Error> },
    #[error("there is no job {kind}/{key}")]
    NoJob { kind: String, key: String },
    #[error("no log index found in {place}")]
    NoIndex { place: String },
    #[error("no log index of chain {chain}; there are indexes of {}", list(known))]
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
        "{} holds the data folder {}, but this command needs exclusive access to it",
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
        "{} holds the data folder {}, but does not answer on its control socket",
        holder(*pid), folder.display()
    )]
    NoAnswer {
        folder: PathBuf,
        pid: Option<u32>,
        #[source]
        source: Box<Error>,
    },
    #[error("send the request to the server through {}", path.display())]
    Http {
        path: PathBuf,
        #[source]
        source: hyper::Error,
    },
    #[error(
        "the server did not answer within {waited_ms} ms, so the change may or may not have happened"
    )]
    NoAnswerInTime { waited_ms: u64 },
    #[error("the server sent an invalid response: {what}")]
    Garbled { what: String },
    #[error("the server refused the request: {message}")]
    Refused { message: String, hint: Option<String> },
    #[error("{task} ended unexpectedly")]
    TaskEnded { task: &'static str },
    #[error("{task} failed")]
    TaskFailed {
        task: &'static str,
        #[source]
        source: Box<Error>,
    },
    #[error("a task panicked")]
    Panicked {
        #[from]
        source: logmill_io::TaskPanic,
    },
    #[error("stopped at once by a second signal: running jobs are retried when their leases end")]
    StoppedAtOnce,
    #[error(
        "stopped after {deadline_ms} ms (work.stop_deadline_ms) although not everything had ended, perhaps because \
         the database hangs; the next process takes over its leases and jobs"
    )]
    StoppedUnfinished { deadline_ms: i64 },
    #[error("stopped by a signal")]
    Interrupted,
    #[error(transparent)]
    Serve(ServeError),
    #[error("{doing}")]
    System {
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("a check of the demo failed: {what}")]
    Demo { what: String },
    #[error("write to standard output")]
    Output(#[source] std::io::Error),
    #[error("{what}")]
    Internal { what: String },
}

impl From<ServeError> for Error {
    /// Errors of stores are the same wherever they come from.
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Store(error) => error.into(),
            ServeError::Pipeline(error) => error.into(),
            ServeError::Meter(error) => error.into(),
            ServeError::Panicked(source) => source.into(),
            error => Self::Serve(error),
        }
    }
}

impl Error {
    /// Wraps an error of a chain's log index.
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

    /// Whether the error may pass by itself.
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
            | Self::Serve(ServeError::NoKeys { .. }) => 2,
            Self::Index { source, .. } if is_invalid_query(source) => 2,
            _ => 1,
        }
    }

    /// Whether the reader of our output has closed it, which is not a failure: `logmill jobs list … | head`.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// What to do about it, where the message does not say.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { .. } => Some("`logmill config default` lists all keys"),
            Self::Preflight { hint, .. } => Some(hint),
            Self::NoDatabase { .. } => {
                Some("`logmill run` creates it; use --data to name another data folder")
            }
            Self::NoIndex { .. } => Some(
                "ingest creates it with the first block; use --data to name another data folder",
            ),
            Self::NoIndexOfChain { .. } => Some("`logmill index status` lists all indexes"),
            Self::ManyIndexes { .. } => Some("choose one with --chain"),
            Self::Index { source, .. } => index_hint(source),
            Self::FolderNeeded { .. } => Some(
                "stop it, or wait until it has ended; `logmill index status` and `logmill index logs` work beside it",
            ),
            Self::NoAnswer { .. } => Some("if it is starting or stopping, try again in a moment"),
            Self::NoAnswerInTime { .. } | Self::Http { .. } => {
                Some("repeat the command: a change that was already made is not made twice")
            }
            Self::Collect { .. } => Some("`logmill config default` explains how to set it"),
            Self::NothingMetered => Some("add event types to [meter.events] in the configuration"),
            Self::Miscounted { repaired: 0, .. } => {
                Some("--repair recomputes them; wrong aggregates are then corrected")
            }
            Self::ChainMiscounted { .. } => Some(
                "a running server corrects usage of replaced blocks by itself; see docs/metering.md, Proof",
            ),
            Self::Missing { .. } => {
                Some("`logmill collect --check` lists them; --redrive retries them")
            }
            Self::NothingCollected { .. } | Self::OtherContracts { .. } => Some(
                "check ACTIVE_CHAIN, CONTRACT_ADDRESS and EVENT, or run `logmill collect` first",
            ),
            Self::NothingVerified { .. } => Some(
                "`logmill index status` lists the stored blocks; check --from, --to and --chain",
            ),
            Self::Serve(ServeError::NoKeys { .. }) => {
                Some("set server.keys, or listen on 127.0.0.1")
            }
            Self::Serve(ServeError::Listen { .. }) => {
                Some("set server.listen to another address or port")
            }
            Self::NoJob { .. } => Some("`logmill jobs status` lists the kinds"),
            Self::Work(logmill_work::Error::Store(error))
            | Self::Meter(logmill_meter::Error::Store(error))
            | Self::Store(error) => store_hint(error),
            Self::Pipeline(logmill_pipeline::Error::Store(error)) => store_hint(error),
            Self::SteppedBack { .. } => Some(STEPPED_BACK),
            Self::BrokenDatabases { .. } => Some(BROKEN),
            Self::NoSecretKey => Some(
                "set secrets.keys or secrets.key_file; `logmill secrets generate` prints a new key",
            ),
            Self::SecretsUnreadable { .. } => {
                Some("add the keys that encrypted them; see docs/runbooks/webhook-secret-keys.md")
            }
            Self::Refused { hint, .. } => hint.as_deref(),
            Self::TaskFailed { source, .. } => source.hint(),
            _ => None,
        }
    }
}

/// Remedy for a database that holds less than it once did.
const STEPPED_BACK: &str = "restore it from a backup; or start once with --accept-loss, which gives up the missing \
    data for good. docs/runbooks/database-stepped-back.md in the source tree says how to decide";

/// Remedy for a damaged SQLite file.
const MALFORMED: &str = "stop the server and copy the data folder before anything else; then restore the file from a \
    backup. docs/runbooks/damaged-database.md in the source tree says how, and what can be recovered";

/// Remedy for several files that are damaged or hold less than they once did.
const BROKEN: &str = "restore them from a backup: docs/runbooks/damaged-database.md and database-stepped-back.md in \
    the source tree say how";

fn all(errors: &[logmill_io::Error]) -> String {
    errors.iter().map(logmill_io::Error::chain).collect::<Vec<_>>().join("; ")
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

fn list(chains: &[u64]) -> String {
    chains.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn is_invalid_query(error: &finalized_log_index::Error) -> bool {
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
            Some("`logmill index status` shows the covered blocks")
        }
        E::QueryTooBroad { .. } => {
            Some("ask for fewer alternatives, or see index.max_or_terms and index.broad_policy")
        }
        E::DeadlineExceeded { .. } => Some("ask for fewer blocks, or see index.query_deadline_ms"),
        _ => None,
    }
}

pub(crate) fn store_hint(error: &logmill_io::Error) -> Option<&'static str> {
    use logmill_io::Error as E;
    if error.is_disk_full() {
        return Some("free some space; acknowledged writes are safe, others did not happen");
    }
    if error.is_malformed_file() {
        return Some(MALFORMED);
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
            Some("42501") => Some("grant the user of database.url the right to create tables"),
            Some(_) => None,
            None => Some("check that PostgreSQL runs, and host and port of database.url"),
        },
        E::PoolTimeout { .. } => {
            Some("check that PostgreSQL runs, and host and port of database.url")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serving_other_machines_without_keys_is_a_wrong_configuration() {
        let address = "0.0.0.0:80".parse().expect("an address");
        assert_eq!(Error::from(ServeError::NoKeys { address }).exit_code(), 2);
    }
}
