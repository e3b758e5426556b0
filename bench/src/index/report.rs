//! The result as one JSON object and as a table.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::engine::Engine;
use super::queries::Class;
use super::rounds::{Figures, Measurements, QueryTimes, Slice, rate};
use super::settings::{COMMIT_BLOCKS, Settings};
use crate::machine;
use crate::report::{NONE, aligned, number, rounded};

/// Rows of the table, besides the queries.
const METRICS: &[&str] = &[
    "ingest_logs_per_s",
    "ingest_first_slice_logs_per_s",
    "ingest_last_slice_logs_per_s",
    "ingest_cpu_us_per_log",
    "ingest_commit_per_block_blocks_per_s",
    "ingest_commit_per_block_ms",
    "bytes_per_log",
    "index_bytes_per_value",
];

/// The whole result. `machine` was taken before the run.
pub fn json(
    machine: Value,
    settings: &Settings,
    engines: &[Box<dyn Engine>],
    measured: &Measurements,
) -> Value {
    let mut versions = Map::new();
    versions.insert("rustc".into(), machine::rustc_version().into());
    let mut entries = Map::new();
    for engine in engines {
        for (name, version) in engine.versions() {
            versions.insert(name.into(), version.into());
        }
        if let Some(figures) = measured.engines.get(engine.name()) {
            let mut entry = figures_json(figures, measured);
            entry.insert("tuning".into(), engine.tuning().into());
            entries.insert(engine.name().into(), entry.into());
        }
    }
    json!({
        "benchmark": "index",
        "machine": machine,
        "versions": versions,
        "settings": {
            "blocks": measured.blocks,
            "logs": measured.logs,
            "indexed_values": measured.values,
            "logs_per_block": settings.logs_per_block,
            "commit_blocks": COMMIT_BLOCKS,
            "single_blocks": settings.single_blocks,
            "queries_per_class_and_round": settings.queries,
            "class_limit_s": settings.class_limit_s,
            "rounds": settings.rounds,
            "seed": settings.seed,
        },
        "engines": entries,
        "append_and_fsync_per_block": append_json(&measured.append),
    })
}

fn figures_json(figures: &Figures, measured: &Measurements) -> Map<String, Value> {
    let all = total(figures.batches.iter().chain([&figures.settle]));
    let singles = total(&figures.singles);
    let slice_rate = |slice: Option<&Slice>| slice.map(|s| rate(s.logs, s.cost.elapsed));
    let cpu_s = all.cost.client_cpu.as_secs_f64() + all.server_cpu_s;
    let value = |value: f64, digits: i32| rounded(value, digits);
    let mut entry = Map::new();
    let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
    put("ingest_logs_per_s", value(rate(all.logs, all.cost.elapsed), 0));
    let (first, last) = (figures.batches.first(), figures.batches.last());
    put("ingest_first_slice_logs_per_s", json!(slice_rate(first).map(|rate| value(rate, 0))));
    put("ingest_last_slice_logs_per_s", json!(slice_rate(last).map(|rate| value(rate, 0))));
    put("ingest_cpu_us_per_log", value(per(cpu_s * 1e6, all.logs), 2));
    put("ingest_client_cpu_s", value(all.cost.client_cpu.as_secs_f64(), 2));
    put("ingest_server_cpu_s", value(all.server_cpu_s, 2));
    put("ingest_settle_s", value(figures.settle.cost.elapsed.as_secs_f64(), 2));
    let per_block = rate(singles.blocks, singles.cost.elapsed);
    put("ingest_commit_per_block_blocks_per_s", value(per_block, 1));
    put("ingest_commit_per_block_ms", value(1e3 / per_block, 3));
    put("ingest_commit_per_block_logs_per_s", value(rate(singles.logs, singles.cost.elapsed), 0));
    put("bytes_per_log", value(per(to_float(figures.disk_bytes), measured.logs), 1));
    // Logs that are still in the tail of our index have no chunk, and so no index on disk.
    let index = figures
        .index_size
        .map(|size| (size.bytes, size.values.unwrap_or(measured.values)))
        .filter(|(_, values)| *values > 0)
        .map(|(bytes, values)| per(to_float(bytes), values));
    put("index_bytes_per_value", json!(index.map(|bytes| value(bytes, 2))));
    let queries =
        figures.asked.iter().map(|(class, asked)| (class.name().to_owned(), asked_json(asked)));
    put("queries", Value::Object(queries.collect()));
    entry
}

