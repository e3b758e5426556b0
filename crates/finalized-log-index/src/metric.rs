//! The metrics of the index, by name, in one place.
//!
//! | name | kind | what |
//! |---|---|---|
//! | `log_index_ingest_seconds` | histogram | one commit of blocks, from the call to durable |
//! | `log_index_ingested_blocks_total`, `…_logs_total` | counter | what was committed |
//! | `log_index_query_seconds` | histogram | one query |
//! | `log_index_candidates` | histogram | ids left after each clause, label `clause` |
//! | `log_index_chunks_sealed_total`, `log_index_chunk_bytes` | counter, histogram | chunks and pieces written |
//! | `log_index_tail_logs`, `log_index_tail_lag_blocks` | gauge | what waits to be sealed |
//! | `log_index_cas_retries_total` | counter | publications that lost a race and were tried again |
//! | `log_index_lease_losses_total` | counter | |
//! | `log_index_gc_orphan_bytes`, `…_orphan_chunks`, `…_stale_changes`, `…_stale_tail_records` | gauge | backlog |
//! | `log_index_cache_hits_total`, `log_index_cache_misses_total` | counter | |
//! | `log_index_blob_reads_total`, `log_index_blob_read_bytes_total` | counter | |
//!
//! Guarantees: names and labels are bounded. Leaves to others: a recorder, and how it is shown.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

pub(crate) fn ingested(blocks: u64, logs: u64, took: Duration) {
    histogram!("log_index_ingest_seconds").record(took);
    counter!("log_index_ingested_blocks_total").increment(blocks);
    counter!("log_index_ingested_logs_total").increment(logs);
}

pub(crate) fn queried(took: Duration) {
    histogram!("log_index_query_seconds").record(took);
}

#[expect(clippy::cast_precision_loss, reason = "a histogram takes floats; 2^52 ids are enough")]
pub(crate) fn candidates(clause: &'static str, count: u64) {
    histogram!("log_index_candidates", "clause" => clause).record(count as f64);
}

#[expect(clippy::cast_precision_loss, reason = "a histogram takes floats; 2^52 bytes are enough")]
pub(crate) fn chunk_written(bytes: u64) {
    counter!("log_index_chunks_sealed_total").increment(1);
    histogram!("log_index_chunk_bytes").record(bytes as f64);
}

#[expect(clippy::cast_precision_loss, reason = "a gauge takes floats; 2^52 is enough")]
pub(crate) fn tail(logs: u64, blocks: u64) {
    gauge!("log_index_tail_logs").set(logs as f64);
    gauge!("log_index_tail_lag_blocks").set(blocks as f64);
}

pub(crate) fn cas_retried() {
    counter!("log_index_cas_retries_total").increment(1);
}

pub(crate) fn replaced(blocks: u64) {
    counter!("log_index_replacements_total").increment(1);
    counter!("log_index_replaced_blocks_total").increment(blocks);
}

pub(crate) fn lease_lost() {
    counter!("log_index_lease_losses_total").increment(1);
}

#[expect(clippy::cast_precision_loss, reason = "a gauge takes floats; 2^52 is enough")]
pub(crate) fn backlog(bytes: u64, chunks: u64, changes: u64, tail_records: u64) {
    gauge!("log_index_gc_orphan_bytes").set(bytes as f64);
    gauge!("log_index_gc_orphan_chunks").set(chunks as f64);
    gauge!("log_index_gc_stale_changes").set(changes as f64);
    gauge!("log_index_gc_stale_tail_records").set(tail_records as f64);
}

pub(crate) fn cache_looked_up(hit: bool) {
    if hit {
        counter!("log_index_cache_hits_total").increment(1);
    } else {
        counter!("log_index_cache_misses_total").increment(1);
    }
}

pub(crate) fn blob_read(bytes: u64) {
    counter!("log_index_blob_reads_total").increment(1);
    counter!("log_index_blob_read_bytes_total").increment(bytes);
}
