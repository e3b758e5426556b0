//! What the benchmark beside Ponder is told.

use std::path::PathBuf;

use clap::Parser;

use crate::rpc::settings::{built_logmill, installed_anvil, root};

/// The engines, in the order of the report.
pub const ENGINES: [&str; 3] = [PONDER, "logmill-sqlite", "logmill-postgresql"];
pub const PONDER: &str = "ponder";

/// The chain, the rounds, and where the programs are.
#[derive(Clone, Debug, Parser)]
#[command(name = "ponder", version)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Blocks with transfers
    #[arg(long, default_value_t = 500)]
    pub blocks: u64,
    /// Transactions of such a block, at most 10
    #[arg(long, default_value_t = 4)]
    pub transactions: u64,
    /// Transfers of a transaction
    #[arg(long, default_value_t = 100)]
    pub transfers: u64,
    /// Accounts that hold the token
    #[arg(long, default_value_t = 4_000)]
    pub holders: u64,
    /// How often everything is measured; the median is reported
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Which indexers
    #[arg(long, value_delimiter = ',', default_values = ENGINES)]
    pub engines: Vec<String>,
    /// The server [default: what `cargo build --release -p logmill` makes]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// The node [default: what tools/node.sh installs]
    #[arg(long)]
    pub anvil: Option<PathBuf>,
    /// The folder with Ponder in `node_modules` [default: what tools/ponder.sh installs]
    #[arg(long)]
    pub ponder: Option<PathBuf>,
    /// Logmill makes transfers and balances alone, as Ponder does, and none of its other tables
    #[arg(long)]
    pub same_work: bool,
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

    /// Where what Ponder is told lies.
    pub fn project(&self) -> PathBuf {
        root().join("bench/peers/ponder")
    }
}
