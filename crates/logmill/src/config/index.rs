//! The section `[index]`: settings of the log index.
//!
//! Guarantees: settings that pass [`Index::fault`] are accepted by the index. Leaves to others: the meaning of each
//! setting ([`finalized_log_index::Settings`]).

use std::time::Duration;

use finalized_log_index::{BroadPolicy, Guardrails};
use serde::Deserialize;

use super::{InvalidKey, TIME_MS_MAX, count, within};

const CELL_BLOCKS_MAX: u64 = 1 << 20;
/// Twice the logs of a full mainnet cell, and below what the index can number.
const CHUNK_LOGS_MAX: u64 = 8 << 20;
const COMMIT_BLOCKS_MAX: u64 = 4_096;
/// More alternatives than any request within the default body limit can hold.
const OR_TERMS_MAX: u64 = 1 << 20;
/// A tebibyte.
const CACHE_MIB_MAX: u64 = 1 << 20;
/// A machine that is briefly busy would lose a shorter lease.
const LEASE_MS_MIN: u64 = 500;
/// The holder stops trusting its lease when one part in this many is left.
const LEASE_MARGIN_PART: u64 = 6;
const WARM_CHUNKS_MAX: u64 = 1_000_000;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    cell_blocks: u64,
    chunk_logs: u32,
    piece_logs: u32,
    commit_blocks: usize,
    commit_wait_ms: u64,
    lease_ms: u64,
    build_ms: u64,
    max_or_terms: usize,
    broad_policy: BroadPolicyName,
    query_deadline_ms: u64,
    cache_mib: u64,
    warm_chunks: usize,
    merge_cpu_percent: u32,
    guardrails: Limits,
}

/// [`BroadPolicy`] as written in the configuration.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BroadPolicyName {
    Error,
    BlockScan,
}

/// Limits of what may wait for garbage collection.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    max_orphan_chunk_bytes: u64,
    max_orphan_manifest_segments: u64,
    max_stale_tail_keys: u64,
    throttle_ms: u64,
}

impl Index {
    /// Settings of the index, except for its prefix.
    pub(super) fn settings(&self) -> finalized_log_index::Settings {
        let limits = &self.guardrails;
        finalized_log_index::Settings {
            cell_blocks: self.cell_blocks,
            chunk_logs: self.chunk_logs,
            piece_logs: self.piece_logs,
            commit_blocks: self.commit_blocks,
            commit_wait: Duration::from_millis(self.commit_wait_ms),
            lease_ttl: Duration::from_millis(self.lease_ms),
            lease_margin: Duration::from_millis(self.lease_ms / LEASE_MARGIN_PART),
            build_ttl: Duration::from_millis(self.build_ms),
            max_or_terms: self.max_or_terms,
            broad_policy: match self.broad_policy {
                BroadPolicyName::Error => BroadPolicy::Error,
                BroadPolicyName::BlockScan => BroadPolicy::BlockScan,
            },
            query_deadline: Duration::from_millis(self.query_deadline_ms),
            cache_bytes: self.cache_mib << 20,
            warm_chunks: self.warm_chunks,
            merge_cpu_percent: self.merge_cpu_percent,
            guardrails: Guardrails {
                max_orphan_chunk_bytes: limits.max_orphan_chunk_bytes,
                max_orphan_manifest_segments: limits.max_orphan_manifest_segments,
                max_stale_tail_keys: limits.max_stale_tail_keys,
                throttle: Duration::from_millis(limits.throttle_ms),
            },
            ..finalized_log_index::Settings::default()
        }
    }

    /// The first key with an invalid value, and the reason.
    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let limits = &self.guardrails;
        let (chunk_logs, piece_logs) = (u64::from(self.chunk_logs), u64::from(self.piece_logs));
        let uneven = (!self.cell_blocks.is_power_of_two())
            .then(|| ("index.cell_blocks", format!("{} is not a power of two", self.cell_blocks)));
        let faults = [
            within("index.cell_blocks", self.cell_blocks, 1, CELL_BLOCKS_MAX),
            uneven,
            within("index.chunk_logs", chunk_logs, 1, CHUNK_LOGS_MAX),
            within("index.piece_logs", piece_logs, 1, chunk_logs),
            within("index.commit_blocks", count(self.commit_blocks), 1, COMMIT_BLOCKS_MAX),
            within("index.commit_wait_ms", self.commit_wait_ms, 0, TIME_MS_MAX),
            within("index.lease_ms", self.lease_ms, LEASE_MS_MIN, TIME_MS_MAX),
            within("index.build_ms", self.build_ms, LEASE_MS_MIN, TIME_MS_MAX),
            within("index.max_or_terms", count(self.max_or_terms), 1, OR_TERMS_MAX),
            within("index.query_deadline_ms", self.query_deadline_ms, 1, TIME_MS_MAX),
            within("index.cache_mib", self.cache_mib, 1, CACHE_MIB_MAX),
            within("index.warm_chunks", count(self.warm_chunks), 0, WARM_CHUNKS_MAX),
            within("index.merge_cpu_percent", u64::from(self.merge_cpu_percent), 1, 100),
            within("index.guardrails.throttle_ms", limits.throttle_ms, 0, TIME_MS_MAX),
        ];
        faults.into_iter().flatten().next()
    }
}
