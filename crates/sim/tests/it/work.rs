//! The work kernel on both engines.

pub(crate) mod coverage;
mod cron;
mod lease;
mod model;
mod once;
mod queue;
mod runner;

use std::future::Future;

use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::Queue;

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

/// The queue of a database, as a new process would open it.
pub(crate) async fn open(database: &Database) -> Queue {
    Queue::open(database.open().await).await.expect("the queue opens")
}
