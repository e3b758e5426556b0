//! SQLite files that hold less than they once did, and clean shutdowns.

use std::fs;
use std::path::{Path, PathBuf};

use logmill_io::sql::{Durability, Execute, SqliteSettings, check_step_back};
use logmill_io::{Error, OsEntropy, Result, Sql, SystemClock, params};

use super::{number, run};

const INSERT: &str = "INSERT INTO entry (id) VALUES ($1)";
const COUNT: &str = "SELECT count(*) FROM entry";

async fn try_open(settings: &SqliteSettings) -> Result<Sql> {
    Sql::sqlite(settings, SystemClock::shared(), OsEntropy::shared()).await
}

async fn open(file: &Path) -> Sql {
    try_open(&SqliteSettings::file(file)).await.expect("a database")
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

async fn filled(file: &Path, ids: std::ops::Range<i64>) -> Sql {
    let sql = open(file).await;
    if ids.start == 0 {
        run(&sql, "CREATE TABLE entry (id BIGINT PRIMARY KEY)").await;
    }
    for id in ids {
        sql.execute(INSERT, params![id]).await.expect("an insert");
    }
    sql
}

/// Copies the files of a database as a killed process leaves them.
fn copy_as_killed(file: &Path, to: &Path) {
    for suffix in ["", "-wal", "-state"] {
        let from = beside(file, suffix);
        if from.exists() {
            fs::copy(&from, beside(to, suffix)).expect("a copy");
        }
    }
}

async fn refused(file: &Path, parts: &[&str]) {
    let read_only = SqliteSettings { read_only: true, ..SqliteSettings::file(file) };
    for settings in [SqliteSettings::file(file), read_only] {
        let error = try_open(&settings).await.expect_err("it stepped back");
        assert!(matches!(error, Error::SteppedBack { .. }), "{}", error.chain());
        for part in parts {
            assert!(error.chain().contains(part), "{part}: {}", error.chain());
        }
    }
}

async fn accept(file: &Path) -> Sql {
    let settings = SqliteSettings { accept_loss: true, ..SqliteSettings::file(file) };
    try_open(&settings).await.expect("the loss is accepted")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_end_leaves_no_write_ahead_log() {
    for durability in [Durability::Full, Durability::Relaxed] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("test.db");
        let settings = SqliteSettings { durability, ..SqliteSettings::file(&file) };
        let sql = try_open(&settings).await.expect("a database");
        run(&sql, "CREATE TABLE entry (id BIGINT PRIMARY KEY)").await;
        for id in 0..500_i64 {
            sql.execute(INSERT, params![id]).await.expect("an insert");
        }
        // Opens a reader, which stays idle in the pool.
        assert_eq!(number(&sql, COUNT).await, 500);
        assert!(beside(&file, "-wal").metadata().expect("a log").len() > 0);
        drop(sql);
        assert!(!beside(&file, "-wal").exists(), "{durability:?}");
        fs::remove_file(beside(&file, "-state")).expect("a sidecar");
        assert_eq!(number(&open(&file).await, COUNT).await, 500);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_any_frame_of_the_log_is_detected() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, killed) = (folder.path().join("test.db"), folder.path().join("killed.db"));
    let sql = filled(&file, 0..200).await;
    copy_as_killed(&file, &killed);
    drop(sql);
    let log = fs::read(beside(&killed, "-wal")).expect("a log");
    check_step_back(&killed).expect("nothing is damaged yet");
    // In the header of the log, in its first frame, in the middle, and in the last frame.
    for place in [20, 32 + 24 + 100, log.len() / 2, log.len() - 50] {
        let mut damaged = log.clone();
        damaged[place] ^= 4;
        fs::write(beside(&killed, "-wal"), &damaged).expect("damage");
        let _ = fs::remove_file(beside(&killed, "-shm"));
        refused(&killed, &["killed.db has stepped back", "killed.db-state"]).await;
        let left = fs::read(beside(&killed, "-wal")).expect("a log");
        assert!(left == damaged, "what is left of the log is kept");
    }
    fs::write(beside(&killed, "-wal"), &log).expect("healed");
    let _ = fs::remove_file(beside(&killed, "-shm"));
    assert_eq!(number(&open(&killed).await, COUNT).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_an_old_and_a_foreign_database_are_refused_until_the_loss_is_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, old) = (folder.path().join("test.db"), folder.path().join("old.db"));
    drop(filled(&file, 0..10).await);
    fs::copy(&file, &old).expect("a backup");
    drop(filled(&file, 10..15).await);
    let newest = fs::read(&file).expect("the database");

    fs::remove_file(&file).expect("deleted");
    refused(&file, &["it is missing or empty", "remembers 1"]).await;
    assert!(!file.exists(), "nothing is made in its place");

    fs::copy(&old, &file).expect("the backup");
    refused(&file, &["the last 5 are gone"]).await;
    drop(accept(&file).await);
    let again = filled(&file, 10..12).await;
    assert_eq!(number(&again, COUNT).await, 12, "it goes on from there");
    drop(again);

    let foreign = folder.path().join("foreign.db");
    drop(filled(&foreign, 0..50).await);
    fs::copy(&foreign, &file).expect("another");
    refused(&file, &["it is another database"]).await;
    fs::write(&file, newest).expect("the database");
    drop(open(&file).await);

    fs::remove_file(&file).expect("deleted");
    let fresh = accept(&file).await;
    run(&fresh, "CREATE TABLE entry (id BIGINT PRIMARY KEY)").await;
    assert_eq!(number(&fresh, COUNT).await, 0);
    drop(fresh);
    drop(open(&file).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_commit_that_changes_something_counts_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let sql = filled(&folder.path().join("test.db"), 0..1).await;
    let sequence = "SELECT sequence FROM store_identity";
    let mut last = number(&sql, sequence).await;
    sql.execute(COUNT, params![]).await.expect("a read");
    sql.write(|tx| async move { tx.execute(COUNT, params![]).await }).await.expect("a read");
    assert_eq!(number(&sql, sequence).await, last, "reading is no change");
    sql.execute(INSERT, params![1_i64]).await.expect("an insert");
    last += 1;
    assert_eq!(number(&sql, sequence).await, last);
    sql.write(|tx| async move { tx.execute(INSERT, params![2_i64]).await }).await.expect("one");
    last += 1;
    assert_eq!(number(&sql, sequence).await, last);
    let pair = vec![
        ("INSERT INTO entry (id) VALUES ($1) RETURNING id", params![3_i64]),
        ("INSERT INTO entry (id) VALUES ($1) RETURNING id", params![4_i64]),
    ];
    sql.execute_together(pair).await.expect("two together");
    last += 1;
    assert_eq!(number(&sql, sequence).await, last);
    let rolled_back = sql.write(|tx| async move {
        tx.execute(INSERT, params![5_i64]).await?;
        tx.execute(INSERT, params![5_i64]).await
    });
    rolled_back.await.expect_err("twice the same");
    assert_eq!(number(&sql, sequence).await, last, "what did not happen does not count");
}
