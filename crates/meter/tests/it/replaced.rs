//! Usage of replaced blocks: when its correction is announced, and what a recount says of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::{Timestamp, params};
use logmill_meter::aggregate::AggregateState::{self, Corrected, Final};
use logmill_meter::chains::relay::{ChainRelay, Step};
use logmill_meter::chains::source::{BlockReplacement, SourceState, UsageSource};
use logmill_meter::chains::usage::{BlockHash, LogUsage, RuleVersion, UsageBlock, UsageId};
use logmill_meter::correct::{Change, Correction};
use logmill_meter::due::Which;
use logmill_meter::recount::chains::{ChainRecount, StoredUsage};
use logmill_meter::{Result, Settings};
use logmill_work::{Heights, IntervalSet};
use serde_json::json;

use crate::fixture::{World, at, body, settings};

const CHAIN: u64 = 5;

/// A block: its tag, its time, and the value of its only usage, if it has any.
#[derive(Clone, Debug)]
struct Block {
    tag: u8,
    time: Timestamp,
    value: Option<i64>,
}

#[derive(Debug)]
struct Chain {
    blocks: Vec<Block>,
    rows: Vec<Block>,
    generation: u32,
    derived_replacement: u64,
    replacements: Vec<BlockReplacement>,
    rule: RuleVersion,
}

fn count(length: usize) -> u64 {
    u64::try_from(length).expect("few")
}

fn place(height: u64) -> usize {
    usize::try_from(height).expect("few")
}

#[derive(Clone)]
struct Source(Arc<Mutex<Chain>>, Arc<World>);

impl Source {
    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block in the hour that is over, and one after it.
    fn new(world: &Arc<World>) -> Self {
        let block = |tag, time, value| Block { tag, time: at(time), value };
        let blocks = vec![
            block(1, "2026-01-13T08:10:00Z", Some(5)),
            block(2, "2026-01-13T08:20:00Z", Some(2)),
            block(3, "2026-01-13T09:10:00Z", None),
        ];
        let rule = RuleVersion { name: "fees".to_owned(), definition: 1 };
        let chain = Chain {
            rows: blocks.clone(),
            blocks,
            generation: 1,
            derived_replacement: 0,
            replacements: Vec::new(),
            rule,
        };
        Self(Arc::new(Mutex::new(chain)), Arc::clone(world))
    }

    /// Gives the first block another value under the same hash.
    fn falsify(&self, value: i64) {
        let mut chain = self.chain();
        chain.blocks[0].value = Some(value);
        let seq = count(chain.replacements.len()) + 1;
        chain.replacements.push(BlockReplacement {
            seq,
            blocks: 0..1,
            reason: "repair".to_owned(),
        });
    }

    fn derive(&self) {
        let mut chain = self.chain();
        chain.rows = chain.blocks.clone();
        chain.generation += 1;
        chain.derived_replacement = count(chain.replacements.len());
    }

    fn usage_of(&self, height: u64, block: &Block) -> UsageBlock {
        let (hash, log, rule) = ([block.tag; 32], 0, "fees".to_owned());
        let usage = block.value.map(|value| {
            let id = UsageId { chain: CHAIN, hash, log, rule: rule.clone(), revision: 1 };
            let event = self.1.event(&json!({
                "eventType": "api.calls", "customerId": "acme", "value": value,
                "id": id.to_string(), "source": UsageId::source(CHAIN),
                "timestamp": block.time.millis().to_string(),
            }));
            LogUsage { log, rule: rule.clone(), event }
        });
        UsageBlock { height, hash, usage: usage.into_iter().collect() }
    }
}

#[async_trait]
impl UsageSource for Source {
    fn chain_id(&self) -> u64 {
        CHAIN
    }

    fn rules(&self) -> Vec<RuleVersion> {
        vec![self.chain().rule.clone()]
    }

    async fn state(&self) -> Result<Option<SourceState>> {
        let chain = self.chain();
        let all: IntervalSet = std::iter::once(0..count(chain.blocks.len())).collect();
        Ok(Some(SourceState {
            generation: chain.generation,
            derived: all.clone(),
            derived_replacement: chain.derived_replacement,
            last_replacement: count(chain.replacements.len()),
            stored: all,
            caught_up: true,
            follows: true,
            lowest: Some(0),
        }))
    }

    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>> {
        let all = self.chain().replacements.clone();
        Ok(all.into_iter().filter(|one| one.seq > seq).collect())
    }

