//! Series: numbers for customers, and for each event type of a customer and group.
//!
//! Guarantees: a number stands for the same names for ever, so that it may be remembered; a customer's meter has at
//! most the set number of groups, and what comes after counts for the group [`OTHER`], so that sums over all groups
//! stay exact. Leaves to others: what is kept under a number.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};
use quick_cache::sync::Cache;

use crate::error::Result;
use crate::event::Event;
use crate::meter::Head;

/// The group of what came after a meter had all the groups that it may have.
pub const OTHER: &str = "{\"*\":\"other\"}";

/// How many series are remembered.
const CACHED_MAX: usize = 200_000;

/// A series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series {
    pub(crate) id: i64,
    pub(crate) customer: i64,
}

/// The names of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Names {
    pub(crate) customer: String,
    pub(crate) event_type: String,
    pub(crate) dims: String,
}

impl Names {
    pub(crate) fn of(event: &Event) -> Self {
        Self {
            customer: event.customer.clone(),
            event_type: event.event_type.clone(),
            dims: event.dims.clone(),
        }
    }
}

/// Series that are remembered.
#[derive(Debug)]
pub(crate) struct SeriesCache(Cache<String, Series>);

impl Default for SeriesCache {
    fn default() -> Self {
        Self(Cache::new(CACHED_MAX))
    }
}

impl SeriesCache {
    /// No name has a control character, so that this is one text for one triple.
    fn write_key(key: &mut String, event: &Event) {
        key.clear();
        for part in [&event.customer, "\u{1f}", &event.event_type, "\u{1f}", &event.dims] {
            key.push_str(part);
        }
    }

    /// The series of an event, if it is remembered. `key` is a buffer.
    pub(crate) fn get(&self, key: &mut String, event: &Event) -> Option<Series> {
        Self::write_key(key, event);
        self.0.get(key.as_str())
    }

    /// Remembers what was committed.
    pub(crate) fn insert(&self, names: &Names, series: Series) {
        let key = format!("{}\u{1f}{}\u{1f}{}", names.customer, names.event_type, names.dims);
        self.0.insert(key, series);
    }
}

/// Finds or makes series, in a transaction that holds the head's lock.
pub(crate) async fn resolve(
    tx: &Tx,
    head: &mut Head,
    wanted: &BTreeSet<Names>,
    groups_max: usize,
) -> Result<BTreeMap<Names, Series>> {
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

/// The number of a customer, if it ever had usage.
pub(crate) async fn find_customer(on: &impl Execute, name: &str) -> Result<Option<i64>> {
    let text = "SELECT id FROM meter_customer WHERE name = $1";
    let found = on.execute(text, params![name]).await?;
    Ok(found.rows.first().map(|row| row.int(0)).transpose()?)
}

async fn customer_of(tx: &Tx, head: &mut Head, name: &str) -> Result<i64> {
    if let Some(id) = find_customer(tx, name).await? {
        return Ok(id);
    }
    let id = take(head);
    tx.execute("INSERT INTO meter_customer (id, name) VALUES ($1, $2)", params![id, name]).await?;
    Ok(id)
}

async fn find(tx: &Tx, customer: i64, event_type: &str, dims: &str) -> Result<Option<i64>> {
    let text = "SELECT id FROM meter_series WHERE customer = $1 AND event_type = $2 AND dims = $3";
    let found = tx.execute(text, params![customer, event_type, dims]).await?;
    Ok(found.rows.first().map(|row| row.int(0)).transpose()?)
}

async fn make(
    tx: &Tx,
    head: &mut Head,
    customer: i64,
    names: &Names,
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
    let text = "INSERT INTO meter_series (id, customer, event_type, dims) VALUES ($1, $2, $3, $4)";
    tx.execute(text, params![id, customer, names.event_type.as_str(), dims]).await?;
    Ok(id)
}

fn take(head: &mut Head) -> i64 {
    let id = head.name;
    head.name += 1;
    id
}
