//! New events: written with their places, and added to the partials of their series.
//!
//! Guarantees: rows, places, partials and marks of touched usage are written in the caller's transaction, which holds
//! the head's lock. A partial whose order of events matters is recomputed if a new event precedes a counted one. Leaves
//! to others: which events are new, and their numbers ([`super::record`]).

use std::collections::{BTreeMap, HashMap};

use futures::future::join;
use logmill_io::{Timestamp, Tx, Value, params};

use crate::error::Result;
use crate::event::Event;
use crate::partial::{AddOutcome, OptionalParts, Partial, Position, Sample};
use crate::period::Bucket;
use crate::settings::{EventType, Settings};
use crate::store::archive::ArchivedEvents;
use crate::store::checksum::EventColumns;
use crate::store::head::Head;
use crate::store::partials::{self, MissingArchive};
use crate::store::place::Place;
use crate::store::place_index;
use crate::store::series::Series;
use crate::store::stored_event::{EVENTS, EventState};

/// Number of events that are encoded while the previous ones are written.
const EVENTS_PER_BULK: usize = 2_500;

/// An event and its time of arrival.
#[derive(Clone, Debug)]
pub struct ReceivedEvent {
    pub event: Event,
    /// The same for all events of a batch.
    pub received_at: Timestamp,
}

impl ReceivedEvent {
    pub(crate) fn time(&self) -> Timestamp {
        self.event.time.unwrap_or(self.received_at)
    }
}

/// A new event with its number and series.
pub(crate) struct NewEvent<'a> {
    pub(crate) received: &'a ReceivedEvent,
    pub(crate) seq: i64,
    pub(crate) series: Series,
}

impl NewEvent<'_> {
    pub(crate) fn place(&self) -> Place {
        Place { series: self.series.id, bucket: Bucket::of(self.received.time()).0 }
    }
}

type ByPlace<'a, 'b> = BTreeMap<Place, Vec<&'b NewEvent<'a>>>;

/// Writes new events and what follows from them. While the database writes, the next rows are prepared.
pub(crate) async fn write(
    tx: &Tx,
    head: &mut Head,
    new_events: &[NewEvent<'_>],
    archived: &ArchivedEvents,
    settings: &Settings,
    unplaced_max: u64,
) -> Result<Result<(), MissingArchive>> {
    let mut places = ByPlace::new();
    for event in new_events {
        places.entry(event.place()).or_default().push(event);
    }
    let placed: Vec<(i64, i64, i64)> = places
        .iter()
        .flat_map(|(place, events)| {
            events.iter().map(|event| (place.bucket, place.series, event.seq))
        })
        .collect();
    let before = partials::read_in(tx, head, places.keys().copied()).await?;
    let mut parts = new_events.chunks(EVENTS_PER_BULK);
    let rows = |part: Option<&[NewEvent<'_>]>| -> Vec<Vec<Value>> {
        part.unwrap_or_default().iter().map(event_row).collect()
    };
    let mut next = rows(parts.next());
    for part in parts {
        let (written, made) = join(tx.bulk(&EVENTS, next), async { rows(Some(part)) }).await;
        written?;
        next = made;
    }
    let adding = async { UpdatedPartials::new(before, places, settings) };
    let (written, with_new) = join(tx.bulk(&EVENTS, next), adding).await;
    written?;
    place_index::add(tx, head, &placed, unplaced_max).await?;
    if let Err(needs) = with_new?.write(tx, head, archived).await? {
        return Ok(Err(needs));
    }
    let touched = new_events.iter().map(|event| (event.place().bucket, event.series.customer));
    partials::touch(tx, touched).await?;
    Ok(Ok(()))
}

fn event_row(new: &NewEvent<'_>) -> Vec<Value> {
    let ReceivedEvent { event, received_at } = new.received;
    let (place, amount) = (new.place(), event.value.to_string());
    let columns = EventColumns {
        seq: new.seq,
        place,
        time_ms: new.received.time().millis(),
        received_ms: received_at.millis(),
        source: &event.source,
        id: &event.id,
        amount: &amount,
        metadata: event.metadata.as_deref(),
        state: EventState::Recorded.number(),
        key: event.key,
        content: event.content,
    };
    let checks = columns.checks();
    params![
        new.seq,
        place.bucket,
        place.series,
        new.received.time(),
        *received_at,
        event.source.as_str(),
        event.id.as_str(),
        amount,
        event.metadata.clone(),
        EventState::Recorded.number(),
        event.key.hi,
        event.key.lo,
        event.content,
        checks,
    ]
}

/// Partials with new events.
struct UpdatedPartials<'a> {
    changed: Vec<(Place, Partial)>,
    /// Places whose partial cannot take the new events; it is recomputed from all events of the bucket.
    to_recompute: Vec<(Place, &'a EventType)>,
}

impl<'a> UpdatedPartials<'a> {
    /// Adds new events to the existing partials.
    fn new(
        mut before: HashMap<Place, Partial>,
        new_events: ByPlace<'_, '_>,
        settings: &'a Settings,
    ) -> Result<Self> {
        let mut with =
            Self { changed: Vec::with_capacity(new_events.len()), to_recompute: Vec::new() };
        for (place, mut events) in new_events {
            let event_type = events.first().map(|event| &event.received.event.event_type);
            let Some(event_type) = event_type.and_then(|name| settings.events.get(name)) else {
                continue;
            };
            events.sort_unstable_by_key(|event| position(event));
            match add(before.remove(&place), event_type, &events)? {
                Some(partial) => with.changed.push((place, partial)),
                None => with.to_recompute.push((place, event_type)),
            }
        }
        Ok(with)
    }

    /// Writes partials whose new events are already written. If recomputed ones have archived events, the caller must
    /// read these first.
    async fn write(
        mut self,
        tx: &Tx,
        head: &Head,
        archived: &ArchivedEvents,
    ) -> Result<Result<(), MissingArchive>> {
        if !self.to_recompute.is_empty() {
            match partials::recompute(tx, &self.to_recompute, archived).await? {
                Ok(made) => self.changed.extend(made),
                Err(needs) => return Ok(Err(needs)),
            }
        }
        partials::write(tx, head, &self.changed).await?;
        Ok(Ok(()))
    }
}

/// `None` if order matters and an event precedes one that is already counted.
fn add(
    stored: Option<Partial>,
    event_type: &EventType,
    events: &[&NewEvent<'_>],
) -> Result<Option<Partial>> {
    let mut partial = stored.unwrap_or_else(|| Partial::new(OptionalParts::from(event_type)));
    for event in events {
        let sample = Sample {
            at: position(event),
            value: event.received.event.value,
            unique: event.received.event.unique.as_deref(),
        };
        if let AddOutcome::OutOfOrder = partial.add(&sample)? {
            return Ok(None);
        }
    }
    Ok(Some(partial))
}

fn position(event: &NewEvent<'_>) -> Position {
    Position { time: event.received.time(), received: event.received.received_at, seq: event.seq }
}
