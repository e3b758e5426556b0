//! Recording: the results of many deliveries, in one transaction with their jobs.
//!
//! Guarantees: the transaction changes the jobs first, and results of a claim that this process no longer holds are not
//! recorded. Recording a batch twice, because the answer to the first commit was lost, changes nothing, whatever has
//! happened since. A delivery that fails in another class than retry gets a job in the retry class, in the same
//! transaction. An endpoint counts as failing for as long as there were failures and no success, without a long silence
//! in between. Leaves to others: what to record.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Timestamp, Tx, Value, millis, params};
use logmill_work::Claim;
use logmill_work::queue::{BATCH_MAX, FailedClaim};
use serde_json::json;

use super::Webhooks;
use super::endpoint_queues::Class;
use super::publish::{DeliveryRound, job, numbers};
use super::tables::DeliveryState;
use super::verdict::NextStep;
use crate::error::Result;

/// One attempt, for the attempt log.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) at: Timestamp,
    pub(super) took: Duration,
    pub(super) status: Option<u16>,
    pub(super) error: Option<String>,
    pub(super) response: String,
    pub(super) dry_run: bool,
    pub(super) next: NextStep,
}

/// Outcome of a claim.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// A request was made.
    Attempted(Attempt),
    /// No request was made; it is due later, in this class.
    Postponed { class: Class, wait: Duration, why: &'static str },
    /// The job is obsolete: there is nothing to do.
    Stale,
    /// The endpoint is disabled or gone.
    Cancelled { why: &'static str },
}

/// A claim that has ended.
#[derive(Clone, Debug)]
pub(super) struct SettledClaim {
    pub(super) claim: Claim,
    pub(super) class: Class,
    pub(super) delivery: DeliveryRound,
    /// Attempts made before this one, in this round.
    pub(super) attempts: i64,
    pub(super) ending: Ending,
    /// Whether an earlier recording of it is in doubt.
    pub(super) again: bool,
}

/// A claim among those of all classes. The same job may have been claimed twice, and both claims may be here.
type ClaimId = (Class, String, i64);

impl SettledClaim {
    fn claim_id(&self) -> ClaimId {
        (self.class, self.claim.key.clone(), self.claim.token)
    }

    /// Class and delay of the next attempt, if there is one.
    pub(super) fn later(&self) -> Option<(Class, Duration)> {
        match &self.ending {
            Ending::Attempted(Attempt { next: NextStep::Again { wait }, .. }) => {
                Some((Class::Retry, *wait))
            }
            Ending::Postponed { class, wait, .. } => Some((*class, *wait)),
            _ => None,
        }
    }

    /// The delay, if the delivery keeps its job.
    fn stays(&self) -> Option<Duration> {
        self.later().filter(|(class, _)| *class == self.class).map(|(_, wait)| wait)
    }

    fn error(&self) -> String {
        match &self.ending {
            Ending::Attempted(attempt) => attempt.error.clone().unwrap_or_default(),
            Ending::Postponed { why, .. } => (*why).to_owned(),
            Ending::Stale | Ending::Cancelled { .. } => String::new(),
        }
    }

    /// The values to write to its delivery row, if any.
    fn row(&self) -> Option<serde_json::Value> {
        let (state, attempts, status, error, wait) = match &self.ending {
            Ending::Attempted(attempt) => {
                let (state, wait) = match &attempt.next {
                    NextStep::Succeeded => (DeliveryState::Succeeded, None),
                    NextStep::Again { wait } => (DeliveryState::Pending, Some(millis(*wait))),
                    NextStep::Exhausted | NextStep::Gone => (DeliveryState::Exhausted, None),
                };
                let status = attempt.status.map(u32::from);
                (state, self.attempts + 1, status, attempt.error.as_deref(), wait)
            }
            Ending::Cancelled { why } => {
                (DeliveryState::Cancelled, self.attempts, None, Some(*why), None)
            }
            Ending::Postponed { .. } | Ending::Stale => return None,
        };
        let DeliveryRound { message, endpoint, round } = self.delivery;
        let state = state.number();
        Some(json!([message, endpoint, round, state, attempts, status, error, wait]))
    }

    fn attempt_row(&self) -> Option<Vec<Value>> {
        let Ending::Attempted(attempt) = &self.ending else {
            return None;
        };
        let DeliveryRound { message, endpoint, round } = self.delivery;
        Some(params![
            message,
            endpoint,
            round,
            self.attempts + 1,
            attempt.at,
            millis(attempt.took),
            attempt.status.map(u32::from),
            attempt.error.as_deref(),
            attempt.response.as_str(),
            attempt.dry_run,
        ])
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct RecordEffects {
    /// Endpoints that were disabled.
    pub(super) disabled: Vec<i64>,
    /// Whether waiting deliveries became pending.
    pub(super) advanced: bool,
}

/// The list has a limit (of [`BATCH_MAX`]) for the same reason as the lists of the queue: so that each delivery is
/// looked up by its key instead of a scan over all of them. A success overrides any other state, because a message that
/// was received stays received.
const UPDATE: &str = "
    UPDATE webhook_delivery SET state = became.state,
        attempts = CASE WHEN webhook_delivery.attempts > became.attempts
            THEN webhook_delivery.attempts ELSE became.attempts END,
        last_status = became.status, last_error = became.error, next_at = now_ms() + became.wait_ms,
        updated_at = now_ms()
    FROM (SELECT CAST(value ->> 0 AS BIGINT) AS message, CAST(value ->> 1 AS BIGINT) AS endpoint,
            CAST(value ->> 2 AS BIGINT) AS number, CAST(value ->> 3 AS BIGINT) AS state,
            CAST(value ->> 4 AS BIGINT) AS attempts, CAST(value ->> 5 AS BIGINT) AS status,
            CAST(value ->> 6 AS TEXT) AS error, CAST(value ->> 7 AS BIGINT) AS wait_ms
        FROM json_list($1) LIMIT 10000 + 0 * length(CAST($1 AS TEXT))) AS became
    WHERE message_seq = became.message AND endpoint_seq = became.endpoint AND round = became.number
        AND ((webhook_delivery.state <> 2 AND became.state = 2)
            OR (webhook_delivery.state = 0
                AND (webhook_delivery.attempts < became.attempts OR became.state = 4)))";

const ATTEMPTS: Bulk = Bulk {
    table: Cow::Borrowed("webhook_attempt"),
    columns: Cow::Borrowed(&[
        ("message_seq", ColumnType::Int),
        ("endpoint_seq", ColumnType::Int),
        ("round", ColumnType::Int),
        ("attempt", ColumnType::Int),
        ("at", ColumnType::Int),
        ("duration_ms", ColumnType::Int),
        ("status", ColumnType::Int),
        ("error", ColumnType::Text),
        ("response", ColumnType::Text),
        ("dry_run", ColumnType::Int),
    ]),
    key_columns: 4,
    on_conflict: Cow::Borrowed("DO NOTHING"),
};

impl Webhooks {
    pub(super) async fn record(&self, batch: &[SettledClaim]) -> Result<RecordEffects> {
        let recorded =
            self.sql().write(|tx| async move { Box::pin(self.record_in(&tx, batch)).await });
        recorded.await
    }

    async fn record_in(&self, tx: &Tx, batch: &[SettledClaim]) -> Result<RecordEffects> {
        let mut past = self.recorded_before(tx, batch).await?;
        past.extend(self.acknowledge(tx, batch).await?);
        let is_ours = |settled: &&SettledClaim| !past.contains(&settled.claim_id());
        let ours: Vec<&SettledClaim> = batch.iter().filter(is_ours).collect();
        let moved = ours.iter().filter_map(|settled| {
            let (class, wait) = settled.later().filter(|(class, _)| *class != settled.class)?;
            Some(job(class, settled.delivery, wait))
        });
        self.enqueue_in(tx, &moved.collect::<Vec<_>>()).await?;
        let rows: Vec<serde_json::Value> =
            ours.iter().filter_map(|settled| settled.row()).collect();
        for rows in rows.chunks(BATCH_MAX) {
            tx.execute(UPDATE, params![Value::json(&rows.into())]).await?;
        }
        let attempts: Vec<Vec<Value>> =
            ours.iter().filter_map(|settled| settled.attempt_row()).collect();
        tx.bulk(&ATTEMPTS, attempts).await?;
        let disabled = self.record_health(tx, &ours).await?;
        let settled = ours.iter().filter(|settled| settled.later().is_none());
        let advanced = self.advance(tx, settled.map(|settled| settled.delivery.endpoint)).await?;
        Ok(RecordEffects { disabled, advanced })
    }

    /// Makes the next waiting delivery pending at each endpoint that is ordered; returns whether there was any.
    async fn advance(&self, tx: &Tx, endpoints: impl Iterator<Item = i64>) -> Result<bool> {
        let endpoints: BTreeSet<i64> = endpoints.collect();
        if endpoints.is_empty() {
            return Ok(false);
        }
        let text = "SELECT seq FROM webhook_endpoint WHERE ordered = 1
            AND seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
            ORDER BY seq";
        let mut advanced = false;
        for row in &tx.execute(text, params![numbers(endpoints.into_iter())]).await?.rows {
            advanced |= self.advance_in(tx, row.int(0)?).await?;
        }
        Ok(advanced)
    }

    /// Claims that an earlier transaction recorded although its answer was lost. A claim whose job was rescheduled
    /// needs no check: it is fenced by now.
    async fn recorded_before(&self, tx: &Tx, batch: &[SettledClaim]) -> Result<BTreeSet<ClaimId>> {
        let mut before = BTreeSet::new();
        for class in Class::ALL {
            let again = batch.iter().filter(|settled| settled.again && settled.class == class);
            let claims: Vec<Claim> = again.map(|settled| settled.claim.clone()).collect();
            let completed = self.queue.completed_in(tx, &claims).await?;
            before.extend(completed.into_iter().map(|claim| (class, claim.key, claim.token)));
        }
        Ok(before)
    }

    /// Completes or reschedules jobs; returns the claims that are no longer ours.
    async fn acknowledge(&self, tx: &Tx, batch: &[SettledClaim]) -> Result<BTreeSet<ClaimId>> {
        let mut fenced = BTreeSet::new();
        for class in Class::ALL {
            let (mut done, mut again) = (Vec::new(), Vec::new());
            for settled in batch.iter().filter(|settled| settled.class == class) {
                let claim = settled.claim.clone();
                match settled.stays() {
                    None => done.push(claim),
                    Some(wait) => {
                        let error = settled.error();
                        again.push(FailedClaim { claim, error, retry_after: Some(wait) });
                    }
                }
            }
            let mut late = self.queue.complete_many_in(tx, &done).await?;
            late.extend(self.queue.fail_many_in(tx, &again).await?);
            for claim in late {
                tracing::warn!(
                    kind = claim.kind,
                    key = claim.key,
                    "the result of a webhook delivery is fenced: its claim was taken over"
                );
                fenced.insert((class, claim.key, claim.token));
            }
        }
        Ok(fenced)
    }

    /// Records which endpoints fail, and disables those that are gone or have failed too long; returns the latter.
    async fn record_health(&self, tx: &Tx, batch: &[&SettledClaim]) -> Result<Vec<i64>> {
        let (mut failed, mut well, mut gone) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for settled in batch {
            let Ending::Attempted(attempt) = &settled.ending else {
                continue;
            };
            match attempt.next {
                NextStep::Succeeded => well.extend([settled.delivery.endpoint]),
                NextStep::Gone => gone.extend([settled.delivery.endpoint]),
                NextStep::Again { .. } | NextStep::Exhausted => {
                    failed.extend([(settled.delivery.endpoint, attempt.error.as_deref())]);
                }
            }
        }
        // After a silence longer than any scheduled wait, the endpoint's state in between is unknown.
        let text = "UPDATE webhook_endpoint SET
            failing_since = CASE WHEN failing_since IS NULL OR last_error_at < now_ms() - $3
                THEN now_ms() ELSE failing_since END,
            last_error = $2, last_error_at = now_ms() WHERE seq = $1";
        let silence = millis(self.settings.wait_max(Class::Retry));
        let rows = failed.iter().map(|(endpoint, error)| params![*endpoint, *error, silence]);
        tx.execute_many(text, rows.collect::<Vec<_>>()).await?;
        if !well.is_empty() {
            let text = "UPDATE webhook_endpoint SET failing_since = NULL
                WHERE seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                    AND failing_since IS NOT NULL";
            tx.execute(text, params![numbers(well.iter().copied())]).await?;
        }
        let mut disabled = Vec::new();
        for endpoint in &gone {
            if self.disable_in(tx, *endpoint, "it answered 410: gone").await? {
                disabled.push(*endpoint);
            }
        }
        let failed = failed.into_keys().filter(|endpoint| !gone.contains(endpoint));
        disabled.extend(self.disable_tired(tx, &failed.collect::<Vec<_>>()).await?);
        Ok(disabled)
    }

    async fn disable_tired(&self, tx: &Tx, failed: &[i64]) -> Result<Vec<i64>> {
        let mut disabled = Vec::new();
        if failed.is_empty() {
            return Ok(disabled);
        }
        let text = "SELECT seq FROM webhook_endpoint
            WHERE seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                AND enabled = 1 AND failing_since <= now_ms() - $2 ORDER BY seq";
        let after = self.settings.disable_after;
        let list = numbers(failed.iter().copied());
        let why = format!("every attempt has failed for {} hours", after.as_secs() / 3_600);
        for row in &tx.execute(text, params![list, millis(after)]).await?.rows {
            if self.disable_in(tx, row.int(0)?, &why).await? {
                disabled.push(row.int(0)?);
            }
        }
        Ok(disabled)
    }
}
