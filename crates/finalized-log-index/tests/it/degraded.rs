//! A degraded index: which operations it refuses, which continue, and how an operator resolves it.

use bytes::Bytes;
use finalized_log_index::{
    Cause, ChunkEntry, Error, Filter, FinalizedBlock, GcMode, LogIndex, Origin, Resolution,
    RewrittenBlock, Stores, Writer,
};
use futures::stream::iter;
use logmill_io::{BlobName, KeyRange};

use crate::chain::{block_hash, scan};
use crate::fixture::MemoryStores;
use crate::life::{self, check_answers, write};

pub(crate) async fn reader(stores: &Stores) -> LogIndex {
    LogIndex::open(stores.clone(), life::settings()).await.expect("it opens")
}

async fn blob_of(stores: &Stores, token: u64, is_bodies: bool) -> (BlobName, Bytes) {
    let blobs = stores.blobs.list("", None, 1_000).await.expect("it lists");
    let named = |name: &BlobName| {
        let is_of = name.as_str().ends_with(&format!("{token:016x}"));
        is_of && name.as_str().contains("bodies") == is_bodies
    };
    let blob = blobs.into_iter().find(|blob| named(&blob.name)).expect("it is there");
    let bytes = stores.blobs.get(&blob.name).await.expect("it reads").expect("listed");
    (blob.name, bytes)
}

/// Damages a chunk, or takes it away.
pub(crate) async fn damage(stores: &Stores, token: u64, missing: bool) {
    let blob = blob_of(stores, token, false).await;
    damage_blob(stores, blob, missing).await;
}

/// Damages the bodies that an attempt has written.
pub(crate) async fn damage_bodies(stores: &Stores, token: u64) {
    let blob = blob_of(stores, token, true).await;
    damage_blob(stores, blob, false).await;
}

async fn damage_blob(stores: &Stores, (name, bytes): (BlobName, Bytes), missing: bool) {
    stores.blobs.delete(&name).await.expect("it works");
    if !missing {
        let mut bytes = bytes.to_vec();
        bytes.iter_mut().skip(8).for_each(|byte| *byte ^= 0x55);
        stores.blobs.put(&name, bytes.into()).await.expect("it works");
    }
}

