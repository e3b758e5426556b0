//! Replacements: each removal of stored final blocks is recorded in the commit that makes it, and readers see it.

use std::sync::Arc;

use finalized_log_index::{LogIndex, ReplacementKind, Resolution};
use logmill_io::{Fault, Faults};

use crate::crash_matrix::Ground;
use crate::life::{self, write};

async fn reader(ground: &Ground) -> LogIndex {
    LogIndex::open(ground.stores.clone(), life::settings()).await.expect("it opens")
}

#[tokio::test(start_paused = true)]
async fn removing_stored_blocks_is_recorded_and_seen_by_readers_of_other_processes() {
    let ground = Ground::new(1);
    let blocks = life::blocks();
    let writer = write(&ground.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let other = reader(&ground).await;
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
    let opened_later = reader(&ground).await;
    assert_eq!(opened_later.replacements_after(0).await.expect("read"), both);
}

#[tokio::test(start_paused = true)]
async fn what_changes_no_block_is_no_replacement() {
    let ground = Ground::new(2);
    let blocks = life::blocks();
    let writer = write(&ground.stores).await.expect("it opens");
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
async fn blocks_go_together_with_their_record_or_not_at_all() {
    let undisturbed = Faults::none();
    assert_eq!(rebuilt(&undisturbed).await, (true, 1));
    for fault in [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter] {
        for operation in 0..undisturbed.operations() {
            let (gone, recorded) = rebuilt(&Faults::at(operation, fault)).await;
            assert_eq!(recorded, u64::from(gone), "{fault:?} at operation {operation}");
        }
    }
}

/// Rebuilds from block 20 on over disturbed stores: whether blocks are gone, and how many replacements are recorded.
async fn rebuilt(faults: &Arc<Faults>) -> (bool, u64) {
    let ground = Ground::new(3);
    let writer = write(&ground.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&life::blocks()[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    drop(writer);
    if let Ok(disturbed) = write(&ground.through(faults)).await {
        let _ = disturbed.resolve(Resolution::RebuildFrom(20)).await;
    }
    let index = reader(&ground).await;
    (index.indexed_finalized_head().expect("it is read") != Some(49), index.last_replacement())
}
