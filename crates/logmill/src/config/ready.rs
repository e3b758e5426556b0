//! The section `[ready]`: when this process may be sent requests, and how long its start may take.
//!
//! Guarantees: what passes [`Ready::fault`] can be judged by. Leaves to others: judging ([`crate::readiness`]).

use std::time::Duration;

use serde::Deserialize;

use super::{Fault, TIME_MS_MAX, within};
use crate::readiness::chain::HeadLimits;

/// The most blocks that a view may be called caught up with.
const LAG_BLOCKS_MAX: u64 = 1 << 20;
/// The most free space that may be asked for: a pebibyte.
const FREE_DISK_MIB_MAX: u64 = 1 << 30;
/// How many polls may go without an answer before the head counts as unseen.
const POLLS_MISSED_MAX: u32 = 3;

/// When this process is ready.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ready {
    lag_blocks: u64,
    head_seen_within_ms: u64,
    store_timeout_ms: u64,
    pub(crate) free_disk_mib: u64,
    archived_chains: String,
    start_wait_ms: u64,
}

impl Ready {
    /// How far a view may lag, and how old the head may be where it is asked for every `poll`.
    pub(crate) fn limits(&self, poll: Duration) -> HeadLimits {
        let seen_within = Duration::from_millis(self.head_seen_within_ms);
        HeadLimits {
            lag_blocks: self.lag_blocks,
            seen_within: seen_within.max(poll.saturating_mul(POLLS_MISSED_MAX)),
        }
    }

    /// How long a store may take to answer.
    pub(crate) fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.store_timeout_ms)
    }

    /// How long a start waits for the database and the bucket.
    pub(crate) fn start_wait(&self) -> Duration {
        Duration::from_millis(self.start_wait_ms)
    }

    /// Whether a chain is kept as it is, and followed by no process.
    pub(crate) fn is_archived(&self, chain_id: u64) -> bool {
        chains(&self.archived_chains).is_ok_and(|chains| chains.contains(&chain_id))
    }

    pub(super) fn fault(&self) -> Option<Fault> {
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

/// Ids of chains, with commas between.
fn chains(text: &str) -> Result<Vec<u64>, String> {
    let ids = text.split(',').map(str::trim).filter(|id| !id.is_empty());
    ids.map(|id| id.parse().map_err(|_| format!("{id:?} is not the id of a chain"))).collect()
}
