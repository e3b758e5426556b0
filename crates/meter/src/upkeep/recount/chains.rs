//! The recount of chain usage: compares recorded usage with the stored blocks.
//!
//! Events and blocks are walked side by side, a quarter of an hour at a time: the time of an event is that of its
//! block, and a block is never older than the one below it.
//!
//! Guarantees: it finds counting events that differ from their block, events of blocks that are not stored, and usage
//! of relayed blocks that is not recorded. Memory is bounded by a quarter of an hour. Events recorded under an earlier
//! definition of their rule, and those that an operator cancelled or amended, count as right. Leaves to others: reading
//! blocks ([`StoredUsage`]), correcting ([`crate::chains::relay`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use async_trait::async_trait;
use logmill_io::{Sql, params};
use logmill_work::{Heights, IntervalSet};

use crate::Meter;
use crate::chains::ledger::{self, ByHeight, Rules};
use crate::chains::reconcile::ACTOR;
use crate::chains::usage::{BlockHash, LogUsage, RuleVersion, UsageBlock, UsageId, hex};
use crate::error::Result;
use crate::period::Bucket;
use crate::store::names::{read_customer, read_series};
use crate::store::stored_event::{EventState, StoredEvent};

/// Number of blocks per read.
const BLOCKS_PER_READ: u64 = 64;

/// Stored blocks of a chain, with their usage.
#[async_trait]
pub trait StoredUsage: Send + Sync {
    fn chain_id(&self) -> u64;
    /// The rules that turn its logs into usage.
    fn rules(&self) -> Vec<RuleVersion>;
    /// Final blocks that are stored.
    fn stored(&self) -> IntervalSet;
    /// The block below which history was pruned on purpose; 0 if it was not.
    fn pruned_below(&self) -> u64;
    /// All blocks of a range, in order, with the usage that the rules find in them, and their times in milliseconds.
    async fn blocks(&self, range: &Heights) -> Result<Vec<(UsageBlock, i64)>>;
}

/// Result of the comparison with stored blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainRecount {
    /// Blocks compared.
    pub blocks: u64,
    /// Events of chains compared.
    pub events: u64,
    /// Blocks whose recorded usage differs.
    pub wrong: u64,
    /// Events that stay as recorded under an earlier definition of their rule.
    pub former: u64,
    /// Events of chains that are not stored here or have no rules, and events of pruned blocks.
    pub unchecked: u64,
    /// The first differences, for the operator.
    pub differences: Vec<String>,
}

/// Block hash, log index and rule.
type UsageKey = (BlockHash, u64, String);

struct RecordedUsage {
    event: StoredEvent,
    event_type: String,
    customer: String,
}

/// The comparison of one chain.
pub(super) struct ChainCheck<'a> {
    source: &'a dyn StoredUsage,
    rules: Rules,
    /// Blocks that are not read yet.
    left: VecDeque<Heights>,
    /// Blocks that were read ahead of the current bucket.
    read: VecDeque<(UsageBlock, i64)>,
    /// Blocks whose usage must be recorded.
    relayed: IntervalSet,
    /// The time of the lowest stored block, if those below it were pruned: no pruned block is newer.
    pruned_until: Option<i64>,
    /// Events of the current bucket.
    events: Vec<RecordedUsage>,
}

/// The blocks of a bucket, and their ledger entries.
struct BucketBlocks {
    expected: BTreeMap<UsageKey, LogUsage>,
    heights: BTreeMap<BlockHash, u64>,
    ledger: ByHeight,
}

/// Differences found in one block.
#[derive(Default)]
struct BlockFault {
    expected: u64,
    recorded: u64,
    first: Option<String>,
}

impl<'a> ChainCheck<'a> {
    pub(super) async fn new(meter: &Meter, source: &'a dyn StoredUsage) -> Result<Self> {
        let chain = source.chain_id();
        // Coverage first: all usage in it is recorded by the time that events are read.
        let recorded = meter.recorded_coverage(chain).await?;
        let rules = Rules::resolve(&meter.sql, chain, &source.rules()).await?;
        let relayed = recorded.generations.into_values().next_back().unwrap_or_default();
        let stored = source.stored();
        let left = recorded.all.ranges().flat_map(|range| stored.overlap(&range)).collect();
        let pruned_until = pruned_until(source, &stored).await?;
        let read = VecDeque::new();
        Ok(Self { source, rules, left, read, relayed, pruned_until, events: Vec::new() })
    }

