//! Transactions: the loser of a race is retried a bounded number of times; a failed transaction does not commit.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use logmill_io::sql::{Durability, Execute, SqliteSettings};
use logmill_io::{
    Error, ErrorKind, Faults, OsEntropy, SeededEntropy, Sql, SystemClock, Tasks, Tx, params,
};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::{NewJob, Queue};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

use super::{DatabaseKinds, number, run};

/// Number of attempts of a transaction.
const ATTEMPTS: u32 = 10;

async fn accounts(sql: &Sql) {
    run(sql, "CREATE TABLE account (id BIGINT PRIMARY KEY, held BIGINT NOT NULL)").await;
    run(sql, "INSERT INTO account (id, held) VALUES (1, 0), (2, 0)").await;
}

async fn add(tx: &Tx, id: i64) -> logmill_io::Result<()> {
    let text = "UPDATE account SET held = held + 1 WHERE id = $1";
    tx.execute(text, params![id]).await.map(|_| ())
}

/// Runs two transactions that meet in the middle of their first attempts; returns the total number of attempts.
async fn collide<F, Fut>(sql: &Sql, body: F) -> u32
where
    F: Fn(Tx, i64, Option<Arc<Barrier>>) -> Fut + Copy + Send + Sync + 'static,
    Fut: Future<Output = logmill_io::Result<()>> + Send,
{
    let meeting = Arc::new(Barrier::new(2));
    let attempts = Arc::new(AtomicU32::new(0));
    let mut both = Tasks::new();
    for side in [1, 2] {
        let (sql, meeting, attempts) = (sql.clone(), Arc::clone(&meeting), Arc::clone(&attempts));
        both.spawn(async move {
            let mut meeting = Some(meeting);
            let both_commit = sql.write(|tx| {
                attempts.fetch_add(1, Ordering::SeqCst);
                body(tx, side, meeting.take())
            });
            both_commit.await
        });
    }
    while let Some(ended) = both.join_next().await {
        ended.expect("no panic").expect("both commit");
    }
    attempts.load(Ordering::SeqCst)
}

