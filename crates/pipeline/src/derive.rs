//! Derived tables: pure functions from blocks to rows, and folds.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | what a processor writes, declared, with the fold of every column |
//! | [`rows`] | rows on their way to tables, and the folds in memory |
//! | [`processor`] | the contract of a processor |
//! | [`decoded`] | a block read once, for all processors |
//! | [`mod@line`] | a generation of a processor's tables |
//! | [`store`] | tables in a database: rows and coverage in one transaction |
//! | [`deriver`] | live and history derivers over all of it |
//! | [`rederive`] | to derive anew, as a job |
//! | [`read`] | final rows and those of the tip as one |
//!
//! Guarantees: every block counts once in every table, in whatever order and however often it comes. Leaves to others:
//! which processors there are ([`crate::processors`]), reading over HTTP.

mod board;
mod chunk;
pub mod decoded;
pub mod deriver;
mod intern;
pub mod line;
pub mod processor;
pub mod read;
pub mod rederive;
pub mod rows;
#[cfg(test)]
pub(crate) mod scene;
mod schema;
#[cfg(test)]
pub(crate) mod staged;
pub mod store;
pub mod table;

pub use decoded::DecodedBlock;
pub use deriver::{DeriveSettings, Deriver};
pub use line::{Line, LineState, TipBlocks};
pub use processor::{Phase, Processor, Reads};
pub use read::{Covered, Reader, Select, Standing};
pub use rows::{Cell, Position, Rows};
pub use store::{Part, Tables, TipPart};
pub use table::{Column, Fold, Kind, Table};
