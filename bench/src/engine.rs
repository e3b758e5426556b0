//! What a job queue must offer to be measured.
//!
//! An [`Engine`] is a recipe; [`Engine::open`] makes a [`Queue`] in a fresh, empty [`Place`] for one round. A queue
//! must be driven as its users drive it: through its public interface, with `connections` callers or workers at
//! once, tuned as well as its options allow, and with every acknowledgement durable before a drain returns.
//! What is measured and how often is `rounds`' business.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

/// Which database an engine stores its jobs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    PostgreSql,
    Sqlite,
}

/// A fresh and empty home for one round of one engine.
#[derive(Clone, Debug)]
pub enum Place {
    /// A new database on the server that all engines share.
    PostgreSql { url: String },
    /// An empty folder.
    Sqlite { folder: PathBuf },
}

/// What the engine has beyond the least. What it lacks is reported as null.
#[derive(Clone, Copy, Debug)]
pub struct Offers {
    /// One call that enqueues many jobs.
    pub enqueue_bulk: bool,
    /// Claims and acknowledgements of many jobs at once.
    pub batches: bool,
    /// Workers of one process that share the trips to the store, beside workers that do not.
    pub shared_trips: bool,
}

/// How workers claim and acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// C workers; none holds or acknowledges more than one job at a time.
    OneByOne,
    /// The same with workers that share nothing, as those of C processes would. Engines whose workers always do so
    /// are not asked for this.
    Apart,
    /// A claim takes as many as serves the engine best, and so does an acknowledgement.
    Batches,
}

/// What came of a drain.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// Jobs whose handler ran and whose completion is committed.
    pub done: u64,
    /// From the start of the workers to the last durable acknowledgement.
    pub elapsed: Duration,
}

/// Jobs that are not completed.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Any worker may claim them now.
    pub waiting: u64,
    /// Claimed by a worker. Between drains there are no workers: such a job was lost in an orderly stop, and waits
    /// for the engine's repair of dead workers.
    pub held: u64,
}

impl Left {
    pub fn all(self) -> u64 {
        self.waiting + self.held
    }
}

/// How to make a queue, and what to say about it.
#[async_trait]
pub trait Engine: Send + Sync {
    /// The name in the report, such as `apalis-postgresql`.
    fn name(&self) -> &'static str;
    fn store(&self) -> Store;
    fn offers(&self) -> Offers;
    /// The crates behind it with their versions, for the report.
    fn versions(&self) -> Vec<(&'static str, String)>;
    /// What was set away from the defaults, for the report.
    fn tuning(&self) -> String;
    /// Creates the schema in `place` and connects.
    async fn open(&self, place: &Place, connections: usize) -> anyhow::Result<Box<dyn Queue>>;
}

/// One open queue. Nobody else uses its place.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Enqueues `jobs` jobs, one call and one commit each, from `connections` callers at once.
    async fn enqueue_one_by_one(&self, jobs: u64) -> anyhow::Result<()>;

    /// Enqueues `jobs` jobs by the bulk call, from `connections` callers at once. Engines without a bulk call
    /// enqueue one by one; the harness also uses this to fill the queue before a drain.
    async fn enqueue_bulk(&self, jobs: u64) -> anyhow::Result<()>;

    /// Runs workers until `jobs` jobs are done or `limit` has passed, then stops them in order: on return no
    /// acknowledgement is outstanding.
    async fn drain(&self, mode: Mode, jobs: u64, limit: Duration) -> anyhow::Result<Drained>;

    /// Starts workers on the empty queue and enqueues `samples` jobs, each after `pause(sample)` and after the
    /// previous one has started; returns the times from just before the enqueue call to the start of the handler.
    async fn pickup(&self, samples: usize) -> anyhow::Result<Vec<Duration>>;

    /// Jobs in the store that are not completed.
    async fn left(&self) -> anyhow::Result<Left>;

    /// Closes every connection.
    async fn close(self: Box<Self>) -> anyhow::Result<()>;
}

/// How long a pick-up sample waits before it enqueues, so that samples do not lock step with a poll interval:
/// 2 to 12 ms, the same sequence for every engine.
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
