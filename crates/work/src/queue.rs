//! `Queue`: jobs in SQL.
//!
//! Every transition of [`crate::job`] is one statement here, for one job or for many; [`Claimer`] completes and
//! claims in one transaction, for one commit a turn. Statements that belong to a larger transaction take it as their
//! first argument: a handler can complete its job in the very transaction that writes its results.
//!
//! Guarantees:
//! - Enqueueing is idempotent by (kind, key).
//! - A job is held by at most one claim; heartbeat, complete, fail and release under an older token change nothing
//!   and say `Fenced`.
//! - Within a kind, higher priority first, then age.
//! - Times are the database's.
//!
//! Leaves to others: running jobs ([`crate::Runner`]) and deciding when to look (the queue only sends wake-ups).

use std::borrow::Cow;
use std::time::Duration;

use logmill_io::sql::{Bulk, ColumnType, Execute, Migration, Migrations, Wakes};
use logmill_io::{Sql, Timestamp, Tx, millis, params};

use crate::error::{Error, Result};
use crate::job::State;

mod admin;
mod claimer;
mod held;
mod reclaim;

pub use admin::{JobView, KindCounts, LIST_MAX, Place};
pub use claimer::{Claimer, Turn};
pub use reclaim::{AT_ONCE_ATTEMPTS_MAX, Reclaimer};

/// The longest key of a job.
pub const KEY_BYTES_MAX: usize = 512;
/// The largest payload; what is larger belongs in a blob, with its name in the payload.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// The longest error text that is kept.
pub const ERROR_BYTES_MAX: usize = 4_096;
/// The most jobs of one call.
pub const BATCH_MAX: usize = 10_000;

/// The tables of the queue.
pub static MIGRATIONS: Migrations = Migrations {
    component: "work",
    list: &[
        Migration {
            name: "jobs",
            // State numbers are those of `job::State`. `due_us` has microseconds, so that the jobs of one bulk
            // have an order of their own.
            statements: "
                CREATE TABLE job (
                    seq {seq},
                    kind {name} NOT NULL,
                    key {name} NOT NULL,
                    state INTEGER NOT NULL,
                    priority INTEGER NOT NULL,
                    due_us BIGINT NOT NULL,
                    lease_until BIGINT,
                    token BIGINT NOT NULL DEFAULT 0,
                    attempts INTEGER NOT NULL DEFAULT 0,
                    attempts_max INTEGER NOT NULL,
                    revived INTEGER NOT NULL DEFAULT 0,
                    payload TEXT NOT NULL,
                    error TEXT,
                    owner TEXT,
                    created_at BIGINT NOT NULL,
                    started_at BIGINT,
                    finished_at BIGINT,
                    UNIQUE (kind, key)
                );
                CREATE INDEX job_ready ON job (kind, priority DESC, due_us, seq) WHERE state = 0;
                CREATE INDEX job_running ON job (kind, lease_until) WHERE state = 1;
                CREATE INDEX job_finished ON job (kind, state, finished_at) WHERE state >= 2;
                CREATE TABLE job_kind (
                    kind {name} NOT NULL PRIMARY KEY,
                    paused INTEGER NOT NULL
                );
                CREATE TABLE job_runner (
                    owner {name} NOT NULL,
                    kind {name} NOT NULL,
                    slots INTEGER NOT NULL,
                    job_ms BIGINT NOT NULL,
                    seen_at BIGINT NOT NULL,
                    PRIMARY KEY (owner, kind)
                );",
            // Jobs change often: vacuum by changes, not by share of the table.
            postgres_only: "
                ALTER TABLE job SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
                    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);",
        },
        Migration {
            name: "coverage_and_schedules",
            statements: "
                CREATE TABLE coverage (
                    chain_id BIGINT NOT NULL,
                    consumer {name} NOT NULL,
                    version BIGINT NOT NULL,
                    done {bytes} NOT NULL,
                    PRIMARY KEY (chain_id, consumer, version)
                );
                CREATE TABLE coverage_claim (
                    chain_id BIGINT NOT NULL,
                    consumer {name} NOT NULL,
                    version BIGINT NOT NULL,
                    start_height BIGINT NOT NULL,
                    end_height BIGINT NOT NULL,
                    job_kind {name} NOT NULL,
                    job_key {name} NOT NULL,
                    PRIMARY KEY (chain_id, consumer, version, start_height)
                );
                CREATE TABLE cron (
                    name {name} NOT NULL PRIMARY KEY,
                    passed_at BIGINT NOT NULL
                );",
            postgres_only: "",
        },
    ],
};

/// A job to be enqueued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// What it is for; one kind is run by one handler.
    pub kind: String,
    /// What makes it this job and no other.
    pub key: String,
    /// What the handler needs, as JSON text.
    pub payload: String,
    /// Higher goes first.
    pub priority: i32,
    /// How many claims may count before it is a dead letter.
    pub attempts_max: u32,
    /// How long from now until it is due.
    pub delay: Duration,
}

