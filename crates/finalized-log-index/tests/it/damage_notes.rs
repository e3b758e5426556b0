//! Damage that was noted and not stored yet: it stops writes while it is there, and not a moment longer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use finalized_log_index::{
    Error, Filter, FinalizedBlock, LogIndex, Origin, RewriteOutcome, RewrittenBlock, Stores, Writer,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::iter;
use logmill_io::{Condition, ErrorKind, Fault, Faults, Key, KeyRange, MetaStoreExt};

use crate::degraded::{damage, damage_bodies, reader, rewrite};
use crate::fixture::MemoryStores;
use crate::life::{self, check_answers, write};

/// An index with chunks and a tail.
async fn filled(stores: &Stores) -> (Writer, Vec<FinalizedBlock>) {
    let blocks = life::blocks();
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    (writer, blocks)
}

/// The record of a body in the tail, and the number of its block.
async fn tail_body(stores: &Stores) -> (Key, u64) {
    let bodies = stores.meta.scan(&KeyRange::prefix("logindex/body/"), 1_000).await;
    let bodies = bodies.expect("it scans");
    let (key, _) = bodies.first().expect("a block of the tail has a body");
    let digits = String::from_utf8_lossy(key.as_bytes()).into_owned();
    let number = digits.rsplit('-').next().expect("a number");
    (key.clone(), u64::from_str_radix(number, 16).expect("a number"))
}

/// Damages or removes the body of a block in the tail; returns the number of the block.
async fn damage_tail_body(stores: &Stores, is_missing: bool) -> u64 {
    let (key, number) = tail_body(stores).await;
    if is_missing {
        stores.meta.delete(key, Condition::Any).await.expect("it works");
    } else {
        stores.meta.put(key, vec![7; 40], Condition::Any).await.expect("it works");
    }
    number
}

/// Puts a fetched block in the place of a damaged one in the tail.
async fn refill_tail(writer: &Writer, blocks: &[FinalizedBlock], number: u64) {
    let block = blocks[usize::try_from(number).expect("small")].clone();
    let fetched = [RewrittenBlock { block, origin: Origin::Fetched }];
    let rewritten = writer.rewrite_tail(&fetched, "a test").await.expect("it is in the tail");
    assert!(matches!(rewritten, RewriteOutcome::Changed { .. }), "{rewritten:?}");
}

/// Looks up every block and its body; returns whether one of them is damaged.
async fn look_up_all(index: &LogIndex, blocks: &[FinalizedBlock]) -> bool {
    let mut is_damaged = false;
    for block in &blocks[..50] {
        let found = index.block_by_number(block.number).await.map(drop);
        let body = index.body(block.number).await.map(drop);
        is_damaged |= [found, body]
            .iter()
            .any(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt));
    }
    is_damaged
}

