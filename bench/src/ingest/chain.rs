//! The ingested chain: simulated, resembling mainnet, with the rules of London, as era1 files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use logmill_chain::sim::{Fork, Shape, SimChain, SimSettings};

use super::settings::Settings;

/// Network name in the file names.
const NETWORK: &str = "sim";
/// Blocks generated at a time.
const GROWN: u64 = 1_024;

/// Parameters of the simulated chain.
pub fn sim(settings: &Settings) -> SimSettings {
    let full = Shape::mainnet().at(Fork::London);
    let transactions = settings.logs_per_block * full.transactions / full.logs;
    let shape = Shape { logs: settings.logs_per_block, transactions: transactions.max(1), ..full };
    SimSettings { seed: settings.seed, shape, ..SimSettings::default() }
}

/// The folder of its files, which are created if they do not exist. Blocks the thread.
pub fn files(settings: &Settings, parent: &Path) -> anyhow::Result<PathBuf> {
    let Settings { seed, blocks, logs_per_block, .. } = settings;
    let folder = parent.join(format!("era1-{seed}-{blocks}-{logs_per_block}"));
    if folder.exists() {
        return Ok(folder);
    }
    let unfinished = parent.join("era1-unfinished");
    let _ = std::fs::remove_dir_all(&unfinished);
    std::fs::create_dir_all(&unfinished)
        .with_context(|| format!("creating {}", unfinished.display()))?;
    eprintln!("making {blocks} blocks of about {logs_per_block} logs");
    let chain = SimChain::with(sim(settings));
    // The first block already exists.
    let mut left = blocks.saturating_sub(1);
    while left > 0 {
        chain.grow(left.min(GROWN));
        left = left.saturating_sub(GROWN);
    }
    eprintln!("writing era1 files");
    chain.write_era1(&unfinished, NETWORK)?;
    std::fs::rename(&unfinished, &folder)?;
    Ok(folder)
}