async fn meet(meeting: Option<Arc<Barrier>>) {
    if let Some(meeting) = meeting {
        meeting.wait().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loser_of_a_race_is_retried_and_both_commit() {
    let server = PostgresServer::start();
    let sql = Database::postgres(&server).open().await;
    accounts(&sql).await;
    let deadlock = collide(&sql, |tx, side, meeting| async move {
        add(&tx, side).await?;
        meet(meeting).await;
        add(&tx, 3 - side).await
    });
    assert!(deadlock.await > 2, "one was the victim");
    assert_eq!(number(&sql, "SELECT sum(held)::bigint FROM account").await, 4);

    let serialization = collide(&sql, |tx, side, meeting| async move {
        tx.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", params![]).await?;
        tx.execute("SELECT sum(held) FROM account", params![]).await?;
        meet(meeting).await;
        add(&tx, side).await
    });
    assert!(serialization.await > 2, "one read what the other changed");
    assert_eq!(number(&sql, "SELECT sum(held)::bigint FROM account").await, 6);
}

#[tokio::test]
async fn attempts_are_bounded_and_only_for_transient_errors() {
    for sql in DatabaseKinds::start().await.open().await {
        accounts(&sql).await;
        let faults = Faults::seeded(SeededEntropy::shared(1), 1000, 0);
        let faulty = sql.with_faults(Arc::clone(&faults));
        let failed = faulty.write(|tx| async move { add(&tx, 1).await }).await;
        assert_eq!(failed.expect_err("always").kind(), ErrorKind::Transient, "{sql:?}");
        assert_eq!(faults.operations(), u64::from(ATTEMPTS), "{sql:?}");

        let attempts = AtomicU32::new(0);
        let conflict = sql.write(|tx| async {
            attempts.fetch_add(1, Ordering::SeqCst);
            let tx = tx;
            tx.execute("INSERT INTO account (id, held) VALUES (1, 0)", params![]).await
        });
        assert_eq!(conflict.await.expect_err("taken").kind(), ErrorKind::Conflict, "{sql:?}");
        assert_eq!(attempts.load(Ordering::SeqCst), 1, "{sql:?}: it would conflict again");
    }
}

#[tokio::test]
async fn a_statement_the_server_always_refuses_ends_with_its_error() {
    let server = PostgresServer::start();
    let sql = Database::postgres(&server).open().await;
    let raise = |code: &str| format!("DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''{code}''; END'");
    for (code, kind, expected) in [
        ("40001", ErrorKind::Transient, ATTEMPTS),
        ("40P01", ErrorKind::Transient, ATTEMPTS),
        // A statement that hit its time limit is not retried, which would take ten times the limit.
        ("57014", ErrorKind::Transient, 1),
        ("22012", ErrorKind::Invalid, 1),
        ("XX001", ErrorKind::Corrupt, 1),
        ("XX000", ErrorKind::Internal, 1),
    ] {
        let (text, attempts) = (raise(code), AtomicU32::new(0));
        let refused = sql.write(|tx| async {
            attempts.fetch_add(1, Ordering::SeqCst);
            let tx = tx;
            tx.execute(&text, params![]).await
        });
        assert_eq!(refused.await.expect_err("always").kind(), kind, "{code}");
        assert_eq!(attempts.load(Ordering::SeqCst), expected, "{code}");
    }
}

#[tokio::test]
async fn a_transaction_with_a_failed_statement_does_not_commit() {
    for sql in DatabaseKinds::start().await.open().await {
        accounts(&sql).await;
        let ignored = sql.write(|tx| async move {
            add(&tx, 1).await?;
            drop(tx.execute("INSERT INTO account (id, held) VALUES (1, 0)", params![]).await);
            Ok(())
        });
        let refused = ignored.await.expect_err("PostgreSQL would have rolled back in silence");
        assert!(matches!(refused, Error::TransactionOver { .. }), "{sql:?}: {refused}");

        let given_up = sql.write(|tx| async move {
            add(&tx, 1).await?;
            let mut statement = Box::pin(add(&tx, 2));
            tokio::select! {
                biased;
                // A fast thread may answer before the statement is dropped; this test is not about that case.
                done = &mut statement => done.and(Err(Error::invalid("on purpose"))),
                () = std::future::ready(()) => Ok(()),
            }
        });
        given_up.await.expect_err("the effect of the statement is unknown");
        assert_eq!(number(&sql, "SELECT max(held) FROM account").await, 0, "{sql:?}");
        sql.write(|tx| async move { add(&tx, 1).await }).await.expect("the handle is fine");
    }
}

#[tokio::test]
async fn an_error_of_the_caller_is_returned_as_it_is_and_the_stores_error_in_it_is_retried() {
    use logmill_work::Error as WorkError;
    for sql in DatabaseKinds::start().await.open().await {
        accounts(&sql).await;
        let attempts = &AtomicU32::new(0);
        let refused = sql.write(|tx| async move {
            add(&tx, 1).await?;
            match attempts.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Error::Injected { operation: 0 }.into()),
                _ => Err::<(), _>(WorkError::Invalid { what: "on purpose".to_owned() }),
            }
        });
        let refused = refused.await.expect_err("it refuses");
        assert!(matches!(refused, WorkError::Invalid { .. }), "{sql:?}: {refused}");
        assert_eq!(attempts.load(Ordering::SeqCst), 2, "{sql:?}");
        assert_eq!(number(&sql, "SELECT max(held) FROM account").await, 0, "{sql:?}");
    }
}

#[tokio::test]
async fn a_statement_after_the_end_of_a_transaction_fails() {
    for sql in DatabaseKinds::start().await.open().await {
        accounts(&sql).await;
        for commits in [true, false] {
            let kept = Arc::new(Mutex::new(None));
            let ended = sql.write(|tx| {
                *kept.lock().expect("no panic") = Some(tx.clone());
                async move {
                    add(&tx, 1).await?;
                    if commits { Ok(()) } else { Err(Error::invalid("on purpose")) }
                }
            });
            assert_eq!(ended.await.is_ok(), commits, "{sql:?}");
            let kept = kept.lock().expect("no panic").take().expect("a handle");
            let late = add(&kept, 2).await.expect_err("it is over");
            assert!(late.to_string().starts_with("the transaction is over"), "{sql:?}: {late}");
            assert_eq!(late.kind(), ErrorKind::Internal, "{sql:?}: {late}");
            kept.execute_many("UPDATE account SET held = 9", vec![params![]])
                .await
                .expect_err("also in numbers");
        }
        assert_eq!(number(&sql, "SELECT held FROM account WHERE id = 1").await, 1, "{sql:?}");
        assert_eq!(number(&sql, "SELECT held FROM account WHERE id = 2").await, 0, "{sql:?}");
    }
}

/// Another process, which holds the write lock of a SQLite file until it is released.
struct LockHolder(Child);

impl LockHolder {
    fn of(file: &Path) -> Self {
        let script = "import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute('BEGIN IMMEDIATE')
print('held', flush=True)
sys.stdin.readline()
database.execute('ROLLBACK')";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "held\n");
        Self(child)
    }

