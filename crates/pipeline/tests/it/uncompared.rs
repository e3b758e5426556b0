//! Blocks that were stored before node fields were kept.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use finalized_log_index::{B256, LogIndex, Writer};
use logmill_chain::sim::SimSource;
use logmill_chain::{
    Block, BlockSource, ChainInfo, ChainSource, Error as ChainError, Heads, KeptFields, NodeFields,
    NodeStatus, Result as ChainResult,
};
use logmill_io::sql::SqliteSettings;
use logmill_io::{Amount, Clock, SeededEntropy, Sql, params};
use logmill_pipeline::block::to_finalized;
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Reader, Select, Table, Tables};
use logmill_pipeline::ingest::{Backward, Progress};
use logmill_pipeline::processors::tx_metrics::{TX_METRICS, TxMetrics};
use logmill_pipeline::repair::RepairHandler;
use logmill_pipeline::tip::Tip;
use logmill_pipeline::{Chain, uncompared};
use logmill_sim::chain_world::{PREFIX, World, index_settings};

/// A chain outside the Ethereum family, and Ethereum.
const OTHER: u64 = 25;
const ETHEREUM: u64 = 1;
/// Blocks with bodies of an earlier version, among 200 final ones.
const OLD: std::ops::RangeInclusive<u64> = 50..=120;
const FINAL: u64 = 200;

#[tokio::test(start_paused = true)]
async fn blocks_of_earlier_versions_are_found_and_those_of_the_tip_are_dropped() {
    let world = World::new(5, Some(10)).await;
    world.sim.grow(FINAL + 2);
    let block = |number: u64, is_old: bool| {
        let mut block = Block::clone(&world.sim.block(number).expect("grown"));
        if !is_old {
            block.node_fields = KeptFields::compared(NodeFields::default());
        }
        block
    };
    let index = LogIndex::open(world.stores.clone(), index_settings()).await.expect("an index");
    let writer = index.writer("one").await.expect("no other process writes");
    for first in (0..FINAL).step_by(4) {
        let blocks: Vec<_> = (first..first + 4)
            .map(|number| to_finalized(block(number, OLD.contains(&number))))
            .collect();
        writer.ingest_finalized_blocks(&blocks).await.expect("indexed");
    }
    let tip = Tip::open(Arc::clone(&world.stores.meta), PREFIX).await.expect("a tip");
    let chain = Chain::new(OTHER, index.clone(), tip);
    let found = uncompared::find(&chain).await.expect("there are some");
    // Every fourth block is sampled.
    assert!((OLD.start() - 3..=*OLD.start()).contains(found.start()), "{found:?}");
    assert!((*OLD.end()..=OLD.end() + 3).contains(found.end()), "{found:?}");
    let head = |chain: &Chain| {
        let chain = chain.clone();
        async move { chain.view().await.expect("a view").head().expect("a head").number }
    };
    let staged = vec![Arc::new(block(FINAL, false)), Arc::new(block(FINAL + 1, true))];
    chain.stage(staged, None, writer.fence()).await.expect("staged");
    let tip = Tip::open(Arc::clone(&world.stores.meta), PREFIX).await.expect("a tip");
    let ethereum = Chain::new(ETHEREUM, index, tip);
    uncompared::at_start(&ethereum, &writer).await.expect("it looks");
    assert_eq!(head(&ethereum).await, FINAL + 1, "there everything follows");
    uncompared::at_start(&chain, &writer).await.expect("it looks");
    assert_eq!(head(&chain).await, FINAL - 1, "it is fetched again");
    let compared = vec![Arc::new(block(FINAL, false))];
    chain.stage(compared, None, writer.fence()).await.expect("staged");
    uncompared::at_start(&chain, &writer).await.expect("it looks");
    assert_eq!(head(&chain).await, FINAL, "nothing is missing there");
}

/// The price that the node reports; the transactions themselves imply another.
const PRICE: u64 = 7;

/// A node whose receipts report a price. It counts the requests for each block, and lacks blocks below its floor.
#[derive(Debug)]
struct ReportingSource {
    chain: Arc<SimSource>,
    floor: AtomicU64,
    requests: Mutex<BTreeMap<u64, usize>>,
}

#[async_trait]
impl BlockSource for ReportingSource {
    async fn info(&self) -> ChainResult<ChainInfo> {
        self.chain.info().await
    }

