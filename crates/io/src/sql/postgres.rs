//! PostgreSQL: a bounded pool of connections.
//!
//! Guarantees: a broken connection is replaced, so work goes on after the server restarts; a transaction whose
//! caller goes away is rolled back by closing its connection; an error while a commit was under way says that
//! its outcome is in doubt. Leaves to others: retries, rewriting, and what to do about doubt.

use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod,
    Runtime, TimeoutType,
};
use futures::future::try_join_all;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls, Statement};

use super::presence::Absences;
use super::{Answer, Durability, Row, Value, dialect};
use crate::clock::millis;
use crate::error::{Error, Result};

/// How long a caller waits for a free connection.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long making a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long one statement may run on the server.
const STATEMENT_MAX: Duration = Duration::from_secs(60);
/// How long the server waits for the next statement of a transaction. A machine that lost its power holds its locks,
/// that of a fence among them, for no longer than this.
const IDLE_IN_TRANSACTION_MAX: Duration = Duration::from_secs(10);
/// How long an unanswered packet is waited for before the connection counts as broken, at both ends.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);
/// After how long without a packet the other end is asked whether it is there, how often, and how many times: a machine
/// that lost its power or its network holds its locks for no longer than 11 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;
/// Executions on the way to the server at once.
const PIPELINE_MAX: usize = 512;

/// How to reach a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresSettings {
    /// `postgresql://user:password@host:port/database`, or `key=value` pairs.
    pub url: String,
    /// The schema that holds the tables; created when missing. None for the connection's default.
    pub schema: Option<String>,
    /// The most connections of this process.
    pub connections: usize,
    /// Whether a commit waits for the server's disk.
    pub durability: Durability,
}

impl PostgresSettings {
    /// The usual settings.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), schema: None, connections: 8, durability: Durability::Full }
    }
}

/// The address may hold a password.
impl std::fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresSettings")
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

/// An open PostgreSQL database.
#[derive(Debug)]
pub(super) struct Postgres {
    pool: Pool,
    config: Config,
    connections: usize,
    absences: Absences,
}

impl Postgres {
    pub(super) async fn connect(settings: &PostgresSettings) -> Result<Self> {
        // Not with the reason: it may quote what it stumbled over, which may be a part of the password.
        let mut config: Config = settings.url.parse().map_err(|_| {
            Error::invalid(
                "the database address can not be read: postgresql://user:password@host:port/database, \
                 special characters as %XX, or key=value pairs are expected",
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
            // The one that was used last: the server's process behind it has everything at hand.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(WAIT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .runtime(Runtime::Tokio1)
            .post_create(Hook::async_fn(|client, _| {
                Box::pin(async move {
                    // Half of the cost of a small statement is planning it; the plans of ours do not depend
                    // on the parameters.
                    client
                        .batch_execute("SET plan_cache_mode = force_generic_plan")
                        .await
                        .map_err(HookError::Backend)
                })
            }))
            .build()
            .map_err(|error| Error::invalid(format!("the database pool: {error}")))?;
        let connections = settings.connections;
        let postgres = Self { pool, config, connections, absences: Absences::default() };
        // Fail now, with a clear reason, rather than at the first statement.
        drop(postgres.client().await?);
        Ok(postgres)
    }

    /// The address, for a connection of one's own.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The owners that were not there.
    pub(super) fn absences(&self) -> &Absences {
        &self.absences
    }

    pub(super) async fn client(&self) -> Result<Object> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Timeout(TimeoutType::Wait) => Error::PoolTimeout {
                waited_ms: millis(WAIT_MAX).unsigned_abs(),
                connections: self.connections,
            },
            PoolError::Backend(source) | PoolError::PostCreateHook(HookError::Backend(source)) => {
                Error::Postgres { doing: "connect".to_owned(), source }
            }
            PoolError::Timeout(_) => Error::PoolTimeout {
                waited_ms: millis(CONNECT_MAX).unsigned_abs(),
                connections: self.connections,
            },
            other => Error::invalid(format!("the database pool: {other}")),
        })
    }

    /// One statement in a transaction of its own.
    pub(super) async fn one(&self, text: &str, params: &[Value]) -> Result<Answer> {
        let client = self.client().await?;
        let statement = prepare(&client, text).await?;
        run(&client, &statement, text, params).await.map_err(|error| doubt_if_lost(error, text))
    }

    /// Statements in a transaction of their own, sent and answered as one statement: each answer that the server
    /// sends by itself wakes this process, and on a busy machine that costs more than the statement.
    pub(super) async fn together(&self, statements: &[super::Statement]) -> Result<Vec<Answer>> {
        if let [(text, params)] = statements {
            return Ok(vec![self.one(text, params).await?]);
        }
        let parts = statements.iter().map(|(text, params)| (&**text, params.len()));
        let text = dialect::joined(parts);
        let params: Vec<Value> =
            statements.iter().flat_map(|(_, params)| params.iter().cloned()).collect();
        let client = self.client().await?;
        let statement = prepare(&client, &text).await?;
        let names = statement.columns().iter().map(tokio_postgres::Column::name);
        let starts: Vec<usize> = names
            .enumerate()
            .filter(|(_, name)| *name == dialect::PART)
            .map(|(at, _)| at)
            .collect();
        let answer = run(&client, &statement, &text, &params).await;
        let answer = answer.map_err(|error| doubt_if_lost(error, &text))?;
        Ok(split(answer, &starts))
    }

