//! Recovers jobs that no process will finish: those of ended processes, and those put off by a clock that was
//! ahead.
//!
//! Normally a job of a lost owner waits until its lease ends. Some owners are known to have ended: the lock of
//! a SQLite folder is free only if its owner is gone ([`Queue::reclaim_all`]), and on PostgreSQL the owner's
//! session is gone ([`Reclaimer`]).
//!
//! Guarantees: reclaiming is the transition [`crate::job::Event::Reclaim`]: the attempt stays counted and the
//! next claim gets a new token, so an owner that was wrongly taken for gone is refused. Jobs with more than
//! [`AT_ONCE_ATTEMPTS_MAX`] attempts wait for their lease to end; otherwise a process that crashes on start
//! would use up their attempts within seconds. Leaves to others: proving that an owner is gone
//! (`io::sql::presence`).

use std::time::Duration;

use logmill_io::sql::{Execute, PRESENCE_LOOK};
use logmill_io::{millis, params};

use super::Queue;
use crate::error::Result;

/// Jobs with more attempts than this wait for their lease to end.
pub const AT_ONCE_ATTEMPTS_MAX: i64 = 3;
/// Maximum distance between now and the end of a lease, in leases; it is one unless the clock was set back.
const LEASES_AHEAD_MAX: u32 = 2;
/// Maximum number of owners checked at a time.
const OWNERS_MAX: i64 = 1_000;

/// $1 is [`AT_ONCE_ATTEMPTS_MAX`].
const RECLAIM: &str = "
    UPDATE job SET
        state = CASE WHEN attempts >= attempts_max THEN 3 ELSE 0 END,
        finished_at = CASE WHEN attempts >= attempts_max THEN now_ms() END,
        due_us = now_ms() * 1000,
        error = 'the process ' || COALESCE(owner, 'of an unknown owner') || ' ended before the job',
        owner = NULL
    WHERE state = 1 AND attempts <= $1";

impl Queue {
    /// Reclaims the jobs of all owners; returns how many. Call it only after proving that all owners are gone,
    /// and before claiming any job.
    pub async fn reclaim_all(&self) -> Result<u64> {
        Ok(self.sql.execute(RECLAIM, params![AT_ONCE_ATTEMPTS_MAX]).await?.changed)
    }

    /// Reclaims the jobs of a kind that an owner holds; returns how many.
    async fn reclaim_from(&self, kind: &str, owner: &str) -> Result<u64> {
        let text = format!("{RECLAIM} AND kind = $2 AND owner = $3");
        let params = params![AT_ONCE_ATTEMPTS_MAX, kind, owner];
        Ok(self.sql.execute(&text, params).await?.changed)
    }

    /// Owners other than `me` that hold jobs of a kind which may be reclaimed.
    async fn other_owners(&self, kind: &str, me: &str) -> Result<Vec<String>> {
        let text = "
            SELECT DISTINCT owner FROM job
            WHERE kind = $1 AND state = 1 AND owner IS NOT NULL AND owner <> $2 AND attempts <= $3
            LIMIT $4";
        let params = params![kind, me, AT_ONCE_ATTEMPTS_MAX, OWNERS_MAX];
        let found = self.sql.query(text, params).await?;
        found.rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    }

    /// Makes jobs of a kind due that wait longer than `wait_max` from now; returns how many. Only a clock that
    /// was ahead can have put them off so far.
    async fn end_impossible_waits(&self, kind: &str, wait_max: Duration) -> Result<u64> {
        // Steps from one priority to the next by the index. Such jobs are rare, and a read is cheaper than a
        // write.
        let look = "
            WITH RECURSIVE level (priority) AS (
                SELECT max(priority) FROM job WHERE kind = $1 AND state = 0
                UNION ALL
                SELECT (SELECT max(priority) FROM job
                    WHERE kind = $1 AND state = 0 AND priority < level.priority)
                FROM level WHERE level.priority IS NOT NULL)
            SELECT 1 FROM level WHERE level.priority IS NOT NULL AND EXISTS (
                SELECT 1 FROM job WHERE kind = $1 AND state = 0 AND priority = level.priority
                    AND due_us > (now_ms() + $2) * 1000)
            LIMIT 1";
        let params = params![kind, millis(wait_max)];
        if self.sql.query(look, params.clone()).await?.rows.is_empty() {
            return Ok(0);
        }
        let text = "UPDATE job SET due_us = now_ms() * 1000
            WHERE kind = $1 AND state = 0 AND due_us > (now_ms() + $2) * 1000";
        Ok(self.sql.execute(text, params).await?.changed)
    }

