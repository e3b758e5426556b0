//! Mistakes that an earlier index of this kind made, each as a test, in the order of their record.

use finalized_log_index::{
    Address, B256, BlockLog, Error, Filter, FinalizedBlock, GcMode, LogIndex, Settings, Topics,
    Writer,
};
use futures::stream::iter;
use logmill_io::{KeyRange, Timestamp};

use crate::chain::{block_hash, scan, transaction_hash, word};
use crate::fixture::MemoryStores;
use crate::life::{self, check_answers, write};

/// Blocks with one log each, whose topic is `topic(number)`; without a log where that is none.
fn one_topic(
    numbers: std::ops::RangeInclusive<u64>,
    topic: impl Fn(u64) -> Option<u64>,
) -> Vec<FinalizedBlock> {
    let block = |number: u64| FinalizedBlock {
        number,
        hash: block_hash(number, "main"),
        parent_hash: number.checked_sub(1).map_or(B256::ZERO, |n| block_hash(n, "main")),
        timestamp: number,
        logs: topic(number)
            .map(|topic| BlockLog {
                address: Address::repeat_byte(1),
                topics: [word(topic)].into_iter().collect::<Topics>(),
                transaction_hash: transaction_hash(number, 0),
                ..BlockLog::default()
            })
            .into_iter()
            .collect(),
        body: None,
    };
    numbers.map(block).collect()
}

async fn indexed(memory: &MemoryStores, blocks: &[FinalizedBlock]) -> Writer {
    let writer = write(&memory.stores).await.expect("it opens");
    for some in blocks.chunks(200) {
        writer.ingest_finalized_blocks(some).await.expect("they follow");
    }
    writer.maintain().await.expect("it works");
    writer
}

async fn count(index: &LogIndex, filter: &Filter) -> usize {
    index.query_finalized(filter).await.expect("it is covered").logs.len()
}

#[tokio::test(start_paused = true)]
async fn trap_1_a_rare_signature_among_frequent_ones_is_found_everywhere() {
    // 7 occurs three times, in the first, a middle and the last block; 9 occurs everywhere but there and in one more
    // block.
    let topic = |number: u64| match number {
        1 | 1_300 | 2_600 => Some(7),
        700 => Some(8),
        _ => Some(9),
    };
    let blocks = one_topic(1..=2_600, topic);
    let writer = indexed(&MemoryStores::new(1), &blocks).await;
    let all = || Filter::range(1..=2_600);
    assert_eq!(count(writer.index(), &all().topic(0, word(7))).await, 3);
    assert_eq!(count(writer.index(), &all().topic(0, word(7)).topic(0, word(9))).await, 2_599);
    let from = Filter::range(1_300..=2_600).topic(0, word(7));
    assert_eq!(count(writer.index(), &from).await, 2);
}

