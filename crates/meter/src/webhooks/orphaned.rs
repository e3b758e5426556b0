//! Orphaned deliveries: pending deliveries without a job that would send them.
//!
//! A delivery and its job change in one transaction, so none is orphaned by itself. But an operator can cancel jobs,
//! and a delivery is sent only by its job.
//!
//! Guarantees: every pending delivery is checked from time to time, a page at a time and by an index. One that has had
//! no job for [`REST`] gets a new one, in a new round, so that the old round's job does nothing if it comes back. Its
//! schedule continues where it was. Leaves to others: when to check.

use std::time::Duration;

use logmill_io::{Tx, millis, params};

use super::Webhooks;
use super::endpoint_queues::Class;
use super::publish::{DeliveryRound, job};
use crate::error::Result;

/// Pending deliveries checked per call.
pub(super) const PAGE: i64 = 500;
/// How long a delivery must be unchanged before it can count as orphaned.
pub(super) const REST: Duration = Duration::from_secs(300);

/// Position in the scan of pending deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanPosition {
    endpoint: i64,
    message: i64,
}

/// A page of pending deliveries after a position, each with whether it is orphaned.
pub(super) fn page() -> String {
    let kinds = Class::ALL.map(|class| format!("'{}'", class.kind())).join(", ");
    format!(
        "SELECT d.endpoint_seq, d.message_seq, d.round,
            CASE WHEN d.updated_at > now_ms() - $4 THEN 0
                WHEN (SELECT 1 FROM job WHERE job.kind IN ({kinds}) AND job.state IN (0, 1)
                    AND job.key = CAST(d.message_seq AS TEXT) || '-'
                        || CAST(d.endpoint_seq AS TEXT) || '-' || CAST(d.round AS TEXT)
                    LIMIT 1) IS NOT NULL THEN 0
                ELSE 1 END
         FROM (SELECT endpoint_seq, message_seq, round, updated_at FROM webhook_delivery
            WHERE state <> 2 AND state = 0 AND (endpoint_seq, message_seq) > ($1, $2)
            ORDER BY endpoint_seq, message_seq LIMIT $3) AS d
         ORDER BY d.endpoint_seq, d.message_seq"
    )
}

impl Webhooks {
    /// Enqueues the orphaned deliveries of the next page of pending ones again; returns their number, and where the
    /// next call starts.
    pub(super) async fn requeue_orphaned(
        &self,
        after: ScanPosition,
    ) -> Result<(usize, ScanPosition)> {
        let params = params![after.endpoint, after.message, PAGE, millis(REST)];
        let rows = self.sql().query(&page(), params).await?.rows;
        let (mut orphaned, mut last) = (Vec::new(), ScanPosition::default());
        for row in &rows {
            let (endpoint, message, round) = (row.int(0)?, row.int(1)?, row.int(2)?);
            last = ScanPosition { endpoint, message };
            if row.int(3)? != 0 {
                orphaned.push(DeliveryRound { message, endpoint, round });
            }
        }
        if i64::try_from(rows.len()).unwrap_or(i64::MAX) < PAGE {
            last = ScanPosition::default();
        }
        if orphaned.is_empty() {
            return Ok((0, last));
        }
        let orphaned = &orphaned;
        let found =
            self.sql().write(|tx| async move { self.again_in_new_round(&tx, orphaned).await });
        let found = found.await?;
        if found > 0 {
            tracing::warn!(
                deliveries = found,
                "pending webhook deliveries had no job, enqueued them again"
            );
        }
        Ok((found, last))
    }

    async fn again_in_new_round(&self, tx: &Tx, orphaned: &[DeliveryRound]) -> Result<usize> {
        // If several processes find it orphaned, only one finds it in its round.
        let text = "
            UPDATE webhook_delivery SET round = round + 1, next_at = NULL, updated_at = now_ms()
            WHERE message_seq = $1 AND endpoint_seq = $2 AND round = $3 AND state = 0";
        let rows = orphaned
            .iter()
            .map(|delivery| params![delivery.message, delivery.endpoint, delivery.round]);
        let changed = tx.execute_many(text, rows.collect::<Vec<_>>()).await?;
        let found = orphaned.iter().zip(changed).filter(|(_, changed)| *changed > 0);
        let jobs = found.map(|(delivery, _)| {
            let delivery = DeliveryRound { round: delivery.round + 1, ..*delivery };
            job(Class::Overflow, delivery, Duration::ZERO)
        });
        let jobs: Vec<_> = jobs.collect();
        self.enqueue_in(tx, &jobs).await?;
        Ok(jobs.len())
    }
}
