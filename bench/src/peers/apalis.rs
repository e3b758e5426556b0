//! `apalis` with `apalis-postgres`.
//!
//! A worker does one thing at a time on the database (claim, acknowledge, heartbeat), so `connections` workers run,
//! each with a name and a listener for `NOTIFY`, as in its guide. Listeners have separate connections, so that all
//! connections of the workers are available for work.

use std::time::{Duration, Instant};

use ::apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use async_trait::async_trait;
use futures::future::try_join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::{
    DrainOutcome, Engine, Features, Mode, Payload, Queue, RemainingJobs, Store, StoreLocation,
    pause, shares,
};
use crate::machine::crate_version;
use crate::tally::{Starts, Tally};

const QUEUE: &str = "bench";

/// Tasks per bulk insert.
const BULK: u64 = 1_000;

/// Poll interval, as a fallback for `NOTIFY`.
const POLL: Duration = Duration::from_millis(50);

pub(super) struct Apalis {
    /// Tasks per claim in batch mode.
    pub(super) batch: usize,
}

#[async_trait]
impl Engine for Apalis {
    fn name(&self) -> &'static str {
        "apalis-postgresql"
    }

    fn store(&self) -> Store {
        Store::PostgreSql
    }

    fn features(&self) -> Features {
        Features { enqueue_bulk: true, batches: true, shared_trips: false }
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        ["apalis", "apalis-postgres", "sqlx"].map(|name| (name, crate_version(name))).into()
    }

    fn tuning(&self) -> String {
        let batch = self.batch;
        format!(
            "one worker per connection, each with a listener for NOTIFY on a further connection and a poll every \
             {POLL:?} behind it; batch_size 1 one by one and {batch} in batches; acknowledgements as the worker \
             gathers them (there is no setting); lock_tasks off (the claim marks the task already); bulk inserts \
             of {BULK}; no ping before use of a pooled connection"
        )
    }

    async fn open(
        &self,
        location: &StoreLocation,
        connections: usize,
    ) -> anyhow::Result<Box<dyn Queue>> {
        let StoreLocation::PostgreSql { url } = location else {
            anyhow::bail!("apalis-postgres needs PostgreSQL");
        };
        let pool = super::pool(url, connections).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Box::new(ApalisQueue { url: url.clone(), pool, connections, batch: self.batch }))
    }
}

struct ApalisQueue {
    url: String,
    /// For everything but the workers.
    pool: PgPool,
    connections: usize,
    batch: usize,
}

#[async_trait]
impl Queue for ApalisQueue {
    async fn enqueue_one_by_one(&self, jobs: u64) -> anyhow::Result<()> {
        let callers = shares(jobs, self.connections).into_iter().map(|share| {
            let mut storage = storage(&self.pool, 1);
            tokio::spawn(async move {
                for id in share {
                    storage.push(Payload::new(id)).await?;
                }
                anyhow::Ok(())
            })
        });
        all(callers).await
    }

    async fn enqueue_bulk(&self, jobs: u64) -> anyhow::Result<()> {
        let callers = shares(jobs, self.connections).into_iter().map(|share| {
            let mut storage = storage(&self.pool, 1);
            tokio::spawn(async move {
                let mut next = share.start;
                while next < share.end {
                    let end = share.end.min(next + BULK);
                    storage.push_bulk((next..end).map(Payload::new).collect()).await?;
                    next = end;
                }
                anyhow::Ok(())
            })
        });
        all(callers).await
    }

    async fn drain(&self, mode: Mode, jobs: u64, limit: Duration) -> anyhow::Result<DrainOutcome> {
        let batch = match mode {
            Mode::OneByOne | Mode::Apart => 1,
            Mode::Batches => self.batch,
        };
        let tally = Tally::new(jobs);
        let pool = self.worker_pool().await?;
        let start = Instant::now();
        let workers = self.start(pool, batch, Handling::Count(tally.clone()));
        tally.wait(limit).await;
        let pool = workers.stop().await?;
        let drained = DrainOutcome { done: tally.done(), elapsed: start.elapsed() };
        pool.close().await;
        Ok(drained)
    }

    async fn pickup(&self, samples: usize) -> anyhow::Result<Vec<Duration>> {
        let (starts, mut seen) = Starts::new();
        let workers = self.start(self.worker_pool().await?, 1, Handling::Report(starts));
        let mut storage = storage(&self.pool, 1);
        let mut latencies = Vec::with_capacity(samples);
        for sample in 0..samples {
            tokio::time::sleep(pause(sample)).await;
            let called = Instant::now();
            storage.push(Payload::new(0)).await?;
            latencies.push(seen.next().await?.duration_since(called));
        }
        workers.stop().await?.close().await;
        Ok(latencies)
    }

    async fn left(&self) -> anyhow::Result<RemainingJobs> {
        let (waiting, held): (i64, i64) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE status IN ('Pending', 'Failed')),
                    count(*) FILTER (WHERE status IN ('Queued', 'Running'))
             FROM apalis.jobs",
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(RemainingJobs { waiting: u64::try_from(waiting)?, held: u64::try_from(held)? })
    }

    async fn close(self: Box<Self>) -> anyhow::Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

impl ApalisQueue {
    /// Workers keep their names from run to run, like those of a service; the table's statistics then include them. A
    /// name is locked by the session that registered it, so each run has its own sessions.
    async fn worker_pool(&self) -> anyhow::Result<PgPool> {
        super::pool(&self.url, self.connections * 2).await
    }

    fn start(&self, pool: PgPool, batch: usize, handling: Handling) -> Workers {
        let (stop, stopped) = watch::channel(false);
        let running = (0..self.connections)
            .map(|n| {
                let backend = storage(&pool, batch).with_pubsub().poll_with_interval(POLL);
                let worker = WorkerBuilder::new(format!("bench-{n}").as_str())
                    .backend(backend)
                    .data(handling.clone())
                    .build(handle);
                let mut stopped = stopped.clone();
                tokio::spawn(async move {
                    let signal = async move {
                        // A dropped sender stops the workers too.
                        let _ = stopped.wait_for(|stop| *stop).await;
                        Ok::<(), WorkerError>(())
                    };
                    worker.run_until(signal).await?;
                    anyhow::Ok(())
                })
            })
            .collect();
        Workers { pool, stop, running }
    }
}

fn storage(pool: &PgPool, batch: usize) -> PostgresStorage<Payload> {
    let config = Config::default().queue(QUEUE).batch_size(batch).lock_tasks(false);
    PostgresStorage::new(pool).with_config(config)
}

/// What the handler does.
#[derive(Clone)]
enum Handling {
    Count(Tally),
    Report(Starts),
}

async fn handle(_payload: Payload, handling: Data<Handling>) -> Result<(), BoxDynError> {
    match &*handling {
        Handling::Count(tally) => tally.hit(),
        Handling::Report(starts) => starts.started(),
    }
    Ok(())
}

struct Workers {
    pool: PgPool,
    stop: watch::Sender<bool>,
    running: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Workers {
    /// Lets the workers acknowledge finished tasks and release the others; returns their pool, for closing.
    async fn stop(self) -> anyhow::Result<PgPool> {
        self.stop.send_replace(true);
        all(self.running).await?;
        Ok(self.pool)
    }
}

async fn all(
    tasks: impl IntoIterator<Item = JoinHandle<anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    try_join_all(tasks).await?.into_iter().collect()
}
