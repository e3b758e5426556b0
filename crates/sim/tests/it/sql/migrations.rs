//! Migrations run once each, even if several processes start concurrently, and never on a schema this program does
//! not know.

use std::sync::Arc;

use logmill_io::sql::{Durability, Migration, Migrations, SqliteSettings};
use logmill_io::{Error, ErrorKind, OsEntropy, Sql, SystemClock, Tasks, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use tokio::sync::Barrier;

use super::{DatabaseKinds, number, run};

const CREATE: Migration = Migration {
    name: "fruits",
    statements: "CREATE TABLE fruit (name {name} PRIMARY KEY, price {amount}, pips BIGINT);",
    postgres_only: "",
};
const WRONG: Migration = Migration {
    name: "wrong",
    statements: "CREATE TABLE stock (id BIGINT); INSERT INTO stock (missing) VALUES (1);",
    postgres_only: "",
};
/// Reveals whether it ran twice.
const COUNT: Migration = Migration {
    name: "count",
    statements: "CREATE TABLE visit (n BIGINT NOT NULL); INSERT INTO visit (n) VALUES (1);",
    postgres_only: "",
};

static OLD: Migrations = Migrations { component: "fruit", list: &[CREATE] };
static NEW: Migrations = Migrations { component: "fruit", list: &[CREATE, COUNT] };
static BROKEN: Migrations = Migrations { component: "fruit", list: &[CREATE, COUNT, WRONG] };
static CHANGED: Migrations = Migrations {
    component: "fruit",
    list: &[CREATE, Migration { statements: "CREATE TABLE visit (n BIGINT NOT NULL);", ..COUNT }],
};

#[tokio::test]
async fn a_schema_of_the_wrong_version_is_refused_before_anything_is_touched() {
    for sql in DatabaseKinds::start().await.open().await {
        let missing = sql.expect_migrated(&NEW).await.expect_err("nothing is there");
        assert_eq!(missing.kind(), ErrorKind::Invalid, "{sql:?}: {}", missing.chain());
        assert!(missing.to_string().contains("version 0"), "{sql:?}: {missing}");

        sql.migrate(&OLD).await.expect("the first");
        sql.migrate(&OLD).await.expect("there is nothing to do");
        let older = sql.expect_migrated(&NEW).await.expect_err("it is older");
        assert_eq!(older.kind(), ErrorKind::Invalid, "{sql:?}: {older}");
        assert!(older.to_string().contains("version 1"), "{sql:?}: {older}");

        sql.migrate(&NEW).await.expect("the second");
        sql.migrate(&NEW).await.expect("there is nothing to do");
        sql.expect_migrated(&NEW).await.expect("it is up to date");
        assert_eq!(number(&sql, "SELECT count(*) FROM visit").await, 1, "{sql:?}: it ran once");

        for refused in [sql.migrate(&OLD).await, sql.expect_migrated(&OLD).await] {
            let refused = refused.expect_err("it is newer");
            let newer =
                matches!(refused, Error::SchemaTooNew { component: "fruit", found: 2, known: 1 });
            assert!(newer && refused.kind() == ErrorKind::Invalid, "{sql:?}: {refused}");
        }
        let changed = sql.migrate(&CHANGED).await.expect_err("it was applied in another form");
        assert!(changed.chain().contains("count"), "{sql:?}: {}", changed.chain());
        assert_eq!(number(&sql, "SELECT count(*) FROM visit").await, 1, "{sql:?}");
    }
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_behind() {
    for sql in DatabaseKinds::start().await.open().await {
        let failed = sql.migrate(&BROKEN).await.expect_err("the third is wrong");
        assert_eq!(failed.kind(), ErrorKind::Internal, "{sql:?}: {}", failed.chain());
        sql.query("SELECT * FROM fruit", params![]).await.expect_err("the first is taken back");
        sql.migrate(&NEW).await.expect("nothing is in the way of what works");
    }
}

#[tokio::test]
async fn a_database_of_a_newer_program_is_not_opened() {
    let newer = "INSERT INTO migrations_store (version, name, applied_on, checksum)
                 VALUES (99, 'later', '2030-01-01T00:00:00Z', '1')";
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = SqliteSettings::file(folder.path().join("test.db"));
    let open = async |settings: SqliteSettings| {
        Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared()).await
    };
    run(&open(settings.clone()).await.expect("a database"), newer).await;
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    run(&database.open().await, newer).await;
    let on_server = database.postgres_settings().expect("it is on a server");
    let writing = open(settings.clone()).await;
    settings.read_only = true;
    let reading = open(settings).await;
    let remote = Sql::postgres(&on_server, SystemClock::shared(), OsEntropy::shared()).await;
    for refused in [writing, reading, remote] {
        let refused = refused.expect_err("it is newer");
        assert!(matches!(refused, Error::SchemaTooNew { found: 99, .. }), "{}", refused.chain());
    }
}

/// Opens and migrates concurrently from several tasks.
async fn all_at_once<F, Fut>(handles: usize, open: F)
where
    F: Fn() -> Fut + Send + Sync + Clone + 'static,
    Fut: Future<Output = Sql> + Send,
{
    let start = Arc::new(Barrier::new(handles));
    let mut tasks = Tasks::new();
    for _ in 0..handles {
        let (start, open) = (Arc::clone(&start), open.clone());
        tasks.spawn(async move {
            start.wait().await;
            let sql = open().await;
            sql.migrate(&NEW).await.unwrap_or_else(|error| panic!("{}", error.chain()));
            number(&sql, "SELECT count(*) FROM visit").await
        });
    }
    while let Some(visits) = tasks.join_next().await {
        assert_eq!(visits.expect("no panic"), 1, "it ran once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_that_start_together_migrate_once_on_postgresql() {
    let server = PostgresServer::start();
    let database = Arc::new(Database::postgres(&server));
    all_at_once(10, move || {
        let database = Arc::clone(&database);
        async move { database.open().await }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn handles_that_open_together_migrate_once_on_sqlite() {
    for _ in 0..15 {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = SqliteSettings::file(folder.path().join("test.db"));
        settings.durability = Durability::Relaxed;
        all_at_once(3, move || {
            let settings = settings.clone();
            async move {
                let open = Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared());
                open.await.unwrap_or_else(|error| panic!("{}", error.chain()))
            }
        })
        .await;
    }
}
