//! Corrections: an operator cancels or amends one event, with a reason.
//!
//! Guarantees: the event, its partial recomputed from all events of its bucket, the note with actor and reason, the
//! marks of its due periods, and the jobs that correct the aggregates of finished periods, are one transaction. The
//! event's first value is never lost. Leaves to others: authorization, and announcing the corrected aggregates.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, Timestamp, Tx, Value, params};
use serde_json::json;

use crate::archive::{ArchivedEvents, join_archived};
use crate::decimal::Decimal;
use crate::due::AGGREGATE_JOB;
use crate::error::{Error, Result};
use crate::event::Key;
use crate::meter::{Head, Meter};
use crate::names::read_series;
use crate::partials::{self, Place};
use crate::period::Bucket;
use crate::places;
use crate::requests::{self, KeyedRequest};
use crate::stored_event::{self, EventState, StoredEvent};

const REASON_BYTES_MAX: usize = 1_000;
/// Maximum number of attempts when the event is archived or corrected concurrently.
const TRIES_MAX: u32 = 10;
/// Maximum number of places whose events are in memory at once.
const PLACES_PER_FOLD: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The event no longer counts.
    Cancel,
    /// The event gets another value.
    Amend(Decimal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// The event's source.
    pub source: String,
    /// The event's id, unique within its source.
    pub id: String,
    pub change: Change,
    pub reason: String,
    /// The operator.
    pub actor: String,
}

/// A correction that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorrectionRecord {
    /// `cancel`, `amend`, or `lost` if the event was removed because it was damaged.
    pub action: String,
    /// The value before.
    pub before: String,
    /// The value after; `None` if it no longer counts.
    pub after: Option<String>,
    pub reason: String,
    pub actor: String,
    pub at: Timestamp,
}

impl Meter {
    /// Finds an event in the database or the archive.
    pub async fn find_event(&self, source: &str, id: &str) -> Result<Option<StoredEvent>> {
        let key = Key::of(source, id);
        let Some(recorded) = self.keys.get(&self.sql, &[key]).await?.remove(&key) else {
            return Ok(None);
        };
        match stored_event::get(&self.sql.reading(), recorded.seq).await? {
            Some(event) => Ok(Some(event)),
            None => self.get_archived(recorded.seq).await,
        }
    }

    /// Corrects one event; returns the corrected event.
    pub async fn correct(&self, correction: &Correction) -> Result<StoredEvent> {
        Ok(self.correct_once(correction, None).await?.0)
    }

    /// Corrects one event, unless the request was done before; returns the event as of that request, with all
    /// corrections up to it.
    pub async fn correct_once(
        &self,
        correction: &Correction,
        request: Option<&KeyedRequest>,
    ) -> Result<(StoredEvent, Vec<CorrectionRecord>)> {
        check_reason(&correction.reason)?;
        for _ in 0..TRIES_MAX {
            let (source, id) = (correction.source.as_str(), correction.id.as_str());
            let event = self.find_event(source, id).await?;
            let event =
                event.ok_or_else(|| Error::not_found(format!("event {id} of source {source}")))?;
            let changed = self.changed(&event, &correction.change).await;
            let archived = self.read_archived(&[event.place]).await?;
            let (event, changed, archived) = (&event, &changed, &archived);
            let done = self
                .sql
                .write(|tx| async move {
                    if let Some(outcome) = requests::claim_in(&tx, request).await? {
                        return Ok(Some(outcome["corrections"].as_u64().unwrap_or_default()));
                    }
                    let changed = match changed {
                        Ok(changed) => changed,
                        // Whether this is an error depends on whether the request was done before.
                        Err(error) => return Err(again(error).into()),
                    };
                    let (change, reason) = (&correction.change, correction.reason.as_str());
                    let actor = correction.actor.as_str();
                    let change = EventChange { change, reason, actor, event, changed };
                    if !self.write_corrections(&tx, &[change], archived).await? {
                        // Nothing of this attempt may be kept: the key is free for the next one.
                        requests::release_in(&tx, request).await?;
                        return Ok(None);
                    }
                    let (_, customer) = self.series_names(&tx, event.place).await?;
                    self.make_corrected_due(&tx, customer, Bucket(event.place.bucket)).await?;
                    let text = "SELECT count(*) FROM meter_correction WHERE event_seq = $1";
                    let count = tx.execute(text, params![event.seq]).await?.row()?.count(0)?;
                    let outcome = json!({ "corrections": count });
                    requests::keep_in(&tx, request, &outcome).await?;
                    Ok(Some(count))
                })
                .await?;
            if let Some(count) = done {
                self.queue.wakes().wake(AGGREGATE_JOB);
                return self.as_of(event.clone(), count).await;
            }
        }
        Err(Error::conflict("the event is being changed by another request: try again"))
    }

