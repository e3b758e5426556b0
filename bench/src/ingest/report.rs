//! The result as one JSON object and as a table: medians over the rounds.

use serde_json::{Map, Value, json};

use super::Cost;
use super::settings::Settings;
use super::stages::FileContents;
use super::whole::IngestResult;
use crate::machine;
use crate::report::{NONE, aligned, median, number, rounded};

/// Result of one round.
#[derive(Clone, Debug)]
pub struct Round {
    pub held: FileContents,
    pub read: Cost,
    pub convert: Cost,
    pub build: Cost,
    pub era1: IngestResult,
    /// Like `era1`, with senders recovered and stored.
    pub with_senders: IngestResult,
    /// From the node, with the node's CPU seconds.
    pub node: Option<(IngestResult, f64)>,
}

/// The whole result. `machine` was taken before the run.
pub fn json(machine: Value, settings: &Settings, rounds: &[Round]) -> Value {
    let first = rounds.first();
    let held = first.map(|round| round.held).unwrap_or_default();
    let mut engines = Map::new();
    engines.insert("era1".into(), whole_json(rounds, |round| Some(&round.era1)));
    engines.insert("era1_senders".into(), whole_json(rounds, |round| Some(&round.with_senders)));
    if rounds.iter().any(|round| round.node.is_some()) {
        let mut entry = whole_json(rounds, |round| round.node.as_ref().map(|(whole, _)| whole));
        let node = rounds.iter().filter_map(|round| round.node.as_ref().map(|(_, cpu)| *cpu));
        entry["node_cpu_s"] = middle(node.collect(), 2);
        engines.insert("node".into(), entry);
    }
    json!({
        "benchmark": "ingest",
        "machine": machine,
        "versions": {
            "rustc": machine::rustc_version(),
            "logmill": env!("CARGO_PKG_VERSION"),
            "sqlite": rusqlite::version(),
        },
        "settings": {
            "blocks": held.blocks,
            "transactions": held.transactions,
            "logs": held.logs,
            "node_blocks": settings.node_blocks,
            "rounds": settings.rounds,
            "seed": settings.seed,
            "tuning": "none: default settings, SQLite with synchronous=FULL, chunks and bodies in files, synced",
        },
        "engines": engines,
        "stages": stages_json(rounds),
    })
}

fn whole_json<'a>(
    rounds: &'a [Round],
    of: impl Fn(&'a Round) -> Option<&'a IngestResult>,
) -> Value {
    let all: Vec<&IngestResult> = rounds.iter().filter_map(of).collect();
    let figure = |digits: i32, figure: &dyn Fn(&IngestResult) -> f64| {
        middle(all.iter().map(|whole| figure(whole)).collect(), digits)
    };
    json!({
        "blocks": all.first().map(|whole| whole.blocks),
        "logs": all.first().map(|whole| whole.logs),
        "seconds": figure(2, &|whole| whole.covered.wall.as_secs_f64()),
        "blocks_per_s": figure(0, &|whole| ratio(whole.blocks, whole.covered.wall.as_secs_f64())),
        "logs_per_s": figure(0, &|whole| ratio(whole.logs, whole.covered.wall.as_secs_f64())),
        "seconds_until_sealed": figure(2, &|whole| whole.sealed.wall.as_secs_f64()),
        "logs_per_s_until_sealed":
            figure(0, &|whole| ratio(whole.logs, whole.sealed.wall.as_secs_f64())),
        "cpu_s": figure(2, &|whole| whole.sealed.cpu_s),
        "cpu_us_per_log": figure(2, &|whole| whole.sealed.cpu_s * 1e6 / float(whole.logs)),
        "cores_busy":
            figure(2, &|whole| whole.covered.cpu_s / whole.covered.wall.as_secs_f64().max(1e-9)),
        "peak_memory_mib": figure(0, &|whole| float(whole.sealed.peak_bytes) / 1_048_576.0),
        "index_bytes_per_log":
            figure(1, &|whole| ratio(whole.chunk_bytes, float(whole.chunk_logs))),
        "body_bytes_per_block":
            figure(0, &|whole| ratio(whole.body_bytes, float(whole.body_blocks))),
        "body_bytes_per_transaction": figure(1, &|whole| {
            let blocks = float(whole.body_blocks) / float(whole.blocks).max(1.0);
            let transactions = whole.transactions.map_or(0.0, float) * blocks;
            ratio(whole.body_bytes, transactions)
        }),
        "folder_bytes_per_log": figure(1, &|whole| ratio(whole.folder_bytes, float(whole.logs))),
    })
}

