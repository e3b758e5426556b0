//! What a store of logs must offer to be measured.
//!
//! An engine is used as its users would use it, tuned as well as its options allow; [`Engine::tuning`] says how.
//! What is measured and how often is `rounds`' business.

use std::time::Duration;

use async_trait::async_trait;
use finalized_log_index::{Filter, FinalizedBlock, Log};

/// What an ingest cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Until the commit was durable.
    pub elapsed: Duration,
    /// CPU of this process meanwhile.
    pub client_cpu: Duration,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.elapsed += other.elapsed;
        self.client_cpu += other.client_cpu;
    }
}

/// What a query brought, and how long it took until all of it was in memory.
#[derive(Debug)]
pub struct Answer {
    pub elapsed: Duration,
    pub results: usize,
    /// The whole logs; none if the query was only to be timed.
    pub found: Option<Found>,
}

/// The logs of an answer, in the form that the engine gives them.
#[derive(Debug)]
pub enum Found {
    Logs(Vec<Log>),
    /// As `answer::encode` would write them.
    Encoded(Vec<u8>),
}

/// How large an index of terms is.
#[derive(Clone, Copy, Debug)]
pub struct IndexSize {
    pub bytes: u64,
    /// Its values, if they are not exactly the addresses and topics of all logs.
    pub values: Option<u64>,
}

/// Whether the logs are wanted, or only the time they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Time,
    Logs,
}

/// One store, open and empty at first. Nobody else uses its place. The harness asks from one task only.
#[async_trait(?Send)]
pub trait Engine {
    /// The name in the report.
    fn name(&self) -> &'static str;
    /// What is behind it, with versions, for the report.
    fn versions(&self) -> Vec<(&'static str, String)>;
    /// What was set away from the defaults, for the report.
    fn tuning(&self) -> String;

    /// Adds the blocks, which follow those before, with one commit that is durable on return.
    async fn ingest(&mut self, blocks: Vec<FinalizedBlock>) -> anyhow::Result<Cost>;

    /// Finishes what ingest has put off, such as merging or a checkpoint.
    async fn settle(&mut self) -> anyhow::Result<Cost>;

    /// Brings what a running store has at its leisure, and is not counted: statistics, for instance.
    async fn prepare_queries(&mut self) -> anyhow::Result<()>;

    /// All logs of the filter, whole and in the order of the chain, as `finalized_log_index` defines the limit.
    async fn query(&mut self, filter: &Filter, want: Want) -> anyhow::Result<Answer>;

    /// Bytes on disk, all in.
    async fn disk_bytes(&mut self) -> anyhow::Result<u64>;

    /// What of it is there to find terms, where the engine can tell.
    async fn index_size(&mut self) -> anyhow::Result<Option<IndexSize>> {
        Ok(None)
    }

    /// Whether the CPU of this process is the engine's, or only that of feeding it.
    fn works_in_this_process(&self) -> bool {
        true
    }

    /// CPU seconds so far of the processes beside this one.
    fn server_cpu_s(&self) -> anyhow::Result<f64> {
        Ok(0.0)
    }
}

/// Measures a piece of work of this process.
pub struct Watch {
    start: std::time::Instant,
    cpu: Duration,
}

impl Watch {
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

/// The same of this thread alone.
pub fn thread_cpu_time() -> Duration {
    clock(rustix::time::ClockId::ThreadCPUTime)
}

fn clock(id: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Drops the block that a limit cuts, as `finalized_log_index` does; engines ask for one log more than the limit.
pub fn trim<T>(logs: &mut Vec<T>, limit: Option<usize>, block: impl Fn(&T) -> u64) {
    let Some(limit) = limit.filter(|limit| logs.len() > *limit) else { return };
    let cut = block(&logs[limit]);
    let keep = logs.partition_point(|log| block(log) < cut);
    if keep > 0 {
        logs.truncate(keep);
    }
}

/// The lengths of all files below a folder.
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
