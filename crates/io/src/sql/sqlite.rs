//! SQLite: one file, one writer thread, and a few reading connections.
//!
//! ```text
//!   statement ──▶ channel ──▶ lanes ──▶ writer thread ──▶ file (WAL)
//!   query     ──────────────▶ reader pool   ──▶ file (WAL, read-only)
//! ```
//!
//! Statements that arrive while the writer is busy are committed together, each caller in its own savepoint, so
//! that many callers share one sync. A transaction has exclusive use of the writer from begin to end; if its
//! caller is dropped, it is rolled back. Waiting commands are served in turn by lane ([`lanes`]).
//!
//! In `inline` mode there are no threads: everything runs on the caller's thread, as a simulation with a paused
//! clock needs.
//!
//! A file that holds less than its sidecar remembers ([`sidecar`]) is not opened. When the last handle is
//! dropped, the write-ahead log is copied back, so that a clean stop leaves none.
//!
//! Guarantees: under [`Durability::Full`] a commit that has returned is on disk; after a failed write or sync
//! the handle refuses everything. Leaves to others: retries, rewriting, one writing process per folder
//! ([`crate::sql::DataFolder`]).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver as ThreadEnd, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};

use super::{Durability, Statement, StatementResult, Value};
use crate::clock::Clock;
use crate::error::{DATABASE_CLOSED, Error, Result};
use crate::private;
use health::Health;
use lanes::Lanes;
use readers::Readers;
use sidecar::Sidecar;
use writer::{
    Call, Command, StatementGroup, Step, WriteConnection, alone, begin, end, run, write_loop,
};

mod health;
mod lanes;
mod readers;
mod sidecar;
mod writer;

/// Maximum number of statements waiting for the writer thread.
const WAITING_MAX: usize = 1_024;
/// How long SQLite waits for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENT_CACHE: usize = 256;
/// Size at which the write-ahead log is copied back: 64 MiB.
const CHECKPOINT_PAGES: u32 = 16_384;

/// How long dropping the last handle waits for the writer thread to copy the write-ahead log back.
const CLOSE_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct SqliteSettings {
    /// `None` for a database in memory.
    pub path: Option<PathBuf>,
    pub durability: Durability,
    /// Run on the caller's thread, for simulations.
    pub inline: bool,
    /// Refuse all writes, and create nothing.
    pub read_only: bool,
    /// Open a database even if it holds less than its sidecar remembers, and reset the sidecar.
    pub accept_loss: bool,
}

impl SqliteSettings {
    /// A durable database in a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Some(path.into()),
            durability: Durability::Full,
            inline: false,
            read_only: false,
            accept_loss: false,
        }
    }

    fn check_step_back(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        match check_step_back(path) {
            Err(error @ Error::SteppedBack { .. }) if self.accept_loss && !self.read_only => {
                tracing::warn!(
                    error = error.chain(),
                    "opening a database that has lost commits, because the loss is accepted"
                );
                Ok(())
            }
            checked => checked,
        }
    }

    /// A database in memory, on the caller's thread.
    pub fn memory() -> Self {
        Self {
            path: None,
            durability: Durability::Relaxed,
            inline: true,
            read_only: false,
            accept_loss: false,
        }
    }
}

/// Refuses a database file that holds less than its sidecar remembers. Changes nothing.
pub fn check_step_back(path: &Path) -> Result<()> {
    sidecar::check(path)
}

/// [`check_step_back`]; also reads the whole file and refuses one that is malformed.
pub fn check_database(path: &Path) -> Result<()> {
    sidecar::check(path)?;
    sidecar::check_pages(path)
}

#[derive(Debug)]
pub(super) struct Sqlite {
    writer: Writer,
    readers: Option<Readers>,
    health: Arc<Health>,
    /// Disconnected when the writer thread has ended.
    ended: Option<Mutex<ThreadEnd<()>>>,
}

impl Drop for Sqlite {
    /// Waits until the write-ahead log is copied back; the process may exit right after.
    fn drop(&mut self) {
        self.readers = None;
        self.writer = Writer::Closed;
        if let Some(ended) = self.ended.take() {
            // The thread drops its sender when it is done.
            let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(CLOSE_MAX);
        }
    }
}

enum Writer {
    Thread(mpsc::Sender<(u64, Command)>),
    Inline(Arc<tokio::sync::Mutex<WriteConnection>>),
    Closed,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Thread(_) => "Thread",
            Self::Inline(_) => "Inline",
            Self::Closed => "Closed",
        })
    }
}

