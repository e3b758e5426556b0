//! Settings of an index: plain data, each with its default and bounds.
//!
//! Guarantees: [`Settings::validate`] refuses what can not work. Leaves to others: where they come from.

use std::time::Duration;

use alloy_primitives::B256;

use crate::error::{Error, Result};
use crate::section::Bounds;

/// How an index works. The first three are stored with it and can not change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Blocks of a cell: an aligned range whose end is always the end of a chunk. A power of two.
    pub cell_blocks: u64,
    /// A chunk with so many logs ends, even inside of a cell.
    pub chunk_logs: u32,
    /// The tail seals a piece of this many logs; pieces merge when their chunk is complete.
    pub piece_logs: u32,
    /// What the keys and blobs of this index begin with: one per chain.
    pub prefix: String,
    /// The most blocks of one commit of [`crate::Writer::ingest_finalized_block`].
    pub commit_blocks: usize,
    /// How long such a commit may wait for more blocks that are on their way.
    pub commit_wait: Duration,
    /// How long the writer lease lasts without renewal.
    pub lease_ttl: Duration,
    /// How much earlier its holder stops to trust it.
    pub lease_margin: Duration,
    /// How long an attempt to build a chunk may take from its first byte written to its publication.
    pub build_ttl: Duration,
    /// Blocks known to be canonical: a chunk of history that holds one is anchored, or refused.
    pub anchors: Vec<(u64, B256)>,
    /// The most alternatives at one position of a filter.
    pub max_or_terms: usize,
    /// What happens to filters with more.
    pub broad_policy: BroadPolicy,
    /// How long a query may take.
    pub query_deadline: Duration,
    /// Memory for directories, buckets, bitmaps and pages that were read.
    pub cache_bytes: u64,
    /// How many of the newest chunks have their directories read when the index is opened.
    pub warm_chunks: usize,
    /// The share of the time in which merges may compute, read and write, in percent: their budget of one core and of
    /// the disk.
    pub merge_cpu_percent: u32,
    /// When garbage slows ingest down, and then stops it.
    pub guardrails: Guardrails,
}

/// What is done about a filter with too many alternatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadPolicy {
    /// It is an error.
    Error,
    /// The blocks are scanned without the index.
    BlockScan,
}

/// How much may wait for garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guardrails {
    /// Bytes of blobs that nothing refers to.
    pub max_orphan_chunk_bytes: u64,
    /// Change records that no reader needs any more.
    pub max_orphan_manifest_segments: u64,
    /// Tail records below the tail.
    pub max_stale_tail_keys: u64,
    /// How long each commit waits while one of these is exceeded.
    pub throttle: Duration,
}

impl Default for Guardrails {
    fn default() -> Self {
        Self {
            max_orphan_chunk_bytes: 32 << 30,
            max_orphan_manifest_segments: 500_000,
            max_stale_tail_keys: 1_000_000,
            throttle: Duration::from_millis(100),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cell_blocks: 8_192,
            chunk_logs: 1 << 20,
            piece_logs: 1 << 17,
            prefix: "logindex".to_owned(),
            commit_blocks: 64,
            commit_wait: Duration::ZERO,
            lease_ttl: Duration::from_secs(30),
            lease_margin: Duration::from_secs(5),
            build_ttl: Duration::from_secs(600),
            anchors: Vec::new(),
            max_or_terms: 128,
            broad_policy: BroadPolicy::Error,
            query_deadline: Duration::from_secs(30),
            cache_bytes: 64 << 20,
            warm_chunks: 0,
            merge_cpu_percent: 50,
            guardrails: Guardrails::default(),
        }
    }
}

impl Settings {
    /// Refuses what can not work.
    pub fn validate(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid { what });
        if !self.cell_blocks.is_power_of_two() || self.cell_blocks > 1 << 20 {
            return invalid(format!(
                "cell_blocks is {}: it must be a power of two of at most 2^20",
                self.cell_blocks
            ));
        }
        let logs_max = Bounds::chunk_logs_max();
        if !(1..=logs_max).contains(&self.chunk_logs) {
            return invalid(format!("chunk_logs is {}, not 1 to {logs_max}", self.chunk_logs));
        }
        if !(1..=self.chunk_logs).contains(&self.piece_logs) {
            return invalid(format!(
                "piece_logs is {}, not 1 to chunk_logs ({})",
                self.piece_logs, self.chunk_logs
            ));
        }
        let blocks_max = crate::records::tail_batch::BATCH_BLOCKS_MAX;
        if !(1..=blocks_max).contains(&self.commit_blocks) {
            return invalid(format!(
                "commit_blocks is {}, not 1 to {blocks_max}",
                self.commit_blocks
            ));
        }
        if self.lease_margin >= self.lease_ttl {
            return invalid("lease_margin is not below lease_ttl".to_owned());
        }
        if !(1..=100).contains(&self.merge_cpu_percent) {
            return invalid(format!("merge_cpu_percent is {}", self.merge_cpu_percent));
        }
        logmill_io::BlobName::new(format!("{}/chunks", self.prefix))?;
        Ok(())
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            cell_blocks: self.cell_blocks,
            chunk_logs: self.chunk_logs,
            piece_logs: self.piece_logs,
        }
    }
}
