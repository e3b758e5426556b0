//! Rounds: the engines take turns, in an order that rotates every round, so that noise affects all alike.
//!
//! 1. Ingest: the chain is cut into as many slices as there are rounds; each engine ingests a slice with a commit per
//!    64 blocks, then a few blocks with a commit each. Generating the blocks is not timed.
//! 2. Deferred work of ingest is completed, and counted as ingest.
//! 3. A sample of each class of queries is run on every engine and compared, which also warms the caches.
//! 4. Queries: in each round every engine answers the same ones.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use finalized_log_index::FinalizedBlock;
use finalized_log_index::workload::{Workload, WorkloadSettings};

use super::answer::digest;
use super::append::AppendFile;
use super::engine::{Cost, Engine, IndexSize, QueryMode, cpu_time, thread_cpu_time};
use super::queries::{Chain, Class};
use super::settings::{COMMIT_BLOCKS, Settings};

/// Queries of each class that are compared.
const SAMPLES: u64 = 5;
/// Minimum number of queries of a class in a round, even for a slow engine.
const QUERIES_MIN: u64 = 3;
/// Every how many blocks one is queried by its hash.
const HASH_EVERY: u64 = 37;

/// Cost of one slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slice {
    pub logs: u64,
    pub blocks: u64,
    pub cost: Cost,
    pub server_cpu_s: f64,
}

/// Query times of one engine in one class, as a list per round.
#[derive(Clone, Debug, Default)]
pub struct QueryTimes {
    pub times: Vec<Vec<Duration>>,
    /// Total number of results of all queries.
    pub results: u64,
}

/// The figures of one engine.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub batches: Vec<Slice>,
    pub singles: Vec<Slice>,
    /// Deferred work of ingest.
    pub settle: Slice,
    pub disk_bytes: u64,
    pub index_size: Option<IndexSize>,
    pub asked: BTreeMap<Class, QueryTimes>,
}

#[derive(Debug, Default)]
pub struct Measurements {
    /// By engine name.
    pub engines: BTreeMap<&'static str, Figures>,
    /// Appending and syncing a block's bytes, per slice.
    pub append: Vec<Slice>,
    pub logs: u64,
    pub blocks: u64,
    /// Number of addresses and topics of all logs.
    pub values: u64,
}

pub async fn run(
    engines: &mut [Box<dyn Engine>],
    append: &mut AppendFile,
    settings: &Settings,
) -> anyhow::Result<Measurements> {
    let mut measured = Measurements::default();
    let chain = ingest(engines, append, settings, &mut measured).await?;
    for engine in engines.iter_mut() {
        let figures = measured.engines.entry(engine.name()).or_default();
        let cpu = engine.server_cpu_s()?;
        figures.settle.cost = engine.settle().await.context("settling")?;
        figures.settle.server_cpu_s = engine.server_cpu_s()? - cpu;
        engine.prepare_queries().await.context("preparing queries")?;
        figures.disk_bytes = engine.disk_bytes().await?;
        figures.index_size = engine.index_size().await?;
        eprintln!("  {}: settled in {:?}", engine.name(), figures.settle.cost.elapsed);
    }
    compare(engines, &chain).await?;
    for round in 0..settings.rounds {
        eprintln!("queries, round {} of {}", round + 1, settings.rounds);
        for at in turns(engines.len(), round) {
            let engine = &mut *engines[at];
            let figures = measured.engines.entry(engine.name()).or_default();
            for class in Class::ALL {
                let asked = figures.asked.entry(class).or_default();
                ask(engine, &chain, class, round, settings, asked).await?;
            }
        }
    }
    Ok(measured)
}

/// The order of engines in a round.
fn turns(engines: usize, round: u64) -> impl Iterator<Item = usize> {
    let first = usize::try_from(round).unwrap_or(0);
    (0..engines).map(move |turn| (turn + first) % engines)
}