    fn is_source(&self, source: &str) -> bool {
        source == UsageId::source(self.source.chain_id())
    }

    /// Removes and returns the blocks up to the end of a bucket.
    async fn blocks_until(&mut self, bucket: i64) -> Result<Vec<UsageBlock>> {
        let mut taken = Vec::new();
        loop {
            let is_before = |time: i64| Bucket::of(logmill_io::Timestamp(time)).0 <= bucket;
            match self.read.pop_front() {
                Some((block, time)) if is_before(time) => taken.push(block),
                Some(later) => {
                    self.read.push_front(later);
                    return Ok(taken);
                }
                None => {
                    let Some(range) = self.left.pop_front() else { return Ok(taken) };
                    let end = range.end.min(range.start.saturating_add(BLOCKS_PER_READ));
                    if end < range.end {
                        self.left.push_front(end..range.end);
                    }
                    self.read.extend(self.source.blocks(&(range.start..end)).await?);
                }
            }
        }
    }
}

/// The time of the lowest stored block, if those below it were pruned.
async fn pruned_until(source: &dyn StoredUsage, stored: &IntervalSet) -> Result<Option<i64>> {
    let floor = source.pruned_below();
    let lowest = stored.ranges().map(|range| range.start.max(floor)..range.end);
    let Some(lowest) = lowest.filter(|range| !range.is_empty()).map(|range| range.start).next()
    else {
        // All history may have been pruned.
        return Ok((floor > 0).then_some(i64::MAX));
    };
    if floor == 0 {
        return Ok(None);
    }
    let blocks = source.blocks(&(lowest..lowest.saturating_add(1))).await?;
    Ok(blocks.first().map(|(_, time)| *time))
}

/// The comparison of all chains during a recount.
#[derive(Default)]
pub(super) struct ChainChecks<'a> {
    checks: Vec<ChainCheck<'a>>,
    pub(super) found: ChainRecount,
    names: BTreeMap<i64, (String, String)>,
}

