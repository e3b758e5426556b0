//! `Sql`: one thin interface to SQLite and PostgreSQL.
//!
//! The same statement text runs on both; [`dialect`] contains every difference. A single statement is its own
//! transaction ([`Sql::execute`]). Several run in [`Sql::write`], which runs the whole closure again, a bounded
//! number of times, if it lost a race (serialization failure, deadlock, busy database) or if the connection
//! broke before the commit was sent.
//!
//! Guarantees:
//! - If [`Sql::write`] returns `Ok`, the transaction is committed once. After a `Transient` error that is
//!   [`Error::InDoubt`] the commit may have happened: callers make their transactions idempotent.
//! - A dropped transaction is rolled back. If a statement failed, or was not awaited to its end, the
//!   transaction does not commit, even if its closure returns `Ok` (PostgreSQL would answer such a commit with
//!   success and roll back).
//! - [`Tx::hold`] makes the transaction of a caller whose lease was taken over fail.
//!
//! Leaves to others: the tables. Transactions are short and await only the database.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::{Clock, Timestamp, millis};
use crate::entropy::Entropy;
use crate::error::{Error, Result};
use crate::fault::Faults;
use crate::meta::Fence;
use crate::params;

mod amount;
mod bulk;
pub mod dialect;
mod folder;
mod migrate;
mod postgres;
mod presence;
mod probe;
mod read_executor;
mod sqlite;
mod statement_cache;
mod value;
mod wake;

pub use amount::Amount;
pub use bulk::{Bulk, ColumnType};
pub use folder::DataFolder;
pub use migrate::{Migration, Migrations};
pub use postgres::PostgresSettings;
use postgres::{Postgres, PostgresTx};
pub use presence::PRESENCE_LOOK;
pub use read_executor::ReadExecutor;
use sqlite::{Sqlite, SqliteTx};
pub use sqlite::{SqliteSettings, check_database, check_step_back};
use statement_cache::StatementCache;
pub use value::{Row, Value};
pub use wake::{Waiter, Wakes};

/// Maximum attempts of a transaction.
const ATTEMPTS_MAX: u32 = 10;
/// Maximum attempts to open a SQLite file that another process is creating.
const OPEN_ATTEMPTS_MAX: u32 = 200;
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Time limit for each of begin, body and commit of a transaction; a stuck caller would block SQLite's only
/// writer.
const TRANSACTION_MAX: Duration = Duration::from_secs(60);

/// Why a statement fails if its database is closed or the writer thread is gone.
pub(crate) const CLOSED: &str = "the database was closed";

/// A statement in the engine's dialect.
type Statement = (Arc<str>, Vec<Value>);

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged commits survive a power failure.
    #[default]
    Full,
    /// Commits do not wait: for tests that do not need durability.
    Relaxed,
}

/// Result of a statement.
#[derive(Clone, Debug, Default)]
pub struct StatementResult {
    /// Rows of a query, or of a `RETURNING`.
    pub rows: Vec<Row>,
    /// Number of rows changed or returned.
    pub changed: u64,
}

impl StatementResult {
    /// The first row, for statements such as `SELECT count(*)` that always return one.
    pub fn row(&self) -> Result<&Row> {
        self.rows.first().ok_or_else(|| Error::corrupt("a statement returned no row"))
    }
}

/// Runs statements: a database (each in its own transaction) or a transaction.
#[async_trait]
pub trait Execute: Send + Sync {
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<StatementResult>;
}

/// A database. Clones are handles to the same one.
#[derive(Clone)]
pub struct Sql {
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    rewritten: Arc<StatementCache>,
    /// Writes on SQLite take turns by lane.
    lane: u64,
    faults: Option<Arc<Faults>>,
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

#[derive(Debug)]
enum Engine {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl fmt::Debug for Sql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sql({})", self.engine_name())
    }
}

