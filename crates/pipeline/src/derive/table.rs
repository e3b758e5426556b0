//! `Table`: declares what a processor writes: names, types, and how rows of one key are folded into one.
//!
//! | fold of a column | rows of one key become |
//! |---|---|
//! | [`Fold::Once`] | an error: the key is a position, and a position is derived once |
//! | [`Fold::Sum`] | their sum |
//! | [`Fold::Min`], [`Fold::Max`] | the smallest, the largest |
//! | [`Fold::First`], [`Fold::Last`] | the one at the lowest, at the highest position |
//!
//! All of them but `Once` are commutative and associative over rows with positions, so the order in which history
//! arrives cannot matter. A table whose values are all `Once` is called *insert-once*.
//!
//! Guarantees: [`Table::check`] refuses invalid declarations. Leaves to others: statements (`schema`).

use std::fmt;

/// Maximum length of a table name: physical names prepend chain and generation, and PostgreSQL truncates long names.
const NAME_MAX: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// The name that readers use.
    pub name: &'static str,
    /// The key columns come first.
    pub columns: &'static [Column],
    /// Secondary indexes, each a list of columns. An index costs as much as the rows, so keep them few.
    pub indexes: &'static [&'static [&'static str]],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub fold: Fold,
}

/// Values may be missing, except in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number; also a boolean (0 or 1) and a time in seconds.
    Int,
    Text,
    /// Hashes, selectors, code.
    Bytes,
    /// An exact amount, possibly wider than 256 bits, possibly negative.
    Amount,
    /// Stored as a number, through the table `address`.
    Address,
}

/// How rows of one key are folded into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    Key,
    /// There is only one row per key.
    Once,
    /// Of numbers and amounts.
    Sum,
    /// The smallest number.
    Min,
    /// The largest number.
    Max,
    /// The value at the lowest position.
    First,
    /// The value at the highest position.
    Last,
}

pub const fn key(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, fold: Fold::Key }
}

pub const fn once(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, fold: Fold::Once }
}

pub const fn folded(name: &'static str, kind: Kind, fold: Fold) -> Column {
    Column { name, kind, fold }
}

/// Column with the position of `First` values.
pub(crate) const FIRST_AT: &str = "first_at";
/// Column with the position of `Last` values.
pub(crate) const LAST_AT: &str = "last_at";

impl Table {
    /// Number of key columns.
    pub fn key_len(&self) -> usize {
        self.columns.iter().take_while(|column| column.fold == Fold::Key).count()
    }

    /// Whether the table is insert-once.
    pub fn is_once(&self) -> bool {
        self.columns.iter().all(|column| matches!(column.fold, Fold::Key | Fold::Once))
    }

    /// Whether any column has this fold.
    pub(crate) fn has(&self, fold: Fold) -> bool {
        self.columns.iter().any(|column| column.fold == fold)
    }

    /// Refuses an invalid declaration.
    pub fn check(&self) -> Result<(), String> {
        let bad = |what: fmt::Arguments<'_>| Err(format!("the table {}: {what}", self.name));
        let word = |name: &str| {
            name.len() <= NAME_MAX
                && name.starts_with(|first: char| first.is_ascii_lowercase())
                && name.chars().all(|letter| {
                    letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
                })
        };
        if !word(self.name) {
            return bad(format_args!(
                "a name must have at most {NAME_MAX} lowercase letters, digits and underscores"
            ));
        }
        let (key, values) = self.columns.split_at(self.key_len());
        if key.is_empty() || values.iter().any(|column| column.fold == Fold::Key) {
            return bad(format_args!("the key columns must come first"));
        }
        if !self.is_once() && self.has(Fold::Once) {
            return bad(format_args!("either all values must fold or none"));
        }
        for column in self.columns {
            let fits = match column.fold {
                Fold::Sum => matches!(column.kind, Kind::Int | Kind::Amount),
                Fold::Min | Fold::Max => column.kind == Kind::Int,
                Fold::Key | Fold::Once | Fold::First | Fold::Last => true,
            };
            let taken = [FIRST_AT, LAST_AT, "tip_block"].contains(&column.name);
            if !fits || taken || !word(column.name) {
                return bad(format_args!(
                    "column {} has an invalid name, or a kind that its fold does not support",
                    column.name
                ));
            }
            if self.columns.iter().filter(|other| other.name == column.name).count() > 1 {
                return bad(format_args!("column {} is declared twice", column.name));
            }
        }
        let known = |name: &&str| self.columns.iter().any(|column| column.name == *name);
        if !self.indexes.iter().all(|index| !index.is_empty() && index.iter().all(&known)) {
            return bad(format_args!("an index must name columns of the table"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_declarations_are_refused() {
        const AT: Column = key("at", Kind::Int);
        let check =
            |columns: &'static [Column]| Table { name: "t", columns, indexes: &[] }.check().is_ok();
        assert!(check(const { &[AT] }));
        assert!(check(const { &[AT, once("a", Kind::Text)] }));
        assert!(check(const { &[AT, folded("a", Kind::Amount, Fold::Sum)] }));
        assert!(!check(&[]));
        assert!(!check(const { &[once("a", Kind::Int)] }));
        assert!(!check(const { &[AT, once("a", Kind::Int), key("b", Kind::Int)] }));
        assert!(!check(const { &[AT, once("a", Kind::Int), folded("b", Kind::Int, Fold::Sum)] }));
        assert!(!check(const { &[AT, folded("a", Kind::Text, Fold::Sum)] }));
        assert!(!check(const { &[AT, folded("a", Kind::Amount, Fold::Max)] }));
        assert!(!check(const { &[AT, once("at", Kind::Int)] }));
        assert!(!check(const { &[AT, once("first_at", Kind::Int)] }));
        assert!(Table { name: "No", columns: const { &[AT] }, indexes: &[] }.check().is_err());
        assert!(Table { name: "t", columns: const { &[AT] }, indexes: &[&["b"]] }.check().is_err());
    }
}
