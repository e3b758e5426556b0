//! Writes a simulated chain as era1 files, to get history of any size.
//!
//! Guarantees: the files follow the format, with 8 192 blocks each, named by their accumulators. Leaves to
//! others: removing them.

use std::path::{Path, PathBuf};

use alloy_primitives::U256;
use logmill_io::file::NewFile;

use super::SimChain;
use crate::era1::Writer;
use crate::error::Result;

/// Name of a file until it is complete.
const UNFINISHED: &str = "unfinished-era";

impl SimChain {
    /// Writes all blocks into a folder, in files with the name of a network. Blocks on the disk, and builds
    /// every block.
    pub fn write_era1(&self, folder: &Path, network: &str) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        let mut total_difficulty = U256::ZERO;
        let mut next = 0;
        while self.at(next).is_some() {
            let file = NewFile::create(&folder.join(UNFINISHED))?;
            let mut writer = Writer::new(file, total_difficulty)?;
            while !writer.is_full() {
                let Some(block) = self.block(next) else { break };
                writer.push(&block)?;
                next += 1;
            }
            let written = writer.finish()?;
            let name = written.name(network);
            total_difficulty = written.total_difficulty;
            paths.push(written.out.finish(&name)?);
        }
        Ok(paths)
    }
}
