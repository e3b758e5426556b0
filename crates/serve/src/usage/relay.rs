//! Usage of chains: the meter records final rows of `usage_events`, once each; rows of the tip are shown as provisional
//! figures.
//!
//! ```text
//!   usage_worker ─▶ usage_events, final ─▶ relay ─▶ meter     (source eip155:CHAIN, id CHAIN:BLOCK:LOG:RULE)
//!                   usage_events, tip, and final ones that are not relayed yet ─▶ provisional figures
//! ```
//!
//! Guarantees: usage of a block is recorded, or shown as provisional, or reported as missing; nothing that a reorg may
//! remove is recorded. If the meter refuses usage, the relay stops with a warning that says why, and retries: nothing
//! is skipped. Leaves to others: recording, and correcting it when blocks are replaced ([`logmill_meter::chains`]),
//! reading rows ([`super::chain_usage`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::{Clock, Timestamp};
use logmill_meter::chains::relay::{ChainRelay, Step};
use logmill_meter::chains::source::{BlockReplacement, UsageSource};
use logmill_meter::chains::{RecordedCoverage, unapplied};
use logmill_meter::event::Event;
use logmill_meter::{Meter, Result as MeterResult};
use logmill_pipeline::derive::{GenerationProgress, Reader};
use logmill_pipeline::ingest::ProgressReport;
use logmill_pipeline::processors::usage::UsageWorker;
use logmill_pipeline::sighting::Sighting;
use logmill_work::ranges::{self, RangeDriver};
use logmill_work::{Backoff, Heights, IntervalSet};

use super::chain_usage::{Blocks, ChainUsage, HEAD_STALE_AFTER_MS, RowSet, heights};
use crate::error::{Error, Result};
use crate::readiness::{Cause, Finding, Readiness};

/// Poll interval, and the delay after a failure.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Maximum number of unrecorded rows that are shown, and of the block ranges they come from.
const ROWS_MAX: usize = 100_000;
const GAPS_MAX: usize = 16;

/// Carries usage of one chain to the meter. Clones share state.
#[derive(Clone, Debug)]
pub struct Relay {
    relay: Arc<ChainRelay<ChainUsage>>,
    clock: Arc<dyn Clock>,
    /// When this process started, on the monotonic clock.
    since: Duration,
    readiness: Arc<Readiness>,
}

/// Usage that is not recorded yet, at one moment.
#[derive(Debug, Default)]
pub(crate) struct UnrecordedUsage {
    pub(crate) events: Vec<(Event, Timestamp)>,
    /// Why the events are incomplete; empty if they are complete.
    pub(crate) incomplete: Vec<String>,
    /// What was recorded of every chain.
    recorded: Vec<(Option<u32>, RecordedCoverage)>,
}

impl Relay {
    pub fn new(
        reader: Reader,
        blocks: Blocks,
        meter: &Meter,
        worker: &UsageWorker,
        readiness: Arc<Readiness>,
    ) -> Self {
        // Usage of a chain waits for the writer thread in a lane of its own, and delays no request.
        let meter = meter.in_lane(reader.chain_id());
        let clock = Arc::clone(meter.sql().clock());
        let source = ChainUsage::new(reader, blocks, meter.clone(), worker);
        let since = clock.monotonic();
        Self { relay: Arc::new(ChainRelay::new(meter, source)), clock, since, readiness }
    }

