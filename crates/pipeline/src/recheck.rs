//! Damage found by processes that do not write: reported to the process that writes, which checks it itself.
//!
//! ```text
//!   a query finds damage ──▶ read again ──▶ a job ──▶ the writer reads it ──▶ stored ──▶ the auditor refills it
//!                                │                           │
//!                                └── intact: forgotten       └── intact: the job fails, and names the reporter
//! ```
//!
//! Guarantees: a place is reported once, by however many processes, until the job has ended; a process repeats its
//! report after an hour. The index changes only by what the writer has read: a reporter with a broken disk or network
//! costs it the reading of one blob. Running a job again changes nothing. Leaves to others: the refill
//! ([`crate::audit`]), and damage without a known place.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use finalized_log_index::{DamageLocation, Recheck, Writer};
use logmill_io::Clock;
use logmill_work::{Failure, Handler, NewJob, Outcome, Queue, RunningJob};
use serde::{Deserialize, Serialize};

use crate::chain::Chain;
use crate::error::{Error, Result};

const RECHECK_JOB: &str = "recheck";
/// How often a process looks for damage to report.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often a process reads and reports the same place.
const REPORT_EVERY: Duration = Duration::from_secs(3_600);

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// A [`DamageLocation`].
    place: String,
    /// The error of the process that found it.
    what: String,
    /// The process that found it.
    by: String,
}

/// The kind of a chain's recheck jobs.
pub fn kind(chain_id: u64) -> String {
    format!("{RECHECK_JOB}-{chain_id}")
}

/// Reports damage that this process came upon.
#[derive(Debug)]
pub struct DamageReports {
    chain: Chain,
    queue: Queue,
    clock: Arc<dyn Clock>,
    /// The name of this process.
    owner: String,
    /// When each place was last reported, on the monotonic clock.
    reported: Mutex<BTreeMap<DamageLocation, Duration>>,
}

impl DamageReports {
    pub fn new(chain: Chain, queue: Queue, clock: Arc<dyn Clock>, owner: &str) -> Self {
        Self { chain, queue, clock, owner: owner.to_owned(), reported: Mutex::default() }
    }

    /// Reports for as long as it is polled. `is_writer` returns true while this process writes: it then acts on its
    /// own findings.
    pub async fn run(&self, is_writer: impl Fn() -> bool) -> Infallible {
        loop {
            self.clock.sleep(LOOK_EVERY).await;
            if is_writer() {
                continue;
            }
            if let Err(error) = self.report().await {
                let (chain, error) = (self.chain.chain_id(), logmill_io::error_chain(&error));
                tracing::warn!(chain, error, "cannot report damaged blocks to the writer");
            }
        }
    }

    /// Checks and reports what was found since the last call, or long ago. Returns the number of places reported.
    pub async fn report(&self) -> Result<usize> {
        let (noted, now) = (self.chain.index().noted_damage(), self.clock.monotonic());
        self.reported().retain(|place, at| {
            let is_noted = noted.iter().any(|(noted, _)| noted == place);
            is_noted && now.saturating_sub(*at) < REPORT_EVERY
        });
        let mut count = 0;
        for (place, _) in noted {
            if self.reported().contains_key(&place) {
                continue;
            }
            // A read that went wrong once is not reported.
            if let Recheck::Damaged(damaged) = self.chain.index().recheck(place).await? {
                self.queue.enqueue(&self.job(place, damaged.what)?).await?;
                count += 1;
            }
            self.reported().insert(place, now);
        }
        Ok(count)
    }

    fn job(&self, place: DamageLocation, what: String) -> Result<NewJob> {
        let (place, by) = (place.to_string(), self.owner.clone());
        let payload = serde_json::to_string(&Report { place: place.clone(), what, by });
        let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
        Ok(NewJob::new(kind(self.chain.chain_id()), place, payload))
    }

    fn reported(&self) -> std::sync::MutexGuard<'_, BTreeMap<DamageLocation, Duration>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks reported damage, in the process that writes the index.
#[derive(Debug)]
pub struct RecheckHandler {
    writer: Arc<Writer>,
}

impl RecheckHandler {
    pub fn new(writer: Arc<Writer>) -> Self {
        Self { writer }
    }

    async fn recheck(&self, place: DamageLocation) -> finalized_log_index::Result<Recheck> {
        let index = self.writer.index();
        // A chunk that the reporter knows may be newer than this process's list.
        index.refresh().await?;
        let found = index.recheck(place).await?;
        if let Recheck::Damaged(damaged) = &found {
            // Stored before the job ends: after a crash, the next writer refills it.
            self.writer.report_damage(damaged.blocks.clone(), damaged.what.clone()).await?;
        }
        Ok(found)
    }
}

#[async_trait]
impl Handler for RecheckHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let report: Report = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload: {error}")))?;
        let Report { place, what, by } = report;
        let parsed: DamageLocation =
            place.parse().map_err(|error| Failure::for_good(logmill_io::error_chain(&error)))?;
        match self.recheck(parsed).await {
            Err(error) => Err(Failure::again(logmill_io::error_chain(&error))),
            Ok(Recheck::Damaged(_)) => {
                tracing::error!(place, by, what, "another process found damage, and it is stored");
                Ok(Outcome::Done)
            }
            Ok(Recheck::Gone) => Ok(Outcome::Done),
            // A failed job is shown to operators, and the next report of the same place runs it again.
            Ok(Recheck::Intact) => Err(Failure::for_good(format!(
                "{by} reads damaged bytes where this process reads intact ones: check the disk and the network of \
                 {by}. It reported: {what}"
            ))),
        }
    }
}
