//! Rounds of measurement: every round runs `pgbench` and then each engine once, in an order that rotates every round,
//! so that noise of a shared machine affects all alike.
//!
//! After each drain the number of jobs left in the store is checked: an engine that loses or invents a completion
//! fails the run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::cpu;
use crate::engine::{DrainOutcome, Engine, Mode, Queue, Store, StoreLocation};
use crate::pgbench::{self, Commits};
use crate::postgres::{IdleTransaction, Server};
use crate::settings::Settings;

/// Name of a figure, with its unit, as in the report.
pub type Metric = &'static str;

/// The figures of an engine, in the order of the report.
pub const METRICS: &[Metric] = &[
    "enqueue_per_s",
    "enqueue_bulk_per_s",
    "jobs_per_s",
    "jobs_per_s_apart",
    "jobs_batched_per_s",
    "pickup_p50_us",
    "pickup_p99_us",
    "jobs_per_s_idle_tx",
    "jobs_batched_per_s_idle_tx",
    "server_cpu_s_per_1000_jobs",
    "client_cpu_s_per_1000_jobs",
    "server_cpu_s_per_1000_jobs_apart",
    "server_cpu_s_per_1000_jobs_batched",
    "client_cpu_s_per_1000_jobs_batched",
];

/// One value per round; figures that do not apply to an engine are absent.
pub type Samples = BTreeMap<Metric, Vec<f64>>;

pub struct Measurements {
    /// By engine name.
    pub engines: BTreeMap<&'static str, Samples>,
    pub pgbench: Vec<Commits>,
}

pub async fn run(
    server: &Server,
    sqlite_parent: &Path,
    engines: &[Box<dyn Engine>],
    settings: &Settings,
) -> anyhow::Result<Measurements> {
    let mut measured = Measurements { engines: BTreeMap::new(), pgbench: Vec::new() };
    pgbench::prepare(server).await.context("preparing pgbench")?;
    for round in 0..settings.rounds {
        eprintln!("round {} of {}", round + 1, settings.rounds);
        let commits = pgbench::measure(server, settings.connections, settings.pgbench_s).await?;
        eprintln!("  pgbench: {:.0} commits/s", commits.update_per_s);
        measured.pgbench.push(commits);
        for turn in 0..engines.len() {
            let engine = &*engines[(turn + round) % engines.len()];
            let bench = Bench { server, sqlite_parent, engine, settings, round };
            let figures = bench
                .run()
                .await
                .with_context(|| format!("measuring {} in round {}", engine.name(), round + 1))?;
            let samples = measured.engines.entry(engine.name()).or_default();
            for (metric, value) in figures.0 {
                samples.entry(metric).or_default().push(value);
            }
        }
    }
    Ok(measured)
}

/// The figures of one round of one engine.
#[derive(Default)]
struct Figures(BTreeMap<Metric, f64>);

impl Figures {
    fn put(&mut self, metric: Metric, value: f64) {
        debug_assert!(METRICS.contains(&metric));
        eprintln!("    {metric}: {value:.4}");
        self.0.insert(metric, value);
    }
}

/// One round of one engine.
struct Bench<'a> {
    server: &'a Server,
    sqlite_parent: &'a Path,
    engine: &'a dyn Engine,
    settings: &'a Settings,
    round: usize,
}