    /// An event after a number of corrections, and these corrections.
    pub(crate) async fn as_of(
        &self,
        mut event: StoredEvent,
        count: u64,
    ) -> Result<(StoredEvent, Vec<CorrectionRecord>)> {
        let mut corrections = self.corrections(&event).await?;
        corrections.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        if let Some(last) = corrections.last() {
            event.value = last.after.as_ref().unwrap_or(&last.before).parse()?;
            event.state = match last.after {
                Some(_) => EventState::Amended,
                None => EventState::Cancelled,
            };
        }
        Ok((event, corrections))
    }

    async fn changed(&self, event: &StoredEvent, change: &Change) -> Result<StoredEvent> {
        let mut changed = event.clone();
        match change {
            Change::Cancel => changed.state = EventState::Cancelled,
            Change::Amend(value) => {
                let event_type = self.event_type_of(event.place.series).await?;
                let scale = self.settings.events.get(&event_type).map(|known| known.scale);
                if let Some(most) = scale.filter(|most| value.scale() > *most) {
                    return Err(Error::invalid(format!(
                        "value has {} decimal places: {event_type} takes at most {most}",
                        value.scale()
                    )));
                }
                changed.value = *value;
                changed.state = EventState::Amended;
            }
        }
        // Amending an event to its current value would only add a note.
        if changed.counts() == event.counts() && changed.value == event.value {
            return Err(Error::conflict(
                "the event already has this value or is already cancelled",
            ));
        }
        Ok(changed)
    }

    pub(crate) async fn event_type_of(&self, series: i64) -> Result<String> {
        Ok(read_series(&self.sql.reading(), series).await?.0)
    }

    /// Writes corrections with their notes, and the affected partials. Returns false if the data read beforehand has
    /// changed; then the caller must not commit.
    pub(crate) async fn write_corrections(
        &self,
        tx: &Tx,
        writes: &[EventChange<'_>],
        archived: &ArchivedEvents,
    ) -> Result<bool> {
        let mut head = Head::lock(tx).await?;
        if !archived.is_current(tx).await? {
            return Ok(false);
        }
        let seqs: Vec<i64> = writes.iter().map(|write| write.event.seq).collect();
        let current = stored_event::with_numbers(tx, &seqs).await?;
        let current: BTreeMap<i64, StoredEvent> =
            current.into_iter().map(|event| (event.seq, event)).collect();
        let is_current = |write: &EventChange<'_>| {
            current.get(&write.event.seq).is_none_or(|current| current == write.event)
        };
        if !writes.iter().all(is_current) {
            return Ok(false);
        }
        tx.execute_many(STORE, writes.iter().map(EventChange::row).collect::<Vec<_>>()).await?;
        tx.execute_many(NOTE, writes.iter().map(EventChange::note).collect::<Vec<_>>()).await?;
        for write in writes.iter().filter(|write| !current.contains_key(&write.event.seq)) {
            // An archived event returns to the database.
            places::enter(tx, write.event.place, write.event.seq).await?;
        }
        let places: BTreeSet<Place> = writes.iter().map(|write| write.event.place).collect();
        let places: Vec<Place> = places.into_iter().collect();
        for some in places.chunks(PLACES_PER_FOLD) {
            self.fold_again(tx, &head, some, archived).await?;
        }
        head.seq += 1;
        head.store(tx).await?;
        Ok(true)
    }

