//! The flags of the benchmark of the read API.

use std::path::PathBuf;

use clap::Parser;

use crate::derive::history::{ChainParameters, Senders};
use crate::rpc::settings::built_logmill;

/// Percentage of the simulated chain's logs that are transfers of fungible tokens.
const TRANSFERS_PERCENT: u64 = 55;

/// Measures the read API over HTTP
#[derive(Clone, Debug, Parser)]
#[command(name = "api", version)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Folder that keeps the chain and its tables for the next run [default: a temporary one]
    #[arg(long)]
    pub folder: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Approximate number of transfers of fungible tokens
    #[arg(long, default_value_t = 1_000_000)]
    pub transfers: u64,
    /// Approximate number of logs per block
    #[arg(long, default_value_t = 400)]
    pub logs_per_block: u32,
    /// Number of different questions per endpoint
    #[arg(long, default_value_t = 1_000)]
    pub questions: usize,
    /// Number of questions whose answers are checked first
    #[arg(long, default_value_t = 100)]
    pub checked: usize,
    /// Duration of each load, in seconds
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Number of repetitions of each load
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Numbers of concurrent connections
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    pub connections: Vec<usize>,
    /// Endpoints to measure, by their names in the report [default: all]
    #[arg(long, value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// Path of the server [default: the result of `cargo build --release -p logmill`]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// A smoke run; its figures mean nothing
    #[arg(long)]
    pub quick: bool,
}

impl Settings {
    #[must_use]
    pub fn settled(self) -> Self {
        if !self.quick {
            return self;
        }
        Self { transfers: 20_000, questions: 100, seconds: 0.5, rounds: 1, ..self }
    }

    pub fn logmill(&self) -> PathBuf {
        self.logmill.clone().unwrap_or_else(built_logmill)
    }

    /// The chain that has about `transfers` transfers.
    pub fn made(&self) -> ChainParameters {
        let (seed, logs_per_block) = (self.seed, self.logs_per_block);
        let logs = self.transfers * 100 / TRANSFERS_PERCENT;
        let blocks = (logs / u64::from(logs_per_block.max(1))).max(2);
        ChainParameters { seed, blocks, logs_per_block, senders: Senders::Store }
    }

    /// Whether an endpoint is measured.
    pub fn asks(&self, name: &str) -> bool {
        self.endpoints.is_empty() || self.endpoints.iter().any(|one| one == name)
    }
}