    /// Relays until `stop` completes; an error means that nothing more can be relayed.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        tokio::select! {
            biased;
            () = stop => Ok(()),
            error = self.relay_always() => Err(error),
        }
    }

    async fn relay_always(&self) -> Error {
        let entropy = self.relay.meter().sql().entropy();
        ranges::drive(self, &*self.clock, &**entropy).await
    }

    fn source(&self) -> &ChainUsage {
        self.relay.source()
    }

    /// Relays some blocks; false if there is nothing to do for now.
    async fn step(&self) -> MeterResult<bool> {
        let chain = self.source().chain_id();
        let step = self.relay.step().await?;
        let waits = step == Step::Waiting;
        metrics::gauge!("logmill_meter_chain_correction_pending", "chain" => chain.to_string())
            .set(u8::from(waits));
        match step {
            Step::Progressed(delta) => {
                for (name, count) in [
                    ("logmill_meter_chain_events_total", delta.recorded),
                    ("logmill_meter_chain_cancelled_total", delta.cancelled),
                    ("logmill_meter_chain_conflicts_total", delta.conflicts),
                ] {
                    metrics::counter!(name, "chain" => chain.to_string()).increment(count);
                }
                if delta.conflicts > 0 {
                    let conflicts = delta.conflicts;
                    tracing::warn!(
                        chain,
                        conflicts,
                        "usage differs from what was recorded under an earlier rule; the recorded usage stays"
                    );
                }
                Ok(true)
            }
            Step::Applied { seq, changed } => {
                let of = chain.to_string();
                metrics::counter!("logmill_meter_chain_replacements_total", "chain" => of)
                    .increment(1);
                let (blocks, cancelled, recorded) =
                    (changed.blocks, changed.cancelled, changed.recorded);
                tracing::info!(
                    chain,
                    seq,
                    blocks,
                    cancelled,
                    recorded,
                    "usage of replaced blocks is corrected"
                );
                Ok(true)
            }
            Step::Idle | Step::Waiting => Ok(false),
        }
    }

    async fn recorded(&self) -> MeterResult<RecordedCoverage> {
        self.relay.meter().recorded_coverage(self.source().chain_id()).await
    }

    /// Adds the usage of blocks that are not final, which may still be removed, and of final blocks that are not
    /// relayed yet; reports what is missing.
    async fn unrecorded(&self, into: &mut UnrecordedUsage) -> MeterResult<()> {
        let recorded = self.recorded().await?;
        let standing = self.source().standing().await?;
        let mut missing = self.missing(standing.as_ref(), &recorded).await?;
        if let Some(standing) = &standing {
            missing.extend(self.add_rows(standing, &recorded, into).await?);
        }
        let chain = self.source().chain_id();
        into.incomplete.extend(missing.into_iter().map(|why| format!("chain {chain}: {why}")));
        into.recorded.push((standing.map(|standing| standing.generation), recorded));
        Ok(())
    }

    /// Adds the rows that are not recorded; returns why they are incomplete.
    async fn add_rows(
        &self,
        standing: &GenerationProgress,
        recorded: &RecordedCoverage,
        into: &mut UnrecordedUsage,
    ) -> MeterResult<Vec<String>> {
        let mut why = Vec::new();
        let mut known = recorded.all.clone();
        // The rows of replaced blocks are about to be compared with the recorded ones, one by one.
        for replacement in self.unapplied(recorded).await? {
            known.insert(&replacement.blocks);
        }
        let gaps = standing.done.ranges().flat_map(|range| known.gaps(&range));
        let mut parts: Vec<(RowSet, Heights)> =
            gaps.take(GAPS_MAX + 1).map(|gap| (RowSet::Final, gap)).collect();
        if parts.len() > GAPS_MAX {
            why.push("derived usage of many ranges of blocks is not recorded yet".to_owned());
        }
        if let (Some((first, _)), Some((last, _))) = (standing.tip.0.first(), standing.tip.0.last())
        {
            parts.push((RowSet::Tip, *first..last.saturating_add(1)));
        }
        // The newest first: of a long backlog its end is shown.
        for (part, range) in parts.iter().rev() {
            let left = ROWS_MAX.saturating_sub(into.events.len());
            let rows =
                self.source().rows(standing.generation, *part, range, Some(left + 1)).await?;
            if rows.len() > left {
                why.push(format!("more than {ROWS_MAX} usage events are not recorded yet"));
            }
            into.events.extend(rows.into_iter().take(left).map(|row| {
                let time = row.usage.event.time.unwrap_or(Timestamp(0));
                (row.usage.event, time)
            }));
        }
        Ok(why)
    }

    /// Progress of ingest; `None` if no more blocks are expected. If this process has not seen the head, the head that
    /// another process saw is used.
    async fn report(&self) -> MeterResult<Option<ProgressReport>> {
        let blocks = &self.source().blocks;
        let own = self.source().report();
        if own.is_none() && !blocks.is_shared {
            return Ok(None);
        }
        let running = self.clock.monotonic().saturating_sub(self.since);
        if let Some(report) = own.as_ref().filter(|report| is_of_this_run(report, running)) {
            return Ok(Some(report.clone()));
        }
        let sighting = blocks.chain.sightings().read().await;
        let sighting = sighting
            .map_err(|error| logmill_meter::Error::unavailable(logmill_io::error_chain(&error)))?;
        if own.is_none() && sighting.is_none() {
            // No process has ever followed it.
            return Ok(None);
        }
        Ok(Some(with_sighting(own.unwrap_or_default(), sighting, running)))
    }

    /// The replacements that recorded usage does not reflect.
    async fn unapplied(&self, recorded: &RecordedCoverage) -> MeterResult<Vec<BlockReplacement>> {
        let index = self.source().blocks.chain.index();
        let stored = index.coverage().last().map_or(0, |range| range.end);
        let relayed = recorded.all.ranges().next_back().map_or(0, |range| range.end);
        let (last, end) = (index.last_replacement(), stored.max(relayed));
        unapplied(self.source(), &recorded.state, last, end).await
    }

    /// Which usage is neither recorded nor derived.
    async fn missing(
        &self,
        standing: Option<&GenerationProgress>,
        recorded: &RecordedCoverage,
    ) -> MeterResult<Vec<String>> {
        let source = self.source();
        let mut why = Vec::new();
        let Some(standing) = standing else {
            why.push("usage is not derived yet".to_owned());
            return Ok(why);
        };
        let unapplied = self.unapplied(recorded).await?;
        if let (Some(first), Some(last)) = (unapplied.first(), unapplied.last()) {
            let blocks: IntervalSet = unapplied.iter().map(|one| one.blocks.clone()).collect();
            let total = blocks.total();
            why.push(format!(
                "usage of {total} replaced blocks from {} on is not corrected yet (replacement {}: {})",
                first.blocks.start, last.seq, last.reason
            ));
        }
        let compared = recorded.generations.get(&standing.generation);
        let compared = compared.cloned().unwrap_or_default();
        let again: u64 = standing
            .done
            .ranges()
            .flat_map(|range| recorded.all.overlap(&range))
            .flat_map(|range| compared.gaps(&range))
            .map(|gap| gap.end - gap.start)
            .sum();
        if again > 0 {
            why.push(format!("usage of {again} blocks is being compared with newly derived rows"));
        }
        let view =
            source.blocks.chain.view().await.map_err(|error| {
                logmill_meter::Error::unavailable(logmill_io::error_chain(&error))
            })?;
        let stored = heights(view.covered());
        let tip = view.tip_blocks().iter().map(|block| (block.at.number, block.at.hash));
        why.extend(underived(&stored, &tip.collect::<Vec<_>>(), standing));
        let lowest = source.lowest().unwrap_or_else(|| first_of(&stored));
        why.extend(unstored(&stored, lowest, self.report().await?));
        Ok(why)
    }
}

