//! A data folder with an index that the library writes and commands read.
//!
//! Guarantees: the library and the commands open the same stores with the same bounds. Leaves to others: the content.

use std::path::PathBuf;
use std::time::Duration;

use finalized_log_index::workload::{Workload, WorkloadSettings};
use finalized_log_index::{Filter, FinalizedBlock, LogIndex, Settings, Stores, Writer};
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::{Durability, PostgresSettings, SqliteSettings};
use logmill_io::{Entropy, OsEntropy, Sql, SystemClock};

use crate::process::Sandbox;

/// The chain of most tests.
pub(crate) const CHAIN: u64 = 1;
/// The first block of all tests, in the middle of a cell.
pub(crate) const FIRST: u64 = 100;
const BOUNDS: [&str; 3] = ["index.cell_blocks=16", "index.chunk_logs=1000", "index.piece_logs=40"];
const SCHEMA: &str = "logmill_test";

/// A sandbox with an index.
pub(crate) struct IndexFixture {
    pub(crate) sandbox: Sandbox,
    postgres: Option<String>,
}

impl IndexFixture {
    /// On SQLite.
    pub(crate) fn new() -> Self {
        let sandbox = Sandbox::with(&[&["database.durability=relaxed"], &BOUNDS[..]].concat());
        Self { sandbox, postgres: None }
    }

    pub(crate) fn on_postgres(url: &str) -> Self {
        let database = [format!("database.url={url}"), format!("database.schema={SCHEMA}")];
        let settings = [&database[0], database[1].as_str(), BOUNDS[0], BOUNDS[1], BOUNDS[2]];
        Self { sandbox: Sandbox::with(&settings), postgres: Some(url.to_owned()) }
    }

    /// Runs a future to completion.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(work)
    }

    /// Runs `work` with a writer of the index.
    pub(crate) fn with<T>(&self, work: impl AsyncFnOnce(&Writer) -> T) -> T {
        self.with_chain(CHAIN, work)
    }

    pub(crate) fn with_chain<T>(&self, chain: u64, work: impl AsyncFnOnce(&Writer) -> T) -> T {
        self.run(async {
            let index = open_with(self, chain).await;
            let owner = format!("test {:x}", OsEntropy.mark());
            let writer = index.writer(&owner).await.expect("free");
            let done = work(&writer).await;
            writer.release().await.expect("held");
            done
        })
    }

    /// Adds blocks, then seals and merges as far as possible.
    pub(crate) fn ingest(&self, blocks: &[FinalizedBlock]) {
        self.with(async |writer| {
            for some in blocks.chunks(3) {
                writer.ingest_finalized_blocks(some).await.expect("they follow");
                writer.maintain().await.expect("it works");
            }
        });
    }

    pub(crate) fn blob_folder(&self) -> PathBuf {
        self.sandbox.data().join("blobs")
    }
}

/// The index of a chain, opened as the program does, but with a short lease.
pub(crate) async fn open_with(fixture: &IndexFixture, chain: u64) -> LogIndex {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    std::fs::create_dir_all(fixture.sandbox.data()).expect("made");
    let sql = match &fixture.postgres {
        None => {
            let file = SqliteSettings::file(fixture.sandbox.data().join("index.db"));
            let file = SqliteSettings { durability: Durability::Relaxed, ..file };
            Sql::sqlite(&file, clock.clone(), entropy.clone()).await
        }
        Some(url) => {
            let mut settings = PostgresSettings::new(url.clone());
            settings.schema = Some(SCHEMA.to_owned());
            Sql::postgres(&settings, clock.clone(), entropy.clone()).await
        }
    };
    let meta = SqlMeta::shared(sql.expect("a database"));
    let blobs = FileBlobs::open_with(fixture.blob_folder(), Durability::Relaxed).expect("a folder");
    let settings = Settings {
        cell_blocks: 16,
        chunk_logs: 1_000,
        piece_logs: 40,
        prefix: format!("log-index/{chain}"),
        // On PostgreSQL no test waits for the lease to end, so it is longer than any test goes without a commit.
        lease_ttl: Duration::from_secs(if fixture.postgres.is_some() { 60 } else { 2 }),
        lease_margin: Duration::from_millis(500),
        ..Settings::default()
    };
    LogIndex::open(Stores { meta, blobs, clock, entropy }, settings).await.expect("it opens")
}

/// The first blocks of the chain.
pub(crate) fn blocks(count: usize) -> Vec<FinalizedBlock> {
    let settings = WorkloadSettings { seed: 7, first_block: FIRST, logs_per_block: 10 };
    Workload::new(settings).take(count).collect()
}

/// The same blocks below `from`, different ones from there on.
pub(crate) fn fork(blocks: &[FinalizedBlock], from: u64) -> Vec<FinalizedBlock> {
    let mut fork = blocks.to_vec();
    for position in 0..fork.len() {
        if fork[position].number < from {
            continue;
        }
        if position > 0 {
            fork[position].parent_hash = fork[position - 1].hash;
        }
        fork[position].hash.0[0] ^= 0xff;
        fork[position].logs.pop();
    }
    fork
}

/// The logs that a query must return, as (block, log index).
pub(crate) fn scan(blocks: &[FinalizedBlock], filter: &Filter) -> Vec<(u64, u64)> {
    let finalized_log_index::Blocks::Range(wanted) = &filter.blocks else {
        panic!("a range is needed");
    };
    let wanted = blocks.iter().filter(|block| wanted.contains(&block.number));
    let logs = wanted.flat_map(|block| block.logs.iter().map(|log| (block.number, log)));
    let found = logs.filter(|(_, log)| filter.matches(log));
    found.map(|(number, log)| (number, u64::from(log.log_index))).collect()
}