impl NewJob {
    /// A job that is due at once, of usual priority, with ten attempts.
    pub fn new(
        kind: impl Into<String>,
        key: impl Into<String>,
        payload: impl Into<String>,
    ) -> Self {
        Self {
            kind: kind.into(),
            key: key.into(),
            payload: payload.into(),
            priority: 0,
            attempts_max: 10,
            delay: Duration::ZERO,
        }
    }

    fn validate(&self) -> Result<()> {
        let name_fits = |name: &str| !name.is_empty() && name.len() <= KEY_BYTES_MAX;
        // PostgreSQL can not store a NUL in text, so neither engine may.
        let plain = |text: &str| !text.contains('\0');
        let (kind, key, payload) = (&self.kind, &self.key, &self.payload);
        if !name_fits(kind) || !name_fits(key) || !plain(kind) || !plain(key) {
            return Err(Error::invalid(format!(
                "the job {kind:?}/{key:?}: kind and key have 1 to {KEY_BYTES_MAX} bytes, none of them zero"
            )));
        }
        if payload.len() > PAYLOAD_BYTES_MAX || !plain(payload) {
            return Err(Error::invalid(format!(
                "the job {kind}/{key} has a payload of {} bytes: at most {PAYLOAD_BYTES_MAX}, none of them \
                 zero",
                payload.len()
            )));
        }
        if self.attempts_max == 0 || i32::try_from(self.attempts_max).is_err() {
            return Err(Error::invalid(format!(
                "the job {kind}/{key} may be tried {} times: at least once",
                self.attempts_max
            )));
        }
        Ok(())
    }
}

/// What became of an enqueued job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is new.
    Created,
    /// It was dead, cancelled or waiting after a failure, and is due again.
    Revived,
    /// It exists, in this state, and was left alone.
    Exists(State),
}

/// A job that the caller holds until its lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it is for.
    pub kind: String,
    /// What makes it this job and no other.
    pub key: String,
    /// What proves the holding.
    pub token: i64,
    /// The number of this attempt, from 1.
    pub attempt: i64,
    /// What the handler needs, as JSON text.
    pub payload: String,
}

impl Claim {
    fn fenced(&self) -> Error {
        Error::Fenced { kind: self.kind.clone(), key: self.key.clone(), token: self.token }
    }
}

/// A failed attempt, to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedClaim {
    /// The attempt.
    pub claim: Claim,
    /// What went wrong.
    pub error: String,
    /// How long to wait for the next attempt; none to give up.
    pub retry_after: Option<Duration>,
}

/// Jobs in a database. Clones are handles to the same queue.
#[derive(Clone, Debug)]
pub struct Queue {
    sql: Sql,
    wakes: Wakes,
}

const CONFLICT: &str = "DO UPDATE SET
        state = 0,
        attempts = CASE WHEN job.state = 0 THEN job.attempts ELSE 0 END,
        revived = job.revived + 1,
        due_us = excluded.due_us,
        priority = excluded.priority,
        attempts_max = excluded.attempts_max,
        payload = excluded.payload,
        finished_at = NULL
    WHERE job.state >= 3
        OR (job.state = 0 AND job.attempts > 0 AND job.due_us > excluded.due_us)";

