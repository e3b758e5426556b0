//! PostgreSQL: a bounded pool of connections.
//!
//! Guarantees: a broken connection is replaced, so work continues after the server restarts; the transaction of
//! a dropped caller is rolled back by closing its connection; an error during a commit reports that its outcome
//! is in doubt. Leaves to others: retries, rewriting, and handling the doubt.

use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod,
    Runtime, TimeoutType,
};
use futures::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, Semaphore};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls, Statement};

use super::presence::Absences;
use super::{Durability, Row, StatementResult, Value, dialect};
use crate::clock::millis;
use crate::error::{Error, Result};

/// Maximum wait for a free connection.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time limit for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time limit for one statement on the server.
const STATEMENT_MAX: Duration = Duration::from_secs(60);
/// How long the server waits for the next statement of a transaction. A client that lost power holds its locks,
/// including that of a fence, for no longer than this.
const IDLE_IN_TRANSACTION_MAX: Duration = Duration::from_secs(10);
/// How long either end waits for the acknowledgement of a packet before the connection counts as broken.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);
/// TCP keepalive: idle time before the first probe, interval and number of probes. A client that lost power or
/// network holds its locks for at most 11 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;
/// Maximum number of pipelined executions.
const PIPELINE_MAX: usize = 512;
/// Connections of the pool that reads leave to writes: leases and claims are renewed whatever is read.
const NOT_FOR_READS: usize = 2;

#[derive(Clone)]
pub struct PostgresSettings {
    /// `postgresql://user:password@host:port/database`, or `key=value` pairs.
    pub url: String,
    /// Schema of the tables; created if missing. `None` for the connection's default.
    pub schema: Option<String>,
    /// Size of this process's pool.
    pub connections: usize,
    /// Whether a commit waits for the server's disk.
    pub durability: Durability,
}

impl PostgresSettings {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), schema: None, connections: 8, durability: Durability::Full }
    }
}

/// Omits the URL, which may contain a password.
impl std::fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresSettings")
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Postgres {
    pool: Pool,
    config: Config,
    connections: usize,
    /// One permit per connection that reads may use at a time.
    reads: Semaphore,
    absences: Absences,
}

impl Postgres {
    pub(super) async fn connect(settings: &PostgresSettings) -> Result<Self> {
        // Without the cause: it may quote a part of the password.
        let mut config: Config = settings.url.parse().map_err(|_| {
            Error::invalid(
                "cannot parse the database URL: expected postgresql://user:password@host:port/database with \
                 special characters as %XX, or key=value pairs",
            )
        })?;
        if config.get_application_name().is_none() {
            config.application_name("logmill");
        }
        config.connect_timeout(CONNECT_MAX);
        config.keepalives_idle(KEEPALIVE_IDLE);
        config.keepalives_interval(KEEPALIVE_INTERVAL);
        config.keepalives_retries(KEEPALIVE_RETRIES);
        config.tcp_user_timeout(UNANSWERED_MAX);
        config.options(session_options(config.get_options(), settings)?);
        if let Some(schema) = &settings.schema {
            create_schema(&config, schema).await?;
        }
        let manager = Manager::from_config(
            config.clone(),
            NoTls,
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(settings.connections)
            // The connection used last: its server process has warm caches.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(WAIT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .runtime(Runtime::Tokio1)
            .post_create(Hook::async_fn(|client, _| {
                Box::pin(async move {
                    // Planning is half of the cost of a small statement; our plans do not depend on the
                    // parameters.
                    client
                        .batch_execute("SET plan_cache_mode = force_generic_plan")
                        .await
                        .map_err(HookError::Backend)
                })
            }))
            .build()
            .map_err(|error| Error::invalid(format!("cannot create the database pool: {error}")))?;
        let connections = settings.connections;
        let reads = Semaphore::new(connections.saturating_sub(NOT_FOR_READS).max(1));
        let postgres = Self { pool, config, connections, reads, absences: Absences::default() };
        // Fail now, with a clear reason, rather than at the first statement.
        drop(postgres.client().await?);
        Ok(postgres)
    }

    /// For connections outside the pool.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn absences(&self) -> &Absences {
        &self.absences
    }