    async fn usage(&self, _: u32, range: &Heights) -> Result<Vec<UsageBlock>> {
        let rows = self.chain().rows.clone();
        let blocks = (0..)
            .zip(&rows)
            .filter(|(height, block)| range.contains(height) && block.value.is_some());
        Ok(blocks.map(|(height, block)| self.usage_of(height, block)).collect())
    }

    async fn block_hash(&self, height: u64) -> Result<Option<BlockHash>> {
        Ok(self.chain().blocks.get(place(height)).map(|block| [block.tag; 32]))
    }

    async fn block_time(&self, height: u64) -> Result<Option<Timestamp>> {
        Ok(self.chain().blocks.get(place(height)).map(|block| block.time))
    }
}

#[async_trait]
impl StoredUsage for Source {
    fn chain_id(&self) -> u64 {
        CHAIN
    }

    fn rules(&self) -> Vec<RuleVersion> {
        UsageSource::rules(self)
    }

    fn stored(&self) -> IntervalSet {
        std::iter::once(0..count(self.chain().blocks.len())).collect()
    }

    async fn blocks(&self, range: &Heights) -> Result<Vec<(UsageBlock, i64)>> {
        let blocks = self.chain().blocks.clone();
        let blocks = (0..).zip(&blocks).filter(|(height, _)| range.contains(height));
        let read = blocks.map(|(at, block)| (self.usage_of(at, block), block.time.millis()));
        Ok(read.collect())
    }
}

async fn world(wait: Option<Duration>) -> Arc<World> {
    let chain_types = [("api.calls".to_owned(), vec![CHAIN])].into();
    let settings = Settings { chain_types, chain_wait: wait, ..settings() };
    let world = World::new("2026-01-13T09:30:00Z", settings).await;
    Arc::new(world)
}

async fn relayed(relay: &ChainRelay<Source>) -> Step {
    loop {
        let step = relay.step().await.expect("a step");
        if matches!(step, Step::Idle | Step::Waiting) {
            return step;
        }
    }
}

/// The hour that is over: its state, its revision, and the sum.
async fn hour(world: &World) -> (AggregateState, i64, String) {
    let hours = world.aggregates("hourly").await;
    let hour = hours.iter().find(|hour| hour.start == at("2026-01-13T08:00:00Z"));
    let hour = hour.expect("it has usage");
    let sum = body(hour)["eventsExact"]["api.calls"].as_str().unwrap_or_default().to_owned();
    (hour.state, hour.revision, sum)
}

async fn late(world: &World) {
    let event = json!({"eventType": "api.calls", "customerId": "acme", "value": 100,
        "timestamp": "2026-01-13T08:40:00Z"});
    world.record(&[event]).await;
}

#[tokio::test(start_paused = true)]
async fn a_correction_is_waited_for_and_not_announced_half_way() {
    let world = world(Some(Duration::from_secs(24 * 3_600))).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    world.sweep(Which::Finished).await;
    assert_eq!(hour(&world).await, (Final, 1, "7".to_owned()));
    source.falsify(50);
    assert_eq!(relayed(&relay).await, Step::Waiting);
    // What makes the hour due meanwhile is not announced with usage that is about to change.
    late(&world).await;
    world.sweep(Which::Finished).await;
    assert_eq!(hour(&world).await, (Final, 1, "7".to_owned()));
    source.derive();
    assert_eq!(relayed(&relay).await, Step::Idle);
    // The correction has enqueued what follows from it.
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(hour(&world).await, (Corrected, 2, "152".to_owned()));
    // One that takes too long is not waited for.
    source.falsify(60);
    assert_eq!(relayed(&relay).await, Step::Waiting);
    let event = json!({"eventType": "api.calls", "customerId": "acme", "value": 1000,
        "timestamp": "2026-01-13T08:50:00Z"});
    world.record(&[event]).await;
    world.sweep(Which::Finished).await;
    assert_eq!(hour(&world).await.1, 2);
    world.set("2026-01-14T09:31:00Z");
    world.sweep(Which::Finished).await;
    assert_eq!(hour(&world).await, (Corrected, 3, "1152".to_owned()));
    assert_eq!(world.recounted().await, 5);
}

async fn recount(world: &World, source: &Source) -> ChainRecount {
    let chains: [&dyn StoredUsage; 1] = [source];
    let recounted = world.meter.recount_with(false, &chains, |_| {}).await.expect("a recount");
    recounted.chains
}

