//! The stored simulated chain: generated, ingested, and kept for the next run.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use logmill_chain::era1::Era1Source;
use logmill_io::SystemClock;
use logmill_pipeline::Chain;

use crate::ingest::{chain, settings, stages, whole};

/// Where the senders of transactions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Senders {
    /// Recovered by ingest, and stored.
    Store,
    /// Recovered while deriving.
    Recover,
}

impl Senders {
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Recover => "recover",
        }
    }
}

/// Parameters of a chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainParameters {
    pub seed: u64,
    pub blocks: u64,
    pub logs_per_block: u32,
    /// Whether senders are stored with it.
    pub senders: Senders,
}

#[derive(Debug)]
pub struct StoredChain {
    pub chain: Chain,
    /// Its data folder, as the server uses it.
    pub folder: PathBuf,
    pub logs: u64,
}

/// The chain stored below a folder; generated if it does not exist.
pub async fn history(made: ChainParameters, parent: &Path) -> anyhow::Result<StoredChain> {
    let ChainParameters { seed, blocks, logs_per_block, senders } = made;
    let making = settings::Settings {
        seed,
        blocks,
        logs_per_block,
        ..settings::Settings::parse_from(["ingest"])
    };
    let place = parent.to_owned();
    let files = tokio::task::spawn_blocking(move || chain::files(&making, &place)).await??;
    let name = format!("history-{seed}-{blocks}-{logs_per_block}-{}", senders.name());
    let (folder, unfinished) = (parent.join(name), parent.join("history-unfinished"));
    if !folder.exists() {
        eprintln!("ingesting");
        let _ = std::fs::remove_dir_all(&unfinished);
        std::fs::create_dir_all(&unfinished)?;
        let source = Era1Source::new(stages::open(&files).await?, SystemClock::shared());
        whole::ingest(source, &unfinished, blocks - 1, senders == Senders::Store).await?;
        std::fs::rename(&unfinished, &folder)?;
    }
    let source = Era1Source::new(stages::open(&files).await?, SystemClock::shared());
    let chain_id = logmill_chain::BlockSource::info(&*source).await?.chain_id;
    let chain = whole::open(&folder, chain_id).await?;
    let covered = chain.covered();
    ensure!(covered.len() == 1 && covered[0].start == 0, "history has gaps: {covered:?}");
    let logs = chain.index().chunks().iter().map(|chunk| u64::from(chunk.logs)).sum();
    Ok(StoredChain { chain, folder, logs })
}
