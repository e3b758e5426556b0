//! Makes the recorded usage of some blocks match the stored blocks, in one transaction.
//!
//! ```text
//!   lock the head ─▶ state and ledger unchanged since planning? ─▶ cancel ─▶ record ─▶ ledger ─▶ coverage ─▶ commit
//! ```
//!
//! Guarantees: events, ledger and coverage change together or not at all: after a crash it is as if nothing had begun,
//! and running it again changes nothing. A caller whose view of the chain is older than the last replacement is
//! refused. Every cancelled event has a note with the reason. Leaves to others: what is stored ([`super::relay`]), what
//! changes (`super::plan`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};
use logmill_work::{Coverage, Heights, Scope};

use super::ledger::{self, ByHeight, Entry, Rules};
use super::plan::{Plan, StoredBlock, plan};
use super::state::scopes;
use super::usage::{BlockHash, UsageBlock, UsageDelta, UsageId};
use crate::Meter;
use crate::error::{Error, Result};
use crate::event::Key;
use crate::ingest::corrections::{self, Change, EventChange};
use crate::ingest::new_events::ReceivedEvent;
use crate::ingest::record::{CacheUpdates, Group, PrefetchedState, WriteOutcome};
use crate::store::archive::ArchivedEvents;
use crate::store::chain_state::{ChainState, sql_int};
use crate::store::head::Head;
use crate::store::place::Place;
use crate::store::stored_event::{self, EventState, StoredEvent};

/// Actor in the notes of events cancelled because their blocks were replaced.
pub(crate) const ACTOR: &str = "logmill";
/// Maximum number of attempts when archived events or keys change concurrently.
const TRIES_MAX: u32 = 20;

/// Blocks whose recorded usage must match the stored blocks.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) chain: u64,
    pub(crate) rules: &'a Rules,
    /// Version of the chain state under which everything else was read.
    pub(crate) version: u64,
    pub(crate) range: Heights,
    /// The scope whose coverage grows by the range; `None` if no block is stored.
    pub(crate) scope: Option<&'a Scope>,
    /// Ledger entries of the range.
    pub(crate) recorded: ByHeight,
    /// The stored block of each height that has usage there or in the ledger.
    pub(crate) stored: BTreeMap<u64, Option<UsageBlock>>,
    pub(crate) cause: &'a Cause,
}

/// Why usage is corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Number of earlier logs of replacements.
    pub(crate) log: u64,
    /// The newest of the replacements being applied.
    pub(crate) seq: u64,
    /// Whether the content of blocks may have changed under the same hash.
    pub(crate) replaced: bool,
    pub(crate) blocks: Heights,
    pub(crate) reason: String,
}

#[derive(Debug, Default)]
struct Changes {
    plans: BTreeMap<u64, Plan>,
    /// Events to record, and their ledger entries in the same order.
    events: Vec<ReceivedEvent>,
    entries: Vec<(u64, BlockHash, Entry)>,
    /// Ids of events to cancel.
    cancel: Vec<UsageId>,
    delta: UsageDelta,
}

/// Why a transaction was not committed.
#[derive(Debug)]
enum Refusal {
    /// The state or the ledger changed since the batch was planned.
    Moved,
    /// Keys were sealed, or events archived or corrected, since they were read.
    Stale,
    /// Archived events of these places must be read first.
    Needs(Vec<Place>),
}

/// Data read before the transaction.
struct PreparedBatch {
    group: Group,
    before: PrefetchedState,
    cancelled: Vec<StoredEvent>,
}

