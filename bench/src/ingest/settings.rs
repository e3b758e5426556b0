//! What the benchmark of ingest is told.

use std::path::PathBuf;

use clap::Parser;

/// Blocks of a chain and how full they are, and where things are put.
#[derive(Clone, Debug, Parser)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Where the files of the chain are kept for the next run [default: a temporary folder]
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Blocks in era1 files. With the default two and a half cells: two are history, the rest is the head
    #[arg(long, default_value_t = 20_480)]
    pub blocks: u64,
    /// Blocks of the node; 0 leaves it out
    #[arg(long, default_value_t = 12_288)]
    pub node_blocks: u64,
    /// Logs per block on average; transactions are in proportion, as on mainnet
    #[arg(long, default_value_t = 100)]
    pub logs_per_block: u32,
    /// How often everything is measured; the median is reported
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A smoke run, figures without meaning
    #[arg(long)]
    pub quick: bool,
    /// Be the node on this chain instead: print the address, answer until standard input ends
    #[arg(long, hide = true)]
    pub be_node: bool,
}

impl Settings {
    #[must_use]
    pub fn settled(self) -> Self {
        if !self.quick {
            return self;
        }
        Self { blocks: 9_000, node_blocks: 600, logs_per_block: 6, ..self }
    }
}
