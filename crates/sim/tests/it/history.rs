//! History files, ingested by the pipeline over SQLite and files, every answer compared with a scan.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{BlockLog, Filter, LogIndex, Settings, Stores};
use futures::TryStreamExt;
use logmill_chain::era1::{Era1, Era1Settings, Era1Source};
use logmill_chain::sim::{Fork, Shape, SimChain, SimSettings};
use logmill_chain::{Block, VerifyLevel};
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::{Durability, SqliteSettings};
use logmill_io::{Clock, Entropy, OsEntropy, SeededEntropy, Sql, SystemClock};
use logmill_pipeline::audit::{Auditor, audit};
use logmill_pipeline::ingest::{IngestSettings, Progress};
use logmill_pipeline::process::{Ingest, Roles};
use logmill_pipeline::{Chain, Tip};
use logmill_work::{Queue, RunnerSettings};

/// Time limit for ingesting a folder.
const WAIT_MAX: Duration = Duration::from_secs(600);
const CHAIN: u64 = 1_337;
const FILTERS: usize = 60;

async fn sql(file: &Path) -> Sql {
    let settings = SqliteSettings { durability: Durability::Relaxed, ..SqliteSettings::file(file) };
    Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared()).await.expect("a database")
}

async fn open(data: &Path, cell_blocks: u64) -> Chain {
    let meta = SqlMeta::shared(sql(&data.join("index.db")).await);
    let stores = Stores {
        meta: Arc::clone(&meta),
        blobs: FileBlobs::open_with(data.join("blobs"), Durability::Relaxed).expect("a folder"),
        clock: SystemClock::shared(),
        entropy: OsEntropy::shared(),
    };
    let settings = Settings { cell_blocks, ..Settings::default() };
    let index = LogIndex::open(stores, settings).await.expect("an index");
    Chain::new(CHAIN, index, Tip::open(meta, "chain").await.expect("a tip"))
}

