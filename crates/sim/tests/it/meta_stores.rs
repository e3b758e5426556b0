//! Every kind of store for records passes the conformance suite, fences hold inside of SQL transactions, and what
//! was acknowledged stays when faults come in between.
//!
//! Leaves to others: that the suite rejects stores with flaws, which is tested beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use logmill_io::meta::{MemoryMeta, SqlMeta, conformance};
use logmill_io::sql::Execute;
use logmill_io::{
    Batch, Condition, Entropy, Error, ErrorKind, Faults, FaultyStore, Fence, Key, MetaStore,
    MetaStoreExt, OsEntropy, SeededEntropy, Sql, SystemClock, Tasks, params,
};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;

use crate::sql::DatabaseKinds;

async fn conforms(store: Arc<dyn MetaStore>) {
    if let Err(violation) = conformance::run(&store, &OsEntropy).await {
        panic!("{store:?}: {violation}");
    }
}

fn memory() -> Arc<dyn MetaStore> {
    MemoryMeta::shared(SystemClock::shared(), OsEntropy::shared())
}

#[tokio::test]
async fn memory_conforms() {
    conforms(memory()).await;
}

#[tokio::test]
async fn sqlite_in_memory_conforms() {
    conforms(SqlMeta::shared(Database::memory().await.open().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_in_a_file_conforms() {
    conforms(SqlMeta::shared(Database::file().open().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_conforms() {
    let server = PostgresServer::start();
    conforms(SqlMeta::shared(Database::postgres(&server).open().await)).await;
}

fn fence(counter: i64) -> Fence {
    Fence { name: "lease".to_owned(), counter }
}

async fn take_over(sql: &Sql, counter: i64) {
    let raised = SqlMeta::shared(sql.clone()).commit(Batch::new().raise(fence(counter))).await;
    raised.expect("the counter grows");
}

/// One row, if the lease is still held at `counter`.
async fn write_fenced(sql: &Sql, counter: i64) -> logmill_io::Result<()> {
    sql.write(|tx| async move {
        tx.execute("INSERT INTO effect (counter) VALUES ($1)", params![counter]).await?;
        tx.hold(&fence(counter)).await
    })
    .await
}

async fn effects(sql: &Sql, counter: i64) -> i64 {
    let text = "SELECT count(*) FROM effect WHERE counter = $1";
    let found = sql.query(text, params![counter]).await.expect("a count");
    found.row().expect("one row").int(0).expect("a number")
}

async fn effect_table(sql: &Sql) {
    let text = "CREATE TABLE effect (counter BIGINT NOT NULL)";
    sql.execute(text, params![]).await.expect("a table");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_fence_is_refused_inside_of_a_transaction() {
    for sql in DatabaseKinds::start().await.open().await {
        effect_table(&sql).await;
        let unknown = write_fenced(&sql, 1).await.expect_err("nobody has raised it");
        assert_eq!(unknown.kind(), ErrorKind::Fenced, "{sql:?}: {unknown}");
        take_over(&sql, 1).await;
        write_fenced(&sql, 1).await.expect("it is held");
        take_over(&sql, 2).await;
        let stale = write_fenced(&sql, 1).await.expect_err("it was taken over");
        assert!(matches!(stale, Error::Fenced { counter: 1, .. }), "{sql:?}: {stale}");
        assert_eq!(effects(&sql, 1).await, 1, "{sql:?}");

        let ignored = sql.write(|tx| async move {
            tx.execute("INSERT INTO effect (counter) VALUES (1)", params![]).await?;
            drop(tx.hold(&fence(1)).await);
            Ok::<_, Error>(())
        });
        ignored.await.expect_err("a refusal can not be ignored");
        assert_eq!(effects(&sql, 1).await, 1, "{sql:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_of_the_old_holder_lands_after_the_take_over() {
    const WRITERS: usize = 6;
    const ROUNDS: i64 = 15;
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    let (old, new) = (database.open().await, database.open().await);
    effect_table(&old).await;
    take_over(&new, 1).await;
    for round in 1..=ROUNDS {
        let mut writers = Tasks::new();
        for _ in 0..WRITERS {
            let old = old.clone();
            writers.spawn(async move {
                loop {
                    match write_fenced(&old, round).await {
                        Ok(()) => {}
                        Err(error) if error.kind() == ErrorKind::Fenced => return,
                        Err(error) => panic!("{}", error.chain()),
                    }
                }
            });
        }
        while effects(&new, round).await == 0 {}
        take_over(&new, round + 1).await;
        let seen = effects(&new, round).await;
        while let Some(ended) = writers.join_next().await {
            ended.expect("every writer was told");
        }
        assert_eq!(effects(&new, round).await, seen, "round {round}");
    }
}

/// What became of the writes of one run: every acknowledged one is in the record once, every refused one is not,
/// and one in doubt is at most once.
async fn writes_are_kept(plain: &Arc<dyn MetaStore>, faulty: &Arc<dyn MetaStore>, seed: u64) {
    const WRITES: u64 = 60;
    let key = Key::from("log");
    plain.put(key.clone(), "", Condition::Any).await.expect("the plain store works");
    let mut expected = BTreeMap::new();
    for write in 0..WRITES {
        let record = plain.read(&key).await.expect("the plain store works");
        let longer = [&record.value[..], format!("{write} ").as_bytes()].concat();
        let put = faulty.put(key.clone(), longer, Condition::Version(record.version)).await;
        let possible = match put {
            Ok(version) => {
                let stored = plain.read(&key).await.expect("the plain store works").version;
                assert_eq!(stored, version, "seed {seed}, {plain:?}");
                1..=1
            }
            Err(Error::InDoubt { .. }) => 0..=1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Transient, "seed {seed}: {}", error.chain());
                0..=0
            }
        };
        expected.insert(write.to_string(), possible);
    }
    let value = plain.read(&key).await.expect("the plain store works").value;
    let log = String::from_utf8_lossy(&value).into_owned();
    for (write, possible) in expected {
        let times = log.split_whitespace().filter(|word| **word == *write).count();
        assert!(
            possible.contains(&times),
            "seed {seed}, {plain:?}: {write} is there {times} times"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_between_faults_is_kept() {
    let seed = OsEntropy.next_u64();
    let faults = || Faults::seeded(SeededEntropy::shared(seed), 60, 60);
    let store = memory();
    let faulty: Arc<dyn MetaStore> = Arc::new(FaultyStore::new(Arc::clone(&store), faults()));
    writes_are_kept(&store, &faulty, seed).await;
    for sql in DatabaseKinds::start().await.open().await {
        let store = SqlMeta::shared(sql.clone());
        let faulty: Arc<dyn MetaStore> = Arc::new(FaultyStore::new(Arc::clone(&store), faults()));
        writes_are_kept(&store, &faulty, seed).await;
        // The same below: faults at each statement, begin and commit, which the database tries again.
        writes_are_kept(&store, &SqlMeta::shared(sql.with_faults(faults())), seed).await;
    }
}
