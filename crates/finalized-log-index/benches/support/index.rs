//! Shared by the benchmarks: an index in memory, and a chain for it.

use finalized_log_index::workload::{Workload, WorkloadSettings};
use finalized_log_index::{FinalizedBlock, LogIndex, Settings, Stores, Writer};
use logmill_io::{OsEntropy, SystemClock};

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

pub(crate) fn blocks(logs_per_block: u32, count: usize) -> Vec<FinalizedBlock> {
    let settings = WorkloadSettings { seed: 1, first_block: 0, logs_per_block };
    Workload::new(settings).take(count).collect()
}

pub(crate) async fn writer() -> Writer {
    let stores = Stores::memory(SystemClock::shared(), OsEntropy::shared());
    let settings = Settings { cell_blocks: 256, merge_cpu_percent: 100, ..Settings::default() };
    let index = LogIndex::open(stores, settings).await.expect("the index opens");
    index.writer("benchmark").await.expect("no other process writes")
}
