//! Tests of the collector over a simulated chain with known events: planning, storing, crashes.

mod crash_matrix;
mod traps;

use std::ops::Range;

use alloy_primitives::{B256, U256};
use logmill_chain::Log;
use logmill_chain::evm::{EvmSettings, EvmSource, NodeConnections, NodeSettings};
use logmill_chain::sim::rpc::{NodeFaults, SimNode};
use logmill_chain::sim::{FEE_COLLECTOR, Shape, SimChain, SimSettings};
use logmill_io::sql::SqliteSettings;
use logmill_io::wire::Endpoint;
use logmill_io::{Clock, SeededEntropy, SimClock, Sql, Timestamp, params};
use logmill_work::queue::FailedClaim;
use logmill_work::{Claim, Failure, Handler, Outcome, Retry, RunningJob};

use super::event::event_processor;
use super::plan::PlanOutcome;
use super::*;
use crate::processors::fees::FEES_COLLECTED;

/// Id of the simulated chain.
const CHAIN: u64 = 1_337;
/// Longer than any lease and any wait.
const LATER: Duration = Duration::from_secs(3_600);

/// A chain, a node of it, and a database that outlives processes.
struct Fixture {
    sim: SimChain,
    node: SimNode,
    clock: Arc<SimClock>,
    sql: Sql,
    confirmations: Option<u64>,
}

impl Fixture {
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

    /// A new database for an existing chain.
    async fn on(sim: SimChain) -> Self {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let shared: Arc<dyn Clock> = clock.clone();
        let entropy = SeededEntropy::shared(11);
        let sql = Sql::sqlite(&SqliteSettings::memory(), shared, entropy).await;
        let node = SimNode::new(sim.clone());
        let sql = sql.expect("a database");
        Self { sim, node, clock, sql, confirmations: None }
    }

    fn source(&self) -> Arc<dyn NodeSource> {
        let address = Endpoint::parse("http://node.example").expect("fine");
        let reach = NodeConnections { wire: Arc::new(self.node.clone()), feed: None };
        let settings = EvmSettings {
            chain_id: Some(CHAIN),
            confirmations: self.confirmations,
            ..EvmSettings::new("sim")
        };
        let nodes = vec![(NodeSettings::new(address), reach)];
        let (clock, entropy) = (self.clock.clone(), SeededEntropy::shared(3));
        Arc::new(EvmSource::with_connections(nodes, settings, clock, &entropy).expect("fine"))
    }

    fn settings(&self) -> CollectSettings {
        CollectSettings {
            contracts: vec![FEE_COLLECTOR],
            start: 1,
            batch: 10,
            ..CollectSettings::default()
        }
    }

    /// A started collector of fees, as another process would start it.
    async fn collector(&self) -> Arc<Collector> {
        self.collector_of(&self.sql, self.settings()).await.expect("it begins")
    }

    async fn collector_of(&self, sql: &Sql, settings: CollectSettings) -> Result<Arc<Collector>> {
        let tables = Tables::open(sql.clone()).await?;
        let event = event_processor(CHAIN, &settings.contracts, "")?;
        let source = self.source();
        let collector = Collector::new(CHAIN, source, tables, event, settings, "one");
        collector.seed_cursor().await?;
        Ok(Arc::new(collector))
    }

