//! The newest events of some places, from the database and the archive.
//!
//! A place may have a million events where a page has a hundred. So the database returns only as many as the page has,
//! and archived ones are read slice by slice, keeping only the newest.
//!
//! Guarantees: an event is returned once; its row in the database takes precedence over archived forms, and a later
//! slice over an earlier one. An event that moves to the archive meanwhile is not missed. Memory is bounded by the
//! page, a slice, and the numbers of events that are in lists or were corrected. Leaves to others: which places to
//! read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Value, params};
use serde_json::{Value as Json, json};

use super::{EventCursor, EventFilter, PAGE_MAX, limit_of};
use crate::Meter;
use crate::error::{Error, Result};
use crate::store::archive::slices_of;
use crate::store::place::Place;
use crate::store::place_index::listed_at;
use crate::store::stored_event::{COLUMNS, StoredEvent, TIME_COLUMN};

/// Event numbers per query.
const NUMBERS_AT_ONCE: usize = 5_000;

/// Events of one bucket and the listed series. With pairs of both, PostgreSQL would read the whole table.
const PLACED: &str = "meter_place p JOIN meter_event e ON e.seq = p.seq
    WHERE p.bucket = $8
        AND p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))";

/// Events with the listed numbers.
const NUMBERED: &str = "json_list($1) CROSS JOIN meter_event e
    WHERE e.seq = CAST(CAST(value AS TEXT) AS BIGINT)";

/// The series of places, by bucket.
type ByBucket = BTreeMap<i64, BTreeSet<i64>>;

/// Corrected events by number, with state and value as in the database, if they are there.
type CorrectedEvents = HashMap<i64, Option<(i64, String)>>;

impl Meter {
    /// The newest events of some places that match the filter, archived ones included; at most a page.
    pub(super) async fn newest_at(
        &self,
        places: &[Place],
        filter: &EventFilter,
    ) -> Result<Vec<FoundEvent>> {
        let on = self.sql.reading();
        let mut by_bucket = ByBucket::new();
        for place in places {
            by_bucket.entry(place.bucket).or_default().insert(place.series);
        }
        // An event that is corrected after this is returned as it was before. Events move from lists to index entries,
        // and from there to the archive, and are read in this order.
        let corrected = corrected_at(&on, &by_bucket).await?;
        let mut newest = NewestEvents { filter, events: Vec::new() };
        let listed: Vec<i64> = listed_at(&on, places).await?.into_iter().collect();
        for some in listed.chunks(NUMBERS_AT_ONCE) {
            newest.read(&on, NUMBERED, &json!(some), None).await?;
        }
        for (bucket, series) in &by_bucket {
            newest.read(&on, PLACED, &json!(series), Some(*bucket)).await?;
        }
        self.add_archived(places, &corrected, &mut newest).await?;
        newest.sort();
        Ok(newest.events)
    }

    async fn add_archived(
        &self,
        places: &[Place],
        corrected: &CorrectedEvents,
        newest: &mut NewestEvents<'_>,
    ) -> Result<()> {
        let wanted: HashSet<Place> = places.iter().copied().collect();
        let buckets: BTreeSet<i64> = places.iter().map(|place| place.bucket).collect();
        let mut later = HashSet::new();
        for slice in slices_of(&self.sql, &buckets).await?.iter().rev() {
            let events = self.archive.read_slice(slice).await?.into_iter();
            for event in events.filter(|event| wanted.contains(&event.place)) {
                // Only a corrected event can be in several slices, or in a slice and the database.
                if let Some(here) = corrected.get(&event.seq) {
                    let now = (event.state.number(), event.value.to_string());
                    let outdated = here.as_ref().is_some_and(|here| *here != now);
                    if !later.insert(event.seq) || outdated {
                        continue;
                    }
                }
                newest.add(FoundEvent::Whole(event));
            }
        }
        Ok(())
    }
}