const ENQUEUE_MANY: Bulk = Bulk {
    table: Cow::Borrowed("job"),
    columns: Cow::Borrowed(&[
        ("kind", ColumnType::Text),
        ("key", ColumnType::Text),
        ("state", ColumnType::Int),
        ("priority", ColumnType::Int),
        ("due_us", ColumnType::Int),
        ("attempts_max", ColumnType::Int),
        ("payload", ColumnType::Text),
        ("created_at", ColumnType::Int),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(CONFLICT),
};

impl Queue {
    /// The queue of a database; makes its tables if need be.
    pub async fn open(sql: Sql) -> Result<Self> {
        sql.migrate(&MIGRATIONS).await?;
        let wakes = Wakes::over(&sql, "logmill_work").await?;
        Ok(Self { sql, wakes })
    }

    /// The queue of a database that is only looked at: refuses tables that are not of this version, changes nothing.
    pub async fn open_read_only(sql: Sql) -> Result<Self> {
        sql.expect_migrated(&MIGRATIONS).await?;
        let wakes = Wakes::over(&sql, "logmill_work").await?;
        Ok(Self { sql, wakes })
    }

    /// The same queue through another handle to its database; for tests that put faults before it.
    #[must_use]
    pub fn through(&self, sql: Sql) -> Self {
        Self { sql, wakes: self.wakes.clone() }
    }

    /// The database.
    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    /// The wake-ups of this queue; the topic is the kind.
    pub fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// Enqueues one job and wakes whoever runs its kind.
    pub async fn enqueue(&self, job: &NewJob) -> Result<Enqueued> {
        let enqueued = self.enqueue_in(&self.sql, job).await?;
        self.wakes.wake(&job.kind);
        Ok(enqueued)
    }

    /// Enqueues one job in a transaction of the caller's, who calls [`Wakes::wake`] after the commit.
    pub async fn enqueue_in(&self, on: &impl Execute, job: &NewJob) -> Result<Enqueued> {
        job.validate()?;
        let text = format!(
            "INSERT INTO job (kind, key, state, priority, due_us, attempts_max, payload, created_at)
             VALUES ($1, $2, 0, $3, (now_ms() + $4) * 1000, $5, $6, now_ms())
             ON CONFLICT (kind, key) {CONFLICT} RETURNING revived"
        );
        let params = params![
            job.kind.as_str(),
            job.key.as_str(),
            job.priority,
            millis(job.delay),
            job.attempts_max,
            job.payload.as_str(),
        ];
        let answer = on.execute(&text, params).await?;
        if let Some(row) = answer.rows.first() {
            let created = row.int(0)? == 0;
            return Ok(if created { Enqueued::Created } else { Enqueued::Revived });
        }
        let text = "SELECT state FROM job WHERE kind = $1 AND key = $2";
        let found = on.execute(text, params![job.kind.as_str(), job.key.as_str()]).await?;
        // It may have been purged between the two statements; then it was done with.
        let state = found.rows.first().map(|row| row.int(0)).transpose()?;
        Ok(Enqueued::Exists(state.and_then(State::from_number).unwrap_or(State::Done)))
    }

    /// Enqueues many jobs in one transaction; gives how many are new or came back. No key may stand twice.
    pub async fn enqueue_many(&self, jobs: &[NewJob]) -> Result<u64> {
        let changed =
            self.sql.write(|tx| async move { Ok(self.enqueue_many_in(&tx, jobs).await?) }).await?;
        let mut kinds: Vec<&str> = jobs.iter().map(|job| job.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.iter().for_each(|kind| self.wakes.wake(kind));
        Ok(changed)
    }

    /// Enqueues many jobs in a transaction of the caller's, who calls [`Wakes::wake`] after the commit.
    pub async fn enqueue_many_in(&self, tx: &Tx, jobs: &[NewJob]) -> Result<u64> {
        within_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::validate)?;
        let now = tx.execute("SELECT now_ms()", params![]).await?.row()?.time(0)?;
        // One microsecond apart and all due by now, so that they go in the order given.
        let first_us = now.millis() * 1_000 - i64::try_from(jobs.len()).unwrap_or(0);
        let rows = (first_us..).zip(jobs).map(|(due_us, job)| {
            params![
                job.kind.as_str(),
                job.key.as_str(),
                State::Pending.number(),
                job.priority,
                due_us + millis(job.delay) * 1_000,
                job.attempts_max,
                job.payload.as_str(),
                now,
            ]
        });
        Ok(tx.bulk(&ENQUEUE_MANY, rows.collect::<Vec<_>>()).await?)
    }

    /// Claims up to `most` jobs of a kind that are due, for `lease`. Whoever claims again and again keeps a
    /// [`Claimer`].
    pub async fn claim(
        &self,
        kind: &str,
        most: usize,
        lease: Duration,
        owner: &str,
    ) -> Result<Vec<Claim>> {
        Claimer::new(self.clone(), kind, owner, lease).claim(most).await
    }

    /// When there will next be something to do for a kind: a job that comes due, or a lease that ends; as the
    /// database's time now and then.
    pub async fn next_due(&self, kind: &str) -> Result<(Timestamp, Option<Timestamp>)> {
        // The first of every priority, as the index has them, instead of all jobs that wait.
        let text = "
            WITH RECURSIVE level (priority) AS (
                SELECT max(priority) FROM job WHERE kind = $1 AND state = 0
                UNION ALL
                SELECT (SELECT max(priority) FROM job
                    WHERE kind = $1 AND state = 0 AND priority < level.priority)
                FROM level WHERE level.priority IS NOT NULL),
            ready (due_us) AS (
                SELECT (SELECT min(due_us) FROM job
                    WHERE kind = $1 AND state = 0 AND priority = level.priority)
                FROM level WHERE level.priority IS NOT NULL
                    AND NOT EXISTS (SELECT 1 FROM job_kind WHERE kind = $1 AND paused = 1))
            SELECT now_ms(), (SELECT min(due_us) / 1000 FROM ready),
                (SELECT min(lease_until) FROM job WHERE kind = $1 AND state = 1)";
        let answer = self.sql.query(text, params![kind]).await?;
        let row = answer.row()?;
        let due = [row.opt_time(1)?, row.opt_time(2)?].into_iter().flatten().min();
        Ok((row.time(0)?, due))
    }
}

fn within_batch(jobs: usize) -> Result<()> {
    if jobs > BATCH_MAX {
        return Err(Error::invalid(format!("{jobs} jobs in one call: at most {BATCH_MAX}")));
    }
    Ok(())
}
