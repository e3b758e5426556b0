//! The fencing tests on in-memory stores; `crates/sim` runs them on databases.

use std::time::Duration;

use finalized_log_index::Stores;
use logmill_io::millis;

use crate::fence::{SharedStores, all_tries};
use crate::fixture::MemoryStores;

impl SharedStores for MemoryStores {
    async fn open(&self) -> Stores {
        self.stores.clone()
    }

    fn advance(&self, by: Duration) {
        self.clock.jump(millis(by));
    }
}

#[tokio::test(start_paused = true)]
async fn a_fenced_writer_publishes_nothing_and_is_not_degraded() {
    all_tries(&MemoryStores::new(3)).await;
}
