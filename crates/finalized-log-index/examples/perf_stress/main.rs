//! Measures the speed and size of the index: ingests a seeded chain that resembles mainnet, times queries of several
//! classes, and compares samples of the answers with a scan.
//!
//! ```text
//! cargo run --release -p finalized-log-index --example perf_stress -- --blocks 20000 --logs-per-block 120
//! ```
//!
//! The time of ingest includes all sealing and merging, but not generating the blocks. Absolute times mean little on
//! a shared machine; CPU times, bytes and ratios do.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_arithmetic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a measuring program: it reads clocks, creates folders, prints, and stops at the first error"
)]

mod measure;
mod queries;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use finalized_log_index::workload::{Workload, WorkloadSettings};
use finalized_log_index::{FinalizedBlock, GcMode, LogIndex, Settings, Stores, Writer};
use futures::stream::iter;
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::{Durability, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, Tasks};
use measure::{cpu_seconds, folder_bytes, peak_rss_bytes, topic0_bits_per_log};

/// Fills an index with a chain that resembles mainnet and queries it.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// Number of blocks.
    #[arg(long, default_value_t = 20_000)]
    blocks: u64,
    /// Average number of logs per block.
    #[arg(long, default_value_t = 120)]
    logs_per_block: u32,
    /// Number of queries of each class.
    #[arg(long, default_value_t = 2_000)]
    queries: usize,
    /// Blocks per cell, a power of two.
    #[arg(long, default_value_t = 8_192)]
    chunk_size: u64,
    /// Result limit of the queries that have one.
    #[arg(long, default_value_t = 10_000)]
    max_results: usize,
    /// Number of blocks per durable commit.
    #[arg(long, default_value_t = 64)]
    commit_blocks: usize,
    /// Number of blocks generated between measurements; fewer take less memory.
    #[arg(long, default_value_t = 4_096)]
    slice_blocks: u64,
    /// Seed of the chain.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of workers that build chunks of history, instead of one writer that ingests; 0 to ingest.
    #[arg(long, default_value_t = 0)]
    builders: usize,
    /// Size of the read cache, in MiB.
    #[arg(long, default_value_t = 64)]
    cache_mib: u64,
    /// Folder for the index; a temporary one if not given.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Cost of ingest.
#[derive(Debug, Default)]
struct IngestCost {
    logs: u64,
    wall: Duration,
    cpu_s: f64,
}

fn main() {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(run(&options));
}

async fn run(options: &Options) {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = options.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    let index = open(options, &folder).await;
    let workload = WorkloadSettings {
        seed: options.seed,
        first_block: 0,
        logs_per_block: options.logs_per_block,
    };
    let mut chain = Workload::new(workload);
    let ingested = match options.builders {
        0 => ingest(options, &index, &mut chain).await,
        builders => build(options, &index, workload, builders).await,
    };
    if options.builders > 0 {
        chain.by_ref().take(usize::try_from(options.blocks).expect("small")).for_each(drop);
    }
    let peak_rss = peak_rss_bytes();
    let bytes = folder_bytes(&folder);
    let chunks = index.chunks();
    let values: u64 = chunks.iter().map(|chunk| chunk.values).sum();
    let index_bytes: u64 = chunks.iter().map(|chunk| chunk.index_bytes).sum();
    let classes = queries::run(options, &index, &chain.terms()).await;
    let checked = queries::check(options, &index, workload, &chain.terms()).await;
    let seconds = ingested.wall.as_secs_f64();
    let mut report = serde_json::json!({
        "blocks": options.blocks,
        "logs": ingested.logs,
        "builders": options.builders,
        "commit_blocks": options.commit_blocks,
        "logs_per_s": (ingested.logs as f64 / seconds).round(),
        "logs_per_cpu_s": (ingested.logs as f64 / ingested.cpu_s).round(),
        "ingest_s": seconds,
        "bytes_per_log": bytes as f64 / ingested.logs as f64,
        "index_bytes_per_value": index_bytes as f64 / values.max(1) as f64,
        "topic0_bits_per_log": topic0_bits_per_log(Workload::new(workload), 1 << 20),
        "chunks": chunks.len(),
        "peak_rss_bytes": peak_rss,
        "answers_checked": checked,
    });
    report["queries"] = serde_json::Value::Object(classes);
    print(options, &report);
}

