//! Lists: pages of events and aggregates, and the events behind an aggregate.
//!
//! Events of one customer are ordered by the time at which they happened, newest first, archived ones included. Events
//! of all customers are ordered by arrival, newest first, without archived ones.
//!
//! Guarantees: a page is bounded, in its entries and in what is read for it. Its cursor continues where it ended; a
//! page that is not full may still have one. A damaged event does not prevent the others of its page from being listed,
//! and is reported on the page where it belongs. Leaves to others: the encoding of cursors.

use std::collections::HashMap;

use logmill_io::{Row, Timestamp, Value, params};

use crate::Meter;
use crate::aggregate::AggregateState;
use crate::error::{Error, Result};
use crate::period::Bucket;
use crate::store::names::{
    CUSTOMER, SERIES, SERIES_COLUMNS, customer_at, read_customer, read_series, series_at,
};
use crate::store::partials;
use crate::store::place::Place;
use crate::store::series::{self, find_customer};
use crate::store::stored_event::{COLUMN_COUNT, COLUMNS, StoredEvent, TIME_COLUMN};
use newest::FoundEvent;

mod newest;

/// Maximum number of entries in one page.
pub const PAGE_MAX: usize = 1_000;
/// Maximum number of events that are scanned for one page of all customers.
const SCANNED_MAX: i64 = 100_000;
/// Maximum number of buckets that one query covers.
const BUCKETS_AT_ONCE: i64 = 64;
/// Factor by which the searched time grows after a range without events.
const WIDER: i64 = 16;
/// Beyond this width, all remaining time is searched at once.
const WIDTH_MAX: i64 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// `None` for all customers.
    pub customer: Option<String>,
    pub event_type: Option<String>,
    pub from: Option<Timestamp>,
    /// Exclusive.
    pub to: Option<Timestamp>,
    /// Maximum number of events.
    pub limit: usize,
    /// Where the previous page ended.
    pub after: Option<EventCursor>,
    /// Whether cancelled events are left out.
    pub counting: bool,
}

/// Where a page of events ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventCursor {
    /// When its last event happened; meaningless without a customer.
    pub time: Timestamp,
    /// The number of its last event.
    pub seq: i64,
}

/// An event with the names of its series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEvent {
    pub event: StoredEvent,
    pub customer: String,
    pub event_type: String,
}

/// A page, and the start of the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    pub items: Vec<T>,
    /// `None` on the last page.
    pub next: Option<C>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// The undamaged events.
    pub items: Vec<ListedEvent>,
    /// The numbers of the damaged events that belong on it; together with `items` at most the limit.
    pub damaged: Vec<i64>,
    /// `None` on the last page.
    pub next: Option<EventCursor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregateFilter {
    pub customer: Option<String>,
    /// Kind of period.
    pub period: Option<String>,
    /// Earliest start of the period.
    pub from: Option<Timestamp>,
    /// Upper bound of the period's start, exclusive.
    pub to: Option<Timestamp>,
    pub limit: usize,
    /// Where the previous page ended: start and id.
    pub after: Option<(Timestamp, String)>,
}

/// An aggregate as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// `{customer}_{period}_{key}`.
    pub id: String,
    pub customer: String,
    /// Kind of period.
    pub period: String,
    /// Key of the period within its kind.
    pub key: String,
    pub start: Timestamp,
    /// Exclusive.
    pub end: Timestamp,
    pub state: AggregateState,
    /// Revision number, from 1.
    pub revision: i64,
    /// `events`, `eventsExact` and `eventCounts`, as JSON text.
    pub body: String,
    pub computed: Timestamp,
}

/// A published version of an aggregate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Revision number, from 1.
    pub revision: i64,
    pub state: AggregateState,
    /// JSON text.
    pub body: String,
    pub computed: Timestamp,
}

impl Meter {
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage> {
        check_limit(filter.limit)?;
        match &filter.customer {
            Some(customer) => self.events_of(customer, filter).await,
            None => self.latest_events(filter).await,
        }
    }

