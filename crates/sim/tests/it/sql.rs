//! The SQL interface under stress: both engines return the same answers, conflicting transactions are retried,
//! acknowledged writes are never lost and failed ones never kept, even if clients disappear, servers restart, and
//! disks fill up or break.
//!
//! Leaves to others: the queue and the leases above it.

use logmill_io::sql::Execute;
use logmill_io::{Sql, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;

mod amounts;
mod bulk;
mod cancelled;
mod disk;
mod groups;
mod migrations;
mod outage;
mod refusals;
mod statements;
mod step_back;
mod transactions;
mod wakes;

/// One empty database of each kind: SQLite in memory, in a file, and PostgreSQL.
pub(crate) struct DatabaseKinds {
    databases: Vec<Database>,
    // Last, so that it is stopped after the databases are dropped.
    _server: PostgresServer,
}

impl DatabaseKinds {
    pub(crate) async fn start() -> Self {
        let server = PostgresServer::start();
        let databases =
            vec![Database::memory().await, Database::file(), Database::postgres(&server)];
        Self { databases, _server: server }
    }

    /// Opens each database.
    pub(crate) async fn open(&self) -> Vec<Sql> {
        let mut handles = Vec::new();
        for database in &self.databases {
            handles.push(database.open().await);
        }
        handles
    }
}

/// Runs a statement that must succeed.
async fn run(sql: &Sql, text: &str) {
    if let Err(error) = sql.execute(text, params![]).await {
        panic!("{sql:?}: {}", error.chain());
    }
}

/// Returns the single number of a query's result.
async fn number(sql: &Sql, text: &str) -> i64 {
    match sql.query(text, params![]).await.and_then(|answer| answer.row()?.int(0)) {
        Ok(number) => number,
        Err(error) => panic!("{sql:?}: {}", error.chain()),
    }
}
