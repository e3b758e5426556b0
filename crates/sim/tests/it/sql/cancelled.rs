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
            tx.execute(insert, params![step, 2_i64]).await?;
            Ok(())
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
    let mut settings = database.postgres_settings().expect("it is on a server");
    settings.connections = 1;
    let one = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    is_safe_everywhere(&one.expect("the server answers"), &database.open().await).await;
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
