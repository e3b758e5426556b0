//! Partials in the database: what is known of each series in each fifteen minutes.
//!
//! Guarantees: a partial is written in the transaction that writes, cancels or amends the events it speaks for, so
//! that it always equals the fold over them; its revision is a number that no other change has. Leaves to others: the
//! fold ([`crate::partial`]), reading partials for an answer ([`crate::query`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Tx, Value, params};

use crate::archive::joined;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::partial::{Added, Keeps, Partial, Position, Sample};
use crate::record::Fresh;
use crate::settings::EventType;
use crate::stored::{self, StoredEvent};

/// Where a partial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) series: i64,
    pub(crate) bucket: i64,
}

/// Events that were moved to blobs, for places whose partials must be made anew.
pub(crate) type Archived = HashMap<Place, Vec<StoredEvent>>;

/// A place whose events are not all in the database.
#[derive(Debug)]
pub(crate) struct NeedsArchived(pub(crate) Vec<Place>);

impl Meter {
    /// Adds new events to partials. Some can not be added but only be made anew from all events of their bucket; for
    /// those that have archived events the caller must read them first.
    pub(crate) async fn add_to_partials(
        &self,
        tx: &Tx,
        revision: i64,
        fresh: &[Fresh<'_>],
        archived: &Archived,
    ) -> Result<Result<(), NeedsArchived>> {
        let mut places: BTreeMap<Place, Vec<&Fresh<'_>>> = BTreeMap::new();
        for event in fresh {
            places.entry(event.place()).or_default().push(event);
        }
        let mut before = read(tx, places.keys().copied()).await?;
        let mut rows = Vec::with_capacity(places.len());
        let mut missing = Vec::new();
        for (place, mut events) in places {
            let Some(event_type) = events.first().and_then(|event| self.type_of(event)) else {
                continue;
            };
            events.sort_unstable_by_key(|event| position(event));
            let stored = before.remove(&place);
            let partial = match add(stored, event_type, &events)? {
                Some(partial) => partial,
                None if archived.contains_key(&place) || !is_archived(tx, place).await? => {
                    let there = archived.get(&place).map_or(&[][..], Vec::as_slice);
                    fold(event_type, joined(stored::of_place(tx, place).await?, there))?
                }
                None => {
                    missing.push(place);
                    continue;
                }
            };
            rows.push(row(place, revision, &partial));
        }
        if !missing.is_empty() {
            return Ok(Err(NeedsArchived(missing)));
        }
        tx.bulk(&PARTIALS, rows).await?;
        Ok(Ok(()))
    }

    fn type_of(&self, event: &Fresh<'_>) -> Option<&EventType> {
        self.settings.events.get(&event.arrived.event.event_type)
    }
}

/// None if the events do not come after those that are there, and that matters.
fn add(
    stored: Option<Partial>,
    event_type: &EventType,
    events: &[&Fresh<'_>],
) -> Result<Option<Partial>> {
    let mut partial = stored.unwrap_or_else(|| Partial::new(Keeps::from(event_type)));
    for event in events {
        let sample = Sample {
            at: position(event),
            value: event.arrived.event.value,
            unique: event.arrived.event.unique.as_deref(),
        };
        if let Added::OutOfOrder = partial.add(&sample)? {
            return Ok(None);
        }
    }
    Ok(Some(partial))
}

fn position(event: &Fresh<'_>) -> Position {
    Position { time: event.arrived.time(), received: event.arrived.received, seq: event.seq }
}

/// The partial of all events of one place.
pub(crate) fn fold(event_type: &EventType, mut events: Vec<StoredEvent>) -> Result<Partial> {
    events.sort_unstable_by_key(StoredEvent::position);
    let mut partial = Partial::new(Keeps::from(event_type));
    for event in events.iter().filter(|event| event.counts()) {
        let unique = event.unique(event_type);
        let sample = Sample { at: event.position(), value: event.value, unique: unique.as_deref() };
        if let Added::OutOfOrder = partial.add(&sample)? {
            return Err(Error::corrupt("sorted events are out of order"));
        }
    }
    Ok(partial)
}

/// Writes one partial, made anew; one of no events is not kept.
pub(crate) async fn replace(tx: &Tx, place: Place, revision: i64, partial: &Partial) -> Result<()> {
    if partial.is_empty() {
        let text = "DELETE FROM meter_partial WHERE series = $1 AND bucket = $2";
        tx.execute(text, params![place.series, place.bucket]).await?;
    } else {
        tx.bulk(&PARTIALS, vec![row(place, revision, partial)]).await?;
    }
    Ok(())
}

/// The partials of these places that exist.
pub(crate) async fn read(
    on: &impl Execute,
    places: impl Iterator<Item = Place>,
) -> Result<HashMap<Place, Partial>> {
    let list: Vec<(i64, i64)> = places.map(|place| (place.series, place.bucket)).collect();
    let list = serde_json::to_string(&list).map_err(|error| Error::corrupt(error.to_string()))?;
    let text = "SELECT p.series, p.bucket, p.state
                FROM json_list($1) CROSS JOIN meter_partial p
                WHERE p.series = CAST(value ->> 0 AS BIGINT)
                    AND p.bucket = CAST(value ->> 1 AS BIGINT)";
    let mut found = HashMap::new();
    for row in &on.execute(text, params![list]).await?.rows {
        let place = Place { series: row.int(0)?, bucket: row.int(1)? };
        let partial = Partial::decode(&row.blob(2)?)?;
        found.insert(place, partial);
    }
    Ok(found)
}

async fn is_archived(tx: &Tx, place: Place) -> Result<bool> {
    let text = "SELECT count(*) FROM meter_archive WHERE bucket_last >= $1 AND bucket_first <= $1";
    Ok(tx.execute(text, params![place.bucket]).await?.row()?.int(0)? > 0)
}

const PARTIALS: Bulk = Bulk {
    table: Cow::Borrowed("meter_partial"),
    columns: Cow::Borrowed(&[
        ("series", ColumnType::Int),
        ("bucket", ColumnType::Int),
        ("revision", ColumnType::Int),
        ("state", ColumnType::Blob),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(
        "DO UPDATE SET revision = excluded.revision, state = excluded.state",
    ),
};

fn row(place: Place, revision: i64, partial: &Partial) -> Vec<Value> {
    params![place.series, place.bucket, revision, partial.encode()]
}

const TOUCHED: Bulk = Bulk {
    table: Cow::Borrowed("meter_touched"),
    columns: Cow::Borrowed(&[
        ("bucket", ColumnType::Int),
        ("customer", ColumnType::Int),
        ("events", ColumnType::Int),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed("DO UPDATE SET events = meter_touched.events + excluded.events"),
};

/// Notes whose usage of which time changed.
pub(crate) async fn touch(tx: &Tx, changed: impl Iterator<Item = (i64, i64)>) -> Result<()> {
    let mut events: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    for place in changed {
        *events.entry(place).or_default() += 1;
    }
    let rows: Vec<Vec<Value>> = events
        .into_iter()
        .map(|((bucket, customer), events)| params![bucket, customer, events])
        .collect();
    tx.bulk(&TOUCHED, rows).await?;
    Ok(())
}
