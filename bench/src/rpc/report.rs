//! The result as one JSON object and as a table. A rate is the median of the rounds, with minimum and maximum; a
//! latency is a percentile over all rounds.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::chain::{FilledChain, QuestionClass};
use super::load::Sample;
use super::settings::Settings;
use crate::machine;
use crate::report::{NONE, aligned, median, number, rounded};

/// Samples by engine, class and connections, one per round.
pub type Samples = BTreeMap<(&'static str, &'static str, usize), Vec<Sample>>;

/// The engine that is called in process; it has no connections.
pub const DIRECT: &str = "logmill-in-process";

#[derive(Debug)]
pub struct Measurements {
    pub filled: FilledChain,
    pub samples: Samples,
    pub catch_up_s: f64,
    pub anvil_version: String,
}

/// The whole result. `machine` was taken before the run.
pub fn json(
    machine: Value,
    settings: &Settings,
    classes: &[QuestionClass],
    measured: &Measurements,
) -> Value {
    let mut engines: Map<String, Value> = Map::new();
    for ((engine, class, connections), samples) in &measured.samples {
        let entry = engines.entry((*engine).to_owned()).or_insert_with(|| json!({}));
        entry[class][connections.to_string()] = figures(samples);
    }
    for class in classes {
        for connections in &settings.connections {
            let at = connections.to_string();
            let rate = |engine: &str| engines[engine][class.name][&at]["requests_per_s"].as_f64();
            let times = rate("logmill").zip(rate("anvil")).map(|(ours, theirs)| ours / theirs);
            engines["logmill"][class.name][&at]["times_anvil"] =
                times.map_or(Value::Null, |times| rounded(times, 1));
        }
    }
    let questions = classes.iter().map(|class| {
        let results = class.questions.iter().map(|question| question.results);
        let (min, max) = (results.clone().min(), results.max());
        (
            class.name.to_owned(),
            json!({"questions": class.questions.len(), "results_min": min, "results_max": max}),
        )
    });
    json!({
        "benchmark": "rpc",
        "machine": machine,
        "versions": {
            "rustc": machine::rustc_version(),
            "logmill": env!("CARGO_PKG_VERSION"),
            "anvil": measured.anvil_version,
        },
        "settings": {
            "blocks": settings.blocks,
            "logs": measured.filled.logs,
            "seconds": settings.seconds,
            "rounds": settings.rounds,
            "classes": questions.collect::<Map<String, Value>>(),
            "tuning": "none: both with default settings; the load generator is one thread on the same cores",
        },
        "catch_up_s": rounded(measured.catch_up_s, 2),
        "engines": engines,
    })
}

pub(crate) fn figures(samples: &[Sample]) -> Value {
    let rates: Vec<f64> =
        samples.iter().map(|sample| float(sample.latencies_us.len()) / sample.seconds).collect();
    let mut latencies: Vec<u32> =
        samples.iter().flat_map(|sample| sample.latencies_us.iter().copied()).collect();
    latencies.sort_unstable();
    let percentile = |percent: usize| {
        let at = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
        latencies.get(at).copied()
    };
    let count = float(latencies.len()).max(1.0);
    let each = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    json!({
        "requests_per_s": median(&rates).map(|rate| rounded(rate, 0)),
        "requests_per_s_min": rates.iter().copied().reduce(f64::min).map(|rate| rounded(rate, 0)),
        "requests_per_s_max": rates.iter().copied().reduce(f64::max).map(|rate| rounded(rate, 0)),
        "p50_us": percentile(50),
        "p99_us": percentile(99),
        "bytes_per_answer": rounded(each(&|sample| bytes(sample.bytes)), 0),
        "server_cpu_us_per_request": rounded(each(&|sample| sample.server_cpu_s * 1e6), 1),
        "client_cpu_us_per_request": rounded(each(&|sample| sample.client_cpu_s * 1e6), 1),
    })
}

/// The human-readable table, made from the JSON object so that both agree.
pub fn table(result: &Value) -> String {
    let shown = |value: &Value| number(value).unwrap_or_else(|| NONE.to_owned());
    let settings = &result["settings"];
    let mut text = format!(
        "rpc: eth_getLogs over {} logs in {} blocks, {} rounds of {} s\n\n",
        shown(&settings["logs"]),
        shown(&settings["blocks"]),
        settings["rounds"],
        settings["seconds"],
    );
    let names = ["requests_per_s", "p50_us", "p99_us", "server_cpu_us_per_request", "times_anvil"];
    let head = ["class", "connections", "engine"].into_iter().chain(names);
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    let none = Map::new();
    for class in settings["classes"].as_object().unwrap_or(&none).keys() {
        for (engine, entry) in result["engines"].as_object().unwrap_or(&none) {
            let mut by: Vec<(&String, &Value)> =
                entry[class].as_object().unwrap_or(&none).iter().collect();
            by.sort_by_key(|(connections, _)| connections.parse::<u64>().unwrap_or(0));
            for (connections, figures) in by {
                let cells = names.iter().map(|name| shown(&figures[name]));
                let row = [class.clone(), connections.clone(), engine.clone()];
                rows.push(row.into_iter().chain(cells).collect());
            }
        }
    }
    text.push_str(&aligned(&rows));
    text
}

#[allow(clippy::cast_precision_loss)] // Requests of a run are far below 2^52.
fn float(count: usize) -> f64 {
    count as f64
}

#[allow(clippy::cast_precision_loss)] // So are bytes.
fn bytes(count: u64) -> f64 {
    count as f64
}
