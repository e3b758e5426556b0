//! A simulated chain, stores in memory that outlive processes, and the processes that write it there.
//!
//! Guarantees: a seed determines everything, and time moves only when a test moves it. [`World::check`] compares all
//! that is stored with the chain. Leaves to others: faults, and what happens to the chain.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{
    BlockLog, Filter, GcMode, Log as IndexedLog, LogIndex, Settings, Stores, Writer,
};
use logmill_chain::sim::{Shape, SimChain, SimSettings, SimSource};
use logmill_chain::{Block, ChainSource};
use logmill_io::sql::SqliteSettings;
use logmill_io::{Clock, Entropy, SeededEntropy, SimClock, Sql, Timestamp, millis};
use logmill_pipeline::ingest::forward::Step;
use logmill_pipeline::ingest::{Backward, Forward, IngestSettings, Progress};
use logmill_pipeline::tip::Tip;
use logmill_pipeline::{Chain, Error, Result, View};
use logmill_work::{Handler, Queue, RunningJob};

/// Key prefix of the tip.
pub const PREFIX: &str = "chain";
/// Time until the next process starts after a crash: by then leases and attempts have expired.
pub const PAUSE: Duration = Duration::from_secs(3_600);
/// Maximum number of steps to catch up in these tests.
const STEPS_MAX: usize = 2_000;

/// Bounds so small that few blocks fill many cells, chunks and pieces.
pub fn index_settings() -> Settings {
    Settings {
        cell_blocks: 16,
        chunk_logs: 60,
        piece_logs: 25,
        commit_blocks: 4,
        merge_cpu_percent: 100,
        lease_ttl: Duration::from_secs(600),
        query_deadline: Duration::from_secs(600),
        ..Settings::default()
    }
}

pub fn ingest_settings() -> IngestSettings {
    IngestSettings {
        latest_batch: 2,
        latest_batch_max: 8,
        history_workers: 3,
        history_batch: 5,
        max_reorg_depth: 64,
        max_unfinal_blocks: 600,
        ..IngestSettings::default()
    }
}

/// Small blocks, because signatures take time.
pub fn shape() -> Shape {
    Shape { transactions: 2, logs: 8, ..Shape::sparse() }
}

/// A chain with this many blocks above the newest final one.
pub fn sim(seed: u64, finality_lag: Option<u64>) -> SimChain {
    SimChain::with(SimSettings { seed, shape: shape(), finality_lag, ..SimSettings::default() })
}

/// Everything that outlives processes.
pub struct World {
    pub clock: Arc<SimClock>,
    pub stores: Stores,
    pub sim: SimChain,
    pub source: Arc<SimSource>,
    pub queue: Queue,
    pub index_settings: Settings,
    pub settings: IngestSettings,
}

impl World {
    pub async fn new(seed: u64, finality_lag: Option<u64>) -> Self {
        Self::of(seed, sim(seed, finality_lag)).await
    }

    pub async fn of(seed: u64, sim: SimChain) -> Self {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let entropy: Arc<dyn Entropy> = SeededEntropy::shared(seed);
        let shared: Arc<dyn Clock> = clock.clone();
        let memory = SqliteSettings::memory();
        let sql = Sql::sqlite(&memory, Arc::clone(&shared), Arc::clone(&entropy)).await;
        let queue = Queue::open(sql.expect("a database")).await.expect("a queue");
        let stores = Stores::memory(Arc::clone(&shared), Arc::clone(&entropy));
        let source = SimSource::new(sim.clone(), shared, entropy);
        Self {
            clock,
            stores,
            sim,
            source,
            queue,
            index_settings: index_settings(),
            settings: ingest_settings(),
        }
    }

    /// Opens the stored chain as another process.
    pub async fn open(&self) -> Chain {
        open(&self.stores, &self.index_settings).await.expect("it opens")
    }

    pub async fn write(&self) -> Process {
        self.write_as("one", &self.stores, &self.source()).await.expect("nothing is in the way")
    }

    /// A process that has stored the whole chain.
    pub async fn stored(&self) -> Process {
        let process = self.write().await;
        process.catch_up().await.expect("nothing is in the way");
        process.fill().await.expect("nothing is in the way");
        process
    }

    pub async fn write_as(
        &self,
        owner: &str,
        stores: &Stores,
        source: &Arc<dyn ChainSource>,
    ) -> Result<Process> {
        self.write_over(open(stores, &self.index_settings).await?, owner, source).await
    }

