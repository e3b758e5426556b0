//! Usage of replaced blocks: when its correction is announced, and what a recount reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::{Timestamp, params};
use logmill_meter::aggregate::AggregateState::{self, Corrected, Final};
use logmill_meter::chains::relay::{ChainRelay, Step};
use logmill_meter::chains::source::{BlockReplacement, SourceState, UsageSource};
use logmill_meter::chains::usage::{BlockHash, LogUsage, RuleVersion, UsageBlock, UsageId};
use logmill_meter::correct::{Change, Correction};
use logmill_meter::due::SweepScope;
use logmill_meter::recount::chains::{ChainRecount, StoredUsage};
use logmill_meter::{Result, Settings};
use logmill_sim::meter_world::{World, at, body, settings};
use logmill_work::{Heights, IntervalSet};
use serde_json::json;
use tokio::sync::Notify;

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
    follows: bool,
    is_archived: bool,
    pruned_below: u64,
}

fn count(length: usize) -> u64 {
    u64::try_from(length).expect("few")
}

fn place(height: u64) -> usize {
    usize::try_from(height).expect("few")
}

/// A chain, and how many of its replacements this process has read.
#[derive(Clone)]
struct Source(Arc<Mutex<Chain>>, Arc<World>, Arc<AtomicU64>);

impl Source {
    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block in the hour that has ended, and one after it.
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
            follows: true,
            is_archived: false,
            pruned_below: 0,
        };
        Self(Arc::new(Mutex::new(chain)), Arc::clone(world), Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// The same chain in a process that reads no further replacement before it follows.
    fn of_other_process(&self) -> Self {
        let read = AtomicU64::new(self.last_replacement());
        Self(Arc::clone(&self.0), Arc::clone(&self.1), Arc::new(read))
    }

    fn last_replacement(&self) -> u64 {
        count(self.chain().replacements.len()).min(self.2.load(Ordering::SeqCst))
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

    async fn follow(&self) -> Result<()> {
        self.2.store(u64::MAX, Ordering::SeqCst);
        Ok(())
    }

    async fn state(&self) -> Result<Option<SourceState>> {
        let last_replacement = self.last_replacement();
        let chain = self.chain();
        let all: IntervalSet = std::iter::once(0..count(chain.blocks.len())).collect();
        Ok(Some(SourceState {
            generation: chain.generation,
            derived: all.clone(),
            derived_replacement: Some(chain.derived_replacement),
            last_replacement,
            stored: all,
            caught_up: true,
            follows: chain.follows,
            is_archived: chain.is_archived,
            lowest: Some(0),
        }))
    }

    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>> {
        let last = self.last_replacement();
        let all = self.chain().replacements.clone();
        Ok(all.into_iter().filter(|one| one.seq > seq && one.seq <= last).collect())
    }

    async fn replacement_mark(&self, seq: u64) -> Result<Option<u64>> {
        Ok((seq <= self.last_replacement()).then_some(seq + 1))
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
        let chain = self.chain();
        std::iter::once(chain.pruned_below..count(chain.blocks.len())).collect()
    }

    fn pruned_below(&self) -> u64 {
        self.chain().pruned_below
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

/// The hour that has ended: its state, its revision, and the sum.
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
async fn aggregates_wait_for_a_correction_and_are_not_announced_half_way() {
    let world = world(Some(Duration::from_secs(24 * 3_600))).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await, (Final, 1, "7".to_owned()));
    source.falsify(50);
    assert_eq!(relayed(&relay).await, Step::Waiting);
    // An event that makes the hour due meanwhile is not announced with usage that is about to change.
    late(&world).await;
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await, (Final, 1, "7".to_owned()));
    source.derive();
    assert_eq!(relayed(&relay).await, Step::Idle);
    // The correction has enqueued the jobs that follow from it.
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(hour(&world).await, (Corrected, 2, "152".to_owned()));
    // A correction that takes too long is not waited for.
    source.falsify(60);
    assert_eq!(relayed(&relay).await, Step::Waiting);
    let event = json!({"eventType": "api.calls", "customerId": "acme", "value": 1000,
        "timestamp": "2026-01-13T08:50:00Z"});
    world.record(&[event]).await;
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await.1, 2);
    world.set("2026-01-14T09:31:00Z");
    world.sweep(SweepScope::Finished).await;
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
async fn a_recount_finds_usage_that_differs_from_the_blocks() {
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
    // A block that was replaced, before its usage is corrected, and after.
    source.falsify(50);
    check("block 0 0x0101").await;
    check("log 0 of rule fees is recorded with 5 instead of 50").await;
    source.derive();
    relayed(&relay).await;
    assert_eq!(recount(&world, &source).await, right);
    // A block that is no longer stored.
    source.chain().blocks[1].tag = 9;
    let found = recount(&world, &source).await;
    assert_eq!(found.wrong, 2, "{found:?}");
    let said = found.differences.join("\n");
    assert!(said.contains("which is not stored: 0 usage events expected, 1 recorded"), "{said}");
    assert!(said.contains("1 usage events expected, 0 recorded"), "{said}");
    source.chain().blocks[1].tag = 2;
    // Falsified, at another time, and missing.
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
    // A correction by an operator is not a difference.
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
async fn usage_of_a_former_rule_is_kept_and_counted_separately() {
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
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await.2, "7");
}

/// Usage recorded before the ledger existed is found again by its id, and enters the ledger.
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
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await.2, "52");
    assert_eq!(recount(&world, &source).await.wrong, 0);
}

