//! An index over in-memory stores that can be opened repeatedly, and a clock that can be moved.

use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{LogIndex, Settings, Stores, Writer};
use logmill_io::{Clock, SeededEntropy, SimClock, Timestamp, millis};

use crate::life::PAUSE;

/// In-memory stores that outlive the index, with a clock that can be moved.
#[derive(Clone, Debug)]
pub(crate) struct MemoryStores {
    pub(crate) clock: Arc<SimClock>,
    pub(crate) stores: Stores,
    pub(crate) settings: Settings,
}

/// Bounds so small that a short chain has many cells, chunks and pieces.
pub(crate) fn small() -> Settings {
    Settings {
        cell_blocks: 32,
        chunk_logs: 700,
        piece_logs: 250,
        merge_cpu_percent: 100,
        query_deadline: Duration::from_secs(600),
        ..Settings::default()
    }
}

impl MemoryStores {
    pub(crate) fn new(seed: u64) -> Self {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let stores = Stores::memory(shared, SeededEntropy::shared(seed));
        Self { clock, stores, settings: small() }
    }

    pub(crate) fn pause(&self) {
        self.clock.jump(millis(PAUSE));
    }

    pub(crate) async fn open(&self) -> LogIndex {
        LogIndex::open(self.stores.clone(), self.settings.clone()).await.expect("it opens")
    }

    /// Opens the index as its writer, and takes over the lease.
    pub(crate) async fn write(&self) -> Writer {
        self.open().await.writer("test").await.expect("the same owner takes its lease over")
    }
}
