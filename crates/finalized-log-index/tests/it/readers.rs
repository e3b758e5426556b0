//! Readers in another process, beside a writer: whatever happens between two of their operations, they see one
//! snapshot.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use finalized_log_index::{Error, Filter, GcMode, LogIndex, Resolution, Writer};
use futures::stream::iter;
use futures::{StreamExt, TryStreamExt};
use logmill_io::Faults;

use crate::chain::scan;
use crate::fixture::MemoryStores;
use crate::life::{self, STEPS, check_answers, look, step, write};

#[tokio::test(start_paused = true)]
async fn a_reader_is_right_between_any_two_operations_of_the_writer() {
    let memory = MemoryStores::new(4);
    let blocks = Arc::new(life::blocks());
    let reader = LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens");
    let hook = {
        let blocks = Arc::clone(&blocks);
        Faults::before_each(move |_| {
            let (reader, blocks) = (reader.clone(), Arc::clone(&blocks));
            Box::pin(async move { look(&reader, &blocks).await })
        })
    };
    let writer = write(&memory.stores.with_faults(&hook)).await.expect("it opens");
    for number in 0..STEPS {
        step(&writer, &blocks, number).await.expect("nothing is in the way");
    }
    assert!(hook.operations() > 100, "{hook:?}");
}

