//! Retention: removes messages that are settled everywhere, with their deliveries and attempts, after a while.
//!
//! Guarantees: nothing unsettled is removed; each batch is one short transaction, and the delivery summary of an
//! aggregate stays (`delivery_summary`). A message that was removed and is published again counts as new, so the
//! retention must be longer than any publisher keeps retrying. Leaves to others: when to run.

use std::collections::BTreeSet;
use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Tx, millis, params};
use logmill_work::State;

use super::Webhooks;
use super::delivery_summary;
use super::endpoint_queues::Class;
use super::publish::numbers;
use crate::error::Result;

/// How long a finished job is kept: it contains nothing that its delivery does not.
const JOB_AGE: Duration = Duration::from_secs(600);
/// Messages removed per transaction.
const BATCH: i64 = 200;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeResult {
    /// Messages, with all their deliveries and attempts.
    pub messages: u64,
    /// Finished jobs.
    pub jobs: u64,
}

/// Messages older than the retention, oldest first, after a position; each with whether it is settled everywhere.
/// Ordered by time and not by number: the clock may have jumped, so that a younger message does not prove that all
/// later ones are younger.
pub(super) const OLD: &str = "
    SELECT created_at, seq, (SELECT 1 FROM webhook_delivery
        WHERE message_seq = seq AND state IN (0, 1) LIMIT 1)
    FROM webhook_message
    WHERE (created_at, seq) > ($1, $2) AND created_at <= now_ms() - $3
    ORDER BY created_at, seq LIMIT $4";

impl Webhooks {
    /// Removes messages older than the retention, and finished jobs.
    pub async fn purge(&self) -> Result<PurgeResult> {
        let mut purged = PurgeResult::default();
        for class in Class::ALL {
            purged.jobs += self.queue.purge(class.kind(), State::Done, JOB_AGE).await?;
        }
        let age = millis(self.settings.retention);
        let mut after = (i64::MIN, 0);
        loop {
            // There is rarely anything to remove, and reading is cheaper than writing.
            let params = params![after.0, after.1, age, BATCH];
            let looked = self.sql().query(OLD, params).await?.rows;
            let mut settled = BTreeSet::new();
            for row in &looked {
                after = (row.int(0)?, row.int(1)?);
                if row.is_null(2) {
                    settled.insert(after.1);
                }
            }
            if !settled.is_empty() {
                let removed = self.sql().write(|tx| {
                    let settled = settled.clone();
                    async move { remove_in(&tx, settled).await }
                });
                purged.messages += removed.await?;
            }
            if i64::try_from(looked.len()).unwrap_or(i64::MAX) < BATCH {
                return Ok(purged);
            }
        }
    }
}

/// Removes messages, except those that were replayed since they were read; returns how many.
async fn remove_in(tx: &Tx, mut messages: BTreeSet<i64>) -> Result<u64> {
    let text = "SELECT message_seq FROM webhook_delivery WHERE state IN (0, 1)
        AND message_seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))";
    let list = numbers(messages.iter().copied());
    for row in &tx.execute(text, params![list]).await?.rows {
        messages.remove(&row.int(0)?);
    }
    let list = numbers(messages.iter().copied());
    delivery_summary::keep_in(tx, list.clone()).await?;
    for (table, column) in [
        ("webhook_attempt", "message_seq"),
        ("webhook_delivery", "message_seq"),
        ("webhook_message", "seq"),
    ] {
        let text = format!(
            "DELETE FROM {table} WHERE {column} any_of(
                SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))"
        );
        tx.execute(&text, params![list.clone()]).await?;
    }
    Ok(u64::try_from(messages.len()).unwrap_or(u64::MAX))
}
