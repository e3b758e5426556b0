//! Replacements: each removal of stored final blocks is recorded in the same commit, and readers see it.

use std::sync::Arc;

use finalized_log_index::{
    Filter, LogIndex, Origin, ReplacementKind, Resolution, RewriteOutcome, RewrittenBlock, Stores,
};
use logmill_io::meta::MemoryMeta;
use logmill_io::{Condition, Fault, Faults, KeyRange, MetaStoreExt};

use crate::fixture::MemoryStores;
use crate::life::{self, write};

async fn reader(memory: &MemoryStores) -> LogIndex {
    LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens")
}

#[tokio::test(start_paused = true)]
async fn removing_stored_blocks_is_recorded_and_seen_by_readers_of_other_processes() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let other = reader(&memory).await;
    assert_eq!(other.last_replacement(), 0);
    assert!(other.replacements_after(0).await.expect("read").is_empty());

    let chunk = writer.index().chunks()[1].clone();
    writer.resolve(Resolution::Discard(chunk.token)).await.expect("it is listed");
    let tail = writer.index().health();
    let end = tail.tail_start.expect("there is a tail") + tail.tail_blocks;
    writer.resolve(Resolution::RebuildFrom(end - 1)).await.expect("it is stored");
    assert_eq!(writer.index().last_replacement(), 2);

    assert_eq!(other.last_replacement(), 0, "it has not followed yet");
    assert!(other.replacements_after(0).await.expect("read").is_empty(), "nor seen the blocks go");
    other.refresh().await.expect("it follows");
    assert_eq!(other.last_replacement(), 2);
    let both = other.replacements_after(0).await.expect("read");
    assert_eq!(both.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(both[0].blocks, chunk.blocks);
    assert_eq!(both[0].kind, ReplacementKind::Removed);
    assert!(both[0].reason.contains(&format!("{:016x}", chunk.token)), "{}", both[0].reason);
    assert_eq!(both[1].blocks.end, end);
    for one in &both {
        for number in one.blocks.clone() {
            let block = &blocks[usize::try_from(number).expect("small")];
            assert_eq!(one.old_hash(number), Some(block.hash), "block {number} of {one:?}");
        }
        assert_eq!(one.old_hash(one.blocks.end), None);
    }
    assert_eq!(other.replacements_after(1).await.expect("read"), both[1..]);
    assert!(other.replacements_after(2).await.expect("read").is_empty());
    let opened_later = reader(&memory).await;
    assert_eq!(opened_later.replacements_after(0).await.expect("read"), both);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_changes_no_block_is_not_a_replacement() {
    let memory = MemoryStores::new(2);
    let blocks = life::blocks();
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let chunk = writer.index().chunks()[0].clone();
    writer.prune_below(chunk.blocks.end).await.expect("it works");
    writer.resolve(Resolution::Keep).await.expect("it works");
    assert_eq!(writer.index().last_replacement(), 0);
    writer.resolve(Resolution::RebuildFrom(40)).await.expect("it works");
    writer.resolve(Resolution::RebuildFrom(40)).await.expect("there is nothing left to remove");
    assert_eq!(writer.index().last_replacement(), 1);
}

#[tokio::test(start_paused = true)]
async fn blocks_are_removed_together_with_their_record_or_not_at_all() {
    let undisturbed = Faults::none();
    assert_eq!(rebuilt(&undisturbed).await, (true, 1));
    for fault in Fault::ALL {
        for operation in 0..undisturbed.operations() {
            let (gone, recorded) = rebuilt(&Faults::at(operation, fault)).await;
            assert_eq!(recorded, u64::from(gone), "{fault:?} at operation {operation}");
        }
    }
}

/// Rebuilds from block 20 over disturbed stores; returns whether blocks are gone, and the number of recorded
/// replacements.
async fn rebuilt(faults: &Arc<Faults>) -> (bool, u64) {
    let memory = MemoryStores::new(3);
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&life::blocks()[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    drop(writer);
    if let Ok(disturbed) = write(&memory.stores.with_faults(faults)).await {
        let _ = disturbed.resolve(Resolution::RebuildFrom(20)).await;
    }
    let index = reader(&memory).await;
    (index.indexed_finalized_head().expect("it is read") != Some(49), index.last_replacement())
}

/// The same blobs, with a copy of all records.
async fn backup(stores: &Stores) -> Stores {
    let meta = MemoryMeta::shared(Arc::clone(&stores.clock), Arc::clone(&stores.entropy));
    let records = stores.meta.scan(&KeyRange::prefix(life::settings().prefix), 100_000).await;
    for (key, record) in records.expect("it scans") {
        meta.put(key, record.value, Condition::Absent).await.expect("it is written");
    }
    Stores { meta, ..stores.clone() }
}

#[tokio::test(start_paused = true)]
async fn a_position_belongs_to_one_log_even_if_another_has_the_same_number() {
    let memory = MemoryStores::new(5);
    let blocks = life::blocks();
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let first = writer.index().replacement_position();
    assert_eq!(first, reader(&memory).await.replacement_position(), "all processes see the same");
    let restored = backup(&memory.stores).await;
    writer.resolve(Resolution::RebuildFrom(40)).await.expect("it is stored");
    let second = writer.index().replacement_position();
    assert_eq!((first.seq, second.seq), (0, 1));
    for position in [first, second] {
        assert!(writer.index().has_position(position).await.expect("read"), "{position:?}");
    }
    let later = reader(&memory).await;
    assert_eq!(later.replacement_position(), second);
    // An index that was created again.
    let other = MemoryStores::new(6);
    let made_again = write(&other.stores).await.expect("it opens");
    for position in [first, second] {
        assert!(!made_again.index().has_position(position).await.expect("read"), "{position:?}");
    }
    // A backup from before the replacement, followed by another replacement with the same number.
    memory.pause();
    let writer = write(&restored).await.expect("it opens");
    assert!(writer.index().has_position(first).await.expect("read"));
    assert!(!writer.index().has_position(second).await.expect("read"));
    writer.resolve(Resolution::RebuildFrom(45)).await.expect("it is stored");
    assert_eq!(writer.index().last_replacement(), 1);
    assert!(writer.index().has_position(first).await.expect("read"));
    assert!(!writer.index().has_position(second).await.expect("read"));
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_another_process_sees_blocks_of_the_tail_that_were_rewritten() {
    let memory = MemoryStores::new(8);
    let blocks = life::blocks();
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let tail = writer.index().health().tail_start.expect("there is one");
    let with_logs =
        |number: &u64| !blocks[usize::try_from(*number).expect("small")].logs.is_empty();
    let number = (tail..50).find(with_logs).expect("a block of the tail has logs");
    let other = reader(&memory).await;
    let mut block = blocks[usize::try_from(number).expect("small")].clone();
    block.logs.clear();
    let rewritten = RewrittenBlock { block, origin: Origin::Fetched };
    let written = writer.rewrite_tail(&[rewritten], "a test").await.expect("it is in the tail");
    assert_eq!(written, RewriteOutcome::Changed { seq: 1 });
    other.refresh().await.expect("it follows");
    for index in [writer.index(), &other] {
        let page = index.query_finalized(&Filter::range(number..=number)).await.expect("covered");
        assert!(page.logs.is_empty(), "{:?}", page.logs);
    }
}
