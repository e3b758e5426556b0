//! `Coverage`: the ranges of a chain that a consumer has done, and those that it is working on.
//!
//! One row per (chain, consumer, version) holds the *done* ranges as an interval set; every transaction that
//! changes the coverage locks it first. A *claimed* range is a row with the range and its job. It counts as
//! long as the job exists and is not done.
//!
//! Guarantees:
//! - [`Coverage::cover`] runs in the transaction that writes the rows of the range, and returns only the parts
//!   that were not done before: two workers that both saw a range as missing cannot both add it.
//! - [`Coverage::claim_next`] creates the claim of a range and its job in one transaction: no range is claimed
//!   without a job that will do it, and no two claims overlap.
//! - A range is missing, and will be claimed again, if it is not done and has no job that is pending, running,
//!   dead or cancelled. So purging a job makes its range missing.
//!
//! Leaves to others: what doing a range means.

use logmill_io::sql::Execute;
use logmill_io::{Tx, Value, params};

use crate::error::{Error, Result};
use crate::intervals::{Heights, IntervalSet, SearchOrder};
use crate::job::State;
use crate::queue::{EnqueueResult, NewJob, Queue};

/// Identifies one coverage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    pub chain_id: u64,
    /// The component that does the ranges, such as a processor or an ingester.
    pub consumer: String,
    /// A consumer whose version changes starts with an empty coverage.
    pub version: u32,
}

impl Scope {
    fn params(&self) -> Result<Vec<Value>> {
        let chain_id = i64::try_from(self.chain_id);
        let chain_id = chain_id
            .map_err(|_| Error::invalid(format!("the chain id {} is too large", self.chain_id)))?;
        Ok(params![chain_id, self.consumer.as_str(), self.version])
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Ranges whose rows are written.
    pub done: IntervalSet,
    /// Ranges whose jobs exist and are not done.
    pub claimed: IntervalSet,
}

#[derive(Clone, Debug)]
pub struct RangeClaim {
    /// Search only here.
    pub within: Heights,
    /// Maximum length of the claimed range.
    pub most: u64,
    pub order: SearchOrder,
}

const SCOPE: &str = "chain_id = $1 AND consumer = $2 AND version = $3";

impl Coverage {
    /// Reads the coverage; it is empty if the scope has no row.
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

    /// Reads the coverage and locks it until the transaction ends. Creates its row if it has none.
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

    /// Marks a range as done and returns the parts that were not done before. The caller writes the rows of
    /// these parts, and of no others, in the same transaction.
    pub async fn cover(tx: &Tx, scope: &Scope, range: &Heights) -> Result<Vec<Heights>> {
        let mut coverage = Self::lock(tx, scope).await?;
        let fresh = coverage.done.insert(range);
        coverage.store_done(tx, scope).await?;
        Ok(fresh)
    }

    /// Marks a range as not done; its rows must be removed in the same transaction.
    pub async fn release(tx: &Tx, scope: &Scope, range: &Heights) -> Result<()> {
        let mut coverage = Self::lock(tx, scope).await?;
        coverage.done.remove(range);
        coverage.store_done(tx, scope).await
    }

    /// Forgets which ranges were done; their rows must be removed in the same transaction.
    pub async fn forget(tx: &Tx, scope: &Scope) -> Result<()> {
        let text = format!("DELETE FROM coverage WHERE {SCOPE}");
        tx.execute(&text, scope.params()?).await?;
        Ok(())
    }

    /// Claims the next missing range and creates its job in one transaction; returns `None` if nothing is
    /// missing. `job` builds the job of a range; its key must contain the scope and the range.
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
                async move { Self::claim_next_in(&tx, queue, scope, claim, job).await }
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
        let Some(range) = taken.next_missing(&claim.within, claim.most, claim.order) else {
            return Ok(None);
        };
        forget_finished(tx, scope).await?;
        let job = job(&range);
        // A done job with this key may be left from before a release. It would never run the range again.
        if queue.enqueue_in(tx, &job).await? == EnqueueResult::Exists(State::Done) {
            return Err(Error::invalid(format!(
                "the range {}..{} is missing, but the job {}/{} that covers it is done: purge that job",
                range.start, range.end, job.kind, job.key
            )));
        }
        insert_claim(tx, scope, &range, &job).await?;
        Ok(Some((range, job.kind)))
    }
}

/// Deletes claims whose jobs are done or gone, before a new job can reuse one of their keys.
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
