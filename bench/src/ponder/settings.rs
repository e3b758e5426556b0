//! The flags of the benchmark against Ponder.

use std::path::PathBuf;

use clap::Parser;

use crate::rpc::settings::{built_logmill, installed_anvil, root};

/// In the order of the report.
pub const ENGINES: [&str; 3] = [PONDER, "logmill-sqlite", "logmill-postgresql"];
pub const PONDER: &str = "ponder";

/// Measures end-to-end indexing with Logmill and Ponder.
#[derive(Clone, Debug, Parser)]
#[command(name = "ponder", version)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Number of blocks with transfers
    #[arg(long, default_value_t = 500)]
    pub blocks: u64,
    /// Number of transactions per block, at most 10
    #[arg(long, default_value_t = 4)]
    pub transactions: u64,
    /// Number of transfers per transaction
    #[arg(long, default_value_t = 100)]
    pub transfers: u64,
    /// Number of accounts that hold the token
    #[arg(long, default_value_t = 4_000)]
    pub holders: u64,
    /// Number of rounds; the median is reported
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Indexers to measure
    #[arg(long, value_delimiter = ',', default_values = ENGINES)]
    pub engines: Vec<String>,
    /// Path of the server [default: the result of `cargo build --release -p logmill`]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// Path of the node [default: as installed by tools/node.sh]
    #[arg(long)]
    pub anvil: Option<PathBuf>,
    /// Folder with Ponder in `node_modules` [default: as installed by tools/ponder.sh]
    #[arg(long)]
    pub ponder: Option<PathBuf>,
    /// Let Logmill make only transfers and balances, as Ponder does, and none of its other tables
    #[arg(long)]
    pub same_work: bool,
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
        Self { blocks: 50, holders: 500, rounds: 1, ..self }
    }

    pub fn logmill(&self) -> PathBuf {
        self.logmill.clone().unwrap_or_else(built_logmill)
    }

    pub fn anvil(&self) -> PathBuf {
        self.anvil.clone().unwrap_or_else(installed_anvil)
    }

    pub fn ponder(&self) -> PathBuf {
        self.ponder.clone().unwrap_or_else(|| root().join(".tools/ponder"))
    }

    /// Folder of Ponder's project files.
    pub fn project(&self) -> PathBuf {
        root().join("bench/peers/ponder")
    }
}
