//! A degraded index: what it refuses, what goes on, and the operator's ways out.

use bytes::Bytes;
use finalized_log_index::{
    Cause, Error, Filter, FinalizedBlock, GcMode, LogIndex, Resolution, Stores,
};
use futures::stream::iter;
use logmill_io::{BlobName, KeyRange};

use crate::chain::{block_hash, scan};
use crate::crash_matrix::Ground;
use crate::life::{self, check_answers, write};

async fn reader(stores: &Stores) -> LogIndex {
    LogIndex::open(stores.clone(), life::settings()).await.expect("it opens")
}

async fn blob_of(stores: &Stores, token: u64) -> (BlobName, Bytes) {
    let blobs = stores.blobs.list("", None, 1_000).await.expect("it lists");
    let named = |name: &BlobName| name.as_str().ends_with(&format!("{token:016x}"));
    let blob = blobs.into_iter().find(|blob| named(&blob.name)).expect("it is there");
    let bytes = stores.blobs.get(&blob.name).await.expect("it reads").expect("listed");
    (blob.name, bytes)
}

/// Damages a chunk, or takes it away.
async fn damage(stores: &Stores, token: u64, missing: bool) {
    let (name, bytes) = blob_of(stores, token).await;
    stores.blobs.delete(&name).await.expect("it works");
    if !missing {
        let mut bytes = bytes.to_vec();
        bytes.iter_mut().skip(8).for_each(|byte| *byte ^= 0x55);
        stores.blobs.put(&name, bytes.into()).await.expect("it works");
    }
}