impl<'a> ChainChecks<'a> {
    pub(super) async fn new(meter: &Meter, sources: &[&'a dyn StoredUsage]) -> Result<Self> {
        let mut checks = Vec::with_capacity(sources.len());
        for source in sources {
            checks.push(ChainCheck::new(meter, *source).await?);
        }
        Ok(Self { checks, ..Self::default() })
    }

    /// Adds the events of one place of the current bucket.
    pub(super) async fn add(&mut self, meter: &Meter, events: &[StoredEvent]) -> Result<()> {
        for event in events.iter().filter(|event| event.source.starts_with("eip155:")) {
            let check = self.checks.iter_mut().find(|check| check.is_source(&event.source));
            let Some(check) = check else {
                self.found.unchecked += u64::from(event.counts());
                continue;
            };
            let series = event.place.series;
            let (customer, event_type) = match self.names.get(&series) {
                Some(names) => names.clone(),
                None => {
                    let names = names_of_series(&meter.sql, series).await?;
                    self.names.insert(series, names.clone());
                    names
                }
            };
            check.events.push(RecordedUsage { event: event.clone(), event_type, customer });
        }
        Ok(())
    }

    /// Compares everything up to the end of a bucket.
    pub(super) async fn close(&mut self, meter: &Meter, bucket: i64) -> Result<()> {
        for check in &mut self.checks {
            let blocks = check.blocks_until(bucket).await?;
            let events = std::mem::take(&mut check.events);
            if blocks.is_empty() && events.is_empty() {
                continue;
            }
            self.found.blocks += count(blocks.len());
            self.found.events += count(events.iter().filter(|one| one.event.counts()).count());
            check.compare(meter, blocks, events, &mut self.found).await?;
        }
        Ok(())
    }
}

impl ChainCheck<'_> {
    async fn compare(
        &self,
        meter: &Meter,
        blocks: Vec<UsageBlock>,
        events: Vec<RecordedUsage>,
        found: &mut ChainRecount,
    ) -> Result<()> {
        let bucket = self.read_bucket(meter, blocks).await?;
        let mut faults: BTreeMap<BlockHash, BlockFault> = BTreeMap::new();
        let mut live: BTreeMap<UsageKey, i64> = BTreeMap::new();
        let mut cancelled: BTreeMap<UsageKey, i64> = BTreeMap::new();
        let known: BTreeSet<&str> =
            self.rules.known.values().map(|rule| rule.name.as_str()).collect();
        for recorded in &events {
            let event = &recorded.event;
            let Some(id) = UsageId::parse(&event.id, |name| known.contains(name)) else {
                found.unchecked += u64::from(event.counts());
                continue;
            };
            let key = (id.hash, id.log, id.rule.clone());
            if !event.counts() {
                cancelled.insert(key, event.seq);
                continue;
            }
            faults.entry(id.hash).or_default().recorded += 1;
            let earlier = live.insert(key.clone(), event.content);
            let wrong = match (bucket.expected.get(&key), earlier.is_none()) {
                (_, false) => Some("is recorded twice".to_owned()),
                (Some(usage), _) => recorded.differs(usage),
                (None, _) if bucket.heights.contains_key(&id.hash) => {
                    Some("is recorded, and the block has no such usage".to_owned())
                }
                (None, _)
                    if self.pruned_until.is_some_and(|until| event.time.millis() <= until) =>
                {
                    found.unchecked += 1;
                    None
                }
                (None, _) => Some("is recorded, and the block is not stored".to_owned()),
            };
            let Some(what) = wrong else { continue };
            if bucket.heights.contains_key(&id.hash) && self.is_former(&bucket, &id) {
                found.former += 1;
                continue;
            }
            faults.entry(id.hash).or_default().note(&id, &what);
        }
        self.find_missing(meter, &bucket, &live, &cancelled, &mut faults).await?;
        self.report_faults(&bucket, faults, found);
        Ok(())
    }

    async fn read_bucket(&self, meter: &Meter, blocks: Vec<UsageBlock>) -> Result<BucketBlocks> {
        let mut bucket = BucketBlocks {
            expected: BTreeMap::new(),
            heights: BTreeMap::new(),
            ledger: ByHeight::new(),
        };
        let (first, last) = (blocks.first(), blocks.last());
        if let (Some(first), Some(last)) = (first, last) {
            let range = first.height..last.height.saturating_add(1);
            let chain = self.source.chain_id();
            bucket.ledger = ledger::read(&meter.sql.reading(), chain, &range).await?;
        }
        for UsageBlock { height, hash, usage } in blocks {
            bucket.heights.insert(hash, height);
            let usage = usage.into_iter();
            let usage = usage.map(|usage| ((hash, usage.log, usage.rule.clone()), usage));
            bucket.expected.extend(usage);
        }
        Ok(bucket)
    }

    /// Whether an event was recorded under an earlier definition of its rule.
    fn is_former(&self, bucket: &BucketBlocks, id: &UsageId) -> bool {
        if !self.rules.has(&id.rule) {
            return true;
        }
        let height = bucket.heights.get(&id.hash);
        let entries = height.and_then(|height| bucket.ledger.get(height)?.get(&id.hash));
        let mut entries = entries.into_iter().flatten().filter(|entry| entry.live);
        entries.any(|entry| {
            entry.log == id.log
                && self.rules.name(entry.rule) == id.rule
                && !self.rules.is_current(entry.rule)
        })
    }