    async fn latest_events(&self, filter: &EventFilter) -> Result<EventPage> {
        // An event whose series does not exist is damaged, and must not go missing.
        let text = format!(
            "SELECT {COLUMNS}, {SERIES}, {CUSTOMER}
             FROM (SELECT * FROM meter_event WHERE seq < $1 ORDER BY seq DESC LIMIT {SCANNED_MAX}) e
             LEFT JOIN meter_series s ON s.id = e.series
             LEFT JOIN meter_customer c ON c.id = s.customer
             WHERE e.time_ms >= $2 AND e.time_ms < $3 AND ($4 = '' OR s.event_type = $4)
                 AND ($5 = 0 OR e.state <> 2)
             ORDER BY e.seq DESC LIMIT $6"
        );
        let before = filter.after.map_or(i64::MAX, |cursor| cursor.seq);
        let params = params![
            before,
            filter.from.unwrap_or(Timestamp(i64::MIN)),
            filter.to.unwrap_or(Timestamp(i64::MAX)),
            filter.event_type.as_deref().unwrap_or_default(),
            filter.counting,
            limit_of(filter.limit),
        ];
        let found = self.sql.query(&text, params).await?;
        let (mut items, mut damaged) = (Vec::new(), Vec::new());
        for row in &found.rows {
            match listed(row) {
                Ok(event) => items.push(event),
                Err(Error::DamagedEvent { seq }) => damaged.push(seq),
                Err(error) => return Err(error),
            }
        }
        let next = match found.rows.last() {
            // A damaged time does no harm: only the number counts here.
            Some(last) if found.rows.len() == filter.limit => Some(EventCursor {
                time: last.time(TIME_COLUMN).unwrap_or(Timestamp(0)),
                seq: last.int(0)?,
            }),
            // The page is not full because the scan limit was reached, or because there are no more events.
            _ => self.scanned_until(before).await?,
        };
        Ok(EventPage { items, damaged, next })
    }

    /// Adds the names of its series to an event.
    pub async fn with_names(&self, event: StoredEvent) -> Result<ListedEvent> {
        let on = self.sql.reading();
        let (event_type, customer) = read_series(&on, event.place.series).await?;
        let customer = read_customer(&on, customer).await?;
        Ok(ListedEvent { event, customer, event_type })
    }

    async fn scanned_until(&self, before: i64) -> Result<Option<EventCursor>> {
        let text = format!(
            "SELECT seq, time_ms FROM meter_event WHERE seq < $1
             ORDER BY seq DESC LIMIT 1 OFFSET {}",
            SCANNED_MAX - 1
        );
        let found = self.sql.query(&text, params![before]).await?;
        let cursor = |row: &Row| Ok(EventCursor { seq: row.int(0)?, time: row.time(1)? });
        found.rows.first().map(cursor).transpose()
    }