/// Checks what a damaged or missing chunk stops, and how it is repaired.
async fn corrupt_and_heal(missing: bool) {
    let memory = MemoryStores::new(1);
    let stores = &memory.stores;
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
    // Writes stop permanently.
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
    // Queries that do not need the chunk are served.
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
    memory.pause();
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
    for index in [writer.index(), &again] {
        index.refresh().await.expect("it can be followed");
        assert_eq!(index.coverage(), [0..56]);
        assert_eq!(index.health().degraded, None);
        check_answers(index, &blocks).await.expect("all is there");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_chunk_stops_writes_and_queries_of_it_until_it_is_rebuilt() {
    corrupt_and_heal(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_chunk_stops_writes_and_queries_of_it_until_it_is_rebuilt() {
    corrupt_and_heal(true).await;
}

#[tokio::test(start_paused = true)]
async fn pruning_damaged_blocks_ends_the_degradation_that_they_caused() {
    let memory = MemoryStores::new(1);
    let (stores, blocks) = (&memory.stores, life::blocks());
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let chunks = writer.index().chunks();
    let [low, high] = [chunks[0].clone(), chunks[1].clone()];
    for chunk in [&low, &high] {
        damage(stores, chunk.token, false).await;
    }
    drop(writer);
    let writer = write(stores).await.expect("it opens");
    for chunk in [&low, &high] {
        let start = chunk.blocks.start;
        writer.index().query_finalized(&Filter::range(start..=start)).await.expect_err("damaged");
        let refused = writer.ingest_finalized_block(blocks[50].clone()).await;
        assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
    }
    let damaged = |index: &LogIndex| -> Vec<_> {
        let degraded = index.health().degraded;
        degraded.into_iter().flat_map(|one| one.damaged).map(|one| one.blocks).collect()
    };
    assert_eq!(damaged(writer.index()), [low.blocks.clone(), high.blocks.clone()]);
    writer.prune_below(low.blocks.end).await.expect("it works");
    for index in [writer.index(), &reader(stores).await] {
        assert_eq!(
            damaged(index),
            std::slice::from_ref(&high.blocks),
            "the other damage is still there"
        );
    }
    writer.prune_below(high.blocks.end).await.expect("it works");
    writer.ingest_finalized_block(blocks[50].clone()).await.expect("writes go on");
    assert_eq!(reader(stores).await.health().degraded, None);
}

/// The same chain up to a block, and a different one from there on.
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
    let memory = MemoryStores::new(2);
    let stores = &memory.stores;
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

/// Rebuilds from a block and compares with an index that only ever had the final chain; returns how many pieces there
/// were.
async fn rebuild(from: usize, sealed: usize, indexed: usize) -> usize {
    let blocks = life::blocks();
    let other = fork(&blocks, from);
    let memory = MemoryStores::new(2);
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..sealed]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    writer.ingest_finalized_blocks(&blocks[sealed..indexed]).await.expect("they follow");
    let pieces = writer.index().chunks().iter().filter(|chunk| chunk.is_piece()).count();
    let follower = reader(&memory.stores).await;
    let contradiction = writer.ingest_finalized_blocks(&other[from..]).await;
    assert!(matches!(contradiction, Err(Error::FinalityViolation { .. })), "{contradiction:?}");
    writer.resolve(Resolution::RebuildFrom(from as u64)).await.expect("it works");
    let next = writer.index().health().coverage.last().map_or(0, |range| range.end);
    assert!(next <= from as u64, "{next}");
    let next = usize::try_from(next).expect("small");
    writer.ingest_finalized_blocks(&other[next..]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    memory.pause();
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
    follower.refresh().await.expect("it can be followed");
    check_answers(&follower, &other).await.expect("all is there");
    let plain = MemoryStores::new(3);
    let fresh = write(&plain.stores).await.expect("it opens");
    fresh.ingest_finalized_blocks(&other).await.expect("they follow");
    fresh.maintain().await.expect("it works");
    fresh.collect_garbage(GcMode::Delete).await.expect("it works");
    let image = life::image(&memory.stores, &other).await;
    assert_eq!(image, life::image(&plain.stores, &other).await, "rebuilt from {from}");
    let batches = KeyRange::prefix("logindex/tail/");
    let batches = memory.stores.meta.scan(&batches, 100).await.expect("it scans");
    assert!(batches.len() <= 1, "the records of the old tail are gone: {batches:?}");
    pieces
}

#[tokio::test(start_paused = true)]
async fn a_rebuilt_index_equals_one_built_from_scratch() {
    // Within the tail, at its first block, within pieces, at the start of a chunk, and from the first block.
    let mut pieces = 0;
    for from in [46, 45, 43, 41, 39, 37, 35, 33, 32, 20, 16, 1, 0] {
        for (sealed, indexed) in [(31, 50), (46, 50), (47, 47), (44, 54)] {
            pieces = pieces.max(rebuild(from, sealed, indexed).await);
        }
    }
    assert!(pieces > 1, "there were {pieces} pieces that waited to be merged");
}

/// Writes a chunk again as it was.
pub(crate) async fn rewrite(writer: &Writer, chunk: &ChunkEntry, blocks: &[FinalizedBlock]) {
    let part = chunk.blocks.clone().map(|number| {
        let block = blocks[usize::try_from(number).expect("small")].clone();
        Ok(RewrittenBlock { block, origin: Origin::Fetched })
    });
    let rewritten = writer.rewrite_chunk(chunk.token, iter(part), "a test", true).await;
    rewritten.expect("it is what was published");
}

#[tokio::test(start_paused = true)]
async fn repairing_one_chunk_does_not_hide_damage_of_another() {
    // The damage is found by a reader before the first chunk is repaired, or reported by an audit.
    for reported in [false, true] {
        let memory = MemoryStores::new(1);
        let stores = &memory.stores;
        let blocks = life::blocks();
        let writer = write(stores).await.expect("it opens");
        writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
        writer.maintain().await.expect("it works");
        let chunks = writer.index().chunks();
        let (first, second) = (chunks[0].clone(), chunks[1].clone());
        for chunk in [&first, &second] {
            damage(stores, chunk.token, false).await;
            if reported {
                let what = format!("chunk {:016x}", chunk.token);
                writer.report_damage(chunk.blocks.clone(), what).await.expect("it is stored");
            } else {
                let filter = Filter::range(chunk.blocks.start..=chunk.blocks.start);
                reader(stores).await.query_finalized(&filter).await.expect_err("damaged");
                writer.index().query_finalized(&filter).await.expect_err("damaged");
            }
        }
        rewrite(&writer, &first, &blocks).await;
        let refused = writer.ingest_finalized_block(blocks[50].clone()).await;
        assert!(matches!(refused, Err(Error::Degraded { .. })), "{reported}: {refused:?}");
        let left = reader(stores).await.health().degraded.expect("the other is damaged");
        assert!(left.reason.contains(&format!("{:016x}", second.token)), "{left:?}");
        assert_eq!(left.damaged.len(), 1, "{left:?}");
        // Discarding a third chunk does not clear it either.
        writer.resolve(Resolution::Discard(chunks[2].token)).await.expect("it is listed");
        assert!(writer.index().health().degraded.is_some());
        rewrite(&writer, &second, &blocks).await;
        assert_eq!(reader(stores).await.health().degraded, None);
        writer.ingest_finalized_block(blocks[50].clone()).await.expect("it goes on");
    }
}
