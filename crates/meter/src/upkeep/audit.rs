//! The audit: slowly and repeatedly checks that all stored usage is what was written.
//!
//! ```text
//!   earlier findings, again ─▶ events by number ─▶ names ─▶ slices of the archive ─▶ the next round
//! ```
//!
//! A job each minute does the next part of the round: a bounded number of events, with a pause after each page, so that
//! a round over millions of events takes hours without disturbing other work. Damage is entered in `meter_damage`,
//! logged, counted and shown until the record is whole again or gone.
//!
//! Guarantees: every event with checksums, every name and every slice is read once in a round, including those recorded
//! during the round. It changes only its own tables, and fills in the checksums of names from versions that had none.
//! Leaves to others: what to do about damage (`docs/runbooks/damaged-usage.md`), and rows that are gone.

use std::time::Duration;

use async_trait::async_trait;
use logmill_io::sql::Execute;
use logmill_io::{Timestamp, params};
use logmill_work::{Failure, Handler, MissedRuns, Outcome, RunningJob, Schedule};

use crate::Meter;
pub use crate::damage::DamagedRecord;
use crate::error::{Error, Result};
use crate::store::archive::{slice_after, slice_with};
use crate::store::checksum::EventColumns;
use crate::store::names::{
    CUSTOMER, SERIES, SERIES_COLUMNS, customer_at, customer_checks, series_at,
};
use crate::store::stored_event::{COLUMNS, StoredEvent};

/// Kind of the audit's jobs.
pub const AUDIT_JOB: &str = "meter.audit";
/// Events that one job reads: a thousand a second on average.
const EVENTS_PER_JOB: u64 = 60_000;
const EVENTS_PER_PAGE: i64 = 1_000;
/// Names of customers and series that one job reads, and that one query reads.
const NAMES_PER_JOB: i64 = 60_000;
const NAMES_PER_PAGE: i64 = 1_000;
/// Slices that one job reads; each is unpacked whole.
const SLICES_PER_JOB: usize = 4;
/// Pause after each page.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of findings that each job checks again, and that are shown.
const FINDINGS_MAX: i64 = 1_000;

pub fn audit_schedule() -> Result<Schedule> {
    Ok(Schedule::new(AUDIT_JOB, AUDIT_JOB, "* * * * *", "UTC", MissedRuns::Newest)?)
}

/// Progress and findings of the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditStatus {
    /// Events read in the current round.
    pub checked: u64,
    /// Those of them without a checksum, because they are older than checksums.
    pub unchecked: u64,
    /// Finished rounds.
    pub rounds: u64,
    /// End of the last finished round.
    pub round_ended: Option<Timestamp>,
    /// The first damaged records, up to a limit.
    pub damaged: Vec<DamagedRecord>,
    /// Number of all damaged records.
    pub damaged_total: u64,
}

/// Progress of the current round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    next_seq: i64,
    next_slice: i64,
    next_name: i64,
    checked: i64,
    unchecked: i64,
}

/// Worker that does a part of the round per job.
#[derive(Clone, Debug)]
pub struct Auditor(pub Meter);

#[async_trait]
impl Handler for Auditor {
    async fn run(&self, _running: RunningJob) -> Result<Outcome, Failure> {
        let audited = Box::pin(self.0.audit_some(EVENTS_PER_JOB)).await;
        audited.map_err(|error| Failure::again(error.chain()))?;
        Ok(Outcome::Done)
    }
}

impl Meter {
    /// Does the next part of the round, with at most `events_max` events; returns whether it ended the round.
    pub async fn audit_some(&self, events_max: u64) -> Result<bool> {
        self.audit_findings().await?;
        let mut round = self.audit_round().await?;
        let mut left = i64::try_from(events_max).unwrap_or(i64::MAX);
        let mut ended = false;
        while left > 0 && !ended {
            let read = self.audit_events(&mut round, left.min(EVENTS_PER_PAGE)).await?;
            left -= read;
            if read == 0 {
                ended =
                    self.audit_names(&mut round).await? && self.audit_slices(&mut round).await?;
                left = 0;
            }
            self.store_round(&round, ended).await?;
            if left > 0 && !ended {
                self.clock().sleep(PAUSE).await;
            }
        }
        self.count_damage().await?;
        Ok(ended)
    }

    /// Progress and findings of the audit.
    pub async fn audit_status(&self) -> Result<AuditStatus> {
        let text = "SELECT checked, unchecked, rounds, round_ended_ms,
                        (SELECT count(*) FROM meter_damage) FROM meter_audit WHERE id = 1";
        let found = self.sql.query(text, params![]).await?;
        let row = found.row()?;
        let damaged_total = row.count(4)?;
        let damaged = if damaged_total == 0 { Vec::new() } else { self.findings().await? };
        Ok(AuditStatus {
            checked: row.count(0)?,
            unchecked: row.count(1)?,
            rounds: row.count(2)?,
            round_ended: row.opt_time(3)?,
            damaged,
            damaged_total,
        })
    }

