//! What the index reports about its work: explanations of queries, metrics and log lines.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use finalized_log_index::{Filter, FinalizedBlock, GcMode, LogIndex, Result, Settings, Strategy};
use futures::stream::{Stream, iter};
use logmill_io::Faults;
use metrics::{SharedString, Unit};
use metrics_util::CompositeKey;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::chain::{Skew, address, chain, scan, word};
use crate::fixture::MemoryStores;
use crate::life::{self, write};

/// An index of a chunk and a tail, its blocks, and a filter of a hot address and a rare topic of the chunk.
async fn with_a_rare_topic() -> (LogIndex, Vec<FinalizedBlock>, Filter) {
    let memory = MemoryStores::new(1);
    let blocks = chain(3, Skew::OneOff, 0, 200);
    let settings =
        Settings { cell_blocks: 128, chunk_logs: 1 << 20, piece_logs: 1 << 18, ..life::settings() };
    let index = LogIndex::open(memory.stores.clone(), settings).await.expect("it opens");
    let writer = index.writer("one").await.expect("it is free");
    writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let rare = blocks[..128].iter().flat_map(|block| &block.logs);
    let rare = rare.filter(|log| log.topics.len() > 1).nth(40).expect("there is one");
    let filter = Filter::range(0..=199).address(rare.address).topic(1, rare.topics[1]);
    (index, blocks, filter)
}

#[tokio::test(start_paused = true)]
async fn explain_shows_the_order_of_clauses_and_the_work() {
    let (index, blocks, filter) = with_a_rare_topic().await;
    // The rare topic goes first, and the page it points to is all that is read.
    let explained = index.explain(&filter).await.expect("it is covered");
    let results = scan(&blocks, &filter).len() as u64;
    assert_eq!(explained.results, results);
    assert_eq!(explained.sources.len(), 2, "a chunk and the tail");
    assert_eq!(explained.replans, 0);
    let chunk = &explained.sources[0];
    assert!(!chunk.in_tail && explained.sources[1].in_tail);
    assert_eq!((chunk.blocks.clone(), &explained.sources[1].blocks), (0..128, &(128..200)));
    let kinds: Vec<&str> = chunk.clauses.iter().map(|clause| clause.kind.as_str()).collect();
    assert_eq!(kinds, ["addr", "topic1"]);
    let Strategy::Index(order) = &chunk.strategy else {
        panic!("{chunk:?}");
    };
    let estimates: Vec<u64> = order.iter().map(|clause| chunk.clauses[*clause].estimate).collect();
    assert!(estimates.is_sorted(), "the most selective first: {chunk:?}");
    assert!(chunk.pages_read < chunk.pages_in_range as u64, "{chunk:?}");
    assert!(chunk.bytes_read > 0 && chunk.matched >= 1 && chunk.candidates >= chunk.matched);
    assert_eq!(explained.sources.iter().map(|source| source.matched).sum::<u64>(), results);
    // A term that does not occur costs no page.
    let nowhere = Filter::range(0..=199).topic(0, word(77_777));
    let explained = index.explain(&nowhere).await.expect("it is covered");
    assert_eq!((explained.pages_read(), explained.candidates(), explained.results), (0, 0, 0));
    assert!(explained.sources.iter().all(|source| source.strategy == Strategy::Nothing));
    // Without clauses, the pages of the range are scanned.
    let explained = index.explain(&Filter::range(10..=20)).await.expect("it is covered");
    assert_eq!(explained.sources[0].strategy, Strategy::Scan);
    assert_eq!(explained.sources[0].pages_read, explained.sources[0].pages_in_range as u64);
}

type RecordedMetrics = Vec<(CompositeKey, Option<Unit>, Option<SharedString>, DebugValue)>;

fn values(recorded: RecordedMetrics) -> BTreeMap<String, DebugValue> {
    let all = recorded.into_iter();
    all.map(|(key, _, _, value)| (key.key().name().to_owned(), value)).collect()
}

