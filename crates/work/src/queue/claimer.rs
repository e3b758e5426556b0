//! `Claimer`: claims that stay fast while dead rows cannot be vacuumed.
//!
//! PostgreSQL keeps old row versions as long as any transaction is older than they are. A claim that starts at
//! the oldest due time scans the old versions of all jobs done since, so a single open transaction makes claims
//! slower with every job. But jobs come due in order of time. So a claimer remembers for each priority the due
//! time that it has reached, and asks for later ones: given kind, priority and due time, the index goes
//! straight there. From time to time it forgets these floors and does a full look, less often the more a full
//! look costs.
//!
//! Workers usually complete one job and claim the next: [`Claimer::complete_and_claim`] does both in one
//! transaction and one round trip, with one commit instead of two (decision 0006).
//!
//! Guarantees: no due job is overlooked for longer than [`FULL_LOOK_MAX`], and none at all if no other job is
//! due. A stale token completes nothing, is reported, and does not prevent the claim. Leaves to others:
//! heartbeats and the rest of a job's life cycle.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use logmill_io::{Value, millis, params};

use super::{Claim, Queue, held_claims, within_batch};
use crate::error::Result;

/// How long after its due time a job may still appear below the floor, because transactions commit out of
/// order.
const SLACK: Duration = Duration::from_millis(100);
/// Full looks take at most one part in this of the time.
const FULL_LOOK_SHARE: u32 = 10;
/// Maximum time between two full looks.
const FULL_LOOK_MAX: Duration = Duration::from_secs(2);

/// Result of [`Claimer::complete_and_claim`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimOutcome {
    /// Claims that could not be completed, because they are no longer held under their tokens.
    pub fenced: Vec<Claim>,
    /// Jobs that the caller now holds.
    pub claims: Vec<Claim>,
}

