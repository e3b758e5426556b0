//! Recording: events, their keys and their contributions to partials, in one transaction.
//!
//! ```text
//!   lock the head ─▶ look up keys ─▶ number series ─▶ events, places ─▶ partials ─▶ touched ─▶ commit
//! ```
//!
//! Guarantees: an event whose outcome is [`Outcome::Stored`] or [`Outcome::Repeated`] is on disk and counts once. An
//! event that contradicts an earlier one with the same key changes nothing and is [`Outcome::Conflict`]. A crash leaves
//! nothing half done. Leaves to others: checking events ([`crate::event`]), batching ([`crate::Recorder`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use logmill_io::Tx;
use logmill_work::NewJob;

use crate::Meter;
use crate::error::{Error, Result};
use crate::event::{Event, Key};
pub use crate::ingest::new_events::ReceivedEvent;
use crate::ingest::new_events::{self, NewEvent};
use crate::store::archive::ArchivedEvents;
use crate::store::head::Head;
use crate::store::keys::{RecordedEvent, RunList};
use crate::store::partials::MissingArchive;
use crate::store::place::Place;
use crate::store::series::{self, Series, SeriesKey};

/// Kind of the jobs that seal keys and archive events.
pub const HOUSEKEEPING_JOB: &str = "meter.housekeeping";

/// Maximum number of attempts when the data read beforehand is outdated or incomplete.
const TRIES_MAX: u32 = 100;

/// Outcome of recording an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new, and counts.
    Stored,
    /// It was recorded before with the same content, and counts once.
    Repeated,
    /// Another event has the same source and id; this one was not recorded.
    Conflict,
}

/// Result of a transaction.
pub(crate) enum WriteOutcome {
    /// It may commit.
    Done(CacheUpdates),
    /// The blobs of keys have changed since they were read; nothing was written.
    KeysMoved,
    /// Some events must be read from the archive first; what was written must not be committed.
    Needs(Vec<Place>),
}

/// Effects of a transaction on caches, applied once it is committed.
pub(crate) struct CacheUpdates {
    /// Keys that already existed, and new ones, with the first number and the one after the last.
    pub(crate) existing: HashMap<Key, RecordedEvent>,
    claims: Vec<(Key, RecordedEvent)>,
    numbers: (i64, i64),
    series: BTreeMap<SeriesKey, Series>,
}

/// A group of events, prepared before the transaction.
pub(crate) struct Group {
    events: Arc<Vec<ReceivedEvent>>,
    /// Of several events with the same key in one group, the first is recorded.
    firsts: HashMap<Key, usize>,
}

impl Group {
    pub(crate) fn new(events: Arc<Vec<ReceivedEvent>>) -> Self {
        let mut firsts: HashMap<Key, usize> = HashMap::with_capacity(events.len());
        for (index, received) in events.iter().enumerate() {
            firsts.entry(received.event.key).or_insert(index);
        }
        Self { events, firsts }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + Clone {
        self.firsts.keys().copied()
    }
}

/// Data read before the transaction, which must not wait for blobs.
pub(crate) struct PrefetchedState {
    pub(crate) run_list: Arc<RunList>,
    pub(crate) sealed: HashMap<Key, RecordedEvent>,
    pub(crate) archived: ArchivedEvents,
}

impl Meter {
    /// Records events in one transaction; returns the outcome of each, in order.
    pub async fn record(&self, events: impl Into<Arc<Vec<ReceivedEvent>>>) -> Result<Vec<Outcome>> {
        let group = Arc::new(Group::new(events.into()));
        let mut archived = ArchivedEvents::default();
        for _ in 0..TRIES_MAX {
            let (run_list, sealed) = self.keys.find_sealed(&self.sql, group.keys()).await?;
            let before = Arc::new(PrefetchedState { run_list, sealed, archived });
            let commit = match self.commit(&group, &before).await {
                // It may have been committed; then the retry finds all of it.
                Err(Error::Store(logmill_io::Error::InDoubt { .. })) => {
                    archived = ArchivedEvents::default();
                    continue;
                }
                commit => commit?,
            };
            match commit {
                WriteOutcome::Done(updates) => return Ok(self.apply_updates(&group, updates)),
                WriteOutcome::KeysMoved => {
                    self.keys.reload(&self.sql).await?;
                    archived = ArchivedEvents::default();
                }
                WriteOutcome::Needs(places) => {
                    archived = self.archive.read(&self.sql, &places).await?;
                }
            }
        }
        Err(Error::conflict("gave up: the blobs of keys kept changing"))
    }

    /// Events, by index, whose time cannot be recorded and that are not already recorded, and the reason: the time is
    /// out of bounds, or in no period.
    pub async fn out_of_time(&self, events: &[ReceivedEvent]) -> Result<Vec<(usize, String)>> {
        let mut outside: Vec<(usize, &Event, String)> = Vec::new();
        for (index, received) in events.iter().enumerate() {
            let event = &received.event;
            let why = event.outside.clone().or_else(|| {
                self.valid_times.refusal(&self.settings, &self.calendar, received.time())
            });
            outside.extend(why.map(|why| (index, event, why)));
        }
        if outside.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = outside.iter().map(|(_, event, _)| event.key).collect();
        let existing = self.keys.get(&self.sql, &keys).await?;
        outside.retain(|(_, event, _)| {
            existing.get(&event.key).is_none_or(|existing| existing.content != event.content)
        });
        Ok(outside.into_iter().map(|(index, _, why)| (index, why)).collect())
    }

