//! `Coverage`: which ranges of a chain a consumer has done, and which are being done.
//!
//! One row per (chain, consumer, version) holds what is *done* as an interval set; every transaction that changes the
//! coverage locks it first. What is *claimed* are rows that name a range and its job, and they count for as
//! long as that job exists and is not done.
//!
//! Guarantees:
//! - [`Coverage::cover`] runs in the transaction that writes the rows it speaks for, and gives only the parts that
//!   were not done before: two workers that both saw a range as missing can not both add it.
//! - [`Coverage::claim_next`] creates the claim of a range and its job in one transaction: no range is claimed
//!   without a job that will do it, and no two claims overlap.
//! - A range that is neither done nor has a job that waits, runs, is dead or was cancelled is missing, and is found
//!   again: purging a job gives its range back.
//!
//! Leaves to others: what doing a range means.

use logmill_io::sql::Execute;
use logmill_io::{Tx, Value, params};

use crate::error::{Error, Result};
use crate::intervals::{From, Heights, IntervalSet};
use crate::job::State;
use crate::queue::{Enqueued, NewJob, Queue};

/// Whose coverage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Of which chain.
    pub chain_id: u64,
    /// Who does the ranges: a processor, an ingester.
    pub consumer: String,
    /// In which version; a changed consumer starts from nothing.
    pub version: u32,
}

impl Scope {
    fn params(&self) -> Result<Vec<Value>> {
        let chain_id = i64::try_from(self.chain_id);
        let chain_id =
            chain_id.map_err(|_| Error::invalid(format!("chain id {}", self.chain_id)))?;
        Ok(params![chain_id, self.consumer.as_str(), self.version])
    }
}

/// What is done and what is being done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Done, with its rows.
    pub done: IntervalSet,
    /// Claimed by jobs that exist and are not done.
    pub claimed: IntervalSet,
}

/// What to claim.
#[derive(Clone, Debug)]
pub struct RangeClaim {
    /// Where to look.
    pub within: Heights,
    /// The longest range.
    pub most: u64,
    /// From which side.
    pub from: From,
}

const SCOPE: &str = "chain_id = $1 AND consumer = $2 AND version = $3";

impl Coverage {
    /// The coverage as it is; what nobody has ever covered is empty.
    pub async fn read(on: &impl Execute, scope: &Scope) -> Result<Self> {
        let text = format!("SELECT done FROM coverage WHERE {SCOPE}");
        let found = on.execute(&text, scope.params()?).await?;
        let done = match found.rows.first() {
            Some(row) => IntervalSet::decode(&row.blob(0)?)?,
            None => IntervalSet::new(),
        };
        let text = format!(
            "SELECT start_height, end_height FROM coverage_claim
             JOIN job ON kind = job_kind AND key = job_key WHERE {SCOPE} AND state <> 2"
        );
        let found = on.execute(&text, scope.params()?).await?;
        let claims = found.rows.iter().map(|row| Ok(row.count(0)?..row.count(1)?));
        Ok(Self { done, claimed: claims.collect::<Result<_>>()? })
    }

    /// The coverage, locked until the transaction ends. The row exists afterwards.
    async fn lock(tx: &Tx, scope: &Scope) -> Result<Self> {
        let mut params = scope.params()?;
        params.push(IntervalSet::new().encode().into());
        let text = "INSERT INTO coverage (chain_id, consumer, version, done)
            VALUES ($1, $2, $3, $4) ON CONFLICT (chain_id, consumer, version) DO NOTHING";
        tx.execute(text, params).await?;
        let text = format!("SELECT 1 FROM coverage WHERE {SCOPE} FOR UPDATE");
        tx.execute(&text, scope.params()?).await?;
        Self::read(tx, scope).await
    }

    async fn store_done(&self, tx: &Tx, scope: &Scope) -> Result<()> {
        let mut params = scope.params()?;
        params.push(self.done.encode().into());
        let text = format!("UPDATE coverage SET done = $4 WHERE {SCOPE}");
        tx.execute(&text, params).await?;
        Ok(())
    }

    /// Marks a range as done; gives the parts that were not, for which the caller writes the rows in the same
    /// transaction, and for no others.
    pub async fn cover(tx: &Tx, scope: &Scope, range: &Heights) -> Result<Vec<Heights>> {
        let mut coverage = Self::lock(tx, scope).await?;
        let fresh = coverage.done.insert(range);
        coverage.store_done(tx, scope).await?;
        Ok(fresh)
    }

    /// Marks a range as not done, because its rows are removed in the same transaction.
    pub async fn release(tx: &Tx, scope: &Scope, range: &Heights) -> Result<()> {
        let mut coverage = Self::lock(tx, scope).await?;
        coverage.done.remove(range);
        coverage.store_done(tx, scope).await
    }

    /// Claims the next missing range and creates its job, together; none if nothing is missing. `job` makes the
    /// job of a range; its key must name scope and range.
    pub async fn claim_next(
        queue: &Queue,
        scope: &Scope,
        claim: &RangeClaim,
        job: impl Fn(&Heights) -> NewJob,
    ) -> Result<Option<Heights>> {
        let claimed = queue
            .sql()
            .write(|tx| {
                let job = &job;
                async move { Ok(Self::claim_next_in(&tx, queue, scope, claim, job).await?) }
            })
            .await?;
        if let Some((range, kind)) = claimed {
            queue.wakes().wake(&kind);
            return Ok(Some(range));
        }
        Ok(None)
    }

    async fn claim_next_in(
        tx: &Tx,
        queue: &Queue,
        scope: &Scope,
        claim: &RangeClaim,
        job: impl Fn(&Heights) -> NewJob,
    ) -> Result<Option<(Heights, String)>> {
        let coverage = Self::lock(tx, scope).await?;
        let mut taken = coverage.done.clone();
        taken.extend(&coverage.claimed);
        let Some(range) = taken.next_missing(&claim.within, claim.most, claim.from) else {
            return Ok(None);
        };
        forget_finished(tx, scope).await?;
        let job = job(&range);
        // A job of this key may be left from before a release: done, so it would never do the range again.
        if queue.enqueue_in(tx, &job).await? == Enqueued::Exists(State::Done) {
            return Err(Error::invalid(format!(
                "the range {}..{} is missing, but the job {}/{} that covers it is done: purge that job",
                range.start, range.end, job.kind, job.key
            )));
        }
        insert_claim(tx, scope, &range, &job).await?;
        Ok(Some((range, job.kind)))
    }
}

/// Forgets the claims whose jobs are done or gone, before a new job can take the place of one of those.
async fn forget_finished(tx: &Tx, scope: &Scope) -> Result<()> {
    let text = format!(
        "DELETE FROM coverage_claim WHERE {SCOPE} AND NOT EXISTS (
             SELECT 1 FROM job WHERE kind = job_kind AND key = job_key AND state <> 2)"
    );
    tx.execute(&text, scope.params()?).await?;
    Ok(())
}

async fn insert_claim(tx: &Tx, scope: &Scope, range: &Heights, job: &NewJob) -> Result<()> {
    let mut params = scope.params()?;
    params.extend(params![height(range.start)?, height(range.end)?]);
    params.extend(params![job.kind.as_str(), job.key.as_str()]);
    let text = "INSERT INTO coverage_claim
            (chain_id, consumer, version, start_height, end_height, job_kind, job_key)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    tx.execute(text, params).await?;
    Ok(())
}

fn height(height: u64) -> Result<i64> {
    i64::try_from(height).map_err(|_| Error::invalid(format!("the height {height} is too high")))
}
