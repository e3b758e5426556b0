//! Background work of the meter: sweeping every quarter of an hour, aggregates, thresholds, housekeeping.
//!
//! Guarantees: everything goes through the work kernel, so that any number of processes may run it, any of them may
//! die, and the first one that runs again catches up. Leaves to others: deliveries ([`crate::webhooks`]), recording
//! ([`crate::Recorder`]).

use async_trait::async_trait;
use logmill_io::{Timestamp, millis};
use logmill_work::{Failure, Handler, MissedRuns, NewJob, Outcome, RunningJob, Schedule};
use serde::Deserialize;

use crate::Meter;
use crate::aggregate::due::SweepScope;
use crate::error::Result;
pub use crate::ingest::record::HOUSEKEEPING_JOB;
use crate::store::archive::is_unsealed;
use crate::store::{partials, place_index, requests};

/// Kind of the jobs that sweep.
pub const SWEEP_JOB: &str = "meter.sweep";
/// Maximum number of slices that one job archives.
const SLICES_PER_JOB: usize = 1_000;

/// Every quarter of an hour. A sweep finds everything that is due, so of missed sweeps only the newest runs.
pub fn sweep_schedule() -> Result<Schedule> {
    Ok(Schedule::new("meter.sweep", SWEEP_JOB, "*/15 * * * *", "UTC", MissedRuns::Newest)?)
}

/// Every minute.
pub fn housekeeping_schedule() -> Result<Schedule> {
    let name = "meter.housekeeping";
    Ok(Schedule::new(name, HOUSEKEEPING_JOB, "* * * * *", "UTC", MissedRuns::Newest)?)
}

/// A job that sweeps all periods, including those in progress; `mark` must be unique.
pub fn sweep_job(mark: &str) -> NewJob {
    NewJob::new(SWEEP_JOB, format!("trigger@{mark}"), "{\"all\":true}")
}

/// Payload of a sweep job.
#[derive(Default, Deserialize)]
struct SweepPayload {
    #[serde(default)]
    all: bool,
}

/// Worker that runs one sweep per job.
#[derive(Clone, Debug)]
pub struct Sweeper(pub Meter);

#[async_trait]
impl Handler for Sweeper {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        // Scheduled jobs have a payload without this field.
        let payload: SweepPayload =
            serde_json::from_str(&running.claim.payload).unwrap_or_default();
        let which = if payload.all { SweepScope::All } else { SweepScope::Finished };
        let swept = Box::pin(self.0.sweep(which)).await;
        let swept = swept.map_err(|error| Failure::again(error.chain()))?;
        if swept.jobs() > 0 {
            tracing::info!(
                jobs = swept.jobs(),
                customers = swept.customers,
                "enqueued jobs for due aggregates"
            );
        }
        Ok(Outcome::Done)
    }
}

/// Worker that runs housekeeping once per job.
#[derive(Clone, Debug)]
pub struct Housekeeper(pub Meter);

#[async_trait]
impl Handler for Housekeeper {
    async fn run(&self, _running: RunningJob) -> Result<Outcome, Failure> {
        let kept = Box::pin(self.0.run_housekeeping()).await;
        kept.map_err(|error| Failure::again(error.chain()))?;
        Ok(Outcome::Done)
    }
}

impl Meter {
    /// Checks thresholds for changed usage, removes old messages and requests, settles partials, seals keys, and
    /// archives old events. A failure of one does not stop the others; returns the first error.
    pub async fn run_housekeeping(&self) -> Result<()> {
        let watched = self.watch_thresholds().await;
        let purged = self.webhooks.purge().await.map(drop);
        let forgotten = requests::forget_old(&self.sql).await;
        let kept = self.keep_events().await;
        let mut errors = [watched, purged, forgotten, kept].into_iter().filter_map(Result::err);
        let first = errors.next();
        for other in errors {
            tracing::warn!(error = other.chain(), "a housekeeping task failed");
        }
        first.map_or(Ok(()), Err)
    }

    async fn watch_thresholds(&self) -> Result<()> {
        if !self.settings.alerts.is_empty() {
            self.mark_periods_due().await?;
            self.queue.wakes().wake(crate::aggregate::alerts::ALERT_JOB);
        }
        Ok(())
    }

    async fn keep_events(&self) -> Result<()> {
        partials::settle(&self.sql).await?;
        while self.keys.seal(&self.sql, false).await? {}
        while self.keys.merge(&self.sql).await? {}
        self.keys.tidy(&self.sql).await?;
        let Some(retention) = self.settings.retention else { return Ok(()) };
        place_index::place_all(&self.sql).await?;
        let now = self.clock().now();
        let before = Timestamp(now.millis().saturating_sub(millis(retention)));
        // An event stays in the database until its key is in a blob.
        while is_unsealed(&self.sql, before).await? && self.keys.seal(&self.sql, true).await? {}
        for _ in 0..SLICES_PER_JOB {
            if self.archive.add_some(&self.sql, before).await? == 0 {
                break;
            }
        }
        Ok(())
    }
}