/// The source of a relay that pauses when it looks for a block that is gone, until it is resumed.
struct PausingSource {
    source: Source,
    /// The state before the blocks came back.
    seen: SourceState,
    paused: Notify,
    resumed: Notify,
}

#[async_trait]
impl UsageSource for &PausingSource {
    fn chain_id(&self) -> u64 {
        CHAIN
    }

    fn rules(&self) -> Vec<RuleVersion> {
        UsageSource::rules(&self.source)
    }

    async fn state(&self) -> Result<Option<SourceState>> {
        Ok(Some(self.seen.clone()))
    }

    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>> {
        self.source.replacements_after(seq).await
    }

    async fn replacement_mark(&self, seq: u64) -> Result<Option<u64>> {
        self.source.replacement_mark(seq).await
    }

    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>> {
        self.source.usage(generation, range).await
    }

    async fn block_hash(&self, _: u64) -> Result<Option<BlockHash>> {
        self.paused.notify_one();
        self.resumed.notified().await;
        Ok(None)
    }

    async fn block_time(&self, height: u64) -> Result<Option<Timestamp>> {
        self.source.block_time(height).await
    }
}

/// Relay A sees blocks gone; before it cancels their usage, the same blocks are stored again and relay B confirms
/// their usage. This changes neither the ledger nor the version of the state.
#[tokio::test(start_paused = true)]
async fn usage_that_one_relay_has_just_confirmed_is_not_cancelled_by_another() {
    let world = world(None).await;
    let source = Source::new(&world);
    let other = ChainRelay::new(world.meter.clone(), source.clone());
    relayed(&other).await;
    // Blocks 1 and 2 are removed.
    let removed = source.chain().blocks.split_off(1);
    source.chain().replacements.push(BlockReplacement {
        seq: 1,
        blocks: 1..3,
        reason: "rebuild".to_owned(),
    });
    source.derive();
    let seen = source.state().await.expect("a state").expect("it is derived");
    let pausing = PausingSource {
        source: source.clone(),
        seen,
        paused: Notify::new(),
        resumed: Notify::new(),
    };
    let relay = ChainRelay::new(world.meter.clone(), &pausing);
    // It begins the replacement, and reconciles the rows that are derived again.
    let cancelling = async {
        loop {
            if let Step::Progressed(delta) = relay.step().await.expect("a step")
                && pausing.source.chain().blocks.len() == 3
            {
                return delta;
            }
        }
    };
    let restoring = async {
        pausing.paused.notified().await;
        source.chain().blocks.extend(removed);
        source.derive();
        let generation = source.chain().generation;
        // One step before the end: the replacement is not finished, so its version stays.
        assert!(matches!(other.step().await.expect("a step"), Step::Progressed(_)), "{generation}");
        pausing.resumed.notify_one();
    };
    let (delta, ()) = tokio::join!(cancelling, restoring);
    assert_eq!(delta.cancelled, 0, "it was confirmed meanwhile");
    relayed(&other).await;
    assert_eq!(recount(&world, &source).await.wrong, 0);
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await.2, "7");
}

