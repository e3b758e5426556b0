//! Due periods: customers' periods with usage that no final aggregate reflects yet.
//!
//! ```text
//!   recording ──▶ touched (customer, bucket) ── spread ──▶ due (customer, period) ── sweep ──▶ job ──▶ aggregate
//! ```
//!
//! Guarantees: usage and its mark are written together, and a mark is removed only in the transaction that writes what
//! follows from it. So no change is ever lost, no matter how late the next sweep is; late and corrected usage takes the
//! same path. A period without usage is never due. Leaves to others: computing aggregates ([`crate::aggregate`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Timestamp, Tx, Value, params};
use logmill_work::NewJob;
use serde::{Deserialize, Serialize};

use crate::Meter;
use crate::error::{Error, Result};
use crate::period::{Bucket, Period, PeriodKind};
use crate::store::head::Head;
use crate::store::names::{CUSTOMER, customer_at, read_customer};

/// Kind of the jobs that compute aggregates.
pub const AGGREGATE_JOB: &str = "meter.aggregate";
/// Maximum number of marks that one transaction turns into due periods.
const MARKS_PER_PASS: i64 = 1_000;
/// Maximum number of jobs that one transaction enqueues.
const JOBS_PER_SWEEP: i64 = 2_000;
/// Maximum number of attempts of a job.
const ATTEMPTS_MAX: u32 = 10;

/// Payload of an aggregate job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DuePeriod {
    pub(crate) customer: i64,
    pub(crate) period: String,
    pub(crate) key: String,
}

impl DuePeriod {
    /// The job that computes it, for the customer with this name.
    pub(crate) fn job(&self, name: &str) -> Result<NewJob> {
        let id = aggregate_id(name, &self.period, &self.key);
        let payload =
            serde_json::to_string(self).map_err(|error| Error::corrupt(error.to_string()))?;
        Ok(NewJob { attempts_max: ATTEMPTS_MAX, ..NewJob::new(AGGREGATE_JOB, id, payload) })
    }
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Jobs that are new or were enqueued again.
    pub jobs_created: u64,
    /// Jobs that already existed.
    pub jobs_updated: u64,
    /// Number of affected customers.
    pub customers: u64,
    /// Number of events since the last sweep.
    pub events: u64,
}

impl SweepResult {
    pub fn jobs(&self) -> u64 {
        self.jobs_created + self.jobs_updated
    }
}

/// Which periods a sweep looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepScope {
    /// Periods whose end and grace have passed.
    Finished,
    /// Also periods in progress.
    All,
}

impl Meter {
    /// Enqueues a job for every due period. Safe to run at any time, repeatedly and from any process.
    pub async fn sweep(&self, which: SweepScope) -> Result<SweepResult> {
        let events = self.mark_periods_due().await?;
        self.watch_held_values().await?;
        let mut swept = SweepResult { events, ..SweepResult::default() };
        let mut customers = BTreeSet::new();
        let before = match which {
            SweepScope::All => Timestamp(i64::MAX),
            SweepScope::Finished => self.finished_before(),
        };
        let mut after = (i64::MIN, i64::MIN, String::new());
        loop {
            let page = self.due_page(before, &after).await?;
            let Some(last) = page.last() else { break };
            after = (last.0, last.1.customer, last.2.key.clone());
            customers.extend(page.iter().map(|(_, due, _)| due.customer));
            let jobs: Vec<NewJob> = page.iter().map(|(_, _, job)| job.clone()).collect();
            let created = self.queue.enqueue_many(&jobs).await?;
            swept.jobs_created += created;
            swept.jobs_updated += u64::try_from(jobs.len()).unwrap_or(u64::MAX) - created;
        }
        swept.customers = u64::try_from(customers.len()).unwrap_or(u64::MAX);
        Ok(swept)
    }

    async fn due_page(
        &self,
        before: Timestamp,
        after: &(i64, i64, String),
    ) -> Result<Vec<(i64, DuePeriod, NewJob)>> {
        let text = format!(
            "SELECT d.end_ms, d.customer, d.period, d.period_key, {CUSTOMER}
             FROM meter_due d JOIN meter_customer c ON c.id = d.customer
             WHERE d.end_ms <= $1 AND (d.end_ms > $2 OR (d.end_ms = $2 AND (d.customer > $3
                 OR (d.customer = $3 AND c.name || '_' || d.period || '_' || d.period_key > $4))))
             ORDER BY d.end_ms, d.customer, c.name || '_' || d.period || '_' || d.period_key
             LIMIT {JOBS_PER_SWEEP}"
        );
        let params = params![before, after.0, after.1, after.2.as_str()];
        let found = self.sql.query(&text, params).await?;
        let page = found.rows.iter().map(|row| {
            let due = DuePeriod {
                customer: row.int(1)?,
                period: row.text(2)?.to_owned(),
                key: row.text(3)?.to_owned(),
            };
            let job = due.job(customer_at(row, 4)?)?;
            Ok((row.int(0)?, due, job))
        });
        page.collect()
    }

