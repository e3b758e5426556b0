//! Rows between processors and tables.
//!
//! Guarantees: the result of [`Rows::fold`] does not depend on the order of rows or on parts having been folded before;
//! a row that does not fit its table is an error. Leaves to others: storing ([`super::store`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use alloy_primitives::{Address, B256, U256};
use bytes::Bytes;
use logmill_io::Amount;

use super::table::{Column, Fold, Kind, Table};
use crate::error::{Error, Result};

/// Low bits of a position that hold the index within the block.
const INDEX_BITS: u32 = 24;

/// Block and index within it, of a log or of a transaction; sorts in chain order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position(i64);

impl Position {
    /// None if a number is too large for any known chain.
    pub(crate) fn new(block: u64, index: u64) -> Option<Self> {
        let block = i64::try_from(block).ok().filter(|block| *block < 1 << (62 - INDEX_BITS))?;
        let index = i64::try_from(index).ok().filter(|index| *index < 1 << INDEX_BITS)?;
        Some(Self(block << INDEX_BITS | index))
    }
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    Null,
    Int(i64),
    Text(String),
    Bytes(Bytes),
    Amount(Amount),
    Address(Address),
}

impl Cell {
    fn fits(&self, column: &Column) -> bool {
        match self {
            Self::Null => column.fold != Fold::Key && column.fold != Fold::Sum,
            Self::Int(_) => column.kind == Kind::Int,
            Self::Text(_) => column.kind == Kind::Text,
            Self::Bytes(_) => column.kind == Kind::Bytes,
            Self::Amount(_) => column.kind == Kind::Amount,
            Self::Address(_) => column.kind == Kind::Address,
        }
    }
}

macro_rules! cells_from {
    ($($from:ty => |$value:ident| $into:expr;)*) => {
        $(impl From<$from> for Cell {
            fn from($value: $from) -> Self {
                $into
            }
        })*
    };
}

cells_from! {
    i64 => |value| Self::Int(value);
    u32 => |value| Self::Int(value.into());
    u8 => |value| Self::Int(value.into());
    bool => |value| Self::Int(value.into());
    // No chain has more than `i64::MAX` of anything counted here.
    u64 => |value| Self::Int(i64::try_from(value).unwrap_or(i64::MAX));
    usize => |value| Self::Int(i64::try_from(value).unwrap_or(i64::MAX));
    &str => |value| Self::Text(value.to_owned());
    String => |value| Self::Text(value);
    Bytes => |value| Self::Bytes(value);
    alloy_primitives::Bytes => |value| Self::Bytes(value.0);
    B256 => |value| Self::Bytes(Bytes::copy_from_slice(value.as_slice()));
    Amount => |value| Self::Amount(value);
    U256 => |value| Self::Amount(amount(value));
    Address => |value| Self::Address(value);
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A chain's number as an amount.
pub fn amount(value: U256) -> Amount {
    Amount::from_be_bytes(&value.to_be_bytes::<32>()).unwrap_or_default()
}

/// The cells of a row: `cells![block, index, address]`.
#[macro_export]
macro_rules! cells {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::derive::Cell::from($value)),*]
    };
}

/// A row, with the positions that decide `First` and `Last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Position of its `First` values.
    pub(crate) first_at: i64,
    /// Position of its `Last` values.
    pub(crate) last_at: i64,
    /// In the order of the columns.
    pub(crate) cells: Vec<Cell>,
}

