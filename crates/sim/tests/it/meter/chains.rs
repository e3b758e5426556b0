//! Usage of a chain whose stored blocks are replaced: whatever is replaced, derived again, archived, killed and
//! restarted, in the end the recorded usage is that of the stored blocks, and nothing was announced that was never
//! true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use logmill_io::{BlobStore, Fault, Faults, Timestamp, params};
use logmill_meter::chains::relay::{ChainRelay, Step};
use logmill_meter::chains::source::{BlockReplacement, SourceState, UsageSource};
use logmill_meter::chains::usage::{BlockHash, LogUsage, RuleVersion, UsageBlock, UsageId};
use logmill_meter::period::PeriodKind;
use logmill_meter::{Meter, Result, Settings};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::{Heights, Queue};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{LEASE, aggregate, aggregates, blobs, event, open_with, settings};
use crate::work::{in_real_time, simulate};

const CHAIN: u64 = 5;
const START: i64 = 1_774_656_000_000;
/// Four blocks a day.
const BLOCK_MS: i64 = 6 * 3_600_000;
const RULES: [&str; 2] = ["fees", "calls"];
const FAULTS: [Fault; 4] = [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter];

/// A block: what it is called, and its usage as (rule, customer, value), by log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    hash: u8,
    logs: Vec<(usize, u8, i64)>,
}

#[derive(Clone, Debug)]
enum Act {
    /// Blocks are stored on top, and derived by the generation that serves.
    Grow(Vec<Block>),
    /// All blocks from a height on are removed.
    Remove(u64),
    /// So many of the removed blocks come back as they were.
    BringBack(usize),
    /// A block gets other content under the same hash.
    Falsify(u64, Vec<(usize, u8, i64)>),
    /// A new generation of rows serves, of what is stored now.
    Derive,
    /// Whether the chain is caught up with.
    CaughtUp(bool),
    /// At most so many steps of the relay.
    Relay(usize),
    Aggregate,
    KeepHouse,
    Restart,
}

#[derive(Debug, Default)]
struct Chain {
    blocks: Vec<Block>,
    removed: Vec<Block>,
    replacements: Vec<BlockReplacement>,
    /// The rows of every generation, and the replacement that each reflects; the last one serves.
    generations: Vec<(BTreeMap<u64, Block>, u64)>,
    caught_up: bool,
}

impl Chain {
    fn replaced(&mut self, blocks: Heights) {
        let seq = self.last_replacement() + 1;
        if !blocks.is_empty() {
            self.replacements.push(BlockReplacement { seq, blocks, reason: "a test".to_owned() });
        }
    }

    fn last_replacement(&self) -> u64 {
        self.replacements.last().map_or(0, |last| last.seq)
    }

    fn grow(&mut self, block: Block) {
        let height = u64::try_from(self.blocks.len()).expect("few");
        // What a generation has derived it does not derive again, also if the block was replaced.
        if let Some((rows, _)) = self.generations.last_mut() {
            rows.entry(height).or_insert_with(|| block.clone());
        }
        self.blocks.push(block);
    }

    fn act(&mut self, act: &Act) {
        let length = u64::try_from(self.blocks.len()).expect("few");
        match act {
            Act::Grow(blocks) => blocks.iter().for_each(|block| self.grow(block.clone())),
            Act::Remove(from) => {
                let from = (*from).min(length);
                self.replaced(from..length);
                self.removed = self.blocks.split_off(usize::try_from(from).expect("few"));
            }
            Act::BringBack(most) => {
                let most = (*most).min(self.removed.len());
                let back: Vec<Block> = self.removed.drain(..most).collect();
                back.into_iter().for_each(|block| self.grow(block));
            }
            Act::Falsify(height, logs) if *height < length => {
                self.blocks[usize::try_from(*height).expect("few")].logs.clone_from(logs);
                self.replaced(*height..height + 1);
            }
            Act::Derive => {
                let rows = (0..).zip(self.blocks.iter().cloned()).collect();
                self.generations.push((rows, self.last_replacement()));
            }
            Act::CaughtUp(caught_up) => self.caught_up = *caught_up,
            _ => {}
        }
    }
}

fn hash(height: u64, block: &Block) -> BlockHash {
    let mut hash = [block.hash; 32];
    hash[..8].copy_from_slice(&height.to_be_bytes());
    hash
}

fn time(height: u64) -> Timestamp {
    Timestamp(START + i64::try_from(height).expect("low") * BLOCK_MS)
}