async fn ingest(
    engines: &mut [Box<dyn Engine>],
    append: &mut AppendFile,
    settings: &Settings,
    measured: &mut Measurements,
) -> anyhow::Result<Chain> {
    let mut workload = Workload::new(WorkloadSettings {
        seed: settings.seed,
        logs_per_block: settings.logs_per_block,
        ..WorkloadSettings::default()
    });
    let mut blocks = BTreeMap::new();
    for round in 0..settings.rounds {
        let share = |all: u64| all * (round + 1) / settings.rounds - all * round / settings.rounds;
        let (batched, single) = (share(settings.blocks), share(settings.single_blocks));
        eprintln!("ingest, slice {} of {}", round + 1, settings.rounds);
        for at in turns(engines.len(), round) {
            let engine = &mut *engines[at];
            let mut source = workload.clone();
            let batches = slice(engine, &mut source, batched, COMMIT_BLOCKS).await;
            let batches = batches.with_context(|| format!("ingesting into {}", engine.name()))?;
            let singles = slice(engine, &mut source, single, 1).await?;
            let logs_per_s = rate(batches.logs, batches.cost.elapsed);
            eprintln!("  {}: {logs_per_s:.0} logs/s", engine.name());
            let figures = measured.engines.entry(engine.name()).or_default();
            figures.batches.push(batches);
            figures.singles.push(singles);
        }
        let mut appended = Slice::default();
        for (n, block) in workload.by_ref().take(usize::try_from(batched + single)?).enumerate() {
            measured.count(&block);
            if u64::try_from(n)? >= batched {
                appended.blocks += 1;
                appended.cost.elapsed += append.block(&block)?;
            }
            if block.number % HASH_EVERY == 0 {
                blocks.insert(block.number, block.hash);
            }
        }
        measured.append.push(appended);
    }
    let first = WorkloadSettings::default().first_block;
    let hashes = blocks.into_values().collect();
    Ok(Chain { terms: workload.terms(), first, last: first + measured.blocks - 1, hashes })
}

impl Measurements {
    fn count(&mut self, block: &FinalizedBlock) {
        let len = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.blocks += 1;
        self.logs += len(block.logs.len());
        self.values += block.logs.iter().map(|log| 1 + len(log.topics.len())).sum::<u64>();
    }
}

/// Ingests the next blocks with a commit per `commit` blocks.
async fn slice(
    engine: &mut dyn Engine,
    source: &mut Workload,
    blocks: u64,
    commit: u64,
) -> anyhow::Result<Slice> {
    let mut slice = Slice::default();
    let cpu = engine.server_cpu_s()?;
    // Over the whole slice, to include background work, minus generating the blocks.
    let client_cpu = cpu_time();
    let mut making = Duration::ZERO;
    while slice.blocks < blocks {
        let count = commit.min(blocks - slice.blocks);
        let before = thread_cpu_time();
        let batch: Vec<_> = source.by_ref().take(usize::try_from(count)?).collect();
        making += thread_cpu_time().saturating_sub(before);
        slice.blocks += count;
        slice.logs += u64::try_from(batch.iter().map(|block| block.logs.len()).sum::<usize>())?;
        slice.cost += engine.ingest(batch).await?;
        // Engines in this process never yield; this lets an interrupt be handled.
        tokio::task::yield_now().await;
    }
    slice.server_cpu_s = engine.server_cpu_s()? - cpu;
    if engine.works_in_this_process() {
        slice.cost.client_cpu = (cpu_time() - client_cpu).saturating_sub(making);
    }
    Ok(slice)
}

/// Fails unless all engines answer a sample of each class with the same bytes.
async fn compare(engines: &mut [Box<dyn Engine>], chain: &Chain) -> anyhow::Result<()> {
    for class in Class::ALL {
        for n in 0..SAMPLES {
            let filter = chain.query(class, n);
            let mut first = None;
            for engine in engines.iter_mut() {
                let answer = engine.query(&filter, QueryMode::Logs).await;
                let answer = answer.with_context(|| format!("{}: {class:?}", engine.name()))?;
                let seen = (answer.results, digest(&answer));
                let (name, expected) = *first.get_or_insert((engine.name(), seen));
                ensure!(
                    seen == expected,
                    "{} and {name} differ on {filter:?}: {} and {} results",
                    engine.name(),
                    seen.0,
                    expected.0,
                );
            }
        }
    }
    eprintln!("answers are equal: {SAMPLES} queries of each class");
    Ok(())
}

async fn ask(
    engine: &mut dyn Engine,
    chain: &Chain,
    class: Class,
    round: u64,
    settings: &Settings,
    asked: &mut QueryTimes,
) -> anyhow::Result<()> {
    let limit = Duration::from_secs(settings.class_limit_s);
    let mut times = Vec::new();
    let mut spent = Duration::ZERO;
    for n in 0..settings.queries {
        if n >= QUERIES_MIN && spent > limit {
            break;
        }
        let filter = chain.query(class, round * settings.queries + n);
        let answer = engine.query(&filter, QueryMode::Time).await;
        let answer = answer.with_context(|| format!("{}: {class:?}", engine.name()))?;
        asked.results += u64::try_from(answer.results)?;
        spent += answer.elapsed;
        times.push(answer.elapsed);
        tokio::task::yield_now().await;
    }
    asked.times.push(times);
    Ok(())
}

/// Count per second.
#[allow(clippy::cast_precision_loss)] // Counts of a run are far below 2^52.
pub(super) fn rate(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64().max(1e-9)
}