#[tokio::test(start_paused = true)]
async fn a_start_without_nodes_does_not_end_the_wait_for_a_chain() {
    let world = world(Some(Duration::from_secs(24 * 3_600))).await;
    world.set("2026-01-13T11:30:00Z");
    let source = Source::new(&world);
    {
        let mut chain = source.chain();
        chain.blocks[2].value = Some(3);
        chain.rows = chain.blocks.clone();
        chain.follows = false;
    }
    let hour = async || {
        world.sweep(SweepScope::Finished).await;
        let hours = world.aggregates("hourly").await;
        hours.iter().find(|hour| hour.start == at("2026-01-13T09:00:00Z")).map(|hour| hour.state)
    };
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    // The newest block is in this hour: more of it may come once there is a node.
    assert_ne!(hour().await, Some(Final));
    // A database of an earlier version, which took such a chain for complete.
    world.meter.chain_is_complete(CHAIN, Timestamp(i64::MAX)).await.expect("it is noted");
    source.chain().follows = true;
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    assert_ne!(hour().await, Some(Final));
    // Nothing is waited for if the operator declared that no more blocks will come.
    source.chain().follows = false;
    source.chain().is_archived = true;
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    assert_eq!(hour().await, Some(Final));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_not_read_the_newest_replacement_does_not_take_the_log_for_another() {
    let world = world(None).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    let other = ChainRelay::new(world.meter.clone(), source.of_other_process());
    source.falsify(50);
    // Noted once, applied once.
    assert_eq!(relayed(&relay).await, Step::Waiting);
    let noted = world.meter.recorded_coverage(CHAIN).await.expect("a state").state;
    relayed(&other).await;
    let state = world.meter.recorded_coverage(CHAIN).await.expect("a state").state;
    assert_eq!((state.log, state.applied), (noted.log, noted.applied));
    source.derive();
    assert_eq!(relayed(&relay).await, Step::Idle);
    let applied = world.meter.recorded_coverage(CHAIN).await.expect("a state").state;
    assert_eq!(applied.applied, 1);
    let other = source.of_other_process();
    other.2.store(0, Ordering::SeqCst);
    let other = ChainRelay::new(world.meter.clone(), other);
    assert_eq!(relayed(&other).await, Step::Idle);
    let state = world.meter.recorded_coverage(CHAIN).await.expect("a state").state;
    assert_eq!(state, applied, "the log is the same");
    assert_eq!(recount(&world, &source).await.wrong, 0);
}

#[tokio::test(start_paused = true)]
async fn a_recount_does_not_compare_usage_of_pruned_blocks() {
    let world = world(None).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    assert_eq!(relayed(&relay).await, Step::Idle);
    source.chain().pruned_below = 1;
    let found = recount(&world, &source).await;
    assert_eq!((found.wrong, found.unchecked), (0, 1), "{found:?}");
    // Blocks above are still compared.
    change(&world, "UPDATE meter_event SET amount = '3', checks = NULL WHERE id LIKE '5:0x0202%'")
        .await;
    let found = recount(&world, &source).await;
    assert_eq!((found.wrong, found.unchecked), (1, 1), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_chain_that_was_marked_as_lost_is_recorded_again() {
    let world = world(None).await;
    let source = Source::new(&world);
    let relay = ChainRelay::new(world.meter.clone(), source.clone());
    relayed(&relay).await;
    change(&world, "UPDATE meter_event SET amount = '3' WHERE id LIKE '5:0x0202%'").await;
    let text = "SELECT seq FROM meter_event WHERE id LIKE '5:0x0202%'";
    let found = world.meter.sql().query(text, params![]).await.expect("it is there");
    let seq = found.row().expect("one").int(0).expect("a number");
    world.meter.mark_lost(&[seq].into(), "a test", "ops").await.expect("it is damaged");
    assert_eq!(recount(&world, &source).await.wrong, 0, "it is not relayed now, and missing");
    assert_eq!(relayed(&relay).await, Step::Idle);
    let found = recount(&world, &source).await;
    assert_eq!((found.wrong, found.events), (0, 2), "{found:?}");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hour(&world).await.2, "7");
    // Only once.
    assert_eq!(relayed(&relay).await, Step::Idle);
    assert_eq!(world.recounted().await, 2);
}