async fn open(options: &Options, folder: &Path) -> LogIndex {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let sqlite = SqliteSettings::file(folder.join("index.db"));
    let sql = Sql::sqlite(&sqlite, Arc::clone(&clock), Arc::clone(&entropy)).await;
    let sql = sql.expect("the database opens");
    let blobs = FileBlobs::open_with(folder.join("blobs"), Durability::Full);
    let stores =
        Stores { meta: SqlMeta::shared(sql), blobs: blobs.expect("a folder"), clock, entropy };
    let settings = Settings {
        cell_blocks: options.chunk_size,
        merge_cpu_percent: 100,
        cache_bytes: options.cache_mib << 20,
        ..Settings::default()
    };
    LogIndex::open(stores, settings).await.expect("the index opens")
}

/// Adds all blocks in durable commits of `commit_blocks`, with maintenance running concurrently.
async fn ingest(options: &Options, index: &LogIndex, chain: &mut Workload) -> IngestCost {
    let writer = Arc::new(index.writer("perf_stress").await.expect("no other process writes"));
    let mut maintenance = Tasks::new();
    let maintained = Arc::clone(&writer);
    maintenance.spawn(async move { maintained.maintain_always().await.map(|_| ()) });
    let mut done = IngestCost::default();
    let mut left = options.blocks;
    while left > 0 {
        let count = left.min(options.slice_blocks);
        let slice: Vec<FinalizedBlock> =
            chain.take(usize::try_from(count).expect("small")).collect();
        done.logs += slice.iter().map(|block| block.logs.len() as u64).sum::<u64>();
        let (started, cpu) = (Instant::now(), cpu_seconds());
        for blocks in slice.chunks(options.commit_blocks) {
            writer.ingest_finalized_blocks(blocks).await.expect("they follow");
        }
        settle(&writer).await;
        done.wall += started.elapsed();
        done.cpu_s += cpu_seconds() - cpu;
        left -= count;
        let rate = done.logs as f64 / done.wall.as_secs_f64();
        eprint!("\r{} of {} blocks, {rate:.0} logs/s   ", options.blocks - left, options.blocks);
    }
    eprintln!();
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
    done
}

/// Seals and merges everything that is left, so that no work is missing from the measurement.
async fn settle(writer: &Writer) {
    writer.maintain().await.expect("it works");
}

/// Builds all cells with several workers.
async fn build(
    options: &Options,
    index: &LogIndex,
    workload: WorkloadSettings,
    builders: usize,
) -> IngestCost {
    let count = usize::try_from(options.blocks).expect("small");
    let blocks: Vec<FinalizedBlock> = Workload::new(workload).take(count).collect();
    let blocks = Arc::new(blocks);
    let logs = blocks.iter().map(|block| block.logs.len() as u64).sum();
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let cell = usize::try_from(options.chunk_size).expect("small");
    let mut cells: Vec<std::ops::Range<usize>> =
        (0..count).step_by(cell).map(|start| start..(start + cell).min(count)).collect();
    let mut tasks = Tasks::new();
    loop {
        while tasks.len() < builders
            && let Some(range) = cells.pop()
        {
            let (index, blocks) = (index.clone(), Arc::clone(&blocks));
            tasks.spawn(async move {
                let numbers = range.start as u64..range.end as u64;
                let source = iter(range.map(move |at| Ok(blocks[at].clone())));
                index.build_chunk(numbers, source).await.map(|_| ())
            });
        }
        match tasks.join_next().await {
            None => break,
            Some(built) => built.expect("it works").expect("it is free"),
        }
    }
    IngestCost { logs, wall: started.elapsed(), cpu_s: cpu_seconds() - cpu }
}

fn print(options: &Options, report: &serde_json::Value) {
    if options.json {
        println!("{report}");
        return;
    }
    for (name, value) in report.as_object().expect("an object") {
        if name != "queries" {
            println!("{name:<24} {value}");
        }
    }
    println!("{:<36} {:>10} {:>10} {:>10}", "query", "p50_us", "p99_us", "results");
    for (name, class) in report["queries"].as_object().expect("an object") {
        let shown = |field: &str| class[field].to_string();
        println!(
            "{name:<36} {:>10} {:>10} {:>10}",
            shown("p50_us"),
            shown("p99_us"),
            shown("results")
        );
    }
}
