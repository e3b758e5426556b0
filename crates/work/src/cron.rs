//! `Cron`: runs every slot of a schedule once across processes, including slots that passed while no process
//! ran.
//!
//! One row per schedule holds the last enqueued slot. A tick locks the row, enqueues a job for every slot
//! since, and advances the row, in one transaction. The job's key contains the slot, so a repeated tick
//! enqueues nothing twice.
//!
//! Guarantees: each slot has exactly one job, whichever process ticks and however long all were down. One tick
//! enqueues at most [`SLOTS_PER_TICK`] slots, oldest first; later ticks enqueue the rest. A clock that was
//! ahead and is set back does not stop the schedule. Leaves to others: what the jobs do, and which missed slots
//! are worth running ([`MissedRuns`]).

use std::str::FromStr;
use std::time::Duration;

use jiff::tz::TimeZone;
use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, params};

use crate::error::{Error, Result};
use crate::queue::{NewJob, Queue};

/// Maximum number of slots that one tick enqueues.
pub const SLOTS_PER_TICK: usize = 1_000;

/// A cron pattern in a time zone, with the kind of its jobs.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Also the prefix of the jobs' keys.
    pub name: String,
    pub kind: String,
    pattern: croner::Cron,
    zone: TimeZone,
    missed: MissedRuns,
}

/// Which slots to run of those that passed while no process ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissedRuns {
    Each,
    /// For work that catches up by itself.
    Newest,
}

impl Schedule {
    /// Parses a cron pattern (`*/15 * * * *`); `zone` is an IANA name.
    pub fn new(
        name: &str,
        kind: &str,
        pattern: &str,
        zone: &str,
        missed: MissedRuns,
    ) -> Result<Self> {
        let parsed = croner::Cron::from_str(pattern).map_err(|error| {
            Error::invalid(format!(
                "the schedule {name} has the invalid pattern {pattern:?}: {error}"
            ))
        })?;
        let zone = TimeZone::get(zone).map_err(|error| {
            Error::invalid(format!("the schedule {name} has an invalid time zone: {error}"))
        })?;
        Ok(Self { name: name.to_owned(), kind: kind.to_owned(), pattern: parsed, zone, missed })
    }

    /// Returns the first slot after `after`; `None` if there will never be one.
    pub fn next_after(&self, after: Timestamp) -> Result<Option<Timestamp>> {
        let moment = jiff::Timestamp::from_millisecond(after.millis()).map_err(|error| {
            Error::invalid(format!(
                "cannot compute the slot of {} after {after:?}: {error}",
                self.name
            ))
        })?;
        let moment = moment.to_zoned(self.zone.clone());
        match self.pattern.find_next_occurrence(&moment, false) {
            Ok(slot) => Ok(Some(Timestamp(slot.timestamp().as_millisecond()))),
            Err(croner::errors::CronError::TimeSearchLimitExceeded) => Ok(None),
            Err(error) => Err(Error::invalid(format!(
                "cannot compute the next slot of {}: {error}",
                self.name
            ))),
        }
    }

    /// The slots in `(after, until]`, oldest first, at most [`SLOTS_PER_TICK`].
    fn slots(&self, after: Timestamp, until: Timestamp) -> Result<Vec<Timestamp>> {
        let mut slots = Vec::new();
        let mut at = after;
        while slots.len() < SLOTS_PER_TICK {
            match self.next_after(at)? {
                Some(slot) if slot <= until && slot > at => {
                    slots.push(slot);
                    at = slot;
                }
                _ => break,
            }
        }
        Ok(slots)
    }

    fn job(&self, slot: Timestamp) -> NewJob {
        let key = format!("{}@{}", self.name, slot.millis());
        let payload = format!("{{\"slot_ms\":{}}}", slot.millis());
        NewJob::new(self.kind.clone(), key, payload)
    }
}

/// Enqueues the jobs of a schedule.
#[derive(Clone, Debug)]
pub struct Cron {
    queue: Queue,
    schedule: Schedule,
}

impl Cron {
    pub fn new(queue: Queue, schedule: Schedule) -> Self {
        Self { queue, schedule }
    }

    /// Stores the schedule unless it is stored already. Slots count from `since`, or from now. A later call
    /// changes nothing, so a restart loses no slot.
    pub async fn start(&self, since: Option<Timestamp>) -> Result<()> {
        let text = "INSERT INTO cron (name, passed_at) VALUES ($1, COALESCE($2, now_ms()))
            ON CONFLICT (name) DO NOTHING";
        let params = params![self.schedule.name.as_str(), since];
        self.queue.sql().execute(text, params).await?;
        Ok(())
    }

    /// Enqueues a job for every slot that has passed; returns the number of jobs and the time until the next
    /// slot.
    pub async fn tick(&self) -> Result<(usize, Option<Duration>)> {
        let handed = self.queue.sql().write(|tx| async move { self.tick_in(&tx).await }).await?;
        if handed.0 > 0 {
            self.queue.wakes().wake(&self.schedule.kind);
        }
        Ok(handed)
    }

