//! The series that a query is about, page by page.
//!
//! Guarantees: each series that passes the filter comes once, in the order of their numbers within a customer; a page
//! is bounded, and so is the number of rows read for all pages. Leaves to others: their partials.

use std::collections::{BTreeMap, VecDeque};

use logmill_io::{Row, Sql, params};

use super::pages::Spent;
use super::{CUSTOMERS_MAX, Group, Limits, Query, too_much};
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::series::find_customer;

/// How many series one page has.
const PAGE_MAX: usize = 2_000;
/// How many series the first page has: most queries are about few.
const PAGE_FIRST: usize = 500;

/// A series, and which line of a window it counts for.
pub(super) struct QuerySeries {
    pub(super) id: i64,
    pub(super) group: Group,
}

/// The series that are left to be read.
pub(super) struct SeriesPages<'a> {
    sql: &'a Sql,
    query: &'a Query,
    /// The customers that are left; none for all customers together.
    customers: VecDeque<Option<i64>>,
    /// The last series that was read of the first of them.
    after: i64,
    at_once: usize,
}

impl<'a> SeriesPages<'a> {
    pub(super) async fn new(meter: &'a Meter, query: &'a Query) -> Result<Self> {
        if query.customers.len() > CUSTOMERS_MAX {
            return Err(too_much("customers", CUSTOMERS_MAX));
        }
        let mut customers = VecDeque::new();
        for name in &query.customers {
            let found = find_customer(&meter.sql.reading(), name).await?.map(Some);
            customers.extend(found.filter(|id| !customers.contains(id)));
        }
        if query.customers.is_empty() {
            customers.push_back(None);
        }
        Ok(Self { sql: &meter.sql, query, customers, after: i64::MIN, at_once: PAGE_FIRST })
    }

    /// The next page, which may be empty; none after the last.
    pub(super) async fn next(
        &mut self,
        spent: &mut Spent,
        limits: &Limits,
    ) -> Result<Option<Vec<QuerySeries>>> {
        let Some(customer) = self.customers.front() else { return Ok(None) };
        // Each is one range of an index.
        let of = match customer {
            None => "s.event_type = $1 AND s.id > $2",
            Some(_) => "s.event_type = $1 AND s.id > $2 AND s.customer = $3",
        };
        let text = format!(
            "SELECT s.id, c.name, s.dims
             FROM (SELECT id, customer, dims FROM meter_series s WHERE {of}
                 ORDER BY s.id LIMIT {}) s
             JOIN meter_customer c ON c.id = s.customer ORDER BY s.id",
            self.at_once
        );
        let mut params = params![self.query.event_type.as_str(), self.after];
        params.extend(customer.map(logmill_io::Value::from));
        let rows = self.sql.query(&text, params).await?.rows;
        spent.add(rows.len(), 0, limits)?;
        match rows.last().filter(|_| rows.len() >= self.at_once) {
            Some(last) => self.after = last.int(0)?,
            None => {
                self.customers.pop_front();
                self.after = i64::MIN;
            }
        }
        self.at_once = PAGE_MAX;
        let page: Result<Vec<Option<QuerySeries>>> =
            rows.iter().map(|row| series(self.query, row)).collect();
        Ok(Some(page?.into_iter().flatten().collect()))
    }
}

/// A series with its group; none if the filter leaves it out.
fn series(query: &Query, row: &Row) -> Result<Option<QuerySeries>> {
    let dims = row.text(2)?;
    let dims: BTreeMap<String, String> = if dims.is_empty() {
        BTreeMap::new()
    } else {
        serde_json::from_str(dims).map_err(|error| Error::corrupt(format!("a group: {error}")))?
    };
    let id = row.int(0)?;
    Ok(query.group_of(row.text(1)?, &dims).map(|group| QuerySeries { id, group }))
}
