//! One replacement of stored blocks, observed in everything that is computed from them concurrently: derived tables,
//! usage as the meter's relay reads it, aggregates, and a subscriber in another process. At chosen store operations
//! the test fails the operation, loses its answer, or crashes just before or after it; then it continues, and compares
//! the result with an undisturbed run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use finalized_log_index::Resolution;
use logmill_chain::sim::SimChain;
use logmill_io::blob::MemoryBlobs;
use logmill_io::{BlobStore, CrashMatrix, Faults};
use logmill_meter::aggregate::AggregateState;
use logmill_meter::chains::relay::{ChainRelay, Step};
use logmill_meter::chains::source::UsageSource as _;
use logmill_meter::due::AGGREGATE_JOB;
use logmill_meter::list::AggregateFilter;
use logmill_meter::period::PeriodKind;
use logmill_meter::settings::{EventType, Op};
use logmill_meter::{Meter, Settings, Sizes};
use logmill_pipeline::derive::{
    DeriveSettings, Deriver, Kind, Processor, Reader, Select, Table, Tables,
};
use logmill_pipeline::ingest::forward::Step as Look;
use logmill_pipeline::processors::usage::{UsageRule, UsageWorker};
use logmill_pipeline::{Chain, Change, processors};
use logmill_serve::usage::chain_usage::{Blocks, ChainUsage};
use logmill_sim::Database;
use logmill_sim::chain_world::{Process, World};
use logmill_sim::meter_world::{self, LEASE};
use logmill_work::Queue;
use tokio::sync::broadcast;

const CHAIN: u64 = 1_337;
/// Blocks of the chain that is discarded, and of the one that replaces it.
const OLD_BLOCKS: u64 = 14;
const NEW_BLOCKS: u64 = 10;
const FINALITY_LAG: u64 = 3;
const SIZES: Sizes = Sizes { keys_per_blob: 8, unplaced_max: 12, slice_bytes: 64 << 20 };
/// Maximum number of rounds until a replacement is complete.
const ROUNDS_MAX: usize = 60;
/// Operations that are disturbed in a usual run.
const DISTURBED: u32 = 24;
const DAY_MS: i64 = 86_400_000;

/// The error is the disturbance, as text.
type Outcome<T> = Result<T, String>;
/// Number of events of each customer on each day.
type Sums = BTreeMap<(String, i64), u64>;

fn said(error: impl Display) -> String {
    error.to_string()
}

fn worker() -> UsageWorker {
    let transfers = UsageRule {
        name: "transfers".to_owned(),
        event: "event Transfer(address indexed from, address indexed to, uint256 value)".to_owned(),
        contracts: Vec::new(),
        event_type: "transfers".to_owned(),
        customer: "from".to_owned(),
        value: None,
        decimals: 0,
        token: None,
        token_decimals: BTreeMap::new(),
        dimensions: BTreeMap::new(),
    };
    UsageWorker::new(vec![transfers]).expect("a rule")
}

/// The usage processor, and two processors whose tables are folds.
fn processors() -> Vec<Arc<dyn Processor>> {
    let settings = processors::Settings::of_chain(CHAIN);
    let all = processors::all(&processors::Settings { usage: Some(worker()), ..settings });
    let named = ["usage_worker", "token_worker", "ft_holdings_worker"];
    all.into_iter().filter(|one| named.contains(&one.name())).collect()
}

/// Expected usage of the final blocks of a chain, by the rules.
fn truth(sim: &SimChain) -> Sums {
    let (worker, mut sums) = (worker(), Sums::new());
    let last = sim.heads().finalized.expect("some are final").number;
    for number in 0..=last {
        let block = sim.block(number).expect("it exists");
        let millis = i64::try_from(block.at.timestamp).expect("soon") * 1_000;
        for found in worker.find(&block) {
            *sums.entry((found.customer, millis / DAY_MS * DAY_MS)).or_default() += 1;
        }
    }
    sums
}

/// State that outlives processes.
struct TestStores {
    world: World,
    database: Database,
    blobs: Arc<dyn BlobStore>,
}

