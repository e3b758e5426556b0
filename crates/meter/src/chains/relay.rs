//! The relay: carries usage of one chain's final blocks to the meter, and corrects it when blocks are replaced.
//!
//! ```text
//!   step:  read state ─▶ read source ─┬─ unapplied replacement, derived ─▶ begin ─▶ reconcile its blocks ─▶ finish
//!                                     ├─ unapplied replacement, not derived yet ─▶ mark usage as pending
//!                                     └─ new blocks ─▶ reconcile them
//! ```
//!
//! The blocks of a replacement are reconciled block by block like new ones: what is still true is left alone, so a
//! replacement that changed nothing costs reading. Blocks that were removed and have not come back are cancelled only
//! once the chain is caught up, so that a refetch of the same blocks announces no dip.
//!
//! Guarantees: every step may be interrupted anywhere and is found again; the last write of a replacement is the number
//! of the applied one. Two relays of one chain do no harm. Leaves to others: reading blocks ([`UsageSource`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, params};
use logmill_work::{Coverage, Heights, IntervalSet, Scope};

use super::ledger::{self, ByHeight, ChainState, Rules};
use super::reconcile::{Batch, Cause, UsageDelta};
use super::source::{BlockReplacement, SourceState, UsageSource};
use super::state::{corrected, scope, scopes};
use super::usage::UsageBlock;
use crate::due::Which;
use crate::error::Result;
use crate::meter::{Head, Meter};

/// The consumer in the coverage of the meter's database.
pub(crate) const CONSUMER: &str = "usage_ledger";
/// The consumer of databases from before the ledger.
pub(crate) const EARLIER_CONSUMER: &str = "usage_relay";
/// Blocks of one step.
const BLOCKS_PER_STEP: u64 = 500;
/// About how many events one transaction records and cancels.
const EVENTS_PER_COMMIT: usize = 2_000;
/// Blocks that are cancelled in one transaction because they are gone.
const GONE_PER_COMMIT: usize = 200;
/// Bytes of reasons that are kept of several replacements applied together.
const REASON_BYTES_MAX: usize = 900;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something; there may be more.
    Progressed(UsageDelta),
    /// A replacement was applied.
    Applied {
        /// Its number.
        seq: u64,
        /// What changed with it.
        changed: UsageDelta,
    },
    /// Nothing: everything that is derived is recorded.
    Idle,
    /// Nothing: a replacement is waited for to be derived, or for its blocks.
    Waiting,
}

/// Carries usage of one chain to the meter.
#[derive(Debug)]
pub struct ChainRelay<S> {
    meter: Meter,
    source: S,
    /// Until when usage is complete, as the meter was told last.
    complete: Mutex<Option<Timestamp>>,
}

/// Replacements that are applied together.
struct Pending {
    blocks: IntervalSet,
    cause: Cause,
}

