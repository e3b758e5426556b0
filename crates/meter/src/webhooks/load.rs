//! Loading: what is needed to send the deliveries that were claimed.
//!
//! Guarantees: a delivery is sent only if it is pending in the round of its job and its endpoint is enabled; whatever
//! else is claimed is settled without a request. Bodies are read once for all endpoints. Leaves to others: sending.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use logmill_io::{Value, params};
use logmill_work::Claim;
use quick_cache::unsync::Cache;
use serde_json::json;

use super::Webhooks;
use super::lanes::Class;
use super::publish::{JobOf, numbers};
use super::record::{Ending, Settled};
use super::tables::DeliveryState;
use super::targets::{Snapshot, Target};
use crate::error::Result;

/// How many messages are kept in memory.
const MESSAGES_MAX: usize = 1_000;

/// A message as it is sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) body: Bytes,
}

/// A delivery that is ready to be sent.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) class: Class,
    pub(super) of: JobOf,
    /// How many attempts were made in this round.
    pub(super) attempts: i64,
    pub(super) target: Arc<Target>,
    pub(super) message: Arc<Message>,
}

/// What becomes of a claim.
#[derive(Debug)]
pub(super) enum Loaded {
    Send(Held),
    Settle(Settled),
}

/// Reads messages, and remembers the last ones.
pub(super) struct Loader {
    messages: Cache<i64, Arc<Message>>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loader({} messages)", self.messages.len())
    }
}

impl Loader {
    pub(super) fn new() -> Self {
        Self { messages: Cache::new(MESSAGES_MAX) }
    }

    /// Finds out what becomes of each claim. After an error nothing has happened.
    pub(super) async fn load(
        &mut self,
        hooks: &Webhooks,
        targets: &Snapshot,
        claims: &[(Class, Claim)],
    ) -> Result<Vec<Loaded>> {
        let parsed: Vec<Option<JobOf>> =
            claims.iter().map(|(_, claim)| JobOf::parse(&claim.payload).ok()).collect();
        let pending = pending(hooks, parsed.iter().flatten()).await?;
        let messages = self.messages(hooks, pending.keys().map(|of| of.message)).await?;
        let loaded = claims.iter().zip(parsed).map(|((class, claim), of)| {
            let settle = |of, attempts, ending| {
                let (claim, class) = (claim.clone(), *class);
                Loaded::Settle(Settled { claim, class, of, attempts, ending, again: false })
            };
            let none = JobOf { message: 0, endpoint: 0, round: 0 };
            let Some(of) = of else {
                return settle(none, 0, Ending::Stale);
            };
            let (Some(attempts), Some(message)) = (pending.get(&of), messages.get(&of.message))
            else {
                return settle(of, 0, Ending::Stale);
            };
            let cancel = |why| settle(of, *attempts, Ending::Cancelled { why });
            match targets.by_seq.get(&of.endpoint) {
                None => cancel("the endpoint was deleted"),
                Some(target) if !target.enabled => cancel("the endpoint is disabled"),
                Some(target) => Loaded::Send(Held {
                    claim: claim.clone(),
                    class: *class,
                    of,
                    attempts: *attempts,
                    target: Arc::clone(target),
                    message: Arc::clone(message),
                }),
            }
        });
        Ok(loaded.collect())
    }

    /// The messages with these numbers that exist.
    async fn messages(
        &mut self,
        hooks: &Webhooks,
        wanted: impl Iterator<Item = i64>,
    ) -> Result<BTreeMap<i64, Arc<Message>>> {
        let (mut found, mut missing) = (BTreeMap::new(), BTreeSet::new());
        for seq in wanted {
            match self.messages.get(&seq) {
                Some(message) => found.extend([(seq, Arc::clone(message))]),
                None => missing.extend([seq]),
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let text = "
            SELECT seq, id, body FROM webhook_message
            WHERE seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))";
        let rows = hooks.sql().query(text, params![numbers(missing.into_iter())]).await?.rows;
        for row in &rows {
            let body = Bytes::copy_from_slice(row.text(2)?.as_bytes());
            let message = Arc::new(Message { id: row.text(1)?.to_owned(), body });
            self.messages.insert(row.int(0)?, Arc::clone(&message));
            found.insert(row.int(0)?, message);
        }
        Ok(found)
    }
}

/// Those deliveries that are pending in the round of their job, with how many attempts they had.
async fn pending(
    hooks: &Webhooks,
    of: impl Iterator<Item = &JobOf>,
) -> Result<BTreeMap<JobOf, i64>> {
    let list: Vec<serde_json::Value> = of.map(|of| json!([of.message, of.endpoint])).collect();
    if list.is_empty() {
        return Ok(BTreeMap::new());
    }
    let text = format!(
        "SELECT d.message_seq, d.endpoint_seq, d.round, d.attempts
         FROM (SELECT CAST(value ->> 0 AS BIGINT) AS m, CAST(value ->> 1 AS BIGINT) AS e
             FROM json_list($1)) AS j
         JOIN webhook_delivery AS d ON d.message_seq = j.m AND d.endpoint_seq = j.e
         WHERE d.state = {}",
        DeliveryState::Pending.number()
    );
    let rows = hooks.sql().query(&text, params![Value::json(&list.into())]).await?.rows;
    let pending = rows.iter().map(|row| {
        let of = JobOf { message: row.int(0)?, endpoint: row.int(1)?, round: row.int(2)? };
        Ok((of, row.int(3)?))
    });
    pending.collect()
}