impl Sql {
    /// Opens a SQLite database and migrates the store tables.
    pub async fn sqlite(
        settings: &SqliteSettings,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        let engine = Engine::Sqlite(open_sqlite(settings, &clock).await?);
        let sql = Self::new(engine, clock, entropy);
        if settings.read_only {
            sql.expect_migrated(&crate::meta::MIGRATIONS).await?;
        } else {
            sql.migrate(&crate::meta::MIGRATIONS).await?;
        }
        Ok(sql)
    }

    /// Connects to a PostgreSQL database and migrates the store tables.
    pub async fn postgres(
        settings: &PostgresSettings,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        let engine = Engine::Postgres(Postgres::connect(settings).await?);
        let sql = Self::new(engine, clock, entropy);
        sql.migrate(&crate::meta::MIGRATIONS).await?;
        Ok(sql)
    }

    fn new(engine: Engine, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let engine = Arc::new(engine);
        Self { engine, clock, entropy, rewritten: Arc::default(), lane: 0, faults: None }
    }

    /// The same database with a plan of faults for every statement, begin and commit.
    #[must_use]
    pub fn with_faults(&self, faults: Arc<Faults>) -> Self {
        Self { faults: Some(faults), ..self.clone() }
    }

    /// The same database with its writes in this lane: SQLite's only writer thread serves the lanes in turn, so
    /// that many writes in one lane do not delay another. A server uses one lane per chain.
    #[must_use]
    pub fn in_lane(&self, lane: u64) -> Self {
        Self { lane, ..self.clone() }
    }