    fn let_go(mut self) {
        self.0.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
        assert!(self.0.wait().expect("it ends").success());
    }
}

/// Longer than SQLite itself waits, so that the transaction is retried as well.
const HELD: Duration = Duration::from_millis(5_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_process_holds_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("test.db");
    let mut settings = SqliteSettings::file(&file);
    settings.durability = Durability::Relaxed;
    let open = Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared());
    let sql = open.await.expect("a database");
    accounts(&sql).await;
    let holder = LockHolder::of(&file);
    let mut waiting = Tasks::new();
    let (one, other) = (sql.clone(), sql.clone());
    waiting.spawn(async move { one.write(|tx| async move { add(&tx, 1).await }).await });
    waiting.spawn(async move {
        other.execute("UPDATE account SET held = held + 1", params![]).await.map(|_| ())
    });
    assert_eq!(number(&sql, "SELECT max(held) FROM account").await, 0, "readers do not wait");
    let early = tokio::time::timeout(HELD, waiting.join_next()).await;
    assert!(early.is_err(), "no write succeeds while it is held: {early:?}");
    holder.let_go();
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("it was waited for");
    }
    assert_eq!(number(&sql, "SELECT max(held) FROM account").await, 2);
}

/// A SQLite file in a folder of its own.
async fn on_disk() -> (tempfile::TempDir, Sql) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = SqliteSettings::file(folder.path().join("lanes.db"));
    let sql = Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared());
    (folder, sql.await.expect("a database"))
}

/// While the writer is busy, queues forty writes of lane 1 and then one of lane 2; waits until all are done.
async fn queue_behind_a_busy_writer(sql: &Sql, write: impl Fn(u64, usize) -> JoinHandle<()>) {
    let mut writes = Vec::new();
    sql.write(|_tx| {
        writes.extend((0..40).map(|number| write(1, number)));
        writes.push(write(2, 0));
        async {
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            Ok::<_, Error>(())
        }
    })
    .await
    .expect("a transaction");
    for written in writes {
        written.await.expect("no panic");
    }
}

#[tokio::test]
async fn writes_of_one_lane_wait_for_one_of_another_and_not_for_all() {
    let (_folder, sql) = on_disk().await;
    let made = "CREATE TABLE written (number INTEGER PRIMARY KEY, lane BIGINT NOT NULL)";
    sql.execute(made, params![]).await.expect("a table");
    queue_behind_a_busy_writer(&sql, |lane, _| {
        let sql = sql.in_lane(lane);
        tokio::spawn(async move {
            let written = sql.write(|tx| async move {
                let text = "INSERT INTO written (lane) VALUES ($1)";
                tx.execute(text, params![i64::try_from(lane).expect("small")]).await.map(|_| ())
            });
            written.await.expect("written");
        })
    })
    .await;
    let found =
        sql.query("SELECT number FROM written WHERE lane = 2", params![]).await.expect("it");
    let number = found.row().expect("a row").int(0).expect("a number");
    assert!(number <= 3, "it was written as number {number} of 41");
}

/// How often the order of jobs is looked at: a busy machine may delay the threads that read before a job is written.
const LOOKS: usize = 5;

#[tokio::test]
async fn jobs_of_one_chain_wait_for_one_of_another_and_not_for_all() {
    let mut places = Vec::new();
    for _ in 0..LOOKS {
        places.push(place_of_second_chain().await);
        if places.iter().any(|at| *at <= 20) {
            return;
        }
    }
    panic!("it was done as number {places:?} of 41");
}

/// The place in which the only job of a chain is done beside forty of another, which wait before it.
async fn place_of_second_chain() -> usize {
    let (_folder, sql) = on_disk().await;
    let queue = Queue::open(sql).await.expect("a queue");
    let order = Arc::new(Mutex::new(Vec::new()));
    queue_behind_a_busy_writer(queue.sql(), |chain, number| {
        let (queue, order) = (queue.in_lane(chain), Arc::clone(&order));
        tokio::spawn(async move {
            // Two statements, so that it is a transaction of its own.
            let job = NewJob::new(format!("cell-{chain}"), number.to_string(), "{}");
            queue.enqueue(&job).await.expect("it is enqueued");
            let claimed = queue.claim(&job.kind, 1, Duration::from_secs(60), "test").await;
            assert_eq!(claimed.expect("it is claimed").len(), 1);
            order.lock().expect("sound").push(chain);
        })
    })
    .await;
    let order = order.lock().expect("sound").clone();
    order.iter().position(|chain| *chain == 2).expect("it was done")
}