impl Row {
    /// In the order of the columns.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

#[derive(Clone, Debug, Default)]
pub struct Rows {
    tables: Vec<(&'static Table, Vec<Row>)>,
    block: u64,
}

impl Rows {
    pub fn new(tables: &[&'static Table]) -> Self {
        Self { tables: tables.iter().map(|table| (*table, Vec::new())).collect(), block: 0 }
    }

    /// Sets the block of the rows that are pushed next.
    pub fn at_block(&mut self, number: u64) {
        self.block = number;
    }

    /// Adds a row of the current block. `index` is that of the log or transaction that it comes from.
    pub fn push(&mut self, table: &'static Table, index: usize, cells: Vec<Cell>) -> Result<()> {
        let misfit = || Error::Misfit { table: table.name, row: format!("{cells:?}") };
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        let at = Position::new(self.block, index).ok_or_else(misfit)?.0;
        let fits = cells.len() == table.columns.len()
            && cells.iter().zip(table.columns).all(|(cell, column)| cell.fits(column));
        let of_table = self.tables.iter_mut().find(|(known, _)| known.name == table.name);
        let Some((_, rows)) = of_table.filter(|_| fits) else {
            return Err(misfit());
        };
        rows.push(Row { first_at: at, last_at: at, cells });
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.tables.iter().map(|(_, rows)| rows.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn tables(&self) -> impl Iterator<Item = (&'static Table, &[Row])> {
        self.tables.iter().map(|(table, rows)| (*table, rows.as_slice()))
    }

    pub(crate) fn into_tables(self) -> Vec<(&'static Table, Vec<Row>)> {
        self.tables
    }

    /// Adds the rows of another, of earlier or later blocks.
    pub fn append(&mut self, other: Self) {
        for (table, rows) in other.tables {
            match self.tables.iter_mut().find(|(known, _)| known.name == table.name) {
                Some((_, mine)) => mine.extend(rows),
                None => self.tables.push((table, rows)),
            }
        }
    }

    /// Merges the rows of each key into one. Insert-once tables stay unchanged: a duplicate key is detected when the
    /// rows are stored.
    pub fn fold(&mut self) -> Result<()> {
        for (table, rows) in &mut self.tables {
            if !table.is_once() && rows.len() > 1 {
                fold(table, rows)?;
            }
        }
        Ok(())
    }
}

fn fold(table: &'static Table, rows: &mut Vec<Row>) -> Result<()> {
    let key_len = table.key_len();
    let mut folded: Vec<Row> = Vec::with_capacity(rows.len());
    let mut known: HashMap<Vec<Cell>, usize, alloy_primitives::map::DefaultHashBuilder> =
        HashMap::with_capacity_and_hasher(rows.len(), Default::default());
    for row in rows.drain(..) {
        match known.entry(row.cells[..key_len].to_vec()) {
            Entry::Vacant(place) => {
                place.insert(folded.len());
                folded.push(row);
            }
            Entry::Occupied(place) => merge(table, &mut folded[*place.get()], row)?,
        }
    }
    *rows = folded;
    Ok(())
}

/// Merges a row into another of the same key.
pub(crate) fn merge(table: &'static Table, into: &mut Row, other: Row) -> Result<()> {
    // Equal positions mean one block, whose rows come in order: keep the earlier for `First`, take the later for
    // `Last`.
    let (earlier, later) = (other.first_at < into.first_at, other.last_at >= into.last_at);
    for ((column, mine), its) in table.columns.iter().zip(&mut into.cells).zip(other.cells) {
        match column.fold {
            Fold::Key => {}
            Fold::Once => {
                return Err(Error::Misfit {
                    table: table.name,
                    row: "the key occurs twice".to_owned(),
                });
            }
            Fold::Sum => *mine = sum(table, mine, &its)?,
            Fold::Min => *mine = chosen(mine, its, |mine, its| its < mine),
            Fold::Max => *mine = chosen(mine, its, |mine, its| its > mine),
            Fold::First if earlier => *mine = its,
            Fold::Last if later => *mine = its,
            Fold::First | Fold::Last => {}
        }
    }
    into.first_at = into.first_at.min(other.first_at);
    into.last_at = into.last_at.max(other.last_at);
    Ok(())
}

fn sum(table: &'static Table, mine: &Cell, its: &Cell) -> Result<Cell> {
    let sum = match (mine, its) {
        (Cell::Int(mine), Cell::Int(its)) => mine.checked_add(*its).map(Cell::Int),
        (Cell::Amount(mine), Cell::Amount(its)) => mine.checked_add(*its).map(Cell::Amount),
        _ => None,
    };
    sum.ok_or_else(|| Error::Misfit { table: table.name, row: format!("{mine:?} + {its:?}") })
}

/// NULL loses to any value.
fn chosen(mine: &Cell, its: Cell, better: impl Fn(i64, i64) -> bool) -> Cell {
    match (mine, &its) {
        (Cell::Int(a), Cell::Int(b)) if better(*a, *b) => its,
        (Cell::Null, _) => its,
        _ => mine.clone(),
    }
}
