//! An index over in-memory stores that can be opened repeatedly.

use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{LogIndex, Settings, Stores, Writer};
use logmill_io::blob::MemoryBlobs;
use logmill_io::meta::MemoryMeta;
use logmill_io::{Entropy, SeededEntropy, SystemClock};

/// Stores that outlive the index.
#[derive(Clone, Debug)]
pub(crate) struct StoreFixture {
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

impl StoreFixture {
    pub(crate) fn new(seed: u64) -> Self {
        let entropy: Arc<dyn Entropy> = SeededEntropy::shared(seed);
        let clock = SystemClock::shared();
        let stores = Stores {
            meta: MemoryMeta::shared(Arc::clone(&clock), Arc::clone(&entropy)),
            blobs: MemoryBlobs::shared(),
            clock,
            entropy,
        };
        Self { stores, settings: small() }
    }

    pub(crate) async fn open(&self) -> LogIndex {
        LogIndex::open(self.stores.clone(), self.settings.clone()).await.expect("it opens")
    }

    /// Opens the index as its writer, and takes over the lease.
    pub(crate) async fn write(&self) -> Writer {
        self.open().await.writer("test").await.expect("the same owner takes its lease over")
    }
}