#[test]
fn the_candidates_of_each_clause_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let explained = metrics::with_local_recorder(&recorder, || {
        runtime.expect("a runtime").block_on(async {
            let (index, _, filter) = with_a_rare_topic().await;
            index.explain(&filter).await.expect("it is covered")
        })
    });
    let chunk = &explained.sources[0];
    let Strategy::Index(order) = &chunk.strategy else { panic!("{chunk:?}") };
    let looked_up: BTreeSet<&str> =
        order.iter().map(|clause| chunk.clauses[*clause].kind.as_str()).collect();
    let recorded = snapshotter.snapshot().into_vec();
    let mut counted = BTreeSet::new();
    for (key, _, _, value) in &recorded {
        if key.key().name() != "log_index_candidates" {
            continue;
        }
        let DebugValue::Histogram(values) = value else { panic!("{value:?}") };
        assert!(values.iter().all(|value| value.into_inner() >= 1.0), "{values:?}");
        let labels = key.key().labels().filter(|label| label.key() == "clause");
        counted.extend(labels.map(metrics::Label::value));
    }
    assert!(!looked_up.is_empty(), "{chunk:?}");
    assert_eq!(counted, looked_up, "a histogram for each clause that was looked up");
}

/// Builds a part of history while another process builds another, just before the operation `at` of the first; returns
/// how many operations there were, and the count of publications that were tried again.
fn race(at: u64) -> (u64, u64) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let operations = metrics::with_local_recorder(&recorder, || {
        runtime.expect("a runtime").block_on(async {
            let memory = MemoryStores::new(1);
            let blocks = Arc::new(life::blocks());
            let writer = write(&memory.stores).await.expect("it opens");
            writer.ingest_finalized_blocks(&blocks[16..30]).await.expect("they follow");
            let other = LogIndex::open(memory.stores.clone(), life::settings()).await;
            let (other, theirs) = (other.expect("it opens"), Arc::clone(&blocks));
            let start = Arc::new(AtomicU64::new(u64::MAX));
            let begun = Arc::clone(&start);
            let hook = Faults::before_each(move |number| {
                let (other, theirs) = (other.clone(), Arc::clone(&theirs));
                let now = begun.load(SeqCst).checked_add(at) == Some(number);
                Box::pin(async move {
                    if now {
                        other.build_chunk(5..12, part(&theirs, 5..12)).await.expect("it is free");
                    }
                })
            });
            let stores = memory.stores.with_faults(&hook);
            let ours = LogIndex::open(stores, life::settings()).await.expect("it opens");
            start.store(hook.operations(), SeqCst);
            ours.build_chunk(12..16, part(&blocks, 12..16)).await.expect("it is tried again");
            let operations = hook.operations() - start.load(SeqCst);
            start.store(u64::MAX, SeqCst);
            ours.refresh().await.expect("it can be followed");
            let first = if at < operations { 5 } else { 12 };
            assert_eq!(ours.coverage(), [first..30], "at {at}");
            operations
        })
    });
    let retried = values(snapshotter.snapshot().into_vec()).remove("log_index_cas_retries_total");
    let Some(DebugValue::Counter(retried)) = retried else { return (operations, 0) };
    (operations, retried)
}

fn part(
    blocks: &[FinalizedBlock],
    range: Range<usize>,
) -> impl Stream<Item = Result<FinalizedBlock>> + Send + use<> {
    let blocks: Vec<FinalizedBlock> = blocks[range].to_vec();
    iter(blocks.into_iter().map(Ok))
}

#[test]
fn a_publication_that_loses_a_race_is_tried_again_and_counted() {
    let (mut at, mut counts) = (0, BTreeSet::new());
    loop {
        let (operations, retried) = race(at);
        if at >= operations {
            break;
        }
        counts.insert(retried);
        at += 1;
    }
    assert_eq!(counts, BTreeSet::from([0, 1]), "at some operation, once");
}