    /// Shortens leases of a kind that end later than any claim for `lease` could; returns how many. They then
    /// end one lease from now, which leaves a live owner time to prolong them.
    async fn shorten_impossible_leases(&self, kind: &str, lease: Duration) -> Result<u64> {
        let which = "kind = $1 AND state = 1 AND lease_until > now_ms() + $2";
        let most = lease.saturating_mul(LEASES_AHEAD_MAX);
        let look = format!("SELECT 1 FROM job WHERE {which} LIMIT 1");
        if self.sql.query(&look, params![kind, millis(most)]).await?.rows.is_empty() {
            return Ok(0);
        }
        let text = format!("UPDATE job SET lease_until = now_ms() + $3 WHERE {which}");
        let params = params![kind, millis(most), millis(lease)];
        Ok(self.sql.execute(&text, params).await?.changed)
    }
}

/// Reclaims jobs of one kind, at its own pace, for the runner of that kind.
#[derive(Debug)]
pub struct Reclaimer {
    queue: Queue,
    kind: String,
    owner: String,
    lease: Duration,
    /// Maximum delay of a job of the kind, and how often to check; `None` for no check.
    wait_max: Option<(Duration, Duration)>,
    /// Next check of the owners, on the monotonic clock.
    owners_at: Duration,
    clock_at: Duration,
    /// Whether other processes held jobs at the last check.
    others: bool,
}

impl Reclaimer {
    /// For an owner that claims jobs of a kind for `lease` each.
    pub fn new(queue: Queue, kind: &str, owner: &str, lease: Duration) -> Self {
        Self {
            queue,
            kind: kind.to_owned(),
            owner: owner.to_owned(),
            lease,
            wait_max: None,
            owners_at: Duration::ZERO,
            clock_at: Duration::ZERO,
            others: false,
        }
    }

    /// Also corrects jobs that are put off longer than this, and leases that end later than possible; checks
    /// `every` so often.
    #[must_use]
    pub fn with_wait_max(mut self, wait_max: Duration, every: Duration) -> Self {
        self.wait_max = Some((wait_max, every));
        self
    }

    /// Reclaims orphaned jobs if a check is due; returns how many jobs it changed.
    pub async fn look(&mut self) -> Result<u64> {
        let now = self.queue.sql.clock().monotonic();
        let mut changed = 0;
        if let Some((wait_max, every)) = self.wait_max
            && now >= self.clock_at
        {
            self.clock_at = now + every;
            changed += self.queue.end_impossible_waits(&self.kind, wait_max).await?;
            changed += self.queue.shorten_impossible_leases(&self.kind, self.lease).await?;
            if changed > 0 {
                tracing::warn!(
                    kind = self.kind,
                    jobs = changed,
                    "the clock was ahead when jobs were put off: corrected their times"
                );
            }
        }
        if self.queue.sql.has_presence() && now >= self.owners_at {
            self.owners_at = now + PRESENCE_LOOK;
            changed += self.look_at_owners().await?;
        }
        Ok(changed)
    }

    async fn look_at_owners(&mut self) -> Result<u64> {
        let owners = self.queue.other_owners(&self.kind, &self.owner).await?;
        self.others = !owners.is_empty();
        let mut reclaimed = 0;
        for owner in owners {
            if !self.queue.sql.is_gone(&owner).await? {
                continue;
            }
            let jobs = self.queue.reclaim_from(&self.kind, &owner).await?;
            if jobs > 0 {
                let kind = &self.kind;
                tracing::info!(kind, owner, jobs, "took back the jobs of a process that has ended");
            }
            reclaimed += jobs;
        }
        Ok(reclaimed)
    }

    /// The interval at which to call [`Self::look`] while other processes hold jobs.
    pub fn look_within(&self) -> Option<Duration> {
        self.others.then_some(PRESENCE_LOOK)
    }
}
