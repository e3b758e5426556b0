//! Cancelled callers: wherever a call is dropped, no partial work remains and the handle keeps working.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use logmill_io::sql::{Execute, Migration, Migrations};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;

use super::{number, run};

/// Drops `work` when it is pending for the `polls`-th time; returns its outcome if it ends before.
async fn cancelled_after<F: Future>(polls: usize, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut left = polls;
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending if left <= 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Runs two inserts in one transaction, cancelled each time at a different point. How often the transaction is
/// pending before it completes depends on how fast the database answers.
async fn is_safe_everywhere(sql: &Sql, observer: &Sql) {
    const STEPS: i64 = 80;
    const POLLS_MAX: i64 = 10;
    run(sql, "CREATE TABLE entry (step BIGINT NOT NULL, half BIGINT NOT NULL)").await;
    let insert = "INSERT INTO entry (step, half) VALUES ($1, $2)";
    let (mut cancelled, mut done) = (0, 0);
    for step in 0..STEPS {
        let transaction = sql.write(|tx| async move {
            tx.execute(insert, params![step, 1_i64]).await?;
            tx.execute(insert, params![step, 2_i64]).await.map(|_| ())
        });
        let polls = usize::try_from(step % POLLS_MAX + 1).expect("small");
        let outcome = cancelled_after(polls, transaction).await;

        // The next statement on the same connection: in a transaction left open, other connections would not see it.
        sql.execute(insert, params![step, 3_i64]).await.expect("the handle goes on");
        let count =
            |half| format!("SELECT count(*) FROM entry WHERE step = {step} AND half {half}");
        assert_eq!(number(observer, &count("= 3")).await, 1, "{sql:?}, step {step}");
        let halves = number(observer, &count("< 3")).await;
        if let Some(outcome) = outcome {
            outcome.expect("nothing is in its way");
            assert_eq!(halves, 2, "{sql:?}, step {step}");
            done += 1;
        } else {
            assert!([0, 2].contains(&halves), "{sql:?}, step {step}: {halves}");
            cancelled += 1;
        }
    }
    assert!(cancelled > 0 && done > 0, "{sql:?}: {cancelled} cancelled, {done} done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_can_be_cancelled_at_every_point() {
    let memory = Database::memory().await;
    is_safe_everywhere(&memory.open().await, &memory.open().await).await;
    let file = Database::file();
    is_safe_everywhere(&file.open().await, &file.open().await).await;
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    // One connection, so that the next caller gets the cancelled one.
    let one = with_connections(&database, 1).await;
    is_safe_everywhere(&one, &database.open().await).await;
}

/// A handle with so many connections to a server.
async fn with_connections(database: &Database, connections: usize) -> Sql {
    let mut settings = database.postgres_settings().expect("it is on a server");
    settings.connections = connections;
    let sql = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    sql.expect("the server answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_read_is_cancelled_and_keeps_no_connection_busy() {
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    let (sql, observer) = (with_connections(&database, 1).await, database.open().await);
    for _ in 0..3 {
        let read = sql.query("SELECT count(*) FROM pg_sleep(50)", params![]);
        tokio::time::timeout(Duration::from_millis(300), read).await.expect_err("it is long");
        let next = tokio::time::timeout(Duration::from_secs(20), number(&sql, "SELECT 1"));
        assert_eq!(next.await.expect("another connection answers"), 1);
    }
    let sleeping = "SELECT count(*) FROM pg_stat_activity
        WHERE state = 'active' AND query LIKE 'SELECT count(*) FROM pg_sleep%'";
    let gone = async {
        while number(&observer, sleeping).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("they were cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_leave_connections_to_writes() {
    let server = PostgresServer::start();
    let sql = with_connections(&Database::postgres(&server), 3).await;
    run(&sql, "CREATE TABLE entry (step BIGINT NOT NULL)").await;
    let read = || sql.query("SELECT count(*) FROM pg_sleep(50)", params![]);
    let reads = futures::future::join_all((0..6).map(|_| read()));
    let write = async {
        // The reads have started by the time the first of two writes is done.
        for step in 0..2_i64 {
            let insert = sql.execute("INSERT INTO entry (step) VALUES ($1)", params![step]);
            insert.await.expect("a connection is left");
        }
    };
    tokio::select! {
        biased;
        _ = reads => panic!("they take fifty seconds"),
        written = tokio::time::timeout(Duration::from_secs(9), write) => written.expect("no wait"),
    }
}

static PLANTS: Migrations = Migrations {
    component: "plants",
    list: &[Migration {
        name: "trees",
        statements: "CREATE TABLE tree (id BIGINT PRIMARY KEY); INSERT INTO tree (id) VALUES (1);",
        postgres_only: "",
    }],
};

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_migration_releases_its_lock() {
    let server = PostgresServer::start();
    for polls in [1, 2, 3, 4, 5, 7, 9] {
        let database = Database::postgres(&server);
        let (sql, other) = (database.open().await, database.open().await);
        drop(cancelled_after(polls, sql.migrate(&PLANTS)).await);
        let next = tokio::time::timeout(Duration::from_secs(20), other.migrate(&PLANTS));
        next.await.expect("the lock was let go").expect("migrated");
        assert_eq!(number(&sql, "SELECT count(*) FROM tree").await, 1, "{polls} polls");
    }
}
