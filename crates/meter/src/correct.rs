//! Corrections: an operator cancels or amends one event, with a reason.
//!
//! Guarantees: the event, its partial made anew from all events of its bucket, the note of who did it and why, and the
//! mark that its periods are due, are one transaction; the event's first value is never lost. Leaves to others: who may
//! do it, and telling of the corrected aggregates.

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, params};

use crate::archive::{Archived, joined};
use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::event::Key;
use crate::meter::{Head, Meter};
use crate::partials::{self, Place};
use crate::places;
use crate::stored::{self, EventState, StoredEvent};

/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 1_000;
/// How often an event may be archived or corrected under us before we give up.
const TRIES_MAX: u32 = 10;

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
        if correction.reason.is_empty() || correction.reason.len() > REASON_BYTES_MAX {
            return Err(Error::invalid(format!("a reason has 1 to {REASON_BYTES_MAX} bytes")));
        }
        for _ in 0..TRIES_MAX {
            let (source, id) = (correction.source.as_str(), correction.id.as_str());
            let event = self.find_event(source, id).await?;
            let event =
                event.ok_or_else(|| Error::not_found(format!("event {id} of source {source}")))?;
            let changed = self.changed(&event, &correction.change).await?;
            let archived = self.read_archived(&[event.place]).await?;
            let (event, changed, archived) = (&event, &changed, &archived);
            let done = self
                .sql
                .write(|tx| async move {
                    let write = Write { correction, event, changed, archived };
                    Ok(self.write_correction(&tx, &write).await?)
                })
                .await?;
            if done {
                return Ok(changed.clone());
            }
        }
        Err(Error::conflict("the event is being changed by somebody else"))
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

    /// False if what was read beforehand is no longer so.
    async fn write_correction(&self, tx: &Tx, write: &Write<'_>) -> Result<bool> {
        let mut head = Head::lock(tx).await?;
        let moved = !write.archived.is_current(tx).await?;
        let current = stored::get(tx, write.event.seq).await?;
        let was_archived = current.is_none();
        if moved || current.is_some_and(|current| current != *write.event) {
            return Ok(false);
        }
        write.store(tx).await?;
        if was_archived {
            places::enter(tx, write.event.place, write.event.seq).await?;
        }
        let place = write.event.place;
        let events = joined(stored::at(tx, &[place]).await?, write.archived.of(place));
        let (event_type, customer) = self.series_names(tx, place).await?;
        let event_type =
            self.settings.events.get(&event_type).ok_or_else(|| {
                Error::invalid(format!("event type {event_type} is not configured"))
            })?;
        let partial = partials::fold(event_type, events)?;
        partials::write(tx, &head, &[(place, partial)]).await?;
        partials::touch(tx, [(place.bucket, customer)].into_iter()).await?;
        head.seq += 1;
        head.store(tx).await?;
        Ok(true)
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

/// A correction and what was read before it.
struct Write<'a> {
    correction: &'a Correction,
    event: &'a StoredEvent,
    changed: &'a StoredEvent,
    archived: &'a Archived,
}

impl Write<'_> {
    /// The event as it is now, and the note. An archived event comes back to the database.
    async fn store(&self, tx: &Tx) -> Result<()> {
        let event = self.changed;
        let key = Key::of(&event.source, &event.id);
        let text = "
            INSERT INTO meter_event (seq, bucket, series, time_ms, received_ms, source, id, amount,
                metadata, state, key_hi, key_lo, content, checks)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
            ON CONFLICT (seq) DO UPDATE SET amount = excluded.amount, state = excluded.state,
                checks = excluded.checks";
        let params = params![
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
        ];
        tx.execute(text, params).await?;
        let (action, after) = match self.correction.change {
            Change::Cancel => ("cancel", None),
            Change::Amend(value) => ("amend", Some(value.to_string())),
        };
        let text = "
            INSERT INTO meter_correction (event_seq, series, bucket, action, value_before,
                value_after, reason, actor, at_ms)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms())";
        let params = params![
            event.seq,
            event.place.series,
            event.place.bucket,
            action,
            self.event.value.to_string(),
            after,
            self.correction.reason.as_str(),
            self.correction.actor.as_str(),
        ];
        tx.execute(text, params).await?;
        Ok(())
    }
}
