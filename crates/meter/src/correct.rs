//! Corrections: an operator cancels or amends one event, with a reason.
//!
//! Guarantees: the event, its partial made anew from all events of its bucket, the note of who did it and why, the mark
//! that its periods are due, and the jobs that correct the aggregates of those that are over, are one transaction; the
//! event's first value is never lost. Leaves to others: who may do it, and telling of the corrected aggregates.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, Timestamp, Tx, Value, params};
use serde_json::json;

use crate::archive::{Archived, joined};
use crate::decimal::Decimal;
use crate::due::AGGREGATE_JOB;
use crate::error::{Error, Result};
use crate::event::Key;
use crate::meter::{Head, Meter};
use crate::partials::{self, Place};
use crate::period::Bucket;
use crate::places;
use crate::requests::{self, KeyedRequest};
use crate::stored::{self, EventState, StoredEvent};

/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 1_000;
/// How often an event may be archived or corrected under us before we give up.
const TRIES_MAX: u32 = 10;
/// Places whose events are in memory at a time.
const PLACES_PER_FOLD: usize = 50;

/// What is to become of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It counts no more.
    Cancel,
    /// It has another value.
    Amend(Decimal),
}

/// A correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Who said the event.
    pub source: String,
    /// What makes it this event and no other of its source.
    pub id: String,
    /// What is to become of it.
    pub change: Change,
    /// Why.
    pub reason: String,
    /// Who does it.
    pub actor: String,
}

/// A correction that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrected {
    /// `cancel` or `amend`.
    pub action: String,
    /// The value before.
    pub before: String,
    /// The value after, if it still has one.
    pub after: Option<String>,
    /// Why.
    pub reason: String,
    /// Who did it.
    pub actor: String,
    /// When.
    pub at: Timestamp,
}

impl Meter {
    /// Finds an event, wherever it is.
    pub async fn find_event(&self, source: &str, id: &str) -> Result<Option<StoredEvent>> {
        let key = Key::of(source, id);
        let Some(seen) = self.keys.get(&self.sql, &[key]).await?.remove(&key) else {
            return Ok(None);
        };
        match stored::get(&self.sql.reading(), seen.seq).await? {
            Some(event) => Ok(Some(event)),
            None => self.get_archived(seen.seq).await,
        }
    }

    /// Corrects one event; gives it as it is now.
    pub async fn correct(&self, correction: &Correction) -> Result<StoredEvent> {
        Ok(self.correct_once(correction, None).await?.0)
    }

    /// Corrects one event, unless the request was done before; gives it as it was after that, with all corrections
    /// until then.
    pub async fn correct_once(
        &self,
        correction: &Correction,
        request: Option<&KeyedRequest>,
    ) -> Result<(StoredEvent, Vec<Corrected>)> {
        if correction.reason.is_empty() || correction.reason.len() > REASON_BYTES_MAX {
            return Err(Error::invalid(format!("a reason has 1 to {REASON_BYTES_MAX} bytes")));
        }
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
                        // Nothing may be kept of this attempt: the key is free for the next one.
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
        Err(Error::conflict("the event is being changed by somebody else"))
    }

    /// An event as it was after so many corrections, and these.
    async fn as_of(
        &self,
        mut event: StoredEvent,
        count: u64,
    ) -> Result<(StoredEvent, Vec<Corrected>)> {
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
        // Amended to the value that it has, nothing would change but the note.
        if changed.counts() == event.counts() && changed.value == event.value {
            return Err(Error::conflict("the event is like that already"));
        }
        Ok(changed)
    }

    pub(crate) async fn event_type_of(&self, series: i64) -> Result<String> {
        let text = "SELECT event_type FROM meter_series WHERE id = $1";
        let found = self.sql.query(text, params![series]).await?;
        let row = found.rows.first();
        let row = row.ok_or_else(|| Error::corrupt(format!("series {series} has no name")))?;
        Ok(row.text(0)?.to_owned())
    }

    /// Writes corrections, each with its note, and the partials that follow. False if what was read beforehand is no
    /// longer so; then the caller must not commit.
    pub(crate) async fn write_corrections(
        &self,
        tx: &Tx,
        writes: &[EventChange<'_>],
        archived: &Archived,
    ) -> Result<bool> {
        let mut head = Head::lock(tx).await?;
        if !archived.is_current(tx).await? {
            return Ok(false);
        }
        let seqs: Vec<i64> = writes.iter().map(|write| write.event.seq).collect();
        let current = stored::with_numbers(tx, &seqs).await?;
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
            // An archived event comes back to the database.
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

    /// Makes the partials of some places again from all their events.
    async fn fold_again(
        &self,
        tx: &Tx,
        head: &Head,
        places: &[Place],
        archived: &Archived,
    ) -> Result<()> {
        let mut events: BTreeMap<Place, Vec<StoredEvent>> = BTreeMap::new();
        for event in stored::at(tx, places).await? {
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
            folded.push((*place, partials::fold(event_type, joined(here, archived.of(*place)))?));
            touched.push((place.bucket, customer));
        }
        partials::write(tx, head, &folded).await?;
        partials::touch(tx, touched.into_iter()).await
    }

    async fn series_names(&self, tx: &Tx, place: Place) -> Result<(String, i64)> {
        let text = "SELECT event_type, customer FROM meter_series WHERE id = $1";
        let found = tx.execute(text, params![place.series]).await?;
        let row = found.row()?;
        Ok((row.text(0)?.to_owned(), row.int(1)?))
    }

    /// What was done to an event, oldest first.
    pub async fn corrections(&self, event: &StoredEvent) -> Result<Vec<Corrected>> {
        let text = "SELECT action, value_before, value_after, reason, actor, at_ms
                    FROM meter_correction WHERE event_seq = $1 ORDER BY number LIMIT 1000";
        let found = self.sql.query(text, params![event.seq]).await?;
        let made = found.rows.iter().map(|row| {
            Ok(Corrected {
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

/// The same error, which may be needed again if the transaction is tried again.
fn again(error: &Error) -> Error {
    match error.kind() {
        ErrorKind::Conflict => Error::conflict(error.to_string()),
        ErrorKind::Invalid => Error::invalid(error.to_string()),
        ErrorKind::Transient => Error::unavailable(error.to_string()),
        _ => Error::corrupt(error.to_string()),
    }
}

/// One event before and after a correction, and why it is corrected.
pub(crate) struct EventChange<'a> {
    pub(crate) change: &'a Change,
    pub(crate) reason: &'a str,
    pub(crate) actor: &'a str,
    pub(crate) event: &'a StoredEvent,
    pub(crate) changed: &'a StoredEvent,
}

const STORE: &str = "
    INSERT INTO meter_event (seq, bucket, series, time_ms, received_ms, source, id, amount,
        metadata, state, key_hi, key_lo, content, checks)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
    ON CONFLICT (seq) DO UPDATE SET amount = excluded.amount, state = excluded.state,
        checks = excluded.checks";

const NOTE: &str = "
    INSERT INTO meter_correction (event_seq, series, bucket, action, value_before,
        value_after, reason, actor, at_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms())";

impl EventChange<'_> {
    /// The event as it is now.
    fn row(&self) -> Vec<Value> {
        let event = self.changed;
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

    /// Who changed what, and why.
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
