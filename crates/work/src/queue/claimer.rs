//! `Claimer`: claims that stay fast while dead rows can not be vacuumed.
//!
//! PostgreSQL keeps old versions of rows for as long as any transaction is older than they are, and a claim
//! that starts at the oldest due time walks over those of all jobs done since; with one transaction left open
//! somewhere it gets slower with every job. But jobs come due in the order of time. So a claimer remembers for
//! each priority how far it has come, and asks the index for what is later: with kind, priority and due time
//! given, the index goes straight there. Every now and then it forgets, and looks at everything; the more that
//! costs, the less often.
//!
//! Guarantees: nothing that is due is overlooked for longer than [`FULL_LOOK_MAX`], and nothing at all when there is
//! nothing else to do. Leaves to others: heartbeats and the rest of a job's life.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{millis, params};

use super::{Claim, Queue, within_batch};
use crate::error::Result;

/// Enqueueing transactions commit out of order; how long after its due time a job may still appear behind us.
const SLACK: Duration = Duration::from_millis(100);
/// Full looks may take one part in this of the time.
const FULL_LOOK_SHARE: u32 = 10;
/// The longest time between two full looks.
const FULL_LOOK_MAX: Duration = Duration::from_secs(2);

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
        within_batch(most)?;
        if most == 0 {
            return Ok(Vec::new());
        }
        let started = self.queue.sql.clock().monotonic();
        if started < self.full_look_at {
            let claims = self.claim_above_floors(most).await?;
            if !claims.is_empty() {
                return Ok(claims);
            }
        }
        self.forget_floors().await?;
        let claims = self.claim_above_floors(most).await?;
        let ended = self.queue.sql.clock().monotonic();
        self.full_look_at =
            ended + (ended - started).saturating_mul(FULL_LOOK_SHARE).min(FULL_LOOK_MAX);
        Ok(claims)
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

    async fn claim_above_floors(&mut self, most: usize) -> Result<Vec<Claim>> {
        let mut claims = Vec::new();
        let levels: Vec<(Reverse<i64>, i64)> =
            self.floors.iter().map(|(level, floor)| (*level, *floor)).collect();
        for (level, floor) in levels {
            let (claimed, floor) = self.claim_level(level.0, floor, most - claims.len()).await?;
            self.floors.insert(level, floor);
            claims.extend(claimed);
            if claims.len() >= most {
                break;
            }
        }
        Ok(claims)
    }

    /// Claims jobs of one priority; gives them and the new floor.
    async fn claim_level(
        &self,
        priority: i64,
        floor: i64,
        most: usize,
    ) -> Result<(Vec<Claim>, i64)> {
        let text = "
            UPDATE job SET state = 1, token = token + 1, attempts = attempts + 1,
                lease_until = now_ms() + $6, started_at = now_ms(), owner = $5
            WHERE kind = $1 AND key any_of(
                SELECT key FROM job
                WHERE kind = $1 AND state = 0 AND priority = $2
                    AND due_us >= $3 AND due_us <= now_ms() * 1000
                    AND NOT EXISTS (SELECT 1 FROM job_kind WHERE kind = $1 AND paused = 1)
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
        let answer = self.queue.sql.execute(text, params).await?;
        let mut claimed = Vec::with_capacity(answer.rows.len());
        let mut new_floor = floor;
        for row in &answer.rows {
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
        Ok((claimed.into_iter().map(|(_, claim)| claim).collect(), new_floor))
    }
}
