//! Derived tables: pure functions from blocks to rows, and folds.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | what a processor writes, declared, with the fold of every column |
//! | [`rows`] | rows on their way to tables, and the folds in memory |
//! | [`processor`] | the contract of a processor |
//! | [`decoded`] | a block read once, for all processors |
//!
//! Guarantees: every block counts once in every table, in whatever order and however often it comes. Leaves to others:
//! which processors there are ([`crate::processors`]), reading over HTTP.

pub mod decoded;
pub mod processor;
pub mod rows;
#[cfg(test)]
pub(crate) mod scene;
pub mod table;

pub use decoded::DecodedBlock;
pub use processor::{Phase, Processor};
pub use rows::{Cell, Position, Rows};
pub use table::{Column, Fold, Kind, Table};
