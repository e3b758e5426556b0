//! Publishing: creates the deliveries of a message, in the transaction of the change that it reports.
//!
//! Guarantees: a message whose id is already known changes nothing. Each enabled endpoint that subscribes to a message
//! gets one delivery of it and one job, created with it; at an ordered endpoint only the oldest unsettled delivery has
//! a job. Leaves to others: the wake-up after the commit ([`Webhooks::wake`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Timestamp, Tx, Value, params};
use logmill_work::NewJob;
use logmill_work::queue::BATCH_MAX;
use serde_json::json;

use super::Webhooks;
use super::endpoint_queues::Class;
use super::message::NewMessage;
use super::tables::DeliveryState;
use super::targets::{Connection, Target};
use crate::error::{Error, Result};

/// Messages inserted per statement.
const CHUNK: usize = 200;
/// Attempts are counted by deliveries. A postponed job also uses up one of these.
const JOB_ATTEMPTS_MAX: u32 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishResult {
    /// Number of messages that were new.
    pub messages: u64,
    /// Number of deliveries created for them.
    pub deliveries: u64,
}

/// Recipients of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipients {
    /// All endpoints that subscribe to it.
    Everyone,
    /// One endpoint, regardless of its filters.
    Only(i64),
}

const DELIVERIES: Bulk = Bulk {
    table: Cow::Borrowed("webhook_delivery"),
    columns: Cow::Borrowed(&[
        ("message_seq", ColumnType::Int),
        ("endpoint_seq", ColumnType::Int),
        ("state", ColumnType::Int),
        ("round", ColumnType::Int),
        ("attempts", ColumnType::Int),
        ("created_at", ColumnType::Int),
        ("updated_at", ColumnType::Int),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(""),
};

impl Webhooks {
    /// Publishes one message in the caller's transaction. The caller calls [`Webhooks::wake`] after the commit.
    pub(crate) async fn publish_in(&self, tx: &Tx, message: &NewMessage) -> Result<PublishResult> {
        self.publish_many_in(tx, std::slice::from_ref(message)).await
    }

    /// Publishes messages in the caller's transaction. The caller calls [`Webhooks::wake`] after the commit.
    pub async fn publish_many_in(&self, tx: &Tx, messages: &[NewMessage]) -> Result<PublishResult> {
        self.publish_to(tx, messages, Recipients::Everyone).await
    }

    /// Publishes one message in a transaction of its own, and wakes the deliverers.
    pub async fn publish(&self, message: &NewMessage) -> Result<PublishResult> {
        let published = self.sql().write(|tx| async move { self.publish_in(&tx, message).await });
        let published = published.await?;
        self.wake();
        Ok(published)
    }

    pub(super) async fn publish_to(
        &self,
        tx: &Tx,
        messages: &[NewMessage],
        to: Recipients,
    ) -> Result<PublishResult> {
        let now = tx.execute("SELECT now_ms()", params![]).await?.row()?.time(0)?;
        let targets = self.targets.current(Connection::Tx(tx), &self.keys).await?;
        let mut published = PublishResult::default();
        for chunk in messages.chunks(CHUNK) {
            let wanted: Vec<(&NewMessage, Vec<&Arc<Target>>)> = chunk
                .iter()
                .map(|message| {
                    let wants = |target: &&Arc<Target>| match to {
                        Recipients::Everyone => target.wants(message),
                        Recipients::Only(seq) => target.seq == seq,
                    };
                    (message, targets.by_seq.values().filter(wants).collect())
                })
                .collect();
            let done = self.publish_chunk(tx, &wanted, now).await?;
            published.messages += done.messages;
            published.deliveries += done.deliveries;
        }
        Ok(published)
    }

    async fn publish_chunk(
        &self,
        tx: &Tx,
        wanted: &[(&NewMessage, Vec<&Arc<Target>>)],
        now: Timestamp,
    ) -> Result<PublishResult> {
        let ordered = wanted.iter().flat_map(|(_, targets)| targets);
        let ordered = ordered.filter(|target| target.ordered).map(|target| target.seq);
        // Locks before the messages get numbers, so that their order is that of the commits.
        let mut taken = taken_in(tx, &ordered.collect()).await?;
        let new = insert_messages(tx, wanted, now).await?;
        let (mut deliveries, mut jobs) = (Vec::new(), Vec::new());
        for (message, targets) in wanted {
            let Some(seq) = new.get(&message.id).copied() else {
                continue;
            };
            for target in targets {
                let first = !target.ordered || taken.insert(target.seq);
                let state = if first { DeliveryState::Pending } else { DeliveryState::Waiting };
                let endpoint = target.seq;
                deliveries.push(params![seq, endpoint, state.number(), 0, 0, now, now]);
                if first {
                    let failing = self.targets.is_failing(endpoint);
                    let class = if failing { Class::Retry } else { Class::First };
                    jobs.push(job(
                        class,
                        DeliveryRound { message: seq, endpoint, round: 0 },
                        Duration::ZERO,
                    ));
                }
            }
        }
        let messages = u64::try_from(new.len()).unwrap_or(u64::MAX);
        let count = u64::try_from(deliveries.len()).unwrap_or(u64::MAX);
        tx.bulk(&DELIVERIES, deliveries).await?;
        self.enqueue_in(tx, &jobs).await?;
        Ok(PublishResult { messages, deliveries: count })
    }

    /// Enqueues any number of jobs.
    pub(super) async fn enqueue_in(&self, tx: &Tx, jobs: &[NewJob]) -> Result<()> {
        for jobs in jobs.chunks(BATCH_MAX) {
            self.queue.enqueue_many_in(tx, jobs).await?;
        }
        Ok(())
    }
}

/// The given endpoints that have an unsettled delivery: one is looked up per endpoint, however many there are.
pub(super) const TAKEN: &str = "
    SELECT e.seq FROM webhook_endpoint AS e
    WHERE e.seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
        AND (SELECT 1 FROM webhook_delivery AS d
            WHERE d.endpoint_seq = e.seq AND d.state <> 2 AND d.state IN (0, 1) LIMIT 1)
            IS NOT NULL";

/// Locks ordered endpoints; returns those that have an unsettled delivery.
async fn taken_in(tx: &Tx, endpoints: &BTreeSet<i64>) -> Result<BTreeSet<i64>> {
    if endpoints.is_empty() {
        return Ok(BTreeSet::new());
    }
    let list = numbers(endpoints.iter().copied());
    // The lock matters: the transaction that settles the previous delivery takes it too, so that one of both sees the
    // other.
    let text = "SELECT seq FROM webhook_endpoint
        WHERE seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
        ORDER BY seq FOR UPDATE";
    tx.execute(text, params![list.clone()]).await?;
    let rows = tx.execute(TAKEN, params![list]).await?.rows;
    rows.iter().map(|row| Ok(row.int(0)?)).collect()
}

/// Inserts the messages that are new; returns their numbers by id.
async fn insert_messages(
    tx: &Tx,
    wanted: &[(&NewMessage, Vec<&Arc<Target>>)],
    now: Timestamp,
) -> Result<BTreeMap<String, i64>> {
    let mut list = Vec::with_capacity(wanted.len());
    for (message, _) in wanted {
        let body = message.body(now)?;
        list.push(json!([message.id, message.kind, message.customer, body]));
    }
    let text = "
        INSERT INTO webhook_message (id, kind, customer, body, created_at)
        SELECT CAST(value ->> 0 AS TEXT), CAST(value ->> 1 AS TEXT), CAST(value ->> 2 AS TEXT),
            CAST(value ->> 3 AS TEXT), now_ms()
        FROM json_list($1) WHERE true
        ON CONFLICT (id) DO NOTHING RETURNING id, seq";
    let rows = tx.execute(text, params![Value::json(&list.into())]).await?.rows;
    rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.int(1)?))).collect()
}