#[async_trait]
impl RangeDriver for Relay {
    type Error = Error;

    async fn claim(&self) -> Result<ranges::Step> {
        let more = Box::pin(self.step()).await?;
        self.readiness.clear(Cause::UsageNotRelayed, Some(self.source().chain_id()));
        Ok(if more { ranges::Step::Claimed } else { ranges::Step::CaughtUp })
    }

    async fn wait(&self, _: ranges::Step) {
        self.clock.sleep(LOOK_EVERY).await;
    }

    fn retry(&self, error: Error) -> Result<Backoff> {
        if error.is_fatal() {
            return Err(error);
        }
        let (chain, error) =
            (self.source().chain_id(), crate::one_line::brief(&logmill_io::error_chain(&error)));
        tracing::warn!(chain, error, "cannot record usage of a chain, retrying");
        self.readiness.report(Finding::new(Cause::UsageNotRelayed, Some(chain), error));
        Ok(Backoff::Constant { wait: AFTER_FAILURE })
    }
}

fn first_of(set: &IntervalSet) -> u64 {
    set.ranges().next().map_or(0, |range| range.start)
}

/// Reports how many stored blocks are not derived.
fn underived(
    stored: &IntervalSet,
    tip: &[(u64, alloy_primitives::B256)],
    standing: &GenerationProgress,
) -> Option<String> {
    let is_derived = |(number, hash): &(u64, alloy_primitives::B256)| {
        standing.done.contains(*number)
            || standing.tip.0.iter().any(|(at, known)| at == number && known == hash)
    };
    let mut left = stored.clone();
    for (number, _) in tip {
        left.remove(&(*number..number.saturating_add(1)));
    }
    for range in standing.done.ranges() {
        left.remove(&range);
    }
    let of_tip = tip.iter().filter(|block| !is_derived(block)).count();
    match left.total().saturating_add(u64::try_from(of_tip).unwrap_or(u64::MAX)) {
        0 => None,
        blocks => Some(format!("{blocks} stored blocks are not derived yet")),
    }
}

