//! SQLite on a full or failing disk, and with concurrent read-only handles.

use std::path::Path;

use logmill_io::meta::SqlMeta;
use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{
    Batch, Condition, Error, ErrorKind, Key, OsEntropy, Result, Sql, SystemClock, params,
};
use logmill_sim::{SmallDisk, skip, with_failing_syncs};

use super::groups::together;
use super::{number, run};

async fn try_open(settings: &SqliteSettings) -> Result<Sql> {
    Sql::sqlite(settings, SystemClock::shared(), OsEntropy::shared()).await
}

async fn open(file: &Path) -> Sql {
    try_open(&SqliteSettings::file(file)).await.expect("a database")
}

const INSERT: &str = "INSERT INTO entry (id, raw) VALUES ($1, $2)";
const COUNT: &str = "SELECT count(*) FROM entry";

async fn entries(sql: &Sql) {
    run(sql, "CREATE TABLE entry (id BIGINT PRIMARY KEY, raw {bytes})").await;
}

#[tokio::test]
async fn a_read_only_handle_reads_beside_the_writer_and_refuses_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("test.db");
    let reads = SqliteSettings { read_only: true, ..SqliteSettings::file(&file) };
    let missing = try_open(&reads).await.expect_err("there is no database");
    assert_eq!(missing.kind(), ErrorKind::Invalid, "{}", missing.chain());
    assert!(!file.exists(), "nothing is created");

    let writer = open(&file).await;
    entries(&writer).await;
    let reader = try_open(&reads).await.expect("a database");
    for id in 1..=3_i64 {
        writer.execute(INSERT, params![id, "x".as_bytes()]).await.expect("an insert");
        assert_eq!(number(&reader, COUNT).await, id, "it sees every commit");
    }
    let held = writer.write(|tx| {
        let reader = reader.clone();
        async move {
            tx.execute(INSERT, params![9_i64, "x".as_bytes()]).await?;
            let counted = tokio::spawn(async move { number(&reader, COUNT).await });
            Ok::<_, logmill_io::Error>(counted.await.expect("no panic"))
        }
    });
    assert_eq!(held.await.expect("it commits"), 3, "and no half transaction");
    let put = Batch::new().put("key", "value", Condition::Any);
    let refused = [
        reader.execute(INSERT, params![4_i64, "x".as_bytes()]).await.map(|_| ()),
        reader.write(|tx| async move { tx.execute(COUNT, params![]).await }).await.map(|_| ()),
        SqlMeta::shared(reader.clone()).commit(put).await.map(|_| ()),
    ];
    for error in refused {
        let error = error.expect_err("it only reads");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{}", error.chain());
        assert!(error.chain().contains("readonly"), "{}", error.chain());
    }
    SqlMeta::shared(reader).get(&Key::from("key")).await.expect("a record can be read");
}

