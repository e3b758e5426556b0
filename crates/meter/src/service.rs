//! What a meter does by itself: sweeping every quarter of an hour, making aggregates, watching thresholds, keeping
//! house.
//!
//! Guarantees: everything goes through the work kernel, so that any number of processes may run it, any of them may
//! die, and what was missed while none ran is done by the first that does. Leaves to others: deliveries
//! ([`crate::webhooks`]), recording ([`crate::Recorder`]).

use async_trait::async_trait;
use logmill_io::{Timestamp, millis};
use logmill_work::{Failure, Handler, Missed, NewJob, Outcome, Running, Schedule};
use serde::Deserialize;

use crate::due::Which;
use crate::error::Result;
use crate::meter::Meter;

/// The kind of jobs that sweep.
pub const SWEEP_JOB: &str = "meter.sweep";
/// The kind of jobs that seal keys and archive events.
pub const HOUSEKEEPING_JOB: &str = "meter.housekeeping";
/// How many slices one job archives.
const SLICES_PER_JOB: usize = 1_000;

/// When to sweep: every quarter of an hour. A sweep finds all that is due, so that only the newest is worth running.
pub fn sweep_schedule() -> Result<Schedule> {
    Ok(Schedule::new("meter.sweep", SWEEP_JOB, "*/15 * * * *", "UTC", Missed::Newest)?)
}

/// When to keep house: every minute.
pub fn housekeeping_schedule() -> Result<Schedule> {
    let name = "meter.housekeeping";
    Ok(Schedule::new(name, HOUSEKEEPING_JOB, "* * * * *", "UTC", Missed::Newest)?)
}

/// A job that sweeps all periods, those under way too; `mark` is what no other such job has.
pub fn sweep_job(mark: &str) -> NewJob {
    NewJob::new(SWEEP_JOB, format!("trigger@{mark}"), "{\"all\":true}")
}

/// What a job that sweeps is asked for.
#[derive(Default, Deserialize)]
struct Asks {
    #[serde(default)]
    all: bool,
}

/// Sweeps, one job a time.
#[derive(Clone, Debug)]
pub struct Sweeper(pub Meter);

#[async_trait]
impl Handler for Sweeper {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        // A payload that says nothing of it is one of the schedule.
        let asks: Asks = serde_json::from_str(&running.claim.payload).unwrap_or_default();
        let which = if asks.all { Which::All } else { Which::Finished };
        let swept = Box::pin(self.0.sweep(which)).await;
        let swept = swept.map_err(|error| Failure::again(error.chain()))?;
        if swept.jobs() > 0 {
            tracing::info!(jobs = swept.jobs(), customers = swept.customers, "aggregates are due");
        }
        Ok(Outcome::Done)
    }
}

/// Keeps house, one job a time.
#[derive(Clone, Debug)]
pub struct Housekeeper(pub Meter);

#[async_trait]
impl Handler for Housekeeper {
    async fn run(&self, _running: Running) -> Result<Outcome, Failure> {
        let kept = Box::pin(self.0.keep_house()).await;
        kept.map_err(|error| Failure::again(error.chain()))?;
        Ok(Outcome::Done)
    }
}

impl Meter {
    /// Asks for housekeeping at once if many keys wait in memory: in a minute at full speed they would be millions.
    pub(crate) async fn seal_soon(&self) -> Result<()> {
        if let Some(stretch) = self.keys.should_seal() {
            let job = NewJob::new(HOUSEKEEPING_JOB, format!("keys@{stretch}"), "{}");
            self.queue.enqueue(&job).await?;
        }
        Ok(())
    }

    /// Looks at thresholds for what changed, forgets old messages and requests, settles partials, seals keys, and
    /// archives old events. What one of these can not do keeps none of the others from theirs; gives the first error.
    pub async fn keep_house(&self) -> Result<()> {
        let watched = self.watch_thresholds().await;
        let purged = self.webhooks.purge().await.map(drop);
        let forgotten = self.forget_requests().await;
        let kept = self.keep_events().await;
        let mut errors = [watched, purged, forgotten, kept].into_iter().filter_map(Result::err);
        let first = errors.next();
        for other in errors {
            tracing::warn!(error = other.chain(), "a part of the house is not kept");
        }
        first.map_or(Ok(()), Err)
    }

    async fn watch_thresholds(&self) -> Result<()> {
        if !self.settings.alerts.is_empty() {
            self.spread().await?;
            self.queue.wakes().wake(crate::alerts::ALERT_JOB);
        }
        Ok(())
    }

    async fn keep_events(&self) -> Result<()> {
        self.settle().await?;
        while self.keys.seal(&self.sql, false).await? {}
        while self.keys.merge(&self.sql).await? {}
        self.keys.tidy(&self.sql).await?;
        let Some(retention) = self.settings.retention else { return Ok(()) };
        self.place_all().await?;
        let now = self.clock().now();
        let before = Timestamp(now.millis().saturating_sub(millis(retention)));
        // An event stays for as long as its key is in no blob.
        while self.is_unsealed(before).await? && self.keys.seal(&self.sql, true).await? {}
        for _ in 0..SLICES_PER_JOB {
            if self.archive_some(before).await? == 0 {
                break;
            }
        }
        Ok(())
    }
}
