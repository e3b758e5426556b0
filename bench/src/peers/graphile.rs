//! `graphile_worker`, the Rust rewrite of Graphile Worker.
//!
//! One worker with `concurrency` slots. One by one, a slot takes one job per signal: with a backlog the signals come
//! from the poll interval, so it is set to its minimum. In batches, the local queue claims many at once and the
//! completion batcher deletes many at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::try_join_all;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::task::JoinHandle;

use crate::engine::{
    DrainOutcome, Engine, Features, Mode, Payload, Queue, RemainingJobs, Store, StoreLocation,
    pause, shares,
};
use crate::machine::crate_version;
use crate::tally::{Starts, Tally};

const SCHEMA: &str = "graphile_worker";

/// Local queues of the worker. In short trials on a busy machine, two or four of them, and completion delays from 1
/// to 5 ms, performed alike.
const LOCAL_QUEUES: usize = 2;

/// How long the completion batcher collects.
const COMPLETION_DELAY: Duration = Duration::from_millis(5);

/// Jobs per bulk insert: below 10 000, from which it runs `ANALYZE` each time.
const BULK: u64 = 1_000;

/// With a backlog, each tick lets every slot take one job.
const POLL_BACKLOG: Duration = Duration::from_millis(1);

/// On an idle queue `NOTIFY` wakes the worker; this is the default.
const POLL_IDLE: Duration = Duration::from_secs(1);

pub(super) struct Graphile {
    /// Jobs per claim of a local queue.
    pub(super) batch: usize,
}

#[async_trait]
impl Engine for Graphile {
    fn name(&self) -> &'static str {
        "graphile-worker-postgresql"
    }

    fn store(&self) -> Store {
        Store::PostgreSql
    }

    fn features(&self) -> Features {
        Features { enqueue_bulk: true, batches: true, shared_trips: false }
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        ["graphile_worker", "sqlx"].map(|name| (name, crate_version(name))).into()
    }

    fn tuning(&self) -> String {
        let batch = self.batch;
        format!(
            "one worker with a slot per connection and one further connection that listens for NOTIFY; poll every \
             {POLL_BACKLOG:?} for the drains (a slot takes one job per signal) and {POLL_IDLE:?} for the pick-up; \
             in batches {LOCAL_QUEUES} local queues of {batch} and completions gathered for \
             {COMPLETION_DELAY:?}; bulk inserts of {BULK}; sqlx driver, which caches statements, and no ping before \
             use of a pooled connection"
        )
    }

    async fn open(
        &self,
        location: &StoreLocation,
        connections: usize,
    ) -> anyhow::Result<Box<dyn Queue>> {
        let StoreLocation::PostgreSql { url } = location else {
            anyhow::bail!("graphile_worker needs PostgreSQL");
        };
        // One more for the listener.
        let pool = super::pool(url, connections + 1).await?;
        let queue = GraphilePool { pool, connections, batch: self.batch };
        // Migrates, and registers the task's identifier.
        let utils = queue.options(POLL_IDLE).define_job::<Count>().init().await?.create_utils();
        Ok(Box::new(GraphileQueue { queue, utils }))
    }
}

struct GraphileQueue {
    queue: GraphilePool,
    utils: WorkerUtils,
}

#[async_trait]
impl Queue for GraphileQueue {
    async fn enqueue_one_by_one(&self, jobs: u64) -> anyhow::Result<()> {
        let callers = shares(jobs, self.queue.connections).into_iter().map(|share| {
            let utils = self.utils.clone();
            tokio::spawn(async move {
                for id in share {
                    utils.add_job(Count(Payload::new(id)), JobSpec::default()).await?;
                }
                anyhow::Ok(())
            })
        });
        all(callers).await
    }

    async fn enqueue_bulk(&self, jobs: u64) -> anyhow::Result<()> {
        let callers = shares(jobs, self.queue.connections).into_iter().map(|share| {
            let utils = self.utils.clone();
            tokio::spawn(async move {
                let spec = JobSpec::default();
                let mut next = share.start;
                while next < share.end {
                    let end = share.end.min(next + BULK);
                    let batch: Vec<_> =
                        (next..end).map(|id| (Count(Payload::new(id)), &spec)).collect();
                    utils.add_jobs(&batch).await?;
                    next = end;
                }
                anyhow::Ok(())
            })
        });
        all(callers).await
    }

