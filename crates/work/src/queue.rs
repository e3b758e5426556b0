//! `Queue`: jobs in SQL.
//!
//! Every transition of [`crate::job`] is one statement here, for one job or for many; [`Claimer`] completes and
//! claims in one transaction, so that a turn costs one commit. Functions whose names end in `_in` run in the
//! caller's transaction: a handler can complete its job in the transaction that writes its results.
//!
//! Guarantees:
//! - Enqueueing is idempotent by (kind, key).
//! - A job is held by at most one claim; heartbeat, complete, fail and release under an older token change
//!   nothing and return `Fenced`.
//! - Within a kind, higher priority goes first, then the older job.
//! - Times are the database's.
//!
//! Leaves to others: running jobs ([`crate::Runner`]) and deciding when to poll (the queue only sends
//! wake-ups).

use std::borrow::Cow;
use std::time::Duration;

use logmill_io::sql::{Bulk, ColumnType, Execute, Migration, Migrations, Wakes};
use logmill_io::{Sql, Timestamp, Tx, millis, params};

use crate::error::{Error, Result};
use crate::job::State;

mod admin;
mod claimer;
mod held_claims;
mod reclaim;

pub use admin::{JobView, KindCounts, LIST_MAX, QueuePosition};
pub use claimer::{ClaimOutcome, Claimer};
pub use reclaim::{AT_ONCE_ATTEMPTS_MAX, Reclaimer};

/// Maximum length of a job's kind, and of its key.
pub const KEY_BYTES_MAX: usize = 512;
/// Maximum size of a payload. Store larger data in a blob, with its name in the payload.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longer error texts are cut.
pub const ERROR_BYTES_MAX: usize = 4_096;
/// Maximum number of jobs in one call.
pub const BATCH_MAX: usize = 10_000;

pub static MIGRATIONS: Migrations = Migrations {
    component: "work",
    list: &[
        Migration {
            name: "jobs",
            // State numbers are those of `job::State`. `due_us` is in microseconds, so that the jobs of one
            // bulk keep their order.
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
            // Jobs change often: vacuum after a number of changes, not after a share of the table.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Selects the handler.
    pub kind: String,
    /// Unique within the kind.
    pub key: String,
    /// Input of the handler, as JSON text.
    pub payload: String,
    /// Higher goes first.
    pub priority: i32,
    /// Claims after which a failure makes it a dead letter.
    pub attempts_max: u32,
    /// Time from now until it is due.
    pub delay: Duration,
}

impl NewJob {
    /// A job that is due now, with priority 0 and ten attempts.
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
        // PostgreSQL cannot store a NUL in text, so neither engine may.
        let plain = |text: &str| !text.contains('\0');
        let (kind, key, payload) = (&self.kind, &self.key, &self.payload);
        if !name_fits(kind) || !name_fits(key) || !plain(kind) || !plain(key) {
            return Err(Error::invalid(format!(
                "the job {kind:?}/{key:?}: kind and key need 1 to {KEY_BYTES_MAX} bytes without NUL"
            )));
        }
        if payload.len() > PAYLOAD_BYTES_MAX || !plain(payload) {
            return Err(Error::invalid(format!(
                "the job {kind}/{key} has a payload of {} bytes: at most {PAYLOAD_BYTES_MAX} are \
                 allowed, without NUL",
                payload.len()
            )));
        }
        if self.attempts_max == 0 || i32::try_from(self.attempts_max).is_err() {
            return Err(Error::invalid(format!(
                "the job {kind}/{key} may be tried {} times: allow at least one attempt",
                self.attempts_max
            )));
        }
        Ok(())
    }
}

/// What enqueueing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    Created,
    /// The job was dead, cancelled or waiting for a retry, and has become due again.
    Revived,
    /// The job exists in this state and was left unchanged.
    Exists(State),
}

/// A job that the caller holds until its lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub kind: String,
    pub key: String,
    /// Identifies the claim; stale once the job is claimed again.
    pub token: i64,
    /// Number of this attempt, from 1.
    pub attempt: i64,
    /// Input of the handler, as JSON text.
    pub payload: String,
}

