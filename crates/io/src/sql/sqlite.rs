//! SQLite: one file, one thread that writes, and a few connections that read.
//!
//! ```text
//!   statement ──▶ channel ──▶ writer thread ──▶ file (WAL)
//!   query     ──────────────▶ reader pool   ──▶ file (WAL, read-only)
//! ```
//!
//! Statements that arrive while the writer is busy are committed together, each in a savepoint of its own, so
//! that many callers share one sync. A transaction has the writer for itself from its begin to its end; a caller
//! who goes away in the middle is rolled back.
//!
//! In the `inline` mode there are no threads: everything runs on the caller's, which is what a simulation on a
//! paused clock needs.
//!
//! Guarantees: a commit that has returned is on disk under [`Durability::Full`]; after a failed write or sync the
//! handle refuses everything. Leaves to others: retries, rewriting, one writing process per folder
//! ([`crate::sql::DataFolder`]).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ffi};
use tokio::sync::{OwnedMutexGuard, Semaphore, mpsc, oneshot};

use super::{Answer, Durability, Value};
use crate::clock::Clock;
use crate::error::{Error, Result};

/// Statements waiting for the writer thread, at most.
const WAITING_MAX: usize = 1_024;
/// Statements that share one commit, at most.
const GROUP_MAX: usize = 256;
/// Connections that read at the same time, at most.
const READERS_MAX: usize = 4;
/// How long SQLite itself waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENT_CACHE: usize = 256;

/// How to open a SQLite database.
#[derive(Clone, Debug)]
pub struct SqliteSettings {
    /// The file; none for a database in memory.
    pub path: Option<PathBuf>,
    /// Whether a commit waits for the disk.
    pub durability: Durability,
    /// Run on the caller's thread, for simulations.
    pub inline: bool,
    /// Refuse all writes, and create nothing.
    pub read_only: bool,
}

impl SqliteSettings {
    /// A durable database in a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Some(path.into()),
            durability: Durability::Full,
            inline: false,
            read_only: false,
        }
    }

    /// A database in memory, on the caller's thread.
    pub fn memory() -> Self {
        Self { path: None, durability: Durability::Relaxed, inline: true, read_only: false }
    }
}

/// Something to do with the writing connection.
type Call = Box<dyn FnOnce(&mut Connection) + Send>;

enum Command {
    One(One),
    Call(Call),
    Begin { begun: oneshot::Sender<Result<()>>, steps: mpsc::Receiver<Step> },
}

struct One {
    text: Arc<str>,
    params: Vec<Value>,
    answer: oneshot::Sender<Result<Answer>>,
}

/// One step of a transaction.
enum Step {
    Call(Call),
    End { commit: bool, ended: oneshot::Sender<Result<()>> },
}

/// An open SQLite database.
#[derive(Debug)]
pub(super) struct Sqlite {
    writer: Writer,
    readers: Option<Readers>,
    health: Arc<Health>,
}

enum Writer {
    Thread(mpsc::Sender<Command>),
    Inline(Arc<tokio::sync::Mutex<Connection>>),
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Thread(_) => "Thread",
            Self::Inline(_) => "Inline",
        })
    }
}

impl Sqlite {
    pub(super) fn open(settings: &SqliteSettings, clock: &Arc<dyn Clock>) -> Result<Self> {
        let health = Arc::new(Health {
            name: settings.path.as_ref().map_or("memory".into(), |path| path.display().to_string()),
            poisoned: AtomicBool::new(false),
        });
        let connection = health.check(connect(settings, clock, settings.read_only), "open")?;
        if settings.inline || settings.path.is_none() {
            let writer = Writer::Inline(Arc::new(tokio::sync::Mutex::new(connection)));
            return Ok(Self { writer, readers: None, health });
        }
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let thread_health = Arc::clone(&health);
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || write_loop(connection, receiver, &thread_health))
            .map_err(|source| Error::File {
                doing: "start the writer thread of",
                path: settings.path.clone().unwrap_or_default(),
                source,
            })?;
        let readers = Some(Readers::new(settings.clone(), Arc::clone(clock)));
        Ok(Self { writer: Writer::Thread(sender), readers, health })
    }

    /// One statement in a transaction of its own.
    pub(super) async fn one(&self, text: Arc<str>, params: Vec<Value>) -> Result<Answer> {
        self.health.usable()?;
        match &self.writer {
            Writer::Thread(sender) => {
                let (answer, answered) = oneshot::channel();
                let command = Command::One(One { text, params, answer });
                sender.send(command).await.map_err(|_| gone())?;
                answered.await.map_err(|_| gone())?
            }
            Writer::Inline(connection) => {
                tokio::task::yield_now().await;
                let connection = connection.lock().await;
                self.health.check(run(&connection, &text, &params), &text)
            }
        }
    }

    /// One query that sees the last commit.
    pub(super) async fn query(&self, text: Arc<str>, params: Vec<Value>) -> Result<Answer> {
        let Some(readers) = &self.readers else {
            return self.one(text, params).await;
        };
        self.health.usable()?;
        let health = Arc::clone(&self.health);
        readers.with(move |connection| health.check(run(connection, &text, &params), &text)).await
    }

    /// Runs `call` alone on the writing connection.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T> {
        self.health.usable()?;
        match &self.writer {
            Writer::Thread(sender) => {
                let (boxed, answered) = boxed(call);
                sender.send(Command::Call(boxed)).await.map_err(|_| gone())?;
                answered.await.map_err(|_| gone())
            }
            Writer::Inline(connection) => Ok(call(&mut *connection.lock().await)),
        }
    }

    pub(super) async fn begin(&self) -> Result<SqliteTx> {
        self.health.usable()?;
        let health = Arc::clone(&self.health);
        match &self.writer {
            Writer::Thread(sender) => {
                let (begun, has_begun) = oneshot::channel();
                let (step, steps) = mpsc::channel(1);
                sender.send(Command::Begin { begun, steps }).await.map_err(|_| gone())?;
                has_begun.await.map_err(|_| gone())??;
                Ok(SqliteTx { session: Session::Thread(step), health })
            }
            Writer::Inline(connection) => {
                tokio::task::yield_now().await;
                let guard = Arc::clone(connection).lock_owned().await;
                health.check(guard.execute_batch(BEGIN), BEGIN)?;
                Ok(SqliteTx { session: Session::Inline(Mutex::new(InlineTx(Some(guard)))), health })
            }
        }
    }
}

