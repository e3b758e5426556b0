//! The statements that create, fill, read and drop a generation's tables.
//!
//! Guarantees: both engines get the same statements, in the common notation. Leaves to others: running them, and the
//! queries that depend on the engine ([`super::read`]).

use std::fmt::Write as _;

use logmill_io::sql::{Bulk, ColumnType};

use super::table::{FIRST_AT, Fold, Kind, LAST_AT, Table};

/// Column of tip tables: the block that a row comes from.
pub(crate) const TIP_BLOCK: &str = "tip_block";

/// Name of the database table with a generation's final rows.
pub(crate) fn physical(chain_id: u64, generation: u32, table: &str) -> String {
    format!("c{chain_id}_g{generation}_{table}")
}

/// Name of the database table with the rows of blocks that are not final.
pub(crate) fn tip_of(physical: &str) -> String {
    format!("{physical}_tip")
}

type StoredColumn = (&'static str, ColumnType);

pub(crate) fn column_type(kind: Kind) -> ColumnType {
    match kind {
        Kind::Int | Kind::Address => ColumnType::Int,
        Kind::Text => ColumnType::Text,
        Kind::Bytes => ColumnType::Blob,
        Kind::Amount => ColumnType::Amount,
    }
}

/// The columns of a final table: the declared ones, and the positions that decide `First` and `Last`.
pub(crate) fn stored_columns(table: &Table) -> Vec<StoredColumn> {
    let declared = table.columns.iter().map(|column| (column.name, column_type(column.kind)));
    let mut columns: Vec<StoredColumn> = declared.collect();
    if table.has(Fold::First) {
        columns.push((FIRST_AT, ColumnType::Int));
    }
    if table.has(Fold::Last) {
        columns.push((LAST_AT, ColumnType::Int));
    }
    columns
}

/// The names of [`stored_columns`], each with a prefix, separated by commas.
pub(crate) fn names(table: &Table, prefix: &str) -> String {
    let names = stored_columns(table).into_iter().map(|(name, _)| format!("{prefix}{name}"));
    names.collect::<Vec<_>>().join(", ")
}

pub(crate) fn key_names(table: &Table) -> Vec<&'static str> {
    table.columns[..table.key_len()].iter().map(|column| column.name).collect()
}

fn definitions(table: &Table) -> String {
    let mut text = String::new();
    for (number, (name, ty)) in stored_columns(table).into_iter().enumerate() {
        let ty = match ty {
            ColumnType::Int => "BIGINT",
            ColumnType::Text if number < table.key_len() => "{name}",
            ColumnType::Text => "TEXT",
            ColumnType::Blob => "{bytes}",
            ColumnType::Amount => "{amount}",
        };
        let not_null = if number < table.key_len() { " NOT NULL" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{name} {ty}{not_null}, ");
    }
    text
}

/// Creates the final table and the tip table of a declaration.
pub(crate) fn create(table: &Table, physical: &str) -> Vec<String> {
    let (definitions, key) = (definitions(table), key_names(table).join(", "));
    let tip = tip_of(physical);
    let mut statements = vec![
        format!("CREATE TABLE {physical} ({definitions}PRIMARY KEY ({key})) {{clustered}}"),
        format!(
            "CREATE TABLE {tip} ({definitions}{TIP_BLOCK} BIGINT NOT NULL, \
             PRIMARY KEY ({key}, {TIP_BLOCK})) {{clustered}}"
        ),
        format!("CREATE INDEX {tip}_block ON {tip} ({TIP_BLOCK})"),
    ];
    // Created at once: a tip is small when its rows arrive, and every read through an index also reads the tip.
    statements.extend(indexes(table, &tip));
    statements
}

/// Creates the missing secondary indexes of a table.
pub(crate) fn indexes(table: &Table, physical: &str) -> Vec<String> {
    let index = |(number, columns): (usize, &&[&str])| {
        let columns = columns.join(", ");
        format!("CREATE INDEX IF NOT EXISTS {physical}_i{number} ON {physical} ({columns})")
    };
    table.indexes.iter().enumerate().map(index).collect()
}

pub(crate) fn drop(physical: &str) -> Vec<String> {
    let tip = tip_of(physical);
    vec![format!("DROP TABLE IF EXISTS {tip}"), format!("DROP TABLE IF EXISTS {physical}")]
}

/// Insert of folded rows into a final table.
pub(crate) fn insert(table: &Table, physical: &str) -> Bulk {
    Bulk {
        table: physical.to_owned().into(),
        columns: stored_columns(table).into(),
        key_columns: table.key_len(),
        on_conflict: on_conflict(table, physical).into(),
    }
}

/// Insert of the rows of one block into a tip table.
pub(crate) fn insert_tip(table: &Table, physical: &str) -> Bulk {
    let mut columns = stored_columns(table);
    columns.push((TIP_BLOCK, ColumnType::Int));
    Bulk {
        table: tip_of(physical).into(),
        columns: columns.into(),
        key_columns: table.key_len(),
        on_conflict: "".into(),
    }
}

fn on_conflict(table: &Table, physical: &str) -> String {
    if table.is_once() {
        // By coverage no such row exists: a conflict is an error.
        return String::new();
    }
    let mut sets = Vec::new();
    let choose = |name: &str, when: &str| {
        format!("{name} = CASE WHEN {when} THEN excluded.{name} ELSE {physical}.{name} END")
    };
    let better = |name: &str, sign: &str| {
        choose(
            name,
            &format!("{physical}.{name} IS NULL OR excluded.{name} {sign} {physical}.{name}"),
        )
    };
    for column in table.columns {
        let name = column.name;
        match (column.fold, column.kind) {
            (Fold::Key | Fold::Once, _) => {}
            (Fold::Sum, Kind::Amount) => {
                sets.push(format!("{name} = amount_add({physical}.{name}, excluded.{name})"));
            }
            (Fold::Sum, _) => sets.push(format!("{name} = {physical}.{name} + excluded.{name}")),
            (Fold::Min, _) => sets.push(better(name, "<")),
            (Fold::Max, _) => sets.push(better(name, ">")),
            (Fold::First, _) => {
                sets.push(choose(name, &format!("excluded.{FIRST_AT} < {physical}.{FIRST_AT}")));
            }
            (Fold::Last, _) => {
                sets.push(choose(name, &format!("excluded.{LAST_AT} > {physical}.{LAST_AT}")));
            }
        }
    }
    if table.has(Fold::First) {
        sets.push(better(FIRST_AT, "<"));
    }
    if table.has(Fold::Last) {
        sets.push(better(LAST_AT, ">"));
    }
    format!("DO UPDATE SET {}", sets.join(", "))
}