    async fn blocks(&self, range: Range<u64>) -> ChainResult<Vec<Block>> {
        if range.start < self.floor.load(Ordering::SeqCst) {
            let (what, why) = ("blocks".to_owned(), "it is away".to_owned());
            return Err(ChainError::Unavailable { what, why });
        }
        let mut blocks = self.chain.blocks(range).await?;
        for block in &mut blocks {
            *self.requests.lock().expect("sound").entry(block.at.number).or_default() += 1;
            block.node_fields = KeptFields::compared(NodeFields::default());
            for receipt in &mut block.receipts {
                receipt.extra =
                    Some(format!(r#"{{"effectiveGasPrice":"{PRICE:#x}"}}"#).into_bytes().into());
            }
        }
        Ok(blocks)
    }

    async fn block_by_hash(&self, hash: B256) -> ChainResult<Option<Block>> {
        self.chain.block_by_hash(hash).await
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        Vec::new()
    }
}

#[async_trait]
impl ChainSource for ReportingSource {
    async fn heads(&self) -> ChainResult<Heads> {
        self.chain.heads().await
    }

    async fn changed(&self, at_most: Duration) {
        self.chain.changed(at_most).await;
    }
}

/// Returns the SQL source of a table for a statement.
type TableSource<'a> = &'a dyn Fn(&'static Table, &Select<'_>) -> String;

/// Number of transactions with a row, and of those with the price that the node reports.
async fn priced(reader: &Reader) -> (i64, i64) {
    let text = |source: TableSource<'_>| {
        let rows = source(&TX_METRICS, &Select::default());
        format!(
            "SELECT count(*), coalesce(sum(CASE WHEN effective_gas_price = $1 THEN 1 ELSE 0 END), 0)
             FROM {rows} AS s"
        )
    };
    let price = Amount::from(i64::try_from(PRICE).expect("small"));
    let found = reader.query(text, params![price]).await.expect("rows");
    (found.rows[0].int(0).expect("a count"), found.rows[0].int(1).expect("a count"))
}

/// Stores final blocks as an earlier version did, in chunks and in the tail.
async fn store_old(world: &World) -> (Chain, Arc<Writer>) {
    world.sim.grow(FINAL + 12);
    let index = LogIndex::open(world.stores.clone(), index_settings()).await.expect("an index");
    let writer = Arc::new(index.writer("one").await.expect("no other process writes"));
    for first in (0..FINAL).step_by(4) {
        let blocks = (first..first + 4).map(|number| world.sim.block(number).expect("grown"));
        let blocks: Vec<_> = blocks.map(|block| to_finalized(Block::clone(&block))).collect();
        writer.ingest_finalized_blocks(&blocks).await.expect("indexed");
    }
    writer.maintain().await.expect("it seals");
    let sealed = index.chunks().last().expect("chunks").blocks.end;
    assert!((100..FINAL).contains(&sealed), "there are chunks and a tail: {sealed}");
    let tip = Tip::open(Arc::clone(&world.stores.meta), PREFIX).await.expect("a tip");
    (Chain::new(OTHER, index, tip), writer)
}

fn repairs(
    world: &World,
    chain: &Chain,
    writer: &Arc<Writer>,
    source: Arc<dyn ChainSource>,
    progress: &Arc<Progress>,
) -> RepairHandler {
    let backward = Backward::new(
        chain.clone(),
        source,
        world.queue.clone(),
        world.settings.clone(),
        Arc::clone(progress),
        world.clock.clone(),
    );
    RepairHandler::new(Arc::clone(writer), Arc::new(backward))
}

#[tokio::test(start_paused = true)]
async fn final_blocks_of_earlier_versions_are_fetched_again_and_tables_follow() {
    let world = World::new(5, Some(10)).await;
    let (chain, writer) = store_old(&world).await;
    let clock: Arc<dyn Clock> = world.clock.clone();

    // Derive tables from the stored blocks.
    let memory = SqliteSettings::memory();
    let sql = Sql::sqlite(&memory, Arc::clone(&clock), SeededEntropy::shared(5)).await;
    let tables = Tables::open(sql.expect("a database")).await.expect("tables");
    let all: Vec<Arc<dyn Processor>> = vec![Arc::new(TxMetrics)];
    let settings = DeriveSettings::default();
    let deriver =
        Deriver::new(chain.clone(), tables.clone(), all, settings, "test", Arc::clone(&clock));
    deriver.catch_up().await.expect("derived");
    let reader = Reader::new(tables, OTHER);
    let (rows, right) = priced(&reader).await;
    assert!(rows > 100 && right == 0, "{right} of {rows}");

    // Refetch in the background, newest first; blocks that the node lacks are retried, and no block is fetched twice.
    let source = Arc::new(ReportingSource {
        chain: Arc::clone(&world.source),
        floor: AtomicU64::new(100),
        requests: Mutex::default(),
    });
    let progress = Arc::new(Progress::new(Arc::clone(&clock), OTHER));
    let shared = Arc::clone(&source) as Arc<dyn ChainSource>;
    let repairs = repairs(&world, &chain, &writer, shared, &progress);
    let driver = async {
        let until = async |is_so: &dyn Fn() -> bool| {
            for _ in 0..100_000 {
                if is_so() {
                    return;
                }
                clock.sleep(Duration::from_secs(1)).await;
            }
            panic!("it does not come to an end: {:?}", progress.report().uncompared);
        };
        let left = || progress.report().uncompared;
        until(&|| left().is_some_and(|left| left.why.is_some())).await;
        assert!(left().expect("it is shown").why.expect("a reason").contains("it is away"));
        let now = uncompared::find(&chain).await.expect("some are left");
        assert!(*now.start() == 0 && (84..=116).contains(now.end()), "newest first: {now:?}");
        source.floor.store(0, Ordering::SeqCst);
        until(&|| left().is_none()).await;
    };
    tokio::select! {
        biased;
        ended = uncompared::refetch(&chain, &repairs, &progress, &*clock) => panic!("{ended:?}"),
        () = driver => {}
    }
    assert_eq!(uncompared::find(&chain).await, None);
    let requests = source.requests.lock().expect("sound").clone();
    let twice: Vec<_> =
        requests.iter().filter(|(number, times)| **number > 116 && **times > 1).collect();
    assert_eq!((requests.len() as u64, twice), (FINAL, Vec::new()), "each once");

    let end = chain.index().replacement_position();
    assert!(end.seq > 0);
    deriver.catch_up().await.expect("derived again");
    assert_eq!(priced(&reader).await, (rows, rows));
    let serving = reader.progress(&[]).await.expect("read");
    assert_eq!(serving[0].stale(end), None);
}