async fn change(world: &World, text: &'static str) {
    use logmill_io::sql::Execute as _;
    let changed = world.meter.sql().write(|tx| async move { tx.execute(text, params![]).await });
    assert_eq!(changed.await.expect("it is changed").changed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_recount_finds_usage_that_is_not_what_the_blocks_say() {
    let world = world(None).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    relayed(&relay).await;
    let right = ChainRecount { blocks: 3, events: 2, ..ChainRecount::default() };
    assert_eq!(recount(&world, &source).await, right);
    let check = async |said: &str| {
        let found = recount(&world, &source).await;
        assert_eq!(found.wrong, 1, "{found:?}");
        assert!(found.differences[0].contains(said), "{found:?}");
    };
    // A block that was replaced, before usage follows, and after.
    source.falsify(50);
    check("block 0 0x0101").await;
    check("log 0 of rule fees is recorded with 5 instead of 50").await;
    source.derive();
    relayed(&relay).await;
    assert_eq!(recount(&world, &source).await, right);
    // A block that is not stored any more.
    source.chain().blocks[1].tag = 9;
    let found = recount(&world, &source).await;
    assert_eq!(found.wrong, 2, "{found:?}");
    let said = found.differences.join("\n");
    assert!(said.contains("which is not stored: 0 usage events expected, 1 recorded"), "{said}");
    assert!(said.contains("1 usage events expected, 0 recorded"), "{said}");
    source.chain().blocks[1].tag = 2;
    // Falsified, for another time, and missing.
    change(&world, "UPDATE meter_event SET amount = '3', checks = NULL WHERE id LIKE '5:0x0202%'")
        .await;
    check("is recorded with 3 instead of 2").await;
    change(
        &world,
        "UPDATE meter_event SET amount = '2', time_ms = time_ms + 1, checks = NULL WHERE id LIKE '5:0x0202%'",
    )
    .await;
    check("is recorded at another time").await;
    change(
        &world,
        "UPDATE meter_event SET time_ms = time_ms - 1, checks = NULL WHERE id LIKE '5:0x0202%'",
    )
    .await;
    assert_eq!(recount(&world, &source).await, right);
    // What an operator does is no difference.
    let id = UsageId { chain: CHAIN, hash: [2; 32], log: 0, rule: "fees".to_owned(), revision: 1 };
    for change in [Change::Amend(logmill_meter::Decimal::from_integer(4)), Change::Cancel] {
        let correction = Correction {
            source: UsageId::source(CHAIN),
            id: id.to_string(),
            change,
            reason: "a test".to_owned(),
            actor: "ops".to_owned(),
        };
        world.meter.correct(&correction).await.expect("it is corrected");
        assert_eq!(recount(&world, &source).await.wrong, 0);
    }
    change(&world, "DELETE FROM meter_event WHERE id LIKE '5:0x0202%'").await;
    check("is not recorded: 2 of acme").await;
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_former_rule_is_kept_and_told_apart() {
    let world = world(None).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    relayed(&relay).await;
    {
        // The rule is changed, and finds another value.
        let mut chain = source.chain();
        chain.rule.definition = 2;
        chain.blocks[0].value = Some(8);
    }
    source.derive();
    relayed(&relay).await;
    let found = recount(&world, &source).await;
    assert_eq!((found.wrong, found.former), (0, 1), "{found:?}");
    world.sweep(Which::Finished).await;
    assert_eq!(hour(&world).await.2, "7");
}

/// What was recorded before there was a ledger is found again by its id, and enters the ledger.
#[tokio::test(start_paused = true)]
async fn usage_from_before_the_ledger_counts_once_and_is_corrected_later() {
    let world = world(None).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    relayed(&relay).await;
    use logmill_io::sql::Execute as _;
    for text in
        ["DELETE FROM meter_chain_block", "DELETE FROM coverage", "DELETE FROM meter_chain_rule"]
    {
        let write = world.meter.sql().write(|tx| async move { tx.execute(text, params![]).await });
        write.await.expect("it is forgotten");
    }
    relayed(&relay).await;
    assert_eq!(world.recounted().await, 2);
    source.falsify(50);
    source.derive();
    relayed(&relay).await;
    world.sweep(Which::Finished).await;
    assert_eq!(hour(&world).await.2, "52");
    assert_eq!(recount(&world, &source).await.wrong, 0);
}
