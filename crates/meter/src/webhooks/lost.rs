//! Lost deliveries: those that are pending and have no job that would send them.
//!
//! A delivery and its job change in one transaction, so none is lost by itself. But jobs can be cancelled by hand, and
//! a delivery has no other way to the receiver.
//!
//! Guarantees: every pending delivery is looked at now and then, a page at a time and by an index; one that has had no
//! job for [`REST`] gets a new one, in a new round so that the job of the old one does nothing if it comes back. Its
//! schedule goes on where it was. Leaves to others: when to look.

use std::time::Duration;

use logmill_io::{Tx, millis, params};

use super::Webhooks;
use super::lanes::Class;
use super::publish::{JobOf, job};
use crate::error::Result;

/// How many pending deliveries one look goes over.
pub(super) const PAGE: i64 = 500;
/// How long nothing has happened to a delivery that may be lost.
pub(super) const REST: Duration = Duration::from_secs(300);

/// Where a look among pending deliveries ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LookedAt {
    endpoint: i64,
    message: i64,
}

/// A page of pending deliveries after a place, each with whether it is lost.
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
    /// Enqueues those anew of the next page of pending deliveries that are lost; gives how many, and where the next
    /// look begins.
    pub(super) async fn find_lost(&self, after: LookedAt) -> Result<(usize, LookedAt)> {
        let params = params![after.endpoint, after.message, PAGE, millis(REST)];
        let rows = self.sql().query(&page(), params).await?.rows;
        let (mut lost, mut last) = (Vec::new(), LookedAt::default());
        for row in &rows {
            let (endpoint, message, round) = (row.int(0)?, row.int(1)?, row.int(2)?);
            last = LookedAt { endpoint, message };
            if row.int(3)? != 0 {
                lost.push(JobOf { message, endpoint, round });
            }
        }
        if i64::try_from(rows.len()).unwrap_or(i64::MAX) < PAGE {
            last = LookedAt::default();
        }
        if lost.is_empty() {
            return Ok((0, last));
        }
        let lost = &lost;
        let found =
            self.sql().write(|tx| async move { Ok(self.again_in_new_round(&tx, lost).await?) });
        let found = found.await?;
        if found > 0 {
            tracing::warn!(deliveries = found, "had no job, and were enqueued anew");
        }
        Ok((found, last))
    }

    async fn again_in_new_round(&self, tx: &Tx, lost: &[JobOf]) -> Result<usize> {
        // Of several processes that saw it lost one finds it in its round.
        let text = "
            UPDATE webhook_delivery SET round = round + 1, next_at = NULL, updated_at = now_ms()
            WHERE message_seq = $1 AND endpoint_seq = $2 AND round = $3 AND state = 0";
        let rows = lost.iter().map(|of| params![of.message, of.endpoint, of.round]);
        let changed = tx.execute_many(text, rows.collect::<Vec<_>>()).await?;
        let found = lost.iter().zip(changed).filter(|(_, changed)| *changed > 0);
        let jobs = found.map(|(of, _)| {
            let of = JobOf { round: of.round + 1, ..*of };
            job(Class::Overflow, of, Duration::ZERO)
        });
        let jobs: Vec<_> = jobs.collect();
        self.enqueue_in(tx, &jobs).await?;
        Ok(jobs.len())
    }
}