    pub(super) async fn client(&self) -> Result<Object> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Timeout(TimeoutType::Wait) => self.waited_too_long(),
            PoolError::Backend(source) | PoolError::PostCreateHook(HookError::Backend(source)) => {
                Error::Postgres { doing: "connect".to_owned(), source }
            }
            PoolError::Timeout(_) => Error::PoolTimeout {
                waited_ms: millis(CONNECT_MAX).unsigned_abs(),
                connections: self.connections,
            },
            other => Error::invalid(format!("cannot use the database pool: {other}")),
        })
    }

    fn waited_too_long(&self) -> Error {
        Error::PoolTimeout {
            waited_ms: millis(WAIT_MAX).unsigned_abs(),
            connections: self.connections,
        }
    }

    /// Runs one statement that only reads, beside at most as many others as leaves connections for writes.
    pub(super) async fn read(&self, text: &str, params: &[Value]) -> Result<StatementResult> {
        let permit = tokio::time::timeout(WAIT_MAX, self.reads.acquire()).await;
        let Ok(Ok(_permit)) = permit else { return Err(self.waited_too_long()) };
        self.one(text, params).await
    }

    /// Runs one statement in its own transaction.
    pub(super) async fn one(&self, text: &str, params: &[Value]) -> Result<StatementResult> {
        let client = BusyClient::new(self.client().await?);
        let answer = async {
            let statement = prepare(client.get()?, text).await?;
            let answer = run(client.get()?, &statement, text, params).await;
            answer.map_err(|error| doubt_if_lost(error, text))
        };
        let answer = answer.await;
        client.answered();
        answer
    }

    /// Runs statements in one transaction, sent and answered as one statement: each separate answer of the
    /// server would wake this process, which costs more than the statement on a busy machine.
    pub(super) async fn together(
        &self,
        statements: &[super::Statement],
    ) -> Result<Vec<StatementResult>> {
        if let [(text, params)] = statements {
            return Ok(vec![self.one(text, params).await?]);
        }
        let parts = statements.iter().map(|(text, params)| (&**text, params.len()));
        let text = dialect::joined(parts);
        let params: Vec<Value> =
            statements.iter().flat_map(|(_, params)| params.iter().cloned()).collect();
        let client = BusyClient::new(self.client().await?);
        let answer = async {
            let statement = prepare(client.get()?, &text).await?;
            let names = statement.columns().iter().map(tokio_postgres::Column::name);
            let starts = names.enumerate().filter(|(_, name)| *name == dialect::PART);
            let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
            let answer = run(client.get()?, &statement, &text, &params).await;
            let answer = answer.map_err(|error| doubt_if_lost(error, &text))?;
            Ok(split(answer, &starts))
        };
        let answer = answer.await;
        client.answered();
        answer
    }

    pub(super) async fn begin(&self) -> Result<PostgresTx> {
        // Created before BEGIN: a caller dropped while waiting must not return an open transaction to the pool.
        let tx = PostgresTx { client: Mutex::new(Some(self.client().await?)) };
        let begun = tx.client().await?.batch_execute("BEGIN").await;
        begun.map_err(|source| failed("BEGIN", source))?;
        Ok(tx)
    }
}

/// Options that every connection starts with.
fn session_options(given: Option<&str>, settings: &PostgresSettings) -> Result<String> {
    let mut options = given.unwrap_or_default().to_owned();
    let commit = match settings.durability {
        Durability::Full => "on",
        Durability::Relaxed => "off",
    };
    options.push_str(&format!(" -c synchronous_commit={commit}"));
    options.push_str(&format!(" -c statement_timeout={}", STATEMENT_MAX.as_millis()));
    let idle_ms = IDLE_IN_TRANSACTION_MAX.as_millis();
    options.push_str(&format!(" -c idle_in_transaction_session_timeout={idle_ms}"));
    let keepalive = [
        ("tcp_keepalives_idle", KEEPALIVE_IDLE.as_secs()),
        ("tcp_keepalives_interval", KEEPALIVE_INTERVAL.as_secs()),
        ("tcp_keepalives_count", u64::from(KEEPALIVE_RETRIES)),
    ];
    for (name, value) in keepalive {
        // Options in the operator's URL take precedence.
        if !given.unwrap_or_default().contains(name) {
            options.push_str(&format!(" -c {name}={value}"));
        }
    }
    if let Some(schema) = &settings.schema {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if schema.is_empty() || schema.len() > 63 || !schema.bytes().all(plain) {
            return Err(Error::invalid(format!(
                "invalid schema name {schema:?}: expected 1 to 63 lower-case letters, digits and underscores"
            )));
        }
        options.push_str(&format!(" -c search_path={schema}"));
    }
    Ok(options)
}

async fn create_schema(config: &Config, schema: &str) -> Result<()> {
    let at = |source| Error::Postgres { doing: "connect".to_owned(), source };
    let (client, connection) = config.connect(NoTls).await.map_err(at)?;
    let driver = tokio::spawn(connection);
    let text = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
    let mut created = client.batch_execute(&text).await;
    if let Err(error) = &created
        && error.code() == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION)
    {
        // Two processes started at once, and the other one created it.
        created = client.batch_execute(&text).await;
    }
    drop(client);
    // The connection ends once its client is gone; its result does not matter.
    drop(driver.await);
    created.map_err(|source| failed(&text, source))
}

/// A connection that runs a statement. If it is dropped before the answer, the statement is cancelled and the
/// connection is closed: in the pool, the next user would wait for an answer that nobody reads.
struct BusyClient(Option<Object>);

impl BusyClient {
    fn new(client: Object) -> Self {
        Self(Some(client))
    }

    fn get(&self) -> Result<&Object> {
        self.0.as_ref().ok_or(Error::TransactionOver { why: "its connection was returned" })
    }

