//! Tests of the crate `work` on both engines.

pub(crate) mod coverage;
mod cron;
mod lease;
mod model;
mod once;
mod queue;
mod recovery;
mod runner;

use std::future::Future;

use logmill_io::params;
use logmill_io::sql::Execute;
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::{Claim, Queue};

/// Runs a future on one thread with paused time, as simulations do.
pub(crate) fn simulate<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

/// Runs a future in real time, as a server would.
pub(crate) fn in_real_time<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Runs `body` on SQLite in memory and on PostgreSQL.
pub(crate) fn on_both<F: Future<Output = ()>>(body: impl Fn(Database) -> F) {
    simulate(async { body(Database::memory().await).await });
    let server = PostgresServer::start();
    in_real_time(async { body(Database::postgres(&server)).await });
}

/// Opens the queue of a database as a new process would.
pub(crate) async fn open(database: &Database) -> Queue {
    Queue::open(database.open().await).await.expect("the queue opens")
}

/// Creates the table of effects. It has no key: only the token prevents an effect from happening twice.
pub(crate) async fn create_effects(queue: &Queue) {
    queue.sql().execute("CREATE TABLE effect (key TEXT)", params![]).await.expect("a table");
}

/// Writes a job's effect and completes it, in one transaction.
pub(crate) async fn effect(queue: &Queue, claim: &Claim) -> logmill_work::Result<()> {
    queue
        .sql()
        .write(|tx| async move {
            tx.execute("INSERT INTO effect (key) VALUES ($1)", params![claim.key.as_str()]).await?;
            queue.complete_in(&tx, claim).await
        })
        .await
}
