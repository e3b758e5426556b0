//! The collector over a simulated chain whose events are known: what it plans, stores and survives.

mod crash_matrix;
mod traps;

use std::ops::Range;

use alloy_primitives::{B256, U256};
use logmill_chain::Log;
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings, Reach};
use logmill_chain::sim::rpc::{NodeFaults, SimNode};
use logmill_chain::sim::{FEE_COLLECTOR, Shape, SimChain, SimSettings};
use logmill_io::sql::SqliteSettings;
use logmill_io::wire::Endpoint;
use logmill_io::{Clock, SeededEntropy, SimClock, Sql, Timestamp, params};
use logmill_work::queue::FailedClaim;
use logmill_work::{Claim, Failure, Handler, Outcome, Retry, Running};

use super::event::collected;
use super::plan::Step;
use super::*;
use crate::processors::fees::FEES_COLLECTED;

/// The chain that is simulated.
const CHAIN: u64 = 1_337;
/// Longer than any lease and any wait.
const LATER: Duration = Duration::from_secs(3_600);

/// A chain, a node of it, and a database that outlives processes.
struct Ground {
    sim: SimChain,
    node: SimNode,
    clock: Arc<SimClock>,
    sql: Sql,
    confirmations: Option<u64>,
}

impl Ground {
    /// A chain with this many blocks, of which the last `lag` are not final.
    async fn new(blocks: u64, lag: u64) -> Self {
        let sim = SimChain::with(SimSettings {
            seed: 9,
            shape: Shape { transactions: 4, logs: 8, ..Shape::sparse() },
            finality_lag: Some(lag),
            ..SimSettings::default()
        });
        sim.grow(blocks);
        Self::on(sim).await
    }

    /// A new database for a chain that is there.
    async fn on(sim: SimChain) -> Self {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let shared: Arc<dyn Clock> = clock.clone();
        let entropy = SeededEntropy::shared(11);
        let sql = Sql::sqlite(&SqliteSettings::memory(), shared, entropy).await;
        let node = SimNode::new(sim.clone());
        let sql = sql.expect("a database");
        Self { sim, node, clock, sql, confirmations: None }
    }

    fn source(&self) -> Arc<dyn ChainSource> {
        let address = Endpoint::parse("http://node.example").expect("fine");
        let reach = Reach { wire: Arc::new(self.node.clone()), feed: None };
        let settings = EvmSettings {
            chain_id: Some(CHAIN),
            confirmations: self.confirmations,
            ..EvmSettings::new("sim")
        };
        let nodes = vec![(NodeSettings::new(address), reach)];
        let (clock, entropy) = (self.clock.clone(), SeededEntropy::shared(3));
        Arc::new(EvmSource::reached_by(nodes, settings, clock, &entropy).expect("fine"))
    }

    fn settings(&self) -> CollectSettings {
        CollectSettings {
            contracts: vec![FEE_COLLECTOR],
            start: 1,
            batch: 10,
            ..CollectSettings::default()
        }
    }

    /// A collector of fees that has begun, as another process would start it.
    async fn collector(&self) -> Arc<Collector> {
        self.collector_of(&self.sql, self.settings()).await.expect("it begins")
    }

    async fn collector_of(&self, sql: &Sql, settings: CollectSettings) -> Result<Arc<Collector>> {
        let tables = Tables::open(sql.clone()).await?;
        let event = collected(CHAIN, &settings.contracts, "")?;
        let source = self.source();
        let collector = Collector::new(CHAIN, source, tables, event, settings, "one");
        collector.seed_cursor().await?;
        Ok(Arc::new(collector))
    }

    /// Fees as a scan over all blocks finds them.
    fn expected(&self, range: Range<u64>) -> Vec<Event> {
        let mut found = Vec::new();
        for number in range {
            let block = self.sim.block(number).expect("a block");
            let fees = block.logs().filter(|placed| is_fee(placed.log));
            found.extend(fees.map(|placed| {
                let log = placed.log;
                Event {
                    block: number,
                    log: placed.log_index,
                    hash: placed.transaction_hash,
                    time: block.at.timestamp,
                    integrator: log.topics[2],
                    fee: U256::from_be_slice(&log.data[..32]).to_string(),
                }
            }));
        }
        found
    }

    /// Fees that are stored, as people see them.
    async fn stored(&self) -> Vec<Event> {
        let text =
            "SELECT block_height, event_index, tx_hash, timestamp, integrator, integrator_fee
            FROM fee_events ORDER BY block_height, event_index";
        let found = self.sql.query(text, params![]).await.expect("the view is there");
        let event = |row: &logmill_io::Row| Event {
            block: row.count(0).expect("a height"),
            log: usize::try_from(row.count(1).expect("an index")).expect("small"),
            hash: B256::from_slice(&row.blob(2).expect("a hash")),
            time: row.count(3).expect("a time"),
            integrator: Address::from_slice(&row.blob(4).expect("an address")).into_word(),
            fee: row.amount(5).expect("an amount").to_string(),
        };
        found.rows.iter().map(event).collect()
    }

