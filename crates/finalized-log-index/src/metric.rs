//! Names and labels of all metrics of the index.
//!
//! | name | kind | meaning |
//! |---|---|---|
//! | `log_index_ingest_seconds` | histogram | one commit of blocks, from the call until durable |
//! | `log_index_ingested_blocks_total`, `…_logs_total` | counter | committed blocks and logs |
//! | `log_index_query_seconds` | histogram | one query |
//! | `log_index_candidates` | histogram | ids left after each clause, label `clause` |
//! | `log_index_chunks_sealed_total`, `log_index_chunk_bytes` | counter, histogram | chunks and pieces written |
//! | `log_index_tail_logs`, `log_index_tail_blocks` | gauge | size of the tail |
//! | `log_index_tail_lag_blocks` | gauge | blocks of the tail that could be sealed but are not; 0 when caught up |
//! | `log_index_cas_retries_total` | counter | publications that lost a race and were retried |
//! | `log_index_lease_losses_total` | counter | |
//! | `log_index_gc_orphan_bytes`, `…_orphan_chunks`, `…_stale_changes`, `…_stale_tail_records` | gauge | backlog |
//! | `log_index_cache_hits_total`, `log_index_cache_misses_total` | counter | |
//! | `log_index_blob_reads_total`, `log_index_blob_read_bytes_total` | counter | |
//!
//! Each has the label `chain` ([`crate::Settings::chain`]), which tells the indexes of a process apart.
//!
//! Guarantees: the set of names and labels is bounded. Leaves to others: the recorder and its output.

use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, gauge, histogram};

/// The metrics of one index.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    chain: Arc<str>,
}

impl Metrics {
    pub(crate) fn new(chain: &str) -> Self {
        Self { chain: chain.into() }
    }

    fn count(&self, name: &'static str, by: u64) {
        counter!(name, "chain" => Arc::clone(&self.chain)).increment(by);
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge takes floats; 2^52 is enough")]
    fn set(&self, name: &'static str, value: u64) {
        gauge!(name, "chain" => Arc::clone(&self.chain)).set(value as f64);
    }

    pub(crate) fn ingested(&self, blocks: u64, logs: u64, took: Duration) {
        histogram!("log_index_ingest_seconds", "chain" => Arc::clone(&self.chain)).record(took);
        self.count("log_index_ingested_blocks_total", blocks);
        self.count("log_index_ingested_logs_total", logs);
    }

    pub(crate) fn queried(&self, took: Duration) {
        histogram!("log_index_query_seconds", "chain" => Arc::clone(&self.chain)).record(took);
    }

    #[expect(clippy::cast_precision_loss, reason = "a histogram takes floats; 2^52 ids are enough")]
    pub(crate) fn candidates(&self, clause: &'static str, count: u64) {
        let chain = Arc::clone(&self.chain);
        histogram!("log_index_candidates", "chain" => chain, "clause" => clause)
            .record(count as f64);
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a histogram takes floats; 2^52 bytes are enough"
    )]
    pub(crate) fn chunk_written(&self, bytes: u64) {
        self.count("log_index_chunks_sealed_total", 1);
        histogram!("log_index_chunk_bytes", "chain" => Arc::clone(&self.chain))
            .record(bytes as f64);
    }

    pub(crate) fn tail(&self, logs: u64, blocks: u64, sealable: u64) {
        self.set("log_index_tail_logs", logs);
        self.set("log_index_tail_blocks", blocks);
        self.set("log_index_tail_lag_blocks", sealable);
    }

    pub(crate) fn cas_retried(&self) {
        self.count("log_index_cas_retries_total", 1);
    }

    pub(crate) fn replaced(&self, blocks: u64) {
        self.count("log_index_replacements_total", 1);
        self.count("log_index_replaced_blocks_total", blocks);
    }

    pub(crate) fn lease_lost(&self) {
        self.count("log_index_lease_losses_total", 1);
    }

    pub(crate) fn backlog(&self, bytes: u64, chunks: u64, changes: u64, tail_records: u64) {
        self.set("log_index_gc_orphan_bytes", bytes);
        self.set("log_index_gc_orphan_chunks", chunks);
        self.set("log_index_gc_stale_changes", changes);
        self.set("log_index_gc_stale_tail_records", tail_records);
    }

    pub(crate) fn cache_looked_up(&self, hit: bool) {
        match hit {
            true => self.count("log_index_cache_hits_total", 1),
            false => self.count("log_index_cache_misses_total", 1),
        }
    }

    pub(crate) fn blob_read(&self, bytes: u64) {
        self.count("log_index_blob_reads_total", 1);
        self.count("log_index_blob_read_bytes_total", bytes);
    }
}
