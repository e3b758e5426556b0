//! Operations for operators and status pages: view, count, cancel, redrive, purge, pause.
//!
//! Guarantees: every change is a transition of [`crate::job`], or removes a finished job. Leaves to others:
//! authorization.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Row, Timestamp, millis, params};

use super::{BATCH_MAX, Queue};
use crate::error::{Error, Result};
use crate::job::State;

/// Maximum number of jobs in one list.
pub const LIST_MAX: usize = 1_000;

/// A job as shown to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    pub kind: String,
    pub key: String,
    pub state: State,
    pub priority: i64,
    /// Number of the last claim.
    pub token: i64,
    pub attempts: i64,
    pub attempts_max: i64,
    /// How often enqueueing the key again revived the job.
    pub revived: i64,
    /// Input of the handler, as JSON text.
    pub payload: String,
    /// Error of the last failed attempt.
    pub error: Option<String>,
    /// The process that holds it.
    pub owner: Option<String>,
    /// The earliest time of a claim.
    pub due_at: Timestamp,
    /// End of the current or last lease.
    pub lease_until: Option<Timestamp>,
    pub created_at: Timestamp,
    /// Time of the last claim.
    pub started_at: Option<Timestamp>,
    /// When it became done, dead or cancelled.
    pub finished_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindCounts {
    pub kind: String,
    pub state: State,
    pub jobs: u64,
    /// Time since the oldest came due (pending), was claimed (running) or finished.
    pub oldest_age: Duration,
}

/// Position of a job in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// Zero if it runs or has finished; otherwise one more than the number of jobs before it, including running
    /// ones.
    pub position: u64,
    /// Estimated time until it is done, from measured durations and all runners' slots; `None` if no process
    /// runs its kind.
    pub wait: Option<Duration>,
}

const COLUMNS: &str = "kind, key, state, priority, token, attempts, attempts_max, revived, payload,
    error, owner, due_us, lease_until, created_at, started_at, finished_at";

impl Queue {
    pub async fn get(&self, kind: &str, key: &str) -> Result<Option<JobView>> {
        let text = format!("SELECT {COLUMNS} FROM job WHERE kind = $1 AND key = $2");
        let found = self.sql.query(&text, params![kind, key]).await?;
        found.rows.first().map(view).transpose()
    }

