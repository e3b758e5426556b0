//! Waiting for receipts of a block that a node lacks.
//!
//! On some chains transactions never get receipts, so at the level `off` a missing receipt counts as none. At other
//! levels it makes the block false. But a node that has just received a block may lack some receipts for a moment: at
//! `off` their logs would be lost permanently, and at other levels an honest node would be blamed.
//!
//! Guarantees: near the node's head, missing parts of a block are waited for, up to [`WAIT_MAX`] from when they were
//! first found missing; after that, and further below the head, they count as missing. Leaves to others: retrying.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::B256;
use logmill_io::Clock;

use crate::block::BlockRef;

const WAIT_MAX: Duration = Duration::from_secs(1);
/// How far below its head a node may still lack parts of blocks.
const NEAR_BLOCKS: u64 = 16;

#[derive(Debug)]
pub(super) struct Patience {
    clock: Arc<dyn Clock>,
    /// The block with missing parts, and when that was found.
    lacking: Mutex<Option<(B256, Duration)>>,
}

impl Patience {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, lacking: Mutex::default() }
    }

    /// Whether parts of a block that are missing on a node with this head may still arrive.
    pub(super) fn may_arrive(&self, block: &BlockRef, head: Option<u64>) -> bool {
        if head.is_none_or(|head| block.number.saturating_add(NEAR_BLOCKS) < head) {
            return false;
        }
        let now = self.clock.monotonic();
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        match *lacking {
            Some((hash, since)) if hash == block.hash => now.saturating_sub(since) < WAIT_MAX,
            _ => {
                *lacking = Some((block.hash, now));
                true
            }
        }
    }
}
