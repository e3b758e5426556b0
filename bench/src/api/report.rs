//! The result as one JSON object and as a table. A rate is the median of the rounds, with minimum and maximum; a
//! latency is a percentile over all rounds.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::endpoint::ENDPOINTS;
use super::settings::Settings;
use crate::machine;
use crate::report::{NONE, aligned, number};
use crate::rpc::load::Sample;
use crate::rpc::report::figures;

/// Samples by endpoint and connections, one per round.
pub type Samples = BTreeMap<(&'static str, usize), Vec<Sample>>;

#[derive(Debug)]
pub struct Measurements {
    pub samples: Samples,
    pub blocks: u64,
    /// Number of rows of every table.
    pub rows: Vec<(String, u64)>,
    /// Size of the database file of the tables.
    pub tables_bytes: u64,
}

/// The whole result. `machine` was taken before the run.
pub fn json(machine: Value, settings: &Settings, measured: &Measurements) -> Value {
    let mut endpoints = Map::new();
    for endpoint in ENDPOINTS.iter().filter(|endpoint| settings.asks(endpoint.name)) {
        let samples = measured.samples.iter().filter(|((name, _), _)| *name == endpoint.name);
        let by = samples.map(|((_, connections), all)| (connections.to_string(), figures(all)));
        endpoints.insert(endpoint.name.to_owned(), Value::Object(by.collect()));
    }
    let rows = &measured.rows;
    let transfers = rows.iter().find(|(name, _)| name == "ft_transfers").map(|(_, rows)| rows);
    let tables = rows.iter().map(|(name, rows)| (name.clone(), json!(rows)));
    json!({
        "benchmark": "api",
        "machine": machine,
        "versions": {
            "rustc": machine::rustc_version(),
            "logmill": env!("CARGO_PKG_VERSION"),
            "sqlite": rusqlite::version(),
        },
        "settings": {
            "seed": settings.seed,
            "blocks": measured.blocks,
            "logs_per_block": settings.logs_per_block,
            "questions": settings.questions,
            "checked": settings.checked,
            "seconds": settings.seconds,
            "rounds": settings.rounds,
            "tuning": "none: default settings; the load generator is one thread on the same cores",
        },
        "transfers": transfers,
        "rows": rows.iter().map(|(_, rows)| rows).sum::<u64>(),
        "tables": tables.collect::<Map<_, _>>(),
        "tables_bytes": measured.tables_bytes,
        "endpoints": endpoints,
    })
}

/// The human-readable table, made from the JSON object so that both agree.
pub fn table(result: &Value) -> String {
    let shown = |value: &Value| number(value).unwrap_or_else(|| NONE.to_owned());
    let mut text = format!(
        "api: {} transfers in {} blocks, {} rows on SQLite, {} rounds of {} s\n\n",
        shown(&result["transfers"]),
        shown(&result["settings"]["blocks"]),
        shown(&result["rows"]),
        result["settings"]["rounds"],
        result["settings"]["seconds"],
    );
    let names = [
        "requests_per_s",
        "p50_us",
        "p99_us",
        "bytes_per_answer",
        "server_cpu_us_per_request",
        "client_cpu_us_per_request",
    ];
    let head = ["endpoint", "connections"].into_iter().chain(names);
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for (endpoint, by) in result["endpoints"].as_object().into_iter().flatten() {
        for (connections, figures) in by.as_object().into_iter().flatten() {
            let cells = names.iter().map(|name| shown(&figures[name]));
            rows.push([endpoint.clone(), connections.clone()].into_iter().chain(cells).collect());
        }
    }
    text.push_str(&aligned(&rows));
    text
}