impl Sqlite {
    pub(super) fn open(settings: &SqliteSettings, clock: &Arc<dyn Clock>) -> Result<Self> {
        let name =
            settings.path.as_ref().map_or("memory".into(), |path| path.display().to_string());
        let health = Arc::new(Health::new(name));
        settings.check_step_back()?;
        if let Some(path) = settings.path.as_ref().filter(|_| !settings.read_only) {
            // SQLite would create the file with the user's umask; its log gets the mode of the file.
            private::touch(path)?;
        }
        let mut connection = health.check(connect(settings, clock, settings.read_only), "open")?;
        let sidecar = match &settings.path {
            Some(path) if !settings.read_only => {
                Some(Sidecar::open(&mut connection, path, settings.durability)?)
            }
            _ => None,
        };
        let connection = WriteConnection::new(connection, sidecar);
        if settings.inline || settings.path.is_none() {
            let writer = Writer::Inline(Arc::new(tokio::sync::Mutex::new(connection)));
            return Ok(Self { writer, readers: None, health, ended: None });
        }
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let (running, ended) = sync_channel(1);
        let thread_health = Arc::clone(&health);
        let durability = settings.durability;
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || {
                write_loop(connection, Lanes::new(receiver), durability, &thread_health);
                drop::<std::sync::mpsc::SyncSender<()>>(running);
            })
            .map_err(|source| Error::File {
                doing: "start the writer thread of",
                path: settings.path.clone().unwrap_or_default(),
                source,
            })?;
        let readers = Some(Readers::new(settings.clone(), Arc::clone(clock)));
        let ended = Some(Mutex::new(ended));
        Ok(Self { writer: Writer::Thread(sender), readers, health, ended })
    }

    /// Path of the file, for messages.
    pub(super) fn name(&self) -> &str {
        self.health.name()
    }

    /// Checks that the handle is not poisoned and that its writer thread runs.
    pub(super) fn usable(&self) -> Result<()> {
        self.health.usable()?;
        match &self.writer {
            Writer::Thread(sender) if sender.is_closed() => Err(gone()),
            _ => Ok(()),
        }
    }

    /// Runs one statement in its own transaction.
    pub(super) async fn one(
        &self,
        lane: u64,
        text: Arc<str>,
        params: Vec<Value>,
    ) -> Result<StatementResult> {
        let answers = self.together(lane, vec![(text, params)]).await?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    /// Runs statements in one transaction.
    pub(super) async fn together(
        &self,
        lane: u64,
        statements: Vec<Statement>,
    ) -> Result<Vec<StatementResult>> {
        self.health.usable()?;
        match &self.writer {
            Writer::Thread(sender) => {
                let (answer, answered) = oneshot::channel();
                let command = Command::StatementGroup(StatementGroup { statements, answer });
                sender.send((lane, command)).await.map_err(|_| gone())?;
                answered.await.map_err(|_| gone())?
            }
            Writer::Inline(connection) => {
                tokio::task::yield_now().await;
                alone(&mut *connection.lock().await, &statements, &self.health)
            }
            Writer::Closed => Err(gone()),
        }
    }

    /// Runs one query, which sees the last commit.
    pub(super) async fn query(
        &self,
        text: Arc<str>,
        params: Vec<Value>,
    ) -> Result<StatementResult> {
        let Some(readers) = &self.readers else {
            return self.one(0, text, params).await;
        };
        self.health.usable()?;
        let health = Arc::clone(&self.health);
        readers.with(move |connection| health.check(run(connection, &text, &params), &text)).await
    }

    /// Runs `call` with exclusive use of the writing connection.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T> {
        let health = Arc::clone(&self.health);
        let call = move |connection: &mut Connection| health.usable().map(|()| call(connection));
        match &self.writer {
            Writer::Thread(sender) => {
                let (boxed, answered) = boxed(call);
                sender.send((0, Command::Call(boxed))).await.map_err(|_| gone())?;
                answered.await.map_err(|_| gone())?
            }
            Writer::Inline(connection) => call(&mut *connection.lock().await),
            Writer::Closed => Err(gone()),
        }
    }

    /// Rewrites the file and empties its log.
    pub(super) async fn erase_deleted(&self) -> Result<()> {
        let health = Arc::clone(&self.health);
        let erase = |connection: &mut Connection| -> rusqlite::Result<()> {
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        };
        self.call(move |connection| health.check(erase(connection), "VACUUM")).await?
    }

    pub(super) async fn begin(&self, lane: u64) -> Result<SqliteTx> {
        self.health.usable()?;
        let health = Arc::clone(&self.health);
        match &self.writer {
            Writer::Thread(sender) => {
                let (begun, has_begun) = oneshot::channel();
                let (step, steps) = mpsc::channel(1);
                let command = Command::Begin { begun, steps };
                sender.send((lane, command)).await.map_err(|_| gone())?;
                has_begun.await.map_err(|_| gone())??;
                Ok(SqliteTx { session: Session::Thread(step), health })
            }
            Writer::Inline(connection) => {
                tokio::task::yield_now().await;
                let mut guard = Arc::clone(connection).lock_owned().await;
                begin(&mut guard, &health)?;
                Ok(SqliteTx { session: Session::Inline(Mutex::new(InlineTx(Some(guard)))), health })
            }
            Writer::Closed => Err(gone()),
        }
    }
}