fn is_full(error: &Error) {
    let chain = error.chain();
    assert!(error.is_disk_full() && error.kind() == ErrorKind::Transient, "{chain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_a_clear_error_that_loses_nothing_and_passes() {
    let Some(disk) = SmallDisk::mount(4) else {
        return skip("mounting a small disk needs root");
    };
    let (file, filler) = (disk.path().join("test.db"), disk.path().join("filler"));
    let sql = open(&file).await;
    entries(&sql).await;
    std::fs::write(&filler, vec![7; 1 << 20]).expect("there is space");
    let raw = vec![7_u8; 64 << 10];
    let mut stored = 0;
    let full = loop {
        match sql.execute(INSERT, params![stored, raw.clone()]).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    is_full(&full);
    let many = sql.write(|tx| {
        let raw = raw.clone();
        async move { tx.execute_many(INSERT, vec![params![-1_i64, ""], params![-2_i64, raw]]).await }
    });
    is_full(&many.await.expect_err("it is still full"));
    let group = (1_000..1_040_i64).map(|id| (INSERT, params![id, raw.clone()])).collect();
    for (id, answer) in (1_000..).zip(together(&sql, group).await) {
        let text = format!("SELECT count(*) FROM entry WHERE id = {id}");
        let expected = i64::from(answer.map_err(|error| is_full(&error)).is_ok());
        assert_eq!(number(&sql, &text).await, expected, "{id}");
        stored += expected;
    }
    assert_eq!(number(&sql, COUNT).await, stored);

    std::fs::remove_file(&filler).expect("space is freed");
    sql.execute(INSERT, params![2_000_i64, raw]).await.expect("there is space again");
    drop(sql);
    let again = open(&file).await;
    assert_eq!(number(&again, COUNT).await, stored + 1);
    let check = again.query("PRAGMA integrity_check", params![]).await.expect("a check");
    assert_eq!(check.rows[0].text(0).expect("text"), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_too_large_for_the_disk_fails_no_other() {
    let Some(disk) = SmallDisk::mount(4) else {
        return skip("mounting a small disk needs root");
    };
    let sql = open(&disk.path().join("test.db")).await;
    entries(&sql).await;
    // More than SQLite keeps in memory, so that the disk fills up before the commit.
    let large = vec![7_u8; 48 << 20];
    let mut group = vec![(INSERT, params![0_i64, large.clone()])];
    group.extend((1..=5_i64).map(|id| (INSERT, params![id, ""])));
    group.insert(3, (INSERT, params![9_i64, large.clone()]));
    for (place, answer) in together(&sql, group).await.into_iter().enumerate() {
        match place {
            0 | 3 => is_full(&answer.expect_err("too large")),
            _ => assert_eq!(answer.expect("small").changed, 1, "{place}"),
        }
    }
    assert_eq!(number(&sql, COUNT).await, 5);

    // In a transaction it ends everything; later statements must not be committed on their own.
    let ignored = sql.write(|tx| {
        let large = large.clone();
        async move {
            tx.execute(INSERT, params![10_i64, ""]).await?;
            drop(tx.execute(INSERT, params![11_i64, large]).await);
            drop(tx.execute(INSERT, params![12_i64, ""]).await);
            Ok::<_, logmill_io::Error>(())
        }
    });
    ignored.await.expect_err("it is over");
    assert_eq!(number(&sql, COUNT).await, 5);
    sql.execute(INSERT, params![13_i64, ""]).await.expect("the handle goes on");
}

#[test]
fn a_failed_sync_poisons_the_handle_and_loses_nothing_acknowledged() {
    let this = "sql::disk::a_failed_sync_poisons_the_handle_and_loses_nothing_acknowledged";
    with_failing_syncs(this, fail_a_sync);
}

#[tokio::main(flavor = "multi_thread")]
async fn fail_a_sync(folder: &Path, armed: &Path) {
    const CALLERS: i64 = 50;
    let file = folder.join("test.db");
    let sql = open(&file).await;
    entries(&sql).await;
    let inserts =
        |first: i64| (first..first + CALLERS).map(|id| (INSERT, params![id, ""])).collect();

    // The shim counts down, which tells how many syncs there were.
    std::fs::write(armed, "1000\n").expect("syncs are counted");
    for answer in together(&sql, inserts(0)).await {
        answer.expect("nothing fails yet");
    }
    let left = std::fs::read_to_string(armed).expect("the count");
    let syncs = 1000 - left.split_whitespace().next().unwrap().parse::<i64>().expect("a number");
    assert!((1..5).contains(&syncs), "{syncs} syncs for {CALLERS} concurrent callers");

    std::fs::write(armed, "0\n").expect("syncs fail from now on");
    for answer in together_and_fail(&sql, inserts(CALLERS)).await {
        let error = answer.expect_err("it is not on the disk");
        let refused = matches!(error, Error::InDoubt { .. } | Error::Poisoned { .. });
        assert!(refused, "{}", error.chain());
    }
    std::fs::remove_file(armed).expect("syncs work again");
    everything_is_refused(&sql).await;
    drop(sql);

    let again = open(&file).await;
    let text = format!("SELECT count(*) FROM entry WHERE id < {CALLERS}");
    assert_eq!(number(&again, &text).await, CALLERS, "what was acknowledged is there");
    again.execute(INSERT, params![-1_i64, ""]).await.expect("a new handle works");
}

/// Runs statements one after the other on a failing disk: the first meets the failure, the others its consequences.
async fn together_and_fail(
    sql: &Sql,
    statements: Vec<(&str, Vec<logmill_io::Value>)>,
) -> Vec<Result<logmill_io::sql::StatementResult>> {
    let statements = statements.into_iter().map(|(text, params)| sql.execute(text, params));
    let transactions = (0..3_i64).map(|id| {
        sql.write(move |tx| async move { tx.execute(INSERT, params![500 + id, ""]).await })
    });
    let (mut answers, others) = tokio::join!(
        futures::future::join_all(statements),
        futures::future::join_all(transactions)
    );
    answers.extend(others);
    answers
}

async fn everything_is_refused(sql: &Sql) {
    let outcomes = [
        sql.execute(INSERT, params![-1_i64, ""]).await.map(|_| ()),
        sql.query(COUNT, params![]).await.map(|_| ()),
        sql.write(|tx| async move { tx.execute(COUNT, params![]).await }).await.map(|_| ()),
        SqlMeta::shared(sql.clone()).now().await.map(|_| ()),
    ];
    for outcome in outcomes {
        let error = outcome.expect_err("the handle is poisoned");
        assert!(matches!(error, Error::Poisoned { .. }), "{}", error.chain());
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}
