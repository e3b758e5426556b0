//! Summaries: the state of a message's delivery, over all endpoints that get it.
//!
//! Deliveries are removed some time after they are settled ([`super::retention`]). For messages about aggregates, a
//! summary is written in the same transaction and kept for as long as the aggregate is.
//!
//! Guarantees: a summary is the same before and after its deliveries were removed; one statement reads a whole page.
//! Leaves to others: which message belongs to which aggregate.

use std::collections::BTreeMap;

use logmill_io::sql::Execute;
use logmill_io::{Row, Timestamp, Tx, Value, params};

use super::Webhooks;
use crate::error::Result;

/// State of the delivery of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliverySummary {
    /// Whether every endpoint that gets the message has received it; false if there is none.
    pub delivered: bool,
    pub attempts: i64,
    /// When the last endpoint received it, if all have.
    pub delivered_at: Option<Timestamp>,
    /// Time of the last change.
    pub last_attempt_at: Option<Timestamp>,
    pub last_error: Option<String>,
}

/// Columns of a summary, for a message `m` and its deliveries `d`, grouped by message. The engines return different
/// types for sums and order text differently, so the sum is cast, and the error is the latest one, not the maximum.
const COLUMNS: &str = "
    m.id, count(*), count(CASE WHEN d.state = 2 THEN 1 END), CAST(sum(d.attempts) AS BIGINT),
    max(d.updated_at), (SELECT e.last_error FROM webhook_delivery e
        WHERE e.message_seq = m.seq AND e.last_error IS NOT NULL
        ORDER BY e.updated_at DESC, e.endpoint_seq LIMIT 1)";

impl Webhooks {
    /// Delivery summaries of these messages, by id. A message without deliveries has no summary.
    pub async fn summaries(&self, ids: &[String]) -> Result<BTreeMap<String, DeliverySummary>> {
        let wanted: Vec<[&str; 1]> = ids.iter().map(|id| [id.as_str()]).collect();
        let wanted = Value::json(&serde_json::json!(wanted));
        let kept = "
            SELECT s.message_id, s.deliveries, s.succeeded, s.attempts, s.updated_at, s.last_error
            FROM json_list($1) CROSS JOIN webhook_summary s WHERE s.message_id = value ->> 0";
        let live = live_text();
        let mut summaries = BTreeMap::new();
        // Messages that still have deliveries come last: a message may have been published again.
        for text in [kept, live.as_str()] {
            for row in &self.sql().query(text, params![wanted.clone()]).await?.rows {
                summaries.insert(row.text(0)?.to_owned(), delivery_summary(row)?);
            }
        }
        Ok(summaries)
    }
}

/// SQL for messages that still have their deliveries.
pub(super) fn live_text() -> String {
    format!(
        "SELECT {COLUMNS} FROM json_list($1) CROSS JOIN webhook_message m
            JOIN webhook_delivery d ON d.message_seq = m.seq
         WHERE m.id = value ->> 0 GROUP BY m.seq, m.id"
    )
}

fn delivery_summary(row: &Row) -> Result<DeliverySummary> {
    let (all, succeeded, attempts) = (row.int(1)?, row.int(2)?, row.int(3)?);
    let (delivered, at) = (all == succeeded, row.opt_time(4)?);
    Ok(DeliverySummary {
        delivered,
        attempts,
        delivered_at: at.filter(|_| delivered),
        last_attempt_at: at.filter(|_| attempts > 0),
        last_error: row.opt_text(5)?.map(str::to_owned).filter(|_| !delivered),
    })
}

/// Stores the summaries of messages about aggregates whose deliveries are about to be removed.
pub(super) async fn keep_in(tx: &Tx, messages: Value) -> Result<()> {
    let text = format!(
        "INSERT INTO webhook_summary
            (message_id, deliveries, succeeded, attempts, updated_at, last_error)
         SELECT {COLUMNS} FROM webhook_message m JOIN webhook_delivery d ON d.message_seq = m.seq
         WHERE m.kind IN ('aggregation.completed', 'aggregation.corrected') AND m.seq any_of(
             SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
         GROUP BY m.seq, m.id
         ON CONFLICT (message_id) DO UPDATE SET deliveries = excluded.deliveries,
             succeeded = excluded.succeeded, attempts = excluded.attempts,
             updated_at = excluded.updated_at, last_error = excluded.last_error"
    );
    tx.execute(&text, params![messages]).await?;
    Ok(())
}