impl Claim {
    fn fenced(&self) -> Error {
        Error::Fenced { kind: self.kind.clone(), key: self.key.clone(), token: self.token }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedClaim {
    pub claim: Claim,
    pub error: String,
    /// Delay before the next attempt; `None` to give up.
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
    /// Opens the queue of a database; creates its tables if they do not exist.
    pub async fn open(sql: Sql) -> Result<Self> {
        sql.migrate(&MIGRATIONS).await?;
        let wakes = Wakes::over(&sql, "logmill_work").await?;
        Ok(Self { sql, wakes })
    }

    /// Opens the queue to read only: refuses tables of another version and changes nothing.
    pub async fn open_read_only(sql: Sql) -> Result<Self> {
        sql.expect_migrated(&MIGRATIONS).await?;
        let wakes = Wakes::over(&sql, "logmill_work").await?;
        Ok(Self { sql, wakes })
    }

    /// The same queue through another handle to its database, for tests that inject faults.
    #[must_use]
    pub fn through(&self, sql: Sql) -> Self {
        Self { sql, wakes: self.wakes.clone() }
    }

    /// The same queue; its writes take turns with those of other lanes ([`Sql::in_lane`]).
    #[must_use]
    pub fn in_lane(&self, lane: u64) -> Self {
        self.through(self.sql.in_lane(lane))
    }

    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    /// Wake-ups of this queue; the topic is the kind.
    pub fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// Enqueues one job and wakes the runners of its kind.
    pub async fn enqueue(&self, job: &NewJob) -> Result<EnqueueResult> {
        let enqueued = self.enqueue_in(&self.sql, job).await?;
        self.wakes.wake(&job.kind);
        Ok(enqueued)
    }

    /// Enqueues one job in the caller's transaction. The caller must call [`Wakes::wake`] after the commit.
    pub async fn enqueue_in(&self, on: &impl Execute, job: &NewJob) -> Result<EnqueueResult> {
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
            return Ok(if created { EnqueueResult::Created } else { EnqueueResult::Revived });
        }
        let text = "SELECT state FROM job WHERE kind = $1 AND key = $2";
        let found = on.execute(text, params![job.kind.as_str(), job.key.as_str()]).await?;
        // A job that was purged between the two statements was finished.
        let state = found.rows.first().map(|row| row.int(0)).transpose()?;
        Ok(EnqueueResult::Exists(state.and_then(State::from_number).unwrap_or(State::Done)))
    }

    /// Enqueues many jobs in one transaction; returns how many are new or revived. Keys must be distinct.
    pub async fn enqueue_many(&self, jobs: &[NewJob]) -> Result<u64> {
        let changed =
            self.sql.write(|tx| async move { self.enqueue_many_in(&tx, jobs).await }).await?;
        let mut kinds: Vec<&str> = jobs.iter().map(|job| job.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.iter().for_each(|kind| self.wakes.wake(kind));
        Ok(changed)
    }

    /// Enqueues many jobs in the caller's transaction. The caller must call [`Wakes::wake`] after the commit.
    pub async fn enqueue_many_in(&self, tx: &Tx, jobs: &[NewJob]) -> Result<u64> {
        within_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::validate)?;
        let now = tx.execute("SELECT now_ms()", params![]).await?.row()?.time(0)?;
        // One microsecond apart and all due by now, so that they run in the given order.
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

    /// Claims up to `most` due jobs of a kind for `lease`. Callers that claim repeatedly should keep a
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

    /// Returns the database's time, and the next time at which a job of the kind comes due or a lease ends.
    pub async fn next_due(&self, kind: &str) -> Result<(Timestamp, Option<Timestamp>)> {
        // Reads the first job of every priority from the index instead of all pending jobs.
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
        return Err(Error::invalid(format!(
            "{jobs} jobs in one call: at most {BATCH_MAX} are allowed"
        )));
    }
    Ok(())
}