impl Bench<'_> {
    async fn run(&self) -> anyhow::Result<Figures> {
        eprintln!("  {}", self.engine.name());
        let mut figures = Figures::default();
        let home = self.home("plain").await?;
        let queue = self.engine.open(&home.location, self.settings.connections).await?;
        self.plain(&*queue, &home, &mut figures).await?;
        queue.close().await?;
        self.leave(home).await?;

        if self.engine.store() == Store::PostgreSql {
            let home = self.home("idle").await?;
            let queue = self.engine.open(&home.location, self.settings.connections).await?;
            self.make_history(&*queue, &home).await?;
            self.settle(&home).await?;
            let idle = IdleTransaction::open(self.server, &home.database).await?;
            self.under_idle_transaction(&*queue, &home, &mut figures).await?;
            drop(idle);
            queue.close().await?;
            self.leave(home).await?;
        }
        Ok(figures)
    }

    async fn plain(
        &self,
        queue: &dyn Queue,
        home: &EngineHome,
        figures: &mut Figures,
    ) -> anyhow::Result<()> {
        let jobs = self.settings.jobs;
        self.make_history(queue, home).await?;
        self.settle(home).await?;
        let start = Instant::now();
        queue.enqueue_one_by_one(jobs).await.context("enqueueing one by one")?;
        figures.put("enqueue_per_s", rate(jobs, start.elapsed()));
        let one = self.drain(queue, home, Mode::OneByOne, jobs).await?;
        figures.put("jobs_per_s", one.per_s());
        figures.put("client_cpu_s_per_1000_jobs", one.client_cpu_per_1000());
        if let Some(cpu) = one.server_cpu_per_1000() {
            figures.put("server_cpu_s_per_1000_jobs", cpu);
        }
        self.empty(queue, home).await?;
        if self.engine.features().shared_trips {
            self.settle(home).await?;
            fill(queue, jobs).await?;
            let apart = self.drain(queue, home, Mode::Apart, jobs).await?;
            figures.put("jobs_per_s_apart", apart.per_s());
            if let Some(cpu) = apart.server_cpu_per_1000() {
                figures.put("server_cpu_s_per_1000_jobs_apart", cpu);
            }
            self.empty(queue, home).await?;
        }

        self.settle(home).await?;
        if self.engine.features().enqueue_bulk {
            let start = Instant::now();
            queue.enqueue_bulk(jobs).await.context("enqueueing in bulk")?;
            figures.put("enqueue_bulk_per_s", rate(jobs, start.elapsed()));
        }
        if self.engine.features().batches {
            fill(queue, jobs).await?;
            let batched = self.drain(queue, home, Mode::Batches, jobs).await?;
            figures.put("jobs_batched_per_s", batched.per_s());
            figures.put("client_cpu_s_per_1000_jobs_batched", batched.client_cpu_per_1000());
            if let Some(cpu) = batched.server_cpu_per_1000() {
                figures.put("server_cpu_s_per_1000_jobs_batched", cpu);
            }
        }
        self.empty(queue, home).await?;

        self.settle(home).await?;
        let mut latencies = queue.pickup(self.settings.samples).await.context("picking up")?;
        ensure!(latencies.len() == self.settings.samples, "samples of the pick-up are missing");
        latencies.sort();
        figures.put("pickup_p50_us", percentile_us(&latencies, 50));
        figures.put("pickup_p99_us", percentile_us(&latencies, 99));
        Ok(())
    }

    /// The same drains with dead rows that cannot be vacuumed.
    async fn under_idle_transaction(
        &self,
        queue: &dyn Queue,
        home: &EngineHome,
        figures: &mut Figures,
    ) -> anyhow::Result<()> {
        let jobs = self.settings.jobs;
        let fastest = if self.engine.features().batches { Mode::Batches } else { Mode::OneByOne };
        fill(queue, self.settings.churn).await?;
        self.drain(queue, home, fastest, self.settings.churn).await?;
        self.settle(home).await?;
        fill(queue, jobs).await?;
        let one = self.drain(queue, home, Mode::OneByOne, jobs).await?;
        figures.put("jobs_per_s_idle_tx", one.per_s());
        if self.engine.features().batches {
            self.settle(home).await?;
            fill(queue, jobs).await?;
            let batched = self.drain(queue, home, Mode::Batches, jobs).await?;
            figures.put("jobs_batched_per_s_idle_tx", batched.per_s());
        }
        Ok(())
    }

    /// Drains up to `jobs` waiting jobs, measures time and CPU, and checks the outcome.
    async fn drain(
        &self,
        queue: &dyn Queue,
        home: &EngineHome,
        mode: Mode,
        jobs: u64,
    ) -> anyhow::Result<DrainCost> {
        self.checkpoint(home).await?;
        let before = queue.left().await?;
        let jobs = jobs.min(before.waiting);
        let server_start = self.server_cpu()?;
        let client_start = cpu::of_client()?;
        let drained = queue
            .drain(mode, jobs, self.settings.drain_limit())
            .await
            .with_context(|| format!("draining ({mode:?})"))?;
        if drained.done < jobs {
            eprintln!("    cut short: {} of {jobs} jobs done", drained.done);
        }
        let client_cpu_s = cpu::of_client()? - client_start;
        let server_cpu_s = self.server_cpu()?.zip(server_start).map(|(end, start)| end - start);
        let after = queue.left().await?;
        ensure!(
            before.all() == after.all() + drained.done,
            "{} jobs were there, {} handlers ran, yet {} jobs are left",
            before.all(),
            drained.done,
            after.all()
        );
        if after.held > before.held {
            eprintln!("    held after the workers stopped: {} jobs", after.held - before.held);
        }
        Ok(DrainCost { drained, client_cpu_s, server_cpu_s })
    }

    /// Drains the waiting jobs the fastest way, without measuring.
    async fn empty(&self, queue: &dyn Queue, home: &EngineHome) -> anyhow::Result<()> {
        let left = queue.left().await?.waiting;
        if left > 0 {
            let mode = if self.engine.features().batches { Mode::Batches } else { Mode::OneByOne };
            self.drain(queue, home, mode, left).await?;
        }
        Ok(())
    }

    /// Processes a first load of jobs without measuring, so that the table has a history.
    async fn make_history(&self, queue: &dyn Queue, home: &EngineHome) -> anyhow::Result<()> {
        fill(queue, self.settings.jobs).await?;
        self.empty(queue, home).await
    }

    /// Refreshes statistics and removes dead rows where possible, for each engine alike, while the queue is empty:
    /// this is the state in which autovacuum leaves a service that keeps up. Statistics taken with the backlog in
    /// place would be unfair to engines whose claim has its limit as a parameter: the planner assumes that it is a
    /// tenth of the backlog and scans the table for each claim (a claim of `apalis`: 95 ms with 40 000 rows, against
    /// 0.4 ms with 16 000).
    async fn settle(&self, home: &EngineHome) -> anyhow::Result<()> {
        if let StoreLocation::PostgreSql { .. } = home.location {
            let client = self.server.connect(&home.database).await?;
            client.batch_execute("VACUUM ANALYZE").await?;
        }
        self.checkpoint(home).await
    }

    /// Keeps checkpoints out of the next measurement.
    async fn checkpoint(&self, home: &EngineHome) -> anyhow::Result<()> {
        if let StoreLocation::PostgreSql { .. } = home.location {
            self.server.connect(&home.database).await?.batch_execute("CHECKPOINT").await?;
        }
        Ok(())
    }

    fn server_cpu(&self) -> anyhow::Result<Option<f64>> {
        match self.engine.store() {
            Store::PostgreSql => Ok(Some(cpu::of_server(self.server.postmaster())?)),
            Store::Sqlite => Ok(None),
        }
    }

    async fn home(&self, phase: &str) -> anyhow::Result<EngineHome> {
        let name = self.engine.name().replace('-', "_");
        let database = format!("{name}_{phase}_{}", self.round);
        let location = match self.engine.store() {
            Store::PostgreSql => {
                self.server.create(&database).await?;
                StoreLocation::PostgreSql { url: self.server.url(&database) }
            }
            Store::Sqlite => {
                let folder = self.sqlite_parent.join(&database);
                std::fs::create_dir(&folder)?;
                StoreLocation::Sqlite { folder }
            }
        };
        Ok(EngineHome { database, location })
    }

    async fn leave(&self, home: EngineHome) -> anyhow::Result<()> {
        match home.location {
            StoreLocation::PostgreSql { .. } => self.server.drop(&home.database).await,
            StoreLocation::Sqlite { folder } => Ok(std::fs::remove_dir_all(folder)?),
        }
    }
}

