//! What the index shows of its work: plans and figures of a query, and metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use finalized_log_index::{Filter, GcMode, LogIndex, Settings, Strategy};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::chain::{Skew, address, chain, scan, word};
use crate::crash_matrix::Ground;
use crate::life::{self, write};

#[tokio::test(start_paused = true)]
async fn explain_shows_the_order_of_clauses_and_the_work() {
    let ground = Ground::new(1);
    let blocks = chain(3, Skew::OneOff, 0, 200);
    let settings =
        Settings { cell_blocks: 128, chunk_logs: 1 << 20, piece_logs: 1 << 18, ..life::settings() };
    let index = LogIndex::open(ground.stores.clone(), settings).await.expect("it opens");
    let writer = index.writer("one").await.expect("it is free");
    writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let rare = blocks[..128].iter().flat_map(|block| &block.logs);
    let rare = rare.filter(|log| log.topics.len() > 1).nth(40).expect("there is one");
    // A hot address, then a rare topic: the rare one goes first, and the page it points to is all that is read.
    let filter = Filter::range(0..=199).address(rare.address).topic(1, rare.topics[1]);
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
    // A term that is nowhere costs no page.
    let nowhere = Filter::range(0..=199).topic(0, word(77_777));
    let explained = index.explain(&nowhere).await.expect("it is covered");
    assert_eq!((explained.pages_read(), explained.candidates(), explained.results), (0, 0, 0));
    assert!(explained.sources.iter().all(|source| source.strategy == Strategy::Nothing));
    // No clause: a scan of the pages of the range.
    let explained = index.explain(&Filter::range(10..=20)).await.expect("it is covered");
    assert_eq!(explained.sources[0].strategy, Strategy::Scan);
    assert_eq!(explained.sources[0].pages_read, explained.sources[0].pages_in_range as u64);
}

fn values(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let all = snapshotter.snapshot().into_vec().into_iter();
    all.map(|(key, _, _, value)| (key.key().name().to_owned(), value)).collect()
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
            let ground = Ground::new(1);
            let blocks = life::blocks();
            let old = write(&ground.stores).await.expect("it opens");
            old.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
            old.maintain().await.expect("it works");
            for _ in 0..2 {
                let filter = Filter::range(0..=49).address(address(1)).topic(0, word(3));
                old.index().query_finalized(&filter).await.expect("it is covered");
            }
            old.collect_garbage(GcMode::DryRun).await.expect("it works");
            let new = write(&ground.stores).await.expect("the same owner takes it over");
            old.ingest_finalized_block(blocks[50].clone()).await.expect_err("it was replaced");
            drop(new);
        });
    });
    let values = values(&snapshotter);
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
    for name in ["tail_logs", "tail_lag_blocks", "gc_orphan_bytes", "gc_orphan_chunks"] {
        assert!(gauge(&format!("log_index_{name}")) > 0.0, "{name}");
    }
    for name in ["gc_stale_changes", "gc_stale_tail_records"] {
        assert!(gauge(&format!("log_index_{name}")) >= 0.0, "{name}");
    }
}

/// What was logged, as lines of JSON.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_lines_carry_the_fields_that_the_document_names() {
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
            let ground = Ground::new(2);
            let writer = write(&ground.stores).await.expect("it opens");
            let blocks = chain(3, Skew::Hot, 0, 20);
            writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
            let filter = Filter::range(0..=19).address(address(0));
            writer.index().query_finalized(&filter).await.expect("it is covered");
        });
    });
    let lines = lines.0.lock().expect("nobody panics").clone();
    let text = String::from_utf8(lines).expect("text");
    let with = |message: &str| {
        let found = text.lines().find(|line| line.contains(&format!("\"message\":\"{message}\"")));
        let line = found.unwrap_or_else(|| panic!("no line says {message}:\n{text}"));
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["fields"].clone()
    };
    let indexed = with("indexed");
    assert_eq!(indexed["block_num"], 19);
    assert_eq!(indexed["writer_epoch"], 1);
    assert!(indexed["state_version"].is_i64(), "{indexed}");
    let looked_up = with("looked up");
    assert_eq!(looked_up["query_id"], 0);
    let stream = looked_up["stream_id"].as_str().expect("a text");
    assert!(stream.starts_with("addr/") && stream.len() == 15, "{stream}");
    assert_eq!(with("answered")["query_id"], 0);
}