    fn finalized(&self) -> u64 {
        self.sim.heads().finalized.expect("some are final").number
    }

    /// What is stored is every event of every final block from the start on, once.
    async fn check(&self) {
        let expected = self.expected(1..self.finalized() + 1);
        assert!(expected.len() > 5, "only {} events", expected.len());
        assert_eq!(self.stored().await, expected);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Event {
    block: u64,
    log: usize,
    hash: B256,
    time: u64,
    integrator: B256,
    fee: String,
}

fn is_fee(log: &Log) -> bool {
    log.address == FEE_COLLECTOR && log.topics.first() == Some(&FEES_COLLECTED)
}

impl Collector {
    /// Claims a job, as a runner does; none if none is due.
    async fn next_job(&self) -> Option<Claim> {
        let queue = self.tables.queue();
        let claims = queue.claim(&self.kind(), 1, self.settings.lease, &self.owner).await;
        claims.ok()?.pop()
    }

    /// Does a job and says what came of it, as a runner does.
    async fn work(self: &Arc<Self>, claim: Claim) -> Result<Outcome, Failure> {
        let queue = self.tables.queue();
        let running = Running { claim: claim.clone(), queue: queue.clone() };
        let outcome = Scanner(Arc::clone(self)).run(running).await;
        let told = match &outcome {
            Ok(Outcome::Completed) => Ok(()),
            Ok(Outcome::Done) => queue.complete(&claim).await,
            Err(failure) => {
                let Retry::After(wait) = failure.retry else { panic!("{failure:?}") };
                let error = failure.error.clone();
                queue.fail(&FailedClaim { claim, error, retry_after: Some(wait) }).await
            }
        };
        // A runner tells again later; here the lease ends.
        drop(told);
        outcome
    }

    /// Plans and works until nothing is missing; false if something went wrong on the way.
    async fn catch_up(self: &Arc<Self>) -> bool {
        loop {
            match self.step().await {
                Err(_) => return false,
                Ok(Step::CaughtUp) => return true,
                Ok(Step::Claimed(_) | Step::Busy) => {}
            }
            let Some(claim) = self.next_job().await else { continue };
            if self.work(claim).await.is_err() {
                return false;
            }
        }
    }
}

/// The ranges that are claimed from a start, up to a final block.
async fn claimed(start: u64, batch: u64, finalized: u64) -> Vec<(u64, u64)> {
    let ground = Ground::new(finalized + 5, 5).await;
    let settings = CollectSettings { start, batch, workers: 100, ..ground.settings() };
    let collector = ground.collector_of(&ground.sql, settings).await.expect("it begins");
    let mut claimed = Vec::new();
    loop {
        match collector.step().await.expect("nothing fails") {
            Step::Claimed(range) => claimed.push((range.start, range.end - 1)),
            Step::CaughtUp => return claimed,
            Step::Busy => panic!("one hundred jobs"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_are_claimed_from_the_cursor_to_the_newest_final_block() {
    assert_eq!(claimed(100, 10, 130).await, [(100, 109), (110, 119), (120, 129), (130, 130)]);
    assert_eq!(claimed(100, 10, 105).await, [(100, 105)]);
    assert_eq!(claimed(100, 10, 109).await, [(100, 109)]);
    assert_eq!(claimed(100, 10, 100).await, [(100, 100)], "the newest is not left out");
    assert_eq!(claimed(100, 10, 99).await, []);
    assert_eq!(claimed(100, 10, 50).await, []);
}

#[tokio::test(start_paused = true)]
async fn cursor_and_jobs_are_seen_by_the_names_of_the_seed() {
    let ground = Ground::new(60, 5).await;
    let collector = ground.collector().await;
    let step = collector.step().await.expect("nothing fails");
    assert!(matches!(step, Step::Claimed(range) if range == (1..11)));
    let seen = async |text: &str| {
        let found = ground.sql.query(text, params![]).await.expect("a view");
        found.rows.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>()
    };
    let cursor = "SELECT chain_id, block_number FROM last_block";
    assert_eq!(seen(cursor).await, ["Row([Int(1337), Int(11)])"]);
    let jobs = "SELECT from_block, to_block, status, locked_by, attempts FROM block_jobs";
    let job = |rest: &str| [format!("Row([Int(1), Int(10), {rest}])")];
    assert_eq!(seen(jobs).await, job(r#"Text("pending"), Null, Int(0)"#));
    let claim = collector.next_job().await.expect("it is due");
    assert_eq!(seen(jobs).await, job(r#"Text("processing"), Text("one"), Int(1)"#));
    collector.work(claim).await.expect("nothing fails");
    assert!(seen(jobs).await[0].contains(r#"Text("completed")"#));
    assert_eq!(seen(cursor).await, ["Row([Int(1337), Int(11)])"]);
}

#[tokio::test(start_paused = true)]
async fn every_event_of_final_blocks_is_collected_once() {
    let ground = Ground::new(80, 12).await;
    let collector = ground.collector().await;
    assert!(collector.catch_up().await);
    ground.check().await;
    ground.sim.grow(25);
    ground.clock.sleep(LATER).await;
    assert!(collector.catch_up().await);
    ground.check().await;
    assert!(ground.collector().await.catch_up().await, "another process finds nothing to do");
    ground.check().await;
}

#[tokio::test(start_paused = true)]
async fn reorganizations_above_what_is_final_are_never_seen() {
    let ground = Ground::new(40, 12).await;
    let collector = ground.collector().await;
    for depth in [11, 3, 7, 1, 12] {
        assert!(collector.catch_up().await);
        ground.check().await;
        ground.sim.reorg(depth, depth + 4).expect("above what is final");
        ground.clock.sleep(LATER).await;
    }
    assert!(collector.catch_up().await);
    ground.check().await;
}

#[tokio::test(start_paused = true)]
async fn the_start_is_set_once_and_only_ever_moves_down() {
    let ground = Ground::new(60, 5).await;
    let begin = async |start| {
        let settings = CollectSettings { start, ..ground.settings() };
        ground.collector_of(&ground.sql, settings).await.expect("it begins").start()
    };
    assert_eq!(begin(30).await, 30);
    assert_eq!(begin(50).await, 30, "nothing that was wanted is left out");
    let collector = ground
        .collector_of(&ground.sql, CollectSettings { start: 50, ..ground.settings() })
        .await
        .expect("it begins");
    assert!(collector.catch_up().await);
    assert_eq!(ground.stored().await, ground.expected(30..56));
    assert_eq!(begin(1).await, 1, "older blocks can be asked for");
    assert!(ground.collector().await.catch_up().await);
    ground.check().await;
}

#[tokio::test(start_paused = true)]
async fn the_mode_follows_the_lag_and_waits_follow_the_mode() {
    let ground = Ground::new(100, 5).await;
    let collector = ground.collector().await;
    assert_eq!(collector.mode(), Mode::Historical);
    assert!(matches!(collector.step().await, Ok(Step::Claimed(_))));
    assert_eq!((collector.mode(), collector.poll()), (Mode::Historical, Duration::from_secs(5)));
    assert!(collector.catch_up().await);
    assert_eq!((collector.mode(), collector.poll()), (Mode::Realtime, Duration::from_secs(60)));
    ground.sim.grow(70);
    ground.clock.sleep(LATER).await;
    assert!(matches!(collector.step().await, Ok(Step::Claimed(_))));
    assert_eq!(collector.mode(), Mode::Historical);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_chain_and_a_missing_contract_are_refused() {
    let ground = Ground::new(10, 2).await;
    ground.collector().await.test_connection().await.expect("all is fine");
    let nobody = Address::repeat_byte(7);
    let settings = CollectSettings { contracts: vec![nobody], ..ground.settings() };
    let collector = ground.collector_of(&ground.sql, settings).await.expect("it begins");
    let error = collector.test_connection().await.expect_err("nobody is there").to_string();
    assert!(error.contains("no contract is deployed") && error.contains("0x0707"), "{error}");
    let (tables, event) = (collector.tables.clone(), Arc::clone(&collector.event));
    let other = Collector::new(1, ground.source(), tables, event, ground.settings(), "one");
    let error = other.test_connection().await.expect_err("another chain").to_string();
    assert!(error.contains("of chain 1337, not 1"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn any_event_by_its_signature_has_a_typed_table() {
    let ground = Ground::new(60, 5).await;
    let weth = logmill_chain::sim::WETH;
    let signature = "event Deposit(address indexed dst, uint256 wad)";
    let event = collected(CHAIN, &[weth], signature).expect("a signature");
    let table = event.tables()[0].name;
    let tables = Tables::open(ground.sql.clone()).await.expect("tables");
    let settings = CollectSettings { contracts: vec![weth], ..ground.settings() };
    let collector = Collector::new(CHAIN, ground.source(), tables, event, settings, "one");
    collector.seed_cursor().await.expect("it begins");
    assert!(Arc::new(collector).catch_up().await);
    let topic = logmill_chain::sim::action::DEPOSIT;
    let mut expected = Vec::new();
    for number in 1..56 {
        let block = ground.sim.block(number).expect("a block");
        let wraps = block.logs().filter(|p| p.log.address == weth && p.log.topics[0] == topic);
        expected.extend(wraps.map(|placed| {
            let amount = U256::from_be_slice(&placed.log.data).to_string();
            (number, Address::from_word(placed.log.topics[1]), amount)
        }));
    }
    assert!(expected.len() > 3, "{expected:?}");
    let text =
        format!("SELECT block_height, dst, wad FROM {table} ORDER BY block_height, event_index");
    let found = ground.sql.query(&text, params![]).await.expect("the view is there");
    let found = found.rows.iter().map(|row| {
        let dst = Address::from_slice(&row.blob(1).expect("an address"));
        (row.count(0).expect("a height"), dst, row.amount(2).expect("an amount").to_string())
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
}
