//! The writer thread of a SQLite file: runs single statements, groups of them, and transactions.
//!
//! Every commit that changes something increments a counter in the database, and then in the sidecar of the
//! file.
//!
//! This is not [`crate::group_commit`]: it runs on a thread of its own, each caller has a savepoint within the one
//! transaction, so that a failure costs no second attempt, and transactions keep their turn between groups.
//!
//! Guarantees: a caller gets `Ok` only after its commit, and after the sidecar was written. A failing statement
//! does not affect other callers in the same commit. The transaction of a dropped caller is rolled back. Leaves
//! to others: the callers' side ([`super::SqliteTx`]).

use std::ops::{Deref, DerefMut};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ffi};
use tokio::sync::{mpsc, oneshot};

use super::super::{Durability, Row, Statement, StatementResult, Value};
use super::health::Health;
use super::lanes::Lanes;
use super::sidecar::Sidecar;
use crate::error::Result;

/// Maximum number of callers that share one commit.
const GROUP_MAX: usize = 256;

/// The writing connection, and the sidecar of its file; none for a database in memory or a read-only one.
#[derive(Debug)]
pub(super) struct WriteConnection {
    connection: Connection,
    sidecar: Option<Sidecar>,
    /// Rows that the connection had changed when the transaction began.
    changes_before: u64,
}

impl WriteConnection {
    pub(super) fn new(connection: Connection, sidecar: Option<Sidecar>) -> Self {
        Self { connection, sidecar, changes_before: 0 }
    }

    fn start(&mut self) -> rusqlite::Result<()> {
        self.connection.execute_batch(BEGIN)?;
        self.changes_before = self.connection.total_changes();
        Ok(())
    }

    /// Commits, or rolls back on failure: a failed commit (full disk) leaves the transaction open.
    fn commit(&mut self) -> rusqlite::Result<()> {
        let committed = self.count_and_commit();
        if committed.is_err() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        committed
    }

    fn count_and_commit(&mut self) -> rusqlite::Result<()> {
        let changed = self.connection.total_changes() != self.changes_before;
        let Some(sidecar) = self.sidecar.as_mut().filter(|_| changed) else {
            return self.connection.execute_batch("COMMIT");
        };
        let sequence = Sidecar::count(&self.connection)?;
        self.connection.execute_batch("COMMIT")?;
        sidecar.committed(sequence);
        Ok(())
    }

    /// Copies the write-ahead log back and closes the file, which removes the log unless another process reads
    /// it. After a failed sync everything stays as it is: the next start finds what the disk holds.
    pub(super) fn close(self, durability: Durability, health: &Health) {
        let Self { connection, sidecar, .. } = self;
        let Some(sidecar) = sidecar else { return };
        if health.usable().is_err() {
            let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            return;
        }
        let checkpoint = || -> rusqlite::Result<bool> {
            if durability == Durability::Relaxed {
                connection.pragma_update(None, "synchronous", "FULL")?;
            }
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        };
        match health.check(checkpoint(), "copy the write-ahead log back") {
            Ok(busy) => {
                if busy {
                    tracing::info!(
                        database = health.name(),
                        "the write-ahead log stays, because another process reads it"
                    );
                }
                sidecar.close();
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot copy the write-ahead log back");
                let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            }
        }
    }
}

impl Deref for WriteConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for WriteConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Work for the writing connection.
pub(super) type Call = Box<dyn FnOnce(&mut Connection) + Send>;

pub(super) enum Command {
    StatementGroup(StatementGroup),
    Call(Call),
    Begin { begun: oneshot::Sender<Result<()>>, steps: mpsc::Receiver<Step> },
}

/// One caller's statements, which take effect together or not at all.
pub(super) struct StatementGroup {
    pub(super) statements: Vec<Statement>,
    pub(super) answer: oneshot::Sender<Result<Vec<StatementResult>>>,
}

impl StatementGroup {
    /// Text for error messages.
    fn text(&self) -> &str {
        text_of(&self.statements)
    }
}

fn text_of(statements: &[Statement]) -> &str {
    statements.first().map_or("no statement", |(text, _)| text)
}

pub(super) enum Step {
    Call(Call),
    End { commit: bool, ended: oneshot::Sender<Result<()>> },
}

/// Takes the write lock immediately; otherwise a transaction that reads first and then writes could fail
/// halfway.
const BEGIN: &str = "BEGIN IMMEDIATE";

/// Ends when all senders are dropped.
pub(super) fn write_loop(
    mut connection: WriteConnection,
    mut commands: Lanes<Command>,
    durability: Durability,
    health: &Health,
) {
    let mut next = None;
    while let Some(command) = next.take().or_else(|| commands.blocking_next()) {
        match command {
            Command::StatementGroup(first) => {
                let mut group = vec![first];
                while group.len() < GROUP_MAX {
                    match commands.next_waiting() {
                        Some(Command::StatementGroup(another)) => group.push(another),
                        other => {
                            next = other;
                            break;
                        }
                    }
                }
                run_group(&mut connection, group, health);
            }
            Command::Call(call) => call(&mut connection),
            Command::Begin { begun, steps } => {
                run_transaction(&mut connection, begun, steps, health);
            }
        }
    }
    connection.close(durability, health);
}