    /// Returns the connection to the pool.
    fn answered(mut self) {
        self.0.take();
    }
}

impl Drop for BusyClient {
    fn drop(&mut self) {
        let Some(client) = self.0.take() else { return };
        let cancel = client.cancel_token();
        drop(Object::take(client));
        // Without a runtime the process is ending, and its statements with it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(cancel.cancel_query(NoTls).await) });
        }
    }
}

/// A transaction on its own connection.
#[derive(Debug)]
pub(super) struct PostgresTx {
    client: Mutex<Option<Object>>,
}

impl PostgresTx {
    /// Locks the connection until the guard is dropped.
    pub(super) async fn client(&self) -> Result<MappedMutexGuard<'_, Object>> {
        let client = self.client.lock().await;
        MutexGuard::try_map(client, Option::as_mut).map_err(|_| Error::TransactionOver {
            why: "it has already been committed or rolled back",
        })
    }

    pub(super) async fn one(&self, text: &str, params: &[Value]) -> Result<StatementResult> {
        let client = self.client().await?;
        let statement = prepare(&client, text).await?;
        run(&client, &statement, text, params).await
    }

    /// Runs one statement for each set of parameters, pipelined.
    pub(super) async fn many(&self, text: &str, sets: &[Vec<Value>]) -> Result<Vec<u64>> {
        let client = self.client().await?;
        let statement = prepare(&client, text).await?;
        let mut changed = Vec::with_capacity(sets.len());
        for sets in sets.chunks(PIPELINE_MAX) {
            let running = sets.iter().map(|params| client.execute_raw(&statement, params.iter()));
            changed.extend(try_join_all(running).await.map_err(|source| failed(text, source))?);
        }
        Ok(changed)
    }

    pub(super) async fn end(&self, commit: bool) -> Result<()> {
        // Taken first: otherwise a statement of another handle could run after the transaction.
        let mut closing = Self { client: Mutex::new(self.client.lock().await.take()) };
        let text = if commit { "COMMIT" } else { "ROLLBACK" };
        let ended = closing.client().await?.batch_execute(text).await;
        if ended.is_ok() {
            // Only after the answer: a caller dropped while waiting must not return an open transaction to the
            // pool.
            closing.client.get_mut().take();
        }
        let ended = ended.map_err(|source| failed(text, source));
        ended.map_err(|error| if commit { doubt_if_lost(error, "commit") } else { error })
    }
}

impl Drop for PostgresTx {
    fn drop(&mut self) {
        if let Some(client) = self.client.get_mut().take() {
            // Never return it to the pool: closing the connection rolls the transaction back.
            drop(Object::take(client));
        }
    }
}

async fn prepare(client: &Object, text: &str) -> Result<Statement> {
    client.prepare_cached(text).await.map_err(|source| failed(text, source))
}

/// Assigns each row to its statement: the one whose first column, at its start, is not null.
fn split(answer: StatementResult, starts: &[usize]) -> Vec<StatementResult> {
    let mut answers = vec![StatementResult::default(); starts.len()];
    for Row(mut values) in answer.rows {
        for (answer, start) in answers.iter_mut().zip(starts).rev() {
            let columns = values.split_off(*start);
            if columns[0] != Value::Null {
                answer.rows.push(Row(columns[1..].to_vec()));
                answer.changed += 1;
            }
        }
    }
    answers
}

async fn run(
    client: &Object,
    statement: &Statement,
    text: &str,
    params: &[Value],
) -> Result<StatementResult> {
    if statement.columns().is_empty() {
        let changed = client.execute_raw(statement, params).await;
        let changed = changed.map_err(|source| failed(text, source))?;
        return Ok(StatementResult { rows: Vec::new(), changed });
    }
    let params: Vec<&(dyn ToSql + Sync)> =
        params.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    let found = client.query(statement, &params).await.map_err(|source| failed(text, source))?;
    let rows = found.iter().map(|row| read(row, text)).collect::<Result<Vec<_>>>()?;
    Ok(StatementResult { changed: rows.len() as u64, rows })
}

fn read(row: &tokio_postgres::Row, text: &str) -> Result<Row> {
    let values = (0..row.len()).map(|column| row.try_get(column));
    let values = values.collect::<Result<_, _>>().map_err(|source| failed(text, source))?;
    Ok(Row(values))
}

pub(super) fn failed(text: &str, source: tokio_postgres::Error) -> Error {
    Error::Postgres { doing: text.to_owned(), source }
}

/// If the connection broke during a statement that commits, the commit may have happened.
fn doubt_if_lost(error: Error, doing: &str) -> Error {
    match &error {
        Error::Postgres { source, .. } if lost(source) => {
            Error::InDoubt { doing: doing.to_owned(), source: Box::new(error) }
        }
        _ => error,
    }
}

/// The socket broke, or an intermediary (a pooler) reports that its connection did.
fn lost(error: &tokio_postgres::Error) -> bool {
    let told = error.code().is_some_and(|code| code.code().starts_with("08"));
    told || crate::error::connection_lost(error)
}
