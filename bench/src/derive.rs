//! The benchmark of derived tables: from local history into SQLite and PostgreSQL.
//!
//! A simulated chain that resembles mainnet is ingested once. Then its tables are derived, by some processors or by
//! all, and the rate is measured for each part of the chain, to show the influence of size. For comparison, the
//! engine copies the same rows from table to table, in the same order of keys.

pub mod engine;
pub mod history;
pub mod report;
pub mod settings;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use logmill_io::{Sql, SystemClock};
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Tables};
use logmill_pipeline::{Chain, processors};
use serde_json::{Value, json};

use crate::cpu;

/// The processors of the performance goal: transfers, holdings, daily balances, address history.
pub const TRANSFERS: &[&str] =
    &["token_worker", "ft_holdings_worker", "daily_balance_worker", "meta_worker"];

/// How often progress is polled.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Result of a derivation.
#[derive(Clone, Debug)]
pub struct DeriveResult {
    pub seconds: f64,
    /// CPU of this process, which on SQLite is all of it.
    pub cpu_seconds: f64,
    /// Seconds since the start, and the number of blocks done by then.
    pub progress: Vec<(f64, u64)>,
    pub index_seconds: f64,
}

pub fn chosen(chain_id: u64, names: Option<&[&str]>) -> Vec<Arc<dyn Processor>> {
    let all = processors::all(&processors::Settings::of_chain(chain_id));
    let is_chosen =
        |one: &Arc<dyn Processor>| names.is_none_or(|names| names.contains(&one.name()));
    all.into_iter().filter(is_chosen).collect()
}

/// Derives all stored blocks of a chain into an empty database.
pub async fn derive(
    chain: &Chain,
    sql: Sql,
    names: Option<&[&str]>,
    history_chunk: u64,
) -> anyhow::Result<(DeriveResult, Tables)> {
    let tables = Tables::open(sql).await?;
    let processors = chosen(chain.chain_id(), names);
    let settings = DeriveSettings { history_chunk, ..DeriveSettings::default() };
    let clock = SystemClock::shared();
    let deriver = Deriver::new(chain.clone(), tables.clone(), processors, settings, "bench", clock);
    let (started, cpu_before) = (Instant::now(), cpu::of_client()?);
    let mut progress = Vec::new();
    let mut last_done = 0.0;
    let watching = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let rows = deriver.status().checkpoints;
            let done = rows.iter().filter(|row| row.generation.is_some());
            let done = done.map(|row| row.ranges.iter().map(|(start, end)| end - start).sum());
            let done: u64 = done.min().unwrap_or(0);
            let at = started.elapsed().as_secs_f64();
            if progress.last().is_none_or(|(_, before)| *before != done) {
                progress.push((at, done));
                last_done = at;
            }
        }
    };
    tokio::select! {
        biased;
        done = deriver.catch_up() => done?,
        () = watching => {}
    }
    let seconds = started.elapsed().as_secs_f64();
    let missing: u64 = deriver.status().checkpoints.iter().map(|row| row.missing).sum();
    ensure!(missing == 0, "{missing} blocks were not derived: {:?}", deriver.status());
    let cpu_seconds = cpu::of_client()? - cpu_before;
    let index_seconds = seconds - last_done;
    Ok((DeriveResult { seconds, cpu_seconds, progress, index_seconds }, tables))
}

impl DeriveResult {
    /// The rate in each of `parts` equal parts of the blocks.
    pub fn parts(&self, blocks: u64, rows: u64, parts: u32) -> Vec<Value> {
        let mut shown = Vec::new();
        let mut before = (0.0, 0);
        for part in 1..=u64::from(parts) {
            let until = blocks * part / u64::from(parts);
            let reached = self.progress.iter().find(|(_, done)| *done >= until);
            let (at, done) = reached.copied().unwrap_or((self.seconds, blocks));
            if done > before.1 {
                #[allow(clippy::cast_precision_loss)] // Far below 2^52.
                let made = rows as f64 * (done - before.1) as f64 / blocks as f64;
                shown.push(json!({"until_block": done, "rows_per_second": made / (at - before.0)}));
            }
            before = (at, done);
        }
        shown
    }
}