/// Claims that are not completed yet, with the statement that completes them.
type PendingCompletion<'a> = Option<(&'a [Claim], (&'static str, Vec<Value>))>;

#[derive(Debug)]
pub struct Claimer {
    queue: Queue,
    kind: String,
    owner: String,
    lease: Duration,
    /// For each priority, highest first, the due time at which claims start.
    floors: BTreeMap<Reverse<i64>, i64>,
    /// When to do the next full look, on the monotonic clock.
    full_look_at: Duration,
}

impl Claimer {
    pub fn new(queue: Queue, kind: &str, owner: &str, lease: Duration) -> Self {
        let (kind, owner) = (kind.to_owned(), owner.to_owned());
        Self { queue, kind, owner, lease, floors: BTreeMap::new(), full_look_at: Duration::ZERO }
    }

    /// Claims up to `most` due jobs, higher priority first, then older.
    pub async fn claim(&mut self, most: usize) -> Result<Vec<Claim>> {
        Ok(self.complete_and_claim(&[], most).await?.claims)
    }

    /// Completes jobs of this kind and claims up to `most` others in one transaction. After an error nothing
    /// has happened, or the commit is in doubt; completing the same jobs again is harmless.
    pub async fn complete_and_claim(
        &mut self,
        done: &[Claim],
        most: usize,
    ) -> Result<ClaimOutcome> {
        within_batch(most)?;
        let mut outcome = ClaimOutcome::default();
        let mut open = held_claims::complete_statement(done)?.map(|statement| (done, statement));
        match self.look(&mut open, most, &mut outcome).await {
            // An error of a later look must not lose the result of the first transaction; the next call meets
            // the error again.
            Err(error) if outcome.claims.is_empty() && (done.is_empty() || open.is_some()) => {
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(kind = self.kind, error = error.chain(), "stopped claiming early");
            }
            Ok(()) => {}
        }
        if open.is_some() {
            outcome.fenced = self.queue.complete_many(done).await?;
        }
        Ok(outcome)
    }

    /// Claims jobs, and completes the open ones along with the first claiming statement.
    async fn look(
        &mut self,
        open: &mut PendingCompletion<'_>,
        most: usize,
        outcome: &mut ClaimOutcome,
    ) -> Result<()> {
        if most == 0 {
            return Ok(());
        }
        let started = self.queue.sql.clock().monotonic();
        if started < self.full_look_at {
            self.claim_above_floors(open, most, outcome).await?;
            if !outcome.claims.is_empty() {
                return Ok(());
            }
        }
        self.forget_floors().await?;
        self.claim_above_floors(open, most, outcome).await?;
        let ended = self.queue.sql.clock().monotonic();
        self.full_look_at =
            ended + (ended - started).saturating_mul(FULL_LOOK_SHARE).min(FULL_LOOK_MAX);
        Ok(())
    }

    async fn forget_floors(&mut self) -> Result<()> {
        // Steps from one priority to the next by the index instead of scanning all jobs.
        let text = "
            WITH RECURSIVE level (priority) AS (
                SELECT max(priority) FROM job WHERE kind = $1 AND state = 0
                UNION ALL
                SELECT (SELECT max(priority) FROM job
                    WHERE kind = $1 AND state = 0 AND priority < level.priority)
                FROM level WHERE level.priority IS NOT NULL)
            SELECT priority FROM level WHERE priority IS NOT NULL";
        let answer = self.queue.sql.query(text, params![self.kind.as_str()]).await?;
        let priorities = answer.rows.iter().map(|row| Ok((Reverse(row.int(0)?), 0)));
        self.floors = priorities.collect::<Result<_>>()?;
        Ok(())
    }

    async fn claim_above_floors(
        &mut self,
        open: &mut PendingCompletion<'_>,
        most: usize,
        outcome: &mut ClaimOutcome,
    ) -> Result<()> {
        let levels: Vec<(Reverse<i64>, i64)> =
            self.floors.iter().map(|(level, floor)| (*level, *floor)).collect();
        for (level, floor) in levels {
            let left = most - outcome.claims.len();
            let floor = self.claim_level(open, level.0, floor, left, outcome).await?;
            self.floors.insert(level, floor);
            if outcome.claims.len() >= most {
                break;
            }
        }
        Ok(())
    }

    /// Claims jobs of one priority; returns the new floor.
    async fn claim_level(
        &self,
        open: &mut PendingCompletion<'_>,
        priority: i64,
        floor: i64,
        most: usize,
        outcome: &mut ClaimOutcome,
    ) -> Result<i64> {
        // For a paused kind no job counts as due. If jobs were due but not taken, SQLite would scan all of
        // them.
        let text = "
            UPDATE job SET state = 1, token = token + 1, attempts = attempts + 1,
                lease_until = now_ms() + $6, started_at = now_ms(), owner = $5
            WHERE kind = $1 AND key any_of(
                SELECT key FROM job
                WHERE kind = $1 AND state = 0 AND priority = $2
                    AND due_us >= $3 AND due_us <= CASE
                        WHEN EXISTS (SELECT 1 FROM job_kind WHERE kind = $1 AND paused = 1)
                        THEN -1 ELSE now_ms() * 1000 END
                ORDER BY due_us, seq LIMIT $4 FOR UPDATE SKIP LOCKED)
            RETURNING key, token, attempts, payload, due_us, seq, started_at";
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let params = params![
            self.kind.as_str(),
            priority,
            floor,
            limit,
            self.owner.as_str(),
            millis(self.lease),
        ];
        let mut statements = Vec::with_capacity(2);
        statements.extend(open.as_ref().map(|(_, complete)| complete.clone()));
        statements.push((text, params));
        let answers = self.queue.sql.execute_together(statements).await?;
        if let (Some((done, _)), [completed, _]) = (open.take(), &*answers) {
            outcome.fenced = held_claims::untouched(done, completed)?;
        }
        let rows = answers.last().map_or(&[][..], |claimed| &claimed.rows);
        let mut claimed = Vec::with_capacity(rows.len());
        let mut new_floor = floor;
        for row in rows {
            let (due_us, now_ms) = (row.int(4)?, row.int(6)?);
            new_floor = new_floor.max(due_us.min((now_ms - millis(SLACK)) * 1_000));
            let claim = Claim {
                kind: self.kind.clone(),
                key: row.text(0)?.to_owned(),
                token: row.int(1)?,
                attempt: row.int(2)?,
                payload: row.text(3)?.to_owned(),
            };
            claimed.push(((due_us, row.int(5)?), claim));
        }
        // Engines return updated rows in the order in which they found them.
        claimed.sort_by_key(|(order, _)| *order);
        outcome.claims.extend(claimed.into_iter().map(|(_, claim)| claim));
        Ok(new_floor)
    }
}
