//! `Sql`: one thin face over SQLite and PostgreSQL.
//!
//! The same statement text runs on both; [`dialect`] holds every difference. A statement on its own is a
//! transaction of its own ([`Sql::execute`]); several together go through [`Sql::write`], which runs the whole
//! closure again when the engine says that it lost a race (serialization failure, deadlock, busy database) or that
//! the connection broke before the commit was sent, a bounded number of times.
//!
//! Guarantees:
//! - What [`Sql::write`] returns `Ok` for is committed once. An error of kind `Transient` that is
//!   [`Error::InDoubt`] means that the commit may have happened: callers make their transactions idempotent.
//! - A transaction that is dropped is rolled back. One of whose statements failed, or was not waited for, does not
//!   commit, whatever its closure returns (PostgreSQL would answer such a commit with success and roll back).
//! - [`Tx::hold`] makes a transaction fail, at its own commit, for a caller whose lease was taken over.
//!
//! Leaves to others: the tables. Transactions are short and await nothing but the database.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
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
mod reading;
mod sqlite;
mod value;
mod wake;

pub use amount::Amount;
pub use bulk::{Bulk, ColumnType};
use dialect::Dialect;
pub use folder::DataFolder;
pub use migrate::{Migration, Migrations};
pub use postgres::PostgresSettings;
use postgres::{Postgres, PostgresTx};
pub use presence::PRESENCE_LOOK;
pub use reading::Reading;
use sqlite::{Sqlite, SqliteTx};
pub use sqlite::{SqliteSettings, check_step_back};
pub use value::{Row, Value};
pub use wake::{Waiter, Wakes};

/// How often a transaction is tried.
const ATTEMPTS_MAX: u32 = 10;
/// How often a SQLite file that another process is just creating is tried.
const OPEN_ATTEMPTS_MAX: u32 = 200;
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long a transaction may wait for its begin, run, and wait for its commit, each; a caller stuck in the middle
/// would hold SQLite's only writer.
const TRANSACTION_MAX: Duration = Duration::from_secs(60);
/// Rewritten statements that are kept.
const REWRITTEN_MAX: usize = 2_048;

/// Why a statement fails whose database is closed, or whose writer thread is gone.
pub(crate) const CLOSED: &str = "the database was closed";

/// A statement as the engine wants it.
type Statement = (Arc<str>, Vec<Value>);

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It does: what was acknowledged survives a power cut.
    #[default]
    Full,
    /// It does not: for tests where durability is not the point.
    Relaxed,
}

/// What a statement gave.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The rows of a query, or of a `RETURNING`.
    pub rows: Vec<Row>,
    /// How many rows were changed, or returned.
    pub changed: u64,
}

impl Answer {
    /// The one row that a statement like `SELECT count(*)` gives.
    pub fn row(&self) -> Result<&Row> {
        self.rows.first().ok_or_else(|| Error::corrupt("a statement gave no row"))
    }
}

/// What can run statements: a database, each in a transaction of its own, or a transaction.
#[async_trait]
pub trait Execute: Send + Sync {
    /// Runs one statement.
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<Answer>;
}

/// A database. Clones are handles to the same one.
#[derive(Clone)]
pub struct Sql {
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    rewritten: Arc<Rewritten>,
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
    /// Opens a SQLite database and brings the store tables up to date.
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

