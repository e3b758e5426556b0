//! Series: numbers for customers, and for each event type of a customer and group.
//!
//! Guarantees: a number stands for the same names forever, so it may be cached. A customer's meter has at most the
//! configured number of groups; further usage counts for the group [`OTHER`], so that sums over all groups stay exact.
//! Leaves to others: what is stored under a number.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::Execute;
use logmill_io::{Sql, Tx, params};
use quick_cache::sync::Cache;

use crate::error::Result;
use crate::event::Event;
use crate::store::head::Head;
use crate::store::names::{CUSTOMER, SERIES, SeriesNames, customer_at, customer_checks, series_at};

/// The group of usage that arrived after a meter reached its maximum number of groups.
pub const OTHER: &str = "{\"*\":\"other\"}";

/// Maximum number of cached series.
const CACHED_MAX: usize = 200_000;
/// Number of series of a customer that one query reads.
const SERIES_PER_PAGE: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series {
    pub(crate) id: i64,
    pub(crate) customer: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeriesKey {
    pub(crate) customer: String,
    pub(crate) event_type: String,
    pub(crate) dims: String,
}

impl SeriesKey {
    pub(crate) fn of(event: &Event) -> Self {
        Self {
            customer: event.customer.clone(),
            event_type: event.event_type.clone(),
            dims: event.dims.clone(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct SeriesCache(Cache<String, Series>);

impl Default for SeriesCache {
    fn default() -> Self {
        Self(Cache::new(CACHED_MAX))
    }
}

impl SeriesCache {
    /// No name has a control character, so each triple has its own text.
    fn write_key(key: &mut String, event: &Event) {
        key.clear();
        for part in [&event.customer, "\u{1f}", &event.event_type, "\u{1f}", &event.dims] {
            key.push_str(part);
        }
    }

    /// The cached series of an event. `key` is a buffer.
    pub(crate) fn get(&self, key: &mut String, event: &Event) -> Option<Series> {
        Self::write_key(key, event);
        self.0.get(key.as_str())
    }

    /// Caches a committed series.
    pub(crate) fn insert(&self, names: &SeriesKey, series: Series) {
        let key = format!("{}\u{1f}{}\u{1f}{}", names.customer, names.event_type, names.dims);
        self.0.insert(key, series);
    }
}

/// Finds or creates series; the transaction holds the head's lock.
pub(crate) async fn resolve(
    tx: &Tx,
    head: &mut Head,
    wanted: &BTreeSet<SeriesKey>,
    groups_max: usize,
) -> Result<BTreeMap<SeriesKey, Series>> {
    let mut resolved = BTreeMap::new();
    for names in wanted {
        let customer = customer_of(tx, head, &names.customer).await?;
        let id = match find(tx, customer, &names.event_type, &names.dims).await? {
            Some(id) => id,
            None => make(tx, head, customer, names, groups_max).await?,
        };
        resolved.insert(names.clone(), Series { id, customer });
    }
    Ok(resolved)
}

/// The number of a customer; `None` if it never had usage.
pub(crate) async fn find_customer(on: &impl Execute, name: &str) -> Result<Option<i64>> {
    let text = format!("SELECT {CUSTOMER} FROM meter_customer c WHERE c.name = $1");
    let found = on.execute(&text, params![name]).await?;
    let Some(row) = found.rows.first() else { return Ok(None) };
    customer_at(row, 0)?;
    Ok(Some(row.int(0)?))
}

/// All series of a customer with their event types, ordered by number.
pub(crate) async fn of_customer(sql: &Sql, customer: i64) -> Result<Vec<(i64, String)>> {
    let text = format!(
        "SELECT {SERIES} FROM meter_series s WHERE s.customer = $1 AND s.id > $2
         ORDER BY s.id LIMIT {SERIES_PER_PAGE}"
    );
    let mut series: Vec<(i64, String)> = Vec::new();
    loop {
        let after = series.last().map_or(i64::MIN, |(id, _)| *id);
        let found = sql.query(&text, params![customer, after]).await?;
        for row in &found.rows {
            let names = series_at(row, 0)?;
            series.push((names.id, names.event_type.to_owned()));
        }
        if found.rows.len() < SERIES_PER_PAGE {
            return Ok(series);
        }
    }
}

async fn customer_of(tx: &Tx, head: &mut Head, name: &str) -> Result<i64> {
    if let Some(id) = find_customer(tx, name).await? {
        return Ok(id);
    }
    let id = take(head);
    let text = "INSERT INTO meter_customer (id, name, checks) VALUES ($1, $2, $3)";
    tx.execute(text, params![id, name, customer_checks(id, name)]).await?;
    Ok(id)
}

async fn find(tx: &Tx, customer: i64, event_type: &str, dims: &str) -> Result<Option<i64>> {
    let text = format!(
        "SELECT {SERIES} FROM meter_series s
         WHERE s.customer = $1 AND s.event_type = $2 AND s.dims = $3"
    );
    let found = tx.execute(&text, params![customer, event_type, dims]).await?;
    found.rows.first().map(|row| Ok(series_at(row, 0)?.id)).transpose()
}

async fn make(
    tx: &Tx,
    head: &mut Head,
    customer: i64,
    names: &SeriesKey,
    groups_max: usize,
) -> Result<i64> {
    let mut dims = names.dims.as_str();
    if !dims.is_empty() {
        let text = "SELECT count(*) FROM meter_series WHERE customer = $1 AND event_type = $2";
        let found = tx.execute(text, params![customer, names.event_type.as_str()]).await?;
        if found.row()?.count(0)? >= u64::try_from(groups_max).unwrap_or(u64::MAX) {
            dims = OTHER;
            if let Some(id) = find(tx, customer, &names.event_type, dims).await? {
                return Ok(id);
            }
        }
    }
    let id = take(head);
    let made = SeriesNames { id, customer, event_type: &names.event_type, dims };
    let text = "INSERT INTO meter_series (id, customer, event_type, dims, checks)
                VALUES ($1, $2, $3, $4, $5)";
    tx.execute(text, params![id, customer, made.event_type, dims, made.checks()]).await?;
    Ok(id)
}

fn take(head: &mut Head) -> i64 {
    let id = head.name;
    head.name += 1;
    id
}
