//! Usage of a chain whose stored blocks are replaced: whatever is replaced, derived again, archived, killed and
//! restarted, in the end the recorded usage is that of the stored blocks, and nothing was announced that was never
//! true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use logmill_io::{BlobStore, CrashMatrix, Faults, Timestamp, params};
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
/// Few, so that there is more than one page.
const REPLACEMENTS_PER_PAGE: usize = 2;
const RULES: [&str; 2] = ["fees", "calls"];

/// A block: a byte that determines its hash, and its usage as (rule, customer, value) per log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    hash: u8,
    logs: Vec<(usize, u8, i64)>,
}

#[derive(Clone, Debug)]
enum ChainAction {
    /// Stores blocks on top; the serving generation derives them.
    Grow(Vec<Block>),
    /// Removes all blocks from a height on.
    Remove(u64),
    /// Restores this many of the removed blocks unchanged.
    BringBack(usize),
    /// Changes the content of a block under the same hash.
    Falsify(u64, Vec<(usize, u8, i64)>),
    /// A new generation of rows, derived from the stored blocks, starts to serve.
    Derive,
    /// Restores a backup of the index from when there were this many replacements.
    Restore(usize),
    /// Creates the index again with these blocks.
    StoreAgain(Vec<Block>),
    /// Whether ingest has caught up with the chain.
    CaughtUp(bool),
    /// Runs at most this many steps of the relay.
    Relay(usize),
    Aggregate,
    KeepHouse,
    Restart,
}

#[derive(Debug)]
struct Generation {
    rows: BTreeMap<u64, Block>,
    /// The replacement that its rows reflect, with its mark.
    applied: (u64, u64),
    /// The last replacement when rows were added, with its mark.
    seen: (u64, u64),
}

#[derive(Debug)]
struct Chain {
    blocks: Vec<Block>,
    removed: Vec<Block>,
    replacements: Vec<BlockReplacement>,
    /// The blocks right before each replacement.
    backups: Vec<Vec<Block>>,
    /// The mark of the log, then the mark of each replacement.
    marks: Vec<u64>,
    /// The last mark that was assigned.
    last_mark: u64,
    /// The last one serves.
    generations: Vec<Generation>,
    caught_up: bool,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            removed: Vec::new(),
            replacements: Vec::new(),
            backups: Vec::new(),
            marks: vec![1],
            last_mark: 1,
            generations: Vec::new(),
            caught_up: false,
        }
    }
}

impl Chain {
    fn new_mark(&mut self) -> u64 {
        self.last_mark += 1;
        self.last_mark
    }

    fn mark(&self, seq: u64) -> Option<u64> {
        self.marks.get(usize::try_from(seq).expect("few")).copied()
    }

    fn replaced(&mut self, blocks: Heights) {
        let seq = self.last_replacement() + 1;
        if !blocks.is_empty() {
            self.replacements.push(BlockReplacement { seq, blocks, reason: "a test".to_owned() });
            let mark = self.new_mark();
            self.marks.push(mark);
            self.backups.push(self.blocks.clone());
        }
    }

    fn last_replacement(&self) -> u64 {
        self.replacements.last().map_or(0, |last| last.seq)
    }

    fn last_position(&self) -> (u64, u64) {
        let last = self.last_replacement();
        (last, self.mark(last).expect("it is there"))
    }

    fn grow(&mut self, block: Block) {
        let height = u64::try_from(self.blocks.len()).expect("few");
        // A generation does not derive a block twice, even if the block was replaced.
        let last = self.last_position();
        if let Some(generation) = self.generations.last_mut() {
            generation.rows.entry(height).or_insert_with(|| block.clone());
            generation.seen = last;
        }
        self.blocks.push(block);
    }