/// A transaction with exclusive use of the writer.
#[derive(Debug)]
pub(super) struct SqliteTx {
    session: Session,
    health: Arc<Health>,
}

#[derive(Debug)]
enum Session {
    Thread(mpsc::Sender<Step>),
    Inline(Mutex<InlineTx>),
}

/// Rolls back if it is dropped before its end.
#[derive(Debug)]
struct InlineTx(Option<OwnedMutexGuard<WriteConnection>>);

impl Drop for InlineTx {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // A failure cannot be handled here; the next BEGIN would report it.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
}

impl SqliteTx {
    pub(super) async fn one(&self, text: Arc<str>, params: Vec<Value>) -> Result<StatementResult> {
        let health = Arc::clone(&self.health);
        self.call(move |connection| within(connection, &text, &params, &health)).await?
    }

    /// Runs one statement for each set of parameters; returns how many rows each changed.
    pub(super) async fn many(&self, text: Arc<str>, sets: Arc<[Vec<Value>]>) -> Result<Vec<u64>> {
        let health = Arc::clone(&self.health);
        self.call(move |connection| many(connection, &text, &sets, &health)).await?
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T> {
        self.health.usable()?;
        match &self.session {
            Session::Thread(step) => {
                let (boxed, answered) = boxed(call);
                step.send(Step::Call(boxed)).await.map_err(|_| over())?;
                answered.await.map_err(|_| over())
            }
            Session::Inline(guard) => {
                tokio::task::yield_now().await;
                let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(call(guard.0.as_mut().ok_or_else(over)?))
            }
        }
    }

    pub(super) async fn end(&self, commit: bool) -> Result<()> {
        match &self.session {
            Session::Thread(step) => {
                let (ended, has_ended) = oneshot::channel();
                step.send(Step::End { commit, ended }).await.map_err(|_| over())?;
                has_ended.await.map_err(|_| over())?
            }
            Session::Inline(guard) => {
                let taken = guard.lock().unwrap_or_else(PoisonError::into_inner).0.take();
                let mut connection = taken.ok_or_else(over)?;
                end(&mut connection, commit, &self.health)
            }
        }
    }
}

/// Runs one statement of a transaction, unless SQLite has aborted the transaction (full disk): the statement
/// would then commit by itself.
fn within(
    connection: &Connection,
    text: &str,
    params: &[Value],
    health: &Health,
) -> Result<StatementResult> {
    if connection.is_autocommit() {
        return Err(over());
    }
    health.check(run(connection, text, params), text)
}

/// Runs one statement of a transaction for each set of parameters.
fn many(
    connection: &Connection,
    text: &str,
    sets: &[Vec<Value>],
    health: &Health,
) -> Result<Vec<u64>> {
    let mut statement = health.check(connection.prepare_cached(text), text)?;
    if statement.column_count() > 0 {
        let each = sets.iter().map(|set| Ok(within(connection, text, set, health)?.changed));
        return each.collect();
    }
    let changed = sets.iter().map(|set| {
        if connection.is_autocommit() {
            return Err(over());
        }
        let changed = statement.execute(rusqlite::params_from_iter(set));
        Ok(health.check(changed, text)? as u64)
    });
    changed.collect()
}

fn boxed<T: Send + 'static>(
    call: impl FnOnce(&mut Connection) -> T + Send + 'static,
) -> (Call, oneshot::Receiver<T>) {
    let (answer, answered) = oneshot::channel();
    // A dropped caller does not need the answer.
    let boxed = Box::new(move |connection: &mut Connection| drop(answer.send(call(connection))));
    (boxed, answered)
}

fn gone() -> Error {
    Error::TransactionOver { why: DATABASE_CLOSED }
}

fn over() -> Error {
    Error::TransactionOver { why: "it has already been committed, rolled back or aborted" }
}

fn connect(
    settings: &SqliteSettings,
    clock: &Arc<dyn Clock>,
    read_only: bool,
) -> rusqlite::Result<Connection> {
    let connection = match &settings.path {
        None => Connection::open_in_memory()?,
        Some(path) => {
            let access = if read_only {
                OpenFlags::SQLITE_OPEN_READ_ONLY
            } else {
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
            };
            Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?
        }
    };
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    // Plans must not depend on parameters; otherwise SQLite recompiles a cached statement whenever a value
    // changes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if read_only {
        connection.pragma_update(None, "query_only", true)?;
    } else if settings.path.is_some() {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let level = match settings.durability {
            Durability::Full => "FULL",
            Durability::Relaxed => "OFF",
        };
        connection.pragma_update(None, "synchronous", level)?;
        // A page that many transactions change is then copied back once for all of them.
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    }
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -32_768)?;
    super::amount::register(&connection)?;
    let clock = Arc::clone(clock);
    let flags = rusqlite::functions::FunctionFlags::SQLITE_UTF8;
    connection.create_scalar_function("now_ms", 0, flags, move |_| Ok(clock.now().millis()))?;
    Ok(connection)
}