    /// Lets a process that reads a chain write it too.
    pub async fn write_over(
        &self,
        chain: Chain,
        owner: &str,
        source: &Arc<dyn ChainSource>,
    ) -> Result<Process> {
        let writer = Arc::new(chain.index().writer(owner).await?);
        chain.follow().await?;
        let clock: Arc<dyn Clock> = self.clock.clone();
        let progress = Arc::new(Progress::new(Arc::clone(&clock), chain.chain_id()));
        let forward = Forward::new(
            chain.clone(),
            Arc::clone(source),
            Arc::clone(&writer),
            self.settings.clone(),
            Arc::clone(&progress),
            Arc::clone(&clock),
        );
        let backward = Arc::new(Backward::new(
            chain.clone(),
            source.clone(),
            self.queue.clone(),
            self.settings.clone(),
            Arc::clone(&progress),
            clock,
        ));
        Ok(Process { chain, writer, forward, backward, progress, queue: self.queue.clone() })
    }

    pub fn source(&self) -> Arc<dyn ChainSource> {
        Arc::clone(&self.source) as Arc<dyn ChainSource>
    }

    pub fn pause(&self) {
        self.clock.jump(millis(PAUSE));
    }

    /// Compares everything stored with the chain.
    pub async fn check(&self, chain: &Chain, seed: u64) {
        let view = chain.view().await.expect("it can be read");
        check_heads(&self.sim, &view);
        check_blocks(&self.sim, &view).await;
        check_logs(&self.sim, &view, seed).await;
        check_uncovered(&view).await;
    }
}

pub async fn open(stores: &Stores, settings: &Settings) -> Result<Chain> {
    let index = LogIndex::open(stores.clone(), settings.clone()).await?;
    let tip = Tip::open(Arc::clone(&stores.meta), PREFIX).await?;
    Ok(Chain::new(1_337, index, tip))
}

/// A process that writes.
#[derive(Debug)]
pub struct Process {
    pub chain: Chain,
    pub writer: Arc<Writer>,
    pub forward: Forward,
    pub backward: Arc<Backward>,
    pub progress: Arc<Progress>,
    pub queue: Queue,
}

impl Process {
    /// Steps until there is nothing more to do.
    pub async fn catch_up(&self) -> Result<()> {
        for _ in 0..STEPS_MAX {
            if self.forward.step().await? == Step::CaughtUp {
                return Ok(());
            }
        }
        panic!("it does not come to an end");
    }

    /// Plans and runs jobs until nothing is missing or nothing more can be done now. Returns the number of missing
    /// blocks.
    pub async fn fill(&self) -> Result<u64> {
        for _ in 0..STEPS_MAX {
            let missing = self.backward.plan().await?;
            if missing == 0 || !self.do_jobs().await? {
                return Ok(missing);
            }
        }
        panic!("it does not come to an end");
    }

    /// Runs the due jobs; false if there are none.
    async fn do_jobs(&self) -> Result<bool> {
        self.queue.reap(&self.backward.kind()).await?;
        let claims = self.queue.claim(&self.backward.kind(), 3, PAUSE, "worker").await?;
        let handler = logmill_pipeline::ingest::backward::CellHandler(Arc::clone(&self.backward));
        for claim in &claims {
            let running = RunningJob { claim: claim.clone(), queue: self.queue.clone() };
            match handler.run(running).await {
                Ok(_) => self.queue.complete(claim).await?,
                Err(failure) => {
                    self.queue.release_many(&claims).await?;
                    return Err(Error::Invalid { what: failure.error });
                }
            }
        }
        Ok(!claims.is_empty())
    }

    pub async fn collect(&self) -> Result<()> {
        self.writer.collect_garbage(GcMode::Delete).await?;
        Ok(())
    }

    /// Crashes: the lease is not released.
    pub fn die(self) {}
}

/// Compares two blocks, except for the verification level.
pub fn same(stored: &Block, block: &Block) {
    let block = Block { verified: stored.verified, ..block.clone() };
    assert_eq!(*stored, block, "block {}", block.at.number);
}

pub fn check_heads(sim: &SimChain, view: &View) {
    let heads = sim.heads();
    assert_eq!(view.head(), Some(heads.latest));
    assert_eq!(view.finalized(), heads.finalized);
    assert_eq!(view.safe(), heads.safe);
}

pub async fn check_blocks(sim: &SimChain, view: &View) {
    for number in view.covered().into_iter().flatten() {
        let block = sim.block(number).expect("it exists");
        let at = view.block_ref(number).await.expect("read");
        assert_eq!(at, Some(block.at));
        assert_eq!(view.block_ref_by_hash(&block.at.hash).await.expect("read"), Some(block.at));
        let stored = view.block(number).await.expect("read").expect("covered");
        same(&stored, &block);
        let stored = view.block_by_hash(&block.at.hash).await.expect("read").expect("covered");
        same(&stored, &block);
        for (position, transaction) in block.transactions.iter().enumerate() {
            let found = view.transaction(&transaction.hash).await.expect("read");
            let (of, at) = found.expect("it is in a covered block");
            assert_eq!((of.at, at), (block.at, position));
        }
    }
}