    /// Recomputes the partials of some places from all their events.
    pub(crate) async fn fold_again(
        &self,
        tx: &Tx,
        head: &Head,
        places: &[Place],
        archived: &ArchivedEvents,
    ) -> Result<()> {
        let mut events: BTreeMap<Place, Vec<StoredEvent>> = BTreeMap::new();
        for event in stored_event::at(tx, places).await? {
            events.entry(event.place).or_default().push(event);
        }
        let mut folded = Vec::with_capacity(places.len());
        let mut touched = Vec::with_capacity(places.len());
        for place in places {
            let here = events.remove(place).unwrap_or_default();
            let (event_type, customer) = self.series_names(tx, *place).await?;
            let event_type = self.settings.events.get(&event_type).ok_or_else(|| {
                Error::invalid(format!("event type {event_type} is not configured"))
            })?;
            folded.push((
                *place,
                partials::fold(event_type, join_archived(here, archived.of(*place)))?,
            ));
            touched.push((place.bucket, customer));
        }
        partials::write(tx, head, &folded).await?;
        partials::touch(tx, touched.into_iter()).await
    }

    pub(crate) async fn series_names(&self, tx: &Tx, place: Place) -> Result<(String, i64)> {
        read_series(tx, place.series).await
    }

    /// The corrections of an event, oldest first.
    pub async fn corrections(&self, event: &StoredEvent) -> Result<Vec<CorrectionRecord>> {
        let text = "SELECT action, value_before, value_after, reason, actor, at_ms
                    FROM meter_correction WHERE event_seq = $1 ORDER BY number LIMIT 1000";
        let found = self.sql.query(text, params![event.seq]).await?;
        let made = found.rows.iter().map(|row| {
            Ok(CorrectionRecord {
                action: row.text(0)?.to_owned(),
                before: row.text(1)?.to_owned(),
                after: row.opt_text(2)?.map(str::to_owned),
                reason: row.text(3)?.to_owned(),
                actor: row.text(4)?.to_owned(),
                at: row.time(5)?,
            })
        });
        made.collect()
    }
}

/// A copy of the error, which is needed again if the transaction is retried.
fn again(error: &Error) -> Error {
    match error.kind() {
        ErrorKind::Conflict => Error::conflict(error.to_string()),
        ErrorKind::Invalid => Error::invalid(error.to_string()),
        ErrorKind::Transient => Error::unavailable(error.to_string()),
        _ => Error::corrupt(error.to_string()),
    }
}

/// One event before and after a correction, and the reason.
pub(crate) struct EventChange<'a> {
    pub(crate) change: &'a Change,
    pub(crate) reason: &'a str,
    pub(crate) actor: &'a str,
    pub(crate) event: &'a StoredEvent,
    pub(crate) changed: &'a StoredEvent,
}

pub(crate) const STORE: &str = "
    INSERT INTO meter_event (seq, bucket, series, time_ms, received_ms, source, id, amount,
        metadata, state, key_hi, key_lo, content, checks)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
    ON CONFLICT (seq) DO UPDATE SET amount = excluded.amount, state = excluded.state,
        checks = excluded.checks";

pub(crate) const NOTE: &str = "
    INSERT INTO meter_correction (event_seq, series, bucket, action, value_before,
        value_after, reason, actor, at_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms())";

/// The parameters of [`STORE`] for an event.
pub(crate) fn row_of(event: &StoredEvent) -> Vec<Value> {
    let key = Key::of(&event.source, &event.id);
    params![
        event.seq,
        event.place.bucket,
        event.place.series,
        event.time,
        event.received,
        event.source.as_str(),
        event.id.as_str(),
        event.value.to_string(),
        event.metadata.clone(),
        event.state.number(),
        key.hi,
        key.lo,
        event.content,
        event.checks(),
    ]
}

pub(crate) fn check_reason(reason: &str) -> Result<()> {
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        return Err(Error::invalid(format!("reason must have 1 to {REASON_BYTES_MAX} bytes")));
    }
    Ok(())
}

impl EventChange<'_> {
    fn row(&self) -> Vec<Value> {
        row_of(self.changed)
    }

    /// The parameters of the correction's note.
    fn note(&self) -> Vec<Value> {
        let (action, after) = match self.change {
            Change::Cancel => ("cancel", None),
            Change::Amend(value) => ("amend", Some(value.to_string())),
        };
        params![
            self.changed.seq,
            self.changed.place.series,
            self.changed.place.bucket,
            action,
            self.event.value.to_string(),
            after,
            self.reason,
            self.actor,
        ]
    }
}
