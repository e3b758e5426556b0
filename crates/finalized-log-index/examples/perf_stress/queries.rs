//! The classes of queries, their times, and checks of their answers.

use std::time::Instant;

use finalized_log_index::workload::{Terms, Workload, WorkloadSettings};
use finalized_log_index::{Address, B256, Blocks, Filter, Log, LogIndex};
use serde_json::{Map, Value, json};

use crate::Options;

/// Number of answers of each class that are compared with a scan.
const CHECKED: usize = 3;
/// Warm-up queries of each class, not measured, are this fraction of the measured ones.
const WARM_UP_SHARE: usize = 10;

const CLASSES: [&str; 8] = [
    "rare wallet topic, whole range",
    "address and topic0, 1000 blocks",
    "dense topic0, 100 blocks",
    "20 addresses of a block, limit, whole range",
    "20 rare addresses, limit, whole range",
    "absent topic, whole range",
    "last 10 blocks",
    "one block by hash",
];

/// Maps a counter to scattered numbers that do not repeat soon.
fn spread(n: usize) -> u64 {
    (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn filter(class: usize, n: usize, options: &Options, terms: &Terms, known: &KnownBlocks) -> Filter {
    let last = options.blocks - 1;
    let window = |length: u64| {
        let start = spread(n) % (options.blocks.saturating_sub(length)).max(1);
        start..=(start + length - 1).min(last)
    };
    match class {
        0 => {
            let wallet = terms.rare_wallet(spread(n)).unwrap_or_default();
            Filter::range(0..=last).topic(2, wallet)
        }
        1 => {
            let transfer = terms.transfer_topic();
            Filter::range(window(1_000)).address(terms.mid_address(spread(n))).topic(0, transfer)
        }
        2 => Filter::range(window(100)).topic(0, terms.transfer_topic()),
        3 => {
            let all = Filter::range(0..=last).limit(options.max_results);
            let block = &known.addresses[n % known.addresses.len()];
            block.iter().fold(all, |filter, address| filter.address(*address))
        }
        4 => {
            let all = Filter::range(0..=last).limit(options.max_results);
            (0..20).fold(all, |filter, i| {
                filter.address(terms.mid_address(spread(n).wrapping_add(i * 7)))
            })
        }
        5 => Filter::range(0..=last).topic(1, terms.absent_topic(spread(n))),
        6 => Filter::range(last.saturating_sub(9)..=last),
        _ => Filter::block_hash(known.hashes[n % known.hashes.len()]),
    }
}

/// Hashes and addresses of some blocks.
struct KnownBlocks {
    hashes: Vec<B256>,
    /// For each block, up to 20 addresses of its logs, popular and rare ones as they come.
    addresses: Vec<Vec<Address>>,
}

async fn some_blocks(options: &Options, index: &LogIndex) -> KnownBlocks {
    let mut known = KnownBlocks { hashes: Vec::new(), addresses: Vec::new() };
    for n in 0..200 {
        let number = spread(n) % options.blocks;
        let page = index.query_finalized(&Filter::range(number..=number)).await;
        let logs = page.expect("it is covered").logs;
        let Some(first) = logs.first() else {
            continue;
        };
        known.hashes.push(first.block_hash);
        let mut addresses: Vec<Address> = Vec::new();
        for log in &logs {
            if addresses.len() < 20 && !addresses.contains(&log.log.address) {
                addresses.push(log.log.address);
            }
        }
        known.addresses.push(addresses);
    }
    known
}

pub(crate) async fn run(options: &Options, index: &LogIndex, terms: &Terms) -> Map<String, Value> {
    if index.coverage().is_empty() {
        return Map::new();
    }
    let known = some_blocks(options, index).await;
    let mut report = Map::new();
    for (class, name) in CLASSES.iter().enumerate() {
        for n in 0..options.queries / WARM_UP_SHARE {
            let filter = filter(class, options.queries + n, options, terms, &known);
            index.query_finalized(&filter).await.expect("it is covered");
        }
        let mut times = Vec::with_capacity(options.queries);
        let mut results = 0;
        for n in 0..options.queries {
            let filter = filter(class, n, options, terms, &known);
            let started = Instant::now();
            let page = index.query_finalized(&filter).await.expect("it is covered");
            times.push(started.elapsed().as_nanos());
            results += page.logs.len();
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100] as f64 / 1_000.0;
        let mean = results as f64 / options.queries as f64;
        report.insert(
            (*name).to_owned(),
            json!({ "p50_us": at(50), "p99_us": at(99), "results": mean }),
        );
        eprintln!("{name}: p50 {:.0} us, p99 {:.0} us, {mean:.1} results", at(50), at(99));
    }
    report
}

/// Compares some answers of each class with a scan of the regenerated chain; returns how many.
pub(crate) async fn check(
    options: &Options,
    index: &LogIndex,
    workload: WorkloadSettings,
    terms: &Terms,
) -> usize {
    if index.coverage().is_empty() {
        return 0;
    }
    let known = some_blocks(options, index).await;
    let mut checks: Vec<(Filter, Vec<Log>, Vec<Log>)> = Vec::new();
    for class in 0..CLASSES.len() {
        for n in 0..CHECKED {
            let filter = filter(class, n, options, terms, &known);
            let answer = index.query_finalized(&filter).await.expect("it is covered").logs;
            checks.push((filter, answer, Vec::new()));
        }
    }
    let blocks = usize::try_from(options.blocks).expect("small");
    for block in Workload::new(workload).take(blocks) {
        for (filter, answer, scanned) in &mut checks {
            let inside = match &filter.blocks {
                Blocks::Range(range) | Blocks::Covered(range) => range.contains(&block.number),
                Blocks::Hash(hash) => *hash == block.hash,
            };
            // A limited answer is a prefix of the full one.
            if !inside || filter.max_results.is_some() && scanned.len() >= answer.len() {
                continue;
            }
            scanned.extend(block.logs.iter().filter(|log| filter.matches(log)).map(|log| Log {
                block_number: block.number,
                block_hash: block.hash,
                block_timestamp: block.timestamp,
                log: log.clone(),
            }));
        }
    }
    for (filter, answer, scanned) in &checks {
        assert!(answer == scanned, "a wrong answer to {filter:?}");
    }
    checks.len()
}