/// One process that does everything, beside a subscriber elsewhere.
struct TestProcess {
    process: Process,
    deriver: Deriver,
    relay: ChainRelay<ChainUsage>,
    queue: Queue,
    tables: Tables,
}

async fn meter(queue: &Queue, blobs: &Arc<dyn BlobStore>) -> Outcome<Meter> {
    let mut settings = Settings {
        chain_types: [("transfers".to_owned(), vec![CHAIN])].into(),
        // The blocks are years old: their days are over, and only a correction is pending.
        chain_wait: Some(Duration::from_secs(86_400)),
        periods: vec![PeriodKind::Daily],
        ..Settings::default()
    };
    settings.events.insert("transfers".to_owned(), EventType::new(Op::Sum));
    meter_world::open(queue, blobs, settings, SIZES).await.map_err(said)
}

impl TestProcess {
    async fn open(ground: &TestStores, faults: &Arc<Faults>) -> Outcome<Self> {
        let TestStores { world, database, blobs } = ground;
        let stores = world.stores.with_faults(faults);
        let process = world.write_as("one", &stores, &world.source()).await.map_err(said)?;
        let sql = database.open().await.with_faults(Arc::clone(faults));
        let tables = Tables::open(sql.clone()).await.map_err(said)?;
        let queue = Queue::open(sql).await.map_err(said)?;
        let meter = meter(&queue, blobs).await?;
        let deriver = Deriver::new(
            process.chain.clone(),
            tables.clone(),
            processors(),
            DeriveSettings { live_chunk: 3, history_chunk: 7, ..DeriveSettings::default() },
            "test",
            world.clock.clone(),
        );
        let blocks = Blocks {
            chain: process.chain.clone(),
            progress: Some(Arc::clone(&process.progress)),
            is_shared: false,
            lowest: Some(0),
            is_archived: false,
        };
        let reader = Reader::new(tables.clone(), CHAIN);
        let usage = ChainUsage::new(reader, blocks, meter.clone(), &worker());
        Ok(Self { process, deriver, relay: ChainRelay::new(meter, usage), queue, tables })
    }

    /// Relays as much as possible; true if nothing is pending.
    async fn relay(&self) -> Outcome<bool> {
        loop {
            match self.relay.step().await.map_err(said)? {
                Step::Idle => return Ok(true),
                Step::Waiting => return Ok(false),
                Step::Progressed(_) | Step::Applied { .. } => {}
            }
        }
    }

    async fn aggregate(&self) -> Outcome<()> {
        meter_world::aggregate(self.relay.meter(), &self.queue).await.map_err(said)
    }

    /// The last announced aggregate of each customer and day.
    async fn announced(&self) -> Outcome<BTreeMap<(String, i64), (AggregateState, u64)>> {
        let filter = AggregateFilter { limit: 1_000, ..AggregateFilter::default() };
        let all = self.relay.meter().aggregates(&filter).await.map_err(said)?.items;
        let announced = all.into_iter().map(|one| {
            let body: serde_json::Value = serde_json::from_str(&one.body).expect("JSON");
            let sum = body["eventsExact"]["transfers"].as_str().unwrap_or("0");
            let sum = sum.parse().expect("a whole number");
            ((one.customer, one.start.millis()), (one.state, sum))
        });
        Ok(announced.collect())
    }
}

/// A subscriber in another process.
struct Subscriber {
    chain: Chain,
    changes: broadcast::Receiver<Arc<Change>>,
    heard: BTreeMap<u64, B256>,
    removed: BTreeSet<B256>,
}

impl Subscriber {
    async fn new(world: &World) -> Self {
        let chain = world.open().await;
        let changes = chain.changes();
        Self { chain, changes, heard: BTreeMap::new(), removed: BTreeSet::new() }
    }

    async fn hear(&mut self) {
        self.chain.follow().await.expect("nothing disturbs it");
        while let Ok(change) = self.changes.try_recv() {
            for block in &change.removed {
                self.heard.remove(&block.at.number);
                self.removed.insert(block.at.hash);
            }
            let added = change.added.iter().map(|block| (block.at.number, block.at.hash));
            self.heard.extend(added);
        }
    }
}

