//! Replaying sends settled deliveries again, each with a full schedule; retrying sends waiting ones now instead of
//! later.
//!
//! Both start a new round of the same delivery: the message keeps its id, the attempts of earlier rounds stay in the
//! log, and a remaining job of an earlier round does nothing. A replay restarts the schedule, and is for settled
//! deliveries; a retry continues the schedule, and is for deliveries that wait for their next attempt.
//!
//! Guarantees: each batch is one transaction; at an ordered endpoint replays wait for their turn. Bulk replays use
//! overflow or retry slots, not those of first attempts. Leaves to others: rate limits for callers.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, params};
use serde_json::json;

use super::Webhooks;
use super::admin::read_in;
use super::endpoint::{Endpoint, raise_version};
use super::endpoint_queues::Class;
use super::publish::{DeliveryRound, job};
use super::tables::DeliveryState;
use crate::error::{Error, Result};
use crate::store::requests::{self, KeyedRequest};

/// Maximum number of deliveries that one call replays.
const REPLAY_MAX: u64 = 10_000;
/// Deliveries per transaction.
const BATCH: i64 = 500;

/// The oldest messages after the fifth parameter whose deliveries to an endpoint are exhausted or cancelled: reads the
/// first of each state by the index instead of everything ever sent to it.
pub(super) const FAILED: &str = "
    SELECT message_seq FROM (
        SELECT message_seq FROM (SELECT message_seq FROM webhook_delivery
            WHERE endpoint_seq = $1 AND state <> 2 AND state = 3 AND message_seq > $5
                AND created_at >= $2 ORDER BY message_seq LIMIT $3) AS exhausted
        UNION ALL
        SELECT message_seq FROM (SELECT message_seq FROM webhook_delivery
            WHERE endpoint_seq = $1 AND state <> 2 AND state = 4 AND message_seq > $5
                AND created_at >= $2 ORDER BY message_seq LIMIT $3) AS cancelled
    ) AS failed ORDER BY message_seq LIMIT $3";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayResult {
    /// Number of deliveries that are sent again.
    pub deliveries: u64,
    /// Whether there may be more; if so, call again.
    pub more: bool,
}

impl Webhooks {
    /// Sends one message to one endpoint again, whatever its state.
    pub async fn replay(&self, message_id: &str, endpoint_id: &str) -> Result<()> {
        self.replay_once(message_id, endpoint_id, None).await
    }

    /// Like [`Webhooks::replay`], unless the request was processed before.
    pub async fn replay_once(
        &self,
        message_id: &str,
        endpoint_id: &str,
        request: Option<&KeyedRequest>,
    ) -> Result<()> {
        let replayed = self.sql().write(|tx| async move {
            if requests::claim_in(&tx, request).await?.is_some() {
                return Ok(());
            }
            let (seq, endpoint) = enabled_in(&tx, endpoint_id).await?;
            let text = "
                UPDATE webhook_delivery SET state = $3, round = round + 1, attempts = 0,
                    next_at = NULL, updated_at = now_ms()
                WHERE endpoint_seq = $1 AND message_seq any_of(
                    SELECT seq FROM webhook_message WHERE id = $2)
                RETURNING message_seq, round";
            let state = first_state(&endpoint).number();
            let found = tx.execute(text, params![seq, message_id, state]).await?;
            if found.rows.is_empty() {
                let what = format!("delivery of this message to the endpoint {endpoint_id}");
                return Err(Error::not_found(what));
            }
            self.again_in(&tx, seq, &endpoint, &found.rows, Class::First).await?;
            requests::keep_in(&tx, request, &json!({ "deliveries": 1 })).await
        });
        replayed.await?;
        self.wake();
        Ok(())
    }

    /// Sends again all messages to one endpoint that were published since then and failed or were cancelled; at most
    /// `REPLAY_MAX`, oldest first.
    pub async fn replay_since(&self, endpoint_id: &str, since: Timestamp) -> Result<ReplayResult> {
        let (mut replayed, mut after) = (ReplayResult::default(), 0);
        while replayed.deliveries < REPLAY_MAX {
            let batch = self.sql().write(|tx| async move {
                self.replay_batch_in(&tx, endpoint_id, since, after).await
            });
            let batch = batch.await?;
            self.wake();
            let Some(last) = batch.iter().max() else {
                return Ok(replayed);
            };
            after = *last;
            replayed.deliveries += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        }
        Ok(ReplayResult { more: true, ..replayed })
    }

    /// Replays a batch of the messages after this one; returns them.
    async fn replay_batch_in(
        &self,
        tx: &Tx,
        endpoint_id: &str,
        since: Timestamp,
        after: i64,
    ) -> Result<Vec<i64>> {
        let (seq, endpoint) = enabled_in(tx, endpoint_id).await?;
        let text = format!(
            "UPDATE webhook_delivery SET state = $4, round = round + 1, attempts = 0,
                next_at = NULL, updated_at = now_ms()
             WHERE endpoint_seq = $1 AND state IN (3, 4) AND message_seq any_of({FAILED})
             RETURNING message_seq, round"
        );
        let state = first_state(&endpoint).number();
        let rows = tx.execute(&text, params![seq, since, BATCH, state, after]).await?.rows;
        self.again_in(tx, seq, &endpoint, &rows, Class::Overflow).await?;
        rows.iter().map(|row| Ok(row.int(0)?)).collect()
    }