async fn corrected_at(on: &impl Execute, by_bucket: &ByBucket) -> Result<CorrectedEvents> {
    // Corrections of other places may be included, which does no harm.
    let text = "SELECT c.event_seq, e.state, e.amount
                FROM meter_correction c LEFT JOIN meter_event e ON e.seq = c.event_seq
                WHERE c.bucket any_of(
                        SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                    AND c.series any_of(
                        SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($2))";
    let buckets: Vec<&i64> = by_bucket.keys().collect();
    let series: BTreeSet<&i64> = by_bucket.values().flatten().collect();
    let params = params![Value::json(&json!(buckets)), Value::json(&json!(series))];
    let found = on.execute(text, params).await?;
    let corrected = found.rows.iter().map(|row| {
        let here = row.opt_int(1)?.zip(row.opt_text(2)?.map(str::to_owned));
        Ok((row.int(0)?, here))
    });
    corrected.collect()
}

/// An event that belongs on a page.
pub(super) enum FoundEvent {
    Whole(StoredEvent),
    /// Not what was recorded; the position is the one in its damaged row.
    Damaged(EventCursor),
}

impl FoundEvent {
    pub(super) fn cursor(&self) -> EventCursor {
        match self {
            Self::Whole(event) => EventCursor { time: event.time, seq: event.seq },
            Self::Damaged(at) => *at,
        }
    }
}

/// The newest of the events that were added.
struct NewestEvents<'a> {
    filter: &'a EventFilter,
    events: Vec<FoundEvent>,
}

impl NewestEvents<'_> {
    /// Adds the newest events of the database that match the filter.
    async fn read(
        &mut self,
        on: &impl Execute,
        from: &str,
        listed: &Json,
        bucket: Option<i64>,
    ) -> Result<()> {
        let text = format!(
            "SELECT {COLUMNS} FROM {from}
                 AND e.time_ms >= $2 AND e.time_ms < $3 AND (e.time_ms, e.seq) < ($4, $5)
                 AND ($6 = 0 OR e.state <> 2)
             ORDER BY e.time_ms DESC, e.seq DESC LIMIT $7"
        );
        let filter = self.filter;
        let end = EventCursor { time: Timestamp(i64::MAX), seq: i64::MAX };
        let before = filter.after.unwrap_or(end);
        let mut params = params![
            Value::json(listed),
            filter.from.unwrap_or(Timestamp(i64::MIN)),
            filter.to.unwrap_or(Timestamp(i64::MAX)),
            before.time,
            before.seq,
            filter.counting,
            limit_of(filter.limit),
        ];
        params.extend(bucket.map(Value::from));
        for row in &on.execute(&text, params).await?.rows {
            self.add(match StoredEvent::from_row(row) {
                Ok(event) => FoundEvent::Whole(event),
                Err(Error::DamagedEvent { seq }) => {
                    FoundEvent::Damaged(EventCursor { time: row.time(TIME_COLUMN)?, seq })
                }
                Err(error) => return Err(error),
            });
        }
        Ok(())
    }

    fn add(&mut self, event: FoundEvent) {
        if keeps(self.filter, &event) {
            self.events.push(event);
        }
        if self.events.len() >= 2 * PAGE_MAX.max(self.filter.limit) {
            self.sort();
        }
    }

    fn sort(&mut self) {
        // Of two forms of one event, the one added first stays first and wins.
        self.events.sort_by_key(|event| Reverse(event.cursor()));
        self.events.dedup_by_key(|event| event.cursor().seq);
        self.events.truncate(self.filter.limit);
    }
}

fn keeps(filter: &EventFilter, event: &FoundEvent) -> bool {
    let at = event.cursor();
    let counts = match event {
        FoundEvent::Whole(event) => event.counts(),
        FoundEvent::Damaged(_) => true,
    };
    filter.from.is_none_or(|from| at.time >= from)
        && filter.to.is_none_or(|to| at.time < to)
        && filter.after.is_none_or(|after| at < after)
        && (!filter.counting || counts)
}
