//! Making the recorded usage of some blocks that of the stored blocks, in one transaction.
//!
//! ```text
//!   lock the head ─▶ state and ledger as they were planned on? ─▶ cancel ─▶ record ─▶ ledger ─▶ coverage ─▶ commit
//! ```
//!
//! Guarantees: events, ledger and coverage change together or not at all, so that a crash anywhere is as if nothing had
//! begun, and running it again changes nothing. A caller whose view of the chain is older than the last replacement is
//! refused. Every cancelled event has a note of why. Leaves to others: what is stored ([`super::relay`]), what changes
//! (`super::plan`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};
use logmill_work::{Coverage, Heights, Scope};

use super::ledger::{self, ByHeight, ChainState, Entry, Rules};
use super::plan::{Plan, Truth, plan};
use super::usage::{BlockHash, UsageBlock, UsageId};
use crate::archive::Archived;
use crate::correct::{Change, EventChange};
use crate::error::{Error, Result};
use crate::event::Key;
use crate::meter::{Head, Meter};
use crate::partials::Place;
use crate::record::{Arrived, Beforehand, Commit, Committed, Group};
use crate::stored::{self, EventState, StoredEvent};

/// Who cancels usage of blocks that were replaced.
pub(crate) const ACTOR: &str = "logmill";
/// How often archived events or keys may move under us before we give up.
const TRIES_MAX: u32 = 20;

/// Blocks whose usage is made to be that of what is stored.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) chain: u64,
    pub(crate) rules: &'a Rules,
    /// The state under which everything else was read.
    pub(crate) version: u64,
    pub(crate) range: Heights,
    /// Whose coverage grows by the range; none if there is no block.
    pub(crate) scope: Option<&'a Scope>,
    /// What the ledger says of the range.
    pub(crate) recorded: ByHeight,
    /// What is stored, for each height that has usage there or in the ledger.
    pub(crate) stored: BTreeMap<u64, Option<UsageBlock>>,
    pub(crate) cause: &'a Cause,
}

/// Why usage is corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The newest replacement of those that are applied.
    pub(crate) seq: u64,
    /// Whether the content of blocks may have changed under the same hash.
    pub(crate) replaced: bool,
    pub(crate) blocks: Heights,
    pub(crate) reason: String,
}

/// What a batch changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageDelta {
    /// Blocks whose usage changed.
    pub blocks: u64,
    /// Events that were cancelled.
    pub cancelled: u64,
    /// Events that were recorded.
    pub recorded: u64,
    /// Events that were recorded otherwise under an earlier definition of their rule, and stay.
    pub conflicts: u64,
}

impl UsageDelta {
    pub(crate) fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.cancelled += other.cancelled;
        self.recorded += other.recorded;
        self.conflicts += other.conflicts;
    }
}

/// Everything that a batch changes.
#[derive(Debug, Default)]
struct Changes {
    plans: BTreeMap<u64, Plan>,
    /// Events to record, and the entries of the ledger that stand for them.
    events: Vec<Arrived>,
    entries: Vec<(u64, BlockHash, Entry)>,
    /// Ids of events to cancel.
    cancel: Vec<UsageId>,
    delta: UsageDelta,
}

/// Why a transaction was not committed.
#[derive(Debug)]
enum Refusal {
    /// The state or the ledger is not what the batch was made for.
    Moved,
    /// Keys were sealed, or events archived or corrected, since they were looked at.
    Stale,
    /// Archived events of these places must be read first.
    Needs(Vec<Place>),
}

/// What was read before the transaction.
struct Prepared {
    group: Group,
    before: Beforehand,
    cancelled: Vec<StoredEvent>,
}

impl Meter {
    /// Records and cancels what a batch asks for; none if the chain's state is no longer that of the batch.
    pub(crate) async fn reconcile(&self, batch: &Batch<'_>) -> Result<Option<UsageDelta>> {
        let changes = batch.changes(self.clock().now());
        let mut needs: BTreeSet<Place> = BTreeSet::new();
        for _ in 0..TRIES_MAX {
            let prepared = Arc::new(self.prepare(&changes, &needs).await?);
            let refusal: Mutex<Option<Refusal>> = Mutex::default();
            let written = self
                .sql
                .write(|tx| {
                    let (prepared, refusal, changes) = (Arc::clone(&prepared), &refusal, &changes);
                    async move {
                        let written = self.write_batch(&tx, batch, changes, &prepared).await?;
                        let (written, why) = match written {
                            Ok(written) => (Some(written), None),
                            Err(why) => (None, Some(why)),
                        };
                        *refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
                        // An error is what rolls a transaction back.
                        let refused = || Error::conflict("usage was planned on old data").into();
                        written.ok_or_else(refused)
                    }
                })
                .await;
            match refusal.into_inner().unwrap_or_else(PoisonError::into_inner) {
                Some(Refusal::Moved) => return Ok(None),
                Some(Refusal::Stale) => drop(self.keys.reload(&self.sql).await?),
                Some(Refusal::Needs(places)) => needs.extend(places),
                None => {
                    let (committed, delta) = written?;
                    if let Some(committed) = committed {
                        self.committed(&prepared.group, committed);
                    }
                    return Ok(Some(delta));
                }
            }
        }
        Err(Error::conflict("events are archived or sealed too often"))
    }

