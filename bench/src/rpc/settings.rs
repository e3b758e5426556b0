//! What the benchmark of `eth_getLogs` is told.

use std::path::{Path, PathBuf};

use clap::Parser;

/// The chain, the load, and where the programs are.
#[derive(Clone, Debug, Parser)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Blocks with logs: about 400 each
    #[arg(long, default_value_t = 500)]
    pub blocks: u64,
    /// Seconds of each load
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// How often each load is repeated
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Connections at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    pub connections: Vec<usize>,
    /// The server [default: what `cargo build --release -p logmill` makes]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// The node [default: what tools/node.sh installs]
    #[arg(long)]
    pub anvil: Option<PathBuf>,
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
        Self { blocks: 100, seconds: 0.5, rounds: 1, ..self }
    }

    pub fn logmill(&self) -> PathBuf {
        self.logmill.clone().unwrap_or_else(built_logmill)
    }

    pub fn anvil(&self) -> PathBuf {
        self.anvil.clone().unwrap_or_else(installed_anvil)
    }
}

/// The server that `cargo build --release -p logmill` makes.
pub fn built_logmill() -> PathBuf {
    root().join("target/release/logmill")
}

/// The node that tools/node.sh installs.
pub fn installed_anvil() -> PathBuf {
    root().join(".tools/node/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil")
}

/// The folder above this one.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
