//! Loading: reads what is needed to send claimed deliveries.
//!
//! Guarantees: a delivery is sent only if it is pending in the round of its job and its endpoint is enabled; any
//! other claim is settled without a request. A delivery that cannot be signed because a key is missing is held, and
//! checked again after [`KEY_WAIT`]. A body is read once for all endpoints. Leaves to others: sending.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logmill_io::{Value, params};
use logmill_work::Claim;
use quick_cache::unsync::Cache;
use serde_json::json;

use super::Webhooks;
use super::endpoint_queues::Class;
use super::publish::{DeliveryRound, numbers};
use super::record::{Ending, SettledClaim};
use super::tables::DeliveryState;
use super::targets::{Snapshot, Target};
use crate::error::Result;

/// Maximum number of cached messages.
const MESSAGES_MAX: usize = 1_000;
/// Delay before a delivery held because of a missing key is checked again: another process may have the key.
const KEY_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) body: Bytes,
}

/// A delivery that is ready to be sent.
#[derive(Debug)]
pub(super) struct ReadyDelivery {
    pub(super) claim: Claim,
    pub(super) class: Class,
    pub(super) delivery: DeliveryRound,
    /// Attempts made in this round.
    pub(super) attempts: i64,
    pub(super) target: Arc<Target>,
    pub(super) message: Arc<Message>,
}

/// What to do with a claim.
#[derive(Debug)]
pub(super) enum ClaimAction {
    Send(ReadyDelivery),
    Settle(SettledClaim),
}

/// Reads messages, and caches the most recent ones.
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

    /// Decides what to do with each claim. An error leaves everything unchanged.
    pub(super) async fn load(
        &mut self,
        hooks: &Webhooks,
        targets: &Snapshot,
        claims: &[(Class, Claim)],
    ) -> Result<Vec<ClaimAction>> {
        let parsed: Vec<Option<DeliveryRound>> =
            claims.iter().map(|(_, claim)| DeliveryRound::parse(&claim.payload).ok()).collect();
        let pending = pending(hooks, parsed.iter().flatten()).await?;
        let messages =
            self.messages(hooks, pending.keys().map(|delivery| delivery.message)).await?;
        let loaded = claims.iter().zip(parsed).map(|((class, claim), delivery)| {
            let settle = |delivery, attempts, ending| {
                let (claim, class) = (claim.clone(), *class);
                ClaimAction::Settle(SettledClaim {
                    claim,
                    class,
                    delivery,
                    attempts,
                    ending,
                    again: false,
                })
            };
            let none = DeliveryRound { message: 0, endpoint: 0, round: 0 };
            let Some(delivery) = delivery else {
                return settle(none, 0, Ending::Stale);
            };
            let (Some(attempts), Some(message)) =
                (pending.get(&delivery), messages.get(&delivery.message))
            else {
                return settle(delivery, 0, Ending::Stale);
            };
            let cancel = |why| settle(delivery, *attempts, Ending::Cancelled { why });
            match targets.by_seq.get(&delivery.endpoint) {
                None => cancel("the endpoint was deleted"),
                Some(target) if !target.enabled => cancel("the endpoint is disabled"),
                Some(target) if !target.can_sign() => {
                    // Jobs of the class `First` are due at once, so a delayed one needs another class.
                    let class = if *class == Class::First { Class::Overflow } else { *class };
                    let why = "held: its endpoint's secret cannot be decrypted";
                    settle(delivery, *attempts, Ending::Postponed { class, wait: KEY_WAIT, why })
                }
                Some(target) => ClaimAction::Send(ReadyDelivery {
                    claim: claim.clone(),
                    class: *class,
                    delivery,
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

/// The deliveries that are pending in the round of their job, with their number of attempts.
async fn pending(
    hooks: &Webhooks,
    deliveries: impl Iterator<Item = &DeliveryRound>,
) -> Result<BTreeMap<DeliveryRound, i64>> {
    let list: Vec<serde_json::Value> =
        deliveries.map(|delivery| json!([delivery.message, delivery.endpoint])).collect();
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
        let delivery =
            DeliveryRound { message: row.int(0)?, endpoint: row.int(1)?, round: row.int(2)? };
        Ok((delivery, row.int(3)?))
    });
    pending.collect()
}