    async fn drain(&self, mode: Mode, jobs: u64, limit: Duration) -> anyhow::Result<DrainOutcome> {
        let tally = Tally::new(jobs);
        let mut options = self.queue.options(POLL_BACKLOG);
        if mode == Mode::Batches {
            let local = LocalQueueConfig::default()
                .with_size(self.queue.batch)
                .with_queue_count(LOCAL_QUEUES);
            options = options.local_queue(local).complete_job_batch_delay(COMPLETION_DELAY);
        }
        let worker = options.add_extension(tally.clone()).define_job::<Count>().init().await?;
        let start = Instant::now();
        let running = RunningWorker::start(worker);
        tally.wait(limit).await;
        running.stop().await?;
        Ok(DrainOutcome { done: tally.done(), elapsed: start.elapsed() })
    }

    async fn pickup(&self, samples: usize) -> anyhow::Result<Vec<Duration>> {
        let (starts, mut seen) = Starts::new();
        let options = self.queue.options(POLL_IDLE).add_extension(starts);
        let worker = options.define_job::<Report>().init().await?;
        let utils = worker.create_utils();
        let running = RunningWorker::start(worker);
        let mut latencies = Vec::with_capacity(samples);
        for sample in 0..samples {
            tokio::time::sleep(pause(sample)).await;
            let called = Instant::now();
            utils.add_job(Report(Payload::new(0)), JobSpec::default()).await?;
            latencies.push(seen.next().await?.duration_since(called));
        }
        running.stop().await?;
        Ok(latencies)
    }

    async fn left(&self) -> anyhow::Result<RemainingJobs> {
        // Finished jobs are deleted.
        let (waiting, held): (i64, i64) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE locked_at IS NULL),
                    count(*) FILTER (WHERE locked_at IS NOT NULL)
             FROM graphile_worker._private_jobs",
        )
        .fetch_one(&self.queue.pool)
        .await?;
        Ok(RemainingJobs { waiting: u64::try_from(waiting)?, held: u64::try_from(held)? })
    }

    async fn close(self: Box<Self>) -> anyhow::Result<()> {
        self.queue.pool.close().await;
        Ok(())
    }
}

struct GraphilePool {
    pool: PgPool,
    connections: usize,
    batch: usize,
}

impl GraphilePool {
    fn options(&self, poll: Duration) -> WorkerOptions {
        WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema(SCHEMA)
            .concurrency(self.connections)
            .poll_interval(poll)
            .listen_os_shutdown_signals(false)
    }
}

/// A job that only counts.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Count(Payload);

impl TaskHandler for Count {
    const IDENTIFIER: &'static str = "count";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        match ctx.get_ext::<Tally>() {
            Some(tally) => Ok(tally.hit()),
            None => Err("no tally"),
        }
    }
}

/// A job that reports when it started.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Report(Payload);

impl TaskHandler for Report {
    const IDENTIFIER: &'static str = "report";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        match ctx.get_ext::<Starts>() {
            Some(starts) => Ok(starts.started()),
            None => Err("no receiver for starts"),
        }
    }
}

struct RunningWorker {
    worker: Arc<Worker>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl RunningWorker {
    fn start(worker: Worker) -> Self {
        let worker = Arc::new(worker);
        let running = Arc::clone(&worker);
        let task = tokio::spawn(async move { Ok(running.run().await?) });
        Self { worker, task }
    }

    /// Lets the slots finish and the batcher flush, and releases the jobs in the local queues.
    async fn stop(self) -> anyhow::Result<()> {
        self.worker.request_shutdown();
        self.task.await?
    }
}

async fn all(
    tasks: impl IntoIterator<Item = JoinHandle<anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    try_join_all(tasks).await?.into_iter().collect()
}
