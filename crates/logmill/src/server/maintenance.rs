//! Maintenance: what the server does on a schedule, as jobs of its own kind.
//!
//! Guarantees: jobs of any kind that are done are removed once they are older than the retention, by one of the
//! processes that share the database. Dead letters and cancelled jobs stay until an operator handles them: a cancelled
//! job may hold a range that must be released first. Leaves to others: the schedule's bookkeeping ([`Cron`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_work::{
    Cron, Failure, Handler, MissedRuns, Outcome, Queue, Runner, RunnerSettings, RunningJob,
    Schedule, State,
};

use crate::config::Work;
use crate::error::Result;

const KIND: &str = "logmill.maintenance";
/// Every ten minutes.
const PATTERN: &str = "*/10 * * * *";

/// The schedule that enqueues the jobs.
pub(crate) fn cron(queue: &Queue) -> Result<Cron> {
    let schedule = Schedule::new("maintenance", KIND, PATTERN, "UTC", MissedRuns::Newest)?;
    Ok(Cron::new(queue.clone(), schedule))
}

/// The runner that executes them.
pub(crate) fn runner(queue: &Queue, work: &Work, owner: &str) -> Result<Runner> {
    let handler = Arc::new(Maintenance { retention: work.retention() });
    let settings = RunnerSettings {
        lease: work.lease(),
        slow_poll: work.slow_poll(),
        stop_deadline: work.job_stop_deadline(),
        ..RunnerSettings::new(KIND, owner, work.slots)
    };
    Ok(Runner::new(queue.clone(), handler, settings)?)
}

struct Maintenance {
    retention: Duration,
}

#[async_trait]
impl Handler for Maintenance {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let removed = purge_done(&running.queue, self.retention).await?;
        tracing::debug!(removed, key = running.claim.key, "removed old jobs");
        Ok(Outcome::Done)
    }
}

/// Removes jobs of all kinds that are done and older than `age`; returns their number.
async fn purge_done(queue: &Queue, age: Duration) -> logmill_work::Result<u64> {
    let counts = queue.counts().await?;
    let done = counts.into_iter().filter(|counts| counts.state == State::Done);
    let kinds: BTreeSet<String> = done.map(|counts| counts.kind).collect();
    let mut removed = 0;
    for kind in kinds {
        removed += queue.purge(&kind, State::Done, age).await?;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use logmill_io::sql::SqliteSettings;
    use logmill_io::{Clock, SeededEntropy, SimClock, Sql, Timestamp};
    use logmill_work::NewJob;
    use logmill_work::queue::FailedClaim;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_old_jobs_that_are_done_are_removed() {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let shared: Arc<dyn Clock> = clock.clone();
        let sql = Sql::sqlite(&SqliteSettings::memory(), shared, SeededEntropy::shared(1)).await;
        let queue = Queue::open(sql.expect("a database")).await.expect("a queue");
        for key in ["done", "dead", "pending"] {
            queue.enqueue(&NewJob::new("k", key, "{}")).await.expect("enqueued");
            let claims = queue.claim("k", 1, Duration::from_secs(60), "me").await.expect("claimed");
            let [claim] = &claims[..] else { panic!("one job") };
            match key {
                "done" => queue.complete(claim).await.expect("completed"),
                "dead" => {
                    let error = "x".to_owned();
                    let failed = FailedClaim { claim: claim.clone(), error, retry_after: None };
                    queue.fail(&failed).await.expect("failed");
                }
                _ => drop(queue.release_many(&claims).await.expect("released")),
            }
        }
        let hour = Duration::from_secs(3_600);
        assert_eq!(purge_done(&queue, hour).await.expect("too young"), 0);
        clock.jump(logmill_io::millis(hour));
        assert_eq!(purge_done(&queue, hour).await.expect("old enough"), 1);
        assert!(queue.get("k", "done").await.expect("looked").is_none());
        for key in ["dead", "pending"] {
            assert!(queue.get("k", key).await.expect("looked").is_some(), "{key}");
        }
    }
}