    /// Turns marks of changed usage into due periods; returns how many events they stand for.
    pub(crate) async fn mark_periods_due(&self) -> Result<u64> {
        let mut events = 0;
        loop {
            let (marks, counted) =
                self.sql.write(|tx| async move { self.mark_some_due(&tx).await }).await?;
            events += counted;
            if marks < MARKS_PER_PASS {
                return Ok(events);
            }
        }
    }

    async fn mark_some_due(&self, tx: &Tx) -> Result<(i64, u64)> {
        // Under the lock, no other transaction can add a mark that the deletion below would remove.
        let mut head = Head::lock(tx).await?;
        let text = format!(
            "SELECT bucket, customer, events FROM meter_touched
             ORDER BY bucket, customer LIMIT {MARKS_PER_PASS}"
        );
        let marks = tx.execute(&text, params![]).await?.rows;
        let Some(last) = marks.last() else { return Ok((0, 0)) };
        let (last_bucket, last_customer) = (last.int(0)?, last.int(1)?);
        let mut due: BTreeMap<(i64, String, String), Vec<Value>> = BTreeMap::new();
        let mut events = 0;
        for mark in &marks {
            let (bucket, customer) = (Bucket(mark.int(0)?), mark.int(1)?);
            events += mark.count(2)?;
            for kind in &self.settings.periods {
                let period = match self.calendar.period_at(kind, bucket.start()) {
                    Ok(period) => period,
                    // Recorded under other periods or another zone; it must not block all other marks.
                    Err(error) => {
                        let (period, error) = (kind.name(), error.chain());
                        tracing::error!(
                            customer,
                            period,
                            error,
                            "usage falls into no period and is not aggregated"
                        );
                        continue;
                    }
                };
                let row = due_row(customer, &period);
                due.insert((customer, kind.name().to_owned(), period.key), row);
            }
        }
        tx.bulk(&DUE, due.into_values().collect::<Vec<_>>()).await?;
        let text = "DELETE FROM meter_touched
                    WHERE bucket < $1 OR (bucket = $1 AND customer <= $2)";
        tx.execute(text, params![last_bucket, last_customer]).await?;
        self.enqueue_alerts(tx, head.seq, &marks).await?;
        head.seq += 1;
        head.store(tx).await?;
        Ok((i64::try_from(marks.len()).unwrap_or(i64::MAX), events))
    }

    /// Enqueues the aggregates of a bucket's finished periods at once after a correction, instead of waiting for the
    /// next sweep. The caller wakes [`AGGREGATE_JOB`] after the commit. Periods in progress follow from the mark of
    /// touched usage.
    pub(crate) async fn make_corrected_due(
        &self,
        tx: &Tx,
        customer: i64,
        bucket: Bucket,
    ) -> Result<()> {
        let name = read_customer(tx, customer).await?;
        for kind in &self.settings.periods {
            // Usage outside every period of a kind has no aggregate of that kind; the sweep logs that.
            let Ok(period) = self.calendar.period_at(kind, bucket.start()) else { continue };
            if period.end <= self.finished_before() {
                self.make_due(tx, (customer, &name), &period).await?;
            }
        }
        Ok(())
    }

    /// Marks one more period of a customer as due, and enqueues its job if the period is over.
    pub(crate) async fn make_due(
        &self,
        tx: &Tx,
        customer: (i64, &str),
        period: &Period,
    ) -> Result<()> {
        let (customer, name) = customer;
        tx.bulk(&DUE, vec![due_row(customer, period)]).await?;
        if period.end <= self.finished_before() {
            let (kind, key) = (period.kind.name().to_owned(), period.key.clone());
            let job = DuePeriod { customer, period: kind, key }.job(name)?;
            self.queue.enqueue_many_in(tx, &[job]).await?;
        }
        Ok(())
    }

    pub(crate) fn period_kind(&self, name: &str) -> Result<&PeriodKind> {
        let mut kinds = self.settings.periods.iter();
        kinds.find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = self.settings.periods.iter().map(PeriodKind::name).collect();
            Error::invalid(format!("unknown period {name}: must be one of {}", known.join(", ")))
        })
    }
}

fn due_row(customer: i64, period: &Period) -> Vec<Value> {
    params![customer, period.kind.name(), period.key.as_str(), period.start, period.end, 1_i64]
}

const DUE: Bulk = Bulk {
    table: Cow::Borrowed("meter_due"),
    columns: Cow::Borrowed(&[
        ("customer", ColumnType::Int),
        ("period", ColumnType::Text),
        ("period_key", ColumnType::Text),
        ("start_ms", ColumnType::Int),
        ("end_ms", ColumnType::Int),
        ("generation", ColumnType::Int),
    ]),
    key_columns: 3,
    on_conflict: Cow::Borrowed("DO UPDATE SET generation = meter_due.generation + 1"),
};

/// The id of an aggregate, and the key of its job.
pub(crate) fn aggregate_id(customer: &str, period: &str, key: &str) -> String {
    format!("{customer}_{period}_{key}")
}
