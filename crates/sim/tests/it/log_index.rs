//! The log index on databases, files and S3, and on real chain data.

#[path = "../../../finalized-log-index/tests/it/chain.rs"]
#[allow(dead_code, reason = "the index's own tests use all of it")]
mod chain;
#[path = "../../../finalized-log-index/tests/it/fence.rs"]
mod fence;
#[path = "../../../finalized-log-index/tests/it/life.rs"]
mod life;
mod real;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use finalized_log_index::{FinalizedBlock, LogIndex, Stores};
use logmill_io::blob::{FileBlobs, S3Blobs};
use logmill_io::meta::SqlMeta;
use logmill_io::{BlobStore, CrashMatrix, Faults, OsEntropy, SystemClock};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use tempfile::TempDir;

use self::fence::{SharedStores, all_tries};
use self::life::{PAUSE, collect, finish, image, live, look};
use crate::blob_stores::{Moto, settings as s3_settings};
use crate::work::in_real_time;

/// A database and a blob store for one test.
struct IndexFixture {
    database: Database,
    blobs: Blobs,
}

enum Blobs {
    Files(TempDir),
    S3(Arc<dyn BlobStore>),
}

impl IndexFixture {
    fn new(database: Database) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { database, blobs: Blobs::Files(folder) }
    }
}

impl SharedStores for IndexFixture {
    async fn open(&self) -> Stores {
        let blobs = match &self.blobs {
            Blobs::Files(folder) => FileBlobs::open(folder.path().join("blobs")).expect("a folder"),
            Blobs::S3(blobs) => Arc::clone(blobs),
        };
        Stores {
            meta: SqlMeta::shared(self.database.open().await),
            blobs,
            clock: SystemClock::shared(),
            entropy: OsEntropy::shared(),
        }
    }

    fn advance(&self, by: Duration) {
        self.database.advance(by, &[]);
    }
}

/// Runs the scenario under faults and returns the image of its result.
async fn run(fixture: &IndexFixture, faults: &Arc<Faults>, blocks: &[FinalizedBlock]) -> String {
    let plain = fixture.open().await;
    let reader = LogIndex::open(plain.clone(), life::settings()).await.expect("it opens");
    let disturbed = plain.with_faults(faults);
    live(&disturbed, blocks, || faults.crashed(), async || {}).await;
    look(&reader, blocks).await;
    drop((plain, disturbed));
    for _ in 0..2 {
        fixture.advance(PAUSE);
        let restarted = fixture.open().await;
        finish(&restarted, blocks).await;
    }
    fixture.advance(PAUSE);
    let restarted = fixture.open().await;
    collect(&restarted).await;
    look(&reader, blocks).await;
    image(&restarted, blocks).await
}

/// Runs the scenario with a fault at every `step`-th operation, each kind in turn.
async fn thinned(fresh: impl Fn() -> IndexFixture, step: u64) {
    let blocks = life::blocks();
    let matrix = CrashMatrix::of_at_least(1).every(step).in_turn().with_varying_runs();
    matrix.check(async |faults| run(&fresh(), &faults, &blocks).await).await;
}

#[test]
fn an_index_on_sqlite_and_files_survives_faults() {
    in_real_time(thinned(|| IndexFixture::new(Database::file()), 5));
}

#[test]
fn an_index_on_postgres_and_files_survives_faults() {
    let server = PostgresServer::start();
    in_real_time(thinned(|| IndexFixture::new(Database::postgres(&server)), 7));
}

#[test]
fn an_index_on_sqlite_and_s3_survives_faults() {
    let moto = Moto::start();
    let number = AtomicU64::new(0);
    let fresh = || {
        let mut settings = s3_settings(moto.endpoint());
        settings.prefix = format!("index-{}/", number.fetch_add(1, Ordering::SeqCst));
        let blobs = S3Blobs::connect(settings).expect("a store");
        IndexFixture { database: Database::file(), blobs: Blobs::S3(blobs) }
    };
    in_real_time(async {
        moto.create_bucket("logmill-proof").await;
        thinned(fresh, 37).await;
    });
}

#[test]
fn a_fenced_writer_publishes_nothing_on_sqlite() {
    in_real_time(async { all_tries(&IndexFixture::new(Database::file())).await });
}

#[test]
fn a_fenced_writer_publishes_nothing_on_postgres() {
    let server = PostgresServer::start();
    in_real_time(async { all_tries(&IndexFixture::new(Database::postgres(&server))).await });
}
