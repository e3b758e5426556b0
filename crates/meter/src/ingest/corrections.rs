//! Changes of recorded events, each with a note.
//!
//! Guarantees: the event, its note and its partial, recomputed from all events of its bucket, are written in the
//! caller's transaction under the head's lock. The event's first value is never lost. Leaves to others: who may change
//! what ([`crate::upkeep::correct`], [`crate::chains`]), and what follows for aggregates.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::{Tx, Value, params};

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::store::archive::{ArchivedEvents, join_archived};
use crate::store::head::Head;
use crate::store::names::read_series;
use crate::store::partials;
use crate::store::place::Place;
use crate::store::place_index;
use crate::store::stored_event::{self, STORE, StoredEvent, row_of};

const REASON_BYTES_MAX: usize = 1_000;
/// Maximum number of places whose events are in memory at once.
const PLACES_PER_FOLD: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The event no longer counts.
    Cancel,
    /// The event gets another value.
    Amend(Decimal),
}

/// One event before and after a correction, and the reason.
pub(crate) struct EventChange<'a> {
    pub(crate) change: &'a Change,
    pub(crate) reason: &'a str,
    pub(crate) actor: &'a str,
    pub(crate) event: &'a StoredEvent,
    pub(crate) changed: &'a StoredEvent,
}

pub(crate) const NOTE: &str = "
    INSERT INTO meter_correction (event_seq, series, bucket, action, value_before,
        value_after, reason, actor, at_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms())";

/// Writes corrections with their notes, and the affected partials. Returns false if the data read beforehand has
/// changed; then the caller must not commit.
pub(crate) async fn write(
    tx: &Tx,
    settings: &Settings,
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
        place_index::enter(tx, write.event.place, write.event.seq).await?;
    }
    let places: BTreeSet<Place> = writes.iter().map(|write| write.event.place).collect();
    let places: Vec<Place> = places.into_iter().collect();
    for some in places.chunks(PLACES_PER_FOLD) {
        fold_again(tx, &head, some, archived, settings).await?;
    }
    head.seq += 1;
    head.store(tx).await?;
    Ok(true)
}

/// Recomputes the partials of some places from all their events.
pub(crate) async fn fold_again(
    tx: &Tx,
    head: &Head,
    places: &[Place],
    archived: &ArchivedEvents,
    settings: &Settings,
) -> Result<()> {
    let mut events: BTreeMap<Place, Vec<StoredEvent>> = BTreeMap::new();
    for event in stored_event::at(tx, places).await? {
        events.entry(event.place).or_default().push(event);
    }
    let mut folded = Vec::with_capacity(places.len());
    let mut touched = Vec::with_capacity(places.len());
    for place in places {
        let here = events.remove(place).unwrap_or_default();
        let (event_type, customer) = read_series(tx, place.series).await?;
        let event_type = settings
            .events
            .get(&event_type)
            .ok_or_else(|| Error::invalid(format!("event type {event_type} is not configured")))?;
        folded
            .push((*place, partials::fold(event_type, join_archived(here, archived.of(*place)))?));
        touched.push((place.bucket, customer));
    }
    partials::write(tx, head, &folded).await?;
    partials::touch(tx, touched.into_iter()).await
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