/// What one step works with.
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
    /// The replacements that the derived rows reflect and usage does not.
    fn pending(&self) -> Option<Pending> {
        let derived = self.source.derived_replacement;
        let ready = self.unapplied.iter().filter(|one| one.seq <= derived);
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
        let cause = Cause { seq, replaced: true, blocks: start..end, reason };
        Some(Pending { blocks, cause })
    }

    /// Blocks that were replaced and whose derived rows are of the old ones.
    fn stale(&self) -> IntervalSet {
        let derived = self.source.derived_replacement;
        let stale = self.unapplied.iter().filter(|one| one.seq > derived);
        stale.map(|one| one.blocks.clone()).collect()
    }

    /// The first derived blocks of some that are not relayed.
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
    /// Relays from a source to a meter.
    pub fn new(meter: Meter, source: S) -> Self {
        Self { meter, source, complete: Mutex::default() }
    }

    /// The meter.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Does the next thing.
    pub async fn step(&self) -> Result<Step> {
        let Some(view) = self.view().await? else {
            self.announce_complete(Timestamp(0)).await?;
            return Ok(Step::Idle);
        };
        self.mark_pending(&view).await?;
        self.announce_complete(self.complete_before(&view).await?).await?;
        let pending = view.pending();
        if let Some(pending) = &pending {
            if view.state.begun < pending.cause.seq {
                self.begin(&view, pending).await?;
                return Ok(Step::Progressed(UsageDelta::default()));
            }
            if let Some(range) = view.next(Some(&pending.blocks)) {
                return self.reconcile_range(&view, range, &pending.cause).await;
            }
            match self.resolve_gone(&view, pending).await? {
                Gone::Cancelled(delta) => return Ok(Step::Progressed(delta)),
                Gone::Resolved => return self.finish(&view, pending).await,
                Gone::Awaited => {}
            }
        }
        if let Some(range) = view.next(None) {
            let reason = format!("the block is no longer stored in chain {}", view.chain);
            let (seq, blocks) = (view.state.applied, range.clone());
            let cause = Cause { seq, replaced: false, blocks, reason };
            return self.reconcile_range(&view, range, &cause).await;
        }
        match view.unapplied.is_empty() {
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
        // First: whatever replaces blocks from here on changes the state's version before usage.
        let state = ChainState::read(&self.meter.sql.reading(), chain).await?;
        let Some(source) = self.source.state().await? else { return Ok(None) };
        let last = source.last_replacement.max(source.derived_replacement);
        let state = match last < state.applied {
            // The stored chain was made again from nothing, and its replacements with it.
            true => self.meter.forget_replacements(chain, state).await?,
            false => state,
        };
        let unapplied = self.source.replacements_after(state.applied).await?;
        let scope = scope(chain, source.generation);
        let relayed = Coverage::read(self.meter.sql(), &scope).await?.done;
        Ok(Some(View { chain, state, source, scope, relayed, unapplied }))
    }

    /// Notes from when on usage is not corrected yet, so that no period of it is called final.
    async fn mark_pending(&self, view: &View) -> Result<()> {
        let first = view.unapplied.iter().map(|one| one.blocks.start).min();
        let Some(first) = first else { return Ok(()) };
        // Blocks have no earlier time than the one below them.
        let below = match first.checked_sub(1) {
            Some(below) => self.source.block_time(below).await?,
            None => None,
        };
        let from = below.unwrap_or(Timestamp(0));
        if view.state.pending.is_none_or(|known| from < known) {
            self.meter.mark_pending(view.chain, view.state.version, from).await?;
        }
        Ok(())
    }

    /// Makes the replaced blocks missing again, and refuses whoever has read them before.
    async fn begin(&self, view: &View, pending: &Pending) -> Result<()> {
        let (chain, state) = (view.chain, view.state);
        let next = ChainState { version: state.version + 1, begun: pending.cause.seq, ..state };
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
                ChainState { pending: now.pending, pending_since: now.pending_since, ..next };
            Ok(next.store(&tx, chain).await?)
        };
        self.meter.sql.write(begin).await?;
        Ok(())
    }

    /// The last write of a replacement: its number.
    async fn finish(&self, view: &View, pending: &Pending) -> Result<Step> {
        let (chain, version, seq) = (view.chain, view.state.version, pending.cause.seq);
        let before = view.state.applied;
        let is_last = view.unapplied.last().is_none_or(|last| last.seq == seq);
        let finish = |tx: Tx| async move {
            Head::lock(&tx).await?;
            let now = ChainState::read(&tx, chain).await?;
            if now.version != version {
                return Ok(None);
            }
            let text = "UPDATE meter_chain_correction SET done_ms = now_ms()
                        WHERE chain = $1 AND seq > $2 AND seq <= $3";
            let params =
                params![ledger::stored(chain), ledger::stored(before), ledger::stored(seq)];
            tx.execute(text, params).await?;
            let mut next = ChainState { version: version + 1, applied: seq, ..now };
            if is_last {
                (next.pending, next.pending_since) = (None, None);
            }
            next.store(&tx, chain).await?;
            Ok(Some(corrected(&tx, chain, before..seq).await?))
        };
        let Some(changed) = self.meter.sql.write(finish).await? else {
            return Ok(Step::Progressed(UsageDelta::default()));
        };
        if changed.blocks > 0 {
            // Otherwise corrected aggregates would wait for the next quarter of an hour.
            Box::pin(self.meter.sweep(Which::Finished)).await?;
        }
        Ok(Step::Applied { seq, changed })
    }

    /// Makes the recorded usage of a range that of the stored blocks, in one or more transactions.
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
                // A block without usage. If it is gone already, the next replacement tells of it.
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
    async fn resolve_gone(&self, view: &View, pending: &Pending) -> Result<Gone> {
        let source = &view.source;
        let lowest =
            source.lowest.or_else(|| source.stored.ranges().next().map(|range| range.start));
        let end = source.stored.ranges().next_back().map_or(0, |range| range.end);
        let mut awaited = false;
        for range in pending.blocks.ranges() {
            // Below the lowest block nothing is stored because nothing is wanted there.
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
        Ok(if awaited { Gone::Awaited } else { Gone::Resolved })
    }

    /// Those of some heights whose recorded block is not stored: a block that is not final yet may be the same again.
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

    async fn cancel_gone(&self, view: &View, gone: &[u64], cause: &Cause) -> Result<Gone> {
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
        Ok(Gone::Cancelled(all))
    }

    /// The moment before which all usage is recorded.
    async fn complete_before(&self, view: &View) -> Result<Timestamp> {
        let source = &view.source;
        if !source.follows && view.unapplied.is_empty() {
            return Ok(Timestamp(i64::MAX));
        }
        let lowest =
            source.lowest.or_else(|| source.derived.ranges().next().map(|range| range.start));
        let mut ranges = view.relayed.ranges();
        let unbroken = ranges.find(|range| lowest.is_some_and(|lowest| range.contains(&lowest)));
        let Some(last) = unbroken.and_then(|range| range.end.checked_sub(1)) else {
            return Ok(Timestamp(0));
        };
        // Blocks above it have no earlier time, but may have the same.
        Ok(self.source.block_time(last).await?.unwrap_or(Timestamp(0)))
    }
}

/// What became of replaced blocks in whose place there is none.
enum Gone {
    /// Some were cancelled; there may be more.
    Cancelled(UsageDelta),
    /// Some may still come.
    Awaited,
    /// None is left.
    Resolved,
}

/// Where the next batch of a range ends: after whole blocks with about as many events as one transaction may have.
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

/// Takes what is below a height.
fn split(recorded: &mut ByHeight, end: u64) -> ByHeight {
    let rest = recorded.split_off(&end);
    std::mem::replace(recorded, rest)
}
