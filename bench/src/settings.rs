//! The flags of the queue benchmark.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

const JOBS_MAX: u64 = 10_000_000;

/// Measures job queues side by side: Logmill's on SQLite and PostgreSQL, and its peers on the same server.
#[derive(Clone, Debug, Parser)]
#[command(name = "queue", version)]
pub struct Settings {
    /// Number of jobs of each measured phase.
    #[arg(long, default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=JOBS_MAX))]
    pub jobs: u64,
    /// Number of connections: concurrent enqueueing callers, workers, and pgbench clients.
    #[arg(long, default_value_t = 8, value_parser = parse_connections)]
    pub connections: usize,
    /// Number of rounds; each round runs every engine once, the report has the median.
    #[arg(long, default_value_t = 3, value_parser = parse_rounds)]
    pub rounds: usize,
    /// Number of jobs done under an open idle transaction before the drains under it are measured.
    #[arg(long, default_value_t = 50_000)]
    pub churn: u64,
    /// Number of samples of the pick-up latency in each round.
    #[arg(long, default_value_t = 300, value_parser = parse_rounds)]
    pub samples: usize,
    /// Time limit of a drain in seconds; its rate is then that of the jobs done so far.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub drain_limit_s: u64,
    /// Duration of each pgbench script in each round, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub pgbench_s: u64,
    /// PostgreSQL's synchronous_commit.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub synchronous_commit: Switch,
    /// PostgreSQL's fsync.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub fsync: Switch,
    /// Number of jobs that apalis claims at once in batch mode.
    #[arg(long, default_value_t = 200, value_parser = parse_rounds)]
    pub apalis_batch: usize,
    /// Number of jobs that a local queue of graphile_worker claims at once in batch mode.
    #[arg(long, default_value_t = 1_000, value_parser = parse_rounds)]
    pub graphile_batch: usize,
    /// Number of jobs that Logmill claims and completes at once in batch mode.
    #[arg(long, default_value_t = 2_000, value_parser = parse_rounds)]
    pub logmill_batch: usize,
    /// Only these engines, by name, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub engines: Vec<String>,
    /// Parent of the temporary folders; the system's default if not given.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Write the result to this file as one JSON object.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A smoke run of under a minute: few jobs, one round. Its figures mean little.
    #[arg(long, conflicts_with_all = ["jobs", "rounds", "churn", "samples", "drain_limit_s", "pgbench_s"])]
    pub quick: bool,
}

impl Settings {
    /// Applies `--quick`.
    pub fn settled(mut self) -> Self {
        if self.quick {
            self.jobs = 1_000;
            self.rounds = 1;
            self.churn = 2_000;
            self.samples = 30;
            self.drain_limit_s = 5;
            self.pgbench_s = 1;
        }
        self
    }

    pub fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.drain_limit_s)
    }

    pub fn parent_folder(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// The server allows 200 connections; an engine may need three times as many for callers, workers and listeners.
const CONNECTIONS_MAX: usize = 40;

fn parse_connections(text: &str) -> Result<usize, String> {
    parse_between(text, 1, CONNECTIONS_MAX)
}

fn parse_rounds(text: &str) -> Result<usize, String> {
    parse_between(text, 1, 10_000)
}

fn parse_between(text: &str, min: usize, max: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from {min} to {max}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_flags_are_refused() {
        for flags in [
            ["--connections", "0"],
            ["--connections", "41"],
            ["--jobs", "0"],
            ["--jobs", "many"],
            ["--rounds", "0"],
            ["--fsync", "maybe"],
            ["--unknown", "1"],
        ] {
            let args = ["queue"].into_iter().chain(flags);
            assert!(Settings::try_parse_from(args).is_err(), "{flags:?}");
        }
        assert!(Settings::try_parse_from(["queue", "--quick", "--jobs", "5"]).is_err());
    }
}
