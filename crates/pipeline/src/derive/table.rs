//! `Table`: what a processor writes, declared: names, types, and how rows of one key become one.
//!
//! | fold of a column | rows of one key become |
//! |---|---|
//! | [`Fold::Once`] | an error: the key is a position, and a position is derived once |
//! | [`Fold::Sum`] | their sum |
//! | [`Fold::Min`], [`Fold::Max`] | the smallest, the largest |
//! | [`Fold::First`], [`Fold::Last`] | the one of the lowest, of the highest position |
//!
//! All of them but `Once` are commutative and associative over rows with positions, so the order in which history
//! arrives can not matter. A table whose values are all `Once` is called *insert-once*.
//!
//! Guarantees: [`Table::check`] refuses declarations that have no meaning. Leaves to others: statements
//! (`schema`).

use std::fmt;

/// The longest name of a table: physical names carry the chain and a generation before it, and PostgreSQL cuts names.
const NAME_MAX: usize = 32;

/// A table of a processor.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, as readers know it.
    pub name: &'static str,
    /// Its columns, the key first.
    pub columns: &'static [Column],
    /// Secondary indexes, each a list of columns. They cost as much as the rows: few.
    pub indexes: &'static [&'static [&'static str]],
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// How it folds.
    pub fold: Fold,
}

/// What a column holds. Values may be missing, except in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number; also a truth, as 0 or 1, and a time, in seconds.
    Int,
    /// Text.
    Text,
    /// Bytes: hashes, selectors, code.
    Bytes,
    /// An exact amount, possibly of 256 bits, possibly negative.
    Amount,
    /// An address. It is stored as a number, by way of the table `address`.
    Address,
}

/// How rows of one key become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Part of the key.
    Key,
    /// There is one row per key.
    Once,
    /// The sum; of numbers and amounts.
    Sum,
    /// The smallest; of numbers.
    Min,
    /// The largest; of numbers.
    Max,
    /// The value at the lowest position.
    First,
    /// The value at the highest position.
    Last,
}

/// A column of the key.
pub const fn key(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, fold: Fold::Key }
}

/// A value of an insert-once table.
pub const fn once(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, fold: Fold::Once }
}

/// A folded value.
pub const fn folded(name: &'static str, kind: Kind, fold: Fold) -> Column {
    Column { name, kind, fold }
}

/// The column with the position of `First` values.
pub(crate) const FIRST_AT: &str = "first_at";
/// The column with the position of `Last` values.
pub(crate) const LAST_AT: &str = "last_at";

impl Table {
    /// How many of the first columns are the key.
    pub fn key_len(&self) -> usize {
        self.columns.iter().take_while(|column| column.fold == Fold::Key).count()
    }

    /// Whether there is one row per key.
    pub fn is_once(&self) -> bool {
        self.columns.iter().all(|column| matches!(column.fold, Fold::Key | Fold::Once))
    }

    /// Whether a column folds like this.
    pub(crate) fn has(&self, fold: Fold) -> bool {
        self.columns.iter().any(|column| column.fold == fold)
    }

    /// Refuses what has no meaning.
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
            return bad(format_args!("a name is at most {NAME_MAX} lowercase letters, digits, _"));
        }
        let (key, values) = self.columns.split_at(self.key_len());
        if key.is_empty() || values.iter().any(|column| column.fold == Fold::Key) {
            return bad(format_args!("the key comes first"));
        }
        if !self.is_once() && self.has(Fold::Once) {
            return bad(format_args!("either all values fold or none does"));
        }
        for column in self.columns {
            let fits = match column.fold {
                Fold::Sum => matches!(column.kind, Kind::Int | Kind::Amount),
                Fold::Min | Fold::Max => column.kind == Kind::Int,
                Fold::Key | Fold::Once | Fold::First | Fold::Last => true,
            };
            let taken = [FIRST_AT, LAST_AT, "tip_block"].contains(&column.name);
            if !fits || taken || !word(column.name) {
                return bad(format_args!("the column {} can not be", column.name));
            }
            if self.columns.iter().filter(|other| other.name == column.name).count() > 1 {
                return bad(format_args!("the column {} is there twice", column.name));
            }
        }
        let known = |name: &&str| self.columns.iter().any(|column| column.name == *name);
        if !self.indexes.iter().all(|index| !index.is_empty() && index.iter().all(&known)) {
            return bad(format_args!("an index names its columns"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_without_meaning_are_refused() {
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
