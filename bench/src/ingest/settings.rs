//! The flags of the benchmark of ingest.

use std::path::PathBuf;

use clap::Parser;

/// Measures ingest, from era1 files and from a node
#[derive(Clone, Debug, Parser)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Folder that keeps the files of the chain for the next run [default: a temporary folder]
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Number of blocks in era1 files. The default is two and a half cells: two are history, the rest is the head
    #[arg(long, default_value_t = 20_480)]
    pub blocks: u64,
    /// Number of blocks of the node; 0 omits it
    #[arg(long, default_value_t = 12_288)]
    pub node_blocks: u64,
    /// Average number of logs per block; transactions are in proportion, as on mainnet
    #[arg(long, default_value_t = 100)]
    pub logs_per_block: u32,
    /// Number of rounds; the median is reported
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A smoke run; its figures mean nothing
    #[arg(long)]
    pub quick: bool,
    /// Run as the node of this chain instead: print the address, answer until standard input ends
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
