//! Forgetting: messages that are settled everywhere, with their deliveries and attempts, after a while.
//!
//! Guarantees: nothing that is not settled is removed; each batch is one short transaction, and what is said of an
//! aggregate's delivery stays (`summary`). A message that was removed and is published again is a new one, so retention
//! is longer than anybody repeats himself. Leaves to others: when.

use std::collections::BTreeSet;
use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Tx, millis, params};
use logmill_work::State;

use super::Webhooks;
use super::lanes::Class;
use super::publish::numbers;
use super::summary;
use crate::error::Result;

/// How long a finished job is kept: it says nothing that its delivery does not.
const JOB_AGE: Duration = Duration::from_secs(600);
/// How many messages one transaction removes.
const BATCH: i64 = 200;

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Messages, with all their deliveries and attempts.
    pub messages: u64,
    /// Finished jobs.
    pub jobs: u64,
}

/// Messages that are older than the retention, oldest first, after a place; each with whether it is settled everywhere.
/// By time and not by number: a clock may have jumped, so that a younger one is no sign that all after it are younger.
pub(super) const OLD: &str = "
    SELECT created_at, seq, (SELECT 1 FROM webhook_delivery
        WHERE message_seq = seq AND state IN (0, 1) LIMIT 1)
    FROM webhook_message
    WHERE (created_at, seq) > ($1, $2) AND created_at <= now_ms() - $3
    ORDER BY created_at, seq LIMIT $4";

impl Webhooks {
    /// Removes what is older than the retention, and finished jobs.
    pub async fn purge(&self) -> Result<Purged> {
        let mut purged = Purged::default();
        for class in Class::ALL {
            purged.jobs += self.queue.purge(class.kind(), State::Done, JOB_AGE).await?;
        }
        let age = millis(self.settings.retention);
        let mut after = (i64::MIN, 0);
        loop {
            // Hardly ever is there one, and to look is cheaper than to write.
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
                    async move { Ok(remove_in(&tx, settled).await?) }
                });
                purged.messages += removed.await?;
            }
            if i64::try_from(looked.len()).unwrap_or(i64::MAX) < BATCH {
                return Ok(purged);
            }
        }
    }
}

/// Removes messages, except those that are sent again since somebody looked; gives how many.
async fn remove_in(tx: &Tx, mut messages: BTreeSet<i64>) -> Result<u64> {
    let text = "SELECT message_seq FROM webhook_delivery WHERE state IN (0, 1)
        AND message_seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))";
    let list = numbers(messages.iter().copied());
    for row in &tx.execute(text, params![list]).await?.rows {
        messages.remove(&row.int(0)?);
    }
    let list = numbers(messages.iter().copied());
    summary::keep_in(tx, list.clone()).await?;
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