/// Runs two steps of the scenario just before operation `at` of a reader that follows; returns the number of
/// operations of opening.
async fn follow_while(first: usize, at: u64) -> u64 {
    let memory = MemoryStores::new(4);
    let blocks = Arc::new(life::blocks());
    let writer = Arc::new(write(&memory.stores).await.expect("it opens"));
    for number in 0..first {
        step(&writer, &blocks, number).await.expect("nothing is in the way");
    }
    let start = Arc::new(AtomicU64::new(u64::MAX));
    let hook = {
        let (blocks, start) = (Arc::clone(&blocks), Arc::clone(&start));
        Faults::before_each(move |number| {
            let now = start.load(SeqCst).checked_add(at);
            let (writer, blocks) = (Arc::clone(&writer), Arc::clone(&blocks));
            Box::pin(async move {
                if now == Some(number) {
                    for number in first..STEPS.min(first + 2) {
                        step(&writer, &blocks, number).await.expect("nothing is in the way");
                    }
                }
            })
        })
    };
    let stores = memory.stores.with_faults(&hook);
    let reader = LogIndex::open(stores.clone(), life::settings()).await.expect("it opens");
    let opened = hook.operations();
    // A reader that was already open, and one that opens now.
    for reader in [Some(reader), None] {
        start.store(hook.operations(), SeqCst);
        let reader = match reader {
            Some(reader) => {
                reader.refresh().await.expect("it can be followed");
                reader
            }
            None => LogIndex::open(stores.clone(), life::settings()).await.expect("it opens"),
        };
        start.store(u64::MAX, SeqCst);
        look(&reader, &blocks).await;
    }
    opened
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_follows_while_the_writer_moves_on_sees_one_snapshot() {
    for first in 0..STEPS {
        let mut at = 0;
        while at < follow_while(first, at).await {
            at += 1;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_sealed_while_a_reader_follows_is_not_seen_twice() {
    let blocks = life::blocks();
    // One batch, which no seal deletes before all of it is sealed, so that the tail can still be read late.
    for at in 0..9 {
        for opens in [false, true] {
            let memory = MemoryStores::new(4);
            let writer = Arc::new(write(&memory.stores).await.expect("it opens"));
            let settings = life::settings();
            let known = LogIndex::open(memory.stores.clone(), settings.clone()).await;
            drop(known.expect("it opens"));
            writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
            let armed = Arc::new(AtomicU64::new(u64::MAX));
            let hook = {
                let (writer, armed) = (Arc::clone(&writer), Arc::clone(&armed));
                Faults::before_each(move |number| {
                    let now = armed.load(SeqCst) == number;
                    let writer = Arc::clone(&writer);
                    Box::pin(async move {
                        if now {
                            assert!(writer.seal_next().await.expect("it works"));
                        }
                    })
                })
            };
            let stores = memory.stores.with_faults(&hook);
            if opens {
                armed.store(at, SeqCst);
            }
            let reader = LogIndex::open(stores, settings).await.expect("it opens");
            if !opens {
                armed.store(hook.operations() + at, SeqCst);
                reader.refresh().await.expect("it can be followed");
            }
            check_answers(&reader, &blocks).await.expect("all is there");
            assert_eq!(reader.coverage(), [0..56], "at {at}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_process_of_a_writer_that_was_replaced_reads_what_the_new_one_wrote() {
    let blocks = life::blocks();
    for builds in [false, true] {
        let memory = MemoryStores::new(4);
        let old = write(&memory.stores).await.expect("it opens");
        old.ingest_finalized_blocks(&blocks[10..40]).await.expect("they follow");
        let new = LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens");
        memory.pause();
        let new = new.writer("two").await.expect("the old one's lease is over");
        new.ingest_finalized_blocks(&blocks[40..]).await.expect("they follow");
        new.maintain().await.expect("it works");
        // The old writer does not know yet that it was replaced.
        if builds {
            let history = iter(blocks[..10].iter().cloned().map(Ok));
            old.index().build_chunk(0..10, history).await.expect("any process may build");
        } else {
            old.index().refresh().await.expect("it can be followed");
        }
        let covered = old.index().coverage();
        assert!(covered.windows(2).all(|pair| pair[0].end < pair[1].start), "{covered:?}");
        check_answers(old.index(), &blocks).await.expect("all is there");
    }
}

async fn disturb(writer: &Writer) {
    writer.maintain().await.expect("it works");
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_whose_chunks_were_merged_away_plans_again() {
    let blocks = Arc::new(life::blocks());
    let filters = life::filters(&blocks, 0, 49);
    let mut replanned = 0;
    for filter in filters {
        for at in 0..40 {
            let memory = MemoryStores::new(4);
            let writer = Arc::new(write(&memory.stores).await.expect("it opens"));
            writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
            while writer.seal_next().await.expect("it works") {}
            let start = Arc::new(AtomicU64::new(u64::MAX));
            let hook = {
                let (start, writer) = (Arc::clone(&start), Arc::clone(&writer));
                Faults::before_each(move |number| {
                    let now = start.load(SeqCst);
                    let writer = Arc::clone(&writer);
                    Box::pin(async move {
                        if now == number {
                            disturb(&writer).await;
                        }
                    })
                })
            };
            let stores = memory.stores.with_faults(&hook);
            let reader = LogIndex::open(stores, life::settings()).await.expect("it opens");
            start.store(hook.operations() + at, SeqCst);
            let before = hook.operations();
            let page = reader.query_finalized(&filter).await.expect("all is there");
            assert_eq!(page.logs, scan(&blocks, &filter), "{filter:?} at {at}");
            assert_eq!(reader.health().degraded, None, "{filter:?} at {at}");
            replanned += usize::from(reader.chunks().len() < 5);
            if hook.operations() <= before + at {
                break;
            }
        }
    }
    assert!(replanned > 10, "only {replanned} queries were planned again");
}

#[tokio::test(start_paused = true)]
async fn a_stream_resumes_where_it_was_when_its_chunks_are_gone() {
    let blocks = life::blocks();
    let memory = MemoryStores::new(4);
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    while writer.seal_next().await.expect("it works") {}
    let reader = LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens");
    let filter = Filter::range(0..=49);
    let mut stream = Box::pin(reader.query_stream(filter.clone()));
    let mut logs = stream.next().await.expect("there is some").expect("all is there");
    disturb(&writer).await;
    logs.extend(stream.try_concat().await.expect("it plans again"));
    assert_eq!(logs, scan(&blocks, &filter));
}

#[tokio::test(start_paused = true)]
async fn lookups_find_blocks_whose_chunks_were_merged() {
    let blocks = life::blocks();
    let memory = MemoryStores::new(4);
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    while writer.seal_next().await.expect("it works") {}
    let open =
        async || LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens");
    let readers = [open().await, open().await, open().await, open().await];
    disturb(&writer).await;
    let block = blocks.iter().find(|block| block.logs.len() > 5).expect("there is one");
    let found = readers[0].block_by_number(block.number).await.expect("it looks again");
    assert_eq!(found, Some(block.info()));
    let found = readers[1].block_by_hash(&block.hash).await.expect("it looks again");
    assert_eq!(found, Some(block.info()));
    let found = readers[2].logs_of_transaction(&block.logs[0].transaction_hash).await;
    assert_eq!(found.expect("it looks again")[0].log, block.logs[0]);
    let page = readers[3].query_finalized(&Filter::block_hash(block.hash)).await;
    assert_eq!(page.expect("it looks again").logs.len(), block.logs.len());
    assert!(readers.iter().all(|reader| reader.health().degraded.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_pruned_or_discarded_blocks_gets_an_error() {
    let blocks = life::blocks();
    for pruned in [true, false] {
        let memory = MemoryStores::new(4);
        let writer = write(&memory.stores).await.expect("it opens");
        writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
        writer.maintain().await.expect("it works");
        let settings = life::settings();
        let reader = LogIndex::open(memory.stores.clone(), settings).await.expect("it opens");
        if pruned {
            assert!(writer.prune_below(20).await.expect("it works") > 0);
        } else {
            writer.resolve(Resolution::RebuildFrom(0)).await.expect("it works");
        }
        writer.collect_garbage(GcMode::Delete).await.expect("it works");
        let outcome = reader.query_finalized(&Filter::range(0..=40)).await;
        match outcome {
            Err(Error::Pruned { floor }) => assert!(pruned && floor > 0),
            Err(Error::NotCovered { covered, .. }) => assert!(!pruned && covered.is_empty()),
            other => panic!("{other:?}"),
        }
        assert_eq!(reader.health().degraded, None);
        check_answers(&reader, &blocks).await.expect("what is left is there");
    }
}

/// Servers spawn them.
#[test]
fn the_futures_of_queries_and_writes_can_move_between_threads() {
    fn send<T: Send>(_: impl FnOnce() -> T) {}
    fn index() -> &'static LogIndex {
        unreachable!("only its type is looked at")
    }
    fn writer() -> &'static Writer {
        unreachable!("only its type is looked at")
    }
    send(|| index().query_finalized(&FILTER));
    send(|| index().explain(&FILTER));
    send(|| index().query_stream(FILTER.clone()));
    send(|| index().block_by_number(0));
    send(|| index().block_by_hash(&finalized_log_index::B256::ZERO));
    send(|| index().logs_of_transaction(&finalized_log_index::B256::ZERO));
    send(|| index().refresh());
    send(|| writer().maintain());
    send(|| writer().ingest_finalized_blocks(&[]));
    send(|| writer().collect_garbage(GcMode::DryRun));
    send(|| writer().resolve(Resolution::Keep));
}

static FILTER: Filter = Filter {
    blocks: finalized_log_index::Blocks::Hash(finalized_log_index::B256::ZERO),
    addresses: Vec::new(),
    topics: Vec::new(),
    max_results: None,
};