    async fn events_of(&self, customer: &str, filter: &EventFilter) -> Result<EventPage> {
        let none = EventPage { items: Vec::new(), damaged: Vec::new(), next: None };
        let Some(id) = find_customer(&self.sql.reading(), customer).await? else { return Ok(none) };
        let mut series = series::of_customer(&self.sql, id).await?;
        series.retain(|(_, name)| filter.event_type.as_ref().is_none_or(|wanted| wanted == name));
        let from = filter.from.map_or(i64::MIN, |from| Bucket::of(from).0);
        let mut to = filter.to.map_or(i64::MAX, |to| Bucket::of(to).0.saturating_add(1));
        if let Some(cursor) = filter.after {
            to = to.min(Bucket::of(cursor.time).0.saturating_add(1));
        }
        let ids: Vec<i64> = series.iter().map(|(id, _)| *id).collect();
        let names: HashMap<i64, String> = series.into_iter().collect();
        let on = self.sql.reading();
        let mut found: Vec<FoundEvent> = Vec::new();
        // Most often the newest usage fills the page. For a customer without recent usage, the searched range keeps
        // growing.
        let now = Bucket::of(self.clock().now()).0;
        let mut width = BUCKETS_AT_ONCE;
        loop {
            let low = to.min(now).saturating_sub(width).max(from);
            let low = if width > WIDTH_MAX { from } else { low };
            let mut places =
                partials::newest_places(&on, &ids, &(low..to), BUCKETS_AT_ONCE).await?;
            places.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(place.bucket));
            let Some(oldest) = enough(&mut places, filter.limit - found.len()) else {
                if low <= from {
                    break;
                }
                (to, width) = (low, width.saturating_mul(WIDER));
                continue;
            };
            let places: Vec<Place> = places.into_iter().map(|(place, _)| place).collect();
            found.extend(self.newest_at(&places, filter).await?);
            if found.len() >= filter.limit {
                break;
            }
            to = oldest;
        }
        let more = found.len() >= filter.limit;
        found.truncate(filter.limit);
        let next = found.last().filter(|_| more).map(FoundEvent::cursor);
        let (mut items, mut damaged) = (Vec::new(), Vec::new());
        for event in found {
            match event {
                FoundEvent::Whole(event) => {
                    items.extend(names.get(&event.place.series).map(|name| {
                        let (customer, event_type) = (customer.to_owned(), name.clone());
                        ListedEvent { event, customer, event_type }
                    }));
                }
                FoundEvent::Damaged(at) => damaged.push(at.seq),
            }
        }
        Ok(EventPage { items, damaged, next })
    }

    /// One page of aggregates, newest period first.
    pub async fn aggregates(
        &self,
        filter: &AggregateFilter,
    ) -> Result<Page<Aggregate, (Timestamp, String)>> {
        check_limit(filter.limit)?;
        let (text, params) = aggregates_query(filter);
        let found = self.sql.query(&text, params).await?;
        let items: Result<Vec<Aggregate>> = found.rows.iter().map(aggregate_of).collect();
        let items = items?;
        let full = items.len() == filter.limit;
        let next = items.last().filter(|_| full).map(|last| (last.start, last.id.clone()));
        Ok(Page { items, next })
    }

    pub async fn get_aggregate(&self, id: &str) -> Result<Option<Aggregate>> {
        let text = format!("{AGGREGATES} WHERE a.id = $1");
        let found = self.sql.query(&text, params![id]).await?;
        found.rows.first().map(aggregate_of).transpose()
    }

    /// All revisions of an aggregate, oldest first.
    pub async fn revisions(&self, id: &str) -> Result<Vec<Revision>> {
        let text = "SELECT revision, state, body, computed_ms FROM meter_revision
                    WHERE id = $1 ORDER BY revision LIMIT 1000";
        let found = self.sql.query(text, params![id]).await?;
        let revisions = found.rows.iter().map(|row| {
            Ok(Revision {
                revision: row.int(0)?,
                state: AggregateState::from_number(row.int(1)?)?,
                body: row.text(2)?.to_owned(),
                computed: row.time(3)?,
            })
        });
        revisions.collect()
    }

    /// One page of the events behind an aggregate.
    pub async fn events_behind(
        &self,
        aggregate: &Aggregate,
        limit: usize,
        after: Option<EventCursor>,
    ) -> Result<EventPage> {
        let filter = EventFilter {
            customer: Some(aggregate.customer.clone()),
            from: Some(aggregate.start),
            to: Some(aggregate.end),
            limit,
            after,
            counting: true,
            ..EventFilter::default()
        };
        self.events(&filter).await
    }
}

/// Keeps the newest buckets that together have `wanted` events; returns the oldest of them.
fn enough(places: &mut Vec<(Place, u64)>, wanted: usize) -> Option<i64> {
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    let (mut oldest, mut events) = (None, 0);
    for (place, count) in places.iter() {
        if events >= wanted && oldest != Some(place.bucket) {
            break;
        }
        (oldest, events) = (Some(place.bucket), events + count);
    }
    places.retain(|(place, _)| Some(place.bucket) >= oldest);
    oldest
}

