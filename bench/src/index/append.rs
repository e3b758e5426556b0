//! The lower bound for the machine: append the bytes of a block to a file, and `fsync`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use finalized_log_index::FinalizedBlock;

pub struct AppendFile {
    file: File,
    bytes: Vec<u8>,
}

impl AppendFile {
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(folder.join("append"))?;
        Ok(Self { file, bytes: Vec::new() })
    }

    /// Appends the block's raw logs and waits for the disk.
    pub fn block(&mut self, block: &FinalizedBlock) -> anyhow::Result<Duration> {
        self.bytes.clear();
        for log in &block.logs {
            self.bytes.extend_from_slice(log.address.as_slice());
            for topic in &log.topics {
                self.bytes.extend_from_slice(topic.as_slice());
            }
            self.bytes.extend_from_slice(log.transaction_hash.as_slice());
            self.bytes.extend_from_slice(&log.data);
        }
        let start = Instant::now();
        self.file.write_all(&self.bytes)?;
        self.file.sync_data()?;
        Ok(start.elapsed())
    }
}