fn stages_json(rounds: &[Round]) -> Value {
    let figure = |cpu: &dyn Fn(&Round) -> f64| {
        let per_million = |round: &Round| cpu(round) * 1e6 / float(round.held.logs).max(1.0);
        let share = |round: &Round| 100.0 * cpu(round) / round.era1.sealed.cpu_s.max(1e-9);
        json!({
            "cpu_s_per_million_logs": middle(rounds.iter().map(per_million).collect(), 3),
            "cpu_percent": middle(rounds.iter().map(share).collect(), 1),
        })
    };
    json!({
        "read_and_verify": figure(&|round| round.read.cpu_s),
        "convert": figure(&|round| round.convert.cpu_s - round.read.cpu_s),
        "build_in_memory": figure(&|round| round.build.cpu_s - round.convert.cpu_s),
        "tail_stores_jobs": figure(&|round| round.era1.sealed.cpu_s - round.build.cpu_s),
        "whole": figure(&|round| round.era1.sealed.cpu_s),
        "read_and_verify_logs_per_s": middle(
            rounds
                .iter()
                .map(|round| ratio(round.held.logs, round.read.wall.as_secs_f64()))
                .collect(),
            0,
        ),
        "build_in_memory_logs_per_s": middle(
            rounds
                .iter()
                .map(|round| ratio(round.held.logs, round.build.wall.as_secs_f64()))
                .collect(),
            0,
        ),
    })
}

/// The human-readable table, made from the JSON object so that both agree.
pub fn table(result: &Value) -> String {
    let settings = &result["settings"];
    let shown = |value: &Value| number(value).unwrap_or_else(|| NONE.to_owned());
    let mut text = format!(
        "ingest: {} blocks, {} transactions, {} logs, rounds={}\n\n",
        shown(&settings["blocks"]),
        shown(&settings["transactions"]),
        shown(&settings["logs"]),
        settings["rounds"],
    );
    let none = Map::new();
    let engines = result["engines"].as_object().unwrap_or(&none);
    let mut rows = vec![std::iter::once(String::new()).chain(engines.keys().cloned()).collect()];
    for name in engines.values().next().and_then(Value::as_object).into_iter().flat_map(Map::keys) {
        let cells = engines.values().map(|engine| shown(&engine[name]));
        rows.push(std::iter::once(name.clone()).chain(cells).collect::<Vec<_>>());
    }
    text.push_str(&aligned(&rows));
    let mut rows =
        vec![vec!["CPU by stage".into(), "s per million logs".into(), "percent".to_owned()]];
    for (name, stage) in result["stages"].as_object().unwrap_or(&none) {
        if stage.is_object() {
            let (cpu, share) = (&stage["cpu_s_per_million_logs"], &stage["cpu_percent"]);
            rows.push(vec![name.clone(), shown(cpu), shown(share)]);
        } else {
            rows.push(vec![name.clone(), shown(stage)]);
        }
    }
    text.push('\n');
    text.push_str(&aligned(&rows));
    text
}

fn middle(values: Vec<f64>, digits: i32) -> Value {
    median(&values).map_or(Value::Null, |value| rounded(value, digits))
}

fn ratio(count: u64, by: f64) -> f64 {
    if by > 0.0 { float(count) / by } else { 0.0 }
}

#[allow(clippy::cast_precision_loss)] // Bytes and logs of a run are far below 2^52.
fn float(count: u64) -> f64 {
    count as f64
}