/// A follower has noted damage that another process has repaired since; it takes over and continues.
async fn take_over(writer: Writer, follower: &LogIndex, blocks: &[FinalizedBlock]) {
    assert!(follower.health().degraded.is_some(), "it was noted");
    follower.refresh().await.expect("it follows");
    assert_eq!(follower.health().degraded, None, "it was mended");
    writer.release().await.expect("it works");
    drop(writer);
    let writer = follower.writer("two").await.expect("nobody writes");
    writer.ingest_finalized_blocks(&blocks[50..]).await.expect("nothing is damaged");
    writer.maintain().await.expect("nothing is damaged");
    assert_eq!(writer.index().health().degraded, None);
    check_answers(writer.index(), blocks).await.expect("all is there");
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_met_a_damaged_chunk_takes_over_once_it_was_refilled() {
    for which in 0..3 {
        let memory = MemoryStores::new(1);
        let (writer, blocks) = filled(&memory.stores).await;
        let follower = reader(&memory.stores).await;
        let chunk = writer.index().chunks()[1].clone();
        // In its logs, in its bodies, or in both.
        if which != 1 {
            damage(&memory.stores, chunk.token, false).await;
        }
        if which != 0 {
            damage_bodies(&memory.stores, chunk.bodies[0].token).await;
        }
        assert!(look_up_all(&follower, &blocks).await, "{which}");
        rewrite(&writer, &chunk, &blocks).await;
        take_over(writer, &follower, &blocks).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_met_a_damaged_block_of_the_tail_takes_over_once_it_was_refilled() {
    for is_missing in [false, true] {
        let memory = MemoryStores::new(1);
        let (writer, blocks) = filled(&memory.stores).await;
        let follower = reader(&memory.stores).await;
        let number = damage_tail_body(&memory.stores, is_missing).await;
        assert!(look_up_all(&follower, &blocks).await, "{is_missing}");
        refill_tail(&writer, &blocks, number).await;
        take_over(writer, &follower, &blocks).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_is_still_damaged_stops_the_process_that_takes_over() {
    let memory = MemoryStores::new(1);
    let (writer, blocks) = filled(&memory.stores).await;
    let follower = reader(&memory.stores).await;
    let chunk = writer.index().chunks()[1].clone();
    damage_bodies(&memory.stores, chunk.bodies[0].token).await;
    assert!(look_up_all(&follower, &blocks).await);
    writer.release().await.expect("it works");
    let writer = follower.writer("two").await.expect("nobody writes");
    let refused = writer.ingest_finalized_block(blocks[50].clone()).await;
    assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
}

/// What a lookup or query does with a chunk.
type Read = fn(LogIndex, u64) -> BoxFuture<'static, ()>;

/// The ways to read a damaged chunk; what comes of it does not matter here.
const READS: [Read; 3] = [
    |index, number| async move { drop(index.block_by_number(number).await) }.boxed(),
    |index, number| async move { drop(index.body(number).await) }.boxed(),
    |index, number| {
        async move { drop(index.query_finalized(&Filter::range(number..=number)).await) }.boxed()
    },
];

/// Rewrites a damaged chunk in the writer's process just before operation `at` of a read there; returns whether it
/// came to that.
async fn repaired_meanwhile(at: u64, read: Read) -> bool {
    let memory = MemoryStores::new(1);
    let (writer, blocks) = filled(&memory.stores).await;
    let chunk = writer.index().chunks()[1].clone();
    writer.release().await.expect("it works");
    drop(writer);
    let mending: Arc<OnceLock<(Arc<Writer>, u64)>> = Arc::default();
    let (inside, part, all) = (Arc::clone(&mending), chunk.clone(), blocks.clone());
    let hook = Faults::before_each(move |operation| {
        let (inside, part, all) = (Arc::clone(&inside), part.clone(), all.clone());
        async move {
            if let Some((writer, from)) = inside.get()
                && operation == from + at
            {
                rewrite(writer, &part, &all).await;
            }
        }
        .boxed()
    });
    let index = LogIndex::open(memory.stores.with_faults(&hook), life::settings()).await;
    let writer = Arc::new(index.expect("it opens").writer("two").await.expect("nobody writes"));
    damage(&memory.stores, chunk.token, false).await;
    for bodies in &chunk.bodies {
        damage_bodies(&memory.stores, bodies.token).await;
    }
    assert!(mending.set((Arc::clone(&writer), hook.operations())).is_ok(), "set once");
    read(writer.index().clone(), chunk.blocks.start).await;
    if writer.index().chunks()[1].token == chunk.token {
        return false;
    }
    let stored = writer.ingest_finalized_block(blocks[50].clone()).await;
    stored.unwrap_or_else(|error| panic!("mended before operation {at}: {error}"));
    assert_eq!(writer.index().health().degraded, None, "mended before operation {at}");
    true
}

#[tokio::test(start_paused = true)]
async fn a_read_of_old_bytes_that_ends_after_their_mending_does_not_stop_the_writer() {
    for read in READS {
        // The rewrite needs what a lookup holds while it follows the store, so only operations before that count.
        assert!(repaired_meanwhile(0, read).await, "a read reads");
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_that_comes_again_while_its_chunk_is_damaged_is_an_error_and_no_standstill() {
    let memory = MemoryStores::new(1);
    let (writer, blocks) = filled(&memory.stores).await;
    damage(&memory.stores, writer.index().chunks()[1].token, false).await;
    drop(writer);
    // Nothing of the chunk is cached.
    let writer = write(&memory.stores).await.expect("it opens");
    let number = usize::try_from(writer.index().chunks()[1].blocks.start).expect("small");
    let again = writer.ingest_finalized_block(blocks[number].clone());
    let again = tokio::time::timeout(Duration::from_secs(60), again).await;
    let error = again.expect("it answers").expect_err("it cannot be compared");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let refused = writer.ingest_finalized_block(blocks[50].clone()).await;
    assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_block_whose_body_is_missing_is_not_sealed_without_it() {
    for is_missing in [false, true] {
        let memory = MemoryStores::new(1);
        let blocks = life::blocks();
        let writer = write(&memory.stores).await.expect("it opens");
        writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
        let number = damage_tail_body(&memory.stores, is_missing).await;
        let error = writer.maintain().await.expect_err("it lacks a body");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let degraded = writer.index().health().degraded.expect("it was noted");
        assert_eq!(degraded.damaged[0].blocks, number..number + 1, "{degraded:?}");
        refill_tail(&writer, &blocks, number).await;
        writer.maintain().await.expect("all is there");
        writer.ingest_finalized_blocks(&blocks).await.expect("it goes on");
        check_answers(writer.index(), &blocks).await.expect("all is there");
    }
}

/// Rewrites a chunk that is known to be damaged, through faults; a rewrite that failed is tried again. Returns at which
/// operations the first try began and ended.
async fn rewritten_through(faults: &Arc<Faults>) -> (u64, u64) {
    let memory = MemoryStores::new(1);
    let (writer, blocks) = filled(&memory.stores).await;
    writer.release().await.expect("it works");
    drop(writer);
    let writer = write(&memory.stores.with_faults(faults)).await.expect("it opens");
    let chunk = writer.index().chunks()[1].clone();
    damage(&memory.stores, chunk.token, false).await;
    writer.report_damage(chunk.blocks.clone(), "a test".to_owned()).await.expect("stored");
    let start = faults.operations();
    let part = chunk.blocks.clone().map(|number| {
        let block = blocks[usize::try_from(number).expect("small")].clone();
        Ok(RewrittenBlock { block, origin: Origin::Fetched })
    });
    let rewritten = writer.rewrite_chunk(chunk.token, iter(part), "a test", true).await;
    let end = faults.operations();
    writer.index().refresh().await.expect("only one operation fails");
    if rewritten.is_err() && writer.index().chunks()[1].token == chunk.token {
        rewrite(&writer, &chunk, &blocks).await;
    }
    let stored = writer.ingest_finalized_block(blocks[50].clone()).await;
    stored.unwrap_or_else(|error| panic!("{faults:?}: {error}"));
    (start, end)
}

#[tokio::test(start_paused = true)]
async fn a_rewrite_whose_answer_was_lost_leaves_no_known_damage_behind() {
    let (start, end) = rewritten_through(&Faults::none()).await;
    assert!(end > start + 5, "{start} to {end}");
    for operation in start..end {
        for fault in [Fault::Before, Fault::After] {
            rewritten_through(&Faults::at(operation, fault)).await;
        }
    }
}