/// Runs everything concurrently until all of it is done.
async fn drive(
    parts: &TestProcess,
    subscriber: &mut Subscriber,
    once_true: &BTreeSet<((String, i64), u64)>,
) -> Outcome<()> {
    if parts.process.chain.index().last_replacement() == 0 {
        let resolved = parts.process.writer.resolve(Resolution::RebuildFrom(0)).await;
        resolved.map_err(said)?;
    }
    for _ in 0..ROUNDS_MAX {
        let look = parts.process.forward.step().await.map_err(said)?;
        let missing = parts.process.fill().await.map_err(said)?;
        subscriber.hear().await;
        parts.deriver.catch_up().await.map_err(said)?;
        let is_relayed = parts.relay().await?;
        parts.aggregate().await?;
        for (of, (_, sum)) in parts.announced().await? {
            assert!(once_true.contains(&(of.clone(), sum)), "{sum} of {of:?} was never true");
        }
        if look == Look::CaughtUp && missing == 0 && is_relayed {
            return Ok(());
        }
    }
    panic!("it does not come to an end");
}

/// The rows of all tables.
async fn rows(tables: &Tables) -> BTreeMap<&'static str, Vec<String>> {
    let reader = Reader::new(tables.clone(), CHAIN);
    let mut all = BTreeMap::new();
    for table in processors().iter().flat_map(|processor| processor.tables()) {
        let column = |column: &logmill_pipeline::derive::Column| match column.kind {
            Kind::Address => {
                format!("(SELECT address FROM address WHERE id = s.{})", column.name)
            }
            _ => format!("s.{}", column.name),
        };
        let columns: Vec<String> = table.columns.iter().map(column).collect();
        let columns = columns.join(", ");
        let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
            format!("SELECT {columns} FROM {} AS s", source(table, &Select::default()))
        };
        let answer = reader.query(text, Vec::new()).await.expect("it can be read");
        let mut rows: Vec<String> = answer.rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort();
        all.insert(table.name, rows);
    }
    all
}

/// The old chain is stored, derived, relayed, announced and seen by the subscriber.
async fn before(ground: &TestStores) -> Subscriber {
    let mut subscriber = Subscriber::new(&ground.world).await;
    let parts = TestProcess::open(ground, &Faults::none()).await.expect("nothing disturbs it");
    for _ in 0..OLD_BLOCKS / 2 {
        ground.world.sim.grow(2);
        parts.process.catch_up().await.expect("nothing disturbs it");
        subscriber.hear().await;
    }
    parts.process.fill().await.expect("nothing disturbs it");
    parts.deriver.catch_up().await.expect("nothing disturbs it");
    assert!(parts.relay().await.expect("nothing disturbs it"));
    parts.aggregate().await.expect("nothing disturbs it");
    let announced = parts.announced().await.expect("it can be read");
    let sums: Sums = announced.into_iter().map(|(of, (_, sum))| (of, sum)).collect();
    assert_eq!(sums, truth(&ground.world.sim));
    assert!(!sums.is_empty() && !subscriber.heard.is_empty());
    subscriber
}

/// Replaces the whole chain under faults; returns the final state.
async fn replaced(faults: &Arc<Faults>) -> String {
    let mut world = World::new(8, Some(FINALITY_LAG)).await;
    world.settings.history_stop = 0;
    let mut ground = TestStores {
        world,
        database: Database::memory().await,
        blobs: Arc::new(MemoryBlobs::default()),
    };
    let mut subscriber = before(&ground).await;
    let (old, heard_before) = (truth(&ground.world.sim), subscriber.heard.clone());
    let other = World::new(99, Some(FINALITY_LAG)).await;
    other.sim.grow(NEW_BLOCKS);
    ground.world = World {
        clock: Arc::clone(&ground.world.clock),
        stores: ground.world.stores.clone(),
        queue: ground.world.queue.clone(),
        settings: ground.world.settings.clone(),
        ..other
    };
    let new = truth(&ground.world.sim);
    let gone = old.keys().filter(|of| !new.contains_key(*of)).map(|of| (of.clone(), 0));
    let once_true: BTreeSet<((String, i64), u64)> =
        old.clone().into_iter().chain(new.clone()).chain(gone).collect();
    let disturbed = async {
        let parts = TestProcess::open(&ground, faults).await?;
        drive(&parts, &mut subscriber, &once_true).await
    };
    if Box::pin(disturbed).await.is_err() {
        ground.world.pause();
        ground.database.advance(LEASE * 2, &[&ground.database.open().await]);
        let parts = TestProcess::open(&ground, &Faults::none()).await.expect("nothing disturbs it");
        parts.queue.reap(AGGREGATE_JOB).await.expect("a reaper");
        drive(&parts, &mut subscriber, &once_true).await.expect("nothing disturbs it");
    }
    let parts = TestProcess::open(&ground, &Faults::none()).await.expect("nothing disturbs it");
    check(&ground, &parts, (&old, &new)).await;
    check_subscriber(&ground, &subscriber, &heard_before);
    let (tables, announced) = (rows(&parts.tables).await, parts.announced().await);
    format!("{tables:?} {announced:?}")
}

