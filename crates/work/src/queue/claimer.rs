//! `Claimer`: claims that stay fast while dead rows can not be vacuumed.
//!
//! PostgreSQL keeps old versions of rows for as long as any transaction is older than they are, and a claim
//! that starts at the oldest due time walks over those of all jobs done since; with one transaction left open
//! somewhere it gets slower with every job. But jobs come due in the order of time. So a claimer remembers for
//! each priority how far it has come, and asks the index for what is later: with kind, priority and due time
//! given, the index goes straight there. Every now and then it forgets, and looks at everything; the more that
//! costs, the less often.
//!
//! Whoever works off a queue completes one job and claims the next: [`Claimer::complete_and_claim`] does both in one
//! transaction and one trip, for one commit a turn instead of two; decision 0006 says why.
//!
//! Guarantees: nothing that is due is overlooked for longer than [`FULL_LOOK_MAX`], and nothing at all when there is
//! nothing else to do. A stale token completes nothing, is reported, and does not keep the claim from happening.
//! Leaves to others: heartbeats and the rest of a job's life.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use logmill_io::{Value, millis, params};

use super::{Claim, Queue, held, within_batch};
use crate::error::Result;

/// Enqueueing transactions commit out of order; how long after its due time a job may still appear behind us.
const SLACK: Duration = Duration::from_millis(100);
/// Full looks may take one part in this of the time.
const FULL_LOOK_SHARE: u32 = 10;
/// The longest time between two full looks.
const FULL_LOOK_MAX: Duration = Duration::from_secs(2);

/// What [`Claimer::complete_and_claim`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Those that were to be completed and were not: they are held under another token, or by nobody.
    pub fenced: Vec<Claim>,
    /// The jobs that the caller holds now.
    pub claims: Vec<Claim>,
}

/// What is still to be completed, with the statement that does it.
type Open<'a> = Option<(&'a [Claim], (&'static str, Vec<Value>))>;

/// Claims jobs of one kind for one owner.
#[derive(Debug)]
pub struct Claimer {
    queue: Queue,
    kind: String,
    owner: String,
    lease: Duration,
    /// For each priority, highest first, the due time from which on we look.
    floors: BTreeMap<Reverse<i64>, i64>,
    /// When to look at everything again, on the monotonic clock.
    full_look_at: Duration,
}

impl Claimer {
    /// A claimer that has seen nothing yet.
    pub fn new(queue: Queue, kind: &str, owner: &str, lease: Duration) -> Self {
        let (kind, owner) = (kind.to_owned(), owner.to_owned());
        Self { queue, kind, owner, lease, floors: BTreeMap::new(), full_look_at: Duration::ZERO }
    }

    /// Claims up to `most` jobs that are due, higher priority first, then older.
    pub async fn claim(&mut self, most: usize) -> Result<Vec<Claim>> {
        Ok(self.complete_and_claim(&[], most).await?.claims)
    }

    /// Completes jobs of this kind and claims up to `most` others, as one transaction. After an error nothing has
    /// happened, or it is in doubt; to complete them again does no harm.
    pub async fn complete_and_claim(&mut self, done: &[Claim], most: usize) -> Result<Turn> {
        within_batch(most)?;
        let mut turn = Turn::default();
        let mut open = held::complete_statement(done)?.map(|statement| (done, statement));
        match self.look(&mut open, most, &mut turn).await {
            // What a first transaction did must not be lost with the error of a further look, which will come again.
            Err(error) if turn.claims.is_empty() && (done.is_empty() || open.is_some()) => {
                return Err(error);
            }
            Err(error) => tracing::debug!(kind = self.kind, error = error.chain(), "cut short"),
            Ok(()) => {}
        }
        if open.is_some() {
            turn.fenced = self.queue.complete_many(done).await?;
        }
        Ok(turn)
    }

    /// Claims, and takes what is to be completed along with the first statement that claims.
    async fn look(&mut self, open: &mut Open<'_>, most: usize, turn: &mut Turn) -> Result<()> {
        if most == 0 {
            return Ok(());
        }
        let started = self.queue.sql.clock().monotonic();
        if started < self.full_look_at {
            self.claim_above_floors(open, most, turn).await?;
            if !turn.claims.is_empty() {
                return Ok(());
            }
        }
        self.forget_floors().await?;
        self.claim_above_floors(open, most, turn).await?;
        let ended = self.queue.sql.clock().monotonic();
        self.full_look_at =
            ended + (ended - started).saturating_mul(FULL_LOOK_SHARE).min(FULL_LOOK_MAX);
        Ok(())
    }

    async fn forget_floors(&mut self) -> Result<()> {
        // From one priority to the next by the index, instead of over all jobs.
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
        open: &mut Open<'_>,
        most: usize,
        turn: &mut Turn,
    ) -> Result<()> {
        let levels: Vec<(Reverse<i64>, i64)> =
            self.floors.iter().map(|(level, floor)| (*level, *floor)).collect();
        for (level, floor) in levels {
            let left = most - turn.claims.len();
            let floor = self.claim_level(open, level.0, floor, left, turn).await?;
            self.floors.insert(level, floor);
            if turn.claims.len() >= most {
                break;
            }
        }
        Ok(())
    }

    /// Claims jobs of one priority; gives the new floor.
    async fn claim_level(
        &self,
        open: &mut Open<'_>,
        priority: i64,
        floor: i64,
        most: usize,
        turn: &mut Turn,
    ) -> Result<i64> {
        // Of a kind that is paused nothing is due, rather than something due that is not taken: SQLite would walk over
        // all of it to find out.
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
            turn.fenced = held::untouched(done, completed)?;
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
        // An engine returns updated rows in the order in which it came across them.
        claimed.sort_by_key(|(order, _)| *order);
        turn.claims.extend(claimed.into_iter().map(|(_, claim)| claim));
        Ok(new_floor)
    }
}
