//! Recording: events, their keys and what they add to partials, in one transaction.
//!
//! ```text
//!   lock the head ─▶ look for keys ─▶ number series ─▶ events, places ─▶ partials ─▶ touched ─▶ commit
//! ```
//!
//! Guarantees: an event whose outcome is [`Outcome::Stored`] or [`Outcome::Repeated`] is on disk and counts once; one
//! that contradicts an earlier one with the same key changes nothing and is [`Outcome::Conflict`]. Whoever dies in the
//! middle left nothing. Leaves to others: checking events ([`crate::event`]), doing many at once
//! ([`crate::Recorder`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join;
use logmill_io::sql::{Bulk, ColumnType};
use logmill_io::{Timestamp, Tx, Value, params};

use crate::archive::Archived;
use crate::checksum::EventColumns;
use crate::error::{Error, Result};
use crate::event::{Event, Key};
use crate::keys::{Known, Seen};
use crate::meter::{Head, Meter};
use crate::partials::{self, ByPlace, NeedsArchived, Place};
use crate::period::Bucket;
use crate::series::{self, Names, Series};
use crate::stored::EventState;

/// How often what was read beforehand may turn out to be too little before a group is given up.
const TRIES_MAX: u32 = 100;

/// How many events are made into rows while those before them are written.
const EVENTS_PER_BULK: usize = 2_500;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new, and counts.
    Stored,
    /// It was recorded before, with the same content, and counts once.
    Repeated,
    /// Another event has the same source and id; this one was not recorded.
    Conflict,
}

/// An event and when it came.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The event.
    pub event: Event,
    /// When it came; the same for all events of a batch.
    pub received: Timestamp,
}

impl Arrived {
    pub(crate) fn time(&self) -> Timestamp {
        self.event.time.unwrap_or(self.received)
    }
}

/// How a transaction ended.
pub(crate) enum Commit {
    /// It may commit.
    Done(Committed),
    /// The blobs of keys are no longer those that were looked at; nothing was written.
    KeysMoved,
    /// Some events must be read from the archive first; what was written must not be committed.
    Needs(Vec<Place>),
}

/// What a transaction did, to be remembered once it is committed.
pub(crate) struct Committed {
    /// Keys that were there before, and those that are new, with the first number and the one after the last.
    pub(crate) seen: HashMap<Key, Seen>,
    claims: Vec<(Key, Seen)>,
    numbers: (i64, i64),
    series: BTreeMap<Names, Series>,
}

/// A group of events, and what is known of it before the transaction.
pub(crate) struct Group {
    events: Arc<Vec<Arrived>>,
    /// Of events with the same key in one group the first is recorded.
    firsts: HashMap<Key, usize>,
}

impl Group {
    pub(crate) fn new(events: Arc<Vec<Arrived>>) -> Self {
        let mut firsts: HashMap<Key, usize> = HashMap::with_capacity(events.len());
        for (index, arrived) in events.iter().enumerate() {
            firsts.entry(arrived.event.key).or_insert(index);
        }
        Self { events, firsts }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + Clone {
        self.firsts.keys().copied()
    }
}

/// What was read before the transaction, as it must not wait for blobs.
pub(crate) struct Beforehand {
    pub(crate) known: Arc<Known>,
    pub(crate) sealed: HashMap<Key, Seen>,
    pub(crate) archived: Archived,
}

/// An event that is new, with its place.
pub(crate) struct Fresh<'a> {
    pub(crate) arrived: &'a Arrived,
    pub(crate) seq: i64,
    pub(crate) series: Series,
}

impl Fresh<'_> {
    pub(crate) fn place(&self) -> Place {
        Place { series: self.series.id, bucket: Bucket::of(self.arrived.time()).0 }
    }
}

impl Meter {
    /// Records events in one transaction; gives what became of each, in order.
    pub async fn record(&self, events: impl Into<Arc<Vec<Arrived>>>) -> Result<Vec<Outcome>> {
        let group = Arc::new(Group::new(events.into()));
        let mut archived = Archived::default();
        for _ in 0..TRIES_MAX {
            let (known, sealed) = self.keys.find_sealed(&self.sql, group.keys()).await?;
            let before = Arc::new(Beforehand { known, sealed, archived });
            let commit = match self.commit(&group, &before).await {
                // It may have been committed; then all of it is found again.
                Err(Error::Store(logmill_io::Error::InDoubt { .. })) => {
                    archived = Archived::default();
                    continue;
                }
                commit => commit?,
            };
            match commit {
                Commit::Done(committed) => return Ok(self.committed(&group, committed)),
                Commit::KeysMoved => {
                    self.keys.reload(&self.sql).await?;
                    archived = Archived::default();
                }
                Commit::Needs(places) => archived = self.read_archived(&places).await?,
            }
        }
        Err(Error::conflict("the blobs of keys change too often"))
    }

