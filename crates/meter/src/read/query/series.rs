//! The series of a query, page by page.
//!
//! Guarantees: each series that passes the filter is returned once, ordered by number within a customer. A page is
//! bounded, and so is the number of rows read for all pages. Leaves to others: their partials.

use std::collections::{BTreeMap, VecDeque};

use logmill_io::{Row, Sql, params};

use super::pages::QueryCost;
use super::{CUSTOMERS_MAX, Group, Limits, Query, too_much};
use crate::Meter;
use crate::error::{Error, Result};
use crate::store::names::{CUSTOMER, SERIES, SERIES_COLUMNS, customer_at, series_at};
use crate::store::series::find_customer;

/// Series on one page.
const PAGE_MAX: usize = 2_000;
/// Series on the first page: most queries cover few.
const PAGE_FIRST: usize = 500;

/// A series, and the group of the line it counts for.
pub(super) struct QuerySeries {
    pub(super) id: i64,
    pub(super) group: Group,
}

/// The series that remain to be read.
pub(super) struct SeriesPages<'a> {
    sql: &'a Sql,
    query: &'a Query,
    /// The remaining customers; a single `None` for all customers together.
    customers: VecDeque<Option<i64>>,
    /// The last series read of the first of them.
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

    /// The next page, which may be empty; `None` after the last.
    pub(super) async fn next(
        &mut self,
        cost: &mut QueryCost,
        limits: &Limits,
    ) -> Result<Option<Vec<QuerySeries>>> {
        let Some(customer) = self.customers.front() else { return Ok(None) };
        // Each is one range of an index.
        let of = match customer {
            None => "s.event_type = $1 AND s.id > $2",
            Some(_) => "s.event_type = $1 AND s.id > $2 AND s.customer = $3",
        };
        let text = format!(
            "SELECT {SERIES}, {CUSTOMER}
             FROM (SELECT {SERIES} FROM meter_series s WHERE {of} ORDER BY s.id LIMIT {}) s
             LEFT JOIN meter_customer c ON c.id = s.customer ORDER BY s.id",
            self.at_once
        );
        let mut params = params![self.query.event_type.as_str(), self.after];
        params.extend(customer.map(logmill_io::Value::from));
        let rows = self.sql.query(&text, params).await?.rows;
        cost.add(rows.len(), 0, limits)?;
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

/// A series with its group; `None` if the filter excludes it.
fn series(query: &Query, row: &Row) -> Result<Option<QuerySeries>> {
    let names = series_at(row, 0)?;
    let (customer, dims) = (customer_at(row, SERIES_COLUMNS)?, names.dims);
    let dims: BTreeMap<String, String> = if dims.is_empty() {
        BTreeMap::new()
    } else {
        serde_json::from_str(dims).map_err(|error| Error::corrupt(format!("a group: {error}")))?
    };
    let group = query.group_of(customer, &dims);
    Ok(group.map(|group| QuerySeries { id: names.id, group }))
}