#[tokio::test(start_paused = true)]
async fn an_index_opens_while_its_newest_chunks_are_read_in_the_background() {
    let memory = MemoryStores::new(1);
    let writer = write(&memory.stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&life::blocks()[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    assert!(writer.index().chunks().len() > 3);
    let plain = Faults::before_each(|_| Box::pin(async {}));
    LogIndex::open(memory.stores.with_faults(&plain), life::settings()).await.expect("it opens");
    let opening = plain.operations();
    // All later reads wait.
    let (open, opened) = tokio::sync::watch::channel(false);
    let hook = Faults::before_each(move |number| {
        let mut opened = opened.clone();
        Box::pin(async move {
            if number >= opening {
                opened.wait_for(|open| *open).await.expect("the test goes on");
            }
        })
    });
    let settings = Settings { warm_chunks: 3, ..life::settings() };
    let stores = memory.stores.with_faults(&hook);
    let index = LogIndex::open(stores, settings).await.expect("nothing waits for the chunks");
    let wait = || tokio::time::sleep(Duration::from_millis(1));
    while hook.operations() <= opening {
        wait().await;
    }
    open.send(true).expect("the hook listens");
    while hook.operations() < opening + 3 {
        wait().await;
    }
    drop(index);
}

#[test]
fn every_documented_metric_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let memory = MemoryStores::new(1);
            let blocks = life::blocks();
            let old = write(&memory.stores).await.expect("it opens");
            old.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
            old.maintain().await.expect("it works");
            for _ in 0..2 {
                let filter = Filter::range(0..=49).address(address(1)).topic(0, word(3));
                old.index().query_finalized(&filter).await.expect("it is covered");
            }
            old.collect_garbage(GcMode::DryRun).await.expect("it works");
            let new = write(&memory.stores).await.expect("the same owner takes it over");
            old.ingest_finalized_block(blocks[50].clone()).await.expect_err("it was replaced");
            drop(new);
        });
    });
    let snapshot = snapshotter.snapshot().into_vec();
    let values = values(snapshot);
    let counter = |name: &str| match values.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?}"),
    };
    let gauge = |name: &str| match values.get(name) {
        Some(DebugValue::Gauge(value)) => value.into_inner(),
        other => panic!("{name}: {other:?}"),
    };
    let histogram = |name: &str| match values.get(name) {
        Some(DebugValue::Histogram(values)) => values.len(),
        other => panic!("{name}: {other:?}"),
    };
    let logs: usize = life::blocks()[..50].iter().map(|block| block.logs.len()).sum();
    assert_eq!(counter("log_index_ingested_blocks_total"), 50);
    assert_eq!(counter("log_index_ingested_logs_total"), logs as u64);
    assert!(counter("log_index_chunks_sealed_total") > 3);
    assert_eq!(counter("log_index_lease_losses_total"), 1);
    for name in
        ["cache_hits_total", "cache_misses_total", "blob_reads_total", "blob_read_bytes_total"]
    {
        assert!(counter(&format!("log_index_{name}")) > 0, "{name}");
    }
    assert_eq!(histogram("log_index_ingest_seconds"), 1);
    assert_eq!(histogram("log_index_query_seconds"), 2);
    assert!(histogram("log_index_chunk_bytes") > 3);
    for name in ["tail_logs", "tail_blocks", "gc_orphan_bytes", "gc_orphan_chunks"] {
        assert!(gauge(&format!("log_index_{name}")) > 0.0, "{name}");
    }
    assert!(gauge("log_index_tail_lag_blocks") < 0.5, "all that is complete has been sealed");
    for name in ["gc_stale_changes", "gc_stale_tail_records"] {
        assert!(gauge(&format!("log_index_{name}")) >= 0.0, "{name}");
    }
}

/// Captured log output, as lines of JSON.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no thread panics while holding it").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_lines_carry_the_specified_fields() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let memory = MemoryStores::new(2);
            let writer = write(&memory.stores).await.expect("it opens");
            let blocks = chain(3, Skew::Hot, 0, 20);
            writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
            let filter = Filter::range(0..=19).address(address(0));
            writer.index().query_finalized(&filter).await.expect("it is covered");
        });
    });
    let lines = lines.0.lock().expect("no thread panics while holding it").clone();
    let text = String::from_utf8(lines).expect("text");
    let with = |message: &str| {
        let found = text.lines().find(|line| line.contains(&format!("\"message\":\"{message}\"")));
        let line = found.unwrap_or_else(|| panic!("no line says {message}:\n{text}"));
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["fields"].clone()
    };
    let indexed = with("indexed blocks");
    assert_eq!(indexed["block_num"], 19);
    assert_eq!(indexed["writer_epoch"], 1);
    assert!(indexed["state_version"].is_i64(), "{indexed}");
    let looked_up = with("looked up a term");
    assert_eq!(looked_up["query_id"], 0);
    let stream = looked_up["stream_id"].as_str().expect("a text");
    assert!(stream.starts_with("addr/") && stream.len() == 15, "{stream}");
    assert_eq!(with("answered a query")["query_id"], 0);
}