impl Meter {
    /// Records and cancels usage as the batch requires; returns `None` if the chain's state has changed since.
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
                        // Only an error rolls a transaction back.
                        let refused = || Error::conflict("usage was planned on old data");
                        written.ok_or_else(refused)
                    }
                })
                .await;
            match refusal.into_inner().unwrap_or_else(PoisonError::into_inner) {
                Some(Refusal::Moved) => return Ok(None),
                Some(Refusal::Stale) => drop(self.keys.reload(&self.sql).await?),
                Some(Refusal::Needs(places)) => needs.extend(places),
                None => {
                    let (updates, delta) = written?;
                    if let Some(updates) = updates {
                        self.apply_updates(&prepared.group, updates);
                    }
                    return Ok(Some(delta));
                }
            }
        }
        Err(Error::conflict("gave up: events kept being archived or sealed concurrently"))
    }

    async fn prepare(&self, changes: &Changes, needs: &BTreeSet<Place>) -> Result<PreparedBatch> {
        let group = Group::new(Arc::new(changes.events.clone()));
        let (run_list, sealed) = self.keys.find_sealed(&self.sql, group.keys()).await?;
        let cancelled = self.recorded_events(&changes.cancel).await?;
        let places = cancelled.iter().map(|event| event.place).chain(needs.iter().copied());
        let places: BTreeSet<Place> = places.collect();
        let archived = match places.is_empty() {
            true => ArchivedEvents::default(),
            false => self.archive.read(&self.sql, &places.into_iter().collect::<Vec<_>>()).await?,
        };
        Ok(PreparedBatch {
            group,
            before: PrefetchedState { run_list, sealed, archived },
            cancelled,
        })
    }

    /// The events with these ids that count.
    async fn recorded_events(&self, ids: &[UsageId]) -> Result<Vec<StoredEvent>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = ids.iter().map(UsageId::key).collect();
        let existing = self.keys.get(&self.sql, &keys).await?;
        let seqs: BTreeSet<i64> = existing.values().map(|existing| existing.seq).collect();
        let list: Vec<i64> = seqs.iter().copied().collect();
        let mut events = stored_event::with_numbers(&self.sql.reading(), &list).await?;
        let here: BTreeSet<i64> = events.iter().map(|event| event.seq).collect();
        let rest: BTreeSet<i64> = seqs.difference(&here).copied().collect();
        events.extend(self.archive.get_many(&self.sql, &rest).await?);
        if events.len() < ids.len() {
            let missing = ids.len() - events.len();
            tracing::error!(missing, "usage events of replaced blocks are missing in the database");
        }
        // An operator may already have cancelled some.
        events.retain(StoredEvent::counts);
        events.sort_by_key(|event| event.seq);
        Ok(events)
    }

    async fn write_batch(
        &self,
        tx: &Tx,
        batch: &Batch<'_>,
        changes: &Changes,
        prepared: &PreparedBatch,
    ) -> Result<Result<(Option<CacheUpdates>, UsageDelta), Refusal>> {
        Head::lock(tx).await?;
        let state = ChainState::read(tx, batch.chain).await?;
        if state.version != batch.version
            || ledger::read(tx, batch.chain, &batch.range).await? != batch.recorded
        {
            return Ok(Err(Refusal::Moved));
        }
        // Another relay found the block stored again, with the usage that is recorded. Ledger and version do not show
        // that, and no relay would check the height again.
        if batch.scope.is_none() && is_confirmed(tx, batch.chain, &batch.range).await? {
            return Ok(Err(Refusal::Moved));
        }
        if !self.cancel_events(tx, &prepared.cancelled, &prepared.before, batch.cause).await? {
            return Ok(Err(Refusal::Stale));
        }
        let mut updates = None;
        if !changes.events.is_empty() {
            match self.write_group(tx, &prepared.group, &prepared.before).await? {
                WriteOutcome::Done(done) => updates = Some(done),
                WriteOutcome::KeysMoved => return Ok(Err(Refusal::Stale)),
                WriteOutcome::Needs(places) => return Ok(Err(Refusal::Needs(places))),
            }
        }
        let delta = self.write_ledger(tx, batch, changes, updates.as_ref()).await?;
        if let Some(scope) = batch.scope {
            Coverage::cover(tx, scope, &batch.range).await?;
        }
        Ok(Ok((updates, delta)))
    }

    async fn cancel_events(
        &self,
        tx: &Tx,
        events: &[StoredEvent],
        before: &PrefetchedState,
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
        corrections::write(tx, &self.settings, &changes, &before.archived).await
    }

    /// Writes the ledger's rows, and adds to the record of the correction.
    async fn write_ledger(
        &self,
        tx: &Tx,
        batch: &Batch<'_>,
        changes: &Changes,
        updates: Option<&CacheUpdates>,
    ) -> Result<UsageDelta> {
        let mut delta = changes.delta;
        let mut conflicts: BTreeMap<(u64, BlockHash), Vec<(Entry, i64)>> = BTreeMap::new();
        for (received, (height, hash, entry)) in changes.events.iter().zip(&changes.entries) {
            let existing = updates.and_then(|done| done.existing.get(&received.event.key));
            let Some(existing) = existing else { continue };
            // It was recorded before the ledger existed.
            delta.recorded -= 1;
            if existing.content != entry.content {
                delta.conflicts += 1;
                conflicts.entry((*height, *hash)).or_default().push((*entry, existing.content));
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
    /// Notes that an event was recorded with other content, under an unknown definition of its rule.
    fn keep_recorded(&self, entries: &mut [Entry], entry: &Entry, content: i64) {
        let unknown = self.unknown(self.name(entry.rule)).unwrap_or(entry.rule);
        if let Some(kept) = entries.iter_mut().find(|one| *one == entry) {
            (kept.rule, kept.content) = (unknown, content);
        }
    }
}

impl Batch<'_> {
    fn changes(&self, received_at: logmill_io::Timestamp) -> Changes {
        let mut changes = Changes::default();
        let nothing = ledger::BlockEntries::new();
        for (height, block) in &self.stored {
            let recorded = self.recorded.get(height).unwrap_or(&nothing);
            let stored = match block {
                Some(block) => StoredBlock::Block { hash: &block.hash, usage: &block.usage },
                None => StoredBlock::Gone,
            };
            let plan = plan(recorded, stored, self.cause.replaced, self.rules);
            for (hash, entry) in &plan.cancel {
                changes.cancel.push(self.rules.id(self.chain, hash, entry));
            }
            for recording in &plan.record {
                let Some(block) = block else { continue };
                let id = self.rules.id(self.chain, &block.hash, &recording.entry);
                let event = id.assign(block.usage[recording.index].event.clone());
                changes.events.push(ReceivedEvent { event, received_at });
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

/// Whether some of these heights are covered in any generation, that is, were compared with stored blocks. The begin of
/// a replacement removes its heights from all coverage, so a covered height was compared after that.
async fn is_confirmed(tx: &Tx, chain: u64, range: &Heights) -> Result<bool> {
    for scope in scopes(tx, chain).await? {
        if !Coverage::read(tx, &scope).await?.done.overlap(range).is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds to the single record of a correction. Writes nothing if nothing changed.
async fn note_correction(tx: &Tx, batch: &Batch<'_>, delta: &UsageDelta) -> Result<()> {
    if delta.cancelled == 0 && delta.recorded == 0 {
        return Ok(());
    }
    let text = "
        INSERT INTO meter_chain_correction (chain, log, seq, first_block, last_block, reason, blocks,
            cancelled, recorded, begun_ms, done_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now_ms(),
            CASE WHEN CAST($10 AS BIGINT) = 1 THEN NULL ELSE now_ms() END)
        ON CONFLICT (chain, log, seq) DO UPDATE SET
            blocks = meter_chain_correction.blocks + excluded.blocks,
            cancelled = meter_chain_correction.cancelled + excluded.cancelled,
            recorded = meter_chain_correction.recorded + excluded.recorded";
    let Cause { log, seq, blocks, reason, replaced } = batch.cause;
    let params = params![
        sql_int(batch.chain),
        sql_int(*log),
        sql_int(*seq),
        sql_int(blocks.start),
        sql_int(blocks.end.saturating_sub(1)),
        reason.as_str(),
        sql_int(delta.blocks),
        sql_int(delta.cancelled),
        sql_int(delta.recorded),
        i64::from(*replaced),
    ];
    tx.execute(text, params).await?;
    Ok(())
}
