//! The result as one JSON object and as a table: medians over the rounds, with the minimum and the maximum.

use serde_json::{Map, Value, json};

use crate::engine::{Engine, Store};
use crate::machine;
use crate::postgres::FIXED_SETTINGS;
use crate::rounds::{METRICS, Measurements, Samples};
use crate::settings::Settings;

/// Shown in place of a missing figure.
pub(crate) const NONE: &str = "—";

/// The whole result. `machine` was taken before the run, `server_version` is PostgreSQL's.
pub fn json(
    machine: Value,
    server_version: &str,
    settings: &Settings,
    engines: &[Box<dyn Engine>],
    measured: &Measurements,
) -> Value {
    json!({
        "benchmark": "queue",
        "machine": machine,
        "versions": versions(server_version, engines),
        "settings": settings_json(settings),
        "engines": engines_json(engines, measured),
        "pgbench": pgbench_json(measured),
    })
}

/// The human-readable table, made from the JSON object so that both agree.
pub fn table(result: &Value) -> String {
    let settings = &result["settings"];
    let mut text = format!(
        "queue: synchronous_commit={} fsync={} connections={} jobs={} rounds={}, median (min–max)\n\n",
        plain(&settings["synchronous_commit"]),
        plain(&settings["fsync"]),
        settings["connections"],
        settings["jobs"],
        settings["rounds"],
    );
    let engines: Vec<(&String, &Value)> =
        result["engines"].as_object().into_iter().flatten().collect();
    let mut rows = vec![header(&engines)];
    for metric in METRICS {
        let cells = engines.iter().map(|(_, engine)| cell(engine, metric));
        rows.push(std::iter::once((*metric).to_owned()).chain(cells).collect());
    }
    text.push_str(&aligned(&rows));
    let pgbench = &result["pgbench"];
    let commits = [
        ("pgbench, UPDATE by primary key, commits_per_s", "commits_per_s"),
        ("pgbench -N, commits_per_s", "simple_update_commits_per_s"),
    ];
    let rows: Vec<Vec<String>> =
        commits.iter().map(|(name, key)| vec![(*name).to_owned(), cell(pgbench, key)]).collect();
    text.push('\n');
    text.push_str(&aligned(&rows));
    text
}

fn header(engines: &[(&String, &Value)]) -> Vec<String> {
    std::iter::once(String::new()).chain(engines.iter().map(|(name, _)| (*name).clone())).collect()
}

fn versions(server_version: &str, engines: &[Box<dyn Engine>]) -> Value {
    let mut versions = Map::new();
    versions.insert("rustc".into(), machine::rustc_version().into());
    versions.insert("postgresql".into(), server_version.into());
    versions.insert("sqlite".into(), rusqlite::version().into());
    for (name, version) in engines.iter().flat_map(|engine| engine.versions()) {
        versions.insert(name.into(), version.into());
    }
    Value::Object(versions)
}

fn settings_json(settings: &Settings) -> Value {
    let server: Map<String, Value> =
        FIXED_SETTINGS.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    json!({
        "synchronous_commit": settings.synchronous_commit.as_str(),
        "fsync": settings.fsync.as_str(),
        "connections": settings.connections,
        "jobs": settings.jobs,
        "rounds": settings.rounds,
        "pickup_samples": settings.samples,
        "idle_tx_churn_jobs": settings.churn,
        "drain_limit_s": settings.drain_limit_s,
        "pgbench_s": settings.pgbench_s,
        "postgresql": server,
    })
}