    fn act(&mut self, act: &ChainAction) {
        let length = u64::try_from(self.blocks.len()).expect("few");
        match act {
            ChainAction::Grow(blocks) => blocks.iter().for_each(|block| self.grow(block.clone())),
            ChainAction::Remove(from) => {
                let from = (*from).min(length);
                self.replaced(from..length);
                self.removed = self.blocks.split_off(usize::try_from(from).expect("few"));
            }
            ChainAction::BringBack(most) => {
                let most = (*most).min(self.removed.len());
                let back: Vec<Block> = self.removed.drain(..most).collect();
                back.into_iter().for_each(|block| self.grow(block));
            }
            ChainAction::Falsify(height, logs) if *height < length => {
                self.replaced(*height..height + 1);
                self.blocks[usize::try_from(*height).expect("few")].logs.clone_from(logs);
            }
            ChainAction::Derive => {
                let rows = (0..).zip(self.blocks.iter().cloned()).collect();
                let (applied, seen) = (self.last_position(), self.last_position());
                self.generations.push(Generation { rows, applied, seen });
            }
            ChainAction::Restore(kept) if *kept < self.backups.len() => {
                self.blocks.clone_from(&self.backups[*kept]);
                self.replacements.truncate(*kept);
                self.backups.truncate(*kept);
                self.marks.truncate(kept + 1);
            }
            ChainAction::StoreAgain(blocks) => {
                self.replacements.clear();
                self.backups.clear();
                self.marks = vec![self.new_mark()];
                self.blocks.clone_from(blocks);
            }
            ChainAction::CaughtUp(caught_up) => self.caught_up = *caught_up,
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
        let Some(Generation { rows, applied, seen }) = chain.generations.last() else {
            return Ok(None);
        };
        let is_of_log = [applied, seen].iter().all(|(seq, mark)| chain.mark(*seq) == Some(*mark));
        Ok(Some(SourceState {
            generation: u32::try_from(chain.generations.len()).expect("few"),
            derived: rows.keys().map(|height| *height..height + 1).collect(),
            derived_replacement: is_of_log.then_some(applied.0),
            last_replacement: chain.last_replacement(),
            stored: std::iter::once(0..u64::try_from(chain.blocks.len()).expect("few")).collect(),
            caught_up: chain.caught_up,
            follows: true,
            is_archived: false,
            lowest: Some(0),
        }))
    }

    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>> {
        let chain = self.chain();
        let after = chain.replacements.iter().filter(|one| one.seq > seq);
        Ok(after.take(REPLACEMENTS_PER_PAGE).cloned().collect())
    }

    async fn replacement_mark(&self, seq: u64) -> Result<Option<u64>> {
        Ok(self.chain().mark(seq))
    }

    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>> {
        let chain = self.chain();
        let generation = usize::try_from(generation).expect("few") - 1;
        let blocks = chain.generations[generation]
            .rows
            .range(range.clone())
            .filter(|(_, block)| !block.logs.is_empty());
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

struct RelayRun {
    source: Source,
    queue: Queue,
    blobs: Arc<dyn BlobStore>,
    relay: ChainRelay<Source>,
    /// Every state that was complete at some time.
    true_once: BTreeSet<((String, i64), (i64, u64))>,
}

impl RelayRun {
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

    /// Changes outside the meter happen once, however often the rest is retried.
    async fn act(&mut self, act: &ChainAction) -> Result<()> {
        match act {
            ChainAction::Relay(most) => drop(self.relay(*most).await?),
            ChainAction::Aggregate => Box::pin(aggregate(self.meter(), &self.queue)).await?,
            ChainAction::KeepHouse => Box::pin(self.meter().run_housekeeping()).await?,
            ChainAction::Restart => {
                let meter = open_with(&self.queue, &self.blobs, chain_settings()).await?;
                self.relay = ChainRelay::new(meter, self.source.clone());
            }
            _ => {}
        }
        Ok(())
    }

    /// Records what may be announced from now on.
    fn note(&mut self) {
        let chain = self.source.chain();
        self.true_once.extend(truth(&chain));
        // A day that no longer has usage.
        let gone: Vec<_> = self.true_once.iter().map(|(day, _)| (day.clone(), (0, 0))).collect();
        drop(chain);
        self.true_once.extend(gone);
    }
}

/// Applies an action to the chain once, then to the meter.
async fn step(life: &mut RelayRun, act: &ChainAction) -> Result<()> {
    life.source.chain().act(act);
    life.note();
    Box::pin(life.act(act)).await
}

/// Lets everything catch up, and compares.
async fn check(mut life: RelayRun) -> String {
    for act in [ChainAction::Derive, ChainAction::CaughtUp(true)] {
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
    let recorded = life.meter().recorded_coverage(CHAIN).await.expect("a state");
    assert_eq!(recorded.state.applied, life.source.chain().last_replacement());
    assert_eq!(recorded.state.pending, None);
    format!("{found:?}")
}

/// Every revision that was announced was true once, and was announced once.
async fn check_announced(life: &RelayRun) {
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

fn blocks() -> impl Strategy<Value = Block> {
    (any::<u8>(), logs()).prop_map(|(hash, logs)| Block { hash, logs })
}

fn grown() -> impl Strategy<Value = ChainAction> {
    prop::collection::vec(blocks(), 1..6).prop_map(ChainAction::Grow)
}

fn acts() -> impl Strategy<Value = Vec<ChainAction>> {
    let act = prop_oneof![
        4 => grown(),
        2 => (0..12_u64).prop_map(ChainAction::Remove),
        2 => (1..8_usize).prop_map(ChainAction::BringBack),
        2 => (0..12_u64, logs()).prop_map(|(height, logs)| ChainAction::Falsify(height, logs)),
        1 => (0..4_usize).prop_map(ChainAction::Restore),
        1 => prop::collection::vec(blocks(), 0..6).prop_map(ChainAction::StoreAgain),
        4 => Just(ChainAction::Derive),
        2 => any::<bool>().prop_map(ChainAction::CaughtUp),
        5 => (1..8_usize).prop_map(ChainAction::Relay),
        2 => Just(ChainAction::Aggregate),
        1 => Just(ChainAction::KeepHouse),
        1 => Just(ChainAction::Restart),
    ];
    prop::collection::vec(act, 1..24)
}

async fn live(database: Database, acts: &[ChainAction]) {
    let queue = crate::work::open(&database).await;
    let mut life = RelayRun::new(queue, blobs(), Source::default()).await.expect("a meter");
    for act in acts {
        step(&mut life, act).await.expect("nothing disturbs it");
    }
    check(life).await;
}

#[test]
fn on_sqlite_recorded_usage_is_that_of_the_stored_blocks() {
    proptest!(ProptestConfig::with_cases(logmill_io::proof_cases(80)), |(acts in acts())| {
        simulate(async { live(Database::memory().await, &acts).await });
    });
}

/// The relay has noticed the replacement, but not started to apply it.
#[test]
fn usage_is_not_pending_after_a_replacement_was_undone_by_a_restored_index() {
    let grown = ChainAction::Grow(vec![block(1, &[5])]);
    let falsified = ChainAction::Falsify(0, vec![(1, 1, 7)]);
    let acts = [
        grown,
        ChainAction::Derive,
        ChainAction::Relay(9),
        falsified,
        ChainAction::Relay(1),
        ChainAction::Restore(0),
    ];
    simulate(async { live(Database::memory().await, &acts).await });
}

/// The serving generation is behind the replacement, and has derived a block that was stored after it.
#[test]
fn usage_of_blocks_stored_after_a_replacement_that_was_undone_is_cancelled() {
    let grow = |hash| ChainAction::Grow(vec![block(hash, &[i64::from(hash)])]);
    for relays in [0, 9] {
        let acts = [
            grow(1),
            ChainAction::Derive,
            ChainAction::Remove(0),
            grow(2),
            grow(3),
            ChainAction::Relay(relays),
        ];
        let acts: Vec<ChainAction> =
            acts.into_iter().chain([ChainAction::Restore(0), ChainAction::Relay(1)]).collect();
        simulate(async { live(Database::memory().await, &acts).await });
    }
}

/// The first blocks are half applied when blocks are stored again for the second time.
#[test]
fn usage_follows_blocks_that_are_stored_again_and_again() {
    let again = |hashes: std::ops::Range<u8>| {
        ChainAction::StoreAgain(hashes.map(|hash| block(hash, &[i64::from(hash)])).collect())
    };
    let acts = [
        ChainAction::Derive,
        ChainAction::Relay(1),
        again(1..3),
        ChainAction::Derive,
        ChainAction::Relay(2),
        again(1..1),
    ];
    simulate(async { live(Database::memory().await, &acts).await });
}

#[test]
fn on_postgresql_recorded_usage_is_that_of_the_stored_blocks() {
    let server = PostgresServer::start();
    proptest!(ProptestConfig::with_cases(logmill_io::proof_cases(10)), |(acts in acts())| {
        in_real_time(live(Database::postgres(&server), &acts));
    });
}

fn block(hash: u8, values: &[i64]) -> Block {
    let logs = values.iter().map(|value| (usize::from(hash % 2), hash % 3, *value));
    Block { hash, logs: logs.collect() }
}

/// Everything that can happen to stored blocks.
fn every_replacement() -> Vec<ChainAction> {
    let grow = |hashes: std::ops::Range<u8>| {
        ChainAction::Grow(hashes.map(|hash| block(hash, &[i64::from(hash), 2])).collect())
    };
    vec![
        grow(1..10),
        ChainAction::Derive,
        ChainAction::Relay(9),
        ChainAction::Aggregate,
        ChainAction::KeepHouse,
        // The same hash with other content.
        ChainAction::Falsify(4, vec![(0, 1, 40), (1, 1, 41), (1, 0, 42)]),
        ChainAction::Relay(2),
        ChainAction::Derive,
        ChainAction::Relay(2),
        ChainAction::Aggregate,
        ChainAction::Relay(9),
        ChainAction::Aggregate,
        // Another chain, which is shorter.
        ChainAction::Remove(2),
        grow(30..33),
        ChainAction::Derive,
        ChainAction::Relay(4),
        ChainAction::Aggregate,
        ChainAction::CaughtUp(true),
        ChainAction::Relay(9),
        ChainAction::Aggregate,
        ChainAction::KeepHouse,
        // The same blocks again.
        ChainAction::CaughtUp(false),
        ChainAction::Remove(3),
        ChainAction::Derive,
        ChainAction::Relay(9),
        ChainAction::BringBack(9),
        ChainAction::Relay(9),
        ChainAction::Aggregate,
        // A backup of the index, then other replacements under the same numbers.
        ChainAction::Restore(1),
        ChainAction::Derive,
        ChainAction::Relay(3),
        ChainAction::Falsify(1, vec![(0, 1, 11)]),
        ChainAction::Remove(4),
        grow(50..52),
        ChainAction::Derive,
        ChainAction::Relay(9),
        ChainAction::Aggregate,
        // An index that was created again, with some of the same blocks.
        ChainAction::StoreAgain((1..5).map(|hash| block(hash, &[i64::from(hash), 3])).collect()),
        ChainAction::Relay(3),
        ChainAction::Derive,
        ChainAction::Relay(4),
        ChainAction::Aggregate,
        // And the first chain again: its ids were used before.
        ChainAction::Remove(2),
        grow(3..7),
        ChainAction::Derive,
        ChainAction::CaughtUp(true),
        ChainAction::Relay(9),
        ChainAction::Aggregate,
    ]
}

/// Injects faults into one operation of the meter's database; the next process continues the unfinished work.
async fn run(database: &Database, faults: Arc<Faults>) -> String {
    let plain = crate::work::open(database).await;
    let blobs: Arc<dyn BlobStore> = blobs();
    open_with(&plain, &blobs, chain_settings()).await.expect("a meter");
    let source = Source::default();
    let disturbed = plain.through(plain.sql().with_faults(faults));
    let mut life =
        match Box::pin(RelayRun::new(disturbed, Arc::clone(&blobs), source.clone())).await {
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
) -> RelayRun {
    let queue = crate::work::open(database).await;
    database.advance(LEASE * 2, &[queue.sql()]);
    queue.reap(logmill_meter::due::AGGREGATE_JOB).await.expect("a reaper");
    let life = Box::pin(RelayRun::new(queue, Arc::clone(blobs), source.clone())).await;
    RelayRun { true_once, ..life.expect("a meter") }
}

/// `most` operations, evenly spread; a proof run tests a multiple of that, up to all.
async fn matrix<F: Future<Output = Database>>(fresh: impl Fn() -> F, most: u32) {
    let most = u64::from(logmill_io::proof_cases(most));
    let matrix = CrashMatrix::of_at_least(300).at_most(most).in_turn().with_varying_runs();
    matrix.check(async |faults| Box::pin(run(&fresh().await, faults)).await).await;
}

#[test]
fn on_sqlite_usage_of_replaced_blocks_is_corrected_despite_faults_at_sampled_operations() {
    simulate(matrix(Database::memory, 160));
}

#[test]
fn on_postgresql_usage_of_replaced_blocks_is_corrected_despite_faults_at_sampled_operations() {
    let server = PostgresServer::start();
    in_real_time(matrix(|| async { Database::postgres(&server) }, 12));
}

#[test]
fn deriving_again_without_a_replacement_changes_no_usage() {
    simulate(async {
        let queue = crate::work::open(&Database::memory().await).await;
        let mut life = RelayRun::new(queue, blobs(), Source::default()).await.expect("a meter");
        let blocks = (1..9).map(|hash| block(hash, &[i64::from(hash), 2])).collect();
        for act in [
            ChainAction::Grow(blocks),
            ChainAction::Derive,
            ChainAction::Relay(99),
            ChainAction::Aggregate,
        ] {
            step(&mut life, &act).await.expect("nothing disturbs it");
        }
        let image = async |life: &RelayRun| {
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
        for act in [ChainAction::Derive, ChainAction::Relay(99), ChainAction::Aggregate] {
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
        let mut life = RelayRun::new(queue, blobs(), Source::default()).await.expect("a meter");
        let blocks = (1..9).map(|hash| block(hash, &[i64::from(hash), 2])).collect();
        let acts = [
            ChainAction::Grow(blocks),
            ChainAction::Derive,
            ChainAction::Relay(99),
            ChainAction::Aggregate,
            ChainAction::Remove(0),
            ChainAction::BringBack(99),
            ChainAction::Derive,
            ChainAction::Relay(99),
            ChainAction::Aggregate,
        ];
        for act in acts {
            step(&mut life, &act).await.expect("nothing disturbs it");
        }
        assert!(life.meter().chain_corrections(9).await.expect("corrections").is_empty());
        let text = "SELECT max(revision) FROM meter_revision";
        let found = life.meter().sql().query(text, params![]).await.expect("revisions");
        assert_eq!(found.row().expect("a row").int(0).expect("a number"), 1);
        let recorded = life.meter().recorded_coverage(CHAIN).await.expect("a state");
        assert_eq!((recorded.state.applied, recorded.state.pending), (1, None));
        check(life).await;
    });
}

#[test]
fn a_correction_names_the_replaced_blocks_and_the_reason() {
    simulate(async {
        let queue = crate::work::open(&Database::memory().await).await;
        let mut life = RelayRun::new(queue, blobs(), Source::default()).await.expect("a meter");
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
