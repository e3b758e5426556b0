//! The section `[ready]`: when this process is ready for requests, and how long its start may take.
//!
//! Guarantees: settings that pass [`ReadySettings::fault`] can be used. Leaves to others: the checks
//! ([`logmill_serve::readiness`]).

use std::time::Duration;

use logmill_serve::readiness::chain::HeadLimits;
use serde::Deserialize;

use super::{InvalidKey, TIME_MS_MAX, within};

/// Maximum lag at which a view may count as caught up.
const LAG_BLOCKS_MAX: u64 = 1 << 20;
/// Maximum free space that may be required: a pebibyte.
const FREE_DISK_MIB_MAX: u64 = 1 << 30;
/// Number of polls without an answer that is always tolerated.
const POLLS_MISSED_MAX: u32 = 3;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadySettings {
    pub(crate) lag_blocks: u64,
    head_seen_within_ms: u64,
    store_timeout_ms: u64,
    pub(crate) free_disk_mib: u64,
    archived_chains: String,
    start_wait_ms: u64,
}

impl ReadySettings {
    /// How far a view may lag, and how long ago a node must have answered if it is polled every `poll`.
    pub(crate) fn limits(&self, poll: Duration) -> HeadLimits {
        let seen_within = Duration::from_millis(self.head_seen_within_ms);
        HeadLimits {
            lag_blocks: self.lag_blocks,
            seen_within: seen_within.max(poll.saturating_mul(POLLS_MISSED_MAX)),
        }
    }

    pub(crate) fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.store_timeout_ms)
    }

    /// How long a start waits for a database or bucket that does not answer.
    pub(crate) fn start_wait(&self) -> Duration {
        Duration::from_millis(self.start_wait_ms)
    }

    /// Whether a chain is kept but not followed by any process.
    pub(crate) fn is_archived(&self, chain_id: u64) -> bool {
        chains(&self.archived_chains).is_ok_and(|chains| chains.contains(&chain_id))
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let faults = [
            within("ready.lag_blocks", self.lag_blocks, 0, LAG_BLOCKS_MAX),
            within("ready.head_seen_within_ms", self.head_seen_within_ms, 1, TIME_MS_MAX),
            within("ready.store_timeout_ms", self.store_timeout_ms, 1, TIME_MS_MAX),
            within("ready.free_disk_mib", self.free_disk_mib, 0, FREE_DISK_MIB_MAX),
            chains(&self.archived_chains).err().map(|why| ("ready.archived_chains", why)),
            within("ready.start_wait_ms", self.start_wait_ms, 0, TIME_MS_MAX),
        ];
        faults.into_iter().flatten().next()
    }
}

/// Parses comma-separated chain ids.
fn chains(text: &str) -> Result<Vec<u64>, String> {
    let ids = text.split(',').map(str::trim).filter(|id| !id.is_empty());
    ids.map(|id| id.parse().map_err(|_| format!("{id:?} is not a chain id"))).collect()
}
