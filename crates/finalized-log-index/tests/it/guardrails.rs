//! Garbage is counted; too much of it throttles ingest, and if it keeps growing, ingest stops.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use finalized_log_index::{
    Cause, Error, GcMode, Guardrails, LogIndex, Resolution, Settings, Writer,
};
use futures::stream::iter;
use logmill_io::{BlobName, BlobStore, Clock};

use crate::chain::{Skew, chain};
use crate::fixture::{MemoryStores, small};

async fn orphan(blobs: &Arc<dyn BlobStore>, number: u64) {
    let name = format!("logindex/chunks/{number:016x}-{number:016x}-{number:016x}");
    let name = BlobName::new(name).expect("a name");
    blobs.put(&name, Bytes::from(vec![7; 1_000])).await.expect("it works");
}

async fn ingest_takes(writer: &Writer, clock: &Arc<dyn Clock>, number: u64) -> Duration {
    let started = clock.monotonic();
    let block = chain(1, Skew::Even, 0, number + 1).pop().expect("one");
    writer.ingest_finalized_block(block).await.expect("it follows");
    clock.monotonic() - started
}

#[test]
fn the_defaults_match_the_specification() {
    let defaults = Settings::default();
    assert_eq!(defaults.guardrails.max_orphan_chunk_bytes, 32 << 30);
    assert_eq!(defaults.guardrails.max_orphan_manifest_segments, 500_000);
    assert_eq!(defaults.guardrails.max_stale_tail_keys, 1_000_000);
    assert_eq!(defaults.max_or_terms, 128);
}

#[tokio::test(start_paused = true)]
async fn garbage_first_slows_ingest_and_then_stops_it() {
    let mut fixture = MemoryStores::new(5);
    let throttle = Duration::from_secs(3);
    let guardrails =
        Guardrails { max_orphan_chunk_bytes: 1_500, throttle, ..Guardrails::default() };
    fixture.settings = Settings { guardrails, ..small() };
    let (blobs, clock) = (&fixture.stores.blobs, &fixture.stores.clock);
    let writer = fixture.write().await;
    orphan(blobs, 1).await;
    writer.collect_garbage(GcMode::DryRun).await.expect("below the limit");
    assert!(ingest_takes(&writer, clock, 0).await < throttle);
    orphan(blobs, 2).await;
    let report = writer.collect_garbage(GcMode::DryRun).await.expect("it only slows down");
    assert_eq!((report.orphan_chunks.len(), report.orphan_chunk_bytes), (2, 2_000));
    assert!(!report.deleted);
    assert!(ingest_takes(&writer, clock, 1).await >= throttle, "slowed down");
    orphan(blobs, 3).await;
    let error = writer.collect_garbage(GcMode::DryRun).await.expect_err("it still grows");
    assert!(matches!(error, Error::Degraded { .. }), "{error}");
    let degraded = writer.index().health().degraded.expect("health says so");
    assert_eq!(degraded.cause, Cause::Backlog);
    let block = chain(1, Skew::Even, 0, 3).pop().expect("one");
    let error = writer.ingest_finalized_block(block).await.expect_err("stopped");
    assert!(matches!(error, Error::Degraded { .. }), "{error}");
    assert_eq!(writer.index().indexed_finalized_head().expect("reads go on"), Some(1));
    let report = writer.collect_garbage(GcMode::Delete).await.expect("it works");
    assert!(report.deleted && report.orphan_chunks.len() == 3);
    writer.resolve(Resolution::Keep).await.expect("it works");
    assert!(ingest_takes(&writer, clock, 2).await < throttle, "as fast as before");
}

#[tokio::test(start_paused = true)]
async fn ingest_seals_by_itself_when_the_tail_is_too_long() {
    let fixture = MemoryStores::new(7);
    let writer = fixture.write().await;
    let blocks = chain(1, Skew::Hot, 0, 400);
    // Four pieces, what follows the last complete one, and the block that came last.
    let largest = blocks.iter().map(|block| block.logs.len() as u64).max().expect("blocks");
    let logs_max = 5 * u64::from(fixture.settings.piece_logs) + largest;
    let mut logs = 0;
    for block in &blocks {
        writer.ingest_finalized_block(block.clone()).await.expect("it follows");
        logs += block.logs.len() as u64;
        let sealed: u64 = writer.index().chunks().iter().map(|chunk| u64::from(chunk.logs)).sum();
        assert!(logs - sealed <= logs_max, "{} logs at block {}", logs - sealed, block.number);
    }
    assert!(logs > 2 * logs_max, "there were more: {logs}");
}

#[tokio::test(start_paused = true)]
async fn stale_records_of_a_discarded_tail_are_counted_and_deleted() {
    let fixture = MemoryStores::new(6);
    let writer = fixture.write().await;
    for block in chain(1, Skew::Sparse, 0, 5) {
        writer.ingest_finalized_block(block).await.expect("it follows");
    }
    writer.resolve(Resolution::RebuildFrom(0)).await.expect("it works");
    let report = writer.collect_garbage(GcMode::DryRun).await.expect("it works");
    // Each block has a batch and a body.
    assert_eq!(report.stale_tail_records, 10);
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
    let report = writer.collect_garbage(GcMode::DryRun).await.expect("it works");
    assert_eq!(report.stale_tail_records, 0);
}

/// More changes than fit between checkpoints: a reader far behind starts from a checkpoint, and old changes can be
/// deleted.
#[tokio::test(start_paused = true)]
async fn a_reader_follows_over_checkpoints_and_without_old_changes() {
    let mut fixture = MemoryStores::new(8);
    let first = chain(1, Skew::Sparse, 0, 1).pop().expect("one");
    fixture.settings.anchors = vec![(0, first.hash)];
    let early: LogIndex = fixture.open().await;
    let writer = fixture.write().await;
    let blocks = chain(1, Skew::Sparse, 0, 2_300);
    for block in &blocks[..2_200] {
        let range = block.number..block.number + 1;
        let one = iter([Ok(block.clone())]);
        writer.index().build_chunk(range, one).await.expect("it is free");
    }
    let report = writer.collect_garbage(GcMode::Delete).await.expect("it works");
    assert!(report.stale_changes >= 1_000, "{report:?}");
    let whole = 0..2_200;
    early.refresh().await.expect("it starts from a checkpoint");
    assert_eq!(early.coverage(), std::slice::from_ref(&whole));
    assert_eq!(fixture.open().await.coverage(), std::slice::from_ref(&whole));
}