    async fn findings(&self) -> Result<Vec<DamagedRecord>> {
        let text = "SELECT kind, number FROM meter_damage ORDER BY kind, number LIMIT $1";
        let found = self.sql.query(text, params![FINDINGS_MAX]).await?;
        let mut findings = Vec::new();
        for row in &found.rows {
            findings.extend(DamagedRecord::from_columns(row.text(0)?, row.int(1)?));
        }
        Ok(findings)
    }

    /// Checks earlier findings again: a record may be whole again, or gone.
    async fn audit_findings(&self) -> Result<()> {
        for finding in self.findings().await? {
            let whole = match finding {
                DamagedRecord::Event(seq) => self.event_is_whole(seq).await?,
                DamagedRecord::Place(seq) => {
                    self.events_without_entry(seq, seq.saturating_add(1)).await?.is_empty()
                }
                DamagedRecord::Slice(number) => match slice_with(&self.sql, number).await? {
                    Some(slice) => is_whole(self.archive.read_slice(&slice).await)?,
                    None => true,
                },
                DamagedRecord::Customer(id) | DamagedRecord::Series(id) => {
                    self.damaged_names(id, id.saturating_add(1)).await?.is_empty()
                }
            };
            if whole {
                let text = "DELETE FROM meter_damage WHERE kind = $1 AND number = $2";
                self.sql.execute(text, params![finding.kind(), finding.number()]).await?;
                tracing::info!(%finding, "stored usage is no longer damaged");
            }
        }
        Ok(())
    }

    /// Whether an event can be read, or is gone.
    async fn event_is_whole(&self, seq: i64) -> Result<bool> {
        is_whole(crate::store::stored_event::get(&self.sql.reading(), seq).await)
    }

    async fn audit_round(&self) -> Result<Round> {
        let text = "SELECT next_seq, next_slice, checked, unchecked, next_name
                    FROM meter_audit WHERE id = 1";
        let found = self.sql.query(text, params![]).await?;
        let row = found.row()?;
        Ok(Round {
            next_seq: row.int(0)?,
            next_slice: row.int(1)?,
            checked: row.int(2)?,
            unchecked: row.int(3)?,
            next_name: row.int(4)?,
        })
    }

    async fn store_round(&self, round: &Round, ended: bool) -> Result<()> {
        let Round { next_seq, next_slice, next_name, checked, unchecked } = *round;
        let params = params![next_seq, next_slice, checked, unchecked, next_name];
        let text = match ended {
            false => {
                "UPDATE meter_audit SET next_seq = $1, next_slice = $2, checked = $3,
                     unchecked = $4, next_name = $5 WHERE id = 1"
            }
            // The figures of the finished round stay until the next one has its own.
            true => {
                "UPDATE meter_audit SET next_seq = $1, next_slice = $2, checked = $3,
                     unchecked = $4, next_name = $5, rounds = rounds + 1, round_ended_ms = now_ms() WHERE id = 1"
            }
        };
        self.sql.execute(text, params).await?;
        Ok(())
    }

    /// Reads the next events; returns how many there were.
    async fn audit_events(&self, round: &mut Round, most: i64) -> Result<i64> {
        if round.next_seq == 0 {
            (round.checked, round.unchecked) = (0, 0);
        }
        let text = format!(
            "SELECT {COLUMNS} FROM meter_event e WHERE e.seq >= $1 ORDER BY e.seq LIMIT {most}"
        );
        let first = round.next_seq;
        let found = self.sql.query(&text, params![first]).await?;
        for row in &found.rows {
            let seq = row.int(0)?;
            if !is_whole(StoredEvent::from_row(row))? {
                self.found(DamagedRecord::Event(seq)).await?;
            }
            round.unchecked += i64::from(!EventColumns::has_checks(row));
            round.next_seq = round.next_seq.max(seq.saturating_add(1));
        }
        if !found.rows.is_empty() {
            for seq in self.events_without_entry(first, round.next_seq).await? {
                self.found(DamagedRecord::Place(seq)).await?;
            }
        }
        let read = i64::try_from(found.rows.len()).unwrap_or(i64::MAX);
        round.checked += read;
        metrics::counter!("logmill_meter_audited_events_total").increment(read.unsigned_abs());
        Ok(read)
    }

