//! `List`: the rows of a table in a fixed order, page by page.
//!
//! A page begins after the position where the last one ended: `(block_height, event_index) < ($2, $3)` in the order of
//! an index, with a limit. So the cost of a page depends on its size, not on its place in the list. Where rows are
//! skipped by a condition that no index supports (events that are not swaps, items given away), a page reads little
//! more than [`ROWS_READ_MAX`] rows. It may then be shorter than requested, and its cursor continues where it stopped.
//!
//! Guarantees: the pages add up to the list; no statement reads more rows than its limit. Leaves to others: the meaning
//! of rows.

use logmill_io::Value;
use logmill_pipeline::derive::{Fold, Kind, Select, Table};

use super::data::{Data, Source};
use super::error::ApiResult;
use super::position::{OrderValue, Position};
use super::record::{Object, Record};

/// Maximum number of rows that a page reads to find those it returns.
pub(super) const ROWS_READ_MAX: usize = 2_000;
/// Maximum number of rows of one statement.
const WINDOW_MAX: usize = 500;

#[derive(Debug)]
pub(super) struct List {
    pub(super) table: &'static Table,
    pub(super) record: &'static Record,
    /// Columns of the order, which together identify a row. An index begins with the columns that the caller fixes and
    /// continues with these.
    pub(super) order: &'static [&'static str],
    pub(super) direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Highest first, which is newest first.
    Down,
    /// Lowest first.
    Up,
}

/// A selection of rows: SQL conditions written in code, with parameters from `$1` on.
#[derive(Clone, Debug, Default)]
pub(super) struct RowQuery {
    /// Condition on key columns only.
    pub(super) key: String,
    /// Condition on any column.
    pub(super) filter: String,
    pub(super) params: Vec<Value>,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) object: Object,
    pub(super) position: Position,
}

/// Consecutive part of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ScanPage {
    pub(super) items: Vec<Item>,
    /// Everything up to here was read; `None` if the list is exhausted.
    pub(super) end: Option<Position>,
}

impl ScanPage {
    /// Cuts it to one page. Returns the objects and the position where the next page begins.
    pub(super) fn page(mut self, limit: usize) -> (Vec<Object>, Option<Position>) {
        if self.items.len() > limit {
            self.items.truncate(limit);
            self.end = self.items.last().map(|item| item.position.clone());
        }
        (self.items.into_iter().map(|item| item.object).collect(), self.end)
    }
}

impl ScanPage {
    /// Appends a table number to every position, for lists merged from several tables.
    pub(super) fn in_table(&mut self, table: i64) {
        for position in self.items.iter_mut().map(|item| &mut item.position).chain(&mut self.end) {
            position.0.push(OrderValue::Int(table));
        }
    }
}

impl RowQuery {
    /// Rows whose key matches this condition.
    pub(super) fn key(key: &str, params: Vec<Value>) -> Self {
        Self { key: key.to_owned(), filter: String::new(), params }
    }
}

impl List {
    /// Column kinds of its positions.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let kind = |name: &&str| {
            let column = self.table.columns.iter().find(|column| column.name == *name);
            column.map_or(Kind::Int, |column| column.kind)
        };
        self.order.iter().map(kind).collect()
    }

    /// The position before the first row.
    pub(super) fn start(&self) -> Position {
        let above = self.direction == Direction::Down;
        Position(self.kinds().into_iter().map(|kind| OrderValue::end(kind, above)).collect())
    }

    /// Returns at least `want` accepted rows after a position, unless the list ends or the limit of rows to read is
    /// reached.
    pub(super) async fn scan(
        &self,
        data: &Data,
        query: &RowQuery,
        from: Position,
        want: usize,
        keep: impl Fn(&Object) -> bool + Send,
    ) -> ApiResult<ScanPage> {
        let (mut from, mut window, mut rows_read) = (from, want, 0);
        let mut items = Vec::new();
        loop {
            let found = self.rows(data, query, &from, window).await?;
            let is_all = found.len() < window;
            rows_read += found.len();
            if let Some(last) = found.last() {
                from = last.position.clone();
            }
            items.extend(found.into_iter().filter(|item| keep(&item.object)));
            if is_all {
                return Ok(ScanPage { items, end: None });
            }
            if items.len() >= want || rows_read >= ROWS_READ_MAX {
                return Ok(ScanPage { items, end: Some(from) });
            }
            window = (window * 4).min(WINDOW_MAX);
        }
    }

    /// The next rows after a position.
    pub(super) async fn rows(
        &self,
        data: &Data,
        query: &RowQuery,
        from: &Position,
        most: usize,
    ) -> ApiResult<Vec<Item>> {
        let columns = self.record.select();
        let places: Vec<String> = self.order.iter().map(|name| format!("s.{name}")).collect();
        let places = places.join(", ");
        let order = self.order_text();
        let (key, filter) = self.conditions(query);
        let select = Select { key: &key, filter: &filter, order: &order, limit: Some(most) };
        let text = |source: Source<'_>| {
            let rows = source(self.table, &select);
            format!("SELECT {columns}, {places} FROM {rows} AS s ORDER BY {}", of_rows(&order))
        };
        let mut params = query.params.clone();
        params.extend(from.0.iter().map(OrderValue::value));
        let answer = data.query(text, params).await?;
        let (kinds, width) = (self.kinds(), self.record.width());
        let item = |row: &logmill_io::Row| {
            let places = kinds.iter().enumerate();
            let places = places.map(|(number, kind)| OrderValue::read(*kind, row, width + number));
            Ok(Item {
                object: self.record.read(row)?,
                position: Position(places.collect::<ApiResult<_>>()?),
            })
        };
        answer.rows.iter().map(item).collect()
    }

    fn order_text(&self) -> String {
        let direction = match self.direction {
            Direction::Down => "DESC",
            Direction::Up => "ASC",
        };
        let column = |name: &&str| format!("{name} {direction}");
        self.order.iter().map(column).collect::<Vec<_>>().join(", ")
    }

    /// The conditions of `query`, plus the condition that rows come after the position whose parameters follow those of
    /// the query.
    fn conditions(&self, query: &RowQuery) -> (String, String) {
        let first = query.params.len() + 1;
        let places: Vec<String> =
            (first..first + self.order.len()).map(|number| format!("${number}")).collect();
        let sign = if self.direction == Direction::Down { "<" } else { ">" };
        let behind = format!("({}) {sign} ({})", self.order.join(", "), places.join(", "));
        let is_key = |name: &&str| {
            let mut columns = self.table.columns.iter();
            columns.any(|column| column.name == *name && column.fold == Fold::Key)
        };
        if self.order.iter().all(is_key) {
            (and(&query.key, &behind), query.filter.clone())
        } else {
            (query.key.clone(), and(&query.filter, &behind))
        }
    }
}

