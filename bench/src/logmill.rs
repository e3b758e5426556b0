//! Logmill's own queue on SQLite and PostgreSQL, as engines.
//!
//! One by one, a `Runner` has C slots: a slot holds one job, and is free for the next once the job's completion is
//! committed; slots that are free at the same time share a round trip. Apart, each of C workers completes one job and
//! claims the next in its own commit, as C processes would. In batches, fewer workers claim and complete many at a
//! time. The pick-up goes through a `Runner`; on PostgreSQL the job is enqueued through another handle, as another
//! process would do, so that the wake-up goes over `NOTIFY`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::try_join_all;
use logmill_io::sql::{PostgresSettings, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_work::queue::Claimer;
use logmill_work::{Failure, Handler, NewJob, Outcome, Runner, RunnerSettings, RunningJob, State};

use crate::engine::{
    DrainOutcome, Engine, Features, Mode, Payload, Queue, RemainingJobs, Store, StoreLocation,
    pause, shares,
};
use crate::tally::{Starts, Tally};

const COUNT: &str = "count";
const REPORT: &str = "report";
const LEASE: Duration = Duration::from_secs(60);
/// Jobs per bulk call.
const BULK: u64 = 5_000;
/// Workers in batch mode: enough to keep the server busy while some wait for their commits.
const BATCH_WORKERS: usize = 4;

/// Our engines, in the order of the report.
pub fn engines(batch: usize) -> Vec<Box<dyn Engine>> {
    let engine = |store| -> Box<dyn Engine> { Box::new(Logmill { store, batch }) };
    vec![engine(Store::Sqlite), engine(Store::PostgreSql)]
}

struct Logmill {
    store: Store,
    /// Jobs per claim and per acknowledgement in batch mode.
    batch: usize,
}

#[async_trait]
impl Engine for Logmill {
    fn name(&self) -> &'static str {
        match self.store {
            Store::Sqlite => "logmill-sqlite",
            Store::PostgreSql => "logmill-postgresql",
        }
    }

    fn store(&self) -> Store {
        self.store
    }

    fn features(&self) -> Features {
        Features { enqueue_bulk: true, batches: true, shared_trips: true }
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        vec![("logmill", env!("CARGO_PKG_VERSION").to_owned())]
    }

    fn tuning(&self) -> String {
        let store = match self.store {
            Store::Sqlite => "synchronous=FULL in WAL mode, statements that wait share a commit",
            Store::PostgreSql => "a pool of C connections, and one that listens",
        };
        format!(
            "{store}; one by one a runner with C slots, which completes what has ended and claims for free slots \
             in one commit; apart C workers that each complete 1 and claim 1 in one commit; in batches \
             {BATCH_WORKERS} workers that complete and claim {}; bulks of {BULK}; finished jobs are kept",
            self.batch
        )
    }

    async fn open(
        &self,
        location: &StoreLocation,
        connections: usize,
    ) -> anyhow::Result<Box<dyn Queue>> {
        let queue = open(location, connections).await?;
        // Like another process: with separate connections and wake-ups.
        let elsewhere = match location {
            StoreLocation::PostgreSql { .. } => open(location, 2).await?,
            StoreLocation::Sqlite { .. } => queue.clone(),
        };
        let next = AtomicU64::new(0);
        Ok(Box::new(LogmillQueue { queue, elsewhere, connections, batch: self.batch, next }))
    }
}

async fn open(location: &StoreLocation, connections: usize) -> anyhow::Result<logmill_work::Queue> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let sql = match location {
        StoreLocation::PostgreSql { url } => {
            let mut settings = PostgresSettings::new(url.clone());
            settings.connections = connections;
            Sql::postgres(&settings, clock, entropy).await?
        }
        StoreLocation::Sqlite { folder } => {
            let settings = SqliteSettings::file(folder.join("work.db"));
            Sql::sqlite(&settings, clock, entropy).await?
        }
    };
    Ok(logmill_work::Queue::open(sql).await?)
}

struct LogmillQueue {
    queue: logmill_work::Queue,
    elsewhere: logmill_work::Queue,
    connections: usize,
    batch: usize,
    /// Keys are never reused, because an existing job would not be enqueued again.
    next: AtomicU64,
}

