//! The relay: carries usage of one chain's final blocks to the meter, and corrects it when blocks are replaced.
//!
//! ```text
//!   step:  read state ─▶ read source ─┬─ unapplied replacement, derived ─▶ begin ─▶ reconcile its blocks ─▶ finish
//!                                     ├─ unapplied replacement, not derived yet ─▶ mark usage as pending
//!                                     └─ new blocks ─▶ reconcile them
//! ```
//!
//! The blocks of a replacement are reconciled one by one like new ones: usage that still matches is left alone, so a
//! replacement that changed nothing costs only reads. Blocks that were removed and have not come back are cancelled
//! only once the chain is caught up, so that a refetch of the same blocks announces no dip.
//!
//! Stored blocks that were restored from a backup or stored again have a different log of replacements than the one
//! that was applied. Then all blocks count as one replacement, up to the end of the new log.
//!
//! Guarantees: every step may be interrupted anywhere and is resumed; the last write of a replacement is its number as
//! the applied one. Two relays of one chain do no harm. Leaves to others: reading blocks ([`UsageSource`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx};
use logmill_work::{Coverage, Heights, IntervalSet, Scope};

use super::ledger::{self, ByHeight, Rules};
use super::reconcile::{Batch, Cause};
use super::source::{BlockReplacement, SourceState, UsageSource};
use super::state::{CorrectionRange, LogVerdict, corrected, judge, mark_pending, scope, scopes};
use super::state::{settle_log, unapplied};
use super::usage::{UsageBlock, UsageDelta};
use crate::Meter;
use crate::aggregate::due::SweepScope;
use crate::error::{Error, Result};
use crate::store::chain_state::{COMPLETE, ChainState};
use crate::store::head::Head;

const BLOCKS_PER_STEP: u64 = 500;
/// Approximate number of events that one transaction records and cancels.
const EVENTS_PER_COMMIT: usize = 2_000;
/// Maximum number of removed blocks that one transaction cancels.
const GONE_PER_COMMIT: usize = 200;
/// Maximum size of the joined reasons of replacements applied together.
const REASON_BYTES_MAX: usize = 900;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some work was done; there may be more.
    Progressed(UsageDelta),
    /// A replacement was applied.
    Applied { seq: u64, changed: UsageDelta },
    /// All derived usage is recorded.
    Idle,
    /// A replacement waits to be derived, or for its blocks.
    Waiting,
}

/// Carries usage of one chain to the meter.
#[derive(Debug)]
pub struct ChainRelay<S> {
    meter: Meter,
    source: S,
    /// The completeness that was last reported to the meter.
    complete: Mutex<Option<Timestamp>>,
}

/// Replacements that are applied together.
struct PendingReplacements {
    blocks: IntervalSet,
    cause: Cause,
}

/// The state that one step works with.
struct View {
    chain: u64,
    state: ChainState,
    source: SourceState,
    scope: Scope,
    relayed: IntervalSet,
    /// Replacements that are not applied, in order.
    unapplied: Vec<BlockReplacement>,
}

impl View {
    /// The replacements that the derived rows reflect and recorded usage does not.
    fn pending(&self) -> Option<PendingReplacements> {
        let derived = self.source.derived_replacement;
        let ready = self.unapplied.iter().filter(|one| Some(one.seq) <= derived);
        let ready: Vec<&BlockReplacement> = ready.collect();
        let seq = ready.last()?.seq;
        let blocks: IntervalSet = ready.iter().map(|one| one.blocks.clone()).collect();
        let start = blocks.ranges().next()?.start;
        let end = blocks.ranges().next_back()?.end;
        let reasons: Vec<&str> = ready.iter().map(|one| one.reason.as_str()).collect();
        let mut reason = format!(
            "blocks {start} to {} of chain {} were replaced (replacement {seq}): {}",
            end - 1,
            self.chain,
            reasons.join("; ")
        );
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        let log = self.state.log;
        let cause = Cause { log, seq, replaced: true, blocks: start..end, reason };
        Some(PendingReplacements { blocks, cause })
    }

    /// Replaced blocks whose derived rows still reflect the old blocks.
    fn stale(&self) -> IntervalSet {
        let Some(derived) = self.source.derived_replacement else {
            // Nothing is known about these rows.
            return std::iter::once(0..u64::MAX).collect();
        };
        let stale = self.unapplied.iter().filter(|one| one.seq > derived);
        stale.map(|one| one.blocks.clone()).collect()
    }

    /// The first derived blocks, within `among` if given, that are not relayed.
    fn next(&self, among: Option<&IntervalSet>) -> Option<Heights> {
        let mut done = self.relayed.clone();
        done.extend(&self.stale());
        self.source.derived.ranges().find_map(|range| {
            let missing = done.gaps(&range);
            let mut parts = missing.into_iter().flat_map(|missing| match among {
                Some(among) => among.overlap(&missing),
                None => vec![missing],
            });
            let first = parts.next()?;
            Some(first.start..first.end.min(first.start.saturating_add(BLOCKS_PER_STEP)))
        })
    }
}