    /// Which of these events have a time that can not be recorded, and were not recorded when it could, by index, and
    /// why: it is outside the bounds, or in no period.
    pub async fn out_of_time(&self, events: &[Arrived]) -> Result<Vec<(usize, String)>> {
        let mut outside: Vec<(usize, &Event, String)> = Vec::new();
        for (index, arrived) in events.iter().enumerate() {
            let event = &arrived.event;
            let why = event.outside.clone().or_else(|| self.refused_time(arrived.time()));
            outside.extend(why.map(|why| (index, event, why)));
        }
        if outside.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = outside.iter().map(|(_, event, _)| event.key).collect();
        let seen = self.keys.get(&self.sql, &keys).await?;
        outside.retain(|(_, event, _)| {
            seen.get(&event.key).is_none_or(|seen| seen.content != event.content)
        });
        Ok(outside.into_iter().map(|(index, _, why)| (index, why)).collect())
    }

    async fn commit(&self, group: &Arc<Group>, before: &Arc<Beforehand>) -> Result<Commit> {
        let needs = Arc::new(Mutex::new(Vec::new()));
        let written = self
            .sql
            .write(|tx| {
                let (group, before) = (Arc::clone(group), Arc::clone(before));
                let needs = Arc::clone(&needs);
                async move {
                    match self.write_group(&tx, &group, &before).await? {
                        Commit::Needs(places) => {
                            *needs.lock().unwrap_or_else(PoisonError::into_inner) = places;
                            // An error is what rolls a transaction back.
                            Err(Error::conflict("archived events are to be read first").into())
                        }
                        commit => Ok(commit),
                    }
                }
            })
            .await;
        let places = std::mem::take(&mut *needs.lock().unwrap_or_else(PoisonError::into_inner));
        if places.is_empty() { Ok(written?) } else { Ok(Commit::Needs(places)) }
    }

    /// Records the events of a group that are new, in a transaction of the caller's.
    pub(crate) async fn write_group(
        &self,
        tx: &Tx,
        group: &Group,
        before: &Beforehand,
    ) -> Result<Commit> {
        let mut head = Head::lock(tx).await?;
        if head.keys_version != before.known.version {
            return Ok(Commit::KeysMoved);
        }
        let unsealed = group.firsts.iter().filter(|(key, _)| !before.sealed.contains_key(key));
        let mut candidates: Vec<usize> = unsealed.map(|(_, index)| *index).collect();
        candidates.sort_unstable();
        let claims: Vec<(Key, Seen)> = (head.seq..)
            .zip(&candidates)
            .map(|(seq, index)| {
                let event = &group.events[*index].event;
                (event.key, Seen { content: event.content, seq })
            })
            .collect();
        let keys = claims.iter().map(|(key, _)| *key);
        let mut seen = self.keys.find_recent(tx, &head, keys).await?;
        let fresh = claims.iter().zip(&candidates).filter(|((key, _), _)| !seen.contains_key(key));
        let fresh: Vec<(i64, &Arrived)> =
            fresh.map(|((_, new), index)| (new.seq, &group.events[*index])).collect();
        let first = head.seq;
        let series = match self.store(tx, &mut head, &fresh, &before.archived).await? {
            Ok(series) => series,
            Err(NeedsArchived(places)) => return Ok(Commit::Needs(places)),
        };
        head.seq += i64::try_from(claims.len()).unwrap_or(i64::MAX);
        head.store(tx).await?;
        let claims = claims.into_iter().filter(|(key, _)| !seen.contains_key(key)).collect();
        seen.extend(&before.sealed);
        Ok(Commit::Done(Committed { seen, claims, numbers: (first, head.seq), series }))
    }

