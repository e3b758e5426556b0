//! Operations on claimed jobs: complete, heartbeat, fail, release, and reap those whose lease ended.
//!
//! Guarantees: everything here is scoped by the claim's token; a call with an older token changes nothing and
//! is reported as fenced. A batch is one statement. Leaves to others: claiming ([`super::Claimer`]).

use std::collections::HashSet;
use std::time::Duration;

use logmill_io::sql::{Execute, StatementResult};
use logmill_io::{Tx, Value, millis, params};
use serde_json::json;

use super::{BATCH_MAX, Claim, ERROR_BYTES_MAX, FailedClaim, Queue, within_batch};
use crate::error::{Error, Result};
use crate::job::State;

/// The claims of a batch as a table. It contains the kind and a limit (of [`BATCH_MAX`]), so that no engine
/// flattens the subquery and scans all jobs of the kind, searching the list for each. PostgreSQL must not know
/// the limit when it plans: it would estimate a hundred claims and read the whole table, even for a list of
/// two. For an unknown limit it estimates a tenth of that.
macro_rules! held {
    ($place:literal) => {
        concat!(
            "(SELECT CAST($1 AS TEXT) AS kind, CAST(value ->> 0 AS TEXT) AS key,
                CAST(value ->> 1 AS BIGINT) AS token,
                CAST(value ->> 2 AS BIGINT) AS wait_ms, CAST(value ->> 3 AS TEXT) AS error
              FROM json_list(",
            $place,
            ") LIMIT 10000 + 0 * length(CAST($1 AS TEXT))) AS held"
        )
    };
}

const COMPLETE_ONE: &str = "
    UPDATE job SET state = 2, finished_at = now_ms(), owner = NULL
    WHERE kind = $1 AND key = $2 AND token = $3 AND state IN (1, 2)
    RETURNING key, token";

const COMPLETE_MANY: &str = concat!(
    "UPDATE job SET state = 2, finished_at = now_ms(), owner = NULL
     FROM ",
    held!("$2"),
    " WHERE job.kind = held.kind AND job.key = held.key AND job.token = held.token
         AND job.state IN (1, 2)
     RETURNING job.key, job.token"
);

const REMOVE: &str = "DELETE FROM job WHERE kind = $1 AND key = $2 AND token = $3 AND state = 1";

/// The statement that completes many jobs of one kind; pass its answer to [`untouched`]. `None` for no jobs.
pub(super) fn complete_statement(claims: &[Claim]) -> Result<Option<(&'static str, Vec<Value>)>> {
    if let [claim] = claims {
        let params = params![claim.kind.as_str(), claim.key.as_str(), claim.token];
        return Ok(Some((COMPLETE_ONE, params)));
    }
    let list = claims.iter().map(key_and_token).collect();
    Ok(scoped_params(claims, list)?.map(|params| (COMPLETE_MANY, params)))
}

impl Queue {
    /// Completes a job; succeeds if it is already complete under the same token.
    pub async fn complete(&self, claim: &Claim) -> Result<()> {
        self.complete_in(&self.sql, claim).await
    }

    /// Completes a job in the caller's transaction, together with its results.
    pub async fn complete_in(&self, on: &impl Execute, claim: &Claim) -> Result<()> {
        let params = params![claim.kind.as_str(), claim.key.as_str(), claim.token];
        let changed = on.execute(COMPLETE_ONE, params).await?.changed;
        if changed == 0 { Err(claim.fenced()) } else { Ok(()) }
    }

    /// Completes a job in the caller's transaction and removes it, so that the same key can be enqueued again:
    /// for recurring work.
    pub async fn remove_in(&self, on: &impl Execute, claim: &Claim) -> Result<()> {
        let params = params![claim.kind.as_str(), claim.key.as_str(), claim.token];
        let changed = on.execute(REMOVE, params).await?.changed;
        if changed == 0 { Err(claim.fenced()) } else { Ok(()) }
    }

    /// [`Self::remove_in`] for many jobs. Fails if one is fenced; then the caller must not commit.
    pub async fn remove_many_in(&self, tx: &Tx, claims: &[Claim]) -> Result<()> {
        let of = |claim: &Claim| params![claim.kind.as_str(), claim.key.as_str(), claim.token];
        let changed = tx.execute_many(REMOVE, claims.iter().map(of).collect::<Vec<_>>()).await?;
        let fenced = claims.iter().zip(changed).find(|(_, changed)| *changed == 0);
        fenced.map_or(Ok(()), |(claim, _)| Err(claim.fenced()))
    }

    /// Completes many jobs of one kind; returns those that were fenced.
    pub async fn complete_many(&self, claims: &[Claim]) -> Result<Vec<Claim>> {
        self.complete_many_in(&self.sql, claims).await
    }

    /// Completes many jobs of one kind in the caller's transaction; returns those that were fenced, whose
    /// results must not be written.
    pub async fn complete_many_in(
        &self,
        on: &impl Execute,
        claims: &[Claim],
    ) -> Result<Vec<Claim>> {
        let list = claims.iter().map(key_and_token).collect();
        run_scoped(on, COMPLETE_MANY, claims, list, None).await
    }

    /// Returns the claims of one kind that are complete under their tokens, for a caller that completed them
    /// and did not get the answer. Waits for transactions that are still pending.
    pub async fn completed_in(&self, tx: &Tx, claims: &[Claim]) -> Result<Vec<Claim>> {
        // Changes nothing; the update takes the row locks.
        let text = concat!(
            "UPDATE job SET token = job.token FROM ",
            held!("$2"),
            " WHERE job.kind = held.kind AND job.key = held.key AND job.token = held.token
                 AND job.state IN (1, 2)
             RETURNING job.key, job.token, job.state"
        );
        let list = claims.iter().map(key_and_token).collect();
        let Some(params) = scoped_params(claims, list)? else {
            return Ok(Vec::new());
        };
        let mut answer = tx.execute(text, params).await?;
        answer.rows.retain(|row| row.int(2).is_ok_and(|state| state == State::Done.number()));
        let open = untouched(claims, &answer)?;
        Ok(claims.iter().filter(|claim| !open.contains(claim)).cloned().collect())
    }

    /// Prolongs the leases of many jobs of one kind; returns those that were fenced.
    pub async fn heartbeat(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>> {
        let text = concat!(
            "UPDATE job SET lease_until = now_ms() + $3 FROM ",
            held!("$2"),
            " WHERE job.kind = held.kind AND job.key = held.key AND job.token = held.token AND job.state = 1
             RETURNING job.key, job.token"
        );
        self.scoped_many(text, claims, Some(millis(lease).into())).await
    }

    pub async fn fail(&self, failed: &FailedClaim) -> Result<()> {
        let fenced = self.fail_many(std::slice::from_ref(failed)).await?;
        fenced.first().map_or(Ok(()), |claim| Err(claim.fenced()))
    }

    /// Records many failed attempts of one kind; returns those that were fenced.
    pub async fn fail_many(&self, failed: &[FailedClaim]) -> Result<Vec<Claim>> {
        self.fail_many_in(&self.sql, failed).await
    }

    /// Records many failed attempts of one kind in the caller's transaction; returns those that were fenced.
    pub async fn fail_many_in(
        &self,
        on: &impl Execute,
        failed: &[FailedClaim],
    ) -> Result<Vec<Claim>> {
        let text = concat!(
            "UPDATE job SET
                state = CASE WHEN held.wait_ms < 0 OR attempts >= attempts_max THEN 3 ELSE 0 END,
                finished_at = CASE WHEN held.wait_ms < 0 OR attempts >= attempts_max THEN now_ms() END,
                due_us = CASE WHEN held.wait_ms < 0 THEN due_us
                    ELSE (now_ms() + held.wait_ms) * 1000 END,
                error = held.error, owner = NULL
             FROM ",
            held!("$2"),
            " WHERE job.kind = held.kind AND job.key = held.key AND job.token = held.token AND job.state = 1
             RETURNING job.key, job.token"
        );
        let claims: Vec<Claim> = failed.iter().map(|failed| failed.claim.clone()).collect();
        let list = failed.iter().map(|failed| {
            let wait_ms = failed.retry_after.map_or(-1, millis);
            json!([failed.claim.key, failed.claim.token, wait_ms, shortened(&failed.error)])
        });
        run_scoped(on, text, &claims, list.collect(), None).await
    }

    /// Returns many jobs of one kind to the queue, due now and with the attempt uncounted; returns those that
    /// were fenced.
    pub async fn release_many(&self, claims: &[Claim]) -> Result<Vec<Claim>> {
        let text = concat!(
            "UPDATE job SET state = 0, attempts = attempts - 1, due_us = now_ms() * 1000, owner = NULL FROM ",
            held!("$2"),
            " WHERE job.kind = held.kind AND job.key = held.key AND job.token = held.token AND job.state = 1
             RETURNING job.key, job.token"
        );
        let fenced = self.scoped_many(text, claims, None).await?;
        if let Some(claim) = claims.first() {
            self.wakes.wake(&claim.kind);
        }
        Ok(fenced)
    }

    async fn scoped_many(
        &self,
        text: &str,
        claims: &[Claim],
        more: Option<Value>,
    ) -> Result<Vec<Claim>> {
        let list = claims.iter().map(key_and_token).collect();
        run_scoped(&self.sql, text, claims, list, more).await
    }

    /// Makes jobs of a kind whose leases ended pending again, or dead letters if they have no attempts left;
    /// returns how many. The claim has already counted the attempt.
    pub async fn reap(&self, kind: &str) -> Result<u64> {
        let text = "
            UPDATE job SET
                state = CASE WHEN attempts >= attempts_max THEN 3 ELSE 0 END,
                finished_at = CASE WHEN attempts >= attempts_max THEN now_ms() END,
                due_us = now_ms() * 1000,
                error = 'the lease of ' || COALESCE(owner, 'an unknown owner') || ' ended before the job',
                owner = NULL
            WHERE kind = $1 AND key any_of(
                SELECT key FROM job WHERE kind = $1 AND state = 1 AND lease_until <= now_ms()
                ORDER BY lease_until LIMIT $2 FOR UPDATE SKIP LOCKED)
            RETURNING key";
        let limit = i64::try_from(BATCH_MAX).unwrap_or(i64::MAX);
        Ok(self.sql.execute(text, params![kind, limit]).await?.changed)
    }
}

/// Runs a statement over a list of claims of one kind; returns those that it did not touch.
async fn run_scoped(
    on: &impl Execute,
    text: &str,
    claims: &[Claim],
    list: Vec<serde_json::Value>,
    more: Option<Value>,
) -> Result<Vec<Claim>> {
    let Some(mut params) = scoped_params(claims, list)? else {
        return Ok(Vec::new());
    };
    params.extend(more);
    untouched(claims, &on.execute(text, params).await?)
}

fn key_and_token(claim: &Claim) -> serde_json::Value {
    json!([claim.key, claim.token])
}

/// The parameters of a statement over claims of one kind (the kind and the list); `None` for no claims.
fn scoped_params(claims: &[Claim], list: Vec<serde_json::Value>) -> Result<Option<Vec<Value>>> {
    let Some(first) = claims.first() else {
        return Ok(None);
    };
    within_batch(claims.len())?;
    if claims.iter().any(|claim| claim.kind != first.kind) {
        return Err(Error::invalid("all jobs in one call must be of the same kind"));
    }
    Ok(Some(params![first.kind.as_str(), Value::json(&serde_json::Value::Array(list))]))
}

/// Returns the claims whose key and token the statement did not return.
pub(super) fn untouched(claims: &[Claim], answer: &StatementResult) -> Result<Vec<Claim>> {
    if answer.rows.len() == claims.len() {
        return Ok(Vec::new());
    }
    let touched = answer.rows.iter().map(|row| Ok((row.text(0)?, row.int(1)?)));
    let touched: HashSet<(&str, i64)> = touched.collect::<Result<_>>()?;
    let is_touched = |claim: &&Claim| touched.contains(&(claim.key.as_str(), claim.token));
    Ok(claims.iter().filter(|claim| !is_touched(claim)).cloned().collect())
}

/// Error texts may be long and contain NUL; bounds the length and replaces what cannot be stored.
fn shortened(error: &str) -> String {
    let end = error.floor_char_boundary(ERROR_BYTES_MAX);
    error[..end].replace('\0', "\u{fffd}")
}
