//! Turns: which of the deliveries that wait at an endpoint are pending next.
//!
//! Guarantees: at an endpoint that wants order one delivery is pending at a time, oldest first; whoever gives turns
//! holds the endpoint's lock and has read whether it wants order under it. One transaction gives at most
//! [`RELEASE_BATCH`] of them. Leaves to others: when a delivery is settled, and that one without a job is found
//! (`lost`).

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Tx, Value, params};

use super::Webhooks;
use super::lanes::Class;
use super::publish::{JobOf, job};
use crate::error::Result;

/// How many deliveries one transaction gives their turn.
pub(super) const RELEASE_BATCH: i64 = 1_000;
/// How many endpoints are unstuck at a time: recording and heartbeats wait meanwhile.
const UNSTICK_MAX: i64 = 20;

/// Endpoints where something waits although nothing is before it. Most where something waits are just busy with the
/// one before, and are not among them. From one endpoint where something waits to the next by the index, instead of
/// over all endpoints or all that waits.
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
    /// Gives the oldest delivery that waits at an ordered endpoint its turn, if no other has it; gives whether it did.
    pub(super) async fn advance_in(&self, tx: &Tx, seq: i64) -> Result<bool> {
        let text = "SELECT seq FROM webhook_endpoint WHERE seq = $1 FOR UPDATE";
        tx.execute(text, params![seq]).await?;
        // The state is looked at twice, as another process may cancel it in between.
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

    /// Gives all deliveries their turn that wait at an endpoint which does not want order any longer: batch by batch,
    /// as there may be many.
    pub(super) async fn release_waiting(&self, seq: i64) -> Result<()> {
        while self.give_turns(seq).await? == RELEASE_BATCH.unsigned_abs() {}
        Ok(())
    }

    /// Gives deliveries their turn that wait although nothing is before them: whether an endpoint wants order may have
    /// changed just while something was published or settled. Gives how many; there may be more if it is a batch.
    pub(super) async fn unstick(&self) -> Result<u64> {
        let mut unstuck = 0;
        for row in &self.sql().query(STUCK, params![UNSTICK_MAX]).await?.rows {
            unstuck += self.give_turns(row.int(0)?).await?;
        }
        Ok(unstuck)
    }

    /// Gives deliveries their turn as their endpoint wants it: the next one, or a batch; gives how many.
    async fn give_turns(&self, seq: i64) -> Result<u64> {
        let given = self.sql().write(|tx| async move { Ok(self.give_turns_in(&tx, seq).await?) });
        Ok(given.await?)
    }

    pub(super) async fn give_turns_in(&self, tx: &Tx, seq: i64) -> Result<u64> {
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

    /// Enqueues what a statement has made pending; gives how many.
    async fn begin_in(&self, tx: &Tx, text: &str, seq: i64, params: Vec<Value>) -> Result<u64> {
        let rows = tx.execute(text, params).await?.rows;
        let begun = rows
            .iter()
            .map(|row| Ok(JobOf { message: row.int(0)?, endpoint: seq, round: row.int(1)? }));
        let mut begun = begun.collect::<Result<Vec<JobOf>>>()?;
        // An engine gives rows in the order in which it came across them.
        begun.sort_unstable();
        let jobs: Vec<_> =
            begun.into_iter().map(|of| job(Class::First, of, Duration::ZERO)).collect();
        self.enqueue_in(tx, &jobs).await?;
        Ok(u64::try_from(jobs.len()).unwrap_or(u64::MAX))
    }
}