    async fn prepare(&self, changes: &Changes, needs: &BTreeSet<Place>) -> Result<Prepared> {
        let group = Group::new(Arc::new(changes.events.clone()));
        let (known, sealed) = self.keys.find_sealed(&self.sql, group.keys()).await?;
        let cancelled = self.recorded_events(&changes.cancel).await?;
        let places = cancelled.iter().map(|event| event.place).chain(needs.iter().copied());
        let places: BTreeSet<Place> = places.collect();
        let archived = match places.is_empty() {
            true => Archived::default(),
            false => self.read_archived(&places.into_iter().collect::<Vec<_>>()).await?,
        };
        Ok(Prepared { group, before: Beforehand { known, sealed, archived }, cancelled })
    }

    /// The events with these ids that count.
    async fn recorded_events(&self, ids: &[UsageId]) -> Result<Vec<StoredEvent>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = ids.iter().map(UsageId::key).collect();
        let seen = self.keys.get(&self.sql, &keys).await?;
        let seqs: BTreeSet<i64> = seen.values().map(|seen| seen.seq).collect();
        let list: Vec<i64> = seqs.iter().copied().collect();
        let mut events = stored::with_numbers(&self.sql.reading(), &list).await?;
        let here: BTreeSet<i64> = events.iter().map(|event| event.seq).collect();
        let rest: BTreeSet<i64> = seqs.difference(&here).copied().collect();
        events.extend(self.get_archived_many(&rest).await?);
        if events.len() < ids.len() {
            let missing = ids.len() - events.len();
            tracing::error!(missing, "usage events of replaced blocks are missing in the database");
        }
        // An operator may have cancelled some already.
        events.retain(StoredEvent::counts);
        events.sort_by_key(|event| event.seq);
        Ok(events)
    }

    async fn write_batch(
        &self,
        tx: &Tx,
        batch: &Batch<'_>,
        changes: &Changes,
        prepared: &Prepared,
    ) -> Result<Result<(Option<Committed>, UsageDelta), Refusal>> {
        Head::lock(tx).await?;
        let state = ChainState::read(tx, batch.chain).await?;
        if state.version != batch.version
            || ledger::read(tx, batch.chain, &batch.range).await? != batch.recorded
        {
            return Ok(Err(Refusal::Moved));
        }
        if !self.cancel_events(tx, &prepared.cancelled, &prepared.before, batch.cause).await? {
            return Ok(Err(Refusal::Stale));
        }
        let mut committed = None;
        if !changes.events.is_empty() {
            match self.write_group(tx, &prepared.group, &prepared.before).await? {
                Commit::Done(done) => committed = Some(done),
                Commit::KeysMoved => return Ok(Err(Refusal::Stale)),
                Commit::Needs(places) => return Ok(Err(Refusal::Needs(places))),
            }
        }
        let delta = self.write_ledger(tx, batch, changes, committed.as_ref()).await?;
        if let Some(scope) = batch.scope {
            Coverage::cover(tx, scope, &batch.range).await?;
        }
        Ok(Ok((committed, delta)))
    }

    async fn cancel_events(
        &self,
        tx: &Tx,
        events: &[StoredEvent],
        before: &Beforehand,
        cause: &Cause,
    ) -> Result<bool> {
        if events.is_empty() {
            return Ok(true);
        }
        let after: Vec<StoredEvent> = events
            .iter()
            .map(|event| StoredEvent { state: EventState::Cancelled, ..event.clone() })
            .collect();
        let changes: Vec<EventChange<'_>> = events
            .iter()
            .zip(&after)
            .map(|(event, changed)| EventChange {
                change: &Change::Cancel,
                reason: &cause.reason,
                actor: ACTOR,
                event,
                changed,
            })
            .collect();
        self.write_corrections(tx, &changes, &before.archived).await
    }

    /// Writes the ledger's rows, and adds to the record of the correction.
    async fn write_ledger(
        &self,
        tx: &Tx,
        batch: &Batch<'_>,
        changes: &Changes,
        committed: Option<&Committed>,
    ) -> Result<UsageDelta> {
        let mut delta = changes.delta;
        let mut conflicts: BTreeMap<(u64, BlockHash), Vec<(Entry, i64)>> = BTreeMap::new();
        for (arrived, (height, hash, entry)) in changes.events.iter().zip(&changes.entries) {
            let seen = committed.and_then(|done| done.seen.get(&arrived.event.key));
            let Some(seen) = seen else { continue };
            // It was recorded before there was a ledger.
            delta.recorded -= 1;
            if seen.content != entry.content {
                delta.conflicts += 1;
                conflicts.entry((*height, *hash)).or_default().push((*entry, seen.content));
            }
        }
        let mut rows = Vec::new();
        for (height, plan) in &changes.plans {
            for (hash, entries) in &plan.after {
                let mut entries = entries.clone();
                for (entry, content) in conflicts.get(&(*height, *hash)).into_iter().flatten() {
                    batch.rules.keep_recorded(&mut entries, entry, *content);
                }
                rows.push(ledger::row(batch.chain, *height, hash, &entries)?);
            }
        }
        tx.execute_many(ledger::PUT_ROW, rows).await?;
        if batch.cause.replaced || delta.cancelled > 0 {
            note_correction(tx, batch, &delta).await?;
        }
        Ok(delta)
    }
}

