//! An exact, verified index of finalized EVM logs.
//!
//! Blocks that are final go in, in order, and are found again by address, topics, block and transaction: everything
//! that `eth_getLogs` can ask, faster than a node answers it, with the certainty that an answer is whole. The index
//! stands on two small store traits of [`logmill_io`]: records that can be compared and swapped, and immutable blobs.
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
//! Logs are packed in pages of up to 128, in columns. Pages of consecutive blocks make a chunk, an immutable blob with
//! a term index of its own. New blocks live in the tail until they are sealed; history is built by any number of
//! workers, in any order. What counts as covered is what parent hashes link to an anchor.
//!
//! # Guarantees
//!
//! - A query answers what a scan of all logs would, or fails; a block that is not covered is an error, not an
//!   empty answer.
//! - A block is indexed when the call that adds it has returned, and survives a crash from then on.
//! - Readers wait for nobody and see one moment in time.
//! - A writer that was replaced can publish nothing.
//! - Damage is found before it is used, and named.
//!
//! Leaves to others: which blocks are final, what is above them, and JSON-RPC.

mod bodies;
mod chunk;
mod chunk_list;
mod codec;
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
mod publish;
mod query;
mod reader;
mod records;
mod replace;
mod rewrite;
#[cfg(test)]
mod samples;
mod seal;
mod section;
mod settings;
mod tail;
mod term;
mod terms;
mod types;
mod words;
pub mod workload;
mod writer;

pub use alloy_primitives::{Address, B256, Bytes};
pub use error::{Error, Result};
pub use filter::{Blocks, Filter};
pub use gc::{GcMode, GcReport};
pub use health::{HealthReport, RebuildPlan, Resolution};
pub use index::{LogIndex, Stores};
pub use query::{ExplainedClause, ExplainedSource, Explanation, LogPage, Strategy};
pub use records::chunks::{BodiesRef, ChunkEntry};
pub use records::degraded::{Cause, Degraded};
pub use records::replacement::{Replacement, ReplacementKind};
pub use rewrite::{Origin, Rewritten, RewrittenBlock, TAIL_REWRITE_BLOCKS_MAX};
pub use seal::Maintained;
pub use settings::{BroadPolicy, Guardrails, Settings};
pub use term::{Fingerprint, Kind};
pub use types::{
    BLOCK_BODY_BYTES_MAX, BLOCK_DATA_BYTES_MAX, BLOCK_LOGS_MAX, BLOCK_TRANSACTIONS_MAX, BlockInfo,
    BlockLog, BlockRange, Body, FinalizedBlock, Log, TOPICS_MAX, Topics,
};
pub use writer::{IngestOutcome, Writer};
