//! The query for the rows of a table, final rows and tip rows combined.
//!
//! A key without a row in the tip is read from the final table alone, in the order of its indexes. Only the keys that
//! occur in the tip are folded, and they are few. So the cost of a page depends on its rows, not on the size of the
//! table.
//!
//! Guarantees: a key has one row, folded as its table declares. Leaves to others: running the query ([`super::read`],
//! [`super::views`]).

use super::schema::{key_names, names, stored_columns, tip_of};
use super::table::{FIRST_AT, Fold, Kind, LAST_AT, Table};

/// Engine name for clients without our SQL functions: instead of the sum of amounts they get one of the summands.
pub(crate) const PLAIN: &str = "plain";

/// What to read from a table. The texts come from code, never from users: values go into parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Select<'a> {
    /// Condition on key columns only; empty for none. It makes a read cheap.
    pub key: &'a str,
    /// Condition on any columns; empty for none.
    pub filter: &'a str,
    /// What follows `ORDER BY`; empty for none.
    pub order: &'a str,
    pub limit: Option<usize>,
}

/// Parenthesised query over a table of a generation, with all its columns.
pub(crate) fn select(table: &Table, physical: &str, engine: &str, what: &Select<'_>) -> String {
    let tip = tip_of(physical);
    let all = |text: &str| if text.is_empty() { "1 = 1".to_owned() } else { format!("({text})") };
    let (key, filter) = (all(what.key), all(what.filter));
    let order = match what.order {
        "" => String::new(),
        order => format!(" ORDER BY {order}"),
    };
    let limit = what.limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
    let columns = names(table, "");
    let cut =
        |inner: String, name: &str| format!("SELECT * FROM ({inner}{order}{limit}) AS {name}");
    let (final_rows, tip_rows) = if table.is_once() {
        (
            format!("SELECT {columns} FROM {physical} WHERE {key} AND {filter}"),
            format!("SELECT {columns} FROM {tip} WHERE {key} AND {filter}"),
        )
    } else {
        let same: Vec<String> =
            key_names(table).iter().map(|name| format!("t.{name} = f.{name}")).collect();
        let same = same.join(" AND ");
        let folded = folded(table, physical, engine, &key);
        (
            format!(
                "SELECT {columns} FROM {physical} AS f WHERE {key} AND {filter} \
                 AND NOT EXISTS (SELECT 1 FROM {tip} AS t WHERE {same})"
            ),
            format!("SELECT {columns} FROM ({folded}) AS g WHERE {filter}"),
        )
    };
    let (final_rows, tip_rows) = (cut(final_rows, "of_final"), cut(tip_rows, "of_tip"));
    format!("(SELECT {columns} FROM ({final_rows} UNION ALL {tip_rows}) AS joined{order}{limit})")
}

/// Query for the keys in the tip, folded with their final rows.
fn folded(table: &Table, physical: &str, engine: &str, key: &str) -> String {
    let tip = tip_of(physical);
    let keys = key_names(table).join(", ");
    let columns = names(table, "");
    let of_final = names(table, "f.");
    let same: Vec<String> =
        key_names(table).iter().map(|name| format!("f.{name} = k.{name}")).collect();
    let same = same.join(" AND ");
    let rows = format!(
        "SELECT {columns} FROM {tip} WHERE {key} UNION ALL \
         SELECT {of_final} FROM (SELECT DISTINCT {keys} FROM {tip} WHERE {key}) AS k \
         CROSS JOIN {physical} AS f WHERE {same}"
    );
    let by_position = table.columns.iter().filter_map(|column| {
        let (at, direction) = match column.fold {
            Fold::First => (FIRST_AT, "ASC"),
            Fold::Last => (LAST_AT, "DESC"),
            _ => return None,
        };
        let name = column.name;
        let over = format!("(PARTITION BY {keys} ORDER BY {at} {direction})");
        Some(format!(", first_value({name}) OVER {over} AS {name}_chosen"))
    });
    let chosen: String = by_position.collect();
    let values = stored_columns(table).into_iter().map(|(name, _)| fold_text(table, name, engine));
    let values: Vec<String> = values.collect();
    let values = values.join(", ");
    format!(
        "SELECT {values} FROM (SELECT {columns}{chosen} FROM ({rows}) AS r) AS c GROUP BY {keys}"
    )
}

fn fold_text(table: &Table, name: &str, engine: &str) -> String {
    let column = table.columns.iter().find(|column| column.name == name);
    let any = |name: &str| match engine {
        "postgresql" => format!("(array_agg({name}))[1]"),
        _ => format!("min({name})"),
    };
    match column.map(|column| (column.fold, column.kind)) {
        Some((Fold::Key | Fold::Once, _)) => name.to_owned(),
        Some((Fold::Sum, Kind::Amount)) if engine == PLAIN => format!("min({name}) AS {name}"),
        Some((Fold::Sum, Kind::Amount)) => format!("amount_sum({name}) AS {name}"),
        Some((Fold::Sum, _)) => format!("CAST(sum({name}) AS BIGINT) AS {name}"),
        Some((Fold::Min, _)) => format!("min({name}) AS {name}"),
        Some((Fold::Max, _)) => format!("max({name}) AS {name}"),
        Some((Fold::First | Fold::Last, _)) => {
            format!("{} AS {name}", any(&format!("{name}_chosen")))
        }
        None if name == FIRST_AT => format!("min({name}) AS {name}"),
        None => format!("max({name}) AS {name}"),
    }
}
