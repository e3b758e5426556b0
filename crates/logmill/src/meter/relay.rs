//! Usage of chains: final rows of `usage_events` are recorded by the meter, once each; those of the tip are shown
//! beside.
//!
//! ```text
//!   usage_worker ─▶ usage_events, final ─▶ relay ─▶ meter     (source eip155:CHAIN, id CHAIN:BLOCK:LOG:RULE)
//!                   usage_events, tip, and final ones that are not relayed yet ─▶ provisional figures
//! ```
//!
//! Guarantees: usage of a block is recorded, or shown beside, or said to be missing; nothing that a reorg may take back
//! is recorded. What the meter refuses stops the relay with a warning that says why, and is tried again: nothing is
//! left out. Leaves to others: recording, and correcting it when blocks are replaced ([`logmill_meter::chains`]),
//! reading rows ([`super::source`]).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use logmill_io::{Clock, Timestamp};
use logmill_meter::chains::ChainRecorded;
use logmill_meter::chains::relay::{ChainRelay, Step};
use logmill_meter::chains::source::UsageSource;
use logmill_meter::event::Event;
use logmill_meter::{Meter, Result as MeterResult};
use logmill_pipeline::derive::{Reader, Standing};
use logmill_pipeline::processors::usage::UsageWorker;
use logmill_work::{Heights, IntervalSet};

use super::source::{ChainUsage, Part, heights};
use crate::error::{Error, Result};
use crate::readiness::{Cause, Finding, Readiness};

pub(crate) use super::source::Blocks;

/// How often it is looked for more, and how long after a failure.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// The most rows that are not recorded yet and are shown, and in how many ranges of blocks.
const ROWS_MAX: usize = 100_000;
const GAPS_MAX: usize = 16;
/// How long after a node last answered the head is still taken for the head.
const HEAD_STALE_AFTER_MS: u64 = 60_000;

/// Carries usage of one chain to the meter. Clones are handles to the same.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    relay: Arc<ChainRelay<ChainUsage>>,
    clock: Arc<dyn Clock>,
    readiness: Arc<Readiness>,
}

/// Usage that is not recorded yet, as of a moment.
#[derive(Debug, Default)]
pub(crate) struct Unrecorded {
    pub(crate) events: Vec<(Event, Timestamp)>,
    /// Why these are not all; empty if they are.
    pub(crate) incomplete: Vec<String>,
    /// What was recorded of every chain.
    recorded: Vec<(Option<u32>, ChainRecorded)>,
}

impl Relay {
    pub(crate) fn new(
        reader: Reader,
        blocks: Blocks,
        meter: Meter,
        worker: &UsageWorker,
        readiness: Arc<Readiness>,
    ) -> Self {
        let clock = Arc::clone(meter.sql().clock());
        let source = ChainUsage::new(reader, blocks, meter.clone(), worker);
        Self { relay: Arc::new(ChainRelay::new(meter, source)), clock, readiness }
    }