fn engines_json(engines: &[Box<dyn Engine>], measured: &Measurements) -> Value {
    let mut all = Map::new();
    let commits = median(&measured.pgbench.iter().map(|c| c.update_per_s).collect::<Vec<_>>());
    for engine in engines {
        let none = Samples::new();
        let samples = measured.engines.get(engine.name()).unwrap_or(&none);
        let figures = METRICS.iter().map(|name| (*name, samples.get(name).map(Vec::as_slice)));
        let mut entry = figures_json(figures);
        let share = entry["jobs_per_s"].as_f64().zip(commits).map(|(jobs, commits)| jobs / commits);
        let share = share.filter(|_| engine.store() == Store::PostgreSql).map(|s| rounded(s, 3));
        entry.insert("jobs_per_s_to_pgbench_commits_per_s".into(), json!(share));
        entry.insert("tuning".into(), engine.tuning().into());
        all.insert(engine.name().into(), entry.into());
    }
    Value::Object(all)
}

fn pgbench_json(measured: &Measurements) -> Value {
    let update: Vec<f64> = measured.pgbench.iter().map(|c| c.update_per_s).collect();
    let simple: Vec<f64> = measured.pgbench.iter().map(|c| c.simple_update_per_s).collect();
    let figures = [
        ("commits_per_s", Some(update.as_slice())),
        ("simple_update_commits_per_s", Some(simple.as_slice())),
    ];
    figures_json(figures.into_iter()).into()
}

/// Medians by name, and `spread` with the minimum and maximum of each.
fn figures_json<'a>(
    figures: impl Iterator<Item = (&'a str, Option<&'a [f64]>)>,
) -> Map<String, Value> {
    let mut entry = Map::new();
    let mut spread = Map::new();
    for (name, values) in figures {
        let digits = if name.contains("cpu_s") { 4 } else { 0 };
        let middle = values.and_then(median).map(|value| rounded(value, digits));
        entry.insert(name.to_owned(), json!(middle));
        if let Some(values) = values.filter(|values| !values.is_empty()) {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let ends = json!({"min": rounded(least, digits), "max": rounded(greatest, digits)});
            spread.insert(name.to_owned(), ends);
        }
    }
    entry.insert("spread".into(), spread.into());
    entry
}

fn cell(entry: &Value, name: &str) -> String {
    let spread = &entry["spread"][name];
    match (number(&entry[name]), number(&spread["min"]), number(&spread["max"])) {
        (Some(middle), Some(min), Some(max)) => format!("{middle} ({min}–{max})"),
        _ => NONE.to_owned(),
    }
}

/// Whole numbers in groups of three digits, fractions with four decimals.
pub(crate) fn number(value: &Value) -> Option<String> {
    let Some(whole) = value.as_i64() else {
        return value.as_f64().map(|fraction| format!("{fraction:.4}"));
    };
    let digits = whole.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    Some(text)
}

fn plain(value: &Value) -> &str {
    value.as_str().unwrap_or(NONE)
}

/// The first column is left-aligned, the others right-aligned.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|n| rows.iter().filter_map(|row| row.get(n)).map(|c| c.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for row in rows {
        for (n, cell) in row.iter().enumerate() {
            let width = widths[n];
            if n == 0 {
                text.push_str(&format!("{cell:<width$}"));
            } else {
                text.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push('\n');
    }
    text
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// With `digits` 0 returns a whole number, so that the JSON has no ".0".
#[allow(clippy::cast_possible_truncation)] // Rates and microseconds are far below 2^52.
pub(crate) fn rounded(value: f64, digits: i32) -> Value {
    if digits == 0 {
        return json!(value.round() as i64);
    }
    let factor = 10f64.powi(digits);
    json!((value * factor).round() / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_missing_figure_is_null_and_a_dash() {
        let entry = Value::Object(figures_json([("jobs_per_s", None)].into_iter()));
        assert_eq!(entry["jobs_per_s"], Value::Null);
        assert_eq!(cell(&entry, "jobs_per_s"), NONE);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(number(&json!(1234567)).as_deref(), Some("1 234 567"));
        assert_eq!(number(&json!(999)).as_deref(), Some("999"));
        assert_eq!(number(&json!(0.25)).as_deref(), Some("0.2500"));
    }
}