/// The write lock is taken at once: a transaction that starts by reading and then writes could otherwise fail
/// half-way.
const BEGIN: &str = "BEGIN IMMEDIATE";

/// A transaction that has the writer for itself.
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

/// Rolls back when it is dropped before its end.
#[derive(Debug)]
struct InlineTx(Option<OwnedMutexGuard<Connection>>);

impl Drop for InlineTx {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // Nothing can be done about a failure here, and the next BEGIN would show it.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
}

impl SqliteTx {
    pub(super) async fn one(&self, text: Arc<str>, params: Vec<Value>) -> Result<Answer> {
        let health = Arc::clone(&self.health);
        self.call(move |connection| health.check(run(connection, &text, &params), &text)).await?
    }

    /// Runs one statement for each set of parameters; gives how many rows each changed.
    pub(super) async fn many(&self, text: Arc<str>, sets: Vec<Vec<Value>>) -> Result<Vec<u64>> {
        let health = Arc::clone(&self.health);
        self.call(move |connection| {
            let changed = sets.iter().map(|params| {
                health.check(run(connection, &text, params), &text).map(|answer| answer.changed)
            });
            changed.collect()
        })
        .await?
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
                let connection = taken.ok_or_else(over)?;
                end(&connection, commit, &self.health)
            }
        }
    }
}

fn boxed<T: Send + 'static>(
    call: impl FnOnce(&mut Connection) -> T + Send + 'static,
) -> (Call, oneshot::Receiver<T>) {
    let (answer, answered) = oneshot::channel();
    // A caller who went away does not want the answer.
    let boxed = Box::new(move |connection: &mut Connection| drop(answer.send(call(connection))));
    (boxed, answered)
}

fn gone() -> Error {
    Error::TransactionOver { why: "the database was closed" }
}

fn over() -> Error {
    Error::TransactionOver { why: "it was committed, rolled back or given up before" }
}

fn write_loop(mut connection: Connection, mut commands: mpsc::Receiver<Command>, health: &Health) {
    let mut next = None;
    while let Some(command) = next.take().or_else(|| commands.blocking_recv()) {
        match command {
            Command::One(first) => {
                let mut group = vec![first];
                while group.len() < GROUP_MAX {
                    match commands.try_recv() {
                        Ok(Command::One(another)) => group.push(another),
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                run_group(&connection, group, health);
            }
            Command::Call(call) => call(&mut connection),
            Command::Begin { begun, steps } => {
                run_transaction(&mut connection, begun, steps, health)
            }
        }
    }
}

/// Commits several callers' statements with one sync. Each is in its own savepoint, so that one that fails
/// takes nobody along.
fn run_group(connection: &Connection, group: Vec<One>, health: &Health) {
    let mut group = group;
    if group.len() == 1
        && let Some(one) = group.pop()
    {
        let answer = health.check(run(connection, &one.text, &one.params), &one.text);
        drop(one.answer.send(answer));
        return;
    }
    if let Err(error) = connection.execute_batch(BEGIN) {
        return refuse_all(group, &error, health);
    }
    let mut answers = Vec::with_capacity(group.len());
    for one in group {
        let answer = in_savepoint(connection, &one);
        answers.push((one, answer));
    }
    if let Err(error) = connection.execute_batch("COMMIT") {
        let _ = connection.execute_batch("ROLLBACK");
        return refuse_all(answers.into_iter().map(|(one, _)| one).collect(), &error, health);
    }
    for (one, answer) in answers {
        let answer = health.check(answer, &one.text);
        drop(one.answer.send(answer));
    }
}

fn in_savepoint(connection: &Connection, one: &One) -> rusqlite::Result<Answer> {
    connection.prepare_cached("SAVEPOINT one")?.execute([])?;
    let answer = run(connection, &one.text, &one.params);
    if answer.is_err() {
        connection.prepare_cached("ROLLBACK TO one")?.execute([])?;
    }
    connection.prepare_cached("RELEASE one")?.execute([])?;
    answer
}

fn refuse_all(group: Vec<One>, error: &rusqlite::Error, health: &Health) {
    for one in group {
        let copy = match error {
            rusqlite::Error::SqliteFailure(code, text) => {
                rusqlite::Error::SqliteFailure(*code, text.clone())
            }
            other => rusqlite::Error::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_ERROR),
                Some(other.to_string()),
            ),
        };
        drop(one.answer.send(health.check(Err(copy), "commit a group of statements")));
    }
}

