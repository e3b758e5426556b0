//! An exact, verified index of finalized EVM logs.
//!
//! Final blocks are added in order. Their logs are found by address, topics, block and transaction: everything
//! `eth_getLogs` can ask, faster than a node answers it, and never with a partial answer. The index needs two small
//! store traits of [`logmill_io`]: records with compare-and-swap, and immutable blobs.
//!
//! ```
//! # use std::sync::Arc;
//! # use logmill_io::{OsEntropy, SystemClock, blob::MemoryBlobs, meta::MemoryMeta};
//! use finalized_log_index::{B256, Filter, FinalizedBlock, LogIndex, Settings, Stores};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
//! let stores = Stores {
//!     meta: MemoryMeta::shared(Arc::clone(&clock), Arc::clone(&entropy)),
//!     blobs: MemoryBlobs::shared(),
//!     clock,
//!     entropy,
//! };
//! let index = LogIndex::open(stores, Settings::default()).await?;
//! let writer = index.writer("this process").await?;
//! let block = FinalizedBlock { number: 7, hash: B256::repeat_byte(7), ..Default::default() };
//! writer.ingest_finalized_block(block).await?;
//!
//! assert_eq!(index.indexed_finalized_head()?, Some(7));
//! assert!(index.query_finalized(&Filter::range(7..=7)).await?.logs.is_empty());
//! assert!(index.query_finalized(&Filter::range(7..=8)).await.is_err(), "block 8 is not known");
//! # Ok::<(), finalized_log_index::Error>(())
//! # }).unwrap();
//! ```
//!
//! # How it works
//!
//! Logs are packed in pages of up to 128, in columns. Pages of consecutive blocks form a chunk: an immutable blob
//! with its own term index. New blocks stay in the tail until they are sealed; any number of workers build history,
//! in any order. A block counts as covered if parent hashes link it to an anchor.
//!
//! # Guarantees
//!
//! - A query returns what a scan of all logs would return, or fails. A block that is not covered is an error, never
//!   an empty answer.
//! - When the call that adds a block returns, the block is indexed and survives a crash.
//! - Readers never wait for writers, and each query sees one snapshot.
//! - A writer that lost its lease cannot publish anything.
//! - Damaged bytes are detected before they are used, and the error names them.
//!
//! Leaves to others: which blocks are final, blocks that are not, and JSON-RPC.

#![warn(missing_docs)]

mod bodies;
mod body_keys;
mod body_lookup;
mod body_upload;
mod chunk;
mod chunk_list;
mod codec;
mod damage;
mod damage_notes;
mod error;
mod filter;
mod follow;
mod gc;
mod health;
mod history;
mod index;
mod lookup;
mod metric;
mod page;
mod pressure;
mod publish;
mod query;
mod reader;
mod recheck;
mod records;
mod replace;
mod rewrite;
#[cfg(test)]
mod samples;
mod seal;
mod section;
mod settings;
mod state;
mod tail;
mod term;
mod terms;
mod types;
mod validation;
mod words;
pub mod workload;
mod writer;

pub use alloy_primitives::{Address, B256, Bytes};
pub use damage_notes::DamageLocation;
pub use error::{Error, Result};
pub use filter::{Blocks, Filter};
pub use gc::{GcMode, GcReport};
pub use health::{HealthReport, RebuildPlan, Resolution};
pub use index::LogIndex;
pub use query::{ExplainedClause, ExplainedSource, Explanation, LogPage, Strategy};
pub use recheck::Recheck;
pub use records::chunks::{BodiesRef, ChunkEntry};
pub use records::degraded::{Cause, DamagedBlocks, Degradation};
pub use records::replacement::{Replacement, ReplacementKind, ReplacementPosition};
pub use rewrite::{Origin, RewriteOutcome, RewrittenBlock, TAIL_REWRITE_BLOCKS_MAX};
pub use seal::MaintenanceSummary;
pub use settings::{BroadPolicy, Guardrails, Settings};
pub use state::Stores;
pub use term::{Fingerprint, Kind};
pub use types::{
    BLOCK_BODY_BYTES_MAX, BLOCK_DATA_BYTES_MAX, BLOCK_LOGS_MAX, BLOCK_TRANSACTIONS_MAX, BlockInfo,
    BlockLog, BlockRange, Body, FinalizedBlock, Log, TOPICS_MAX, Topics,
};
pub use writer::{IngestOutcome, Writer};