    /// The events in this range of numbers that precede all lists and have no index entry. One statement, so that
    /// nothing moves meanwhile.
    async fn events_without_entry(&self, first: i64, end: i64) -> Result<Vec<i64>> {
        let text = "SELECT e.seq FROM meter_event e
                    WHERE e.seq >= $1 AND e.seq < $2
                        AND e.seq < coalesce((SELECT min(first_seq) FROM meter_unplaced), $2)
                        AND NOT EXISTS (SELECT 1 FROM meter_place p
                            WHERE p.bucket = e.bucket AND p.series = e.series AND p.seq = e.seq)";
        let found = self.sql.query(text, params![first, end]).await?;
        found.rows.iter().map(|row| Ok(row.int(0)?)).collect()
    }

    /// Reads the next names of customers and series, which share one sequence of numbers; returns whether these were
    /// the last.
    async fn audit_names(&self, round: &mut Round) -> Result<bool> {
        let text = "SELECT next_name FROM meter_head WHERE id = 1";
        let end = self.sql.query(text, params![]).await?.row()?.int(0)?;
        let until = end.min(round.next_name.saturating_add(NAMES_PER_JOB));
        while round.next_name < until {
            let page_end = until.min(round.next_name.saturating_add(NAMES_PER_PAGE));
            for finding in self.damaged_names(round.next_name, page_end).await? {
                self.found(finding).await?;
            }
            round.next_name = page_end;
            if page_end < until {
                self.clock().sleep(PAUSE).await;
            }
        }
        Ok(round.next_name >= end)
    }

    /// The damaged names in this range of numbers. Names without a checksum get one.
    async fn damaged_names(&self, first: i64, end: i64) -> Result<Vec<DamagedRecord>> {
        let mut damaged = Vec::new();
        let text =
            format!("SELECT {CUSTOMER} FROM meter_customer c WHERE c.id >= $1 AND c.id < $2");
        for row in &self.sql.query(&text, params![first, end]).await?.rows {
            let id = row.int(0)?;
            match customer_at(row, 0) {
                Err(_) => damaged.push(DamagedRecord::Customer(id)),
                Ok(name) if row.is_null(2) => {
                    let text = "UPDATE meter_customer SET checks = $2
                                WHERE id = $1 AND checks IS NULL";
                    self.sql.execute(text, params![id, customer_checks(id, name)]).await?;
                }
                Ok(_) => {}
            }
        }
        let text = format!("SELECT {SERIES} FROM meter_series s WHERE s.id >= $1 AND s.id < $2");
        for row in &self.sql.query(&text, params![first, end]).await?.rows {
            let id = row.int(0)?;
            match series_at(row, 0) {
                Err(_) => damaged.push(DamagedRecord::Series(id)),
                Ok(names) if row.is_null(SERIES_COLUMNS - 1) => {
                    let text = "UPDATE meter_series SET checks = $2
                                WHERE id = $1 AND checks IS NULL";
                    self.sql.execute(text, params![id, names.checks()]).await?;
                }
                Ok(_) => {}
            }
        }
        Ok(damaged)
    }

    /// Reads the next slices; returns whether these were the last.
    async fn audit_slices(&self, round: &mut Round) -> Result<bool> {
        for _ in 0..SLICES_PER_JOB {
            let Some((number, slice)) = slice_after(&self.sql, round.next_slice).await? else {
                (round.next_seq, round.next_slice, round.next_name) = (0, 0, 0);
                return Ok(true);
            };
            if !is_whole(self.archive.read_slice(&slice).await)? {
                self.found(DamagedRecord::Slice(number)).await?;
            }
            round.next_slice = number;
        }
        Ok(false)
    }

    async fn found(&self, finding: DamagedRecord) -> Result<()> {
        let text = "INSERT INTO meter_damage (kind, number, found_ms) VALUES ($1, $2, now_ms())
                    ON CONFLICT (kind, number) DO NOTHING";
        let new = self.sql.execute(text, params![finding.kind(), finding.number()]).await?;
        if new.changed > 0 {
            tracing::error!(
                %finding,
                "stored usage is damaged: see docs/runbooks/damaged-usage.md"
            );
        }
        Ok(())
    }

    async fn count_damage(&self) -> Result<()> {
        let text = "SELECT count(*) FROM meter_damage";
        let damaged = self.sql.query(text, params![]).await?.row()?.count(0)?;
        let damaged = u32::try_from(damaged).unwrap_or(u32::MAX);
        metrics::gauge!("logmill_meter_damaged").set(damaged);
        Ok(())
    }
}

/// False if the read found damage. Any other failure is returned as an error.
fn is_whole<T>(read: Result<T>) -> Result<bool> {
    match read {
        Ok(_) => Ok(true),
        Err(Error::DamagedEvent { .. } | Error::DamagedName { .. } | Error::Corrupt { .. }) => {
            Ok(false)
        }
        Err(Error::Store(
            logmill_io::Error::Corrupt { .. } | logmill_io::Error::NotFound { .. },
        )) => Ok(false),
        Err(error) => Err(error),
    }
}