    /// Lists jobs of a kind in a state, ordered by key, after the given key; at most [`LIST_MAX`].
    pub async fn list(
        &self,
        kind: &str,
        state: State,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<JobView>> {
        let text = format!(
            "SELECT {COLUMNS} FROM job WHERE kind = $1 AND state = {} AND key > $2 ORDER BY key LIMIT $3",
            state.number()
        );
        let limit = i64::try_from(limit.min(LIST_MAX)).unwrap_or(0);
        let found = self.sql.query(&text, params![kind, after.unwrap_or(""), limit]).await?;
        found.rows.iter().map(view).collect()
    }

    /// Counts the jobs of a kind that are due, up to `most`.
    pub async fn due(&self, kind: &str, most: usize) -> Result<usize> {
        let text = "
            SELECT count(*) FROM (
                SELECT 1 FROM job WHERE kind = $1 AND state = 0 AND due_us <= now_ms() * 1000 LIMIT $2
            ) AS due";
        let most = i64::try_from(most.min(BATCH_MAX)).unwrap_or(0);
        let found = self.sql.query(text, params![kind, most]).await?;
        Ok(usize::try_from(found.row()?.count(0)?).unwrap_or(usize::MAX))
    }

    /// Counts jobs by kind and state, with the age of the oldest.
    pub async fn counts(&self) -> Result<Vec<KindCounts>> {
        // Three reads of partial indexes instead of one of the whole table.
        let text = "
            SELECT kind, state, jobs, now_ms() - oldest FROM (
                SELECT kind, 0 AS state, count(*) AS jobs, min(due_us) / 1000 AS oldest
                    FROM job WHERE state = 0 GROUP BY kind
                UNION ALL SELECT kind, 1, count(*), min(started_at) FROM job WHERE state = 1 GROUP BY kind
                UNION ALL SELECT kind, state, count(*), min(finished_at)
                    FROM job WHERE state >= 2 GROUP BY kind, state
            ) AS counted ORDER BY kind, state";
        let found = self.sql.query(text, params![]).await?;
        found.rows.iter().map(counts).collect()
    }

    /// Returns a job's position and estimated wait.
    pub async fn place(&self, kind: &str, key: &str) -> Result<QueuePosition> {
        let job = self.get(kind, key).await?.ok_or_else(|| no_such_job(kind, key))?;
        let (slots, job_time) = self.capacity(kind).await?;
        match job.state {
            State::Pending => {}
            State::Running => return Ok(QueuePosition { position: 0, wait: job_time }),
            _ => return Ok(QueuePosition { position: 0, wait: Some(Duration::ZERO) }),
        }
        let text = "
            SELECT (SELECT count(*) FROM job WHERE kind = $1 AND state = 1)
                + (SELECT count(*) FROM job AS other JOIN job AS mine
                    ON mine.kind = $1 AND mine.key = $2
                    WHERE other.kind = $1 AND other.state = 0 AND (other.priority > mine.priority
                        OR (other.priority = mine.priority AND (other.due_us < mine.due_us
                            OR (other.due_us = mine.due_us AND other.seq < mine.seq)))))";
        let found = self.sql.query(text, params![kind, key]).await?;
        let position = found.row()?.count(0)? + 1;
        let wait = job_time.filter(|_| slots > 0).map(|job_time| {
            let rounds = u32::try_from(position.div_ceil(slots)).unwrap_or(u32::MAX);
            job_time.saturating_mul(rounds)
        });
        Ok(QueuePosition { position, wait })
    }

    /// Whether a process runs jobs of a kind, or did within the last five minutes.
    pub async fn has_runner(&self, kind: &str) -> Result<bool> {
        Ok(self.capacity(kind).await?.0 > 0)
    }

    /// Slots of all runners of a kind, and their average job duration.
    async fn capacity(&self, kind: &str) -> Result<(u64, Option<Duration>)> {
        let text = "
            SELECT CAST(COALESCE(sum(slots), 0) AS BIGINT),
                CAST(COALESCE(sum(job_ms * slots), 0) AS BIGINT)
            FROM job_runner WHERE kind = $1 AND seen_at > now_ms() - $2 AND seen_at < now_ms() + $2";
        let found = self.sql.query(text, params![kind, millis(RUNNER_SEEN_WITHIN)]).await?;
        let (slots, weighted_ms) = (found.row()?.count(0)?, found.row()?.count(1)?);
        Ok((slots, weighted_ms.checked_div(slots).map(Duration::from_millis)))
    }

    /// Registers a runner, or refreshes its entry.
    pub(crate) async fn announce(
        &self,
        owner: &str,
        kind: &str,
        slots: usize,
        job_time: Duration,
    ) -> Result<()> {
        let text = "
            INSERT INTO job_runner (owner, kind, slots, job_ms, seen_at)
            VALUES ($1, $2, $3, $4, now_ms())
            ON CONFLICT (owner, kind) DO UPDATE SET
                slots = excluded.slots, job_ms = excluded.job_ms, seen_at = excluded.seen_at";
        let slots = i64::try_from(slots).unwrap_or(i64::MAX);
        self.sql.execute(text, params![owner, kind, slots, millis(job_time)]).await?;
        Ok(())
    }

    /// Removes a runner's entry, and entries that are out of date.
    pub(crate) async fn retire(&self, owner: &str, kind: &str) -> Result<()> {
        let text = "
            DELETE FROM job_runner
            WHERE (owner = $1 AND kind = $2) OR seen_at < now_ms() - $3 OR seen_at > now_ms() + $3";
        self.sql.execute(text, params![owner, kind, millis(RUNNER_SEEN_WITHIN)]).await?;
        Ok(())
    }

    /// Cancels a pending or running job and returns whether it was one; a worker that runs it is fenced.
    pub async fn cancel(&self, kind: &str, key: &str) -> Result<bool> {
        let text = "
            UPDATE job SET state = 4, finished_at = now_ms(), owner = NULL
            WHERE kind = $1 AND key = $2 AND state IN (0, 1)";
        let changed = self.sql.execute(text, params![kind, key]).await?.changed;
        if changed == 0 && self.get(kind, key).await?.is_none() {
            return Err(no_such_job(kind, key));
        }
        Ok(changed > 0)
    }

    /// Makes a dead or cancelled job pending with all its attempts; returns whether it was one.
    pub async fn redrive(&self, kind: &str, key: &str) -> Result<bool> {
        let text = "
            UPDATE job SET state = 0, attempts = 0, due_us = now_ms() * 1000, finished_at = NULL
            WHERE kind = $1 AND key = $2 AND state IN (3, 4)";
        let changed = self.sql.execute(text, params![kind, key]).await?.changed;
        if changed == 0 && self.get(kind, key).await?.is_none() {
            return Err(no_such_job(kind, key));
        }
        self.wakes.wake(kind);
        Ok(changed > 0)
    }

    /// Redrives all dead letters of a kind; returns how many.
    pub async fn redrive_dead(&self, kind: &str) -> Result<u64> {
        let text = "
            UPDATE job SET state = 0, attempts = 0, due_us = now_ms() * 1000, finished_at = NULL
            WHERE kind = $1 AND key any_of(
                SELECT key FROM job WHERE kind = $1 AND state = 3 LIMIT $2 FOR UPDATE SKIP LOCKED)";
        let changed = self.in_batches(text, params![kind]).await?;
        self.wakes.wake(kind);
        Ok(changed)
    }

    /// Removes the jobs of a kind in a finished state that ended longer than `age` ago; returns how many. Also
    /// implements the retention of finished jobs. A removed key can be enqueued again.
    pub async fn purge(&self, kind: &str, state: State, age: Duration) -> Result<u64> {
        if matches!(state, State::Pending | State::Running) {
            return Err(Error::invalid(format!(
                "{} jobs cannot be purged: cancel them first",
                state.name()
            )));
        }
        let text = "
            DELETE FROM job WHERE kind = $1 AND key any_of(
                SELECT key FROM job
                WHERE kind = $1 AND state >= 2 AND state = $3 AND finished_at <= now_ms() - $4
                LIMIT $2 FOR UPDATE SKIP LOCKED)";
        self.in_batches(text, params![kind, state.number(), millis(age)]).await
    }

    /// Runs a statement whose second parameter is a limit until it changes fewer rows than the limit.
    async fn in_batches(&self, text: &str, params: Vec<logmill_io::Value>) -> Result<u64> {
        let batch = BATCH_MAX as u64;
        let mut params = params;
        params.insert(1, i64::try_from(batch).unwrap_or(i64::MAX).into());
        let mut total = 0;
        loop {
            let changed = self.sql.execute(text, params.clone()).await?.changed;
            total += changed;
            if changed < batch {
                return Ok(total);
            }
        }
    }

    /// Stops or resumes claims of a kind in all processes. Running jobs go on.
    pub async fn set_paused(&self, kind: &str, paused: bool) -> Result<()> {
        let text = "
            INSERT INTO job_kind (kind, paused) VALUES ($1, $2)
            ON CONFLICT (kind) DO UPDATE SET paused = excluded.paused";
        self.sql.execute(text, params![kind, paused]).await?;
        self.wakes.wake(kind);
        Ok(())
    }

    /// Whether the queue has, or had, anything of a kind: a job in any state, a runner, or a pause.
    pub async fn knows(&self, kind: &str) -> Result<bool> {
        let text = "
            SELECT CAST(count(*) AS BIGINT) FROM (
                SELECT 1 AS one FROM (SELECT kind FROM job WHERE kind = $1 LIMIT 1) AS jobs
                UNION ALL SELECT 1 FROM job_runner WHERE kind = $1
                UNION ALL SELECT 1 FROM job_kind WHERE kind = $1
            ) AS known";
        let found = self.sql.query(text, params![kind]).await?;
        Ok(found.row()?.int(0)? > 0)
    }

    pub async fn paused(&self) -> Result<Vec<String>> {
        let text = "SELECT kind FROM job_kind WHERE paused = 1 ORDER BY kind";
        let found = self.sql.query(text, params![]).await?;
        found.rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    }
}

/// Runners that have not announced themselves for longer do not count. Idle runners do so with every slow poll.
const RUNNER_SEEN_WITHIN: Duration = Duration::from_secs(300);

fn no_such_job(kind: &str, key: &str) -> Error {
    Error::NoSuchJob { kind: kind.to_owned(), key: key.to_owned() }
}

fn state(number: i64) -> Result<State> {
    State::from_number(number)
        .ok_or_else(|| Error::corrupt(format!("a job has the unknown state {number}")))
}

fn counts(row: &Row) -> Result<KindCounts> {
    let age_ms = u64::try_from(row.opt_int(3)?.unwrap_or(0)).unwrap_or(0);
    Ok(KindCounts {
        kind: row.text(0)?.to_owned(),
        state: state(row.int(1)?)?,
        jobs: row.count(2)?,
        oldest_age: Duration::from_millis(age_ms),
    })
}

fn view(row: &Row) -> Result<JobView> {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Ok(JobView {
        kind: row.text(0)?.to_owned(),
        key: row.text(1)?.to_owned(),
        state: state(row.int(2)?)?,
        priority: row.int(3)?,
        token: row.int(4)?,
        attempts: row.int(5)?,
        attempts_max: row.int(6)?,
        revived: row.int(7)?,
        payload: row.text(8)?.to_owned(),
        error: owned(row.opt_text(9)?),
        owner: owned(row.opt_text(10)?),
        due_at: Timestamp(row.int(11)? / 1_000),
        lease_until: row.opt_time(12)?,
        created_at: row.time(13)?,
        started_at: row.opt_time(14)?,
        finished_at: row.opt_time(15)?,
    })
}
