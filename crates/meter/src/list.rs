//! Lists: events and aggregates by the page, and the events behind an aggregate.
//!
//! Events of one customer come by the time at which they happened, the newest first, archived ones included. Events of
//! all customers come by their arrival, the newest first, as far as they are not archived.
//!
//! Guarantees: a page is bounded, in what it gives and in what is read for it; its cursor goes on where it ended, and a
//! page that is not full may still have one. Leaves to others: how a cursor is written.

use std::collections::HashMap;

use logmill_io::{Row, Timestamp, Value, params};

use crate::aggregate::AggregateState;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::partials::{self, Place};
use crate::period::Bucket;
use crate::series::find_customer;
use crate::stored::{COLUMN_COUNT, COLUMNS, StoredEvent};

mod newest;

/// The most entries of one page.
pub const PAGE_MAX: usize = 1_000;
/// How many events are looked at for one page of all customers.
const SCANNED_MAX: i64 = 100_000;
/// How many buckets are looked at together, at most.
const BUCKETS_AT_ONCE: i64 = 64;
/// How much more time is looked at after a time without events.
const WIDER: i64 = 16;
/// After so many buckets all that is left is looked at.
const WIDTH_MAX: i64 = 1_000_000;

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Of whom; of all customers if none is given.
    pub customer: Option<String>,
    /// Of which type.
    pub event_type: Option<String>,
    /// From when on.
    pub from: Option<Timestamp>,
    /// Until when, and not at that moment.
    pub to: Option<Timestamp>,
    /// How many.
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<EventCursor>,
    /// Whether those that were cancelled are left out.
    pub counting: bool,
}

/// Where a page of events ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventCursor {
    /// When its last event happened; of no meaning without a customer.
    pub time: Timestamp,
    /// Its number.
    pub seq: i64,
}

/// An event with the names of its series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEvent {
    /// The event.
    pub event: StoredEvent,
    /// Whose it is.
    pub customer: String,
    /// Its type.
    pub event_type: String,
}

/// A page, and where the next one starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    /// What is on it.
    pub items: Vec<T>,
    /// None if it is the last.
    pub next: Option<C>,
}

/// Which aggregates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregateFilter {
    /// Of whom.
    pub customer: Option<String>,
    /// Of which kind of period.
    pub period: Option<String>,
    /// Periods that start from here on.
    pub from: Option<Timestamp>,
    /// Periods that start until here, and not at that moment.
    pub to: Option<Timestamp>,
    /// How many.
    pub limit: usize,
    /// Where the page before ended: start and id.
    pub after: Option<(Timestamp, String)>,
}

/// An aggregate as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// `{customer}_{period}_{key}`.
    pub id: String,
    /// Whose usage.
    pub customer: String,
    /// The kind of its period.
    pub period: String,
    /// Which period.
    pub key: String,
    /// Its start.
    pub start: Timestamp,
    /// Its end, which is no longer in it.
    pub end: Timestamp,
    /// How sure it is.
    pub state: AggregateState,
    /// How often it was made.
    pub revision: i64,
    /// `events`, `eventsExact` and `eventCounts`, as JSON text.
    pub body: String,
    /// When it was made.
    pub computed: Timestamp,
}

/// What an aggregate said at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The how-manieth it was.
    pub revision: i64,
    /// How sure it was.
    pub state: AggregateState,
    /// What it said, as JSON text.
    pub body: String,
    /// When it was made.
    pub computed: Timestamp,
}

impl Meter {
    /// One page of events.
    pub async fn events(&self, filter: &EventFilter) -> Result<Page<ListedEvent, EventCursor>> {
        check_limit(filter.limit)?;
        match &filter.customer {
            Some(customer) => self.events_of(customer, filter).await,
            None => self.latest_events(filter).await,
        }
    }

