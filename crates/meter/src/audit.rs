//! The audit: whether what is stored of usage is what was written, all of it, again and again, slowly.
//!
//! ```text
//!   findings of before, again ─▶ events by their numbers ─▶ slices of the archive ─▶ the next round
//! ```
//!
//! A job each minute takes the next part of the round: so many events at most, with a pause after each page, so that
//! a round over millions of events takes hours and nobody notices it. What is not what was written is entered in
//! `meter_damage`, logged, counted and shown, until it is whole again or gone.
//!
//! Guarantees: every event with checksums and every slice is read once in a round; what is recorded meanwhile is read
//! in the same round. Nothing but its own tables is changed. Leaves to others: what to do about damage
//! (`docs/runbooks/damaged-usage.md`), and rows that are gone.

use std::time::Duration;

use async_trait::async_trait;
use logmill_io::sql::Execute;
use logmill_io::{Timestamp, params};
use logmill_work::{Failure, Handler, Missed, Outcome, Running, Schedule};

use crate::archive::{slice_after, slice_with};
use crate::checksum::EventColumns;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::stored::{COLUMNS, StoredEvent};

/// The kind of jobs that audit.
pub const AUDIT_JOB: &str = "meter.audit";
/// How many events one job reads: a thousand a second, on average.
const EVENTS_PER_JOB: u64 = 60_000;
const EVENTS_PER_PAGE: i64 = 1_000;
/// How many slices one job reads; each is unpacked whole.
const SLICES_PER_JOB: usize = 4;
/// How long to wait after each page.
const PAUSE: Duration = Duration::from_millis(100);
/// How many findings are looked at again by each job, and shown.
const FINDINGS_MAX: i64 = 1_000;

/// When to audit: every minute.
pub fn audit_schedule() -> Result<Schedule> {
    Ok(Schedule::new(AUDIT_JOB, AUDIT_JOB, "* * * * *", "UTC", Missed::Newest)?)
}

/// What is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamagedRecord {
    /// An event of the database, by its number.
    Event(i64),
    /// The entry by which the event with this number is found.
    Place(i64),
    /// A slice of the archive, by its number.
    Slice(i64),
}

impl DamagedRecord {
    fn kind(self) -> &'static str {
        match self {
            Self::Event(_) => "event",
            Self::Place(_) => "place",
            Self::Slice(_) => "slice",
        }
    }

    fn number(self) -> i64 {
        match self {
            Self::Event(number) | Self::Place(number) | Self::Slice(number) => number,
        }
    }

    fn from_columns(kind: &str, number: i64) -> Option<Self> {
        match kind {
            "event" => Some(Self::Event(number)),
            "place" => Some(Self::Place(number)),
            "slice" => Some(Self::Slice(number)),
            _ => None,
        }
    }
}

impl std::fmt::Display for DamagedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Event(seq) => write!(f, "event {seq}"),
            Self::Place(seq) => write!(f, "the entry of event {seq}"),
            Self::Slice(number) => write!(f, "slice {number} of the archive"),
        }
    }
}

/// How far the audit is, and what it found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditStatus {
    /// Events that were read in the round under way.
    pub checked: u64,
    /// Those of them that have no checksum: they are older than checksums are.
    pub unchecked: u64,
    /// Rounds that were finished.
    pub rounds: u64,
    /// When the last of them was.
    pub round_ended: Option<Timestamp>,
    /// What is damaged, the first so many.
    pub damaged: Vec<DamagedRecord>,
    /// How much is damaged.
    pub damaged_total: u64,
}

/// How far the round under way is.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    next_seq: i64,
    next_slice: i64,
    checked: i64,
    unchecked: i64,
}

/// Audits, one job a time.
#[derive(Clone, Debug)]
pub struct Auditor(pub Meter);

#[async_trait]
impl Handler for Auditor {
    async fn run(&self, _running: Running) -> Result<Outcome, Failure> {
        let audited = Box::pin(self.0.audit_some(EVENTS_PER_JOB)).await;
        audited.map_err(|error| Failure::again(error.chain()))?;
        Ok(Outcome::Done)
    }
}

