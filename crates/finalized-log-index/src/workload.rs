//! A synthetic chain that resembles mainnet, generated from a seed: for tests, examples and benchmarks.
//!
//! A few contracts emit most logs and thousands emit the rest; nearly half of all logs are `Transfer`; wallets appear
//! and return soon, then rarely, or never; hashes occur once; amounts have many zeros. `workload/shape.rs` has the
//! proportions, which are mainnet's.
//!
//! ```
//! use finalized_log_index::workload::{Workload, WorkloadSettings};
//!
//! let mut chain = Workload::new(WorkloadSettings { seed: 7, ..WorkloadSettings::default() });
//! let blocks: Vec<_> = chain.by_ref().take(3).collect();
//! assert_eq!(blocks[2].parent_hash, blocks[1].hash);
//! let wallet = chain.terms().rare_wallet(0).unwrap();
//! assert!(blocks.iter().flat_map(|block| &block.logs).any(|log| log.topics.contains(&wallet)));
//! ```
//!
//! Guarantees: the same settings produce the same blocks, byte for byte, on every machine; blocks are valid and
//! linked by parent hashes. Leaves to others: storing the blocks. Generating costs a fraction of a microsecond per
//! log.

mod draw;
mod shape;

use alloy_primitives::{Address, B256, Bytes};

use crate::types::{BlockLog, FinalizedBlock};
use draw::Draw;
use shape::Shape;

/// Seconds between blocks.
const SLOT_S: u64 = 12;
/// Timestamp of block 0.
const GENESIS_S: u64 = 1_438_269_973;

/// Number of blocks without a log, out of 1 024.
const EMPTY_SHARE: u64 = 12;

/// Logs per transaction, all equally likely: 3 on average.
const TRANSACTION_LOGS: [u32; 16] = [1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 5, 6, 8];

/// Parameters of a generated chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadSettings {
    /// Different seeds generate different chains.
    pub seed: u64,
    /// Number of the first block.
    pub first_block: u64,
    /// Average number of logs per block. A block has 0.5 to 2.5 times as many or, rarely, none.
    pub logs_per_block: u32,
}

impl Default for WorkloadSettings {
    /// Mainnet's logs per block, starting at a block of 2023.
    fn default() -> Self {
        Self { seed: 1, first_block: 18_000_000, logs_per_block: 335 }
    }
}

/// An endless chain, as an iterator over blocks.
#[derive(Clone, Debug)]
pub struct Workload {
    settings: WorkloadSettings,
    draw: Draw,
    shape: Shape,
    number: u64,
    parent_hash: B256,
    /// Buffer for the hashed part of a block besides its data; kept to reuse its allocation.
    heads: Vec<u8>,
}

impl Workload {
    /// Starts the chain at its first block.
    pub fn new(settings: WorkloadSettings) -> Self {
        let mut draw = Draw::new(settings.seed);
        Self {
            settings,
            shape: Shape::new(settings.seed),
            number: settings.first_block,
            parent_hash: draw.hash(),
            draw,
            heads: Vec::new(),
        }
    }

    /// Search terms that occur in the blocks generated so far.
    pub fn terms(&self) -> Terms {
        Terms { shape: self.shape.clone() }
    }

    fn log_count(&mut self) -> u32 {
        if self.draw.chance(EMPTY_SHARE) {
            return 0;
        }
        // 0.5 plus twice the cube of a uniform draw: 0.5 to 2.5, 1 on average.
        let mean = u64::from(self.settings.logs_per_block);
        let cube = self.draw.below(1 << 10).pow(3);
        let count = mean.div_ceil(2) + ((mean * cube) >> 29);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Logs without data, all data concatenated, and the end of each log's data.
    fn logs(&mut self) -> (Vec<BlockLog>, Vec<u8>, Vec<usize>) {
        let count = self.log_count();
        let mut logs = Vec::with_capacity(count as usize);
        let mut ends = Vec::with_capacity(count as usize);
        let mut data = Vec::with_capacity(count as usize * 96);
        let (mut left, mut transaction_index) = (0, 0);
        let (mut transaction_hash, mut sender) = (B256::ZERO, B256::ZERO);
        for log_index in 0..count {
            if left == 0 {
                left = *self.draw.pick(&TRANSACTION_LOGS);
                transaction_hash = self.draw.hash();
                sender = self.shape.sender(&mut self.draw);
                // Half of the time, a transaction without logs comes before.
                transaction_index += 1 + u32::from(self.draw.chance(512));
            }
            left -= 1;
            let (address, topics) = self.shape.log(&mut self.draw, sender, &mut data);
            ends.push(data.len());
            logs.push(BlockLog {
                address,
                topics,
                data: Bytes::new(),
                transaction_hash,
                transaction_index,
                log_index,
            });
        }
        (logs, data, ends)
    }

    fn hash(&mut self, timestamp: u64, logs: &[BlockLog], data: &[u8]) -> B256 {
        self.heads.clear();
        self.heads.extend_from_slice(self.parent_hash.as_slice());
        self.heads.extend_from_slice(&self.number.to_le_bytes());
        self.heads.extend_from_slice(&timestamp.to_le_bytes());
        for log in logs {
            self.heads.extend_from_slice(log.address.as_slice());
            for topic in &log.topics {
                self.heads.extend_from_slice(topic.as_slice());
            }
            self.heads.extend_from_slice(&log.transaction_hash[..8]);
        }
        B256::from(*blake3::Hasher::new().update(&self.heads).update(data).finalize().as_bytes())
    }
}

impl Iterator for Workload {
    type Item = FinalizedBlock;

    fn next(&mut self) -> Option<FinalizedBlock> {
        let timestamp = self.number.saturating_mul(SLOT_S).saturating_add(GENESIS_S);
        let (mut logs, data, ends) = self.logs();
        let hash = self.hash(timestamp, &logs, &data);
        // One allocation for the whole block; each log holds a slice of it.
        let data = bytes::Bytes::from(data);
        let mut start = 0;
        for (log, end) in logs.iter_mut().zip(ends) {
            log.data = Bytes(data.slice(start..end));
            start = end;
        }
        let (number, parent_hash) = (self.number, self.parent_hash);
        self.number = number.checked_add(1)?;
        self.parent_hash = hash;
        Some(FinalizedBlock { number, hash, parent_hash, timestamp, logs, body: None })
    }
}

/// Search terms by frequency, in the blocks generated before the call to [`Workload::terms`].
#[derive(Clone, Debug)]
pub struct Terms {
    shape: Shape,
}

impl Terms {
    /// The contract of nearly every fifth log.
    pub fn hot_address(&self) -> Address {
        shape::WETH
    }

    /// One of 192 contracts with a few logs out of ten thousand each.
    pub fn mid_address(&self, n: u64) -> Address {
        self.shape.token_of_rank(64 + n % 192)
    }

    /// The topic at position 0 of nearly half of the logs.
    pub fn transfer_topic(&self) -> B256 {
        shape::TRANSFER
    }

    /// A wallet that first appeared in one of the blocks, at position 2; it is in a few logs, at position 1 or 2.
    /// None if there is no such wallet yet.
    pub fn rare_wallet(&self, n: u64) -> Option<B256> {
        self.shape.new_wallet(n)
    }

    /// A hash at position 1 of exactly one log. None if there is no such hash yet.
    pub fn one_off_topic(&self, n: u64) -> Option<B256> {
        self.shape.past_one_off_topic(n)
    }

    /// A topic that occurs in no log.
    pub fn absent_topic(&self, n: u64) -> B256 {
        self.shape.absent_topic(n)
    }
}

#[cfg(test)]
mod tests;