    async fn latest_events(&self, filter: &EventFilter) -> Result<Page<ListedEvent, EventCursor>> {
        // An event of a series that does not exist is damaged, and must not go missing.
        let text = format!(
            "SELECT {COLUMNS}, c.name, s.event_type
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
        let items: Result<Vec<ListedEvent>> = found.rows.iter().map(listed).collect();
        let items = items?;
        let next = match items.last() {
            Some(last) if items.len() == filter.limit => Some(cursor_of(&last.event)),
            // The page is not full because no more were looked at, or because there are no more.
            _ => self.scanned_until(before).await?,
        };
        Ok(Page { items, next })
    }

    /// An event with the names of its series.
    pub async fn named(&self, event: StoredEvent) -> Result<ListedEvent> {
        let text = "SELECT c.name, s.event_type FROM meter_series s
                    JOIN meter_customer c ON c.id = s.customer WHERE s.id = $1";
        let found = self.sql.query(text, params![event.place.series]).await?;
        let row = found.row()?;
        let (customer, event_type) = (row.text(0)?.to_owned(), row.text(1)?.to_owned());
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

    async fn events_of(
        &self,
        customer: &str,
        filter: &EventFilter,
    ) -> Result<Page<ListedEvent, EventCursor>> {
        let none = Page { items: Vec::new(), next: None };
        let Some(id) = find_customer(&self.sql.reading(), customer).await? else { return Ok(none) };
        let mut series = self.series_of(id).await?;
        series.retain(|(_, name)| filter.event_type.as_ref().is_none_or(|wanted| wanted == name));
        let from = filter.from.map_or(i64::MIN, |from| Bucket::of(from).0);
        let mut to = filter.to.map_or(i64::MAX, |to| Bucket::of(to).0.saturating_add(1));
        if let Some(cursor) = filter.after {
            to = to.min(Bucket::of(cursor.time).0.saturating_add(1));
        }
        let ids: Vec<i64> = series.iter().map(|(id, _)| *id).collect();
        let names: HashMap<i64, String> = series.into_iter().collect();
        let on = self.sql.reading();
        let mut items: Vec<ListedEvent> = Vec::new();
        // Most often the page is full with what is new. Who has no usage for long is looked at over longer and longer.
        let now = Bucket::of(self.clock().now()).0;
        let mut width = BUCKETS_AT_ONCE;
        loop {
            let low = to.min(now).saturating_sub(width).max(from);
            let low = if width > WIDTH_MAX { from } else { low };
            let mut places =
                partials::newest_places(&on, &ids, &(low..to), BUCKETS_AT_ONCE).await?;
            places.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(place.bucket));
            let Some(oldest) = enough(&mut places, filter.limit - items.len()) else {
                if low <= from {
                    break;
                }
                (to, width) = (low, width.saturating_mul(WIDER));
                continue;
            };
            let places: Vec<Place> = places.into_iter().map(|(place, _)| place).collect();
            let events = self.newest_at(&places, filter).await?;
            items.extend(events.into_iter().filter_map(|event| {
                let event_type = names.get(&event.place.series)?.clone();
                Some(ListedEvent { event, customer: customer.to_owned(), event_type })
            }));
            if items.len() >= filter.limit {
                break;
            }
            to = oldest;
        }
        let more = items.len() >= filter.limit;
        items.truncate(filter.limit);
        let next = items.last().filter(|_| more).map(|last| cursor_of(&last.event));
        Ok(Page { items, next })
    }

    /// One page of aggregates, the newest period first.
    pub async fn aggregates(
        &self,
        filter: &AggregateFilter,
    ) -> Result<Page<Aggregate, (Timestamp, String)>> {
        check_limit(filter.limit)?;
        let (after, after_id) =
            filter.after.clone().unwrap_or((Timestamp(i64::MAX), String::new()));
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
        let found = self.sql.query(&text, params).await?;
        let items: Result<Vec<Aggregate>> = found.rows.iter().map(aggregate_of).collect();
        let items = items?;
        let full = items.len() == filter.limit;
        let next = items.last().filter(|_| full).map(|last| (last.start, last.id.clone()));
        Ok(Page { items, next })
    }

    /// One aggregate.
    pub async fn get_aggregate(&self, id: &str) -> Result<Option<Aggregate>> {
        let text = format!("{AGGREGATES} WHERE a.id = $1");
        let found = self.sql.query(&text, params![id]).await?;
        found.rows.first().map(aggregate_of).transpose()
    }

    /// What an aggregate said, oldest first.
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
    ) -> Result<Page<ListedEvent, EventCursor>> {
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

/// Leaves as many buckets, from the newest on, as have so many events; gives the last of them.
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

const AGGREGATES: &str =
    "SELECT a.id, c.name, a.period, a.period_key, a.start_ms, a.end_ms, a.state,
    a.revision, a.body, a.computed_ms
    FROM meter_aggregate a JOIN meter_customer c ON c.id = a.customer";

fn aggregate_of(row: &Row) -> Result<Aggregate> {
    Ok(Aggregate {
        id: row.text(0)?.to_owned(),
        customer: row.text(1)?.to_owned(),
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
    Ok(ListedEvent {
        event: StoredEvent::from_row(row)?,
        customer: row.text(COLUMN_COUNT)?.to_owned(),
        event_type: row.text(COLUMN_COUNT + 1)?.to_owned(),
    })
}

fn cursor_of(event: &StoredEvent) -> EventCursor {
    EventCursor { time: event.time, seq: event.seq }
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn check_limit(limit: usize) -> Result<()> {
    if limit == 0 || limit > PAGE_MAX {
        return Err(Error::invalid(format!("limit is 1 to {PAGE_MAX}")));
    }
    Ok(())
}
