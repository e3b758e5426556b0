//! What operators and status pages ask of a queue: look, count, cancel, redrive, purge, pause.
//!
//! Guarantees: every change is a transition of [`crate::job`], or removes a finished job. Leaves to others: who
//! may ask.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Row, Timestamp, millis, params};

use super::{BATCH_MAX, Queue};
use crate::error::{Error, Result};
use crate::job::State;

/// The most jobs that one list shows.
pub const LIST_MAX: usize = 1_000;

/// A job as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// What it is for.
    pub kind: String,
    /// What makes it this job and no other.
    pub key: String,
    /// Where it is in its life.
    pub state: State,
    /// Higher goes first.
    pub priority: i64,
    /// The number of its last claim.
    pub token: i64,
    /// How many claims counted.
    pub attempts: i64,
    /// How many may count.
    pub attempts_max: i64,
    /// How often enqueueing it again brought it back.
    pub revived: i64,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// What went wrong last.
    pub error: Option<String>,
    /// Who holds it.
    pub owner: Option<String>,
    /// When it may be, or could be, claimed.
    pub due_at: Timestamp,
    /// When its last lease ends or ended.
    pub lease_until: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it was last claimed.
    pub started_at: Option<Timestamp>,
    /// When it was done, dead or cancelled.
    pub finished_at: Option<Timestamp>,
}

/// How many jobs of a kind are in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindCounts {
    /// The kind.
    pub kind: String,
    /// The state.
    pub state: State,
    /// How many.
    pub jobs: u64,
    /// How long ago the oldest came due (pending), was claimed (running) or finished.
    pub oldest_age: Duration,
}

/// Where a job stands in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Zero while it runs or after it; else one more than the jobs before it, running ones included.
    pub position: u64,
    /// How long until it is done, from measured durations and all running slots; none if nobody runs its kind.
    pub wait: Option<Duration>,
}

const COLUMNS: &str = "kind, key, state, priority, token, attempts, attempts_max, revived, payload,
    error, owner, due_us, lease_until, created_at, started_at, finished_at";

impl Queue {
    /// One job, if it exists.
    pub async fn get(&self, kind: &str, key: &str) -> Result<Option<JobView>> {
        let text = format!("SELECT {COLUMNS} FROM job WHERE kind = $1 AND key = $2");
        let found = self.sql.query(&text, params![kind, key]).await?;
        found.rows.first().map(view).transpose()
    }

    /// Jobs of a kind in a state, in the order of their keys, after the given key; at most [`LIST_MAX`].
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

    /// How many jobs of a kind could be claimed now, counted up to `most`.
    pub async fn due(&self, kind: &str, most: usize) -> Result<usize> {
        let text = "
            SELECT count(*) FROM (
                SELECT 1 FROM job WHERE kind = $1 AND state = 0 AND due_us <= now_ms() * 1000 LIMIT $2
            ) AS due";
        let most = i64::try_from(most.min(BATCH_MAX)).unwrap_or(0);
        let found = self.sql.query(text, params![kind, most]).await?;
        Ok(usize::try_from(found.row()?.count(0)?).unwrap_or(usize::MAX))
    }

    /// How many jobs there are, by kind and state, and how old the oldest is.
    pub async fn counts(&self) -> Result<Vec<KindCounts>> {
        // Three reads of three partial indexes instead of one of the whole table.
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

    /// Where a job stands, and how long it will take.
    pub async fn place(&self, kind: &str, key: &str) -> Result<Place> {
        let job = self.get(kind, key).await?.ok_or_else(|| no_such_job(kind, key))?;
        let (slots, job_time) = self.capacity(kind).await?;
        match job.state {
            State::Pending => {}
            State::Running => return Ok(Place { position: 0, wait: job_time }),
            _ => return Ok(Place { position: 0, wait: Some(Duration::ZERO) }),
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
        Ok(Place { position, wait })
    }

    /// The slots that all runners have for a kind, and how long a job takes them.
    async fn capacity(&self, kind: &str) -> Result<(u64, Option<Duration>)> {
        let text = "
            SELECT CAST(COALESCE(sum(slots), 0) AS BIGINT),
                CAST(COALESCE(sum(job_ms * slots), 0) AS BIGINT)
            FROM job_runner WHERE kind = $1 AND seen_at > now_ms() - $2 AND seen_at < now_ms() + $2";
        let found = self.sql.query(text, params![kind, millis(RUNNER_SEEN_WITHIN)]).await?;
        let (slots, weighted_ms) = (found.row()?.count(0)?, found.row()?.count(1)?);
        Ok((slots, weighted_ms.checked_div(slots).map(Duration::from_millis)))
    }

    /// Says that a runner is there, with so many slots, whose jobs take so long.
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

    /// Says that a runner is gone, and forgets those that never said so.
    pub(crate) async fn retire(&self, owner: &str, kind: &str) -> Result<()> {
        let text = "
            DELETE FROM job_runner
            WHERE (owner = $1 AND kind = $2) OR seen_at < now_ms() - $3 OR seen_at > now_ms() + $3";
        self.sql.execute(text, params![owner, kind, millis(RUNNER_SEEN_WITHIN)]).await?;
        Ok(())
    }

    /// Takes a job that is pending or running out of the queue; whoever runs it is fenced. Gives whether it did.
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

    /// Gives one dead or cancelled job all its attempts again. Gives whether it did.
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

    /// Gives all dead letters of a kind all their attempts again; gives how many there were.
    pub async fn redrive_dead(&self, kind: &str) -> Result<u64> {
        let text = "
            UPDATE job SET state = 0, attempts = 0, due_us = now_ms() * 1000, finished_at = NULL
            WHERE kind = $1 AND key any_of(
                SELECT key FROM job WHERE kind = $1 AND state = 3 LIMIT $2 FOR UPDATE SKIP LOCKED)";
        let changed = self.in_batches(text, params![kind]).await?;
        self.wakes.wake(kind);
        Ok(changed)
    }

    /// Removes the finished jobs of a kind in a state that ended longer ago than `age`; gives how many. This is also
    /// the retention of finished jobs. A removed key can be enqueued anew.
    pub async fn purge(&self, kind: &str, state: State, age: Duration) -> Result<u64> {
        if matches!(state, State::Pending | State::Running) {
            return Err(Error::invalid(format!(
                "{} jobs can not be purged: cancel them first",
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

    /// Runs a statement with a limit as its second parameter until it changes less than that.
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

    /// Stops or resumes claims of a kind, in all processes. Jobs that run go on.
    pub async fn set_paused(&self, kind: &str, paused: bool) -> Result<()> {
        let text = "
            INSERT INTO job_kind (kind, paused) VALUES ($1, $2)
            ON CONFLICT (kind) DO UPDATE SET paused = excluded.paused";
        self.sql.execute(text, params![kind, paused]).await?;
        self.wakes.wake(kind);
        Ok(())
    }

    /// The kinds that are paused.
    pub async fn paused(&self) -> Result<Vec<String>> {
        let text = "SELECT kind FROM job_kind WHERE paused = 1 ORDER BY kind";
        let found = self.sql.query(text, params![]).await?;
        found.rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    }
}

/// A runner that was not heard of for longer does not count. Idle runners announce themselves with their slow poll.
const RUNNER_SEEN_WITHIN: Duration = Duration::from_secs(300);

fn no_such_job(kind: &str, key: &str) -> Error {
    Error::NoSuchJob { kind: kind.to_owned(), key: key.to_owned() }
}

fn state(number: i64) -> Result<State> {
    State::from_number(number).ok_or_else(|| Error::corrupt(format!("a job in state {number}")))
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
