//! Replaying: deliveries are sent again, each with a whole schedule; and retrying, now instead of later.
//!
//! Both are a new round of the same delivery: the message keeps its id, the attempts of earlier rounds stay in the log,
//! and what is left of the earlier round's job does nothing. A replay begins the schedule again, and is for deliveries
//! that are settled; a retry goes on with the schedule where it was, and is for those that wait for their next attempt.
//!
//! Guarantees: each batch is one transaction; at an ordered endpoint replays take their turn. Many at once take the
//! slots of overflow, or those of retries, not those of first attempts. Leaves to others: how often somebody asks.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, params};
use serde_json::json;

use super::Webhooks;
use super::admin::read_in;
use super::endpoint::Endpoint;
use super::lanes::Class;
use super::publish::{JobOf, job};
use super::tables::DeliveryState;
use super::targets::changed;
use crate::error::{Error, Result};
use crate::requests::{self, KeyedRequest};

/// The most deliveries that one call replays.
pub const REPLAY_MAX: u64 = 10_000;
/// How many of them one transaction does.
const BATCH: i64 = 500;

/// The oldest messages after the fifth parameter whose deliveries to an endpoint are exhausted or cancelled: the first
/// of each, by the index, instead of all that was ever sent to it.
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

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many deliveries are sent again.
    pub deliveries: u64,
    /// Whether there may be more: then ask again.
    pub more: bool,
}

impl Webhooks {
    /// Sends one message to one endpoint again, whatever became of it before.
    pub async fn replay(&self, message_id: &str, endpoint_id: &str) -> Result<()> {
        self.replay_once(message_id, endpoint_id, None).await
    }

    /// The same, unless the request was done before.
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
                return Err(Error::not_found(what).into());
            }
            self.again_in(&tx, seq, &endpoint, &found.rows, Class::First).await?;
            Ok(requests::keep_in(&tx, request, &json!({ "deliveries": 1 })).await?)
        });
        replayed.await?;
        self.wake();
        Ok(())
    }

    /// Sends all messages to one endpoint again that were published since then and failed, or were cancelled; at most
    /// [`REPLAY_MAX`], oldest first.
    pub async fn replay_since(&self, endpoint_id: &str, since: Timestamp) -> Result<Replayed> {
        let (mut replayed, mut after) = (Replayed::default(), 0);
        while replayed.deliveries < REPLAY_MAX {
            let batch = self.sql().write(|tx| async move {
                Ok(self.replay_batch_in(&tx, endpoint_id, since, after).await?)
            });
            let batch = batch.await?;
            self.wake();
            let Some(last) = batch.iter().max() else {
                return Ok(replayed);
            };
            after = *last;
            replayed.deliveries += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        }
        Ok(Replayed { more: true, ..replayed })
    }

    /// Replays a batch of the messages after this one; gives which.
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

    /// Sends all messages to one endpoint now that wait for their next attempt, because one failed or because the
    /// endpoint was left alone for a while; at most [`REPLAY_MAX`], oldest first. Their schedules go on where they
    /// were.
    pub async fn retry_now(&self, endpoint_id: &str) -> Result<Replayed> {
        let (mut retried, mut after) = (Replayed::default(), 0);
        while retried.deliveries < REPLAY_MAX {
            let batch = self
                .sql()
                .write(|tx| async move { Ok(self.retry_batch_in(&tx, endpoint_id, after).await?) });
            let (last, count) = batch.await?;
            self.wake();
            let Some(last) = last else { return Ok(retried) };
            after = last;
            retried.deliveries += count;
        }
        Ok(Replayed { more: true, ..retried })
    }

    /// Retries a batch of the messages after this one; gives the last that was looked at, and how many are sent.
    async fn retry_batch_in(
        &self,
        tx: &Tx,
        endpoint_id: &str,
        after: i64,
    ) -> Result<(Option<i64>, u64)> {
        // Deliverers learn from it that the endpoint is no longer to be left alone.
        changed(tx).await?;
        let (seq, _) = enabled_in(tx, endpoint_id).await?;
        let rows = tx.execute(&waiting(), params![seq, after, BATCH]).await?.rows;
        let last = rows.last().map(|row| row.int(0)).transpose()?;
        let text = "UPDATE webhook_endpoint SET retries = retries + 1 WHERE seq = $1";
        tx.execute(text, params![seq]).await?;
        // Of several that retry it at once one finds it in its round.
        let text = "
            UPDATE webhook_delivery SET round = round + 1, next_at = NULL, updated_at = now_ms()
            WHERE message_seq = $1 AND endpoint_seq = $2 AND round = $3 AND state = 0";
        let mut rounds = Vec::with_capacity(rows.len());
        for row in &rows {
            rounds.push(JobOf { message: row.int(0)?, endpoint: seq, round: row.int(1)? });
        }
        let params = rounds.iter().map(|of| params![of.message, of.endpoint, of.round]);
        let changed = tx.execute_many(text, params.collect::<Vec<_>>()).await?;
        let found = rounds.iter().zip(changed).filter(|(_, changed)| *changed > 0);
        let jobs = found
            .map(|(of, _)| job(Class::Retry, JobOf { round: of.round + 1, ..*of }, Duration::ZERO));
        let jobs: Vec<_> = jobs.collect();
        self.enqueue_in(tx, &jobs).await?;
        Ok((last, u64::try_from(jobs.len()).unwrap_or(u64::MAX)))
    }

    /// Enqueues the new round of deliveries, or lets them wait for their turn.
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
            let of = JobOf { message: row.int(0)?, endpoint: seq, round: row.int(1)? };
            jobs.push(job(class, of, Duration::ZERO));
        }
        self.enqueue_in(tx, &jobs).await
    }
}

/// The oldest deliveries to an endpoint after a message whose job waits for a later time; those that are being sent are
/// not among them.
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
