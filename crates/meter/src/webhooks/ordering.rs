//! Ordered endpoints: which of the deliveries that wait at an endpoint become pending next.
//!
//! Guarantees: an ordered endpoint has one pending delivery at a time, oldest first. A transaction that makes
//! deliveries pending holds the endpoint's lock, and reads under it whether the endpoint is ordered. One transaction
//! makes at most [`RELEASE_BATCH`] of them pending. Leaves to others: when a delivery is settled, and finding
//! deliveries without a job (`orphaned`).

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Tx, Value, params};

use super::Webhooks;
use super::endpoint_queues::Class;
use super::publish::{DeliveryRound, job};
use crate::error::Result;

/// Deliveries that one transaction makes pending.
pub(super) const RELEASE_BATCH: i64 = 1_000;
/// Endpoints unstuck per call: recording and heartbeats wait meanwhile.
const UNSTICK_MAX: i64 = 20;

/// Endpoints with a delivery that waits needlessly: the endpoint is not ordered, or none of its deliveries is pending.
/// Most endpoints with waiting deliveries are just busy with the previous one, and are not selected. The query steps
/// from one endpoint with waiting deliveries to the next by the index, instead of scanning all endpoints or all
/// waiting deliveries.
pub(super) const STUCK: &str = "
    WITH RECURSIVE waiting (seq) AS (
        SELECT min(endpoint_seq) FROM webhook_delivery WHERE state <> 2 AND state = 1
        UNION ALL
        SELECT (SELECT min(endpoint_seq) FROM webhook_delivery
            WHERE state <> 2 AND state = 1 AND endpoint_seq > waiting.seq)
        FROM waiting WHERE waiting.seq IS NOT NULL)
    SELECT e.seq FROM waiting JOIN webhook_endpoint AS e ON e.seq = waiting.seq
    WHERE e.enabled = 1 AND (e.ordered = 0 OR (SELECT 1 FROM webhook_delivery AS d
        WHERE d.endpoint_seq = e.seq AND d.state <> 2 AND d.state = 0 LIMIT 1) IS NULL)
    LIMIT $1";

impl Webhooks {
    /// Makes the oldest waiting delivery of an ordered endpoint pending, if no other is; returns whether it did.
    pub(super) async fn advance_in(&self, tx: &Tx, seq: i64) -> Result<bool> {
        let text = "SELECT seq FROM webhook_endpoint WHERE seq = $1 FOR UPDATE";
        tx.execute(text, params![seq]).await?;
        // The state is checked twice because another process may cancel the delivery in between.
        let text = "
            UPDATE webhook_delivery SET state = 0, updated_at = now_ms()
            WHERE endpoint_seq = $1 AND state = 1 AND message_seq any_of(
                SELECT min(message_seq) FROM webhook_delivery
                WHERE endpoint_seq = $1 AND state <> 2 AND state = 1)
                AND NOT EXISTS (SELECT 1 FROM webhook_delivery
                    WHERE endpoint_seq = $1 AND state <> 2 AND state = 0)
            RETURNING message_seq, round";
        let begun = self.begin_in(tx, text, seq, params![seq]).await?;
        Ok(begun > 0)
    }

    /// Makes all waiting deliveries of an endpoint pending that is no longer ordered: batch by batch, because there
    /// may be many.
    pub(super) async fn release_waiting(&self, seq: i64) -> Result<()> {
        while self.release_next(seq).await? == RELEASE_BATCH.unsigned_abs() {}
        Ok(())
    }

    /// Makes deliveries pending that wait although nothing precedes them: the order setting of an endpoint may have
    /// changed just while a message was published or settled. Returns how many; a full batch means that there may be
    /// more.
    pub(super) async fn unstick(&self) -> Result<u64> {
        let mut unstuck = 0;
        for row in &self.sql().query(STUCK, params![UNSTICK_MAX]).await?.rows {
            unstuck += self.release_next(row.int(0)?).await?;
        }
        Ok(unstuck)
    }

    /// Makes the next delivery pending at an ordered endpoint, or a batch at any other; returns how many.
    async fn release_next(&self, seq: i64) -> Result<u64> {
        let given = self.sql().write(|tx| async move { self.release_next_in(&tx, seq).await });
        given.await
    }

    pub(super) async fn release_next_in(&self, tx: &Tx, seq: i64) -> Result<u64> {
        let text = "SELECT ordered FROM webhook_endpoint
            WHERE seq = $1 AND enabled = 1 FOR UPDATE";
        let found = tx.execute(text, params![seq]).await?;
        let Some(row) = found.rows.first() else {
            return Ok(0);
        };
        if row.int(0)? != 0 {
            return Ok(u64::from(self.advance_in(tx, seq).await?));
        }
        let text = "
            UPDATE webhook_delivery SET state = 0, updated_at = now_ms()
            WHERE endpoint_seq = $1 AND state = 1 AND message_seq any_of(
                SELECT message_seq FROM webhook_delivery
                WHERE endpoint_seq = $1 AND state <> 2 AND state = 1
                ORDER BY message_seq LIMIT $2)
            RETURNING message_seq, round";
        self.begin_in(tx, text, seq, params![seq, RELEASE_BATCH]).await
    }

    /// Enqueues the deliveries that a statement has made pending; returns how many.
    async fn begin_in(&self, tx: &Tx, text: &str, seq: i64, params: Vec<Value>) -> Result<u64> {
        let rows = tx.execute(text, params).await?.rows;
        let begun = rows.iter().map(|row| {
            Ok(DeliveryRound { message: row.int(0)?, endpoint: seq, round: row.int(1)? })
        });
        let mut begun = begun.collect::<Result<Vec<DeliveryRound>>>()?;
        // The engines return rows in no particular order.
        begun.sort_unstable();
        let jobs: Vec<_> =
            begun.into_iter().map(|delivery| job(Class::First, delivery, Duration::ZERO)).collect();
        self.enqueue_in(tx, &jobs).await?;
        Ok(u64::try_from(jobs.len()).unwrap_or(u64::MAX))
    }
}
