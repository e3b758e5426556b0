//! Recording: what became of many deliveries, in one transaction with their jobs.
//!
//! Guarantees: jobs come first in the transaction, and what was done under a claim that is no longer ours is not
//! recorded. Recorded twice, because the answer to the first was lost, nothing changes, whatever has happened since.
//! What fails in another class than that for retries gets a job there, in the same transaction. An endpoint has failed
//! for as long as there were failures and no success, without a long silence between. Leaves to others: what to record.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Timestamp, Tx, Value, millis, params};
use logmill_work::Claim;
use logmill_work::queue::{BATCH_MAX, FailedClaim};
use serde_json::json;

use super::Webhooks;
use super::lanes::Class;
use super::publish::{JobOf, job, numbers};
use super::tables::DeliveryState;
use super::verdict::Next;
use crate::error::Result;

/// One attempt, for the log.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) at: Timestamp,
    pub(super) took: Duration,
    pub(super) status: Option<u16>,
    pub(super) error: Option<String>,
    pub(super) response: String,
    pub(super) dry_run: bool,
    pub(super) next: Next,
}

/// How a claim ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// A request was made.
    Attempted(Attempt),
    /// None was made; later, in this class.
    PutOff { class: Class, wait: Duration },
    /// There is nothing to do for it.
    Stale,
    /// Its endpoint does not take anything.
    Cancelled { why: &'static str },
}

/// A claim that has ended.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) claim: Claim,
    pub(super) class: Class,
    pub(super) of: JobOf,
    /// How many attempts there were before, in this round.
    pub(super) attempts: i64,
    pub(super) ending: Ending,
    /// Whether it was given to be recorded before, and nobody knows if it was.
    pub(super) again: bool,
}

/// A claim among those of all classes. The same job may have been claimed twice, and both may be here.
type Held = (Class, String, i64);

impl Settled {
    fn held(&self) -> Held {
        (self.class, self.claim.key.clone(), self.claim.token)
    }

    /// Whether the delivery comes again, in which class and when.
    pub(super) fn later(&self) -> Option<(Class, Duration)> {
        match &self.ending {
            Ending::Attempted(Attempt { next: Next::Again { wait }, .. }) => {
                Some((Class::Retry, *wait))
            }
            Ending::PutOff { class, wait } => Some((*class, *wait)),
            _ => None,
        }
    }

    /// The wait, if its job stays what it is.
    fn stays(&self) -> Option<Duration> {
        self.later().filter(|(class, _)| *class == self.class).map(|(_, wait)| wait)
    }

    fn error(&self) -> String {
        match &self.ending {
            Ending::Attempted(attempt) => attempt.error.clone().unwrap_or_default(),
            Ending::PutOff { .. } => "put off: its endpoint is busy or failing".to_owned(),
            Ending::Stale | Ending::Cancelled { .. } => String::new(),
        }
    }

    /// What is to be written in its delivery, if anything.
    fn row(&self) -> Option<serde_json::Value> {
        let (state, attempts, status, error, wait) = match &self.ending {
            Ending::Attempted(attempt) => {
                let (state, wait) = match &attempt.next {
                    Next::Succeeded => (DeliveryState::Succeeded, None),
                    Next::Again { wait } => (DeliveryState::Pending, Some(millis(*wait))),
                    Next::Exhausted | Next::Gone => (DeliveryState::Exhausted, None),
                };
                let status = attempt.status.map(u32::from);
                (state, self.attempts + 1, status, attempt.error.as_deref(), wait)
            }
            Ending::Cancelled { why } => {
                (DeliveryState::Cancelled, self.attempts, None, Some(*why), None)
            }
            Ending::PutOff { .. } | Ending::Stale => return None,
        };
        let JobOf { message, endpoint, round } = self.of;
        let state = state.number();
        Some(json!([message, endpoint, round, state, attempts, status, error, wait]))
    }

    fn attempt_row(&self) -> Option<Vec<Value>> {
        let Ending::Attempted(attempt) = &self.ending else {
            return None;
        };
        let JobOf { message, endpoint, round } = self.of;
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

/// What recording did.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    /// Endpoints that were disabled.
    pub(super) disabled: Vec<i64>,
    /// Whether deliveries that waited have their turn now.
    pub(super) advanced: bool,
}

/// The list has a limit (of [`BATCH_MAX`]) for the reason that those of the queue have one: so that each delivery is
/// looked up by its key, and not all of them are walked over. That it was received is true whatever came after.
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
    /// Records what became of deliveries.
    pub(super) async fn record(&self, batch: &[Settled]) -> Result<Recorded> {
        let recorded =
            self.sql().write(|tx| async move { Ok(Box::pin(self.record_in(&tx, batch)).await?) });
        Ok(recorded.await?)
    }

    async fn record_in(&self, tx: &Tx, batch: &[Settled]) -> Result<Recorded> {
        let mut past = self.recorded_before(tx, batch).await?;
        past.extend(self.acknowledge(tx, batch).await?);
        let is_ours = |settled: &&Settled| !past.contains(&settled.held());
        let ours: Vec<&Settled> = batch.iter().filter(is_ours).collect();
        let moved = ours.iter().filter_map(|settled| {
            let (class, wait) = settled.later().filter(|(class, _)| *class != settled.class)?;
            Some(job(class, settled.of, wait))
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
        let advanced = self.advance(tx, settled.map(|settled| settled.of.endpoint)).await?;
        Ok(Recorded { disabled, advanced })
    }

    /// Gives the next delivery its turn at those endpoints that want them in order; gives whether there was any.
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

    /// Those that an earlier transaction has recorded whose answer was lost. One that let its job come again needs no
    /// look: it is fenced by now.
    async fn recorded_before(&self, tx: &Tx, batch: &[Settled]) -> Result<BTreeSet<Held>> {
        let mut before = BTreeSet::new();
        for class in Class::ALL {
            let again = batch.iter().filter(|settled| settled.again && settled.class == class);
            let claims: Vec<Claim> = again.map(|settled| settled.claim.clone()).collect();
            let completed = self.queue.completed_in(tx, &claims).await?;
            before.extend(completed.into_iter().map(|claim| (class, claim.key, claim.token)));
        }
        Ok(before)
    }

    /// Completes jobs, or lets them come again; gives those that are not ours any longer.
    async fn acknowledge(&self, tx: &Tx, batch: &[Settled]) -> Result<BTreeSet<Held>> {
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
                tracing::warn!(kind = claim.kind, key = claim.key, "came too late: fenced");
                fenced.insert((class, claim.key, claim.token));
            }
        }
        Ok(fenced)
    }

    /// Notes which endpoints fail, and disables those that are gone or have failed for too long; gives these.
    async fn record_health(&self, tx: &Tx, batch: &[&Settled]) -> Result<Vec<i64>> {
        let (mut failed, mut well, mut gone) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for settled in batch {
            let Ending::Attempted(attempt) = &settled.ending else {
                continue;
            };
            match attempt.next {
                Next::Succeeded => well.extend([settled.of.endpoint]),
                Next::Gone => gone.extend([settled.of.endpoint]),
                Next::Again { .. } | Next::Exhausted => {
                    failed.extend([(settled.of.endpoint, attempt.error.as_deref())]);
                }
            }
        }
        // After a silence that no schedule explains nobody knows how it stood meanwhile.
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
