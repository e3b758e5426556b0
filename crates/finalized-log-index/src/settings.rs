//! Settings of an index: plain data, each with its default and bounds.
//!
//! Guarantees: [`Settings::validate`] refuses settings that cannot work. Leaves to others: where they come from.

use std::time::Duration;

use alloy_primitives::B256;

use crate::error::{Error, Result};
use crate::section::Bounds;

/// Settings of an index. The first three are stored with the index and cannot change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Blocks per cell. A cell is an aligned range whose end is always the end of a chunk. Must be a power of two.
    pub cell_blocks: u64,
    /// A chunk ends when it has this many logs, even inside a cell.
    pub chunk_logs: u32,
    /// The tail seals a piece of this many logs; the pieces of a complete chunk are merged.
    pub piece_logs: u32,
    /// Prefix of all keys and blob names of this index; one per chain.
    pub prefix: String,
    /// Value of the label `chain` of its metrics.
    pub chain: String,
    /// Maximum number of blocks that [`crate::Writer::ingest_finalized_block`] puts in one commit.
    pub commit_blocks: usize,
    /// How long such a commit waits for further blocks.
    pub commit_wait: Duration,
    /// Lifetime of the writer lease without renewal.
    pub lease_ttl: Duration,
    /// Safety margin: the holder stops using the lease this long before it expires.
    pub lease_margin: Duration,
    /// How long a build attempt may take from its first write to its publication.
    pub build_ttl: Duration,
    /// Blocks known to be canonical. A chunk of history that holds one is anchored, or refused if the hash differs.
    pub anchors: Vec<(u64, B256)>,
    /// Maximum number of alternatives at one position of a filter.
    pub max_or_terms: usize,
    /// Treatment of filters that exceed `max_or_terms`.
    pub broad_policy: BroadPolicy,
    /// Time limit of a query.
    pub query_deadline: Duration,
    /// Size of the cache of directories, buckets, bitmaps and pages.
    pub cache_bytes: u64,
    /// Number of newest chunks whose directories are read when the index is opened.
    pub warm_chunks: usize,
    /// Share of time that merges may spend computing, reading and writing, in percent: their budget of one core and
    /// of the disk.
    pub merge_cpu_percent: u32,
    /// Limits at which garbage first throttles ingest and then stops it.
    pub guardrails: Guardrails,
}

/// Treatment of a filter with too many alternatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadPolicy {
    /// Reject the query.
    Error,
    /// Scan the blocks without using the index.
    BlockScan,
}

/// Limits of the backlog of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guardrails {
    /// Total size of blobs that nothing refers to.
    pub max_orphan_chunk_bytes: u64,
    /// Number of change records that no reader needs.
    pub max_orphan_manifest_segments: u64,
    /// Number of tail records below the start of the tail.
    pub max_stale_tail_keys: u64,
    /// Delay of each commit while a limit is exceeded.
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
            chain: String::new(),
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
    /// Refuses values that cannot work.
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
            return invalid(format!(
                "chunk_logs is {}: it must be 1 to {logs_max}",
                self.chunk_logs
            ));
        }
        if !(1..=self.chunk_logs).contains(&self.piece_logs) {
            return invalid(format!(
                "piece_logs is {}: it must be 1 to chunk_logs ({})",
                self.piece_logs, self.chunk_logs
            ));
        }
        let blocks_max = crate::records::tail_batch::BATCH_BLOCKS_MAX;
        if !(1..=blocks_max).contains(&self.commit_blocks) {
            return invalid(format!(
                "commit_blocks is {}: it must be 1 to {blocks_max}",
                self.commit_blocks
            ));
        }
        if self.lease_margin >= self.lease_ttl {
            return invalid("lease_margin must be less than lease_ttl".to_owned());
        }
        if !(1..=100).contains(&self.merge_cpu_percent) {
            return invalid(format!(
                "merge_cpu_percent is {}: it must be 1 to 100",
                self.merge_cpu_percent
            ));
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
