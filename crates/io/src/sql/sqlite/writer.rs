//! The thread that writes a SQLite file, and how a statement, a group of them and a transaction run there.
//!
//! Guarantees: a caller is answered with `Ok` only after its commit; a statement that fails takes nobody along
//! with whom it shared a commit; a caller who went away in the middle of a transaction is rolled back. Leaves to
//! others: who may call ([`super::SqliteTx`]).

use std::sync::Arc;

use rusqlite::{Connection, ffi};
use tokio::sync::{mpsc, oneshot};

use super::super::{Answer, Row, Value};
use super::health::Health;
use crate::error::Result;

/// Statements that share one commit, at most.
const GROUP_MAX: usize = 256;

/// Something to do with the writing connection.
pub(super) type Call = Box<dyn FnOnce(&mut Connection) + Send>;

pub(super) enum Command {
    One(One),
    Call(Call),
    Begin { begun: oneshot::Sender<Result<()>>, steps: mpsc::Receiver<Step> },
}

pub(super) struct One {
    pub(super) text: Arc<str>,
    pub(super) params: Vec<Value>,
    pub(super) answer: oneshot::Sender<Result<Answer>>,
}

/// One step of a transaction.
pub(super) enum Step {
    Call(Call),
    End { commit: bool, ended: oneshot::Sender<Result<()>> },
}

/// The write lock is taken at once: a transaction that starts by reading and then writes could otherwise fail
/// half-way.
const BEGIN: &str = "BEGIN IMMEDIATE";

pub(super) fn write_loop(
    mut connection: Connection,
    mut commands: mpsc::Receiver<Command>,
    health: &Health,
) {
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
                run_transaction(&mut connection, begun, steps, health);
            }
        }
    }
}

/// Commits several callers' statements with one sync. Each is in its own savepoint, so that one that fails
/// takes nobody along; where a savepoint is not enough (a full disk), each is tried on its own.
fn run_group(connection: &Connection, group: Vec<One>, health: &Health) {
    if group.len() == 1 || health.usable().is_err() {
        return run_alone(connection, group, health);
    }
    if let Err(error) = connection.execute_batch(BEGIN) {
        return refuse_all(group, &error, health);
    }
    let mut answers = Vec::with_capacity(group.len());
    for one in &group {
        answers.push(in_savepoint(connection, one));
        if connection.is_autocommit() {
            // SQLite gave the whole transaction up, and a further savepoint would commit by itself.
            return run_alone(connection, group, health);
        }
    }
    if let Err(error) = connection.execute_batch("COMMIT") {
        let _ = connection.execute_batch("ROLLBACK");
        if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) {
            return run_alone(connection, group, health);
        }
        return refuse_all(group, &error, health);
    }
    for (one, answer) in group.into_iter().zip(answers) {
        let answer = health.check(answer, &one.text);
        drop(one.answer.send(answer));
    }
}

fn run_alone(connection: &Connection, group: Vec<One>, health: &Health) {
    for one in group {
        let answer = alone(connection, &one.text, &one.params, health);
        drop(one.answer.send(answer));
    }
}

/// One statement in a transaction of its own.
pub(super) fn alone(
    connection: &Connection,
    text: &str,
    params: &[Value],
    health: &Health,
) -> Result<Answer> {
    health.usable()?;
    health.check_commit(run(connection, text, params), text)
}

fn in_savepoint(connection: &Connection, one: &One) -> rusqlite::Result<Answer> {
    connection.prepare_cached("SAVEPOINT one")?.execute([])?;
    let answer = run(connection, &one.text, &one.params);
    if connection.is_autocommit() {
        return answer;
    }
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
        drop(one.answer.send(health.check_commit(Err(copy), "commit a group of statements")));
    }
}

fn run_transaction(
    connection: &mut Connection,
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

pub(super) fn begin(connection: &Connection, health: &Health) -> Result<()> {
    health.usable()?;
    health.check(connection.execute_batch(BEGIN), BEGIN)
}

pub(super) fn end(connection: &Connection, commit: bool, health: &Health) -> Result<()> {
    if !commit {
        return health.check(connection.execute_batch("ROLLBACK"), "ROLLBACK");
    }
    let committed = connection.execute_batch("COMMIT");
    if committed.is_err() {
        // A commit that fails (a full disk) leaves the transaction open.
        let _ = connection.execute_batch("ROLLBACK");
    }
    health.check_commit(committed, "COMMIT")
}

pub(super) fn run(
    connection: &Connection,
    text: &str,
    params: &[Value],
) -> rusqlite::Result<Answer> {
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
        found.push(Row(values.collect::<rusqlite::Result<_>>()?));
    }
    let changed = found.len() as u64;
    Ok(Answer { rows: found, changed })
}
