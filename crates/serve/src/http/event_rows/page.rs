//! Pages of a table of events, newest first, for `/fees` and `/collected/{table}`.
//!
//! Such a table has the key `block_height`, `event_index` and a column `timestamp`.
//!
//! Guarantees: a page is in chain order; its cursor is the key of its last row, and is missing on the last page; values
//! of a request are parameters of the statement, never part of its text. Leaves to others: parsing the request
//! ([`super::query`]), and rendering rows.

use logmill_io::{Row, Value as Param};
use logmill_pipeline::derive::{Reader, Select, Table};
use logmill_work::IntervalSet;
use serde::Serialize;
use serde_json::{Value, json};

use super::RowsError;
use super::query::{Filter, PagePosition, PageQuery};

const NEWEST_FIRST: &str = "block_height DESC, event_index DESC";

type Source<'a> = &'a dyn Fn(&'static Table, &Select<'_>) -> String;

/// SQL conditions and their parameters.
#[derive(Default)]
pub(in crate::http) struct Conditions {
    key: String,
    other: String,
    pub(in crate::http) params: Vec<Param>,
}

impl Conditions {
    /// The block and time range of a request.
    pub(in crate::http) fn new(filter: &Filter) -> Self {
        let mut conditions = Self::default();
        let blocks = [("block_height >=", filter.from_block), ("block_height <=", filter.to_block)];
        for (compared, value) in blocks {
            if let Some(value) = value {
                let value = conditions.param(value);
                add(&mut conditions.key, &format!("{compared} {value}"));
            }
        }
        let times = [("timestamp >=", filter.from_time), ("timestamp <", filter.to_time)];
        for (compared, value) in times {
            if let Some(value) = value {
                let value = conditions.param(value);
                add(&mut conditions.other, &format!("{compared} {value}"));
            }
        }
        conditions
    }

    /// Restricts a column to one value. The name comes from code or from the stored table, never from a request.
    pub(in crate::http) fn equals(&mut self, column: &str, value: i64) {
        let value = self.param(value);
        add(&mut self.other, &format!("{column} = {value}"));
    }

    pub(in crate::http) fn select<'a>(
        &'a self,
        order: &'a str,
        limit: Option<usize>,
    ) -> Select<'a> {
        Select { key: &self.key, filter: &self.other, order, limit }
    }

    /// Restricts the rows to those before a cursor.
    fn before(&mut self, (block, log): (i64, i64)) {
        let (block, log) = (self.param(block), self.param(log));
        let before =
            format!("(block_height < {block} OR (block_height = {block} AND event_index < {log}))");
        add(&mut self.key, &before);
    }

    /// Adds a value; returns its placeholder.
    fn param(&mut self, value: i64) -> String {
        self.params.push(value.into());
        format!("${}", self.params.len())
    }
}

fn add(text: &mut String, condition: &str) {
    if !text.is_empty() {
        text.push_str(" AND ");
    }
    text.push_str(condition);
}

/// A table of events on one chain.
pub(in crate::http) struct EventTable<'a> {
    pub(in crate::http) reader: &'a Reader,
    pub(in crate::http) table: &'static Table,
    /// The processor or collector that fills it.
    pub(in crate::http) consumer: &'a str,
    /// SQL of the columns to read from `e`; the first two are the key.
    pub(in crate::http) selected: &'a str,
}

/// One page of rows.
#[derive(Default)]
pub(in crate::http) struct EventPage {
    pub(in crate::http) rows: Vec<Row>,
    /// Final blocks.
    pub(in crate::http) done: IntervalSet,
    total: u64,
    /// Key of the last row, if another page may follow.
    last: Option<(i64, i64)>,
}

impl EventTable<'_> {
    /// The page that a request means.
    pub(in crate::http) async fn page(
        &self,
        query: &PageQuery,
        mut conditions: Conditions,
    ) -> Result<EventPage, RowsError> {
        let limit = query.limit;
        let (offset, total) = match query.position {
            PagePosition::Page(page) => {
                ((page - 1).saturating_mul(limit), self.total(&conditions).await?)
            }
            PagePosition::After(after) => {
                if let Some(after) = after {
                    conditions.before(after);
                }
                (0, u64::MAX)
            }
        };
        if offset >= total {
            return Ok(EventPage { total, ..EventPage::default() });
        }
        // Read first: blocks that are final now stay final.
        let done = self.reader.covered(self.consumer).await?.done;
        let most = usize::try_from(offset.saturating_add(limit)).ok();
        let text = |source: Source<'_>| {
            let rows = source(self.table, &conditions.select(NEWEST_FIRST, most));
            let selected = self.selected;
            format!(
                "SELECT {selected} FROM {rows} AS e ORDER BY {NEWEST_FIRST} LIMIT {limit} OFFSET {offset}"
            )
        };
        let rows = self.reader.query(text, conditions.params.clone()).await?.rows;
        let last = rows.last().map(|row| Ok::<_, RowsError>((row.int(0)?, row.int(1)?)));
        let last = last.transpose()?.filter(|_| rows.len() as u64 == limit);
        Ok(EventPage { rows, done, total, last })
    }

    async fn total(&self, conditions: &Conditions) -> Result<u64, RowsError> {
        let text = |source: Source<'_>| {
            let rows = source(self.table, &conditions.select("", None));
            format!("SELECT count(*) FROM {rows} AS e")
        };
        let found = self.reader.query(text, conditions.params.clone()).await?;
        Ok(found.row()?.count(0)?)
    }
}

impl EventPage {
    /// The answer, with its rows as the caller renders them.
    pub(in crate::http) fn to_json<R: Serialize>(&self, query: &PageQuery, data: &[R]) -> Value {
        let limit = query.limit;
        let pagination = match query.position {
            PagePosition::Page(page) => {
                let (total, pages) = (self.total, self.total.div_ceil(limit));
                json!({ "page": page, "limit": limit, "total": total, "totalPages": pages })
            }
            PagePosition::After(_) => {
                let next = self.last.map(|(block, log)| format!("{block}-{log}"));
                json!({ "limit": limit, "nextCursor": next })
            }
        };
        json!({ "data": data, "pagination": pagination })
    }
}
