//! Derived tables: pure functions from blocks to rows, and folds.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | declaration of the tables that a processor writes, with the fold of every column |
//! | [`rows`] | rows before they are stored, and folding in memory |
//! | [`processor`] | the contract of a processor |
//! | [`decoded`] | a block decoded once, for all processors |
//! | [`mod@generation`] | a generation of a processor's tables |
//! | [`store`] | tables in a database: rows and coverage in one transaction |
//! | [`deriver`] | live and history derivers that drive the above |
//! | [`rederive`] | rebuilding a processor's tables, as a job |
//! | [`read`] | queries over final rows and tip rows combined |
//!
//! Guarantees: every block counts once in every table, regardless of order and repetition. Leaves to others:
//! which processors exist ([`crate::processors`]), reading over HTTP.

mod backlog;
#[cfg(test)]
pub(crate) mod block_builder;
mod chunk;
pub mod decoded;
#[cfg(test)]
pub(crate) mod decoded_block_builder;
pub mod deriver;
pub mod generation;
mod intern;
pub mod processor;
pub mod read;
pub mod rederive;
pub mod rows;
mod schema;
pub mod store;
pub mod table;
mod views;

pub use decoded::DecodedBlock;
pub use deriver::{DeriveSettings, Deriver};
pub use generation::{Generation, GenerationState, TipBlocks};
pub use processor::{BlockParts, Phase, Processor};
pub use read::{GenerationProgress, ProcessorCoverage, Reader, Select};
pub use rows::{Cell, Position, Rows};
pub use store::{RangeRows, Tables, TipChange};
pub use table::{Column, Fold, Kind, Table};