fn usage(height: u64, block: &Block) -> UsageBlock {
    let usage = block.logs.iter().enumerate().map(|(log, (rule, customer, value))| {
        let (log, rule) = (u64::try_from(log).expect("few"), RULES[*rule].to_owned());
        let hash = hash(height, block);
        let id = UsageId { chain: CHAIN, hash, log, rule: rule.clone(), revision: 1 };
        let event = event(&json!({
            "eventType": "sum",
            "customerId": format!("c{customer}"),
            "value": value,
            "id": id.to_string(),
            "source": UsageId::source(CHAIN),
            "timestamp": time(height).millis().to_string(),
        }));
        LogUsage { log, rule, event }
    });
    UsageBlock { height, hash: hash(height, block), usage: usage.collect() }
}

#[derive(Clone, Debug, Default)]
struct Source(Arc<Mutex<Chain>>);

impl Source {
    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl UsageSource for Source {
    fn chain_id(&self) -> u64 {
        CHAIN
    }

    fn rules(&self) -> Vec<RuleVersion> {
        RULES.map(|name| RuleVersion { name: name.to_owned(), definition: 7 }).to_vec()
    }

    async fn state(&self) -> Result<Option<SourceState>> {
        let chain = self.chain();
        let Some((rows, derived_replacement)) = chain.generations.last() else { return Ok(None) };
        Ok(Some(SourceState {
            generation: u32::try_from(chain.generations.len()).expect("few"),
            derived: rows.keys().map(|height| *height..height + 1).collect(),
            derived_replacement: *derived_replacement,
            last_replacement: chain.last_replacement(),
            stored: std::iter::once(0..u64::try_from(chain.blocks.len()).expect("few")).collect(),
            caught_up: chain.caught_up,
            follows: true,
            lowest: Some(0),
        }))
    }

    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>> {
        let chain = self.chain();
        Ok(chain.replacements.iter().filter(|one| one.seq > seq).cloned().collect())
    }

    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>> {
        let chain = self.chain();
        let generation = usize::try_from(generation).expect("few") - 1;
        let (rows, _) = &chain.generations[generation];
        let blocks = rows.range(range.clone()).filter(|(_, block)| !block.logs.is_empty());
        Ok(blocks.map(|(height, block)| usage(*height, block)).collect())
    }

    async fn block_hash(&self, height: u64) -> Result<Option<BlockHash>> {
        let chain = self.chain();
        Ok(chain.blocks.get(usize::try_from(height).expect("few")).map(|block| hash(height, block)))
    }

    async fn block_time(&self, height: u64) -> Result<Option<Timestamp>> {
        let chain = self.chain();
        let stored = height < u64::try_from(chain.blocks.len()).expect("few");
        Ok(stored.then(|| time(height)))
    }
}

fn chain_settings() -> Settings {
    let chain_types = [("sum".to_owned(), vec![CHAIN])].into();
    Settings { chain_types, chain_wait: None, periods: vec![PeriodKind::Daily], ..settings() }
}

/// A day of a customer: the sum, and the number of events.
type Days = BTreeMap<(String, i64), (i64, u64)>;

/// A naive fold over the stored blocks.
fn truth(chain: &Chain) -> Days {
    let mut days = Days::new();
    for (height, block) in (0_u64..).zip(&chain.blocks) {
        for (_, customer, value) in &block.logs {
            let day = time(height).millis() / 86_400_000 * 86_400_000;
            let (sum, count) = days.entry((format!("c{customer}"), day)).or_default();
            *sum += value;
            *count += 1;
        }
    }
    days
}

struct Life {
    source: Source,
    queue: Queue,
    blobs: Arc<dyn BlobStore>,
    relay: ChainRelay<Source>,
    /// What was ever true once all of it was recorded.
    true_once: BTreeSet<((String, i64), (i64, u64))>,
}

impl Life {
    async fn new(queue: Queue, blobs: Arc<dyn BlobStore>, source: Source) -> Result<Self> {
        let meter = open_with(&queue, &blobs, chain_settings()).await?;
        let relay = ChainRelay::new(meter, source.clone());
        Ok(Self { source, queue, blobs, relay, true_once: BTreeSet::new() })
    }

    fn meter(&self) -> &Meter {
        self.relay.meter()
    }

    async fn relay(&self, most: usize) -> Result<Step> {
        let mut last = Step::Idle;
        for _ in 0..most {
            last = Box::pin(self.relay.step()).await?;
            if matches!(last, Step::Idle | Step::Waiting) {
                break;
            }
        }
        Ok(last)
    }