    pub(super) async fn begin(&self) -> Result<PostgresTx> {
        // Before it begins: a caller who is dropped while waiting must not return an open transaction to the pool.
        let tx = PostgresTx { client: Mutex::new(Some(self.client().await?)) };
        let begun = tx.client().await?.batch_execute("BEGIN").await;
        begun.map_err(|source| failed("BEGIN", source))?;
        Ok(tx)
    }
}

/// Settings that every connection starts with.
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
        // What the operator says in the address wins.
        if !given.unwrap_or_default().contains(name) {
            options.push_str(&format!(" -c {name}={value}"));
        }
    }
    if let Some(schema) = &settings.schema {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if schema.is_empty() || schema.len() > 63 || !schema.bytes().all(plain) {
            return Err(Error::invalid(format!(
                "the schema name {schema:?}: lower-case letters, digits and underscores, at most 63"
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
        // Two processes started at once: the other one made it.
        created = client.batch_execute(&text).await;
    }
    drop(client);
    // The connection ends by itself once its client is gone; how it ended does not matter.
    drop(driver.await);
    created.map_err(|source| failed(&text, source))
}

/// A transaction on a connection of its own.
#[derive(Debug)]
pub(super) struct PostgresTx {
    client: Mutex<Option<Object>>,
}

impl PostgresTx {
    /// The connection, for as long as the guard lives.
    pub(super) async fn client(&self) -> Result<MappedMutexGuard<'_, Object>> {
        let client = self.client.lock().await;
        MutexGuard::try_map(client, Option::as_mut)
            .map_err(|_| Error::TransactionOver { why: "it was committed or rolled back before" })
    }

    pub(super) async fn one(&self, text: &str, params: &[Value]) -> Result<Answer> {
        let client = self.client().await?;
        let statement = prepare(&client, text).await?;
        run(&client, &statement, text, params).await
    }

    /// Runs one statement for each set of parameters, many on the way at once.
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
        // Out of reach at once: a statement of another handle would run after the transaction.
        let mut closing = Self { client: Mutex::new(self.client.lock().await.take()) };
        let text = if commit { "COMMIT" } else { "ROLLBACK" };
        let ended = closing.client().await?.batch_execute(text).await;
        if ended.is_ok() {
            // Only after the answer: a caller dropped while waiting for it must not return an open transaction
            // to the pool.
            closing.client.get_mut().take();
        }
        let ended = ended.map_err(|source| failed(text, source));
        ended.map_err(|error| if commit { doubt_if_lost(error, "commit") } else { error })
    }
}

impl Drop for PostgresTx {
    fn drop(&mut self) {
        if let Some(client) = self.client.get_mut().take() {
            // Never back into the pool: closing the connection is what rolls the transaction back.
            drop(Object::take(client));
        }
    }
}

async fn prepare(client: &Object, text: &str) -> Result<Statement> {
    client.prepare_cached(text).await.map_err(|source| failed(text, source))
}

/// Hands each row to the statement that it is of: the one whose columns, which begin at its start, are not all null.
fn split(answer: Answer, starts: &[usize]) -> Vec<Answer> {
    let mut answers = vec![Answer::default(); starts.len()];
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
) -> Result<Answer> {
    if statement.columns().is_empty() {
        let changed = client.execute_raw(statement, params).await;
        let changed = changed.map_err(|source| failed(text, source))?;
        return Ok(Answer { rows: Vec::new(), changed });
    }
    let params: Vec<&(dyn ToSql + Sync)> =
        params.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    let found = client.query(statement, &params).await.map_err(|source| failed(text, source))?;
    let rows = found.iter().map(|row| read(row, text)).collect::<Result<Vec<_>>>()?;
    Ok(Answer { changed: rows.len() as u64, rows })
}

fn read(row: &tokio_postgres::Row, text: &str) -> Result<Row> {
    let values = (0..row.len()).map(|column| row.try_get(column));
    let values = values.collect::<Result<_, _>>().map_err(|source| failed(text, source))?;
    Ok(Row(values))
}

pub(super) fn failed(text: &str, source: tokio_postgres::Error) -> Error {
    Error::Postgres { doing: text.to_owned(), source }
}

/// A statement that commits and whose connection broke may have happened.
fn doubt_if_lost(error: Error, doing: &str) -> Error {
    match &error {
        Error::Postgres { source, .. } if lost(source) => {
            Error::InDoubt { doing: doing.to_owned(), source: Box::new(error) }
        }
        _ => error,
    }
}

/// The socket broke, or something between us and the server (a pooler) says that its connection did.
fn lost(error: &tokio_postgres::Error) -> bool {
    let told = error.code().is_some_and(|code| code.code().starts_with("08"));
    told || crate::error::connection_lost(error)
}