impl<S: UsageSource> ChainRelay<S> {
    pub fn new(meter: Meter, source: S) -> Self {
        Self { meter, source, complete: Mutex::default() }
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    pub fn source(&self) -> &S {
        &self.source
    }

    /// Does the next piece of work.
    pub async fn step(&self) -> Result<Step> {
        let Some(view) = self.view().await? else {
            self.announce_complete(Timestamp(0)).await?;
            return Ok(Step::Idle);
        };
        self.mark_pending(&view).await?;
        self.announce_complete(self.complete_before(&view).await?).await?;
        let pending = view.pending();
        if let Some(pending) = &pending {
            if !view.state.has_begun(pending.cause.seq) {
                self.begin(&view, pending).await?;
                return Ok(Step::Progressed(UsageDelta::default()));
            }
            if let Some(range) = view.next(Some(&pending.blocks)) {
                return self.reconcile_range(&view, range, &pending.cause).await;
            }
            match self.resolve_gone(&view, pending).await? {
                GoneBlocks::Cancelled(delta) => return Ok(Step::Progressed(delta)),
                GoneBlocks::Resolved => return self.finish(&view, pending).await,
                GoneBlocks::Awaited => {}
            }
        }
        if let Some(range) = view.next(None) {
            let reason = format!("the block is no longer stored in chain {}", view.chain);
            let (log, seq, blocks) = (view.state.log, view.state.applied, range.clone());
            let cause = Cause { log, seq, replaced: false, blocks, reason };
            return self.reconcile_range(&view, range, &cause).await;
        }
        match view.unapplied.is_empty() && view.source.derived_replacement.is_some() {
            true => Ok(Step::Idle),
            false => Ok(Step::Waiting),
        }
    }

    async fn announce_complete(&self, before: Timestamp) -> Result<()> {
        let known = *self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        if known != Some(before) {
            self.meter.chain_is_complete(self.source.chain_id(), before).await?;
            *self.complete.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        }
        Ok(())
    }

    async fn view(&self) -> Result<Option<View>> {
        let chain = self.source.chain_id();
        // Read first: every later replacement changes the state's version before it changes usage.
        let state = ChainState::read(&self.meter.sql.reading(), chain).await?;
        let Some(mut source) = self.source.state().await? else { return Ok(None) };
        let mut verdict = judge(&self.source, &state).await?;
        if verdict == LogVerdict::Other {
            // Another process may have applied replacements that this one has not read yet.
            self.source.follow().await?;
            let Some(followed) = self.source.state().await? else { return Ok(None) };
            source = followed;
            verdict = judge(&self.source, &state).await?;
        }
        let state = match verdict {
            LogVerdict::Other => settle_log(&self.meter.sql, chain, state, None).await?,
            LogVerdict::Adopted(mark) => {
                settle_log(&self.meter.sql, chain, state, Some(mark)).await?
            }
            LogVerdict::Same | LogVerdict::Left => state,
        };
        let recorded = ledger::end(&self.meter.sql.reading(), chain).await?;
        let stored = source.stored.ranges().next_back().map_or(0, |range| range.end);
        let (last, end) = (source.last_replacement, recorded.max(stored));
        let unapplied = unapplied(&self.source, &state, last, end).await?;
        let scope = scope(chain, source.generation);
        let relayed = Coverage::read(self.meter.sql(), &scope).await?.done;
        Ok(Some(View { chain, state, source, scope, relayed, unapplied }))
    }

    /// Records from which time usage awaits correction, so that no affected period becomes final.
    async fn mark_pending(&self, view: &View) -> Result<()> {
        let first = view.unapplied.iter().map(|one| one.blocks.start).min();
        let Some(first) = first else { return Ok(()) };
        // A block is never older than the one below it.
        let below = match first.checked_sub(1) {
            Some(below) => self.source.block_time(below).await?,
            None => None,
        };
        let from = below.unwrap_or(Timestamp(0));
        let seen = view.unapplied.last().map_or(0, |last| last.seq);
        // `None`: the log has been cut short, which the next step detects.
        let Some(mark) = self.source.replacement_mark(seen).await? else { return Ok(()) };
        let is_noted = (view.state.seen, view.state.seen_mark) == (seen, mark);
        if !is_noted || view.state.pending.is_none_or(|known| from < known) {
            let (chain, version) = (view.chain, view.state.version);
            mark_pending(&self.meter.sql, chain, version, from, (seen, mark)).await?;
        }
        Ok(())
    }

    /// Removes the replaced blocks from the coverage, and fences out relays that read them before.
    async fn begin(&self, view: &View, pending: &PendingReplacements) -> Result<()> {
        let (chain, state) = (view.chain, view.state);
        let seq = pending.cause.seq;
        let Some(mark) = self.source.replacement_mark(seq).await? else { return Ok(()) };
        let next = state.beginning(seq, mark);
        let begin = |tx: Tx| async move {
            Head::lock(&tx).await?;
            let now = ChainState::read(&tx, chain).await?;
            if now.version != state.version {
                return Ok(());
            }
            for scope in scopes(&tx, chain).await? {
                for range in pending.blocks.ranges() {
                    Coverage::release(&tx, &scope, &range).await?;
                }
            }
            let next =
                ChainState { begun: next.begun, mark: next.mark, version: next.version, ..now };
            next.store(&tx, chain).await
        };
        self.meter.sql.write(begin).await
    }

    /// The last write of a replacement: its number as the applied one.
    async fn finish(&self, view: &View, pending: &PendingReplacements) -> Result<Step> {
        let (chain, version, seq) = (view.chain, view.state.version, pending.cause.seq);
        let corrections = CorrectionRange::new(chain, &view.state, seq);
        let Some(mark) = self.source.replacement_mark(seq).await? else {
            return Ok(Step::Progressed(UsageDelta::default()));
        };
        // Not compared with the replacements that were read: there may be more.
        let is_last = view.source.last_replacement <= seq;
        let finish = |tx: Tx| async move {
            Head::lock(&tx).await?;
            let now = ChainState::read(&tx, chain).await?;
            if now.version != version {
                return Ok(None);
            }
            let text = "UPDATE meter_chain_correction SET done_ms = now_ms()
                        WHERE chain = $1 AND log = $2 AND seq > $3 AND seq <= $4";
            tx.execute(text, corrections.params()).await?;
            let (version, begun) = (version + 1, seq);
            let mut next = ChainState { version, begun, applied: seq, mark, ..now };
            if is_last {
                (next.pending, next.pending_since) = (None, None);
            }
            next.store(&tx, chain).await?;
            Ok::<_, Error>(Some(corrected(&tx, &corrections).await?))
        };
        let Some(changed) = self.meter.sql.write(finish).await? else {
            return Ok(Step::Progressed(UsageDelta::default()));
        };
        if changed.blocks > 0 {
            // Without this sweep, corrected aggregates would wait for the next quarter of an hour.
            Box::pin(self.meter.sweep(SweepScope::Finished)).await?;
        }
        Ok(Step::Applied { seq, changed })
    }

    /// Makes the recorded usage of a range match the stored blocks, in one or more transactions.
    async fn reconcile_range(&self, view: &View, range: Heights, cause: &Cause) -> Result<Step> {
        let rules = Rules::resolve(&self.meter.sql, view.chain, &self.source.rules()).await?;
        let usage = self.source.usage(view.source.generation, &range).await?;
        let mut usage: BTreeMap<u64, UsageBlock> =
            usage.into_iter().map(|block| (block.height, block)).collect();
        let mut recorded = ledger::read(&self.meter.sql.reading(), view.chain, &range).await?;
        let mut all = UsageDelta::default();
        let mut from = range.start;
        while from < range.end {
            let end = batch_end(from..range.end, &usage, &recorded);
            let part = from..end;
            let recorded = split(&mut recorded, end);
            let mut stored: BTreeMap<u64, Option<UsageBlock>> = BTreeMap::new();
            for height in recorded.keys().filter(|height| !usage.contains_key(height)) {
                // A block without usage. If it is already gone, the next replacement lists it.
                let Some(hash) = self.source.block_hash(*height).await? else { continue };
                let block = UsageBlock { height: *height, hash, usage: Vec::new() };
                stored.insert(*height, Some(block));
            }
            let rest = usage.split_off(&end);
            stored.extend(
                std::mem::replace(&mut usage, rest).into_iter().map(|(at, b)| (at, Some(b))),
            );
            let batch = Batch {
                chain: view.chain,
                rules: &rules,
                version: view.state.version,
                range: part,
                scope: Some(&view.scope),
                recorded,
                stored,
                cause,
            };
            let Some(delta) = self.meter.reconcile(&batch).await? else { break };
            all.add(&delta);
            from = end;
        }
        Ok(Step::Progressed(all))
    }

    /// Cancels usage of replaced blocks in whose place no block is stored or expected.
    async fn resolve_gone(&self, view: &View, pending: &PendingReplacements) -> Result<GoneBlocks> {
        let source = &view.source;
        let lowest =
            source.lowest.or_else(|| source.stored.ranges().next().map(|range| range.start));
        let end = source.stored.ranges().next_back().map_or(0, |range| range.end);
        let mut awaited = false;
        for range in pending.blocks.ranges() {
            // Blocks below the lowest one will never be stored.
            let range = range.start.max(lowest.unwrap_or(0).min(range.end))..range.end;
            for missing in source.derived.gaps(&range) {
                let sql = self.meter.sql.reading();
                let below = missing.start..missing.end.min(end);
                // A stored block that is not derived yet, or one that is being fetched again.
                awaited |= !ledger::live_heights(&sql, view.chain, &below, 1).await?.is_empty();
                let above = missing.start.max(end)..missing.end;
                let gone = ledger::live_heights(&sql, view.chain, &above, GONE_PER_COMMIT).await?;
                if gone.is_empty() {
                    continue;
                }
                if source.follows && !source.caught_up {
                    awaited = true;
                    continue;
                }
                let dead = self.dead(view.chain, &gone).await?;
                awaited |= dead.len() < gone.len();
                if !dead.is_empty() {
                    return self.cancel_gone(view, &dead, &pending.cause).await;
                }
            }
        }
        Ok(if awaited { GoneBlocks::Awaited } else { GoneBlocks::Resolved })
    }

    /// The heights whose recorded block is not stored: a block that is not final yet may turn out to be the same.
    async fn dead(&self, chain: u64, heights: &[u64]) -> Result<Vec<u64>> {
        let mut dead = Vec::new();
        for height in heights {
            let range = *height..height.saturating_add(1);
            let recorded = ledger::read(&self.meter.sql.reading(), chain, &range).await?;
            let now = self.source.block_hash(*height).await?;
            let mut live = recorded
                .values()
                .flatten()
                .filter(|(_, entries)| entries.iter().any(|entry| entry.live));
            if live.any(|(hash, _)| Some(*hash) != now) {
                dead.push(*height);
            }
        }
        Ok(dead)
    }

    async fn cancel_gone(&self, view: &View, gone: &[u64], cause: &Cause) -> Result<GoneBlocks> {
        let rules = Rules::resolve(&self.meter.sql, view.chain, &self.source.rules()).await?;
        let mut all = UsageDelta::default();
        for height in gone {
            let range = *height..height.saturating_add(1);
            let recorded = ledger::read(&self.meter.sql.reading(), view.chain, &range).await?;
            let batch = Batch {
                chain: view.chain,
                rules: &rules,
                version: view.state.version,
                range,
                scope: None,
                recorded,
                stored: BTreeMap::from([(*height, None)]),
                cause,
            };
            let Some(delta) = self.meter.reconcile(&batch).await? else { break };
            all.add(&delta);
        }
        Ok(GoneBlocks::Cancelled(all))
    }

    /// The moment before which all usage is recorded.
    async fn complete_before(&self, view: &View) -> Result<Timestamp> {
        let source = &view.source;
        // It does not matter that this process has no nodes: another may have some, or this one after a restart.
        if source.is_archived && view.unapplied.is_empty() {
            return Ok(COMPLETE);
        }
        let lowest =
            source.lowest.or_else(|| source.derived.ranges().next().map(|range| range.start));
        let mut ranges = view.relayed.ranges();
        let unbroken = ranges.find(|range| lowest.is_some_and(|lowest| range.contains(&lowest)));
        let Some(last) = unbroken.and_then(|range| range.end.checked_sub(1)) else {
            return Ok(Timestamp(0));
        };
        // Blocks above it are never older, but may have the same time.
        Ok(self.source.block_time(last).await?.unwrap_or(Timestamp(0)))
    }
}

/// Result for replaced blocks that have no successor.
enum GoneBlocks {
    /// Some were cancelled; there may be more.
    Cancelled(UsageDelta),
    /// Some blocks may still arrive.
    Awaited,
    /// None is left.
    Resolved,
}

/// End of the next batch of a range: whole blocks with about as many events as one transaction may have.
fn batch_end(range: Heights, usage: &BTreeMap<u64, UsageBlock>, recorded: &ByHeight) -> u64 {
    let mut events: BTreeMap<u64, usize> = BTreeMap::new();
    for (height, block) in usage.range(range.clone()) {
        *events.entry(*height).or_default() += block.usage.len();
    }
    for (height, known) in recorded.range(range.clone()) {
        *events.entry(*height).or_default() += known.values().map(Vec::len).sum::<usize>();
    }
    let mut total = 0;
    for (height, events) in events {
        total += events;
        if total >= EVENTS_PER_COMMIT {
            return height.saturating_add(1).min(range.end);
        }
    }
    range.end
}

/// Removes and returns the entries below a height.
fn split(recorded: &mut ByHeight, end: u64) -> ByHeight {
    let rest = recorded.split_off(&end);
    std::mem::replace(recorded, rest)
}
