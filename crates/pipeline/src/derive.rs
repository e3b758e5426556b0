//! Derived tables: pure functions from blocks to rows, and folds.
//!
//! | module | what |
//! |---|---|
//! | [`table`] | declaration of the tables that a processor writes, with the fold of every column |
//! | [`rows`] | rows before they are stored, and folding in memory |
//! | `processor` | the contract of a processor |
//! | [`decoded`] | a block decoded once, for all processors |
//! | `generation` | a generation of a processor's tables |
//! | [`store`] | tables in a database: rows and coverage in one transaction |
//! | [`deriver`] | live and history derivers that drive the above |
//! | [`rederive`] | rebuilding a processor's tables, as a job |
//! | `read` | queries over final rows and tip rows combined |
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
mod generation;
mod intern;
mod processor;
mod read;
pub mod rederive;
pub mod rows;
mod schema;
mod select;
pub mod store;
pub mod table;
mod views;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use logmill_work::LeaseSettings;

use decoded::TokenSettings;

pub use decoded::{BlockParts, DecodedBlock};
pub use deriver::Deriver;
pub(crate) use generation::GenerationState;
pub use generation::{Generation, TipBlocks};
pub use processor::{Phase, Processor};
pub use read::{GenerationProgress, ProcessorCoverage, Reader};
pub use rows::{Cell, Rows};
pub use select::Select;
pub use store::{RangeRows, Tables, TipChange};
pub use table::{Column, Fold, Kind, Table};

#[derive(Clone, Debug)]
pub struct DeriveSettings {
    /// `ENABLE_LIVE_DERIVERS`.
    pub live: bool,
    /// `LIVE_DERIVERS_CHUNK`: blocks per transaction near the head.
    pub live_chunk: u64,
    /// `LIVE_DERIVERS_HEAD_BACKFILL_BLOCKS`: final blocks below the head that are derived first.
    pub head_backfill: u64,
    /// `ENABLE_HISTORY_DERIVERS`.
    pub history: bool,
    /// `HISTORY_DERIVERS_CHUNK`: blocks per transaction in history.
    pub history_chunk: u64,
    /// `HISTORY_DERIVERS_SLEEP_MS`: pause after every chunk of history.
    pub history_sleep: Duration,
    /// Approximate bound on the rows of one transaction, whatever the number of blocks.
    pub rows_max: usize,
    /// Interval of the poll that finds work without a notification.
    pub poll: Duration,
    /// Delay before a retry after an error.
    pub error_wait: Duration,
    /// How token transfers are decoded; the processors must be constructed with the same settings.
    pub tokens: Arc<TokenSettings>,
    pub lease: LeaseSettings,
    /// Folder of the database, if it is a file: a second copy of the tables is built only if the disk has room for it.
    pub database_folder: Option<Arc<Path>>,
    /// Bytes of disk space that a second copy of the tables must leave free.
    pub disk_reserve_bytes: u64,
}

impl Default for DeriveSettings {
    fn default() -> Self {
        Self {
            live: true,
            live_chunk: 10,
            head_backfill: 100,
            history: true,
            history_chunk: 1_000,
            history_sleep: Duration::ZERO,
            rows_max: 200_000,
            poll: Duration::from_secs(1),
            error_wait: Duration::from_secs(1),
            tokens: Arc::default(),
            lease: LeaseSettings::default(),
            database_folder: None,
            disk_reserve_bytes: 256 << 20,
        }
    }
}