impl LogmillQueue {
    fn job(&self, kind: &str) -> anyhow::Result<NewJob> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let payload = serde_json::to_string(&Payload::new(id))?;
        Ok(NewJob::new(kind, format!("job-{id:010}"), payload))
    }

    /// Completes and claims until nothing is left or `stop` is set.
    async fn work(&self, most: usize, tally: &Tally, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut claimer = Claimer::new(self.queue.clone(), COUNT, "bench", LEASE);
        let mut done = claimer.claim(most).await?;
        while !done.is_empty() {
            let next = if stop.load(Ordering::Relaxed) { 0 } else { most };
            let turn = claimer.complete_and_claim(&done, next).await?;
            anyhow::ensure!(turn.fenced.is_empty(), "fenced");
            done.iter().for_each(|_| tally.hit());
            done = turn.claims;
        }
        Ok(())
    }

    async fn run_slots(&self, tally: &Tally, limit: Duration) -> anyhow::Result<()> {
        let settings = RunnerSettings::new(COUNT, "bench", self.connections);
        let runner = Runner::new(self.queue.clone(), Arc::new(Count(tally.clone())), settings)?;
        let tally = tally.clone();
        // A separate task, as in a server.
        Ok(tokio::spawn(runner.run(async move { tally.wait(limit).await })).await??)
    }

    async fn run_workers(
        &self,
        (workers, most): (usize, usize),
        tally: &Tally,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let stop = AtomicBool::new(false);
        let working = (0..workers).map(|_| self.work(most, tally, &stop));
        let deadline = async {
            tokio::time::sleep(limit).await;
            stop.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            worked = try_join_all(working) => drop(worked?),
            () = deadline => {}
        }
        Ok(())
    }
}

#[async_trait]
impl Queue for LogmillQueue {
    async fn enqueue_one_by_one(&self, jobs: u64) -> anyhow::Result<()> {
        let callers = shares(jobs, self.connections).into_iter().map(|share| async move {
            for _ in share {
                self.queue.enqueue(&self.job(COUNT)?).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(callers).await?;
        Ok(())
    }

    async fn enqueue_bulk(&self, jobs: u64) -> anyhow::Result<()> {
        let callers = shares(jobs, self.connections).into_iter().map(|share| async move {
            let mut left = share.end - share.start;
            while left > 0 {
                let size = left.min(BULK);
                let bulk: Vec<NewJob> =
                    (0..size).map(|_| self.job(COUNT)).collect::<anyhow::Result<_>>()?;
                self.queue.enqueue_many(&bulk).await?;
                left -= size;
            }
            anyhow::Ok(())
        });
        try_join_all(callers).await?;
        Ok(())
    }

    async fn drain(&self, mode: Mode, jobs: u64, limit: Duration) -> anyhow::Result<DrainOutcome> {
        let tally = Tally::new(jobs);
        let start = Instant::now();
        match mode {
            Mode::OneByOne => self.run_slots(&tally, limit).await?,
            Mode::Apart => self.run_workers((self.connections, 1), &tally, limit).await?,
            Mode::Batches => self.run_workers((BATCH_WORKERS, self.batch), &tally, limit).await?,
        }
        Ok(DrainOutcome { done: tally.done(), elapsed: start.elapsed() })
    }

    async fn pickup(&self, samples: usize) -> anyhow::Result<Vec<Duration>> {
        let (starts, mut seen) = Starts::new();
        let settings = RunnerSettings::new(REPORT, "bench", self.connections);
        let runner = Runner::new(self.queue.clone(), Arc::new(Report(starts)), settings)?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(runner.run(async { drop(stopped.await) }));
        let mut latencies = Vec::with_capacity(samples);
        for sample in 0..samples {
            tokio::time::sleep(pause(sample)).await;
            let job = self.job(REPORT)?;
            let called = Instant::now();
            self.elsewhere.enqueue(&job).await?;
            latencies.push(seen.next().await?.duration_since(called));
        }
        drop(stop);
        running.await??;
        Ok(latencies)
    }

    async fn left(&self) -> anyhow::Result<RemainingJobs> {
        let counts = self.queue.counts().await?;
        let jobs = |state| {
            counts.iter().filter(|count| count.state == state).map(|count| count.jobs).sum()
        };
        Ok(RemainingJobs { waiting: jobs(State::Pending), held: jobs(State::Running) })
    }

    async fn close(self: Box<Self>) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A job that only counts.
struct Count(Tally);

#[async_trait]
impl Handler for Count {
    async fn run(&self, _: RunningJob) -> Result<Outcome, Failure> {
        self.0.hit();
        Ok(Outcome::Done)
    }
}

/// A job that reports when it started.
struct Report(Starts);

#[async_trait]
impl Handler for Report {
    async fn run(&self, _: RunningJob) -> Result<Outcome, Failure> {
        self.0.started();
        Ok(Outcome::Done)
    }
}
