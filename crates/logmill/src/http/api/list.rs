//! `List`: the rows of a table in an order, page by page.
//!
//! A page begins behind the position where the last one ended: `(block_height, event_index) < ($2, $3)` in the order of
//! an index, with a limit. So a page costs what it shows, wherever in the list it is. Where rows are left out that no
//! index knows (all but the swaps, what was given away), a page looks at [`LOOKED_AT_MAX`] rows and hardly more: it may
//! then be shorter than was asked for, and its cursor goes on from where it stopped.
//!
//! Guarantees: pages add up to the list; no statement looks at more rows than it says. Leaves to others: what rows
//! mean.

use logmill_io::Value;
use logmill_pipeline::derive::{Fold, Kind, Select, Table};

use super::data::{Data, Source};
use super::error::ApiResult;
use super::position::{Place, Position};
use super::record::{Object, Record};

/// The most rows that a page looks at to find those that it shows.
pub(super) const LOOKED_AT_MAX: usize = 2_000;
/// The most rows of one statement.
const WINDOW_MAX: usize = 500;

/// A table in an order.
#[derive(Debug)]
pub(super) struct List {
    pub(super) table: &'static Table,
    pub(super) record: &'static Record,
    /// The columns that it is ordered by; together they name a row. An index begins with what the caller fixes and
    /// goes on with these.
    pub(super) order: &'static [&'static str],
    pub(super) direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the highest: the newest comes first.
    Down,
    /// From the lowest.
    Up,
}

/// Which rows of a table: conditions of a program, with parameters from `$1` on.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    /// On columns of the key alone.
    pub(super) key: String,
    /// On any column.
    pub(super) filter: String,
    pub(super) params: Vec<Value>,
}

/// A row of a list.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) object: Object,
    pub(super) position: Position,
}

/// A stretch of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    /// What was found, in order.
    pub(super) items: Vec<Item>,
    /// Everything up to here was looked at; none if that was all.
    pub(super) end: Option<Position>,
}

impl Stretch {
    /// Cuts it to a page: its objects, and where the next one begins.
    pub(super) fn page(mut self, limit: usize) -> (Vec<Object>, Option<Position>) {
        if self.items.len() > limit {
            self.items.truncate(limit);
            self.end = self.items.last().map(|item| item.position.clone());
        }
        (self.items.into_iter().map(|item| item.object).collect(), self.end)
    }
}

impl Stretch {
    /// Says of which of several tables it is, as the last place of every position.
    pub(super) fn in_table(&mut self, table: i64) {
        for position in self.items.iter_mut().map(|item| &mut item.position).chain(&mut self.end) {
            position.0.push(Place::Int(table));
        }
    }
}

impl Ask {
    /// Rows whose key has this.
    pub(super) fn key(key: &str, params: Vec<Value>) -> Self {
        Self { key: key.to_owned(), filter: String::new(), params }
    }
}

impl List {
    /// What its positions are made of.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let kind = |name: &&str| {
            let column = self.table.columns.iter().find(|column| column.name == *name);
            column.map_or(Kind::Int, |column| column.kind)
        };
        self.order.iter().map(kind).collect()
    }

    /// Before everything.
    pub(super) fn start(&self) -> Position {
        let above = self.direction == Direction::Down;
        Position(self.kinds().into_iter().map(|kind| Place::end(kind, above)).collect())
    }

    /// At least `want` rows behind a position that are to be kept, unless there are fewer, or more would have to be
    /// looked at than may be.
    pub(super) async fn stretch(
        &self,
        data: &Data,
        ask: &Ask,
        from: Position,
        want: usize,
        keep: impl Fn(&Object) -> bool + Send,
    ) -> ApiResult<Stretch> {
        let (mut from, mut window, mut looked_at) = (from, want, 0);
        let mut items = Vec::new();
        loop {
            let found = self.rows(data, ask, &from, window).await?;
            let is_all = found.len() < window;
            looked_at += found.len();
            if let Some(last) = found.last() {
                from = last.position.clone();
            }
            items.extend(found.into_iter().filter(|item| keep(&item.object)));
            if is_all {
                return Ok(Stretch { items, end: None });
            }
            if items.len() >= want || looked_at >= LOOKED_AT_MAX {
                return Ok(Stretch { items, end: Some(from) });
            }
            window = (window * 4).min(WINDOW_MAX);
        }
    }

    /// The next rows behind a position.
    pub(super) async fn rows(
        &self,
        data: &Data,
        ask: &Ask,
        from: &Position,
        most: usize,
    ) -> ApiResult<Vec<Item>> {
        let columns = self.record.select();
        let places: Vec<String> = self.order.iter().map(|name| format!("s.{name}")).collect();
        let places = places.join(", ");
        let order = self.order_text();
        let (key, filter) = self.conditions(ask);
        let select = Select { key: &key, filter: &filter, order: &order, limit: Some(most) };
        let text = |source: Source<'_>| {
            let rows = source(self.table, &select);
            format!("SELECT {columns}, {places} FROM {rows} AS s ORDER BY {}", of_rows(&order))
        };
        let mut params = ask.params.clone();
        params.extend(from.0.iter().map(Place::value));
        let answer = data.query(text, params).await?;
        let (kinds, width) = (self.kinds(), self.record.width());
        let item = |row: &logmill_io::Row| {
            let places = kinds.iter().enumerate();
            let places = places.map(|(number, kind)| Place::read(*kind, row, width + number));
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

    /// The conditions of an ask, and that rows are behind the position whose parameters follow those of the ask.
    fn conditions(&self, ask: &Ask) -> (String, String) {
        let first = ask.params.len() + 1;
        let places: Vec<String> =
            (first..first + self.order.len()).map(|number| format!("${number}")).collect();
        let sign = if self.direction == Direction::Down { "<" } else { ">" };
        let behind = format!("({}) {sign} ({})", self.order.join(", "), places.join(", "));
        let is_key = |name: &&str| {
            let mut columns = self.table.columns.iter();
            columns.any(|column| column.name == *name && column.fold == Fold::Key)
        };
        if self.order.iter().all(is_key) {
            (and(&ask.key, &behind), ask.filter.clone())
        } else {
            (ask.key.clone(), and(&ask.filter, &behind))
        }
    }
}