    /// Sends now all messages to one endpoint that wait for their next attempt, because an attempt failed or because
    /// the endpoint is paused; at most `REPLAY_MAX`, oldest first. Their schedules continue where they were.
    pub async fn retry_now(&self, endpoint_id: &str) -> Result<ReplayResult> {
        let (mut retried, mut after) = (ReplayResult::default(), 0);
        while retried.deliveries < REPLAY_MAX {
            let batch = self
                .sql()
                .write(|tx| async move { self.retry_batch_in(&tx, endpoint_id, after).await });
            let (last, count) = batch.await?;
            self.wake();
            let Some(last) = last else { return Ok(retried) };
            after = last;
            retried.deliveries += count;
        }
        Ok(ReplayResult { more: true, ..retried })
    }

    /// Retries a batch of the messages after this one; returns the last one examined, and how many are sent.
    async fn retry_batch_in(
        &self,
        tx: &Tx,
        endpoint_id: &str,
        after: i64,
    ) -> Result<(Option<i64>, u64)> {
        // Tells deliverers that the endpoint's pause is over.
        raise_version(tx).await?;
        let (seq, _) = enabled_in(tx, endpoint_id).await?;
        let rows = tx.execute(&waiting(), params![seq, after, BATCH]).await?.rows;
        let last = rows.last().map(|row| row.int(0)).transpose()?;
        let text = "UPDATE webhook_endpoint SET retries = retries + 1 WHERE seq = $1";
        tx.execute(text, params![seq]).await?;
        // If several processes retry it at once, only one finds it in its round.
        let text = "
            UPDATE webhook_delivery SET round = round + 1, next_at = NULL, updated_at = now_ms()
            WHERE message_seq = $1 AND endpoint_seq = $2 AND round = $3 AND state = 0";
        let mut rounds = Vec::with_capacity(rows.len());
        for row in &rows {
            rounds.push(DeliveryRound { message: row.int(0)?, endpoint: seq, round: row.int(1)? });
        }
        let params = rounds
            .iter()
            .map(|delivery| params![delivery.message, delivery.endpoint, delivery.round]);
        let changed = tx.execute_many(text, params.collect::<Vec<_>>()).await?;
        let found = rounds.iter().zip(changed).filter(|(_, changed)| *changed > 0);
        let jobs = found.map(|(delivery, _)| {
            job(
                Class::Retry,
                DeliveryRound { round: delivery.round + 1, ..*delivery },
                Duration::ZERO,
            )
        });
        let jobs: Vec<_> = jobs.collect();
        self.enqueue_in(tx, &jobs).await?;
        Ok((last, u64::try_from(jobs.len()).unwrap_or(u64::MAX)))
    }

    /// Enqueues the new round of deliveries, or makes them wait for their turn.
    async fn again_in(
        &self,
        tx: &Tx,
        seq: i64,
        endpoint: &Endpoint,
        rows: &[logmill_io::Row],
        class: Class,
    ) -> Result<()> {
        if endpoint.ordered {
            self.advance_in(tx, seq).await?;
            return Ok(());
        }
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            let delivery =
                DeliveryRound { message: row.int(0)?, endpoint: seq, round: row.int(1)? };
            jobs.push(job(class, delivery, Duration::ZERO));
        }
        self.enqueue_in(tx, &jobs).await
    }
}

/// The oldest deliveries to an endpoint, after a message, whose job waits for a later time. Deliveries that are being
/// sent are not included.
pub(super) fn waiting() -> String {
    let kinds = Class::ALL.map(|class| format!("'{}'", class.kind())).join(", ");
    format!(
        "SELECT d.message_seq, d.round FROM webhook_delivery d
         WHERE d.endpoint_seq = $1 AND d.state <> 2 AND d.state = 0 AND d.message_seq > $2
             AND EXISTS (SELECT 1 FROM job WHERE job.kind IN ({kinds}) AND job.state = 0
                 AND job.due_us > now_ms() * 1000
                 AND job.key = CAST(d.message_seq AS TEXT) || '-'
                     || CAST(d.endpoint_seq AS TEXT) || '-' || CAST(d.round AS TEXT))
         ORDER BY d.message_seq LIMIT $3"
    )
}

fn first_state(endpoint: &Endpoint) -> DeliveryState {
    if endpoint.ordered { DeliveryState::Waiting } else { DeliveryState::Pending }
}

async fn enabled_in(tx: &Tx, endpoint_id: &str) -> Result<(i64, Endpoint)> {
    let (seq, endpoint) = read_in(tx, endpoint_id).await?;
    if !endpoint.enabled {
        return Err(Error::conflict(format!("the endpoint {endpoint_id} is disabled")));
    }
    Ok((seq, endpoint))
}