/// What a damaged or missing chunk stops, and how it is healed.
async fn corrupt_and_heal(missing: bool) {
    let ground = Ground::new(1);
    let stores = &ground.stores;
    let blocks = life::blocks();
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let other = reader(stores).await;
    let chunk = writer.index().chunks()[1].clone();
    damage(stores, chunk.token, missing).await;
    let (first, last) = (chunk.blocks.start, chunk.blocks.end - 1);
    for index in [&reader(stores).await, &other, &reader(stores).await] {
        let error = index.query_finalized(&Filter::range(first..=last)).await;
        let error = error.expect_err("its bytes are needed");
        let shown = error.to_string();
        assert!(shown.contains(&format!("blocks {first} to {last}")), "{shown}");
        let expected = matches!(error, Error::ChunkMissing { .. }) == missing;
        assert!(expected, "{error:?}");
    }
    writer.index().query_finalized(&Filter::range(0..=40)).await.expect_err("needed here too");
    writer.index().refresh().await.expect("records are fine");
    // Writes stop, for good.
    let refused = writer.ingest_finalized_blocks(&blocks[50..52]).await;
    assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
    let refused = writer.seal_next().await;
    assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
    let again = reader(stores).await;
    let degraded = again.health().degraded.expect("it is stored");
    assert_eq!(degraded.cause, Cause::Corruption);
    assert!(degraded.reason.contains(&format!("{:016x}", chunk.token)), "{degraded:?}");
    drop(writer);
    let writer = write(stores).await.expect("it can be opened");
    let refused = writer.ingest_finalized_block(blocks[50].clone()).await;
    assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
    // Whoever does not need the chunk is served.
    for filter in [Filter::range(0..=first - 1), Filter::range(last + 1..=49)] {
        let page = again.query_finalized(&filter).await.expect("those bytes are fine");
        assert_eq!(page.logs, scan(&blocks, &filter));
    }
    writer.resolve(Resolution::Discard(chunk.token)).await.expect("it is listed");
    assert_eq!(writer.index().coverage(), [0..first, last + 1..50]);
    let gap = writer.index().query_finalized(&Filter::range(first..=last)).await;
    assert!(matches!(gap, Err(Error::NotCovered { .. })), "{gap:?}");
    let part =
        &blocks[usize::try_from(first).expect("small")..=usize::try_from(last).expect("small")];
    let stream = iter(part.iter().cloned().map(Ok));
    writer.index().build_chunk(first..last + 1, stream).await.expect("it is free");
    writer.ingest_finalized_blocks(&blocks).await.expect("it goes on");
    writer.maintain().await.expect("it works");
    ground.pause();
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
    for index in [writer.index(), &again] {
        index.refresh().await.expect("it can be followed");
        assert_eq!(index.coverage(), [0..56]);
        assert_eq!(index.health().degraded, None);
        check_answers(index, &blocks).await.expect("all is there");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_chunk_stops_writes_and_what_needs_it_until_it_is_built_anew() {
    corrupt_and_heal(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_chunk_stops_writes_and_what_needs_it_until_it_is_built_anew() {
    corrupt_and_heal(true).await;
}

/// The same chain up to a block, another from there on.
fn fork(blocks: &[FinalizedBlock], at: usize) -> Vec<FinalizedBlock> {
    let mut fork = blocks.to_vec();
    for position in at..fork.len() {
        fork[position].hash = block_hash(fork[position].number, "fork");
        if position > at {
            fork[position].parent_hash = fork[position - 1].hash;
        }
        fork[position].logs.reverse();
        let count = fork[position].logs.len();
        for (index, log) in fork[position].logs.iter_mut().enumerate() {
            log.log_index = u32::try_from(index).expect("small");
            log.transaction_index = u32::try_from(index).expect("small");
            log.transaction_hash =
                block_hash(u64::try_from(index + count * 1_000).expect("small"), "tx");
        }
    }
    fork
}

#[tokio::test(start_paused = true)]
async fn a_finality_violation_stops_reads_too_until_an_operator_decides() {
    let ground = Ground::new(2);
    let stores = &ground.stores;
    let blocks = life::blocks();
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..30]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let other = reader(stores).await;
    let replacement = fork(&blocks, 10)[10].clone();
    let violation = writer.ingest_finalized_block(replacement).await;
    assert!(matches!(violation, Err(Error::FinalityViolation { .. })), "{violation:?}");
    other.refresh().await.expect("it can be followed");
    for index in [writer.index(), &other, &reader(stores).await] {
        let health = index.health().degraded.expect("it shows");
        assert_eq!(health.cause, Cause::FinalityViolation);
        assert!(health.reason.contains("block 10 is indexed as"), "{}", health.reason);
        let query = index.query_finalized(&Filter::range(0..=3)).await;
        assert!(matches!(query, Err(Error::Degraded { .. })), "{query:?}");
        assert!(index.indexed_finalized_head().is_err());
        assert!(index.block_by_number(3).await.is_err());
        assert!(index.logs_of_transaction(&block_hash(1, "tx")).await.is_err());
    }
    let refused = writer.ingest_finalized_block(blocks[30].clone()).await;
    assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
    writer.resolve(Resolution::Keep).await.expect("it works");
    writer.ingest_finalized_blocks(&blocks).await.expect("it goes on");
    other.refresh().await.expect("it can be followed");
    for index in [writer.index(), &other] {
        assert_eq!(index.health().degraded, None);
        check_answers(index, &blocks).await.expect("all is there");
    }
}

/// Rebuilds from a block and compares with an index that never knew anything else; gives how many pieces there were.
async fn rebuild(from: usize, sealed: usize, indexed: usize) -> usize {
    let blocks = life::blocks();
    let other = fork(&blocks, from);
    let ground = Ground::new(2);
    let writer = write(&ground.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..sealed]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    writer.ingest_finalized_blocks(&blocks[sealed..indexed]).await.expect("they follow");
    let pieces = writer.index().chunks().iter().filter(|chunk| chunk.is_piece()).count();
    let follower = reader(&ground.stores).await;
    let contradiction = writer.ingest_finalized_blocks(&other[from..]).await;
    assert!(matches!(contradiction, Err(Error::FinalityViolation { .. })), "{contradiction:?}");
    writer.resolve(Resolution::RebuildFrom(from as u64)).await.expect("it works");
    let next = writer.index().health().coverage.last().map_or(0, |range| range.end);
    assert!(next <= from as u64, "{next}");
    let next = usize::try_from(next).expect("small");
    writer.ingest_finalized_blocks(&other[next..]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    ground.pause();
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
    follower.refresh().await.expect("it can be followed");
    check_answers(&follower, &other).await.expect("all is there");
    let plain = Ground::new(3);
    let fresh = write(&plain.stores).await.expect("it opens");
    fresh.ingest_finalized_blocks(&other).await.expect("they follow");
    fresh.maintain().await.expect("it works");
    fresh.collect_garbage(GcMode::Delete).await.expect("it works");
    let image = life::image(&ground.stores, &other).await;
    assert_eq!(image, life::image(&plain.stores, &other).await, "rebuilt from {from}");
    let batches = KeyRange::prefix("logindex/tail/");
    let batches = ground.stores.meta.scan(&batches, 100).await.expect("it scans");
    assert!(batches.len() <= 1, "the records of the old tail are gone: {batches:?}");
    pieces
}

#[tokio::test(start_paused = true)]
async fn what_is_rebuilt_is_what_it_would_have_been() {
    // Within the tail, at its first block, within pieces, at the start of a chunk, and all of it.
    let mut pieces = 0;
    for from in [46, 45, 43, 41, 39, 37, 35, 33, 32, 20, 16, 1, 0] {
        for (sealed, indexed) in [(31, 50), (46, 50), (47, 47), (44, 54)] {
            pieces = pieces.max(rebuild(from, sealed, indexed).await);
        }
    }
    assert!(pieces > 1, "there were {pieces} pieces that waited to be merged");
}
