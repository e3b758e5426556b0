//! The semantics of filters, limits, blocks and ranges, and the errors for invalid ones.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use finalized_log_index::{
    B256, Blocks, BroadPolicy, Bytes, Error, Filter, FinalizedBlock, IngestOutcome, LogIndex,
    Settings, Stores, Strategy, Writer,
};
use futures::future::join_all;
use futures::stream::iter;
use logmill_io::{ErrorKind, Faults, FaultyStore};

use crate::chain::{address, block_hash, scan, word};
use crate::fixture::MemoryStores;
use crate::life::{self, check_answers};

async fn open(stores: &Stores, settings: &Settings) -> LogIndex {
    LogIndex::open(stores.clone(), settings.clone()).await.expect("it opens")
}

async fn writer(stores: &Stores, settings: &Settings) -> Writer {
    open(stores, settings).await.writer("one").await.expect("it is free")
}

/// An index of blocks 6 … 55 with history at 0 … 3, so that there is a gap.
async fn with_a_gap(memory: &MemoryStores, settings: &Settings) -> (Writer, Vec<FinalizedBlock>) {
    let blocks = life::blocks();
    let settings = Settings { anchors: vec![(0, blocks[0].hash)], ..settings.clone() };
    let writer = writer(&memory.stores, &settings).await;
    writer.ingest_finalized_blocks(&blocks[6..]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let part = iter(blocks[..4].iter().cloned().map(Ok));
    writer.index().build_chunk(0..4, part).await.expect("it is free");
    (writer, blocks)
}

#[tokio::test(start_paused = true)]
async fn a_range_outside_of_coverage_is_an_error_that_lists_the_covered_ranges() {
    let memory = MemoryStores::new(1);
    let (writer, blocks) = with_a_gap(&memory, &life::settings()).await;
    let index = writer.index();
    assert_eq!(index.coverage(), [0..4, 6..56]);
    assert_eq!(index.indexed_finalized_head().expect("it is fine"), Some(55));
    for range in [0..=4, 3..=6, 4..=5, 5..=20, 20..=56, 56..=56, 0..=u64::MAX, u64::MAX..=u64::MAX]
    {
        match index.query_finalized(&Filter::range(range.clone())).await {
            Err(Error::NotCovered { wanted, covered }) => {
                assert_eq!(wanted.start, *range.start());
                assert_eq!(covered, [0..4, 6..56]);
            }
            other => panic!("{range:?}: {other:?}"),
        }
    }
    let clipped = Filter::covered(2..=100);
    let page = index.query_finalized(&clipped).await.expect("what is covered");
    assert_eq!(page.looked_at, [2..4, 6..56]);
    let known: Vec<_> = [&blocks[..4], &blocks[6..]].concat();
    assert_eq!(page.logs, scan(&known, &clipped));
    let nothing = index.query_finalized(&Filter::covered(4..=5)).await.expect("nothing is covered");
    assert!(nothing.logs.is_empty() && nothing.looked_at.is_empty());
}

#[tokio::test(start_paused = true)]
async fn queries_of_pruned_history_fail_as_pruned() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let writer = writer(&memory.stores, &life::settings()).await;
    writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let below = writer.index().chunks().iter().filter(|chunk| chunk.blocks.end <= 20).count();
    assert_eq!(writer.prune_below(20).await.expect("it works"), below);
    let index = writer.index();
    assert_eq!((index.pruned_below(), index.coverage()), (16, vec![16..56]));
    for range in [0..=0, 15..=16, 0..=55] {
        let error = index.query_finalized(&Filter::range(range)).await.expect_err("it is gone");
        assert!(matches!(error, Error::Pruned { floor: 16 }), "{error:?}");
    }
    assert_eq!(index.block_by_number(15).await.expect("it works"), None);
    assert_eq!(index.block_by_hash(&blocks[15].hash).await.expect("it works"), None);
    let log = blocks[..16].iter().flat_map(|block| &block.logs).next().expect("there is one");
    let gone = index.logs_of_transaction(&log.transaction_hash).await.expect("it works");
    assert!(gone.is_empty());
    let back = index.build_chunk(0..16, iter(blocks[..16].iter().cloned().map(Ok))).await;
    assert!(matches!(back, Err(Error::Unpublishable { .. })), "{back:?}");
    assert_eq!(writer.prune_below(20).await.expect("it works"), 0);
    check_answers(index, &blocks).await.expect("the rest is there");
}

