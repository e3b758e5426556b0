//! The flags of the benchmark of the log index.

use std::path::PathBuf;

use clap::Parser;

/// Blocks per commit.
pub const COMMIT_BLOCKS: u64 = 64;

/// Measures the log index against tables of SQLite and PostgreSQL and against DuckDB, on the same blocks.
#[derive(Clone, Debug, Parser)]
#[command(name = "index", version)]
pub struct Settings {
    /// Number of blocks to ingest with a commit per 64 blocks.
    #[arg(long, default_value_t = 16_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    pub blocks: u64,
    /// Average number of logs per block.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub logs_per_block: u32,
    /// Number of blocks to ingest afterwards with a commit per block.
    #[arg(long, default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub single_blocks: u64,
    /// Number of queries of each class in each round.
    #[arg(long, default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub queries: u64,
    /// Seconds after which an engine gets no more queries of a class in a round; it gets at least three.
    #[arg(long, default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub class_limit_s: u64,
    /// Number of rounds: into how many turns the ingest is split, and how often the queries run.
    #[arg(long, default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub rounds: u64,
    /// Seed of the chain.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only these engines, by name, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub engines: Vec<String>,
    /// The Python with duckdb and pyarrow; by default the one that `tools/python.sh bench` creates.
    #[arg(long)]
    pub python: Option<PathBuf>,
    /// Parent of the temporary folders; the system's default if not given.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Write the result to this file as one JSON object.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A smoke run: few blocks, one round. Its figures mean little.
    #[arg(long, conflicts_with_all = ["blocks", "single_blocks", "queries", "rounds"])]
    pub quick: bool,
}

impl Settings {
    /// Applies `--quick`.
    pub fn settled(mut self) -> Self {
        if self.quick {
            self.blocks = 1_280;
            self.single_blocks = 20;
            self.queries = 10;
            self.rounds = 1;
        }
        self
    }

    pub fn parent_folder(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    pub fn python(&self) -> PathBuf {
        let made = || {
            let bench = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            bench.with_file_name(".tools").join("venv-bench/bin/python")
        };
        self.python.clone().unwrap_or_else(made)
    }
}