/// Up to a given number of rows of a table, without paging.
pub(super) async fn rows(
    data: &Data,
    (table, record): (&'static Table, &'static Record),
    query: RowQuery,
    order: &str,
    most: usize,
) -> ApiResult<Vec<Object>> {
    let columns = record.select();
    let select = Select { key: &query.key, filter: &query.filter, order, limit: Some(most) };
    let text = |source: Source<'_>| {
        let (rows, order) = (source(table, &select), of_rows(order));
        format!("SELECT {columns} FROM {rows} AS s ORDER BY {order}")
    };
    let answer = data.query(text, query.params).await?;
    answer.rows.iter().map(|row| record.read(row)).collect()
}

/// The one row of a table that matches, if any.
pub(super) async fn row(
    data: &Data,
    of: (&'static Table, &'static Record),
    query: RowQuery,
) -> ApiResult<Option<Object>> {
    let key = of.0.columns[0].name;
    Ok(rows(data, of, query, key, 1).await?.pop())
}

/// Qualifies the columns of an order with `s`, because a bare name could refer to a column of the result.
pub(super) fn of_rows(order: &str) -> String {
    order.split(", ").map(|column| format!("s.{column}")).collect::<Vec<_>>().join(", ")
}

fn and(one: &str, other: &str) -> String {
    match one {
        "" => other.to_owned(),
        one => format!("{one} AND {other}"),
    }
}

/// Merges two ascending parts of lists with the same order.
pub(super) fn merged(one: ScanPage, other: ScanPage) -> ScanPage {
    let end = match (one.end, other.end) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let mut items = one.items;
    items.extend(other.items);
    items.sort_by(|a, b| a.position.cmp(&b.position));
    // Beyond the end of the shorter list, rows of it may be missing.
    items.retain(|item| end.as_ref().is_none_or(|end| item.position <= *end));
    ScanPage { items, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_page(places: &[i64], end: Option<i64>) -> ScanPage {
        let position = |place: i64| Position(vec![OrderValue::Int(place)]);
        let item = |place: &i64| Item {
            object: Object::from_iter([("at".to_owned(), (*place).into())]),
            position: position(*place),
        };
        ScanPage { items: places.iter().map(item).collect(), end: end.map(position) }
    }

    #[test]
    fn merged_pages_omit_rows_that_one_of_them_has_not_reached() {
        let check = |one, other, expected: &[i64], end: Option<i64>| {
            let all = merged(one, other);
            let at: Vec<i64> = all.items.iter().filter_map(|i| i.object["at"].as_i64()).collect();
            assert_eq!(at, expected);
            assert_eq!(all.end, end.map(|end| Position(vec![OrderValue::Int(end)])));
        };
        check(scan_page(&[1, 4], None), scan_page(&[2, 3, 9], None), &[1, 2, 3, 4, 9], None);
        check(scan_page(&[1, 4], Some(4)), scan_page(&[2, 9], None), &[1, 2, 4], Some(4));
        check(scan_page(&[1], Some(5)), scan_page(&[2, 9], Some(3)), &[1, 2], Some(3));
        check(scan_page(&[], Some(5)), scan_page(&[], None), &[], Some(5));
    }

    #[test]
    fn a_page_ends_where_the_next_one_begins() {
        let check = |scan_page: ScanPage, limit, items: usize, end: Option<i64>| {
            let (found, next) = scan_page.page(limit);
            assert_eq!(found.len(), items);
            assert_eq!(next, end.map(|end| Position(vec![OrderValue::Int(end)])));
        };
        check(scan_page(&[1, 2, 3], None), 2, 2, Some(2));
        check(scan_page(&[1, 2], None), 2, 2, None);
        check(scan_page(&[1, 2, 3], Some(9)), 2, 2, Some(2));
        check(scan_page(&[1], Some(9)), 2, 1, Some(9));
    }
}