impl Meter {
    /// Takes the next part of the round, of so many events at most; gives whether that ended it.
    pub async fn audit_some(&self, events_max: u64) -> Result<bool> {
        self.audit_findings().await?;
        let mut round = self.audit_round().await?;
        let mut left = i64::try_from(events_max).unwrap_or(i64::MAX);
        let mut ended = false;
        while left > 0 && !ended {
            let read = self.audit_events(&mut round, left.min(EVENTS_PER_PAGE)).await?;
            left -= read;
            if read == 0 {
                ended = self.audit_slices(&mut round).await?;
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

    /// How far the audit is, and what it found.
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

    /// Looks at what was found before: it may be whole again, or gone.
    async fn audit_findings(&self) -> Result<()> {
        for finding in self.findings().await? {
            let whole = match finding {
                DamagedRecord::Event(seq) => self.event_is_whole(seq).await?,
                DamagedRecord::Place(seq) => {
                    self.events_without_entry(seq, seq.saturating_add(1)).await?.is_empty()
                }
                DamagedRecord::Slice(number) => match slice_with(&self.sql, number).await? {
                    Some(slice) => is_whole(self.read_slice(&slice).await)?,
                    None => true,
                },
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
        is_whole(crate::stored::get(&self.sql.reading(), seq).await)
    }

    async fn audit_round(&self) -> Result<Round> {
        let text = "SELECT next_seq, next_slice, checked, unchecked FROM meter_audit WHERE id = 1";
        let found = self.sql.query(text, params![]).await?;
        let row = found.row()?;
        Ok(Round {
            next_seq: row.int(0)?,
            next_slice: row.int(1)?,
            checked: row.int(2)?,
            unchecked: row.int(3)?,
        })
    }

    async fn store_round(&self, round: &Round, ended: bool) -> Result<()> {
        let Round { next_seq, next_slice, checked, unchecked } = *round;
        let params = params![next_seq, next_slice, checked, unchecked];
        let text = match ended {
            false => {
                "UPDATE meter_audit SET next_seq = $1, next_slice = $2, checked = $3,
                     unchecked = $4 WHERE id = 1"
            }
            // The figures of the round stay until the next one has some.
            true => {
                "UPDATE meter_audit SET next_seq = $1, next_slice = $2, checked = $3,
                     unchecked = $4, rounds = rounds + 1, round_ended_ms = now_ms() WHERE id = 1"
            }
        };
        self.sql.execute(text, params).await?;
        Ok(())
    }

    /// Reads the next events; gives how many there were.
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

    /// The events among these numbers that are older than all lists and have no entry. One statement, so that nothing
    /// moves meanwhile.
    async fn events_without_entry(&self, first: i64, end: i64) -> Result<Vec<i64>> {
        let text = "SELECT e.seq FROM meter_event e
                    WHERE e.seq >= $1 AND e.seq < $2
                        AND e.seq < coalesce((SELECT min(first_seq) FROM meter_unplaced), $2)
                        AND NOT EXISTS (SELECT 1 FROM meter_place p
                            WHERE p.bucket = e.bucket AND p.series = e.series AND p.seq = e.seq)";
        let found = self.sql.query(text, params![first, end]).await?;
        found.rows.iter().map(|row| Ok(row.int(0)?)).collect()
    }

    /// Reads the next slices; gives whether these were the last.
    async fn audit_slices(&self, round: &mut Round) -> Result<bool> {
        for _ in 0..SLICES_PER_JOB {
            let Some((number, slice)) = slice_after(&self.sql, round.next_slice).await? else {
                (round.next_seq, round.next_slice) = (0, 0);
                return Ok(true);
            };
            if !is_whole(self.read_slice(&slice).await)? {
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

/// Whether what was read is what was written. What could not be read for another reason is an error.
fn is_whole<T>(read: Result<T>) -> Result<bool> {
    match read {
        Ok(_) => Ok(true),
        Err(Error::DamagedEvent { .. } | Error::Corrupt { .. }) => Ok(false),
        Err(Error::Store(
            logmill_io::Error::Corrupt { .. } | logmill_io::Error::NotFound { .. },
        )) => Ok(false),
        Err(error) => Err(error),
    }
}
