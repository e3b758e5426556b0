//! The result as one JSON object and as a table: medians over the rounds, with the lowest and highest rate.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Run;
use super::chain::TokenChain;
use super::settings::{PONDER, Settings};
use crate::machine;
use crate::postgres::FIXED_SETTINGS;
use crate::report::{NONE, aligned, median, number, rounded};

/// Runs by engine, one per round.
pub type Runs = BTreeMap<String, Vec<Run>>;

/// Versions behind the figures.
#[derive(Clone, Debug)]
pub struct Versions {
    pub anvil: String,
    pub node_js: String,
    pub postgresql: String,
    /// Ponder and the packages it is installed with.
    pub packages: Map<String, Value>,
}

/// The whole result. `machine` was taken before the run.
pub fn json(
    machine: Value,
    versions: &Versions,
    settings: &Settings,
    chain: &TokenChain,
    runs: &Runs,
) -> Value {
    let mut engines = Map::new();
    for name in &settings.engines {
        let of = |of: &str| runs.get(of).map_or(&[][..], Vec::as_slice);
        let mut entry = figures(of(name), chain.transfers);
        let times = |key: &str, part: &dyn Fn(&Run) -> f64| {
            let seconds = |runs: &[Run]| median(&runs.iter().map(part).collect::<Vec<_>>());
            let times =
                seconds(of(PONDER)).zip(seconds(of(name))).map(|(theirs, ours)| theirs / ours);
            (key.to_owned(), times.map_or(Value::Null, |times| rounded(times, 1)))
        };
        entry.extend([
            times("times_ponder", &|run| run.seconds),
            times("times_ponder_after_start", &|run| run.seconds - run.start_seconds),
        ]);
        engines.insert(name.clone(), entry.into());
    }
    let postgres = FIXED_SETTINGS.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let Settings { blocks, transactions, transfers, holders, rounds, .. } = settings;
    json!({
        "benchmark": "ponder",
        "machine": machine,
        "versions": {
            "rustc": machine::rustc_version(),
            "logmill": env!("CARGO_PKG_VERSION"),
            "anvil": versions.anvil,
            "node": versions.node_js,
            "postgresql": versions.postgresql,
            "packages": versions.packages,
        },
        "settings": {
            "events": chain.transfers,
            "blocks": blocks,
            "transactions_per_block": transactions,
            "transfers_per_transaction": transfers,
            "holders": holders,
            "holders_with_a_balance": chain.balances.len(),
            "rounds": rounds,
            "tuning": if settings.same_work {
                "none, but Logmill with token_worker and ft_holdings_worker alone"
            } else {
                "none: both indexers with default settings, Logmill with every processor"
            },
            "postgresql": postgres.collect::<Map<String, Value>>(),
            "synchronous_commit": "on",
            "fsync": "on",
        },
        "engines": engines,
    })
}

fn figures(runs: &[Run], events: u64) -> Map<String, Value> {
    #[allow(clippy::cast_precision_loss)] // Events of a run are far below 2^52.
    let events = events as f64;
    let middle = |of: &dyn Fn(&Run) -> Option<f64>, digits: i32| {
        let values: Option<Vec<f64>> = runs.iter().map(of).collect();
        values.and_then(|values| median(&values)).map_or(Value::Null, |v| rounded(v, digits))
    };
    let rates = runs.iter().map(|run| events / run.seconds);
    let (min, max) = (rates.clone().reduce(f64::min), rates.reduce(f64::max));
    let cpu = |run: &Run| run.indexer_cpu_s + run.database_cpu_s.unwrap_or(0.0);
    let rows = runs.first().map_or(&[][..], |run| &run.rows);
    let figures = [
        ("events_per_s", middle(&|run| Some(events / run.seconds), 0)),
        ("events_per_s_min", json!(min.map(|rate| rounded(rate, 0)))),
        ("events_per_s_max", json!(max.map(|rate| rounded(rate, 0)))),
        (
            "events_per_s_after_start",
            middle(&|run| Some(events / (run.seconds - run.start_seconds)), 0),
        ),
        ("seconds", middle(&|run| Some(run.seconds), 2)),
        ("start_seconds", middle(&|run| Some(run.start_seconds), 2)),
        ("indexer_cpu_s", middle(&|run| Some(run.indexer_cpu_s), 2)),
        ("database_cpu_s", middle(&|run| run.database_cpu_s, 2)),
        ("node_cpu_s", middle(&|run| Some(run.node_cpu_s), 2)),
        ("indexer_and_database_cpu_us_per_event", middle(&|run| Some(cpu(run) * 1e6 / events), 1)),
        ("rows", rows.iter().map(|(_, rows)| rows).sum::<u64>().into()),
        ("tables", rows.iter().map(|(name, rows)| (name.clone(), json!(rows))).collect()),
    ];
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The human-readable table, made from the JSON object so that both agree.
pub fn table(result: &Value) -> String {
    let shown = |value: &Value| number(value).unwrap_or_else(|| NONE.to_owned());
    let settings = &result["settings"];
    let mut text = format!(
        "ponder: {} transfers in {} blocks among {} accounts, from a node to tables, median of {} rounds\n\n",
        shown(&settings["events"]),
        shown(&settings["blocks"]),
        shown(&settings["holders"]),
        settings["rounds"],
    );
    let names = [
        "events_per_s",
        "events_per_s_after_start",
        "seconds",
        "start_seconds",
        "indexer_cpu_s",
        "database_cpu_s",
        "node_cpu_s",
        "rows",
        "times_ponder",
        "times_ponder_after_start",
    ];
    let head = std::iter::once("engine").chain(names).map(str::to_owned);
    let mut rows = vec![head.collect::<Vec<_>>()];
    for (engine, entry) in result["engines"].as_object().into_iter().flatten() {
        let cells = names.iter().map(|name| shown(&entry[name]));
        rows.push(std::iter::once(engine.clone()).chain(cells).collect());
    }
    text.push_str(&aligned(&rows));
    text
}
