//! The flags of the benchmark of derived tables.

use std::path::PathBuf;

use clap::Parser;

use super::history::Senders;

/// Derives the tables of a simulated chain, on SQLite and PostgreSQL.
#[derive(Clone, Debug, Parser)]
#[command(name = "derive", version)]
pub struct Settings {
    /// Seed of the chain.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of blocks.
    #[arg(long, default_value_t = 4_000)]
    pub blocks: u64,
    /// Approximate number of logs per block.
    #[arg(long, default_value_t = 400)]
    pub logs_per_block: u32,
    /// Whether the senders of transactions are stored with the chain, or recovered each time.
    #[arg(long, value_enum, default_value_t = Senders::Store)]
    pub senders: Senders,
    /// Number of blocks per transaction.
    #[arg(long, default_value_t = 1_000)]
    pub chunk: u64,
    /// Engines to measure.
    #[arg(long, value_delimiter = ',', default_value = "sqlite,postgresql")]
    pub engines: Vec<String>,
    /// Sets of processors: `transfers` for those of the performance goal, or `all`.
    #[arg(long, value_delimiter = ',', default_value = "transfers,all")]
    pub sets: Vec<String>,
    /// Number of parts of the chain whose rates are reported.
    #[arg(long, default_value_t = 10)]
    pub parts: u32,
    /// Folder that keeps files and history for the next run; temporary if not given.
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Write the result to this file, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}