    /// `sqlite` or `postgresql`.
    pub fn engine_name(&self) -> &'static str {
        match &*self.engine {
            Engine::Sqlite(_) => "sqlite",
            Engine::Postgres(_) => "postgresql",
        }
    }

    /// This handle's own clock; see [`Sql::now`] for the database's.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.entropy
    }

    /// Shifts the clock that statements on PostgreSQL see, for tests that must not wait for a lease to end. On
    /// SQLite use the injected clock.
    pub fn skew_clock(&self, by_ms: i64) {
        self.rewritten.skew_clock(by_ms);
    }

    pub async fn now(&self) -> Result<Timestamp> {
        self.query("SELECT now_ms()", params![]).await?.row()?.time(0)
    }

    /// Runs a read. On SQLite it runs concurrently with the writer and sees the last commit.
    pub async fn query(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        self.statement(text, params, Access::Read).await
    }

    /// Rewrites a SQLite file without deleted and replaced data, so that no byte of it is left in the file or its
    /// WAL. It takes as long as copying the file. On PostgreSQL that is the server's task, and this does nothing.
    pub async fn erase_deleted(&self) -> Result<()> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.erase_deleted().await,
            Engine::Postgres(_) => Ok(()),
        }
    }

    /// This database as an [`Execute`] for reads.
    pub fn reading(&self) -> ReadExecutor<'_> {
        ReadExecutor(self)
    }

    /// Runs `body` in a transaction, again if it lost a race, and commits.
    ///
    /// `body` gets a handle that it may clone. It is called once per attempt and must do the same each time.
    pub async fn write<T, F, Fut>(&self, mut body: F) -> Result<T>
    where
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let mut attempt = 0;
        loop {
            match self.attempt(&mut body).await {
                Err(error) => self.again(&mut attempt, error).await?,
                done => return done,
            }
        }
    }

    async fn attempt<T, F, Fut>(&self, body: &mut F) -> Result<T>
    where
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let tx = in_time("begin a transaction", self.begin()).await?;
        match in_time("run a transaction", body(tx.clone())).await {
            Ok(value) => {
                let committed = in_time("commit a transaction", tx.commit()).await;
                committed.map_err(Error::doubt_if_slow)?;
                Ok(value)
            }
            // Dropping the transaction rolls it back.
            Err(error @ Error::TooSlow { .. }) => Err(error),
            Err(error) => {
                // The first error explains the failure; if the rollback fails too, the engine rolls back by
                // itself.
                drop(tx.rollback().await);
                Err(error.before_commit())
            }
        }
    }

    async fn begin(&self) -> Result<Tx> {
        let begin = async {
            Ok(match &*self.engine {
                Engine::Sqlite(sqlite) => TxEngine::Sqlite(sqlite.begin(self.lane).await?),
                Engine::Postgres(postgres) => TxEngine::Postgres(postgres.begin().await?),
            })
        };
        // A begin whose answer is lost has no effect: its transaction is dropped.
        let engine = self.faulty(begin).await.map_err(Error::before_commit)?;
        Ok(Tx { engine: Arc::new(engine), sql: self.clone(), unfinished: Arc::default() })
    }

    /// Runs several statements as one transaction in one round trip; returns their answers. Each must be a
    /// change with a `RETURNING`. The statements do not see each other's effects, so no two may change the same
    /// row. If one fails, none takes effect.
    pub async fn execute_together(
        &self,
        statements: Vec<(&str, Vec<Value>)>,
    ) -> Result<Vec<StatementResult>> {
        let mut attempt = 0;
        loop {
            let rewritten: Vec<Statement> = statements
                .iter()
                .map(|(text, params)| (self.rewrite(text), params.clone()))
                .collect();
            let run = async {
                match &*self.engine {
                    Engine::Sqlite(sqlite) => sqlite.together(self.lane, rewritten).await,
                    Engine::Postgres(postgres) => postgres.together(&rewritten).await,
                }
            };
            match self.faulty(run).await {
                Ok(answers) => return Ok(answers),
                Err(error) => self.again(&mut attempt, error).await?,
            }
        }
    }

    /// Runs one statement until it succeeds or fails permanently.
    async fn statement(
        &self,
        text: &str,
        params: Vec<Value>,
        access: Access,
    ) -> Result<StatementResult> {
        let mut attempt = 0;
        loop {
            let (text, params) = (self.rewrite(text), params.clone());
            let run = async {
                match (&*self.engine, access) {
                    (Engine::Sqlite(sqlite), Access::Read) => sqlite.query(text, params).await,
                    (Engine::Sqlite(sqlite), Access::Write) => {
                        sqlite.one(self.lane, text, params).await
                    }
                    (Engine::Postgres(postgres), _) => postgres.one(&text, &params).await,
                }
            };
            match (self.faulty(run).await, access) {
                (Ok(answer), _) => return Ok(answer),
                // A read has no effect, so it cannot be in doubt.
                (Err(error), Access::Read) => {
                    self.again(&mut attempt, error.before_commit()).await?;
                }
                (Err(error), Access::Write) => self.again(&mut attempt, error).await?,
            }
        }
    }

    /// Waits before the next attempt, or returns the error if there is none.
    async fn again(&self, attempt: &mut u32, error: Error) -> Result<()> {
        *attempt += 1;
        if *attempt >= ATTEMPTS_MAX || !error.is_retryable() {
            return Err(error);
        }
        tracing::debug!(attempt, error = error.chain(), "retrying a statement or transaction");
        self.clock.sleep(self.backoff(*attempt)).await;
        Ok(())
    }

    async fn faulty<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        match &self.faults {
            Some(faults) => faults.run(operation).await,
            None => operation.await,
        }
    }

    /// Exponential, with jitter down to a half, so that two callers that collided do not collide again.
    fn backoff(&self, attempt: u32) -> Duration {
        let full = BACKOFF_MIN.saturating_mul(1 << attempt.min(16)).min(BACKOFF_MAX);
        let half = full / 2;
        let jitter_us = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
        half + Duration::from_micros(self.entropy.below(jitter_us))
    }

    fn rewrite(&self, text: &str) -> Arc<str> {
        self.rewritten.get(text, &self.engine)
    }
}