/// Whether a node has reported the head since the start of a process that has run for `running`.
fn is_of_this_run(report: &ProgressReport, running: Duration) -> bool {
    let ago = report.seen_ms_ago.map(Duration::from_millis);
    report.target.is_some() && ago.is_some_and(|ago| ago <= running)
}

/// Completes the report of a process that has run for `running` and has not seen the head itself. A head seen before
/// its start is outdated: the chain may have grown while no process looked.
fn with_sighting(
    report: ProgressReport,
    sighting: Option<Sighting>,
    running: Duration,
) -> ProgressReport {
    let Some(sighting) = sighting.filter(|sighting| sighting.age <= running) else {
        return ProgressReport { target: None, seen_ms_ago: None, ..report };
    };
    let ago = u64::try_from(sighting.age.as_millis()).unwrap_or(u64::MAX);
    ProgressReport { target: Some(sighting.head), seen_ms_ago: Some(ago), ..report }
}

/// Reports which known blocks are not stored, and whether the head is known at all.
fn unstored(stored: &IntervalSet, lowest: u64, report: Option<ProgressReport>) -> Vec<String> {
    // No more blocks are expected.
    let Some(report) = report else { return Vec::new() };
    let mut why = Vec::new();
    let end = stored.ranges().next_back().map_or(lowest, |range| range.end);
    let history: u64 = stored.gaps(&(lowest..end)).iter().map(|gap| gap.end - gap.start).sum();
    if history > 0 {
        why.push(format!("{history} blocks of history are not stored yet"));
    }
    match report.target {
        None => why.push("the head of the chain has not been seen yet".to_owned()),
        Some(head) if head >= end => {
            why.push(format!("{} blocks up to the head are not stored yet", head - end + 1));
        }
        Some(_) => {}
    }
    if let Some(ago) = report.seen_ms_ago.filter(|ago| *ago > HEAD_STALE_AFTER_MS) {
        why.push(format!("no node has reported the head for {} seconds", ago / 1_000));
    }
    why.extend(report.stalled.map(|stalled| format!("no new blocks are stored: {stalled}")));
    why
}

/// The relays of this process.
#[derive(Clone, Debug, Default)]
pub struct Relays(Arc<RwLock<RelayRegistry>>);

#[derive(Clone, Debug, Default)]
struct RelayRegistry {
    relays: Vec<Relay>,
    /// Why usage of chains with rules is not relayed here, by chain; `None` is the chain whose id is not known yet.
    lacking: BTreeMap<Option<u64>, String>,
}

impl RelayRegistry {
    /// Why usage of these chains, or of all if none is named, cannot be complete here: this process knows nothing of a
    /// chain that it does not relay.
    fn lacking_of(&self, chains: &[u64]) -> Vec<String> {
        let is_named = |chain: &u64| chains.is_empty() || chains.contains(chain);
        let noted = self.lacking.iter().filter(|(chain, _)| chain.as_ref().is_none_or(is_named));
        let mut why: Vec<String> = noted.map(|(_, why)| why.clone()).collect();
        let relayed: BTreeSet<u64> =
            self.relays.iter().map(|relay| relay.source().chain_id()).collect();
        let is_unknown =
            |chain: &&u64| !relayed.contains(chain) && !self.lacking.contains_key(&Some(**chain));
        let unknown = chains.iter().filter(is_unknown);
        why.extend(unknown.map(|chain| format!("chain {chain}: this process has no blocks of it")));
        if chains.is_empty() && relayed.is_empty() && why.is_empty() {
            why.push("this process has blocks of no chain".to_owned());
        }
        why
    }
}

