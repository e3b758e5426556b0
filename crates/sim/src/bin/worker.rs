//! A worker process for tests that kill it: `worker URL SCHEMA OWNER`.
//!
//! It runs the jobs of kind `effect` until its standard input closes. A job first records that it started, takes a
//! little while, and writes its effect and its completion in one transaction.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a test program accesses the outside world directly, and a panic is how it fails"
)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::sql::{Durability, Execute, PostgresSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::worker::{JOB_TIME, KIND, LEASE, SLOTS};
use logmill_work::{Failure, Handler, Outcome, Queue, Runner, RunnerSettings, RunningJob};

struct Effect;

#[async_trait]
impl Handler for Effect {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let (queue, claim) = (&running.queue, &running.claim);
        let text = "INSERT INTO attempt (key, attempt, started_at) VALUES ($1, $2, now_ms())";
        queue.sql().execute(text, params![claim.key.as_str(), claim.attempt]).await?;
        tokio::time::sleep(JOB_TIME).await;
        queue
            .sql()
            .write(|tx| async move {
                let text = "INSERT INTO effect (key) VALUES ($1)";
                tx.execute(text, params![claim.key.as_str()]).await?;
                queue.complete_in(&tx, claim).await
            })
            .await?;
        Ok(Outcome::Completed)
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, schema, owner] = arguments.as_slice() else {
        panic!("worker URL SCHEMA OWNER");
    };
    let mut settings = PostgresSettings::new(url.clone());
    settings.schema = Some(schema.clone());
    settings.connections = 4;
    settings.durability = Durability::Relaxed;
    let sql = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    let queue = Queue::open(sql.expect("the server answers")).await.expect("the queue opens");
    let mut settings = RunnerSettings::new(KIND, owner, SLOTS);
    (settings.lease, settings.slow_poll) = (LEASE, LEASE / 2);
    settings.stop_deadline = Duration::from_secs(5);
    let runner = Runner::new(queue, Arc::new(Effect), settings).expect("fine settings");
    let closed = tokio::task::spawn_blocking(|| {
        // The test writes nothing; end of input is the signal.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    });
    runner.run(async { drop(closed.await) }).await.expect("it winds down");
}
