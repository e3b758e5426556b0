//! The fence on stores in memory; `crates/sim` has it on databases.

use std::time::Duration;

use finalized_log_index::Stores;
use logmill_io::millis;

use crate::crash_matrix::Ground;
use crate::fence::{Place, all_tries};

impl Place for Ground {
    async fn open(&self) -> Stores {
        self.stores.clone()
    }

    fn advance(&self, by: Duration) {
        self.clock.jump(millis(by));
    }
}

#[tokio::test(start_paused = true)]
async fn a_fenced_out_writer_publishes_nothing_and_is_not_degraded() {
    all_tries(&Ground::new(3)).await;
}
