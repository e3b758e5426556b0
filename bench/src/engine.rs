//! The interface that a job queue needs to be measured.
//!
//! An [`Engine`] is a factory; [`Engine::open`] creates a [`Queue`] in a new, empty [`StoreLocation`] for one round. A
//! queue must be driven as its users drive it: through its public interface, with `connections` concurrent callers or
//! workers, tuned as well as its options allow, and with every acknowledgement durable before a drain returns. What
//! is measured, and how often, is decided in `rounds`.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

/// The database that holds an engine's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    PostgreSql,
    Sqlite,
}

/// A new and empty location for one round of one engine.
#[derive(Clone, Debug)]
pub enum StoreLocation {
    /// A new database on the server that all engines share.
    PostgreSql { url: String },
    /// An empty folder.
    Sqlite { folder: PathBuf },
}

/// Optional features of an engine. Figures of features that it lacks are null in the report.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// One call enqueues many jobs.
    pub enqueue_bulk: bool,
    /// Claims and acknowledges many jobs at once.
    pub batches: bool,
    /// Workers of one process can share round trips to the store, or not.
    pub shared_trips: bool,
}

/// How workers claim and acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// C workers; none holds or acknowledges more than one job at a time.
    OneByOne,
    /// Like `OneByOne`, with workers that share nothing, as if they were C processes. Only for engines with
    /// `shared_trips`.
    Apart,
    /// Claims and acknowledgements have the size that is best for the engine.
    Batches,
}

/// Outcome of a drain.
#[derive(Clone, Copy, Debug)]
pub struct DrainOutcome {
    /// Jobs whose handler ran and whose completion is committed.
    pub done: u64,
    /// From the start of the workers to the last durable acknowledgement.
    pub elapsed: Duration,
}

/// Number of jobs that are not completed.
#[derive(Clone, Copy, Debug)]
pub struct RemainingJobs {
    /// Jobs that any worker may claim now.
    pub waiting: u64,
    /// Jobs claimed by a worker. Between drains there are no workers: such a job was lost in an orderly stop, and
    /// waits for the engine's recovery from dead workers.
    pub held: u64,
}

impl RemainingJobs {
    pub fn all(self) -> u64 {
        self.waiting + self.held
    }
}

/// Creates a queue, and describes it for the report.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Name in the report, such as `apalis-postgresql`.
    fn name(&self) -> &'static str;
    fn store(&self) -> Store;
    fn features(&self) -> Features;
    /// The crates behind it with their versions, for the report.
    fn versions(&self) -> Vec<(&'static str, String)>;
    /// Settings that differ from the defaults, for the report.
    fn tuning(&self) -> String;
    /// Creates the schema in `location` and connects.
    async fn open(
        &self,
        location: &StoreLocation,
        connections: usize,
    ) -> anyhow::Result<Box<dyn Queue>>;
}

/// One open queue, the only user of its place.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Enqueues `jobs` jobs, one call and one commit each, from `connections` concurrent callers.
    async fn enqueue_one_by_one(&self, jobs: u64) -> anyhow::Result<()>;

    /// Enqueues `jobs` jobs by the bulk call, from `connections` concurrent callers. Engines without a bulk call
    /// enqueue one by one; the harness also uses this to fill the queue before a drain.
    async fn enqueue_bulk(&self, jobs: u64) -> anyhow::Result<()>;

    /// Runs workers until `jobs` jobs are done or `limit` has passed, then stops them orderly: on return no
    /// acknowledgement is outstanding.
    async fn drain(&self, mode: Mode, jobs: u64, limit: Duration) -> anyhow::Result<DrainOutcome>;

    /// Starts workers on the empty queue and enqueues `samples` jobs, each after `pause(sample)` and after the
    /// previous one has started. Returns the times from just before the enqueue call to the start of the handler.
    async fn pickup(&self, samples: usize) -> anyhow::Result<Vec<Duration>>;

    /// Number of jobs in the store that are not completed.
    async fn left(&self) -> anyhow::Result<RemainingJobs>;

    /// Closes every connection.
    async fn close(self: Box<Self>) -> anyhow::Result<()>;
}

/// Delay before a pick-up sample enqueues, so that samples do not synchronize with a poll interval: 2 to 12 ms, the
/// same sequence for every engine.
pub fn pause(sample: usize) -> Duration {
    let step = u64::try_from(sample).unwrap_or(0).wrapping_mul(2_654_435_761) % 10_000;
    Duration::from_micros(2_000 + step)
}

/// The arguments of every job, about 60 bytes as JSON.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Payload {
    pub id: u64,
    pub note: String,
}

impl Payload {
    pub fn new(id: u64) -> Self {
        Self { id, note: "0123456789abcdef0123456789abcdef".to_owned() }
    }
}

/// Splits `jobs` into one half-open range of job numbers per caller.
pub fn shares(jobs: u64, callers: usize) -> Vec<std::ops::Range<u64>> {
    let callers = u64::try_from(callers).unwrap_or(1).max(1);
    (0..callers).map(|n| jobs * n / callers..jobs * (n + 1) / callers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_job_once() {
        for (jobs, callers) in [(0, 1), (1, 8), (20_000, 8), (7, 3)] {
            let all: Vec<u64> = shares(jobs, callers).into_iter().flatten().collect();
            assert_eq!(all, (0..jobs).collect::<Vec<_>>());
        }
    }
}
