//! Corrections: an operator cancels or amends one event, with a reason.
//!
//! Guarantees: the event, its partial recomputed from all events of its bucket, the note with actor and reason, the
//! marks of its due periods, and the jobs that correct the aggregates of finished periods, are one transaction. The
//! event's first value is never lost. Leaves to others: authorization, and announcing the corrected aggregates.

use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, Timestamp, params};
use serde_json::json;

use crate::Meter;
use crate::aggregate::due::AGGREGATE_JOB;
use crate::error::{Error, Result};
use crate::event::Key;
pub use crate::ingest::corrections::Change;
use crate::ingest::corrections::{self, EventChange, check_reason};
use crate::period::Bucket;
use crate::store::names::read_series;
use crate::store::requests::{self, KeyedRequest};
use crate::store::stored_event::{self, EventState, StoredEvent};

/// Maximum number of attempts when the event is archived or corrected concurrently.
const TRIES_MAX: u32 = 10;

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
            None => self.archive.get(&self.sql, recorded.seq).await,
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
            let archived = self.archive.read(&self.sql, &[event.place]).await?;
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
                        Err(error) => return Err(again(error)),
                    };
                    let (change, reason) = (&correction.change, correction.reason.as_str());
                    let actor = correction.actor.as_str();
                    let change = EventChange { change, reason, actor, event, changed };
                    if !corrections::write(&tx, &self.settings, &[change], archived).await? {
                        // Nothing of this attempt may be kept: the key is free for the next one.
                        requests::release_in(&tx, request).await?;
                        return Ok(None);
                    }
                    let (_, customer) = read_series(&tx, event.place.series).await?;
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
                let event_type = read_series(&self.sql.reading(), event.place.series).await?.0;
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