/// Ingests all files of a folder, and opens the result.
async fn ingested(files: &Path, data: &Path, cell_blocks: u64) -> Chain {
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let era1 = Era1::open_folder(Era1Settings::new(files, CHAIN)).await.expect("files");
    let wanted = era1.ranges();
    let source = Era1Source::new(era1, Arc::clone(&clock));
    let chain = open(data, cell_blocks).await;
    let ingest = Ingest {
        chain: chain.clone(),
        source: source.clone(),
        historic: source,
        queue: Queue::open(sql(&data.join("work.db")).await).await.expect("a queue"),
        settings: IngestSettings::default(),
        runner: RunnerSettings::new("", "test", 1),
        roles: Roles { forward: true, history: true },
        owner: "test".to_owned(),
        progress: Arc::new(Progress::new(Arc::clone(&clock), chain.chain_id())),
        auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), 0)),
        clock: Arc::clone(&clock),
    };
    let done = async || {
        while chain.covered() != wanted {
            clock.sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(WAIT_MAX, ingest.run(done)).await;
    waited.expect("all is ingested in time").expect("ingest ends well");
    chain
}

/// A filter derived from a random log of the chain.
fn filter(dice: &dyn Entropy, blocks: &[Block]) -> Filter {
    let pick = |count: usize| usize::try_from(dice.below(count as u64)).expect("small");
    let (first, last) = (blocks[0].at.number, blocks[blocks.len() - 1].at.number);
    let from = first + dice.below(last - first + 1);
    let to = from + dice.below(last - from + 1);
    let mut filter = match dice.below(4) {
        0 => Filter::range(first..=last),
        1 => Filter::block_hash(blocks[pick(blocks.len())].at.hash),
        _ => Filter::range(from..=to),
    };
    for _ in 0..=dice.below(2) {
        let block = &blocks[pick(blocks.len())];
        let Some(placed) = block.logs().nth(pick(block.log_count().max(1))) else { continue };
        if dice.below(3) != 0 {
            filter = filter.address(placed.log.address);
        }
        for (position, topic) in placed.log.topics.iter().enumerate() {
            if dice.below(2) == 0 {
                filter = filter.topic(position, *topic);
            }
        }
    }
    filter
}

/// The matching logs of a scan: number of the block, position of the log, and the log's data.
fn scan(blocks: &[Block], filter: &Filter) -> Vec<(u64, usize, Vec<u8>)> {
    use finalized_log_index::Blocks;
    let mut found = Vec::new();
    for block in blocks {
        let wanted = match &filter.blocks {
            Blocks::Range(range) | Blocks::Covered(range) => range.contains(&block.at.number),
            Blocks::Hash(hash) => block.at.hash == *hash,
        };
        for placed in block.logs().filter(|_| wanted) {
            let log = BlockLog {
                address: placed.log.address,
                topics: placed.log.topics.clone(),
                ..BlockLog::default()
            };
            if filter.matches(&log) {
                found.push((block.at.number, placed.log_index, placed.log.data.to_vec()));
            }
        }
    }
    found
}

async fn check_answers(chain: &Chain, blocks: &[Block]) {
    let dice: Arc<dyn Entropy> = SeededEntropy::shared(7);
    let view = chain.view().await.expect("a view");
    let mut results = 0;
    for _ in 0..FILTERS {
        let filter = filter(&*dice, blocks);
        let page = view.logs(&filter).await.expect("covered");
        let found: Vec<_> = page
            .logs
            .iter()
            .map(|log| {
                let index = usize::try_from(log.log.log_index).expect("small");
                (log.block_number, index, log.log.data.to_vec())
            })
            .collect();
        assert_eq!(found, scan(blocks, &filter), "{filter:?}");
        results += found.len();
    }
    assert!(results > FILTERS, "the filters find something: {results}");
}

/// Checks that the stored blocks, by number, hash and transaction, equal those of the files.
async fn check_blocks(chain: &Chain, blocks: &[Block], step: usize) {
    let view = chain.view().await.expect("a view");
    for block in blocks.iter().step_by(step) {
        let stored = view.block(block.at.number).await.expect("read").expect("stored");
        assert_eq!(*stored, *block);
        assert_eq!(stored.verified, VerifyLevel::Full);
        let by_hash = view.block_ref_by_hash(&block.at.hash).await.expect("looked up");
        assert_eq!(by_hash, Some(block.at));
        for (position, transaction) in block.transactions.iter().enumerate().take(3) {
            let found = view.transaction(&transaction.hash).await.expect("looked up");
            let (holder, at) = found.expect("stored");
            assert_eq!((holder.at.number, at), (block.at.number, position));
        }
    }
}

async fn blocks_of(files: &Path) -> Vec<Block> {
    let era1 = Era1::open_folder(Era1Settings::new(files, CHAIN)).await.expect("files");
    let range = era1.ranges()[0].clone();
    era1.blocks(range).try_collect().await.expect("all verify")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn era1_files_become_history_whose_every_answer_is_that_of_a_scan() {
    let proof = std::env::var_os("LOGMILL_PROOF").is_some();
    // A proof run has two million logs, and cells of the default size.
    let (blocks, logs, cell) = if proof { (10_000, 200, 8_192) } else { (1_200, 40, 256) };
    let shape = Shape { transactions: logs / 3, logs, ..Shape::sparse() }.at(Fork::London);
    let sim = SimChain::with(SimSettings { seed: 11, shape, ..SimSettings::default() });
    sim.grow(blocks - 1);
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("files");
    std::fs::create_dir(&files).expect("made");
    sim.write_era1(&files, "sim").expect("written");
    let chain = ingested(&files, folder.path(), cell).await;
    let blocks = blocks_of(&files).await;
    check_answers(&chain, &blocks).await;
    check_blocks(&chain, &blocks, if proof { 97 } else { 7 }).await;
    let report = audit(&chain, 0..u64::MAX, |_| {}).await.expect("read");
    assert_eq!((report.verified, report.damaged), (blocks.len() as u64, 0), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_published_era1_files_are_ingested_whole_and_verify() {
    let Some(data) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    for name in ["mainnet-00000-5ec1ffb8.era1", "sepolia-00021-b8814b14.era1"] {
        let folder = tempfile::tempdir().expect("a folder");
        let files = folder.path().join("files");
        std::fs::create_dir(&files).expect("made");
        std::fs::copy(data.join("era1").join(name), files.join(name)).expect("copied");
        let chain = ingested(&files, folder.path(), 2_048).await;
        let blocks = blocks_of(&files).await;
        assert_eq!(blocks.len(), 8_192);
        check_blocks(&chain, &blocks, 53).await;
        let report = audit(&chain, 0..u64::MAX, |_| {}).await.expect("read");
        assert_eq!((report.verified, report.damaged), (8_192, 0), "{name}: {report:?}");
    }
}
