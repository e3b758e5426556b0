//! The interface that a store of logs needs to be measured.
//!
//! An engine is used as its users would use it, tuned as well as its options allow; [`Engine::tuning`] describes how.
//! What is measured, and how often, is decided in `rounds`.

use std::time::Duration;

use async_trait::async_trait;
use finalized_log_index::{Filter, FinalizedBlock, Log};

/// Cost of an ingest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Until the commit was durable.
    pub elapsed: Duration,
    /// CPU of this process during that time.
    pub client_cpu: Duration,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.elapsed += other.elapsed;
        self.client_cpu += other.client_cpu;
    }
}

/// Result of a query, and the time until all of it was in memory.
#[derive(Debug)]
pub struct QueryOutcome {
    pub elapsed: Duration,
    pub results: usize,
    /// The logs; none if the query was only timed.
    pub found: Option<FoundLogs>,
}

/// The logs of an answer, in the engine's representation.
#[derive(Debug)]
pub enum FoundLogs {
    Logs(Vec<Log>),
    /// As written by `answer::encode`.
    Encoded(Vec<u8>),
}

/// Size of an index of terms.
#[derive(Clone, Copy, Debug)]
pub struct IndexSize {
    pub bytes: u64,
    /// Number of indexed values, if they are not exactly the addresses and topics of all logs.
    pub values: Option<u64>,
}

/// Whether the logs are needed, or only the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryMode {
    Time,
    Logs,
}

/// One store, open and at first empty, and the only user of its place. The harness uses it from one task.
#[async_trait(?Send)]
pub trait Engine {
    /// Name in the report.
    fn name(&self) -> &'static str;
    /// The software behind it with versions, for the report.
    fn versions(&self) -> Vec<(&'static str, String)>;
    /// Settings that differ from the defaults, for the report.
    fn tuning(&self) -> String;

    /// Adds consecutive blocks with one commit that is durable on return.
    async fn ingest(&mut self, blocks: Vec<FinalizedBlock>) -> anyhow::Result<Cost>;

    /// Completes deferred work of ingest, such as merging or a checkpoint.
    async fn settle(&mut self) -> anyhow::Result<Cost>;

    /// Prepares what a running store does in idle time and is not measured, such as statistics.
    async fn prepare_queries(&mut self) -> anyhow::Result<()>;

    /// Returns all logs of the filter, complete and in the order of the chain, with the limit as defined by
    /// `finalized_log_index`.
    async fn query(&mut self, filter: &Filter, mode: QueryMode) -> anyhow::Result<QueryOutcome>;

    /// Total size on disk.
    async fn disk_bytes(&mut self) -> anyhow::Result<u64>;

    /// Size of the part that serves to find terms, if the engine reports it.
    async fn index_size(&mut self) -> anyhow::Result<Option<IndexSize>> {
        Ok(None)
    }

    /// Whether the CPU of this process is the engine's, or only that of feeding it.
    fn works_in_this_process(&self) -> bool {
        true
    }

    /// CPU seconds so far of the engine's other processes.
    fn server_cpu_s(&self) -> anyhow::Result<f64> {
        Ok(0.0)
    }
}

/// Measures work of this process.
pub struct Stopwatch {
    start: std::time::Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { cpu: cpu_time(), start: std::time::Instant::now() }
    }

    pub fn stop(&self) -> Cost {
        Cost { elapsed: self.start.elapsed(), client_cpu: cpu_time().saturating_sub(self.cpu) }
    }
}

/// User and system time of this process, finer than the ticks of `/proc`.
pub fn cpu_time() -> Duration {
    clock(rustix::time::ClockId::ProcessCPUTime)
}

/// User and system time of this thread.
pub fn thread_cpu_time() -> Duration {
    clock(rustix::time::ClockId::ThreadCPUTime)
}

fn clock(id: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Drops the block that a limit cuts, as `finalized_log_index` does; engines request one log more than the limit.
pub fn trim<T>(logs: &mut Vec<T>, limit: Option<usize>, block: impl Fn(&T) -> u64) {
    let Some(limit) = limit.filter(|limit| logs.len() > *limit) else { return };
    let cut = block(&logs[limit]);
    let keep = logs.partition_point(|log| block(log) < cut);
    if keep > 0 {
        logs.truncate(keep);
    }
}

/// Total size of all files below a folder.
pub fn folder_bytes(folder: &std::path::Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_drops_the_block_that_it_cuts() {
        for (limit, expected) in [(None, 6), (Some(6), 6), (Some(5), 3), (Some(3), 3), (Some(2), 1)]
        {
            let mut blocks = vec![1, 2, 2, 5, 5, 5];
            trim(&mut blocks, limit, |block| *block);
            assert_eq!(blocks.len(), expected, "{limit:?}");
        }
    }
}
