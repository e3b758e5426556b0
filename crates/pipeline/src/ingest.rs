//! Ingest: from a source of blocks to what is stored.
//!
//! ```text
//!   forward:   heads ──▶ blocks above ours ──▶ tip (one commit) ──▶ told to listeners ──▶ final ones to the index
//!   backward:  cells that are missing, newest first ──▶ jobs ──▶ fetch ──▶ chunk and bodies ──▶ published
//! ```
//!
//! Guarantees: crashed or repeated anywhere, what is stored is what an undisturbed run would have stored; listeners
//! hear of a block only after it is stored; a block that can not be had is tried again and never passed over. Leaves to
//! others: where blocks come from, and what processes do which part.

pub mod backward;
pub mod collect;
pub mod forward;
pub mod layered;
pub mod process;
pub mod progress;

use std::time::Duration;

pub use backward::{Backward, CELL_JOB};
pub use forward::Forward;
pub use layered::Layered;
pub use process::{Ingest, Roles};
pub use progress::{Progress, ProgressReport, Role};

/// How ingest works.
#[derive(Clone, Debug)]
pub struct IngestSettings {
    /// How many fetches the forward ingester has under way at a time.
    pub latest_workers: usize,
    /// How many blocks it fetches at a time at the head.
    pub latest_batch: u64,
    /// How many at most when it is behind.
    pub latest_batch_max: u64,
    /// How many cells the backward ingester of this process works on at a time.
    pub history_workers: usize,
    /// How many blocks it fetches at a time.
    pub history_batch: u64,
    /// Below which block no history is wanted.
    pub history_stop: u64,
    /// Whether the senders of transactions are recovered and stored: else whoever needs one recovers it, each time.
    pub store_senders: bool,
    /// How deep the chain may change.
    pub max_reorg_depth: u64,
    /// The most blocks that are not final.
    pub max_unfinal_blocks: usize,
    /// How often the head is looked at when nothing says that it moved.
    pub poll: Duration,
    /// How long to wait after an error.
    pub error_wait: Duration,
}

impl Default for IngestSettings {
    fn default() -> Self {
        Self {
            latest_workers: 2,
            latest_batch: 1,
            latest_batch_max: 64,
            history_workers: 5,
            history_batch: 20,
            history_stop: 0,
            store_senders: false,
            max_reorg_depth: 1_000,
            max_unfinal_blocks: 4_096,
            poll: Duration::from_secs(1),
            error_wait: Duration::from_secs(10),
        }
    }
}

/// The blocks of one fetch at the head: few when near it, more the further behind.
pub(crate) fn batch_size(settings: &IngestSettings, behind: u64) -> u64 {
    let wanted = match behind {
        0..=3 => settings.latest_batch,
        4..=20 => settings.latest_batch.max(5),
        21..=100 => settings.latest_batch.max(10),
        _ => settings.latest_batch_max,
    };
    wanted.clamp(1, settings.latest_batch_max.max(settings.latest_batch)).min(behind.max(1))
}

#[cfg(test)]
mod tests;
