//! Ingest: fetches blocks from a source and stores them.
//!
//! ```text
//!   forward:   heads ──▶ blocks above ours ──▶ tip (one commit) ──▶ announced ──▶ final ones to the index
//!   backward:  missing cells, newest first ──▶ jobs ──▶ fetch ──▶ chunk and bodies ──▶ published
//! ```
//!
//! Guarantees: after a crash or a repetition anywhere, the store holds what an undisturbed run would have stored;
//! listeners are notified of a block only after it is stored; a block that cannot be fetched is retried and never
//! skipped. Leaves to others: where blocks come from, and which process does which part.

mod arrivals;
pub mod backward;
pub mod collect;
pub mod forward;
mod layered_source;
mod progress;

use std::time::Duration;

pub use backward::Backward;
pub use forward::Forward;
pub use layered_source::LayeredSource;
pub use progress::{Progress, ProgressReport, Role};

#[derive(Clone, Debug)]
pub struct IngestSettings {
    /// Concurrent fetches of the forward ingester.
    pub latest_workers: usize,
    /// Blocks per fetch at the head.
    pub latest_batch: u64,
    /// Maximum blocks per fetch when behind.
    pub latest_batch_max: u64,
    /// Cells that the backward ingester of this process fills concurrently.
    pub history_workers: usize,
    /// Blocks per fetch of history.
    pub history_batch: u64,
    /// Lowest block of history that is fetched.
    pub history_stop: u64,
    /// Whether transaction senders are recovered and stored. If not, each reader recovers them each time.
    pub store_senders: bool,
    /// Deepest reorganization that is followed.
    pub max_reorg_depth: u64,
    /// Maximum number of blocks in the tip.
    pub max_unfinal_blocks: usize,
    /// Interval between looks at the head without a notification.
    pub poll: Duration,
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

/// Blocks per fetch at the head: few when near it, more the further behind.
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