fn run_transaction(
    connection: &mut Connection,
    begun: oneshot::Sender<Result<()>>,
    mut steps: mpsc::Receiver<Step>,
    health: &Health,
) {
    let start = health.check(connection.execute_batch(BEGIN), BEGIN);
    let started = start.is_ok();
    if begun.send(start).is_err() || !started {
        if started {
            let _ = connection.execute_batch("ROLLBACK");
        }
        return;
    }
    loop {
        match steps.blocking_recv() {
            Some(Step::Call(call)) => call(connection),
            Some(Step::End { commit, ended }) => {
                drop(ended.send(end(connection, commit, health)));
                return;
            }
            // The caller was dropped in the middle.
            None => {
                let _ = connection.execute_batch("ROLLBACK");
                return;
            }
        }
    }
}

fn end(connection: &Connection, commit: bool, health: &Health) -> Result<()> {
    if !commit {
        return health.check(connection.execute_batch("ROLLBACK"), "ROLLBACK");
    }
    let committed = connection.execute_batch("COMMIT");
    if committed.is_err() {
        // A commit that fails (a full disk) leaves the transaction open.
        let _ = connection.execute_batch("ROLLBACK");
    }
    health.check(committed, "COMMIT")
}

fn run(connection: &Connection, text: &str, params: &[Value]) -> rusqlite::Result<Answer> {
    let mut statement = connection.prepare_cached(text)?;
    let columns = statement.column_count();
    let params = rusqlite::params_from_iter(params);
    if columns == 0 {
        let changed = statement.execute(params)?;
        return Ok(Answer { rows: Vec::new(), changed: changed as u64 });
    }
    let mut found = Vec::new();
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column));
        found.push(super::Row(values.collect::<rusqlite::Result<_>>()?));
    }
    let changed = found.len() as u64;
    Ok(Answer { rows: found, changed })
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
    if read_only {
        connection.pragma_update(None, "query_only", true)?;
    } else if settings.path.is_some() {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let level = match settings.durability {
            Durability::Full => "FULL",
            Durability::Relaxed => "OFF",
        };
        connection.pragma_update(None, "synchronous", level)?;
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

/// Whether the handle may still be used.
#[derive(Debug)]
pub(super) struct Health {
    name: String,
    poisoned: AtomicBool,
}

impl Health {
    fn usable(&self) -> Result<()> {
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(Error::Poisoned { what: format!("the database {}", self.name) });
        }
        Ok(())
    }

    /// Gives the error its context, and closes the handle for good if what is on disk is now unknown.
    fn check<T>(&self, result: rusqlite::Result<T>, doing: &str) -> Result<T> {
        result.map_err(|source| {
            if leaves_the_disk_unknown(&source) {
                self.poisoned.store(true, Ordering::SeqCst);
            }
            Error::Sqlite { doing: format!("{doing} on {}", self.name), source }
        })
    }
}

/// A write, truncate or sync that the disk failed. After a failed sync the kernel may have dropped the dirty
/// pages, and a second one would report success without them.
fn leaves_the_disk_unknown(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(code, _) = error else {
        return false;
    };
    matches!(
        code.extended_code,
        ffi::SQLITE_IOERR_FSYNC
            | ffi::SQLITE_IOERR_DIR_FSYNC
            | ffi::SQLITE_IOERR_WRITE
            | ffi::SQLITE_IOERR_TRUNCATE
    )
}

/// A few read-only connections, opened when first needed.
#[derive(Debug)]
struct Readers {
    settings: SqliteSettings,
    clock: Arc<dyn Clock>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    fn new(settings: SqliteSettings, clock: Arc<dyn Clock>) -> Self {
        let permits = Arc::new(Semaphore::new(READERS_MAX));
        Self { settings, clock, permits, idle: Arc::default() }
    }

    async fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| gone())?;
        let idle = Arc::clone(&self.idle);
        let (settings, clock) = (self.settings.clone(), Arc::clone(&self.clock));
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let waiting = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match waiting {
                Some(connection) => connection,
                None => connect(&settings, &clock, true).map_err(|source| Error::Sqlite {
                    doing: "open a reading connection".to_owned(),
                    source,
                })?,
            };
            let answer = call(&connection);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            answer
        });
        reading.await.map_err(|_| gone())?
    }
}