/// The statement of a page of aggregates. With a customer and a period, an index answers it.
fn aggregates_query(filter: &AggregateFilter) -> (String, Vec<Value>) {
    let (after, after_id) = filter.after.clone().unwrap_or((Timestamp(i64::MAX), String::new()));
    let mut text = format!("{AGGREGATES} WHERE a.start_ms >= $1 AND a.start_ms < $2");
    let mut params = params![
        filter.from.unwrap_or(Timestamp(i64::MIN)),
        filter.to.unwrap_or(Timestamp(i64::MAX)),
        after,
        after_id,
        limit_of(filter.limit),
    ];
    text.push_str(" AND (a.start_ms < $3 OR (a.start_ms = $3 AND a.id > $4))");
    let mut also = |clause: &str, value: Option<&str>| {
        if let Some(value) = value {
            params.push(Value::from(value));
            text.push_str(&format!(" AND {clause} = ${}", params.len()));
        }
    };
    also("c.name", filter.customer.as_deref());
    also("a.period", filter.period.as_deref());
    text.push_str(" ORDER BY a.start_ms DESC, a.id LIMIT $5");
    (text, params)
}

const AGGREGATES: &str =
    "SELECT a.id, a.customer, a.period, a.period_key, a.start_ms, a.end_ms, a.state,
    a.revision, a.body, a.computed_ms, c.id, c.name, c.checks
    FROM meter_aggregate a JOIN meter_customer c ON c.id = a.customer";

fn aggregate_of(row: &Row) -> Result<Aggregate> {
    Ok(Aggregate {
        id: row.text(0)?.to_owned(),
        customer: customer_at(row, 10)?.to_owned(),
        period: row.text(2)?.to_owned(),
        key: row.text(3)?.to_owned(),
        start: row.time(4)?,
        end: row.time(5)?,
        state: AggregateState::from_number(row.int(6)?)?,
        revision: row.int(7)?,
        body: row.text(8)?.to_owned(),
        computed: row.time(9)?,
    })
}

fn listed(row: &Row) -> Result<ListedEvent> {
    let event = StoredEvent::from_row(row)?;
    // Its customer is unknown, so it must not be listed under a wrong one.
    let damaged = |_| Error::DamagedEvent { seq: event.seq };
    let event_type = series_at(row, COLUMN_COUNT).map_err(damaged)?.event_type.to_owned();
    let customer = customer_at(row, COLUMN_COUNT + SERIES_COLUMNS).map_err(damaged)?.to_owned();
    Ok(ListedEvent { event, customer, event_type })
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn check_limit(limit: usize) -> Result<()> {
    if limit == 0 || limit > PAGE_MAX {
        return Err(Error::invalid(format!("limit must be 1 to {PAGE_MAX}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use logmill_io::sql::SqliteSettings;
    use logmill_io::{SeededEntropy, Sql, SystemClock};

    use super::*;
    use crate::store::schema::MIGRATIONS;

    #[tokio::test]
    async fn the_aggregates_of_a_customer_and_a_period_are_found_by_an_index() {
        let (clock, entropy) = (SystemClock::shared(), SeededEntropy::shared(1));
        let sql = Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("memory");
        sql.migrate(&MIGRATIONS).await.expect("tables");
        let filter = AggregateFilter {
            customer: Some("c".to_owned()),
            period: Some("daily".to_owned()),
            limit: 10,
            ..AggregateFilter::default()
        };
        let (text, params) = aggregates_query(&filter);
        let plan = sql.query(&format!("EXPLAIN QUERY PLAN {text}"), params).await;
        let plan = plan.expect("a plan");
        let steps: Vec<&str> = plan.rows.iter().map(|row| row.text(3).expect("text")).collect();
        let by_index = "USING INDEX meter_aggregate_customer (customer=? AND period=? AND start_ms";
        assert!(steps.iter().any(|step| step.contains(by_index)), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("SCAN")), "{steps:?}");
    }
}