async fn check(ground: &TestStores, parts: &TestProcess, (old, new): (&Sums, &Sums)) {
    // Tables: as if only the new chain had ever existed.
    let fresh = Tables::open(Database::memory().await.open().await).await.expect("tables");
    let (chain, clock) = (parts.process.chain.clone(), ground.world.clock.clone());
    let settings = DeriveSettings::default();
    let deriver = Deriver::new(chain, fresh.clone(), processors(), settings, "fresh", clock);
    deriver.catch_up().await.expect("derived");
    assert_eq!(rows(&parts.tables).await, rows(&fresh).await);
    let end = parts.process.chain.index().replacement_position();
    let names: Vec<&str> = processors().iter().map(|processor| processor.name()).collect();
    let reader = Reader::new(parts.tables.clone(), CHAIN);
    for standing in reader.progress(&names).await.expect("read") {
        assert_eq!(standing.stale(end), None);
    }
    // Usage: what the rules derive from the new chain, with nothing pending.
    let announced = parts.announced().await.expect("it can be read");
    let sums = announced.iter().map(|(of, (_, sum))| (of.clone(), *sum));
    let sums: Sums = sums.filter(|(_, sum)| *sum > 0).collect();
    assert_eq!(sums, *new);
    let recorded = parts.relay.meter().recorded_coverage(CHAIN).await.expect("a state");
    assert_eq!((recorded.state.applied, recorded.state.pending), (1, None));
    let source = parts.relay.source().state().await.expect("a state").expect("it is derived");
    assert_eq!(source.derived_replacement, Some(1));
    // Aggregates: those that were announced with usage of the old chain are corrected.
    for (of, (state, _)) in &announced {
        let was_wrong = old.get(of).is_some_and(|sum| new.get(of) != Some(sum));
        let expected = if was_wrong { AggregateState::Corrected } else { AggregateState::Final };
        assert_eq!(*state, expected, "{of:?}");
    }
}

/// The subscriber was notified that the old blocks are gone, and which blocks exist now.
fn check_subscriber(ground: &TestStores, subscriber: &Subscriber, before: &BTreeMap<u64, B256>) {
    let lost = before.values().filter(|hash| !subscriber.removed.contains(*hash)).count();
    assert_eq!(lost, 0, "it has not heard that blocks are gone");
    let head = ground.world.sim.heads().latest;
    assert_eq!(subscriber.heard.last_key_value(), Some((&head.number, &head.hash)));
    for (number, hash) in &subscriber.heard {
        assert_eq!(ground.world.sim.at(*number).map(|at| at.hash), Some(*hash), "block {number}");
    }
}

/// Evenly spread operations; a proof run multiplies their number, up to all of them with every fault.
#[tokio::test(start_paused = true)]
async fn a_replacement_reaches_tables_usage_and_subscribers_despite_faults() {
    let most = u64::from(logmill_io::proof_cases(DISTURBED));
    let matrix = CrashMatrix::of_at_least(300).at_most(most).in_turn().with_varying_runs();
    matrix.check(async |faults| Box::pin(replaced(&faults)).await).await;
}