    async fn store(
        &self,
        tx: &Tx,
        head: &mut Head,
        fresh: &[(i64, &Arrived)],
        archived: &Archived,
    ) -> Result<Result<BTreeMap<Names, Series>, NeedsArchived>> {
        let mut made = BTreeMap::new();
        if fresh.is_empty() {
            return Ok(Ok(made));
        }
        let mut key = String::new();
        let mut found: Vec<Option<Series>> =
            fresh.iter().map(|(_, arrived)| self.series.get(&mut key, &arrived.event)).collect();
        let unknown: BTreeSet<Names> = fresh
            .iter()
            .zip(&found)
            .filter(|(_, series)| series.is_none())
            .map(|((_, arrived), _)| Names::of(&arrived.event))
            .collect();
        if !unknown.is_empty() {
            made = series::resolve(tx, head, &unknown, self.settings.groups_max).await?;
            for ((_, arrived), series) in fresh.iter().zip(&mut found) {
                if series.is_none() {
                    *series = made.get(&Names::of(&arrived.event)).copied();
                }
            }
        }
        let fresh: Vec<Fresh<'_>> = fresh
            .iter()
            .zip(found)
            .filter_map(|((seq, arrived), series)| {
                Some(Fresh { arrived, seq: *seq, series: series? })
            })
            .collect();
        match self.write_fresh(tx, head, &fresh, archived).await? {
            Ok(()) => Ok(Ok(made)),
            Err(needs) => Ok(Err(needs)),
        }
    }

    /// Writes new events and what follows from them. While the database writes events, what it writes next is made.
    async fn write_fresh(
        &self,
        tx: &Tx,
        head: &mut Head,
        fresh: &[Fresh<'_>],
        archived: &Archived,
    ) -> Result<Result<(), NeedsArchived>> {
        let mut places = ByPlace::new();
        for event in fresh {
            places.entry(event.place()).or_default().push(event);
        }
        let placed: Vec<(i64, i64, i64)> = places
            .iter()
            .flat_map(|(place, events)| {
                events.iter().map(|event| (place.bucket, place.series, event.seq))
            })
            .collect();
        let before = partials::read_in(tx, head, places.keys().copied()).await?;
        let mut parts = fresh.chunks(EVENTS_PER_BULK);
        let rows = |part: Option<&[Fresh<'_>]>| -> Vec<Vec<Value>> {
            part.unwrap_or_default().iter().map(event_row).collect()
        };
        let mut next = rows(parts.next());
        for part in parts {
            let (written, made) = join(tx.bulk(&EVENTS, next), async { rows(Some(part)) }).await;
            written?;
            next = made;
        }
        let adding = async { self.add_to_partials(before, places) };
        let (written, with_new) = join(tx.bulk(&EVENTS, next), adding).await;
        written?;
        self.place(tx, head, &placed).await?;
        if let Err(needs) = with_new?.write(tx, head, archived).await? {
            return Ok(Err(needs));
        }
        let touched = fresh.iter().map(|event| (event.place().bucket, event.series.customer));
        partials::touch(tx, touched).await?;
        Ok(Ok(()))
    }

    /// Remembers what was committed; gives what became of each event.
    pub(crate) fn committed(&self, group: &Group, committed: Committed) -> Vec<Outcome> {
        for (names, series) in &committed.series {
            self.series.insert(names, *series);
        }
        let (first, end) = committed.numbers;
        self.keys.remember(committed.claims.into_iter(), first, end);
        let outcomes = group.events.iter().enumerate().map(|(index, arrived)| {
            let event = &arrived.event;
            let first = group.firsts.get(&event.key).copied().unwrap_or(index);
            let before = committed.seen.get(&event.key).map(|seen| seen.content);
            match before {
                Some(content) if content == event.content => Outcome::Repeated,
                Some(_) => Outcome::Conflict,
                None if first == index => Outcome::Stored,
                None if group.events[first].event.content == event.content => Outcome::Repeated,
                None => Outcome::Conflict,
            }
        });
        outcomes.collect()
    }
}

const EVENTS: Bulk = Bulk {
    table: Cow::Borrowed("meter_event"),
    columns: Cow::Borrowed(&[
        ("seq", ColumnType::Int),
        ("bucket", ColumnType::Int),
        ("series", ColumnType::Int),
        ("time_ms", ColumnType::Int),
        ("received_ms", ColumnType::Int),
        ("source", ColumnType::Text),
        ("id", ColumnType::Text),
        ("amount", ColumnType::Text),
        ("metadata", ColumnType::Text),
        ("state", ColumnType::Int),
        ("key_hi", ColumnType::Int),
        ("key_lo", ColumnType::Int),
        ("content", ColumnType::Int),
        ("checks", ColumnType::Int),
    ]),
    key_columns: 1,
    on_conflict: Cow::Borrowed(""),
};

fn event_row(fresh: &Fresh<'_>) -> Vec<Value> {
    let Arrived { event, received } = fresh.arrived;
    let (place, amount) = (fresh.place(), event.value.to_string());
    let columns = EventColumns {
        seq: fresh.seq,
        place,
        time_ms: fresh.arrived.time().millis(),
        received_ms: received.millis(),
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
        fresh.seq,
        place.bucket,
        place.series,
        fresh.arrived.time(),
        *received,
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
