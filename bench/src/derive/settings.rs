//! The flags of the benchmark of derived tables.

use std::path::PathBuf;

use clap::Parser;

use super::history::Senders;

/// Derives the tables of a simulated chain, on SQLite and PostgreSQL.
#[derive(Clone, Debug, Parser)]
#[command(name = "derive", version)]
pub struct Settings {
    /// The seed of the chain.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Blocks of the chain.
    #[arg(long, default_value_t = 4_000)]
    pub blocks: u64,
    /// About how many logs a block has.
    #[arg(long, default_value_t = 400)]
    pub logs_per_block: u32,
    /// Whether the senders of transactions are stored with the chain, or recovered each time.
    #[arg(long, value_enum, default_value_t = Senders::Store)]
    pub senders: Senders,
    /// Blocks of one transaction.
    #[arg(long, default_value_t = 1_000)]
    pub chunk: u64,
    /// Engines to measure.
    #[arg(long, value_delimiter = ',', default_value = "sqlite,postgresql")]
    pub engines: Vec<String>,
    /// Sets of processors: `transfers` for those of the aim, `all`.
    #[arg(long, value_delimiter = ',', default_value = "transfers,all")]
    pub sets: Vec<String>,
    /// Parts of the way whose rates are shown.
    #[arg(long, default_value_t = 10)]
    pub parts: u32,
    /// A folder that keeps files and history for the next run; temporary if none.
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Where the result goes, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}