impl Relays {
    /// Adds the relay of a chain; replaces an earlier one of the same chain.
    pub fn add(&self, relay: Relay) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let chain = relay.source().chain_id();
        known.relays.retain(|known| known.source().chain_id() != chain);
        known.relays.push(relay);
        known.lacking.remove(&Some(chain));
    }

    /// Notes why this process does not record usage of a chain; `None` is a chain whose id is not known yet.
    pub fn lack(&self, chain: Option<u64>, why: String) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).lacking.insert(chain, why);
    }

    /// Removes the note about the chain whose id was not known.
    pub fn chain_is_known(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).lacking.remove(&None);
    }

    fn known(&self) -> RelayRegistry {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Unrecorded usage of an event type. A type that comes from no chain has none.
    pub(crate) async fn unrecorded(
        &self,
        meter: &Meter,
        event_type: &str,
    ) -> MeterResult<UnrecordedUsage> {
        let Some(chains) = meter.settings().chain_types.get(event_type) else {
            return Ok(UnrecordedUsage::default());
        };
        let known = self.known();
        let incomplete = known.lacking_of(chains);
        let mut all = UnrecordedUsage { incomplete, ..UnrecordedUsage::default() };
        let of_type =
            |relay: &&Relay| chains.is_empty() || chains.contains(&relay.source().chain_id());
        for relay in known.relays.iter().filter(of_type) {
            relay.unrecorded(&mut all).await?;
        }
        Ok(all)
    }

    /// Whether nothing has been recorded, added or removed since.
    pub(crate) async fn is_current(
        &self,
        meter: &Meter,
        event_type: &str,
        unrecorded: &UnrecordedUsage,
    ) -> MeterResult<bool> {
        let Some(chains) = meter.settings().chain_types.get(event_type) else { return Ok(true) };
        let relays = self.known().relays;
        let of_type =
            |relay: &&Relay| chains.is_empty() || chains.contains(&relay.source().chain_id());
        for (relay, (generation, before)) in relays.iter().filter(of_type).zip(&unrecorded.recorded)
        {
            let now = relay.source().standing().await?.map(|standing| standing.generation);
            if now != *generation || relay.recorded().await? != *before {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use logmill_pipeline::derive::TipBlocks;

    use super::*;

    fn set(ranges: &[(u64, u64)]) -> IntervalSet {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    fn standing(done: &[(u64, u64)], tip: &[(u64, u8)]) -> GenerationProgress {
        GenerationProgress {
            processor: "usage_worker".to_owned(),
            generation: 1,
            tip: TipBlocks(tip.iter().map(|(number, hash)| (*number, hash_of(*hash))).collect()),
            done: set(done),
            replacements_applied: finalized_log_index::ReplacementPosition::default(),
            replacements_seen: finalized_log_index::ReplacementPosition::default(),
            behind: None,
            kept: None,
        }
    }

    fn hash_of(byte: u8) -> alloy_primitives::B256 {
        alloy_primitives::B256::repeat_byte(byte)
    }

    #[test]
    fn stored_blocks_that_are_not_derived_are_counted() {
        let stored = set(&[(0, 50)]);
        let tip = || vec![(48, hash_of(1)), (49, hash_of(2))];
        let check = |standing: GenerationProgress| underived(&stored, &tip(), &standing);
        assert_eq!(check(standing(&[(0, 48)], &[(48, 1), (49, 2)])), None);
        let said = |blocks: u64| Some(format!("{blocks} stored blocks are not derived yet"));
        assert_eq!(check(standing(&[(0, 48)], &[(48, 1)])), said(1));
        // A block of an abandoned branch.
        assert_eq!(check(standing(&[(0, 48)], &[(48, 1), (49, 9)])), said(1));
        assert_eq!(check(standing(&[(0, 10)], &[])), said(40));
        assert_eq!(check(standing(&[], &[])), said(50));
    }

    #[test]
    fn usage_of_a_chain_that_is_not_relayed_here_is_reported_as_missing() {
        let known = |lacking: &[(Option<u64>, &str)]| RelayRegistry {
            relays: Vec::new(),
            lacking: lacking.iter().map(|(chain, why)| (*chain, (*why).to_owned())).collect(),
        };
        let unknown = "chain 5: this process has no blocks of it";
        assert_eq!(known(&[]).lacking_of(&[5]), [unknown]);
        assert_eq!(known(&[]).lacking_of(&[]), ["this process has blocks of no chain"]);
        let noted = known(&[(Some(5), "nothing is derived"), (Some(6), "no more is")]);
        assert_eq!(noted.lacking_of(&[5]), ["nothing is derived"], "of its chains alone");
        assert_eq!(noted.lacking_of(&[]), ["nothing is derived", "no more is"]);
        let unmet = known(&[(None, "no node has told yet")]);
        assert_eq!(unmet.lacking_of(&[5]), ["no node has told yet", unknown]);
    }

    #[test]
    fn a_head_that_was_seen_before_this_process_started_is_outdated() {
        let report = |target, seen_ms_ago| {
            let report = ProgressReport { target, seen_ms_ago, ..ProgressReport::default() };
            is_of_this_run(&report, Duration::from_secs(2))
        };
        assert!(report(Some(9), Some(2_000)));
        assert!(!report(Some(9), Some(25_000)));
        assert!(!report(None, None));
    }

    #[test]
    fn blocks_that_are_known_and_not_stored_are_counted() {
        let check = |stored: &[(u64, u64)], lowest, report| unstored(&set(stored), lowest, report);
        let seen = |target| ProgressReport {
            target: Some(target),
            seen_ms_ago: Some(100),
            ..ProgressReport::default()
        };
        assert_eq!(check(&[(0, 50)], 0, None), Vec::<String>::new());
        assert_eq!(check(&[(0, 50)], 0, Some(seen(49))), Vec::<String>::new());
        assert_eq!(
            check(&[(0, 50)], 0, Some(seen(51))),
            ["2 blocks up to the head are not stored yet"]
        );
        assert_eq!(check(&[], 0, Some(seen(9))), ["10 blocks up to the head are not stored yet"]);
        assert_eq!(
            check(&[(20, 50)], 5, Some(seen(49))),
            ["15 blocks of history are not stored yet"]
        );
        assert_eq!(
            check(&[(0, 50)], 0, Some(ProgressReport::default())),
            ["the head of the chain has not been seen yet"]
        );
        // Another process has seen the head.
        let sighting = |head, age| {
            let age = Duration::from_millis(age);
            let (owner, uncompared) = ("other".to_owned(), None);
            let sighting = Sighting { head, stored: None, age, owner, damaged: 0, uncompared };
            let running = Duration::from_secs(500);
            Some(with_sighting(ProgressReport::default(), Some(sighting), running))
        };
        assert_eq!(
            check(&[(0, 50)], 0, sighting(49, 500_001)),
            ["the head of the chain has not been seen yet"],
            "before this process began"
        );
        assert_eq!(check(&[(0, 50)], 0, sighting(49, 100)), Vec::<String>::new());
        assert_eq!(
            check(&[(0, 50)], 0, sighting(50, 420_000)),
            [
                "1 blocks up to the head are not stored yet",
                "no node has reported the head for 420 seconds"
            ]
        );
        let stale = ProgressReport { seen_ms_ago: Some(420_000), ..seen(49) };
        assert_eq!(
            check(&[(0, 50)], 0, Some(stale)),
            ["no node has reported the head for 420 seconds"]
        );
        let stalled = ProgressReport { stalled: Some("the tip is full".to_owned()), ..seen(49) };
        assert_eq!(
            check(&[(0, 50)], 0, Some(stalled)),
            ["no new blocks are stored: the tip is full"]
        );
    }
}
