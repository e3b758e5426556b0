//! The newest events of some places, wherever they are.
//!
//! A place may have a million events where a page has a hundred. So the database gives only as many as the page has,
//! and archived ones come slice after slice, of which the newest are kept.
//!
//! Guarantees: an event is given once, as it is in the database before its archived form, and as it is in a later slice
//! before an earlier one; none is missed that moves to the archive meanwhile. Memory is bounded by the page, a slice,
//! and the numbers of events that are in lists or were corrected. Leaves to others: which places.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Value, params};
use serde_json::{Value as Json, json};

use super::{EventCursor, EventFilter, PAGE_MAX, cursor_of, limit_of};
use crate::error::Result;
use crate::meter::Meter;
use crate::partials::Place;
use crate::places::listed_at;
use crate::stored::{COLUMNS, StoredEvent};

/// How many numbers of events are asked for at once.
const NUMBERS_AT_ONCE: usize = 5_000;

/// Events of one bucket and of the series that are listed. Pairs of both would make PostgreSQL read the whole table.
const PLACED: &str = "meter_place p JOIN meter_event e ON e.seq = p.seq
    WHERE p.bucket = $8
        AND p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))";

/// Events whose numbers are listed.
const NUMBERED: &str = "json_list($1) CROSS JOIN meter_event e
    WHERE e.seq = CAST(CAST(value AS TEXT) AS BIGINT)";

/// The series of places, by bucket.
type ByBucket = BTreeMap<i64, BTreeSet<i64>>;

/// Corrected events, by their numbers; with state and value as they are in the database, if they are there.
type Corrected = HashMap<i64, Option<(i64, String)>>;

impl Meter {
    /// The newest events of some places that the filter keeps, archived ones included; at most a page of them.
    pub(super) async fn newest_at(
        &self,
        places: &[Place],
        filter: &EventFilter,
    ) -> Result<Vec<StoredEvent>> {
        let on = self.sql.reading();
        let mut by_bucket = ByBucket::new();
        for place in places {
            by_bucket.entry(place.bucket).or_default().insert(place.series);
        }
        // What is corrected after this looks as it did before; what moves does so from lists to entries, and from there
        // to the archive, and is looked for in this order.
        let corrected = corrected_at(&on, &by_bucket).await?;
        let mut newest = Newest { filter, events: Vec::new() };
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
        corrected: &Corrected,
        newest: &mut Newest<'_>,
    ) -> Result<()> {
        let wanted: HashSet<Place> = places.iter().copied().collect();
        let buckets: BTreeSet<i64> = places.iter().map(|place| place.bucket).collect();
        let mut later = HashSet::new();
        for slice in self.slices(&buckets).await?.iter().rev() {
            let events = self.read_slice(slice).await?.into_iter();
            for event in events.filter(|event| wanted.contains(&event.place)) {
                // Only one that was corrected is in several slices, or in a slice and the database.
                if let Some(here) = corrected.get(&event.seq) {
                    let now = (event.state.number(), event.value.to_string());
                    let outdated = here.as_ref().is_some_and(|here| *here != now);
                    if !later.insert(event.seq) || outdated {
                        continue;
                    }
                }
                newest.add(event);
            }
        }
        Ok(())
    }
}

async fn corrected_at(on: &impl Execute, by_bucket: &ByBucket) -> Result<Corrected> {
    // It does no harm to know of more than was asked for.
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

/// The newest events of those that were added.
struct Newest<'a> {
    filter: &'a EventFilter,
    events: Vec<StoredEvent>,
}

impl Newest<'_> {
    /// Adds the newest events of the database that the filter keeps.
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
            self.add(StoredEvent::from_row(row)?);
        }
        Ok(())
    }

    fn add(&mut self, event: StoredEvent) {
        if keeps(self.filter, &event) {
            self.events.push(event);
        }
        if self.events.len() >= 2 * PAGE_MAX.max(self.filter.limit) {
            self.sort();
        }
    }

    fn sort(&mut self) {
        // Of two forms of one event the one that was added first stays first, and counts.
        self.events.sort_by_key(|event| Reverse(cursor_of(event)));
        self.events.dedup_by_key(|event| event.seq);
        self.events.truncate(self.filter.limit);
    }
}

fn keeps(filter: &EventFilter, event: &StoredEvent) -> bool {
    filter.from.is_none_or(|from| event.time >= from)
        && filter.to.is_none_or(|to| event.time < to)
        && filter.after.is_none_or(|after| cursor_of(event) < after)
        && (!filter.counting || event.counts())
}