    async fn tick_in(&self, tx: &Tx) -> Result<(usize, Option<Duration>)> {
        let name = self.schedule.name.as_str();
        let text = "SELECT passed_at, now_ms() FROM cron WHERE name = $1 FOR UPDATE";
        let found = tx.execute(text, params![name]).await?;
        let row = found.rows.first();
        let row =
            row.ok_or_else(|| Error::invalid(format!("the schedule {name} was not started")))?;
        let (passed, now) = (row.time(0)?, row.time(1)?);
        // A transaction that waited for another one may be slightly behind it, although no clock was set back.
        if passed > now.after(BEHIND_MAX) {
            return self.turn_back(tx, now).await;
        }
        let slots = self.schedule.slots(passed, now)?;
        let wanted = match self.schedule.missed {
            MissedRuns::Each => &slots[..],
            MissedRuns::Newest => &slots[slots.len().saturating_sub(1)..],
        };
        let jobs: Vec<NewJob> = wanted.iter().map(|slot| self.schedule.job(*slot)).collect();
        if let Some(last) = slots.last() {
            self.queue.enqueue_many_in(tx, &jobs).await?;
            let text = "UPDATE cron SET passed_at = $2 WHERE name = $1";
            tx.execute(text, params![name, *last]).await?;
        }
        let next = self.schedule.next_after(slots.last().copied().unwrap_or(passed).max(passed))?;
        Ok((jobs.len(), next.map(|next| next.since(now))))
    }

    /// Handles a clock that was set back: continues from now instead of waiting for the old position. Slots
    /// that recur find their jobs already enqueued.
    async fn turn_back(&self, tx: &Tx, now: Timestamp) -> Result<(usize, Option<Duration>)> {
        let text = "UPDATE cron SET passed_at = $2 WHERE name = $1";
        tx.execute(text, params![self.schedule.name.as_str(), now]).await?;
        let next = self.schedule.next_after(now)?;
        Ok((0, next.map(|next| next.since(now))))
    }

    /// Ticks forever: sleeps until each slot, and retries after a short wait while the database is unavailable.
    pub async fn run(&self) -> Result<()> {
        self.start(None).await?;
        let clock = self.queue.sql().clock().clone();
        loop {
            let wait = match self.tick().await {
                Ok((_, None)) => return Ok(()),
                Ok((_, Some(wait))) => wait.min(SLEEP_MAX),
                Err(error) if error.kind() == logmill_io::ErrorKind::Transient => {
                    tracing::warn!(
                        schedule = self.schedule.name,
                        error = error.chain(),
                        "cannot enqueue scheduled jobs, retrying"
                    );
                    AGAIN_WAIT
                }
                Err(error) => return Err(error),
            };
            clock.sleep(wait).await;
        }
    }
}

/// The wall clock can be set, so it is checked at least this often.
const SLEEP_MAX: Duration = Duration::from_secs(60);
const AGAIN_WAIT: Duration = Duration::from_secs(5);
/// How far the clock may be behind the last slot before we conclude that it was set back.
const BEHIND_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(pattern: &str, zone: &str) -> Schedule {
        Schedule::new("s", "k", pattern, zone, MissedRuns::Each).expect("a valid schedule")
    }

    fn moment(text: &str) -> Timestamp {
        let moment: jiff::Timestamp = text.parse().expect("a moment");
        Timestamp(moment.as_millisecond())
    }

    #[test]
    fn slots_follow_the_pattern_and_the_zone() {
        let quarters = schedule("*/15 * * * *", "UTC");
        let slots = quarters.slots(moment("2026-01-01T00:00:00Z"), moment("2026-01-01T01:00:00Z"));
        let wanted = ["00:15:00", "00:30:00", "00:45:00", "01:00:00"];
        let wanted = wanted.map(|time| moment(&format!("2026-01-01T{time}Z")));
        assert_eq!(slots.expect("slots"), wanted);
        // The day has 23 hours: midnight in Berlin is 23:00Z, then 22:00Z.
        let midnights = schedule("0 0 * * *", "Europe/Berlin");
        let slots = midnights.slots(moment("2026-03-28T12:00:00Z"), moment("2026-03-30T12:00:00Z"));
        let wanted = [moment("2026-03-28T23:00:00Z"), moment("2026-03-29T22:00:00Z")];
        assert_eq!(slots.expect("slots"), wanted);
    }

    #[test]
    fn a_pattern_or_zone_that_is_wrong_is_refused() {
        for (pattern, zone) in
            [("61 * * * *", "UTC"), ("nonsense", "UTC"), ("* * * * *", "Mars/Base")]
        {
            assert!(
                Schedule::new("s", "k", pattern, zone, MissedRuns::Each).is_err(),
                "{pattern} {zone}"
            );
        }
    }

    #[test]
    fn a_pattern_that_never_matches_has_no_slots() {
        assert_eq!(schedule("0 0 30 2 *", "UTC").next_after(Timestamp(0)).expect("no error"), None);
    }

    #[test]
    fn one_tick_enqueues_a_bounded_number() {
        let minutes = schedule("* * * * *", "UTC");
        let slots = minutes.slots(Timestamp(0), moment("2026-01-01T00:00:00Z")).expect("slots");
        assert_eq!(slots.len(), SLOTS_PER_TICK);
        assert_eq!(slots[0], Timestamp(60_000));
    }
}