/// Delivery and round that a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeliveryRound {
    pub(super) message: i64,
    pub(super) endpoint: i64,
    /// Number of replays of the delivery: the job of an earlier round is obsolete.
    pub(super) round: i64,
}

impl DeliveryRound {
    pub(super) fn parse(payload: &str) -> Result<Self> {
        let parsed: (i64, i64, i64) = serde_json::from_str(payload)
            .map_err(|_| Error::corrupt("the payload of a delivery job cannot be parsed"))?;
        let (message, endpoint, round) = parsed;
        Ok(Self { message, endpoint, round })
    }
}

/// Job of a delivery. It contains only numbers: no address, no body, no secret.
pub(super) fn job(class: Class, delivery: DeliveryRound, delay: Duration) -> NewJob {
    let DeliveryRound { message, endpoint, round } = delivery;
    let key = format!("{message}-{endpoint}-{round}");
    let payload = format!("[{message},{endpoint},{round}]");
    NewJob { attempts_max: JOB_ATTEMPTS_MAX, delay, ..NewJob::new(class.kind(), key, payload) }
}

/// List of numbers for `json_list($n)`.
pub(super) fn numbers(numbers: impl Iterator<Item = i64>) -> Value {
    Value::json(&numbers.collect::<Vec<i64>>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_identifies_its_delivery() {
        let delivery = DeliveryRound { message: 12, endpoint: 3, round: 1 };
        let job = job(Class::Retry, delivery, Duration::ZERO);
        assert_eq!((job.kind.as_str(), job.key.as_str()), ("webhook.retry", "12-3-1"));
        assert_eq!(DeliveryRound::parse(&job.payload).expect("it parses"), delivery);
        for wrong in ["", "{}", "[1,2]", "[1,2,\"x\"]"] {
            DeliveryRound::parse(wrong).expect_err("no job of ours");
        }
    }
}
