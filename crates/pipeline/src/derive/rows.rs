//! Rows on their way from processors to tables.
//!
//! Guarantees: [`Rows::fold`] gives the same for rows in any order, and for parts folded before; a row that does not
//! fit its table is an error. Leaves to others: storing ([`super::store`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use alloy_primitives::{Address, B256, U256};
use bytes::Bytes;
use logmill_io::Amount;

use super::table::{Column, Fold, Kind, Table};
use crate::error::{Error, Result};

/// Bits of a position that are the index within the block.
const INDEX_BITS: u32 = 24;

/// Where in the chain something is: a block and an index in it, of a log or of a transaction. They sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(i64);

impl Position {
    /// The position; none if a number is too large for any chain that we know.
    pub fn new(block: u64, index: u64) -> Option<Self> {
        let block = i64::try_from(block).ok().filter(|block| *block < 1 << (62 - INDEX_BITS))?;
        let index = i64::try_from(index).ok().filter(|index| *index < 1 << INDEX_BITS)?;
        Some(Self(block << INDEX_BITS | index))
    }

    /// As it is stored.
    pub fn stored(self) -> i64 {
        self.0
    }
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Nothing.
    Null,
    /// Of [`Kind::Int`].
    Int(i64),
    /// Of [`Kind::Text`].
    Text(String),
    /// Of [`Kind::Bytes`].
    Bytes(Bytes),
    /// Of [`Kind::Amount`].
    Amount(Amount),
    /// Of [`Kind::Address`].
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
    // No chain has that many of anything that we count.
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

/// The amount of a number of the chain.
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

/// One row, with the position that `First` and `Last` go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The position of its first values.
    pub(crate) first_at: i64,
    /// The position of its last values.
    pub(crate) last_at: i64,
    /// The values, in the order of the columns.
    pub(crate) cells: Vec<Cell>,
}

impl Row {
    /// The values, in the order of the columns.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

/// Rows of some tables.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    tables: Vec<(&'static Table, Vec<Row>)>,
    block: u64,
}

impl Rows {
    /// No rows, of these tables.
    pub fn new(tables: &[&'static Table]) -> Self {
        Self { tables: tables.iter().map(|table| (*table, Vec::new())).collect(), block: 0 }
    }

    /// The block whose rows come next.
    pub fn at_block(&mut self, number: u64) {
        self.block = number;
    }

    /// Adds a row of the block, at an index in it: of the log or the transaction that it comes from.
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

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.tables.iter().map(|(_, rows)| rows.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of every table.
    pub fn tables(&self) -> impl Iterator<Item = (&'static Table, &[Row])> {
        self.tables.iter().map(|(table, rows)| (*table, rows.as_slice()))
    }

    pub(crate) fn into_tables(self) -> Vec<(&'static Table, Vec<Row>)> {
        self.tables
    }

    /// Adds the rows of another; they come later in the chain or not, it is the same.
    pub fn append(&mut self, other: Self) {
        for (table, rows) in other.tables {
            match self.tables.iter_mut().find(|(known, _)| known.name == table.name) {
                Some((_, mine)) => mine.extend(rows),
                None => self.tables.push((table, rows)),
            }
        }
    }

    /// Makes one row of every key. Insert-once tables are left as they are: a key that stands twice in one is found
    /// when it is stored.
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

/// Makes one row of two of one key.
pub(crate) fn merge(table: &'static Table, into: &mut Row, other: Row) -> Result<()> {
    // Equal positions are of one block, whose rows come in order: the first stays first, the last comes last.
    let (earlier, later) = (other.first_at < into.first_at, other.last_at >= into.last_at);
    for ((column, mine), its) in table.columns.iter().zip(&mut into.cells).zip(other.cells) {
        match column.fold {
            Fold::Key => {}
            Fold::Once => {
                return Err(Error::Misfit { table: table.name, row: "a key twice".to_owned() });
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

/// Nothing is less than something: it says nothing.
fn chosen(mine: &Cell, its: Cell, better: impl Fn(i64, i64) -> bool) -> Cell {
    match (mine, &its) {
        (Cell::Int(a), Cell::Int(b)) if better(*a, *b) => its,
        (Cell::Null, _) => its,
        _ => mine.clone(),
    }
}