    /// Fees found by a scan over all blocks.
    fn expected(&self, range: Range<u64>) -> Vec<FeeRow> {
        let mut found = Vec::new();
        for number in range {
            let block = self.sim.block(number).expect("a block");
            let fees = block.logs().filter(|placed| is_fee(placed.log));
            found.extend(fees.map(|placed| {
                let log = placed.log;
                FeeRow {
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

    /// Stored fees, read as a user would.
    async fn stored(&self) -> Vec<FeeRow> {
        let text =
            "SELECT block_height, event_index, tx_hash, timestamp, integrator, integrator_fee
            FROM fee_events ORDER BY block_height, event_index";
        let found = self.sql.query(text, params![]).await.expect("the view is there");
        let event = |row: &logmill_io::Row| FeeRow {
            block: row.count(0).expect("a height"),
            log: usize::try_from(row.count(1).expect("an index")).expect("small"),
            hash: row.text(2).expect("a hash").parse().expect("hex"),
            time: row.count(3).expect("a time"),
            integrator: row.text(4).expect("text").parse::<Address>().expect("hex").into_word(),
            fee: row.text(5).expect("an amount").to_owned(),
        };
        found.rows.iter().map(event).collect()
    }

    fn finalized(&self) -> u64 {
        self.sim.heads().finalized.expect("some are final").number
    }

    /// Checks that every event of every final block from the start on is stored once.
    async fn check(&self) {
        let expected = self.expected(1..self.finalized() + 1);
        assert!(expected.len() > 5, "only {} events", expected.len());
        assert_eq!(self.stored().await, expected);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct FeeRow {
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
    /// Claims a due job, if there is one, as a runner does.
    async fn next_job(&self) -> Option<Claim> {
        let queue = self.tables.queue();
        let claims = queue.claim(&self.kind(), 1, self.settings.lease, &self.owner).await;
        claims.ok()?.pop()
    }

    /// Runs a job and reports its outcome, as a runner does.
    async fn work(self: &Arc<Self>, claim: Claim) -> Result<Outcome, Failure> {
        let queue = self.tables.queue();
        let running = RunningJob { claim: claim.clone(), queue: queue.clone() };
        let outcome = Scanner(Arc::clone(self)).run(running).await;
        let reported = match &outcome {
            Ok(Outcome::Completed) => Ok(()),
            Ok(Outcome::Done) => queue.complete(&claim).await,
            Err(failure) => {
                let Retry::After(wait) = failure.retry else { panic!("{failure:?}") };
                let error = failure.error.clone();
                queue.fail(&FailedClaim { claim, error, retry_after: Some(wait) }).await
            }
        };
        // A runner would report again later; here the lease ends.
        drop(reported);
        outcome
    }

    /// Plans and works until nothing is missing; false if an error occurred.
    async fn catch_up(self: &Arc<Self>) -> bool {
        loop {
            match self.step().await {
                Err(_) => return false,
                Ok(PlanOutcome::CaughtUp) => return true,
                Ok(PlanOutcome::Claimed(_) | PlanOutcome::Busy) => {}
            }
            let Some(claim) = self.next_job().await else { continue };
            if self.work(claim).await.is_err() {
                return false;
            }
        }
    }
}

/// The ranges claimed from a start up to a final block.
async fn claimed(start: u64, batch: u64, finalized: u64) -> Vec<(u64, u64)> {
    let fixture = Fixture::new(finalized + 5, 5).await;
    let settings = CollectSettings { start, batch, workers: 100, ..fixture.settings() };
    let collector = fixture.collector_of(&fixture.sql, settings).await.expect("it begins");
    let mut claimed = Vec::new();
    loop {
        match collector.step().await.expect("nothing fails") {
            PlanOutcome::Claimed(range) => claimed.push((range.start, range.end - 1)),
            PlanOutcome::CaughtUp => return claimed,
            PlanOutcome::Busy => panic!("one hundred jobs"),
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
async fn cursor_and_jobs_have_views_with_the_names_of_the_seed() {
    let fixture = Fixture::new(60, 5).await;
    let collector = fixture.collector().await;
    let step = collector.step().await.expect("nothing fails");
    assert!(matches!(step, PlanOutcome::Claimed(range) if range == (1..11)));
    let seen = async |text: &str| {
        let found = fixture.sql.query(text, params![]).await.expect("a view");
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
    let fixture = Fixture::new(80, 12).await;
    let collector = fixture.collector().await;
    assert!(collector.catch_up().await);
    fixture.check().await;
    fixture.sim.grow(25);
    fixture.clock.sleep(LATER).await;
    assert!(collector.catch_up().await);
    fixture.check().await;
    assert!(fixture.collector().await.catch_up().await, "another process finds nothing to do");
    fixture.check().await;
}

#[tokio::test(start_paused = true)]
async fn reorganizations_above_the_finalized_head_are_never_seen() {
    let fixture = Fixture::new(40, 12).await;
    let collector = fixture.collector().await;
    for depth in [11, 3, 7, 1, 12] {
        assert!(collector.catch_up().await);
        fixture.check().await;
        fixture.sim.reorg(depth, depth + 4).expect("above what is final");
        fixture.clock.sleep(LATER).await;
    }
    assert!(collector.catch_up().await);
    fixture.check().await;
}

#[tokio::test(start_paused = true)]
async fn the_start_is_set_once_and_only_ever_moves_down() {
    let fixture = Fixture::new(60, 5).await;
    let begin = async |start| {
        let settings = CollectSettings { start, ..fixture.settings() };
        fixture.collector_of(&fixture.sql, settings).await.expect("it begins").start()
    };
    assert_eq!(begin(30).await, 30);
    assert_eq!(begin(50).await, 30, "no requested block is left out");
    let collector = fixture
        .collector_of(&fixture.sql, CollectSettings { start: 50, ..fixture.settings() })
        .await
        .expect("it begins");
    assert!(collector.catch_up().await);
    assert_eq!(fixture.stored().await, fixture.expected(30..56));
    assert_eq!(begin(1).await, 1, "older blocks can be requested");
    assert!(fixture.collector().await.catch_up().await);
    fixture.check().await;
}

#[tokio::test(start_paused = true)]
async fn the_mode_follows_the_lag_and_waits_follow_the_mode() {
    let fixture = Fixture::new(100, 5).await;
    let collector = fixture.collector().await;
    assert_eq!(collector.mode(), Mode::Historical);
    assert!(matches!(collector.step().await, Ok(PlanOutcome::Claimed(_))));
    assert_eq!((collector.mode(), collector.poll()), (Mode::Historical, Duration::from_secs(5)));
    assert!(collector.catch_up().await);
    assert_eq!((collector.mode(), collector.poll()), (Mode::Realtime, Duration::from_secs(60)));
    fixture.sim.grow(70);
    fixture.clock.sleep(LATER).await;
    assert!(matches!(collector.step().await, Ok(PlanOutcome::Claimed(_))));
    assert_eq!(collector.mode(), Mode::Historical);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_chain_and_a_missing_contract_are_refused() {
    let fixture = Fixture::new(10, 2).await;
    fixture.collector().await.test_connection().await.expect("all is fine");
    let empty = Address::repeat_byte(7);
    let settings = CollectSettings { contracts: vec![empty], ..fixture.settings() };
    let collector = fixture.collector_of(&fixture.sql, settings).await.expect("it begins");
    let error =
        collector.test_connection().await.expect_err("no contract is deployed there").to_string();
    assert!(error.contains("no contract deployed") && error.contains("0x0707"), "{error}");
    let (tables, event) = (collector.tables.clone(), Arc::clone(&collector.event));
    let other = Collector::new(1, fixture.source(), tables, event, fixture.settings(), "one");
    let error = other.test_connection().await.expect_err("another chain").to_string();
    assert!(
        error.contains("wrong RPC chain id") && error.contains("serves chain 1337, not 1"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn any_event_by_its_signature_has_a_typed_table() {
    let fixture = Fixture::new(60, 5).await;
    let weth = logmill_chain::sim::WETH;
    let signature = "event Deposit(address indexed dst, uint256 wad)";
    let event = event_processor(CHAIN, &[weth], signature).expect("a signature");
    let table = event.tables()[0].name;
    let tables = Tables::open(fixture.sql.clone()).await.expect("tables");
    let settings = CollectSettings { contracts: vec![weth], ..fixture.settings() };
    let collector = Collector::new(CHAIN, fixture.source(), tables, event, settings, "one");
    collector.seed_cursor().await.expect("it begins");
    assert!(Arc::new(collector).catch_up().await);
    let topic = logmill_chain::sim::action::DEPOSIT;
    let mut expected = Vec::new();
    for number in 1..56 {
        let block = fixture.sim.block(number).expect("a block");
        let wraps = block.logs().filter(|p| p.log.address == weth && p.log.topics[0] == topic);
        expected.extend(wraps.map(|placed| {
            let amount = U256::from_be_slice(&placed.log.data).to_string();
            (number, Address::from_word(placed.log.topics[1]), amount)
        }));
    }
    assert!(expected.len() > 3, "{expected:?}");
    let text =
        format!("SELECT block_height, dst, wad FROM {table} ORDER BY block_height, event_index");
    let found = fixture.sql.query(&text, params![]).await.expect("the view is there");
    let found = found.rows.iter().map(|row| {
        let dst: Address = row.text(1).expect("an address").parse().expect("hex");
        (row.count(0).expect("a height"), dst, row.text(2).expect("an amount").to_owned())
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
}
