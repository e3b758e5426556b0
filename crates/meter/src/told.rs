//! Told: how far webhooks are with telling of aggregates.
//!
//! Guarantees: one statement for a whole page. Leaves to others: delivering ([`crate::webhooks`]).

use std::collections::BTreeMap;

use logmill_io::{Timestamp, Value, params};

use crate::aggregate::revision_message_id;
use crate::error::Result;
use crate::list::Aggregate;
use crate::meter::Meter;

/// How far webhooks are with telling of what an aggregate says now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Whether every endpoint that is to be told has been.
    pub delivered: bool,
    /// How many attempts were made.
    pub attempts: i64,
    /// When the last endpoint was told, if all were.
    pub delivered_at: Option<Timestamp>,
    /// When something happened last.
    pub last_attempt_at: Option<Timestamp>,
    /// What went wrong last.
    pub last_error: Option<String>,
}

impl Meter {
    /// How far webhooks are with telling of these aggregates, in their order.
    pub async fn told(&self, aggregates: &[Aggregate]) -> Result<Vec<Told>> {
        let ids: Vec<String> = aggregates
            .iter()
            .map(|aggregate| revision_message_id(&aggregate.id, aggregate.revision))
            .collect();
        let text = "
            SELECT m.id, count(*), count(CASE WHEN d.state = 2 THEN 1 END), sum(d.attempts),
                max(d.updated_at), max(d.last_error)
            FROM json_list($1) CROSS JOIN webhook_message m
                JOIN webhook_delivery d ON d.message_seq = m.seq
            WHERE m.id = value ->> 0 GROUP BY m.id";
        let wanted: Vec<[&str; 1]> = ids.iter().map(|id| [id.as_str()]).collect();
        let found = self.sql.query(text, params![Value::json(&serde_json::json!(wanted))]).await?;
        let mut by_id = BTreeMap::new();
        for row in &found.rows {
            let (all, done) = (row.int(1)?, row.int(2)?);
            let attempts = row.int(3)?;
            let at = row.opt_time(4)?;
            let told = Told {
                delivered: all == done,
                attempts,
                delivered_at: at.filter(|_| all == done),
                last_attempt_at: at.filter(|_| attempts > 0),
                last_error: row.opt_text(5)?.map(str::to_owned).filter(|_| all != done),
            };
            by_id.insert(row.text(0)?.to_owned(), told);
        }
        Ok(ids.iter().map(|id| by_id.remove(id).unwrap_or_default()).collect())
    }
}