    /// What is outside of the meter happens once, however often the rest is tried.
    async fn act(&mut self, act: &Act) -> Result<()> {
        match act {
            Act::Relay(most) => drop(self.relay(*most).await?),
            Act::Aggregate => Box::pin(aggregate(self.meter(), &self.queue)).await?,
            Act::KeepHouse => Box::pin(self.meter().keep_house()).await?,
            Act::Restart => {
                let meter = open_with(&self.queue, &self.blobs, chain_settings()).await?;
                self.relay = ChainRelay::new(meter, self.source.clone());
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes what may be announced from here on.
    fn note(&mut self) {
        let chain = self.source.chain();
        self.true_once.extend(truth(&chain));
        // A day that has no usage any more.
        let gone: Vec<_> = self.true_once.iter().map(|(day, _)| (day.clone(), (0, 0))).collect();
        drop(chain);
        self.true_once.extend(gone);
    }
}

/// The chain's part of what happens, once; then the meter's.
async fn step(life: &mut Life, act: &Act) -> Result<()> {
    life.source.chain().act(act);
    life.note();
    Box::pin(life.act(act)).await
}

/// Lets everything catch up, and compares.
async fn check(mut life: Life) -> String {
    for act in [Act::Derive, Act::CaughtUp(true)] {
        step(&mut life, &act).await.expect("nothing disturbs it");
    }
    assert_eq!(life.relay(100_000).await.expect("nothing disturbs it"), Step::Idle);
    aggregate(life.meter(), &life.queue).await.expect("aggregates");
    let recounted = life.meter().recount(false, |_| {}).await.expect("a recount");
    assert_eq!(recounted.differences, Vec::<String>::new());
    let expected = truth(&life.source.chain());
    let mut found = Days::new();
    for day in aggregates(life.meter()).await {
        let body: Value = serde_json::from_str(&day.body).expect("JSON");
        let sum = body["eventsExact"]["sum"].as_str().map(|sum| sum.parse().expect("whole"));
        let count = body["eventCounts"]["sum"].as_u64();
        if let (Some(sum), Some(count)) = (sum, count) {
            found.insert((day.customer, day.start.millis()), (sum, count));
        }
    }
    assert_eq!(found, expected);
    check_announced(&life).await;
    let recorded = life.meter().chain_recorded(CHAIN).await.expect("a state");
    assert_eq!(recorded.state.applied, life.source.chain().last_replacement());
    assert_eq!(recorded.state.pending, None);
    format!("{found:?}")
}

/// Every revision that was announced was true once, and was announced once.
async fn check_announced(life: &Life) {
    let text = "SELECT a.start_ms, c.name, r.body FROM meter_revision r
                JOIN meter_aggregate a ON a.id = r.id JOIN meter_customer c ON c.id = a.customer
                WHERE r.state > 0";
    let found = life.meter().sql().query(text, params![]).await.expect("revisions");
    for row in &found.rows {
        let body: Value = serde_json::from_str(row.text(2).expect("text")).expect("JSON");
        let sum = body["eventsExact"]["sum"].as_str().unwrap_or("0").parse().expect("whole");
        let count = body["eventCounts"]["sum"].as_u64().unwrap_or(0);
        let day = (row.text(1).expect("text").to_owned(), row.int(0).expect("a time"));
        let said = (day, (sum, count));
        assert!(life.true_once.contains(&said), "{said:?} was never true");
    }
    let text = "SELECT count(*) FROM webhook_message";
    let messages = life.meter().sql().query(text, params![]).await.expect("a count");
    let messages = messages.row().expect("a row").count(0).expect("a number");
    assert_eq!(messages, u64::try_from(found.rows.len()).expect("few"));
}

fn logs() -> impl Strategy<Value = Vec<(usize, u8, i64)>> {
    prop::collection::vec((0..RULES.len(), 0..2_u8, 1..50_i64), 0..3)
}

fn grown() -> impl Strategy<Value = Act> {
    let block = (any::<u8>(), logs()).prop_map(|(hash, logs)| Block { hash, logs });
    prop::collection::vec(block, 1..6).prop_map(Act::Grow)
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => grown(),
        2 => (0..12_u64).prop_map(Act::Remove),
        2 => (1..8_usize).prop_map(Act::BringBack),
        2 => (0..12_u64, logs()).prop_map(|(height, logs)| Act::Falsify(height, logs)),
        4 => Just(Act::Derive),
        2 => any::<bool>().prop_map(Act::CaughtUp),
        5 => (1..8_usize).prop_map(Act::Relay),
        2 => Just(Act::Aggregate),
        1 => Just(Act::KeepHouse),
        1 => Just(Act::Restart),
    ];
    prop::collection::vec(act, 1..24)
}

async fn live(database: Database, acts: &[Act]) {
    let queue = crate::work::open(&database).await;
    let mut life = Life::new(queue, blobs(), Source::default()).await.expect("a meter");
    for act in acts {
        step(&mut life, act).await.expect("nothing disturbs it");
    }
    check(life).await;
}

#[test]
fn on_sqlite_recorded_usage_is_that_of_the_stored_blocks() {
    proptest!(ProptestConfig::with_cases(80), |(acts in acts())| {
        simulate(async { live(Database::memory().await, &acts).await });
    });
}

#[test]
fn on_postgresql_recorded_usage_is_that_of_the_stored_blocks() {
    let server = PostgresServer::start();
    proptest!(ProptestConfig::with_cases(10), |(acts in acts())| {
        in_real_time(live(Database::postgres(&server), &acts));
    });
}

fn block(hash: u8, values: &[i64]) -> Block {
    let logs = values.iter().map(|value| (usize::from(hash % 2), hash % 3, *value));
    Block { hash, logs: logs.collect() }
}

/// Everything that can happen to stored blocks.
fn every_replacement() -> Vec<Act> {
    let grow = |hashes: std::ops::Range<u8>| {
        Act::Grow(hashes.map(|hash| block(hash, &[i64::from(hash), 2])).collect())
    };
    vec![
        grow(1..10),
        Act::Derive,
        Act::Relay(9),
        Act::Aggregate,
        Act::KeepHouse,
        // The same hash, other content.
        Act::Falsify(4, vec![(0, 1, 40), (1, 1, 41), (1, 0, 42)]),
        Act::Relay(2),
        Act::Derive,
        Act::Relay(2),
        Act::Aggregate,
        Act::Relay(9),
        Act::Aggregate,
        // Another chain, which is shorter.
        Act::Remove(2),
        grow(30..33),
        Act::Derive,
        Act::Relay(4),
        Act::Aggregate,
        Act::CaughtUp(true),
        Act::Relay(9),
        Act::Aggregate,
        Act::KeepHouse,
        // The same blocks again.
        Act::CaughtUp(false),
        Act::Remove(3),
        Act::Derive,
        Act::Relay(9),
        Act::BringBack(9),
        Act::Relay(9),
        Act::Aggregate,
        // And the first chain again: its ids were used before.
        Act::Remove(2),
        grow(3..7),
        Act::Derive,
        Act::CaughtUp(true),
        Act::Relay(9),
        Act::Aggregate,
    ]
}

/// Faults happen to the meter's database at one operation; who comes after goes on with what was under way.
async fn run(database: &Database, faults: Arc<Faults>) -> String {
    let plain = crate::work::open(database).await;
    let blobs: Arc<dyn BlobStore> = blobs();
    open_with(&plain, &blobs, chain_settings()).await.expect("a meter");
    let source = Source::default();
    let disturbed = plain.through(plain.sql().with_faults(faults));
    let mut life = match Box::pin(Life::new(disturbed, Arc::clone(&blobs), source.clone())).await {
        Ok(life) => life,
        Err(_) => Box::pin(restart(database, &blobs, &source, BTreeSet::new())).await,
    };
    for act in every_replacement() {
        if step(&mut life, &act).await.is_err() {
            let true_once = std::mem::take(&mut life.true_once);
            life = Box::pin(restart(database, &blobs, &source, true_once)).await;
            Box::pin(life.act(&act)).await.expect("nothing disturbs it");
        }
    }
    let life = Box::pin(restart(database, &blobs, &source, life.true_once)).await;
    Box::pin(check(life)).await
}

async fn restart(
    database: &Database,
    blobs: &Arc<dyn BlobStore>,
    source: &Source,
    true_once: BTreeSet<((String, i64), (i64, u64))>,
) -> Life {
    let queue = crate::work::open(database).await;
    database.advance(LEASE * 2, &[queue.sql()]);
    queue.reap(logmill_meter::due::AGGREGATE_JOB).await.expect("a reaper");
    let life = Box::pin(Life::new(queue, Arc::clone(blobs), source.clone())).await;
    Life { true_once, ..life.expect("a meter") }
}

/// `most` operations, evenly spread.
async fn matrix<F: Future<Output = Database>>(fresh: impl Fn() -> F, most: u64) {
    let counted = Faults::none();
    let undisturbed = Box::pin(run(&fresh().await, Arc::clone(&counted))).await;
    let operations = counted.operations();
    assert!(operations >= 300, "there are only {operations} operations");
    let every = usize::try_from(operations.div_ceil(most)).expect("few");
    for (turn, operation) in (0..operations).step_by(every).enumerate() {
        for fault in if every == 1 { &FAULTS[..] } else { &FAULTS[turn % 4..=turn % 4] } {
            let image = Box::pin(run(&fresh().await, Faults::at(operation, *fault))).await;
            assert_eq!(image, undisturbed, "{fault:?} at operation {operation} of {operations}");
        }
    }
}

#[test]
fn on_sqlite_usage_of_replaced_blocks_is_corrected_through_faults_at_any_operation() {
    simulate(matrix(Database::memory, 160));
}

#[test]
fn on_postgresql_usage_of_replaced_blocks_is_corrected_through_faults_at_any_operation() {
    let server = PostgresServer::start();
    in_real_time(matrix(|| async { Database::postgres(&server) }, 12));
}

#[test]
fn deriving_again_without_a_replacement_changes_no_usage() {
    simulate(async {
        let queue = crate::work::open(&Database::memory().await).await;
        let mut life = Life::new(queue, blobs(), Source::default()).await.expect("a meter");
        let blocks = (1..9).map(|hash| block(hash, &[i64::from(hash), 2])).collect();
        for act in [Act::Grow(blocks), Act::Derive, Act::Relay(99), Act::Aggregate] {
            step(&mut life, &act).await.expect("nothing disturbs it");
        }
        let image = async |life: &Life| {
            let text = "SELECT (SELECT count(*) FROM meter_event),
                            (SELECT count(*) FROM meter_correction),
                            (SELECT count(*) FROM meter_revision),
                            (SELECT count(*) FROM meter_chain_correction)";
            let found = life.meter().sql().query(text, params![]).await.expect("counts");
            let row = found.row().expect("a row");
            [0, 1, 2, 3].map(|column| row.int(column).expect("a count"))
        };
        let before = image(&life).await;
        assert_eq!(before[1..], [0, before[2], 0]);
        for act in [Act::Derive, Act::Relay(99), Act::Aggregate] {
            step(&mut life, &act).await.expect("nothing disturbs it");
        }
        assert_eq!(image(&life).await, before);
        check(life).await;
    });
}

#[test]
fn a_replacement_that_changed_nothing_writes_nothing() {
    simulate(async {
        let queue = crate::work::open(&Database::memory().await).await;
        let mut life = Life::new(queue, blobs(), Source::default()).await.expect("a meter");
        let blocks = (1..9).map(|hash| block(hash, &[i64::from(hash), 2])).collect();
        let acts = [
            Act::Grow(blocks),
            Act::Derive,
            Act::Relay(99),
            Act::Aggregate,
            Act::Remove(0),
            Act::BringBack(99),
            Act::Derive,
            Act::Relay(99),
            Act::Aggregate,
        ];
        for act in acts {
            step(&mut life, &act).await.expect("nothing disturbs it");
        }
        assert!(life.meter().chain_corrections(9).await.expect("corrections").is_empty());
        let text = "SELECT max(revision) FROM meter_revision";
        let found = life.meter().sql().query(text, params![]).await.expect("revisions");
        assert_eq!(found.row().expect("a row").int(0).expect("a number"), 1);
        let recorded = life.meter().chain_recorded(CHAIN).await.expect("a state");
        assert_eq!((recorded.state.applied, recorded.state.pending), (1, None));
        check(life).await;
    });
}

#[test]
fn a_correction_says_what_was_replaced_and_why() {
    simulate(async {
        let queue = crate::work::open(&Database::memory().await).await;
        let mut life = Life::new(queue, blobs(), Source::default()).await.expect("a meter");
        for act in every_replacement().iter().take(12) {
            step(&mut life, act).await.expect("nothing disturbs it");
        }
        let made = life.meter().chain_corrections(9).await.expect("corrections");
        let [made] = &made[..] else { panic!("{made:?}") };
        assert_eq!((made.chain, made.seq, made.first_block, made.last_block), (CHAIN, 1, 4, 4));
        assert_eq!((made.blocks, made.cancelled, made.recorded), (1, 2, 3));
        assert!(
            made.done.is_some() && made.reason.ends_with("(replacement 1): a test"),
            "{made:?}"
        );
        let (hash, rule) = (hash(4, &block(5, &[])), RULES[1].to_owned());
        let id = UsageId { chain: CHAIN, hash, log: 0, rule, revision: 1 };
        let source = UsageId::source(CHAIN);
        let event = life.meter().find_event(&source, &id.to_string()).await.expect("an answer");
        let event = event.expect("it was recorded");
        assert_eq!(event.state.name(), "cancelled");
        let notes = life.meter().corrections(&event).await.expect("notes");
        assert!(notes[0].reason == made.reason && notes[0].actor == "logmill", "{notes:?}");
        check(life).await;
    });
}
