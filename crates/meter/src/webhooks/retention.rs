//! Forgetting: messages that are settled everywhere, with their deliveries and attempts, after a while.
//!
//! Guarantees: nothing that is not settled is removed; each batch is one short transaction. A message that was removed
//! and is published again is a new one, so retention is longer than anybody repeats himself. Leaves to others: when.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Tx, millis, params};
use logmill_work::State;

use super::Webhooks;
use super::lanes::Class;
use super::publish::numbers;
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

impl Webhooks {
    /// Removes what is older than the retention, and finished jobs.
    pub async fn purge(&self) -> Result<Purged> {
        let mut purged = Purged::default();
        for class in Class::ALL {
            purged.jobs += self.queue.purge(class.kind(), State::Done, JOB_AGE).await?;
        }
        let mut after = 0;
        loop {
            let batch = self.sql().write(|tx| async move { Ok(self.purge_in(&tx, after).await?) });
            let (removed, last) = batch.await?;
            purged.messages += removed;
            match last {
                Some(last) => after = last,
                None => return Ok(purged),
            }
        }
    }

    /// Removes a batch of messages; gives how many, and the last one that it looked at if there may be more.
    async fn purge_in(&self, tx: &Tx, after: i64) -> Result<(u64, Option<i64>)> {
        let text = "
            SELECT seq, (SELECT count(*) FROM webhook_delivery
                WHERE message_seq = seq AND state IN (0, 1))
            FROM webhook_message WHERE seq > $1 AND created_at <= now_ms() - $2
            ORDER BY seq LIMIT $3";
        let age = millis(self.settings.retention);
        let looked = tx.execute(text, params![after, age, BATCH]).await?.rows;
        let mut old = Vec::new();
        for row in &looked {
            if row.int(1)? == 0 {
                old.push(row.int(0)?);
            }
        }
        let list = numbers(old.iter().copied());
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
        let full = i64::try_from(looked.len()).unwrap_or(0) == BATCH;
        let last = looked.last().filter(|_| full).map(|row| row.int(0)).transpose()?;
        Ok((u64::try_from(old.len()).unwrap_or(u64::MAX), last))
    }
}