    /// Connects to a PostgreSQL database and brings the store tables up to date.
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
        Self { engine, clock, entropy, rewritten: Arc::default(), faults: None }
    }

    /// The same database with a plan of faults before every statement, begin and commit.
    #[must_use]
    pub fn with_faults(&self, faults: Arc<Faults>) -> Self {
        Self { faults: Some(faults), ..self.clone() }
    }

    /// `sqlite` or `postgresql`.
    pub fn engine_name(&self) -> &'static str {
        match &*self.engine {
            Engine::Sqlite(_) => "sqlite",
            Engine::Postgres(_) => "postgresql",
        }
    }

    /// The clock that this handle was made with; see [`Sql::now`] for the database's.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The randomness that this handle was made with.
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.entropy
    }

    /// Moves the clock that statements on PostgreSQL see, for tests that must not wait for a lease to end. On
    /// SQLite the injected clock does that.
    pub fn skew_clock(&self, by_ms: i64) {
        self.rewritten.skew_ms.fetch_add(by_ms, Ordering::SeqCst);
        self.rewritten.texts.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The database's clock.
    pub async fn now(&self) -> Result<Timestamp> {
        self.query("SELECT now_ms()", params![]).await?.row()?.time(0)
    }

    /// Reads. On SQLite it runs beside the writer, on the last commit.
    pub async fn query(&self, text: &str, params: Vec<Value>) -> Result<Answer> {
        self.statement(text, params, Access::Read).await
    }

    /// The same database for what reads and does not care where, in a transaction or without.
    pub fn reading(&self) -> Reading<'_> {
        Reading(self)
    }

    /// Runs `body` in a transaction, again if it lost a race, and commits.
    ///
    /// `body` gets a handle that it may clone; it is called once per attempt and must do the same each time.
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
            // Nobody waits any longer: dropping the transaction is what rolls it back.
            Err(error @ Error::TooSlow { .. }) => Err(error),
            Err(error) => {
                // The first error is the one that tells; a rollback that fails as well happens anyway.
                drop(tx.rollback().await);
                Err(error.before_commit())
            }
        }
    }

    async fn begin(&self) -> Result<Tx> {
        let begin = async {
            Ok(match &*self.engine {
                Engine::Sqlite(sqlite) => TxEngine::Sqlite(sqlite.begin().await?),
                Engine::Postgres(postgres) => TxEngine::Postgres(postgres.begin().await?),
            })
        };
        // A begin whose answer is lost has no effect: the transaction is dropped with it.
        let engine = self.faulty(begin).await.map_err(Error::before_commit)?;
        Ok(Tx { engine: Arc::new(engine), sql: self.clone(), unfinished: Arc::default() })
    }

    /// Runs several statements as one transaction and in one trip; gives their answers. Each is a change with a
    /// `RETURNING`. None sees what another does, so no two may change the same row. The first that fails undoes all.
    pub async fn execute_together(
        &self,
        statements: Vec<(&str, Vec<Value>)>,
    ) -> Result<Vec<Answer>> {
        let mut attempt = 0;
        loop {
            let rewritten: Vec<Statement> = statements
                .iter()
                .map(|(text, params)| (self.rewrite(text), params.clone()))
                .collect();
            let run = async {
                match &*self.engine {
                    Engine::Sqlite(sqlite) => sqlite.together(rewritten).await,
                    Engine::Postgres(postgres) => postgres.together(&rewritten).await,
                }
            };
            match self.faulty(run).await {
                Ok(answers) => return Ok(answers),
                Err(error) => self.again(&mut attempt, error).await?,
            }
        }
    }

    /// Runs one statement until it works or fails for good.
    async fn statement(&self, text: &str, params: Vec<Value>, access: Access) -> Result<Answer> {
        let mut attempt = 0;
        loop {
            let (text, params) = (self.rewrite(text), params.clone());
            let run = async {
                match (&*self.engine, access) {
                    (Engine::Sqlite(sqlite), Access::Read) => sqlite.query(text, params).await,
                    (Engine::Sqlite(sqlite), Access::Write) => sqlite.one(text, params).await,
                    (Engine::Postgres(postgres), _) => postgres.one(&text, &params).await,
                }
            };
            match (self.faulty(run).await, access) {
                (Ok(answer), _) => return Ok(answer),
                // A read has no effect, so there can be no doubt about it.
                (Err(error), Access::Read) => {
                    self.again(&mut attempt, error.before_commit()).await?;
                }
                (Err(error), Access::Write) => self.again(&mut attempt, error).await?,
            }
        }
    }

    /// Waits before the next attempt, or gives the error back when there is to be none.
    async fn again(&self, attempt: &mut u32, error: Error) -> Result<()> {
        *attempt += 1;
        if *attempt >= ATTEMPTS_MAX || !error.is_retryable() {
            return Err(error);
        }
        tracing::debug!(attempt, error = error.chain(), "tried again");
        self.clock.sleep(self.backoff(*attempt)).await;
        Ok(())
    }

    async fn faulty<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        match &self.faults {
            Some(faults) => faults.run(operation).await,
            None => operation.await,
        }
    }

    /// Doubling, with jitter down to a half so that two who collided do not collide again.
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
    /// Runs one statement that commits by itself.
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<Answer> {
        self.statement(text, params, Access::Write).await
    }
}

/// The first to open a file turns it into one with a write-ahead log, and SQLite does not wait for that.
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
    /// Statements that have not worked: failed, given up, or still under way.
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
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<Answer> {
        self.step(self.one(text, params)).await
    }
}

impl Tx {
    /// Waits for a statement; the transaction does not commit unless it works.
    async fn step<T>(&self, statement: impl Future<Output = Result<T>>) -> Result<T> {
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        // An error, or a caller who is dropped here, leaves it counted.
        let done = statement.await?;
        self.unfinished.fetch_sub(1, Ordering::SeqCst);
        Ok(done)
    }

    async fn one(&self, text: &str, params: Vec<Value>) -> Result<Answer> {
        let text = self.sql.rewrite(text);
        let run = async {
            match &*self.engine {
                TxEngine::Sqlite(tx) => tx.one(text, params).await,
                TxEngine::Postgres(tx) => tx.one(&text, &params).await,
            }
        };
        self.sql.faulty(run).await
    }

    /// Runs one statement for each set of parameters; gives how many rows each changed.
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

    /// The transaction commits only if `fence` still holds, and nobody can raise its counter before it has.
    pub async fn hold(&self, fence: &Fence) -> Result<()> {
        // The lock is the point: with a plain read a stale writer could commit after a take-over.
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
            return Err(Error::TransactionOver { why: "one of its statements did not work" });
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

/// Statements as the engine wants them, remembered.
#[derive(Debug, Default)]
struct Rewritten {
    skew_ms: AtomicI64,
    texts: RwLock<HashMap<String, Arc<str>>>,
}

impl Rewritten {
    fn get(&self, text: &str, engine: &Engine) -> Arc<str> {
        let known = self.texts.read().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        known.unwrap_or_else(|| {
            let dialect = match engine {
                Engine::Sqlite(_) => Dialect::Sqlite,
                Engine::Postgres(_) => {
                    Dialect::Postgres { skew_ms: self.skew_ms.load(Ordering::SeqCst) }
                }
            };
            let rewritten: Arc<str> = dialect.rewrite(text).into();
            let mut texts = self.texts.write().unwrap_or_else(PoisonError::into_inner);
            if texts.len() >= REWRITTEN_MAX {
                texts.clear();
            }
            texts.insert(text.to_owned(), Arc::clone(&rewritten));
            rewritten
        })
    }
}
