//! The flags of the benchmark of `eth_getLogs`.

use std::path::{Path, PathBuf};

use clap::Parser;

/// Measures `eth_getLogs` over HTTP, on Logmill and on anvil
#[derive(Clone, Debug, Parser)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Number of blocks with logs, about 400 each
    #[arg(long, default_value_t = 500)]
    pub blocks: u64,
    /// Duration of each load, in seconds
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Number of repetitions of each load
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Numbers of concurrent connections
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    pub connections: Vec<usize>,
    /// Path of the server [default: the result of `cargo build --release -p logmill`]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// Path of the node [default: as installed by tools/node.sh]
    #[arg(long)]
    pub anvil: Option<PathBuf>,
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
        Self { blocks: 100, seconds: 0.5, rounds: 1, ..self }
    }

    pub fn logmill(&self) -> PathBuf {
        self.logmill.clone().unwrap_or_else(built_logmill)
    }

    pub fn anvil(&self) -> PathBuf {
        self.anvil.clone().unwrap_or_else(installed_anvil)
    }
}

/// The result of `cargo build --release -p logmill`.
pub fn built_logmill() -> PathBuf {
    root().join("target/release/logmill")
}

/// The node installed by tools/node.sh.
pub fn installed_anvil() -> PathBuf {
    root().join(".tools/node/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil")
}

/// The workspace folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
