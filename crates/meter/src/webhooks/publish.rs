//! Publishing: from a message to its deliveries, in the transaction of what it tells of.
//!
//! Guarantees: a message whose id is known already changes nothing. Each enabled endpoint that wants a message has one
//! delivery of it and one job, made with it; at an ordered endpoint only the oldest delivery that is not settled has a
//! job. Leaves to others: the wake-up after the commit ([`Webhooks::wake`]).

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
use super::lanes::Class;
use super::message::NewMessage;
use super::tables::DeliveryState;
use super::targets::{On, Target};
use crate::error::{Error, Result};

/// How many messages one statement inserts.
const CHUNK: usize = 200;
/// Attempts are counted by deliveries. A job is also put off now and then, which counts here.
const JOB_ATTEMPTS_MAX: u32 = 1_000_000_000;

/// What publishing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// How many messages are new.
    pub messages: u64,
    /// How many deliveries they have.
    pub deliveries: u64,
}

/// To whom a message goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// All that want it.
    Everyone,
    /// One, whatever it wants.
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
    /// Publishes one message in a transaction of the caller's, who calls [`Webhooks::wake`] after the commit.
    pub async fn publish_in(&self, tx: &Tx, message: &NewMessage) -> Result<Published> {
        self.publish_many_in(tx, std::slice::from_ref(message)).await
    }

    /// Publishes many messages in a transaction of the caller's, who calls [`Webhooks::wake`] after the commit.
    pub async fn publish_many_in(&self, tx: &Tx, messages: &[NewMessage]) -> Result<Published> {
        self.publish_to(tx, messages, To::Everyone).await
    }

    /// Publishes one message in a transaction of its own, and wakes whoever delivers.
    pub async fn publish(&self, message: &NewMessage) -> Result<Published> {
        let published =
            self.sql().write(|tx| async move { Ok(self.publish_in(&tx, message).await?) });
        let published = published.await?;
        self.wake();
        Ok(published)
    }

    pub(super) async fn publish_to(
        &self,
        tx: &Tx,
        messages: &[NewMessage],
        to: To,
    ) -> Result<Published> {
        let now = tx.execute("SELECT now_ms()", params![]).await?.row()?.time(0)?;
        let targets = self.targets.current(On::Tx(tx), &self.keys).await?;
        let mut published = Published::default();
        for chunk in messages.chunks(CHUNK) {
            let wanted: Vec<(&NewMessage, Vec<&Arc<Target>>)> = chunk
                .iter()
                .map(|message| {
                    let wants = |target: &&Arc<Target>| match to {
                        To::Everyone => target.wants(message),
                        To::Only(seq) => target.seq == seq,
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
    ) -> Result<Published> {
        let ordered = wanted.iter().flat_map(|(_, targets)| targets);
        let ordered = ordered.filter(|target| target.ordered).map(|target| target.seq);
        // Before the messages have numbers, so that their order is that of the commits.
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
                        JobOf { message: seq, endpoint, round: 0 },
                        Duration::ZERO,
                    ));
                }
            }
        }
        let messages = u64::try_from(new.len()).unwrap_or(u64::MAX);
        let count = u64::try_from(deliveries.len()).unwrap_or(u64::MAX);
        tx.bulk(&DELIVERIES, deliveries).await?;
        self.enqueue_in(tx, &jobs).await?;
        Ok(Published { messages, deliveries: count })
    }

    /// Enqueues any number of jobs.
    pub(super) async fn enqueue_in(&self, tx: &Tx, jobs: &[NewJob]) -> Result<()> {
        for jobs in jobs.chunks(BATCH_MAX) {
            self.queue.enqueue_many_in(tx, jobs).await?;
        }
        Ok(())
    }
}

/// Those of some endpoints that have a delivery which is not settled: one of each is looked up, however many there are.
pub(super) const TAKEN: &str = "
    SELECT e.seq FROM webhook_endpoint AS e
    WHERE e.seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
        AND (SELECT 1 FROM webhook_delivery AS d
            WHERE d.endpoint_seq = e.seq AND d.state <> 2 AND d.state IN (0, 1) LIMIT 1)
            IS NOT NULL";

/// Locks endpoints that want their messages in order; gives those that have a delivery which is not settled.
async fn taken_in(tx: &Tx, endpoints: &BTreeSet<i64>) -> Result<BTreeSet<i64>> {
    if endpoints.is_empty() {
        return Ok(BTreeSet::new());
    }
    let list = numbers(endpoints.iter().copied());
    // The lock is the point: who settles the one before takes it too, so that one of both sees the other.
    let text = "SELECT seq FROM webhook_endpoint
        WHERE seq any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
        ORDER BY seq FOR UPDATE";
    tx.execute(text, params![list.clone()]).await?;
    let rows = tx.execute(TAKEN, params![list]).await?.rows;
    rows.iter().map(|row| Ok(row.int(0)?)).collect()
}

/// Inserts the messages that are new; gives their numbers by their ids.
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

/// What a job is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobOf {
    pub(super) message: i64,
    pub(super) endpoint: i64,
    /// How often the delivery was replayed: the job of an earlier round is of no use any longer.
    pub(super) round: i64,
}

impl JobOf {
    pub(super) fn parse(payload: &str) -> Result<Self> {
        let parsed: (i64, i64, i64) = serde_json::from_str(payload)
            .map_err(|_| Error::corrupt("the job of a delivery does not say of which"))?;
        let (message, endpoint, round) = parsed;
        Ok(Self { message, endpoint, round })
    }
}

/// The job of a delivery. It names numbers alone: no address, no body, no secret.
pub(super) fn job(class: Class, of: JobOf, delay: Duration) -> NewJob {
    let JobOf { message, endpoint, round } = of;
    let key = format!("{message}-{endpoint}-{round}");
    let payload = format!("[{message},{endpoint},{round}]");
    NewJob { attempts_max: JOB_ATTEMPTS_MAX, delay, ..NewJob::new(class.kind(), key, payload) }
}

/// A list of numbers for `json_list($n)`.
pub(super) fn numbers(numbers: impl Iterator<Item = i64>) -> Value {
    Value::json(&numbers.collect::<Vec<i64>>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_says_which_delivery_it_is_of() {
        let of = JobOf { message: 12, endpoint: 3, round: 1 };
        let job = job(Class::Retry, of, Duration::ZERO);
        assert_eq!((job.kind.as_str(), job.key.as_str()), ("webhook.retry", "12-3-1"));
        assert_eq!(JobOf::parse(&job.payload).expect("it parses"), of);
        for wrong in ["", "{}", "[1,2]", "[1,2,\"x\"]"] {
            JobOf::parse(wrong).expect_err("no job of ours");
        }
    }
}
