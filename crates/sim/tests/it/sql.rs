//! The SQL face under attack: both engines give the same answers, races are run again, nothing that was
//! acknowledged is lost and nothing that failed is kept, whoever goes away, restarts, fills up or breaks.
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
pub(crate) struct Kinds {
    databases: Vec<Database>,
    // Last, so that it is stopped after the others let go of it.
    _server: PostgresServer,
}

impl Kinds {
    pub(crate) async fn start() -> Self {
        let server = PostgresServer::start();
        let databases =
            vec![Database::memory().await, Database::file(), Database::postgres(&server)];
        Self { databases, _server: server }
    }

    /// A handle to each.
    pub(crate) async fn open(&self) -> Vec<Sql> {
        let mut handles = Vec::new();
        for database in &self.databases {
            handles.push(database.open().await);
        }
        handles
    }
}

/// Runs a statement that must work.
async fn run(sql: &Sql, text: &str) {
    if let Err(error) = sql.execute(text, params![]).await {
        panic!("{sql:?}: {}", error.chain());
    }
}

/// The one number that a query gives.
async fn number(sql: &Sql, text: &str) -> i64 {
    match sql.query(text, params![]).await.and_then(|answer| answer.row()?.int(0)) {
        Ok(number) => number,
        Err(error) => panic!("{sql:?}: {}", error.chain()),
    }
}