fn asked_json(asked: &QueryTimes) -> Value {
    let mut pooled: Vec<Duration> = asked.times.iter().flatten().copied().collect();
    pooled.sort();
    let queries = pooled.len();
    let by_round = asked.times.iter().filter_map(|times| {
        let mut times = times.clone();
        times.sort();
        percentile_us(&times, 50)
    });
    let by_round: Vec<f64> = by_round.collect();
    let least = by_round.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = by_round.iter().copied().fold(0.0, f64::max);
    json!({
        "p50_us": percentile_us(&pooled, 50).map(|us| rounded(us, 1)),
        "p99_us": percentile_us(&pooled, 99).map(|us| rounded(us, 1)),
        "p50_us_of_rounds": {"min": rounded(least, 1), "max": rounded(greatest, 1)},
        "results": asked.results,
        "queries": queries,
    })
}

fn append_json(slices: &[Slice]) -> Value {
    let all = total(slices);
    let per_s = rate(all.blocks, all.cost.elapsed);
    json!({ "blocks_per_s": rounded(per_s, 1), "ms": rounded(1e3 / per_s, 3) })
}

fn total<'a>(slices: impl IntoIterator<Item = &'a Slice>) -> Slice {
    slices.into_iter().fold(Slice::default(), |mut sum, slice| {
        sum.logs += slice.logs;
        sum.blocks += slice.blocks;
        sum.cost += slice.cost;
        sum.server_cpu_s += slice.server_cpu_s;
        sum
    })
}

/// The human-readable table, made from the JSON object so that both agree.
pub fn table(result: &Value) -> String {
    let settings = &result["settings"];
    let engines: Vec<(&String, &Value)> =
        result["engines"].as_object().into_iter().flatten().collect();
    let row = |name: &str, cell: &dyn Fn(&Value) -> String| -> Vec<String> {
        let cells = engines.iter().map(|(_, entry)| cell(entry));
        std::iter::once(name.to_owned()).chain(cells).collect()
    };
    let names = engines.iter().map(|(name, _)| (*name).clone());
    let mut rows = vec![std::iter::once(String::new()).chain(names).collect::<Vec<_>>()];
    for metric in METRICS {
        rows.push(row(metric, &|entry| shown(&entry[metric])));
    }
    for class in Class::ALL {
        rows.push(row(&format!("{}: p50 / p99 µs", class.name()), &|entry| {
            let asked = &entry["queries"][class.name()];
            format!("{} / {}", shown(&asked["p50_us"]), shown(&asked["p99_us"]))
        }));
        rows.push(row("    results per query", &|entry| {
            let asked = &entry["queries"][class.name()];
            let results = asked["results"].as_u64().zip(asked["queries"].as_u64());
            results.map_or(NONE.to_owned(), |(results, queries)| {
                (results / queries.max(1)).to_string()
            })
        }));
    }
    format!(
        "index: {} blocks, {} logs, commit per {} blocks, rounds {}\n\n{}\nappend and fsync per block: {} ms\n",
        shown(&settings["blocks"]),
        shown(&settings["logs"]),
        settings["commit_blocks"],
        settings["rounds"],
        aligned(&rows),
        shown(&result["append_and_fsync_per_block"]["ms"]),
    )
}

/// Numbers from 100 on are rounded.
fn shown(value: &Value) -> String {
    match value.as_f64() {
        Some(large) if large >= 100.0 => number(&rounded(large, 0)),
        Some(small) => Some(small.to_string()),
        None => None,
    }
    .unwrap_or_else(|| NONE.to_owned())
}

fn per(amount: f64, count: u64) -> f64 {
    amount / to_float(count.max(1))
}

#[allow(clippy::cast_precision_loss)] // Counts of a run are far below 2^52.
fn to_float(count: u64) -> f64 {
    count as f64
}

/// The smallest of the sorted values that at least `percent` of them do not exceed.
fn percentile_us(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    Some(sorted.get(rank - 1)?.as_secs_f64() * 1e6)
}
