//! A PostgreSQL server that stops and starts again: the same handles keep working, and no acknowledged write is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use logmill_io::sql::{Durability, Execute, Wakes};
use logmill_io::{ErrorKind, OsEntropy, Sql, SystemClock, Tasks, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use tokio::sync::Notify;

use super::{number, run};

/// Longer than it takes to listen again; a passing test does not wait this long.
const LONG: Duration = Duration::from_secs(20);

/// A handle whose commits wait for the disk, so that a restarted server has everything that it acknowledged.
async fn open_durable(database: &Database) -> Sql {
    let mut settings = database.postgres_settings().expect("it is on a server");
    settings.durability = Durability::Full;
    let sql = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    sql.expect("the server answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_handle_works_after_a_restart() {
    let mut server = PostgresServer::start();
    let database = Database::postgres(&server);
    let (sql, other) = (open_durable(&database).await, open_durable(&database).await);
    run(&sql, "CREATE TABLE entry (id BIGINT PRIMARY KEY)").await;
    let wakes = Wakes::over(&sql, "outage").await.expect("a channel");
    let others = Wakes::over(&other, "outage").await.expect("a channel");
    let mut waiter = others.waiter("topic").expect("a waiter");

    server.stop();
    let insert = "INSERT INTO entry (id) VALUES ($1)";
    let down = [
        sql.execute(insert, params![1_i64]).await.map(|_| ()),
        sql.write(|tx| async move { tx.execute(insert, params![1_i64]).await.map(|_| ()) }).await,
        sql.query("SELECT 1", params![]).await.map(|_| ()),
    ];
    for error in down {
        let error = error.expect_err("the server is down");
        assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.chain());
    }
    Wakes::over(&sql, "outage").await.expect("a channel waits for its server");

    server.resume();
    sql.execute(insert, params![2_i64]).await.expect("the same handle");
    sql.write(|tx| async move { tx.execute(insert, params![3_i64]).await }).await.expect("as well");
    assert_eq!(number(&sql, "SELECT count(*) FROM entry").await, 2);
    // Any notification may have been missed, so every waiter is woken once.
    tokio::time::timeout(LONG, waiter.wait()).await.expect("it listens again");
    waiter.clear();
    wakes.wake("topic");
    tokio::time::timeout(LONG, waiter.wait()).await.expect("wake-ups come again");
}

/// Writes until the server is gone; returns the acknowledged ids.
async fn write_until_error(sql: Sql, next: Arc<AtomicU64>, progress: Arc<Notify>) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    loop {
        let id = i64::try_from(next.fetch_add(1, Ordering::SeqCst)).expect("small");
        let insert = "INSERT INTO entry (id) VALUES ($1)";
        let written = if id % 2 == 0 {
            sql.write(|tx| async move { tx.execute(insert, params![id]).await }).await
        } else {
            sql.execute(insert, params![id]).await
        };
        match written {
            Ok(_) => acknowledged.push(id),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.chain());
                return acknowledged;
            }
        }
        progress.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_acknowledged_before_a_server_crash_are_kept_once() {
    const WRITERS: usize = 6;
    let mut server = PostgresServer::start();
    let database = Database::postgres(&server);
    let sql = open_durable(&database).await;
    // Without a key, so that a repeated write shows.
    run(&sql, "CREATE TABLE entry (id BIGINT NOT NULL)").await;
    let next = Arc::new(AtomicU64::new(0));
    for round in 0..3 {
        let progress = Arc::new(Notify::new());
        let mut writers = Tasks::new();
        for _ in 0..WRITERS {
            let writer = write_until_error(sql.clone(), Arc::clone(&next), Arc::clone(&progress));
            writers.spawn(writer);
        }
        for _ in 0..50 {
            progress.notified().await;
        }
        server.stop();
        let mut acknowledged = Vec::new();
        while let Some(ended) = writers.join_next().await {
            acknowledged.extend(ended.expect("no panic"));
        }
        server.resume();
        let found = sql.query("SELECT id FROM entry ORDER BY id", params![]).await.expect("rows");
        let mut found: Vec<i64> = found.rows.iter().map(|row| row.int(0).expect("id")).collect();
        for id in acknowledged {
            assert!(found.binary_search(&id).is_ok(), "round {round}: {id} was acknowledged");
        }
        let all = found.len();
        found.dedup();
        assert_eq!(found.len(), all, "round {round}: nothing was written twice");
    }
}