#[tokio::test(start_paused = true)]
async fn invalid_filters_and_unknown_hashes_have_their_own_errors() {
    let memory = MemoryStores::new(1);
    let (writer, _) = with_a_gap(&memory, &life::settings()).await;
    let reversed =
        Filter { blocks: Blocks::Range(RangeInclusive::new(9, 8)), ..Filter::range(0..=0) };
    let five = Filter::range(6..=9).topic(4, word(1));
    for filter in [reversed, five, Filter::range(6..=9).limit(0)] {
        let error = writer.index().query_finalized(&filter).await.expect_err("it means nothing");
        assert!(matches!(error, Error::InvalidFilter { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    // One hash is unknown, the other one known but not covered.
    for hash in [B256::repeat_byte(7), block_hash(5, "main")] {
        let error = writer.index().query_finalized(&Filter::block_hash(hash)).await;
        match error {
            Err(Error::BlockNotFound { hash: named }) => assert_eq!(named, hash),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_alternatives_are_refused_or_scanned() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let strict = Settings { max_or_terms: 3, ..life::settings() };
    let writer = writer(&memory.stores, &strict).await;
    writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let topics = |count: u64| (0..count).fold(Filter::range(0..=55), |f, n| f.topic(1, word(n)));
    let addresses =
        |count: u64| (0..count).fold(Filter::range(0..=55), |f, n| f.address(address(2 * n)));
    let scanning = Settings { broad_policy: BroadPolicy::BlockScan, ..strict };
    let scanning = open(&memory.stores, &scanning).await;
    for filter in [topics(3), addresses(3), topics(4), addresses(4)] {
        let expected = scan(&blocks, &filter);
        let broad = filter.topics.iter().any(|t| t.len() > 3) || filter.addresses.len() > 3;
        match writer.index().query_finalized(&filter).await {
            Ok(page) => assert!(!broad && page.logs == expected),
            Err(Error::QueryTooBroad { actual, max }) => assert!(broad && (actual, max) == (4, 3)),
            Err(error) => panic!("{error:?}"),
        }
        let page = scanning.query_finalized(&filter).await.expect("it is scanned");
        assert_eq!(page.logs, expected);
        let explained = scanning.explain(&filter).await.expect("it is scanned");
        let all_scanned = explained.sources.iter().all(|s| s.strategy == Strategy::Scan);
        assert!(!broad || all_scanned, "{explained:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_ends_at_its_deadline() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let fast = writer(&memory.stores, &life::settings()).await;
    fast.ingest_finalized_blocks(&blocks).await.expect("they follow");
    fast.maintain().await.expect("it works");
    let slow = Faults::slow(Duration::from_secs(1));
    let blobs = Arc::new(FaultyStore::new(Arc::clone(&memory.stores.blobs), slow));
    let stores = Stores { blobs, ..memory.stores.clone() };
    let settings = Settings { query_deadline: Duration::from_secs(3), ..life::settings() };
    let index = open(&stores, &settings).await;
    let started = tokio::time::Instant::now();
    let outcome = index.query_finalized(&Filter::range(0..=55)).await;
    assert!(matches!(outcome, Err(Error::DeadlineExceeded { limit_ms: 3_000 })), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    // A caller that gives up earlier drops the query; the next query starts from scratch.
    let filter = Filter::range(20..=55);
    let query = index.query_finalized(&filter);
    let dropped = tokio::time::timeout(Duration::from_millis(1_500), query);
    dropped.await.expect_err("it takes longer");
    let page = index.query_finalized(&Filter::range(50..=51)).await.expect("it is quick");
    assert_eq!(page.logs, scan(&blocks, &Filter::range(50..=51)));
}

/// All ways in which a block may fail to follow.
#[tokio::test(start_paused = true)]
async fn only_the_next_block_follows() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let writer = writer(&memory.stores, &life::settings()).await;
    // The first block may be genesis.
    let outcomes = writer.ingest_finalized_blocks(&blocks[..5]).await.expect("they follow");
    assert_eq!(outcomes, [IngestOutcome::Indexed; 5]);
    let gap = writer.ingest_finalized_block(blocks[6].clone()).await;
    assert!(matches!(gap, Err(Error::InvalidSequence { expected: 5, got: 6 })), "{gap:?}");
    let mixed = [blocks[5].clone(), blocks[3].clone()];
    let mixed = writer.ingest_finalized_blocks(&mixed).await;
    assert!(matches!(mixed, Err(Error::InvalidSequence { expected: 6, got: 3 })), "{mixed:?}");
    let twice = [blocks[5].clone(), blocks[5].clone()];
    let twice = writer.ingest_finalized_blocks(&twice).await;
    assert!(matches!(twice, Err(Error::InvalidSequence { .. })), "{twice:?}");
    // All or none.
    let holes = [blocks[5].clone(), blocks[7].clone()];
    writer.ingest_finalized_blocks(&holes).await.expect_err("7 does not follow 5");
    assert_eq!(writer.index().indexed_finalized_head().expect("it is fine"), Some(4));
    let again = writer.ingest_finalized_blocks(&blocks[3..7]).await.expect("they follow");
    let (known, new) = (IngestOutcome::AlreadyIndexed, IngestOutcome::Indexed);
    assert_eq!(again, [known, known, new, new]);
    let mut logs_mixed_up = blocks.iter().find(|block| block.logs.len() > 1).expect("one").clone();
    logs_mixed_up.logs.reverse();
    let invalid = writer.ingest_finalized_block(logs_mixed_up).await;
    assert!(matches!(invalid, Err(Error::InvalidBlock { .. })), "{invalid:?}");
    assert_eq!(writer.index().health().degraded, None, "none of this is the index's fault");
    let orphan = FinalizedBlock { parent_hash: B256::repeat_byte(1), ..blocks[7].clone() };
    let orphan = writer.ingest_finalized_block(orphan).await;
    assert!(matches!(orphan, Err(Error::FinalityViolation { .. })), "{orphan:?}");
    assert!(writer.index().health().degraded.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_first_block_must_fit_anchored_history() {
    let blocks = life::blocks();
    for fits in [true, false] {
        let memory = MemoryStores::new(1);
        let anchors = vec![(4, blocks[4].hash)];
        let settings = Settings { anchors, ..life::settings() };
        let writer = writer(&memory.stores, &settings).await;
        let part = iter(blocks[..10].iter().cloned().map(Ok));
        writer.index().build_chunk(0..10, part).await.expect("it is free");
        assert_eq!(writer.index().coverage(), std::slice::from_ref(&(0..10)));
        let below = writer.ingest_finalized_block(blocks[8].clone()).await;
        assert!(matches!(below, Err(Error::InvalidSequence { expected: 10, got: 8 })), "{below:?}");
        let mut first = blocks[10].clone();
        if !fits {
            first.parent_hash = B256::repeat_byte(3);
        }
        match writer.ingest_finalized_block(first).await {
            Ok(_) => assert!(fits && writer.index().coverage() == [0..11]),
            Err(Error::FinalityViolation { .. }) => assert!(!fits),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_covered_once_anchored_and_never_contradicts_an_anchor() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let settings = Settings { anchors: vec![(4, B256::repeat_byte(4))], ..life::settings() };
    let contradicted = open(&memory.stores, &settings).await;
    let part = || iter(blocks[..10].iter().cloned().map(Ok));
    let refused = contradicted.build_chunk(0..10, part()).await;
    assert!(matches!(refused, Err(Error::InvalidBlock { number: 4, .. })), "{refused:?}");
    let index = open(&memory.stores, &life::settings()).await;
    index.build_chunk(0..10, part()).await.expect("it is free");
    assert!(index.coverage().is_empty(), "nothing vouches for it yet");
    assert_eq!(index.health().chunks_unanchored, 1);
    let writer = index.writer("one").await.expect("it is free");
    writer.ingest_finalized_block(blocks[10].clone()).await.expect("it follows");
    assert_eq!(index.coverage(), std::slice::from_ref(&(0..11)), "the tail vouches for it now");
    // Building the same blocks again is fine; building others is not.
    index.build_chunk(0..10, part()).await.expect("the same bytes");
    let other = index.build_chunk(2..9, iter(blocks[2..9].iter().cloned().map(Ok))).await;
    assert!(matches!(other, Err(Error::Unpublishable { .. })), "{other:?}");
    let short = index.build_chunk(20..30, iter(blocks[20..25].iter().cloned().map(Ok))).await;
    assert!(matches!(short, Err(Error::Invalid { .. })), "{short:?}");
}

/// Ingests 48 blocks concurrently with a store that takes 10 ms per operation; returns the number of operations and
/// the time.
async fn together(commit_wait: Duration) -> (u64, Duration) {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let faults = Faults::slow(Duration::from_millis(10));
    let (chunk_logs, piece_logs) = (10_000, 10_000);
    let settings =
        Settings { commit_blocks: 16, commit_wait, chunk_logs, piece_logs, ..life::settings() };
    let writer = writer(&memory.stores.with_faults(&faults), &settings).await;
    let before = (faults.operations(), tokio::time::Instant::now());
    let calls = blocks[..48].iter().map(|block| writer.ingest_finalized_block(block.clone()));
    for outcome in join_all(calls).await {
        assert_eq!(outcome.expect("it follows"), IngestOutcome::Indexed);
    }
    let took = (faults.operations() - before.0, before.1.elapsed());
    check_answers(writer.index(), &blocks).await.expect("all is there");
    // A block that does not follow does not affect the other blocks of its commit.
    let calls = [&blocks[48..52], &blocks[54..55]].concat();
    let outcomes = join_all(calls.into_iter().map(|b| writer.ingest_finalized_block(b))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 4);
    assert_eq!(writer.index().indexed_finalized_head().expect("it is fine"), Some(51));
    took
}

#[tokio::test(start_paused = true)]
async fn concurrent_blocks_share_commits() {
    // The first call finds an empty queue and commits alone; the others arrive while it is in progress.
    let (operations, took) = together(Duration::ZERO).await;
    assert!(operations <= 4, "{operations} operations");
    assert!(took < Duration::from_millis(60), "{took:?}");
    // With `commit_wait`, the first call waits for the others.
    let (operations, took) = together(Duration::from_millis(30)).await;
    assert!(operations <= 3, "{operations} operations");
    assert!(took < Duration::from_millis(80), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_log_of_several_megabytes_is_returned_completely() {
    let memory = MemoryStores::new(1);
    let mut blocks = life::blocks();
    let with_logs = blocks.iter_mut().find(|block| block.logs.len() > 4).expect("there is one");
    let data: Vec<u8> =
        (0..5_000_000_u32).map(|n| (n.wrapping_mul(n) >> 9).to_le_bytes()[0]).collect();
    with_logs.logs[2].data = Bytes::from(data);
    let (number, topic) = (with_logs.number, with_logs.logs[2].address);
    let writer = writer(&memory.stores, &life::settings()).await;
    for some in blocks.chunks(9) {
        writer.ingest_finalized_blocks(some).await.expect("they follow");
    }
    let filter = Filter::range(number..=55).address(topic);
    for _ in 0..2 {
        let page = writer.index().query_finalized(&filter).await.expect("it is covered");
        assert!(page.logs == scan(&blocks, &filter));
        let reader = open(&memory.stores, &life::settings()).await;
        let page = reader.query_finalized(&filter).await.expect("it is covered");
        assert!(page.logs == scan(&blocks, &filter));
        writer.maintain().await.expect("it works");
    }
}

/// Adds the first block of a tail just before operation `at` of a builder, or the other way round; returns whether
/// operation `at` was reached.
async fn race(at: u64, builder_is_hooked: bool) -> bool {
    let memory = MemoryStores::new(1);
    let blocks = Arc::new(life::blocks());
    let settings = life::settings();
    let writer = Arc::new(writer(&memory.stores, &settings).await);
    let other = open(&memory.stores, &settings).await;
    let armed = Arc::new(AtomicU64::new(u64::MAX));
    let hook = {
        let (armed, blocks) = (Arc::clone(&armed), Arc::clone(&blocks));
        let (writer, other) = (Arc::clone(&writer), other.clone());
        Faults::before_each(move |number| {
            let now = armed.load(SeqCst) == number;
            let (writer, other, blocks) = (Arc::clone(&writer), other.clone(), Arc::clone(&blocks));
            Box::pin(async move {
                if now && builder_is_hooked {
                    writer
                        .ingest_finalized_block(blocks[5].clone())
                        .await
                        .expect("it is the first");
                } else if now {
                    let part = iter(blocks[..10].iter().cloned().map(Ok));
                    other.build_chunk(0..10, part).await.expect("nothing is there");
                }
            })
        })
    };
    let hooked = open(&memory.stores.with_faults(&hook), &settings).await;
    if builder_is_hooked {
        armed.store(hook.operations() + at, SeqCst);
        let part = iter(blocks[..10].iter().cloned().map(Ok));
        let built = hooked.build_chunk(0..10, part).await;
        assert!(matches!(built, Ok(_) | Err(Error::Unpublishable { .. })), "{built:?}");
    } else {
        let late = hooked.writer("one").await.expect("the same owner takes it over");
        armed.store(hook.operations() + at, SeqCst);
        let first = late.ingest_finalized_block(blocks[5].clone()).await;
        let conflict = |error: &Error| error.kind() == ErrorKind::Conflict;
        assert!(first.as_ref().err().is_none_or(conflict), "{first:?}");
    }
    let came = hook.operations() > armed.load(SeqCst);
    let reader = open(&memory.stores, &settings).await;
    let chunks = reader.chunks();
    let tail = reader.health().tail_blocks;
    let in_both = tail > 0 && chunks.iter().any(|chunk| chunk.blocks.end > 5);
    assert!(!in_both || !came, "{chunks:?} beside a tail of {tail} from 5 on, at {at}");
    check_answers(&reader, &blocks).await.expect("all is there");
    came
}

#[tokio::test(start_paused = true)]
async fn the_first_block_of_a_tail_and_a_chunk_of_history_never_overlap() {
    for builder_is_hooked in [true, false] {
        let mut at = 0;
        while race(at, builder_is_hooked).await {
            at += 1;
        }
        assert!(at > 0, "they met");
    }
}
