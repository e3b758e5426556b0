//! What the benchmark of the read API is told.

use std::path::PathBuf;

use clap::Parser;

use crate::derive::history::{Made, Senders};
use crate::rpc::settings::built_logmill;

/// Of a hundred logs of the simulated chain so many are transfers of fungible tokens.
const TRANSFERS_PERCENT: u64 = 55;

/// The chain, the load, and where the program is.
#[derive(Clone, Debug, Parser)]
#[command(name = "api", version)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A folder that keeps the chain and its tables for the next run [default: a temporary one]
    #[arg(long)]
    pub folder: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// About how many transfers of fungible tokens the chain has
    #[arg(long, default_value_t = 1_000_000)]
    pub transfers: u64,
    /// About how many logs a block has
    #[arg(long, default_value_t = 400)]
    pub logs_per_block: u32,
    /// Different questions of an endpoint
    #[arg(long, default_value_t = 1_000)]
    pub questions: usize,
    /// How many of those are asked first, to check their answers
    #[arg(long, default_value_t = 100)]
    pub checked: usize,
    /// Seconds of each load
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// How often each load is repeated
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Connections at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    pub connections: Vec<usize>,
    /// Which endpoints, by their names in the report [default: all]
    #[arg(long, value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// The server [default: what `cargo build --release -p logmill` makes]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// A smoke run, figures without meaning
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

    /// The chain that has about as many transfers.
    pub fn made(&self) -> Made {
        let (seed, logs_per_block) = (self.seed, self.logs_per_block);
        let logs = self.transfers * 100 / TRANSFERS_PERCENT;
        let blocks = (logs / u64::from(logs_per_block.max(1))).max(2);
        Made { seed, blocks, logs_per_block, senders: Senders::Store }
    }

    /// Whether an endpoint is asked.
    pub fn asks(&self, name: &str) -> bool {
        self.endpoints.is_empty() || self.endpoints.iter().any(|one| one == name)
    }
}