    async fn commit(
        &self,
        group: &Arc<Group>,
        before: &Arc<PrefetchedState>,
    ) -> Result<WriteOutcome> {
        let needs = Arc::new(Mutex::new(Vec::new()));
        let written = self
            .sql
            .write(|tx| {
                let (group, before) = (Arc::clone(group), Arc::clone(before));
                let needs = Arc::clone(&needs);
                async move {
                    match self.write_group(&tx, &group, &before).await? {
                        WriteOutcome::Needs(places) => {
                            *needs.lock().unwrap_or_else(PoisonError::into_inner) = places;
                            // Only an error rolls a transaction back.
                            Err(Error::conflict("archived events are to be read first"))
                        }
                        commit => Ok(commit),
                    }
                }
            })
            .await;
        let places = std::mem::take(&mut *needs.lock().unwrap_or_else(PoisonError::into_inner));
        if places.is_empty() { Ok(written?) } else { Ok(WriteOutcome::Needs(places)) }
    }

    /// Records the new events of a group in the caller's transaction.
    pub(crate) async fn write_group(
        &self,
        tx: &Tx,
        group: &Group,
        before: &PrefetchedState,
    ) -> Result<WriteOutcome> {
        let mut head = Head::lock(tx).await?;
        if head.keys_version != before.run_list.version {
            return Ok(WriteOutcome::KeysMoved);
        }
        let unsealed = group.firsts.iter().filter(|(key, _)| !before.sealed.contains_key(key));
        let mut candidates: Vec<usize> = unsealed.map(|(_, index)| *index).collect();
        candidates.sort_unstable();
        let claims: Vec<(Key, RecordedEvent)> = (head.seq..)
            .zip(&candidates)
            .map(|(seq, index)| {
                let event = &group.events[*index].event;
                (event.key, RecordedEvent { content: event.content, seq })
            })
            .collect();
        let keys = claims.iter().map(|(key, _)| *key);
        let mut existing = self.keys.find_recent(tx, &head, keys).await?;
        let new_events =
            claims.iter().zip(&candidates).filter(|((key, _), _)| !existing.contains_key(key));
        let new_events: Vec<(i64, &ReceivedEvent)> =
            new_events.map(|((_, new), index)| (new.seq, &group.events[*index])).collect();
        let first = head.seq;
        let series = match self.store(tx, &mut head, &new_events, &before.archived).await? {
            Ok(series) => series,
            Err(MissingArchive(places)) => return Ok(WriteOutcome::Needs(places)),
        };
        head.seq += i64::try_from(claims.len()).unwrap_or(i64::MAX);
        head.store(tx).await?;
        let claims = claims.into_iter().filter(|(key, _)| !existing.contains_key(key)).collect();
        existing.extend(&before.sealed);
        Ok(WriteOutcome::Done(CacheUpdates {
            existing,
            claims,
            numbers: (first, head.seq),
            series,
        }))
    }

    async fn store(
        &self,
        tx: &Tx,
        head: &mut Head,
        new_events: &[(i64, &ReceivedEvent)],
        archived: &ArchivedEvents,
    ) -> Result<Result<BTreeMap<SeriesKey, Series>, MissingArchive>> {
        let mut made = BTreeMap::new();
        if new_events.is_empty() {
            return Ok(Ok(made));
        }
        let mut key = String::new();
        let mut found: Vec<Option<Series>> = new_events
            .iter()
            .map(|(_, received)| self.series.get(&mut key, &received.event))
            .collect();
        let unknown: BTreeSet<SeriesKey> = new_events
            .iter()
            .zip(&found)
            .filter(|(_, series)| series.is_none())
            .map(|((_, received), _)| SeriesKey::of(&received.event))
            .collect();
        if !unknown.is_empty() {
            made = series::resolve(tx, head, &unknown, self.settings.groups_max).await?;
            for ((_, received), series) in new_events.iter().zip(&mut found) {
                if series.is_none() {
                    *series = made.get(&SeriesKey::of(&received.event)).copied();
                }
            }
        }
        let new_events: Vec<NewEvent<'_>> = new_events
            .iter()
            .zip(found)
            .filter_map(|((seq, received), series)| {
                Some(NewEvent { received, seq: *seq, series: series? })
            })
            .collect();
        let (settings, unplaced_max) = (&self.settings, self.sizes.unplaced_max);
        let written = new_events::write(tx, head, &new_events, archived, settings, unplaced_max);
        Ok(written.await?.map(|()| made))
    }

    /// Updates the caches after the commit; returns the outcome of each event.
    pub(crate) fn apply_updates(&self, group: &Group, updates: CacheUpdates) -> Vec<Outcome> {
        for (names, series) in &updates.series {
            self.series.insert(names, *series);
        }
        let (first, end) = updates.numbers;
        self.keys.remember(updates.claims.into_iter(), first, end);
        let outcomes = group.events.iter().enumerate().map(|(index, received)| {
            let event = &received.event;
            let first = group.firsts.get(&event.key).copied().unwrap_or(index);
            let before = updates.existing.get(&event.key).map(|existing| existing.content);
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

    /// Requests housekeeping at once if many keys are in memory: after a minute at full speed there would be millions.
    pub(crate) async fn seal_soon(&self) -> Result<()> {
        if let Some(batch) = self.keys.should_seal() {
            let job = NewJob::new(HOUSEKEEPING_JOB, format!("keys@{batch}"), "{}");
            self.queue.enqueue(&job).await?;
        }
        Ok(())
    }
}