/// Database and location of an engine during a phase.
struct EngineHome {
    database: String,
    location: StoreLocation,
}

/// Outcome and cost of a drain.
struct DrainCost {
    drained: DrainOutcome,
    client_cpu_s: f64,
    server_cpu_s: Option<f64>,
}

impl DrainCost {
    fn per_s(&self) -> f64 {
        rate(self.drained.done, self.drained.elapsed)
    }

    fn client_cpu_per_1000(&self) -> f64 {
        per_1000(self.client_cpu_s, self.drained.done)
    }

    fn server_cpu_per_1000(&self) -> Option<f64> {
        self.server_cpu_s.map(|cpu| per_1000(cpu, self.drained.done))
    }
}

/// Enqueues until `jobs` jobs are waiting.
async fn fill(queue: &dyn Queue, jobs: u64) -> anyhow::Result<()> {
    let missing = jobs.saturating_sub(queue.left().await?.waiting);
    queue.enqueue_bulk(missing).await.context("filling the queue")
}

#[allow(clippy::cast_precision_loss)] // Counts of a run are far below 2^52.
fn rate(jobs: u64, elapsed: Duration) -> f64 {
    jobs as f64 / elapsed.as_secs_f64()
}

#[allow(clippy::cast_precision_loss)]
fn per_1000(cpu_s: f64, jobs: u64) -> f64 {
    cpu_s * 1000.0 / jobs.max(1) as f64
}

/// The smallest of the sorted values that at least `percent` of them do not exceed.
#[allow(clippy::cast_precision_loss)]
fn percentile_us(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1].as_micros() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<Duration> = (1..=300).map(Duration::from_micros).collect();
        assert_eq!(percentile_us(&values, 50), 150.0);
        assert_eq!(percentile_us(&values, 99), 297.0);
        assert_eq!(percentile_us(&values[..1], 99), 1.0);
    }
}
