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
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::{Clock, Timestamp, millis};
use crate::entropy::Entropy;
use crate::error::{Error, Result};
use crate::fault::Faults;
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
mod store_tables;
mod transaction;
mod value;
mod wake;

pub use amount::Amount;
pub use bulk::{Bulk, ColumnType};
pub use folder::DataFolder;
pub use migrate::{Migration, Migrations};
use postgres::Postgres;
pub use postgres::PostgresSettings;
pub use presence::PRESENCE_LOOK;
pub use read_executor::ReadExecutor;
use sqlite::Sqlite;
pub use sqlite::{SqliteSettings, check_database, check_step_back};
use statement_cache::StatementCache;
use store_tables::STORE_TABLES;
use transaction::TxEngine;
pub use transaction::{TransactionError, Tx};
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

tokio::task_local! {
    /// Set while a task runs the body of a transaction.
    static IN_TRANSACTION: ();
}

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
#[expect(clippy::large_enum_variant, reason = "there is one per database, on the heap")]
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
            sql.expect_migrated(&STORE_TABLES).await?;
        } else {
            sql.migrate(&STORE_TABLES).await?;
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
        sql.migrate(&STORE_TABLES).await?;
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
    /// `body` gets a handle that it may clone. It is called once per attempt and must do the same each time. Its own
    /// errors roll the transaction back and are returned as they are.
    pub async fn write<T, E, F, Fut>(&self, mut body: F) -> Result<T, E>
    where
        E: TransactionError,
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut attempt = 0;
        loop {
            match self.attempt(&mut body).await.map_err(E::into_store) {
                Ok(value) => return Ok(value),
                Err(Ok(error)) => self.again(&mut attempt, error).await?,
                Err(Err(own)) => return Err(own),
            }
        }
    }

    async fn attempt<T, E, F, Fut>(&self, body: &mut F) -> Result<T, E>
    where
        E: TransactionError,
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let tx = in_time("begin a transaction", self.begin()).await?;
        // On the heap: a body is a large future, and so would be every future that contains this one.
        let run = Box::pin(body(tx.clone()));
        #[cfg(debug_assertions)]
        let run = IN_TRANSACTION.scope((), run);
        match in_time("run a transaction", run).await.map_err(E::into_store) {
            Ok(value) => {
                let committed = in_time("commit a transaction", tx.commit()).await;
                committed.map_err(Error::doubt_if_slow)?;
                Ok(value)
            }
            // Dropping the transaction rolls it back.
            Err(Ok(error @ Error::TooSlow { .. })) => Err(error.into()),
            Err(error) => {
                // The first error explains the failure; if the rollback fails too, the engine rolls back by
                // itself.
                drop(tx.rollback().await);
                Err(error.map_or_else(|own| own, |error| error.before_commit().into()))
            }
        }
    }

    async fn begin(&self) -> Result<Tx> {
        self.outside_transactions();
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
        self.outside_transactions();
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
        self.outside_transactions();
        let mut attempt = 0;
        loop {
            let (text, params) = (self.rewrite(text), params.clone());
            let run = async {
                match (&*self.engine, access) {
                    (Engine::Sqlite(sqlite), Access::Read) => sqlite.query(text, params).await,
                    (Engine::Sqlite(sqlite), Access::Write) => {
                        sqlite.one(self.lane, text, params).await
                    }
                    (Engine::Postgres(postgres), Access::Read) => {
                        postgres.read(&text, &params).await
                    }
                    (Engine::Postgres(postgres), Access::Write) => {
                        postgres.one(&text, &params).await
                    }
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

    /// Panics in debug builds if the body of a transaction uses a database other than through its [`Tx`]. The
    /// transaction holds a connection of a small pool, or SQLite's only writer: all callers that hold one might wait
    /// for another.
    fn outside_transactions(&self) {
        debug_assert!(
            IN_TRANSACTION.try_with(|()| ()).is_err(),
            "the body of a transaction asks for another connection"
        );
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

async fn in_time<T, E: From<Error>>(
    doing: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let slow = || Error::TooSlow { doing, limit_ms: millis(TRANSACTION_MAX).unsigned_abs() };
    tokio::time::timeout(TRANSACTION_MAX, work).await.unwrap_or_else(|_| Err(slow().into()))
}