/// Some rows of a table, at most so many: what belongs to one thing.
pub(super) async fn rows(
    data: &Data,
    (table, record): (&'static Table, &'static Record),
    ask: Ask,
    order: &str,
    most: usize,
) -> ApiResult<Vec<Object>> {
    let columns = record.select();
    let select = Select { key: &ask.key, filter: &ask.filter, order, limit: Some(most) };
    let text = |source: Source<'_>| {
        let (rows, order) = (source(table, &select), of_rows(order));
        format!("SELECT {columns} FROM {rows} AS s ORDER BY {order}")
    };
    let answer = data.query(text, ask.params).await?;
    answer.rows.iter().map(|row| record.read(row)).collect()
}

/// The one row of a table for which something holds, if there is one.
pub(super) async fn row(
    data: &Data,
    of: (&'static Table, &'static Record),
    ask: Ask,
) -> ApiResult<Option<Object>> {
    let key = of.0.columns[0].name;
    Ok(rows(data, of, ask, key, 1).await?.pop())
}

/// The same order of rows that are called `s`: a bare name could be that of a column of the answer.
pub(super) fn of_rows(order: &str) -> String {
    order.split(", ").map(|column| format!("s.{column}")).collect::<Vec<_>>().join(", ")
}

fn and(one: &str, other: &str) -> String {
    match one {
        "" => other.to_owned(),
        one => format!("{one} AND {other}"),
    }
}

/// Two stretches of lists with the same order as one, from the lowest up.
pub(super) fn merged(one: Stretch, other: Stretch) -> Stretch {
    let end = match (one.end, other.end) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let mut items = one.items;
    items.extend(other.items);
    items.sort_by(|a, b| a.position.cmp(&b.position));
    // What lies behind the end of the shorter one may lack rows of it.
    items.retain(|item| end.as_ref().is_none_or(|end| item.position <= *end));
    Stretch { items, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(places: &[i64], end: Option<i64>) -> Stretch {
        let position = |place: i64| Position(vec![Place::Int(place)]);
        let item = |place: &i64| Item {
            object: Object::from_iter([("at".to_owned(), (*place).into())]),
            position: position(*place),
        };
        Stretch { items: places.iter().map(item).collect(), end: end.map(position) }
    }

    #[test]
    fn merged_stretches_leave_out_what_one_of_them_has_not_reached() {
        let check = |one, other, expected: &[i64], end: Option<i64>| {
            let all = merged(one, other);
            let at: Vec<i64> = all.items.iter().filter_map(|i| i.object["at"].as_i64()).collect();
            assert_eq!(at, expected);
            assert_eq!(all.end, end.map(|end| Position(vec![Place::Int(end)])));
        };
        check(stretch(&[1, 4], None), stretch(&[2, 3, 9], None), &[1, 2, 3, 4, 9], None);
        check(stretch(&[1, 4], Some(4)), stretch(&[2, 9], None), &[1, 2, 4], Some(4));
        check(stretch(&[1], Some(5)), stretch(&[2, 9], Some(3)), &[1, 2], Some(3));
        check(stretch(&[], Some(5)), stretch(&[], None), &[], Some(5));
    }

    #[test]
    fn a_page_ends_where_the_next_one_begins() {
        let check = |stretch: Stretch, limit, items: usize, end: Option<i64>| {
            let (found, next) = stretch.page(limit);
            assert_eq!(found.len(), items);
            assert_eq!(next, end.map(|end| Position(vec![Place::Int(end)])));
        };
        check(stretch(&[1, 2, 3], None), 2, 2, Some(2));
        check(stretch(&[1, 2], None), 2, 2, None);
        check(stretch(&[1, 2, 3], Some(9)), 2, 2, Some(2));
        check(stretch(&[1], Some(9)), 2, 1, Some(9));
    }
}