impl Rules {
    /// Notes that an event was recorded with other content, under a definition of its rule that is not known.
    fn keep_recorded(&self, entries: &mut [Entry], entry: &Entry, content: i64) {
        let unknown = self.unknown(self.name(entry.rule)).unwrap_or(entry.rule);
        if let Some(kept) = entries.iter_mut().find(|one| *one == entry) {
            (kept.rule, kept.content) = (unknown, content);
        }
    }
}

impl Batch<'_> {
    fn changes(&self, received: logmill_io::Timestamp) -> Changes {
        let mut changes = Changes::default();
        let nothing = ledger::Recorded::new();
        for (height, block) in &self.stored {
            let recorded = self.recorded.get(height).unwrap_or(&nothing);
            let truth = match block {
                Some(block) => Truth::Block { hash: &block.hash, usage: &block.usage },
                None => Truth::Gone,
            };
            let plan = plan(recorded, truth, self.cause.replaced, self.rules);
            for (hash, entry) in &plan.cancel {
                changes.cancel.push(self.rules.id(self.chain, hash, entry));
            }
            for recording in &plan.record {
                let Some(block) = block else { continue };
                let id = self.rules.id(self.chain, &block.hash, &recording.entry);
                let event = id.assign(block.usage[recording.index].event.clone());
                changes.events.push(Arrived { event, received });
                changes.entries.push((*height, block.hash, recording.entry));
            }
            let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
            changes.delta.add(&UsageDelta {
                blocks: u64::from(!(plan.cancel.is_empty() && plan.record.is_empty())),
                cancelled: count(plan.cancel.len()),
                recorded: count(plan.record.len()),
                conflicts: plan.conflicts,
            });
            changes.plans.insert(*height, plan);
        }
        changes
    }
}

/// Adds to the one record of a correction. Nothing is written where nothing changed.
async fn note_correction(tx: &Tx, batch: &Batch<'_>, delta: &UsageDelta) -> Result<()> {
    if delta.cancelled == 0 && delta.recorded == 0 {
        return Ok(());
    }
    let text = "
        INSERT INTO meter_chain_correction (chain, seq, first_block, last_block, reason, blocks,
            cancelled, recorded, begun_ms, done_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms(),
            CASE WHEN CAST($9 AS BIGINT) = 1 THEN NULL ELSE now_ms() END)
        ON CONFLICT (chain, seq) DO UPDATE SET
            blocks = meter_chain_correction.blocks + excluded.blocks,
            cancelled = meter_chain_correction.cancelled + excluded.cancelled,
            recorded = meter_chain_correction.recorded + excluded.recorded";
    let Cause { seq, blocks, reason, replaced } = batch.cause;
    let params = params![
        ledger::stored(batch.chain),
        ledger::stored(*seq),
        ledger::stored(blocks.start),
        ledger::stored(blocks.end.saturating_sub(1)),
        reason.as_str(),
        ledger::stored(delta.blocks),
        ledger::stored(delta.cancelled),
        ledger::stored(delta.recorded),
        i64::from(*replaced),
    ];
    tx.execute(text, params).await?;
    Ok(())
}