#[tokio::test(start_paused = true)]
async fn trap_2_a_range_from_zero_finds_what_is_there() {
    let blocks = one_topic(1..=90, |_| Some(9));
    let writer = indexed(&MemoryStores::new(1), &blocks).await;
    let clipped = writer.index().query_finalized(&Filter::covered(0..=u64::MAX)).await;
    let clipped = clipped.expect("what is covered is asked for");
    assert_eq!(clipped.logs.len(), 90);
    assert_eq!(clipped.looked_at, std::slice::from_ref(&(1..91)));
    let strict = writer.index().query_finalized(&Filter::range(0..=90)).await;
    match strict {
        Err(Error::NotCovered { wanted, covered }) => {
            assert_eq!((wanted, covered), (0..91, vec![1..91]));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn trap_3_empty_blocks_at_the_ends_of_a_range_add_no_logs() {
    let blocks = one_topic(0..=99, |number| (number % 3 == 1).then_some(9));
    let writer = indexed(&MemoryStores::new(1), &blocks).await;
    for from in 0..60 {
        for to in from..60 {
            for filter in [Filter::range(from..=to), Filter::range(from..=to).topic(0, word(9))] {
                let page = writer.index().query_finalized(&filter).await.expect("it is covered");
                assert_eq!(page.logs, scan(&blocks, &filter), "{filter:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trap_4_a_listed_chunk_that_is_missing_is_an_error_and_others_are_not_read() {
    let memory = MemoryStores::new(1);
    let blocks = one_topic(0..=99, |number| Some(number % 4));
    let writer = indexed(&memory, &blocks).await;
    let chunks = writer.index().chunks();
    let gone = &chunks[1];
    for blob in memory.stores.blobs.list("", None, 100).await.expect("it lists") {
        if blob.name.as_str().ends_with(&format!("{:016x}", gone.token)) {
            memory.stores.blobs.delete(&blob.name).await.expect("it works");
        }
    }
    let filter = Filter::range(0..=99).topic(0, word(3));
    let error = writer.index().query_finalized(&filter).await.expect_err("it is needed");
    assert!(matches!(error, Error::ChunkMissing { .. }), "{error:?}");
    // Only the chunks that the range needs are read.
    let before = Filter::range(0..=gone.blocks.start - 1).topic(0, word(3));
    let explained = writer.index().explain(&before).await.expect("it is not needed");
    assert_eq!(explained.sources.len(), 1);
    assert_eq!(explained.results, scan(&blocks, &before).len() as u64);
}

/// Keys and versions of all records.
async fn records(memory: &MemoryStores) -> Vec<String> {
    let all = memory.stores.meta.scan(&KeyRange::all(), 10_000).await.expect("it scans");
    all.into_iter().map(|(key, record)| format!("{key} {:?}", record.version)).collect()
}

#[tokio::test(start_paused = true)]
async fn trap_5_and_6_a_block_costs_two_records_however_many_signatures_and_chunks_there_are() {
    let memory = MemoryStores::new(1);
    let blocks = one_topic(0..=400, Some);
    let writer = indexed(&memory, &blocks[..400]).await;
    let before = records(&memory).await;
    writer.ingest_finalized_block(blocks[400].clone()).await.expect("it follows");
    let after = records(&memory).await;
    let written: Vec<_> = after.iter().filter(|record| !before.contains(record)).collect();
    assert_eq!(written.len(), 2, "{written:?}");
    assert!(written.iter().all(|record| record.contains("/tail")), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn trap_7_chunks_are_the_same_however_blocks_were_grouped_and_whenever_they_came() {
    let blocks = life::blocks();
    let mut images = Vec::new();
    for grouping in [1, 3, 7, 56] {
        for restarts in [false, true] {
            let memory = MemoryStores::new(grouping);
            let mut writer = write(&memory.stores).await.expect("it opens");
            let size = usize::try_from(grouping).expect("small");
            for some in blocks.chunks(size) {
                writer.ingest_finalized_blocks(some).await.expect("they follow");
                memory.pause();
                if restarts {
                    drop(writer);
                    writer = write(&memory.stores).await.expect("it opens");
                    writer.maintain().await.expect("it works");
                }
            }
            writer.maintain().await.expect("it works");
            writer.collect_garbage(GcMode::Delete).await.expect("it works");
            images.push(life::image(&memory.stores, &blocks).await);
        }
    }
    assert!(images[0].contains("0,"), "there are chunks");
    assert!(images.iter().all(|image| *image == images[0]));
}

#[tokio::test(start_paused = true)]
async fn trap_7_history_and_merged_pieces_are_the_same_bytes() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let writer = indexed(&memory, &blocks).await;
    let anchors = vec![(0, blocks[0].hash)];
    let settings = Settings { prefix: "history".to_owned(), anchors, ..life::settings() };
    let built = LogIndex::open(memory.stores.clone(), settings).await.expect("it opens");
    built.build_chunk(0..48, iter(blocks.iter().cloned().map(Ok))).await.expect("it is free");
    let sealed = writer.index().chunks();
    let whole: Vec<_> = sealed.iter().filter(|chunk| !chunk.is_piece()).collect();
    assert!(whole.len() >= 3, "{whole:?}");
    for (sealed, built) in whole.into_iter().zip(built.chunks()) {
        assert_eq!((&sealed.blocks, sealed.blake3), (&built.blocks, built.blake3));
    }
    check_answers(&built, &blocks).await.expect("all is there");
}

#[tokio::test(start_paused = true)]
async fn trap_8_garbage_collection_leaves_a_chunk_that_is_about_to_be_published() {
    let memory = MemoryStores::new(1);
    let blocks = life::blocks();
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[20..]).await.expect("they follow");
    let (collector, started) = (std::sync::Arc::new(writer), std::sync::Arc::new(()));
    for late in [false, true] {
        // Collects garbage before each operation of the builder; in the second round its attempt has expired by then.
        let hook = {
            let (collector, clock) = (collector.clone(), memory.clock.clone());
            let started = started.clone();
            logmill_io::Faults::before_each(move |_| {
                let (collector, clock) = (collector.clone(), clock.clone());
                let started = started.clone();
                Box::pin(async move {
                    if late {
                        clock.jump(logmill_io::millis(life::PAUSE));
                    }
                    collector.collect_garbage(GcMode::Delete).await.expect("it is held");
                    drop(started);
                })
            })
        };
        let stores = memory.stores.with_faults(&hook);
        let builder = LogIndex::open(stores, life::settings()).await.expect("it opens");
        let range = if late { 0..10 } else { 10..20 };
        let part = &blocks[usize::try_from(range.start).expect("small")..];
        let outcome = builder.build_chunk(range, iter(part.iter().cloned().map(Ok))).await;
        if late {
            assert!(matches!(outcome, Err(Error::AttemptOver { .. })), "{outcome:?}");
        } else {
            outcome.expect("its attempt is open");
        }
    }
    let index = collector.index();
    index.refresh().await.expect("it can be followed");
    assert_eq!(index.coverage(), std::slice::from_ref(&(10..56)));
    check_answers(index, &blocks).await.expect("all is there");
    memory.pause();
    collector.collect_garbage(GcMode::Delete).await.expect("it is held");
    let blobs = memory.stores.blobs.list("", None, 100).await.expect("it lists");
    let listed: usize = index.chunks().iter().map(|chunk| 1 + chunk.bodies.len()).sum();
    assert_eq!(blobs.len(), listed);
}

#[tokio::test(start_paused = true)]
async fn trap_9_the_lease_is_in_the_store_and_only_one_holds_it() {
    let memory = MemoryStores::new(1);
    let open =
        async || LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens");
    let one = open().await.writer("a").await.expect("it is free");
    let refused = open().await.writer("b").await;
    assert!(matches!(refused, Err(Error::Standby)), "{refused:?}");
    let lease = memory.stores.meta.get(&"lease/logindex/writer".into()).await.expect("it reads");
    assert!(lease.is_some(), "a record names the lease holder");
    memory.pause();
    let two = open().await.writer("b").await.expect("it has ended");
    assert!(two.epoch() > one.epoch());
    assert!(matches!(one.renew().await, Err(Error::Standby)));
    two.release().await.expect("it is held");
    let three = open().await.writer("c").await.expect("it was given back");
    assert!(three.epoch() > 2);
    assert!(memory.stores.meta.now().await.expect("it works") > Timestamp(0));
}

#[tokio::test(start_paused = true)]
async fn attempts_of_a_dead_builder_whose_clock_was_a_year_ahead_are_garbage() {
    const YEAR_MS: i64 = 365 * 24 * 3_600_000;
    let blocks = life::blocks();
    let mut left_behind = 0;
    for operation in 0.. {
        let memory = MemoryStores::new(1);
        let writer = write(&memory.stores).await.expect("it opens");
        writer.ingest_finalized_blocks(&blocks[20..]).await.expect("they follow");
        memory.clock.jump(YEAR_MS);
        let faults = logmill_io::Faults::at(operation, logmill_io::Fault::CrashAfter);
        let built = async {
            let builder =
                LogIndex::open(memory.stores.with_faults(&faults), life::settings()).await?;
            builder.build_chunk(10..20, iter(blocks[10..].iter().cloned().map(Ok))).await
        };
        if built.await.is_ok() {
            break;
        }
        memory.clock.jump(-YEAR_MS);
        let report = writer.collect_garbage(GcMode::Delete).await.expect("it is held");
        assert_eq!(report.chunks_in_flight, 0, "dead at operation {operation}");
        left_behind += report.attempts_given_up;
    }
    assert!(left_behind > 0, "some died with an attempt under way");
}