/// The logs found by a scan.
pub fn scan(sim: &SimChain, range: RangeInclusive<u64>, filter: &Filter) -> Vec<IndexedLog> {
    let mut found = Vec::new();
    for number in range {
        let block = sim.block(number).expect("it exists");
        found.extend(logs_of(&block).into_iter().filter(|log| filter.matches(&log.log)));
    }
    found
}

pub fn logs_of(block: &Block) -> Vec<IndexedLog> {
    let number = |position: usize| u32::try_from(position).expect("few");
    let logs = block.logs().map(|placed| IndexedLog {
        block_number: block.at.number,
        block_hash: block.at.hash,
        block_timestamp: block.at.timestamp,
        log: BlockLog {
            address: placed.log.address,
            topics: placed.log.topics.clone(),
            data: placed.log.data.clone(),
            transaction_hash: placed.transaction_hash,
            transaction_index: number(placed.transaction_index),
            log_index: number(placed.log_index),
        },
    });
    logs.collect()
}

/// A random filter, which may or may not match logs of the range.
fn draw_filter(sim: &SimChain, dice: &dyn Entropy, range: RangeInclusive<u64>) -> Filter {
    let mut filter = Filter::range(range.clone());
    let logs = scan(sim, range, &filter);
    for _ in 0..dice.below(3) {
        if logs.is_empty() {
            break;
        }
        let at = usize::try_from(dice.below(logs.len() as u64)).expect("few");
        let log = &logs[at].log;
        if dice.below(2) == 0 {
            filter = filter.address(log.address);
        }
        for (position, topic) in log.topics.iter().enumerate() {
            if dice.below(3) == 0 {
                filter = filter.topic(position, *topic);
            }
        }
    }
    filter
}

pub async fn check_logs(sim: &SimChain, view: &View, seed: u64) {
    let dice: Arc<dyn Entropy> = SeededEntropy::shared(seed);
    for covered in view.covered() {
        for _ in 0..12 {
            let length = covered.end - covered.start;
            let from = covered.start + dice.below(length);
            let to = from + dice.below(covered.end - from);
            let filter = draw_filter(sim, &*dice, from..=to);
            let expected = scan(sim, from..=to, &filter);
            let page = view.logs(&filter).await.expect("covered");
            assert_eq!(page.logs, expected, "{filter:?}");
            let range = from..to + 1;
            assert_eq!((page.next, &page.looked_at[..]), (None, std::slice::from_ref(&range)));
            check_pages(view, &filter, from..=to, &expected, 1 + dice.below(20)).await;
        }
        let at = sim.at(covered.end - 1).expect("it exists");
        let page = view.logs(&Filter::block_hash(at.hash)).await.expect("covered");
        let all = Filter::range(at.number..=at.number);
        assert_eq!(page.logs, scan(sim, at.number..=at.number, &all));
    }
}

/// Checks that pages with a limit are block-aligned and together complete.
async fn check_pages(
    view: &View,
    filter: &Filter,
    range: RangeInclusive<u64>,
    expected: &[IndexedLog],
    limit: u64,
) {
    let limit = usize::try_from(limit).expect("few");
    let (mut from, to) = range.into_inner();
    let mut all = Vec::new();
    loop {
        let mut paged = filter.clone().limit(limit);
        paged.blocks = finalized_log_index::Blocks::Range(from..=to);
        let page = view.logs(&paged).await.expect("covered");
        let first = page.logs.first().map(|log| log.block_number);
        let last = page.logs.last().map(|log| log.block_number);
        assert!(page.logs.len() <= limit || first == last, "only one block may be more");
        all.extend(page.logs);
        let Some(next) = page.next else {
            break;
        };
        assert!(next > from && next <= to, "{next} of {from}..={to}");
        assert!(last.is_some_and(|last| last < next), "a page ends with a whole block");
        from = next;
    }
    assert_eq!(all, expected, "{filter:?} by {limit}");
}

/// Checks that blocks that are not stored are an error, not an empty answer.
pub async fn check_uncovered(view: &View) {
    let covered = view.covered();
    let mut outside = Vec::new();
    for range in &covered {
        outside.push((range.start, range.end));
        if let Some(below) = range.start.checked_sub(1) {
            outside.push((below, range.end - 1));
            outside.push((below, below));
        }
        outside.push((range.end, range.end + 5));
    }
    for (from, to) in outside.into_iter().chain([(0, u64::MAX), (u64::MAX, u64::MAX)]) {
        let inside = covered.iter().any(|range| range.start <= from && to < range.end);
        if inside {
            continue;
        }
        match view.logs(&Filter::range(from..=to)).await {
            Err(Error::NotCovered { covered: reported, .. }) => assert_eq!(reported, covered),
            other => panic!("{from}..={to} of {covered:?}: {other:?}"),
        }
    }
}
