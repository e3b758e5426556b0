//! What is due: which periods of which customers have usage that no final aggregate tells of.
//!
//! ```text
//!   recording ──▶ touched (customer, bucket) ── spread ──▶ due (customer, period) ── sweep ──▶ job ──▶ aggregate
//! ```
//!
//! Guarantees: usage and its mark are written together, and a mark goes only in the transaction that makes what follows
//! from it, so that no change is ever forgotten, however long nobody looked: what arrived late, or was corrected, comes
//! this way too. A period without usage is never due. Leaves to others: making aggregates ([`crate::aggregate`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Timestamp, Tx, Value, millis, params};
use logmill_work::NewJob;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::meter::{Head, Meter};
use crate::period::{Bucket, Period, PeriodKind};

/// The kind of jobs that make aggregates.
pub const AGGREGATE_JOB: &str = "meter.aggregate";
/// The most marks that one transaction spreads.
const MARKS_PER_SPREAD: i64 = 1_000;
/// The most jobs that one transaction enqueues.
const JOBS_PER_SWEEP: i64 = 2_000;
/// How often a job is tried.
const ATTEMPTS_MAX: u32 = 10;

/// What a job is to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DuePeriod {
    pub(crate) customer: i64,
    pub(crate) period: String,
    pub(crate) key: String,
}

impl DuePeriod {
    /// The job that makes it, for a customer with this name.
    pub(crate) fn job(&self, name: &str) -> Result<NewJob> {
        let id = aggregate_id(name, &self.period, &self.key);
        let payload =
            serde_json::to_string(self).map_err(|error| Error::corrupt(error.to_string()))?;
        Ok(NewJob { attempts_max: ATTEMPTS_MAX, ..NewJob::new(AGGREGATE_JOB, id, payload) })
    }
}

/// What a look at everything found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Jobs that are new or came back.
    pub jobs_created: u64,
    /// Jobs that were there already.
    pub jobs_updated: u64,
    /// How many customers are concerned.
    pub customers: u64,
    /// How many events came since the last look.
    pub events: u64,
}

impl Swept {
    /// All jobs.
    pub fn jobs(&self) -> u64 {
        self.jobs_created + self.jobs_updated
    }
}

/// Which periods are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those whose end and grace have passed.
    Finished,
    /// Those under way too.
    All,
}

impl Meter {
    /// Enqueues a job for every period that is due. Safe to run at any time, any number of times, by anybody.
    pub async fn sweep(&self, which: Which) -> Result<Swept> {
        let events = self.spread().await?;
        self.watch_held_values().await?;
        let mut swept = Swept { events, ..Swept::default() };
        let mut customers = BTreeSet::new();
        let before = match which {
            Which::All => Timestamp(i64::MAX),
            Which::Finished => self.finished_before(),
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

    /// The moment before which a period must have ended to be final.
    pub(crate) fn finished_before(&self) -> Timestamp {
        let now = self.clock().now();
        Timestamp(now.millis().saturating_sub(millis(self.settings.grace)))
    }

    async fn due_page(
        &self,
        before: Timestamp,
        after: &(i64, i64, String),
    ) -> Result<Vec<(i64, DuePeriod, NewJob)>> {
        let text = format!(
            "SELECT d.end_ms, d.customer, d.period, d.period_key, c.name
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
            let job = due.job(row.text(4)?)?;
            Ok((row.int(0)?, due, job))
        });
        page.collect()
    }

    /// Turns marks of changed usage into due periods; gives how many events they stand for.
    pub async fn spread(&self) -> Result<u64> {
        let mut events = 0;
        loop {
            let (marks, counted) =
                self.sql.write(|tx| async move { Ok(self.spread_some(&tx).await?) }).await?;
            events += counted;
            if marks < MARKS_PER_SPREAD {
                return Ok(events);
            }
        }
    }

    async fn spread_some(&self, tx: &Tx) -> Result<(i64, u64)> {
        // Under the lock nobody adds a mark that the deletion below would take along.
        let mut head = Head::lock(tx).await?;
        let text = format!(
            "SELECT bucket, customer, events FROM meter_touched
             ORDER BY bucket, customer LIMIT {MARKS_PER_SPREAD}"
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
                    // Recorded when periods or the zone were others; it must not keep all others waiting.
                    Err(error) => {
                        let (period, error) = (kind.name(), error.chain());
                        tracing::error!(customer, period, error, "usage is in no period");
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

    /// Has the aggregates of a bucket's finished periods made again at once, after a correction: nobody who corrects
    /// usage should have to wait for the next sweep. The caller wakes [`AGGREGATE_JOB`] after the commit. Periods under
    /// way follow from the mark that their usage was touched.
    pub(crate) async fn make_corrected_due(
        &self,
        tx: &Tx,
        customer: i64,
        bucket: Bucket,
    ) -> Result<()> {
        let text = "SELECT name FROM meter_customer WHERE id = $1";
        let found = tx.execute(text, params![customer]).await?;
        let name = found.row()?.text(0)?.to_owned();
        for kind in &self.settings.periods {
            // Usage that is in no period of a kind has no aggregate of it; the sweep says so.
            let Ok(period) = self.calendar.period_at(kind, bucket.start()) else { continue };
            if period.end <= self.finished_before() {
                self.make_due(tx, (customer, &name), &period).await?;
            }
        }
        Ok(())
    }

    /// Marks one more period of a customer as due, and has it made if it is over.
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

    /// The kind of period with this name.
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

/// The id of an aggregate, and of the job that makes it.
pub fn aggregate_id(customer: &str, period: &str, key: &str) -> String {
    format!("{customer}_{period}_{key}")
}