/// Commits several callers' statements with one sync. Each caller has its own savepoint, so that a failure does
/// not affect others. If a savepoint is not enough (full disk), each caller runs alone.
fn run_group(connection: &mut WriteConnection, group: Vec<StatementGroup>, health: &Health) {
    if group.len() == 1 || health.usable().is_err() {
        return run_alone(connection, group, health);
    }
    if let Err(error) = connection.start() {
        return refuse_all(group, &error, health);
    }
    let mut answers = Vec::with_capacity(group.len());
    for unit in &group {
        answers.push(in_savepoint(connection, &unit.statements));
        if connection.is_autocommit() {
            // SQLite aborted the whole transaction; another savepoint would commit by itself.
            return run_alone(connection, group, health);
        }
    }
    if let Err(error) = connection.commit() {
        if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) {
            return run_alone(connection, group, health);
        }
        return refuse_all(group, &error, health);
    }
    for (unit, answer) in group.into_iter().zip(answers) {
        let answer = health.check(answer, unit.text());
        drop(unit.answer.send(answer));
    }
}

fn run_alone(connection: &mut WriteConnection, group: Vec<StatementGroup>, health: &Health) {
    for unit in group {
        let answer = alone(connection, &unit.statements, health);
        drop(unit.answer.send(answer));
    }
}

/// Runs one caller's statements in their own transaction.
pub(super) fn alone(
    connection: &mut WriteConnection,
    statements: &[Statement],
    health: &Health,
) -> Result<Vec<StatementResult>> {
    health.usable()?;
    if let [(text, params)] = statements
        && (connection.sidecar.is_none() || health.check(only_reads(connection, text), text)?)
    {
        // It commits by itself.
        return Ok(vec![health.check_commit(run(connection, text, params), text)?]);
    }
    begin(connection, health)?;
    match health.check(run_all(connection, statements), text_of(statements)) {
        Ok(answers) => end(connection, true, health).map(|()| answers),
        Err(error) => {
            // SQLite may already have rolled back.
            let _ = connection.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

fn only_reads(connection: &Connection, text: &str) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached(text)?.readonly())
}

/// Stops at the first failure.
fn run_all(
    connection: &Connection,
    statements: &[Statement],
) -> rusqlite::Result<Vec<StatementResult>> {
    statements.iter().map(|(text, params)| run(connection, text, params)).collect()
}

fn in_savepoint(
    connection: &Connection,
    statements: &[Statement],
) -> rusqlite::Result<Vec<StatementResult>> {
    connection.prepare_cached("SAVEPOINT one")?.execute([])?;
    let answers = run_all(connection, statements);
    if connection.is_autocommit() {
        return answers;
    }
    if answers.is_err() {
        connection.prepare_cached("ROLLBACK TO one")?.execute([])?;
    }
    connection.prepare_cached("RELEASE one")?.execute([])?;
    answers
}

fn refuse_all(group: Vec<StatementGroup>, error: &rusqlite::Error, health: &Health) {
    for unit in group {
        let copy = match error {
            rusqlite::Error::SqliteFailure(code, text) => {
                rusqlite::Error::SqliteFailure(*code, text.clone())
            }
            other => rusqlite::Error::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_ERROR),
                Some(other.to_string()),
            ),
        };
        drop(unit.answer.send(health.check_commit(Err(copy), "commit a group of statements")));
    }
}

fn run_transaction(
    connection: &mut WriteConnection,
    begun: oneshot::Sender<Result<()>>,
    mut steps: mpsc::Receiver<Step>,
    health: &Health,
) {
    let start = begin(connection, health);
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

pub(super) fn begin(connection: &mut WriteConnection, health: &Health) -> Result<()> {
    health.usable()?;
    health.check(connection.start(), BEGIN)
}

pub(super) fn end(connection: &mut WriteConnection, commit: bool, health: &Health) -> Result<()> {
    if !commit {
        return health.check(connection.execute_batch("ROLLBACK"), "ROLLBACK");
    }
    health.check_commit(connection.commit(), "COMMIT")
}

pub(super) fn run(
    connection: &Connection,
    text: &str,
    params: &[Value],
) -> rusqlite::Result<StatementResult> {
    let mut statement = connection.prepare_cached(text)?;
    let columns = statement.column_count();
    let params = rusqlite::params_from_iter(params);
    if columns == 0 {
        let changed = statement.execute(params)?;
        return Ok(StatementResult { rows: Vec::new(), changed: changed as u64 });
    }
    let mut found = Vec::new();
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column));
        found.push(Row(values.collect::<rusqlite::Result<_>>()?));
    }
    let changed = found.len() as u64;
    Ok(StatementResult { rows: found, changed })
}
