//! The result as JSON and as a table.

use serde_json::{Value, json};

use super::DeriveResult;
use super::engine::CopyResult;
use super::settings::Settings;

/// Result of one engine and set of processors.
pub struct DeriveMeasurement {
    pub engine: String,
    pub set: String,
    pub derived: DeriveResult,
    pub rows: Vec<(String, u64)>,
    pub copied: CopyResult,
    pub bytes: u64,
}

#[allow(clippy::cast_precision_loss)] // Far below 2^52.
fn per(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

pub fn json(
    machine: Value,
    settings: &Settings,
    held: (u64, u64),
    all: &[DeriveMeasurement],
) -> Value {
    let measured = all.iter().map(|one| {
        let count = |name: &str| one.rows.iter().find(|(table, _)| table == name).map(|row| row.1);
        let transfers = count("ft_transfers").unwrap_or(0) + count("nft_transfers").unwrap_or(0);
        let rows: u64 = one.rows.iter().map(|(_, rows)| rows).sum();
        let seconds = one.derived.seconds - one.derived.index_seconds;
        json!({
            "engine": one.engine,
            "processors": one.set,
            "transfers": transfers,
            "transfers_per_second": per(transfers, seconds),
            "logs_per_second": per(held.1, seconds),
            "rows": rows,
            "rows_per_second": per(rows, seconds),
            "seconds": seconds,
            "seconds_of_indexes": one.derived.index_seconds,
            "cpu_seconds": one.derived.cpu_seconds,
            "cpu_us_per_transfer": one.derived.cpu_seconds * 1e6 / per(transfers, 1.0),
            "engine_copy_rows_per_second": per(one.copied.rows, one.copied.seconds),
            "share_of_engine_copy": one.copied.seconds / seconds,
            "bytes": one.bytes,
            "parts": one.derived.parts(held.0, transfers, settings.parts),
            "tables": one.rows.iter().map(|(name, rows)| json!({"table": name, "rows": rows})).collect::<Vec<_>>(),
        })
    });
    json!({
        "machine": machine,
        "blocks": held.0,
        "logs": held.1,
        "settings": {
            "seed": settings.seed,
            "logs_per_block": settings.logs_per_block,
            "senders": settings.senders.name(),
            "chunk": settings.chunk,
        },
        "measured": measured.collect::<Vec<_>>(),
    })
}

pub fn table(result: &Value) -> String {
    let mut text =
        format!("senders: {}\n", result["settings"]["senders"].as_str().unwrap_or_default());
    text.push_str(
        "engine      processors  transfers/s  rows/s    cpu µs/transfer  share of copy  last part\n",
    );
    for one in result["measured"].as_array().into_iter().flatten() {
        let number = |key: &str| one[key].as_f64().unwrap_or(0.0);
        let parts = one["parts"].as_array();
        let last = parts.and_then(|parts| parts.last());
        let last = last.and_then(|part| part["rows_per_second"].as_f64()).unwrap_or(0.0);
        text.push_str(&format!(
            "{:<11} {:<11} {:>11.0} {:>8.0} {:>16.1} {:>14.2} {:>10.0}\n",
            one["engine"].as_str().unwrap_or_default(),
            one["processors"].as_str().unwrap_or_default(),
            number("transfers_per_second"),
            number("rows_per_second"),
            number("cpu_us_per_transfer"),
            number("share_of_engine_copy"),
            last,
        ));
    }
    text
}