#[async_trait]
impl Execute for Sql {
    /// Runs one statement in its own transaction.
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        self.statement(text, params, Access::Write).await
    }
}

/// The first process to open a file switches it to a write-ahead log, and SQLite does not wait for that.
async fn open_sqlite(settings: &SqliteSettings, clock: &Arc<dyn Clock>) -> Result<Sqlite> {
    let mut attempt = 0;
    loop {
        match Sqlite::open(settings, clock) {
            Err(error) if attempt < OPEN_ATTEMPTS_MAX && error.is_retryable() => attempt += 1,
            opened => return opened,
        }
        clock.sleep(BACKOFF_MIN).await;
    }
}

async fn in_time<T>(doing: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let slow = || Error::TooSlow { doing, limit_ms: millis(TRANSACTION_MAX).unsigned_abs() };
    tokio::time::timeout(TRANSACTION_MAX, work).await.unwrap_or_else(|_| Err(slow()))
}

/// A transaction. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Tx {
    engine: Arc<TxEngine>,
    sql: Sql,
    /// Statements that failed, were dropped, or are still running.
    unfinished: Arc<AtomicUsize>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per transaction, on the heap")]
enum TxEngine {
    Sqlite(SqliteTx),
    Postgres(PostgresTx),
}

#[async_trait]
impl Execute for Tx {
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        self.step(self.one(text, params)).await
    }
}

impl Tx {
    /// Awaits a statement; the transaction cannot commit unless it succeeds.
    async fn step<T>(&self, statement: impl Future<Output = Result<T>>) -> Result<T> {
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        // An error, or a dropped caller, leaves the statement counted.
        let done = statement.await?;
        self.unfinished.fetch_sub(1, Ordering::SeqCst);
        Ok(done)
    }

    async fn one(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        let text = self.sql.rewrite(text);
        let run = async {
            match &*self.engine {
                TxEngine::Sqlite(tx) => tx.one(text, params).await,
                TxEngine::Postgres(tx) => tx.one(&text, &params).await,
            }
        };
        self.sql.faulty(run).await
    }

    /// Runs one statement for each set of parameters; returns how many rows each changed.
    pub async fn execute_many(
        &self,
        text: &str,
        sets: impl Into<Arc<[Vec<Value>]>>,
    ) -> Result<Vec<u64>> {
        let sets = sets.into();
        if sets.is_empty() {
            return Ok(Vec::new());
        }
        let text = self.sql.rewrite(text);
        let run = async {
            match &*self.engine {
                TxEngine::Sqlite(tx) => tx.many(text, sets).await,
                TxEngine::Postgres(tx) => tx.many(&text, &sets).await,
            }
        };
        self.step(self.sql.faulty(run)).await
    }

    /// Makes the commit conditional on `fence`: no process can raise its counter before the transaction ends.
    pub async fn hold(&self, fence: &Fence) -> Result<()> {
        // The lock is essential: with a plain read a stale writer could commit after a take-over.
        let text = "SELECT counter FROM meta_fence WHERE name = $1 FOR SHARE";
        self.step(async {
            let found = self.one(text, params![fence.name.as_str()]).await?;
            match found.rows.first().map(|row| row.int(0)).transpose()? {
                Some(counter) if counter == fence.counter => Ok(()),
                _ => Err(fence.stale()),
            }
        })
        .await
    }

    async fn commit(&self) -> Result<()> {
        if self.unfinished.load(Ordering::SeqCst) > 0 {
            drop(self.rollback().await);
            return Err(Error::TransactionOver {
                why: "one of its statements failed or was dropped",
            });
        }
        self.sql.faulty(self.end(true)).await
    }

    async fn rollback(&self) -> Result<()> {
        self.end(false).await
    }

    async fn end(&self, commit: bool) -> Result<()> {
        match &*self.engine {
            TxEngine::Sqlite(tx) => tx.end(commit).await,
            TxEngine::Postgres(tx) => tx.end(commit).await,
        }
    }
}