    async fn find_missing(
        &self,
        meter: &Meter,
        bucket: &BucketBlocks,
        live: &BTreeMap<UsageKey, i64>,
        cancelled: &BTreeMap<UsageKey, i64>,
        faults: &mut BTreeMap<BlockHash, BlockFault>,
    ) -> Result<()> {
        for (key, usage) in &bucket.expected {
            let (hash, log, rule) = key;
            let height = bucket.heights.get(hash).copied().unwrap_or_default();
            faults.entry(*hash).or_default().expected += 1;
            // Usage of a renamed rule is recorded under its earlier name.
            let of_log = live.range((*hash, *log, String::new())..);
            let mut of_log =
                of_log.take_while(|((block, index, _), _)| (block, index) == (hash, log));
            let is_renamed = of_log.any(|((_, _, name), content)| {
                !self.rules.has(name) && *content == usage.event.content
            });
            if live.contains_key(key) || is_renamed || !self.relayed.contains(height) {
                continue;
            }
            if let Some(seq) = cancelled.get(key)
                && is_cancelled_by_operator(&meter.sql, *seq).await?
            {
                continue;
            }
            let id = UsageId {
                chain: self.source.chain_id(),
                hash: *hash,
                log: *log,
                rule: rule.clone(),
                revision: 1,
            };
            let what =
                format!("is not recorded: {} of {}", usage.event.value, usage.event.customer);
            faults.entry(*hash).or_default().note(&id, &what);
        }
        Ok(())
    }

    fn report_faults(
        &self,
        bucket: &BucketBlocks,
        faults: BTreeMap<BlockHash, BlockFault>,
        found: &mut ChainRecount,
    ) {
        for (hash, BlockFault { expected, recorded, first }) in faults {
            let Some(first) = first else { continue };
            found.wrong += 1;
            if found.differences.len() >= super::DIFFERENCES_MAX {
                continue;
            }
            let (chain, hash_text) = (self.source.chain_id(), hex(&hash));
            let block = match bucket.heights.get(&hash) {
                Some(height) => format!("block {height} {hash_text}"),
                None => format!("block {hash_text}, which is not stored"),
            };
            found.differences.push(format!(
                "chain {chain}, {block}: {expected} usage events expected, {recorded} recorded; {first}"
            ));
        }
    }
}

impl RecordedUsage {
    /// How an event differs from its block; `None` if it does not.
    fn differs(&self, usage: &LogUsage) -> Option<String> {
        let (event, expected) = (&self.event, &usage.event);
        let amended = event.state == EventState::Amended;
        if !amended && event.value != expected.value {
            return Some(format!("is recorded with {} instead of {}", event.value, expected.value));
        }
        if self.customer != expected.customer {
            return Some(format!(
                "is recorded for {} instead of {}",
                self.customer, expected.customer
            ));
        }
        if self.event_type != expected.event_type {
            return Some(format!("is recorded as {}", self.event_type));
        }
        if Some(event.time) != expected.time {
            return Some("is recorded at another time".to_owned());
        }
        let same = same_metadata(event.metadata.as_deref(), expected.metadata.as_deref());
        (!same).then(|| "is recorded with other metadata".to_owned())
    }
}

impl BlockFault {
    fn note(&mut self, id: &UsageId, what: &str) {
        if self.first.is_none() {
            self.first = Some(format!("log {} of rule {} {what}", id.log, id.rule));
        }
    }
}

/// The customer and event type of a series.
async fn names_of_series(sql: &Sql, series: i64) -> Result<(String, String)> {
    let on = sql.reading();
    let (event_type, customer) = read_series(&on, series).await?;
    Ok((read_customer(&on, customer).await?, event_type))
}

/// Whether the last cancellation of an event was by an operator.
async fn is_cancelled_by_operator(sql: &Sql, seq: i64) -> Result<bool> {
    let text = "SELECT actor FROM meter_correction
                WHERE event_seq = $1 AND action = 'cancel' ORDER BY number DESC LIMIT 1";
    let found = sql.query(text, params![seq]).await?;
    let actor = found.rows.first().map(|row| row.text(0)).transpose()?;
    Ok(actor.is_some_and(|actor| actor != ACTOR))
}

/// Whether two JSON texts are equal as values.
fn same_metadata(one: Option<&str>, other: Option<&str>) -> bool {
    let read = |text: Option<&str>| {
        text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
    };
    one == other || read(one) == read(other)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