    /// Relays until `stop` completes; the error is one after which nothing can be relayed.
    pub(crate) async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        tokio::select! {
            biased;
            () = stop => Ok(()),
            error = self.relay_always() => Err(error),
        }
    }

    async fn relay_always(&self) -> Error {
        let chain = self.source().chain_id();
        loop {
            let wait = match Box::pin(self.step()).await.map_err(Error::from) {
                Err(error) if error.is_fatal() => return error,
                Err(error) => {
                    let error = crate::output::brief(&logmill_io::chain(&error));
                    tracing::warn!(chain, error, "cannot record usage of a chain, retrying");
                    let finding = Finding::new(Cause::UsageNotRelayed, Some(chain), error);
                    self.readiness.report(finding);
                    AFTER_FAILURE
                }
                Ok(more) => {
                    self.readiness.clear(Cause::UsageNotRelayed, Some(chain));
                    if more {
                        continue;
                    }
                    LOOK_EVERY
                }
            };
            self.clock.sleep(wait).await;
        }
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
                    metrics::counter!(name).increment(count);
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
                metrics::counter!("logmill_meter_chain_replacements_total").increment(1);
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

    async fn recorded(&self) -> MeterResult<ChainRecorded> {
        self.relay.meter().chain_recorded(self.source().chain_id()).await
    }

    /// Adds the usage of blocks that are not final, which may still be taken back, and of those that are not relayed
    /// yet, and says what is missing.
    async fn unrecorded(&self, into: &mut Unrecorded) -> MeterResult<()> {
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

    /// Adds the rows that are not recorded; gives why they are not all.
    async fn add_rows(
        &self,
        standing: &Standing,
        recorded: &ChainRecorded,
        into: &mut Unrecorded,
    ) -> MeterResult<Vec<String>> {
        let mut why = Vec::new();
        let mut known = recorded.all.clone();
        // The rows of replaced blocks are about to be compared with what is recorded of them, one by one.
        for replacement in self.source().replacements_after(recorded.state.applied).await? {
            known.insert(&replacement.blocks);
        }
        let gaps = standing.done.ranges().flat_map(|range| known.gaps(&range));
        let mut parts: Vec<(Part, Heights)> =
            gaps.take(GAPS_MAX + 1).map(|gap| (Part::Final, gap)).collect();
        if parts.len() > GAPS_MAX {
            why.push("derived usage of many ranges of blocks is not recorded yet".to_owned());
        }
        if let (Some((first, _)), Some((last, _))) = (standing.tip.0.first(), standing.tip.0.last())
        {
            parts.push((Part::Tip, *first..last.saturating_add(1)));
        }
        // The newest first: what is shown of a long backlog is its end.
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

    /// Which usage is neither recorded nor derived.
    async fn missing(
        &self,
        standing: Option<&Standing>,
        recorded: &ChainRecorded,
    ) -> MeterResult<Vec<String>> {
        let source = self.source();
        let mut why = Vec::new();
        let Some(standing) = standing else {
            why.push("usage is not derived yet".to_owned());
            return Ok(why);
        };
        let unapplied = source.replacements_after(recorded.state.applied).await?;
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
        let view = source
            .blocks
            .chain
            .view()
            .await
            .map_err(|error| logmill_meter::Error::unavailable(logmill_io::chain(&error)))?;
        let stored = heights(view.covered());
        let tip = view.tip_blocks().iter().map(|block| (block.at.number, block.at.hash));
        why.extend(underived(&stored, &tip.collect::<Vec<_>>(), standing));
        let lowest = source.lowest().unwrap_or_else(|| first_of(&stored));
        why.extend(unstored(&stored, lowest, source.report()));
        Ok(why)
    }
}

fn first_of(set: &IntervalSet) -> u64 {
    set.ranges().next().map_or(0, |range| range.start)
}

/// Says how many stored blocks are not derived.
fn underived(
    stored: &IntervalSet,
    tip: &[(u64, alloy_primitives::B256)],
    standing: &Standing,
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

/// Says which blocks are known and not stored, and whether the head is known at all.
fn unstored(
    stored: &IntervalSet,
    lowest: u64,
    report: Option<logmill_pipeline::ingest::ProgressReport>,
) -> Vec<String> {
    // No more blocks are to come.
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
    why.extend(report.stalled.map(|stalled| format!("no blocks are stored: {stalled}")));
    why
}

/// What carries usage of chains to the meter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relays(Arc<RwLock<Known>>);

#[derive(Clone, Debug, Default)]
struct Known {
    relays: Vec<Relay>,
    /// Why usage of chains with rules is not carried here, by chain; `None` is the chain that is not known yet.
    lacking: BTreeMap<Option<u64>, String>,
}

impl Relays {
    pub(crate) fn add(&self, relay: Relay) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).relays.push(relay);
    }

    /// Notes why usage of a chain is not recorded by this process; `None` is a chain that is not known yet.
    pub(crate) fn lack(&self, chain: Option<u64>, why: String) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).lacking.insert(chain, why);
    }

    /// Forgets that a chain is not known yet.
    pub(crate) fn chain_is_known(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).lacking.remove(&None);
    }

    fn known(&self) -> Known {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Usage of an event type that is not recorded. A type that comes from no chain has none.
    pub(crate) async fn unrecorded(
        &self,
        meter: &Meter,
        event_type: &str,
    ) -> MeterResult<Unrecorded> {
        let Some(chains) = meter.settings().chain_types.get(event_type) else {
            return Ok(Unrecorded::default());
        };
        let Known { relays, lacking } = self.known();
        let incomplete = lacking.into_values().collect();
        let mut all = Unrecorded { incomplete, ..Unrecorded::default() };
        let of_type =
            |relay: &&Relay| chains.is_empty() || chains.contains(&relay.source().chain_id());
        for relay in relays.iter().filter(of_type) {
            relay.unrecorded(&mut all).await?;
        }
        Ok(all)
    }

    /// Whether nothing was recorded since, nor has come or gone.
    pub(crate) async fn is_current(
        &self,
        meter: &Meter,
        event_type: &str,
        unrecorded: &Unrecorded,
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
    use logmill_pipeline::ingest::ProgressReport;

    use super::*;

    fn set(ranges: &[(u64, u64)]) -> IntervalSet {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    fn standing(done: &[(u64, u64)], tip: &[(u64, u8)]) -> Standing {
        Standing {
            processor: "usage_worker".to_owned(),
            generation: 1,
            tip: TipBlocks(tip.iter().map(|(number, hash)| (*number, hash_of(*hash))).collect()),
            done: set(done),
            replacements_applied: 0,
            behind: None,
        }
    }

    fn hash_of(byte: u8) -> alloy_primitives::B256 {
        alloy_primitives::B256::repeat_byte(byte)
    }

    #[test]
    fn stored_blocks_that_are_not_derived_are_counted() {
        let stored = set(&[(0, 50)]);
        let tip = || vec![(48, hash_of(1)), (49, hash_of(2))];
        let check = |standing: Standing| underived(&stored, &tip(), &standing);
        assert_eq!(check(standing(&[(0, 48)], &[(48, 1), (49, 2)])), None);
        let said = |blocks: u64| Some(format!("{blocks} stored blocks are not derived yet"));
        assert_eq!(check(standing(&[(0, 48)], &[(48, 1)])), said(1));
        // A block of a branch that is dead by now.
        assert_eq!(check(standing(&[(0, 48)], &[(48, 1), (49, 9)])), said(1));
        assert_eq!(check(standing(&[(0, 10)], &[])), said(40));
        assert_eq!(check(standing(&[], &[])), said(50));
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
        let stale = ProgressReport { seen_ms_ago: Some(420_000), ..seen(49) };
        assert_eq!(
            check(&[(0, 50)], 0, Some(stale)),
            ["no node has reported the head for 420 seconds"]
        );
        let stalled = ProgressReport { stalled: Some("the tip is full".to_owned()), ..seen(49) };
        assert_eq!(check(&[(0, 50)], 0, Some(stalled)), ["no blocks are stored: the tip is full"]);
    }
}
