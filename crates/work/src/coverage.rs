//! `Coverage`: which ranges of a chain a consumer has done, and which are being done.
//!
//! One row per (chain, consumer, version) holds two interval sets: what is *done*, and what is *claimed* by jobs that
//! exist. Every transaction that changes it locks the row first.
//!
//! Guarantees:
//! - [`Coverage::cover`] runs in the transaction that writes the rows it speaks for, and gives only the parts that
//!   were not done before: two workers that both saw a range as missing can not both add it.
//! - [`Coverage::claim_next`] creates the claim of a range and its job in one transaction: no range is claimed
//!   without a job that will do it, and no two claims overlap.
//! - A claimed range is done, or has a job, alive or dead; a job that is purged gives its range back through
//!   [`Coverage::release`].
//!
//! Leaves to others: what doing a range means.

use logmill_io::sql::Execute;
use logmill_io::{Row, Tx, Value, params};

use crate::error::{Error, Result};
use crate::intervals::{From, Heights, IntervalSet};
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
    /// Claimed by jobs that exist, and not done.
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

impl Coverage {
    /// The coverage as it is; what nobody has ever covered is empty.
    pub async fn read(on: &impl Execute, scope: &Scope) -> Result<Self> {
        let text = "SELECT done, claimed FROM coverage
            WHERE chain_id = $1 AND consumer = $2 AND version = $3";
        let found = on.execute(text, scope.params()?).await?;
        found.rows.first().map_or(Ok(Self::default()), decode)
    }

    /// The coverage, locked until the transaction ends. The row exists afterwards.
    async fn lock(tx: &Tx, scope: &Scope) -> Result<Self> {
        let empty = IntervalSet::new().encode();
        let mut params = scope.params()?;
        params.extend(params![empty.clone(), empty]);
        let text = "INSERT INTO coverage (chain_id, consumer, version, done, claimed)
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (chain_id, consumer, version) DO NOTHING";
        tx.execute(text, params).await?;
        let text = "SELECT done, claimed FROM coverage
            WHERE chain_id = $1 AND consumer = $2 AND version = $3 FOR UPDATE";
        decode(tx.execute(text, scope.params()?).await?.row()?)
    }

    async fn store(&self, tx: &Tx, scope: &Scope) -> Result<()> {
        let mut params = scope.params()?;
        params.extend(params![self.done.encode(), self.claimed.encode()]);
        let text = "UPDATE coverage SET done = $4, claimed = $5
            WHERE chain_id = $1 AND consumer = $2 AND version = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    /// Marks a range as done; gives the parts that were not, for which the caller writes the rows in the same
    /// transaction, and for no others.
    pub async fn cover(tx: &Tx, scope: &Scope, range: &Heights) -> Result<Vec<Heights>> {
        let mut coverage = Self::lock(tx, scope).await?;
        let fresh = coverage.done.insert(range);
        coverage.claimed.remove(range);
        coverage.store(tx, scope).await?;
        Ok(fresh)
    }

    /// Marks a range as not done and not claimed, because its rows are removed in the same transaction, or because its
    /// job was purged.
    pub async fn release(tx: &Tx, scope: &Scope, range: &Heights) -> Result<()> {
        let mut coverage = Self::lock(tx, scope).await?;
        coverage.done.remove(range);
        coverage.claimed.remove(range);
        coverage.store(tx, scope).await
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
        let mut coverage = Self::lock(tx, scope).await?;
        let mut taken = coverage.done.clone();
        taken.extend(&coverage.claimed);
        let Some(range) = taken.next_missing(&claim.within, claim.most, claim.from) else {
            return Ok(None);
        };
        let job = job(&range);
        // A job of this key may be left from before a release: done, so it would never do the range again.
        if let Enqueued::Exists(state) = queue.enqueue_in(tx, &job).await?
            && state == crate::State::Done
        {
            return Err(Error::invalid(format!(
                "the range {}..{} is missing, but the job {}/{} that covers it is done: purge that job",
                range.start, range.end, job.kind, job.key
            )));
        }
        coverage.claimed.insert(&range);
        coverage.store(tx, scope).await?;
        Ok(Some((range, job.kind)))
    }
}

fn decode(row: &Row) -> Result<Coverage> {
    Ok(Coverage {
        done: IntervalSet::decode(&row.blob(0)?)?,
        claimed: IntervalSet::decode(&row.blob(1)?)?,
    })
}
