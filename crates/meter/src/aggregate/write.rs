//! Writes aggregates: those that are ready at the same time share one transaction.
//!
//! Waiting for the disk at commit takes longer than everything else about an aggregate. So a task with a ready
//! aggregate waits for its turn and then writes all aggregates that are ready by then ([`GroupCommit`]). Most waiting
//! tasks find theirs already written.
//!
//! Guarantees: an aggregate, its revision, its message, the removal of its mark and the completion of its job are one
//! transaction. An aggregate that cannot be written fails alone. A task that is cancelled leaves nothing half done: the
//! tasks whose aggregates it had taken over write them themselves. Leaves to others: computing aggregates.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use logmill_io::group_commit::{GroupCommit, GroupWriter};
use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Tx, Value, params};
use logmill_work::{Claim, Queue};
use serde_json::json;

use super::{AggregateState, ComputedAggregate, body};
use crate::Meter;
use crate::aggregate::due::aggregate_id;
use crate::error::{Error, Result};
use crate::settings::Op;

/// Maximum number of aggregates in one transaction.
const GROUP_MAX: usize = 100;

/// An aggregate to be written, and the job that requested it.
#[derive(Debug)]
pub(super) struct ReadyAggregate {
    pub(super) computed: ComputedAggregate,
    pub(super) claim: Claim,
    /// The mark's generation, read before anything else.
    pub(super) generation: Option<i64>,
}

/// The ready aggregates, and the lock of the task that writes them.
#[derive(Debug, Default)]
pub(crate) struct AggregateCommitter {
    ready: GroupCommit<Arc<ReadyAggregate>, (), Error>,
    writing: tokio::sync::Mutex<()>,
}

struct AggregateWriter<'a> {
    meter: &'a Meter,
    queue: &'a Queue,
}

impl GroupWriter for AggregateWriter<'_> {
    type Item = Arc<ReadyAggregate>;
    type Outcome = ();
    type Error = Error;
    type State = ();

    async fn commit(&self, (): &mut (), all: &mut Vec<Arc<ReadyAggregate>>) -> Result<Vec<()>> {
        let written = self.meter.write_aggregates(self.queue, all).await;
        if let (Err(error), true) = (&written, all.len() > 1) {
            tracing::debug!(
                error = error.chain(),
                "writing a group of aggregates failed, writing them one by one"
            );
        }
        written.map(|()| vec![(); all.len()])
    }
}

/// State, revision number and hash of inputs of the stored aggregate.
type StoredVersion = (AggregateState, i64, Vec<u8>);

impl Meter {
    /// Writes an aggregate together with all others that are ready.
    pub(super) async fn write_grouped(&self, queue: &Queue, ready: ReadyAggregate) -> Result<()> {
        let ready = Arc::new(ready);
        let (writer, committer) = (AggregateWriter { meter: self, queue }, &self.committer);
        let pending = committer.ready.add(Arc::clone(&ready));
        match pending.commit(&writer, &committer.writing, GROUP_MAX).await {
            Some(written) => written,
            // The task that was writing it was cancelled.
            None => {
                let _writing = committer.writing.lock().await;
                self.write_aggregates(queue, &[ready]).await
            }
        }
    }

    async fn write_aggregates(&self, queue: &Queue, all: &[Arc<ReadyAggregate>]) -> Result<()> {
        let written =
            self.sql.write(|tx| async move { self.write_aggregates_in(&tx, queue, all).await });
        written.await
    }

    async fn write_aggregates_in(
        &self,
        tx: &Tx,
        queue: &Queue,
        all: &[Arc<ReadyAggregate>],
    ) -> Result<()> {
        let changed = self.publish_aggregates(tx, all).await?;
        let finished = all.iter().filter(|ready| ready.computed.finished);
        let marked: Vec<(&ComputedAggregate, i64)> = finished
            .clone()
            .filter_map(|ready| Some((&ready.computed, ready.generation?)))
            .collect();
        let params = marked.iter().map(|(computed, generation)| {
            let due = &computed.due;
            params![due.customer, due.period.as_str(), due.key.as_str(), *generation]
        });
        // The mark is removed unless usage changed since it was read.
        let text = "DELETE FROM meter_due
                    WHERE customer = $1 AND period = $2 AND period_key = $3 AND generation = $4";
        let gone = tx.execute_many(text, params.collect::<Vec<_>>()).await?;
        let claims: Vec<Claim> = all.iter().map(|ready| ready.claim.clone()).collect();
        queue.remove_many_in(tx, &claims).await?;
        // The sweep did not enqueue these changes, because the job was running.
        for ((computed, _), _) in marked.iter().zip(gone).filter(|(_, gone)| *gone == 0) {
            self.requeue_if_due(tx, computed).await?;
        }
        // After the jobs are completed, because one of them may be enqueued again.
        for ready in finished {
            self.carry_into_next(tx, &ready.computed, changed.contains(&ready.computed.id()))
                .await?;
        }
        Ok(())
    }

    /// Enqueues the aggregate's job again if its period is still due.
    async fn requeue_if_due(&self, tx: &Tx, computed: &ComputedAggregate) -> Result<()> {
        let text =
            "SELECT 1 FROM meter_due WHERE customer = $1 AND period = $2 AND period_key = $3";
        let due = &computed.due;
        let params = params![due.customer, due.period.as_str(), due.key.as_str()];
        if !tx.execute(text, params).await?.rows.is_empty() {
            self.queue.enqueue_many_in(tx, &[due.job(&computed.name)?]).await?;
        }
        Ok(())
    }

    /// Makes the next period due if a held value carries over into it, or, where it already has an aggregate, if this
    /// one changed.
    async fn carry_into_next(
        &self,
        tx: &Tx,
        computed: &ComputedAggregate,
        changed: bool,
    ) -> Result<()> {
        let carries_over = computed.figures.carries_over();
        let holds = || self.settings.events.values().any(|known| known.op == Op::TimeWeighted);
        let may_matter = carries_over || (changed && holds());
        if !may_matter {
            return Ok(());
        }
        let next = self.calendar.next(&computed.period)?;
        let text = "SELECT 1 FROM meter_aggregate WHERE id = $1";
        let id = aggregate_id(&computed.name, &computed.due.period, &next.key);
        let is_published = !tx.execute(text, params![id]).await?.rows.is_empty();
        if if is_published { changed } else { carries_over } {
            self.make_due(tx, (computed.due.customer, &computed.name), &next).await?;
        }
        Ok(())
    }

    /// Writes the aggregates that changed and their messages; returns their ids.
    async fn publish_aggregates(
        &self,
        tx: &Tx,
        all: &[Arc<ReadyAggregate>],
    ) -> Result<BTreeSet<String>> {
        let before = read_stored(tx, all).await?;
        let (mut rows, mut revisions, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        let mut changed = BTreeSet::new();
        for ready in all {
            let computed = &ready.computed;
            let id = computed.id();
            let before = before.get(&id);
            let Some(state) = computed.next_state(before) else {
                continue;
            };
            let revision = before.map_or(0, |(_, revision, _)| *revision) + 1;
            let body = body(&computed.figures).to_string();
            rows.push(computed.row(&id, state, revision, &body));
            let inputs = computed.figures.inputs.as_slice();
            revisions.push(params![
                id.as_str(),
                revision,
                state.number(),
                inputs,
                body,
                computed.at
            ]);
            if state != AggregateState::Provisional {
                messages.push(computed.message(state, revision)?);
            }
            changed.insert(id);
        }
        tx.bulk(&AGGREGATES, rows).await?;
        tx.bulk(&REVISIONS, revisions).await?;
        if !messages.is_empty() {
            self.webhooks.publish_many_in(tx, &messages).await?;
        }
        Ok(changed)
    }
}

/// The stored aggregates of these periods by id, locked until the end of the transaction.
async fn read_stored(
    tx: &Tx,
    all: &[Arc<ReadyAggregate>],
) -> Result<BTreeMap<String, StoredVersion>> {
    let ids: Vec<serde_json::Value> =
        all.iter().map(|ready| json!([ready.computed.id()])).collect();
    let text = "SELECT id, state, revision, inputs FROM meter_aggregate
        WHERE id any_of(SELECT CAST(value ->> 0 AS TEXT) FROM json_list($1))
        ORDER BY id FOR UPDATE";
    let found = tx.execute(text, params![Value::json(&ids.into())]).await?;
    let before = found.rows.iter().map(|row| {
        let state = AggregateState::from_number(row.int(1)?)?;
        Ok::<_, Error>((row.text(0)?.to_owned(), (state, row.int(2)?, row.blob(3)?.to_vec())))
    });
    before.collect()
}

impl ComputedAggregate {
    /// The state of this aggregate once it is written; `None` if nothing changed.
    fn next_state(&self, before: Option<&StoredVersion>) -> Option<AggregateState> {
        // A period without usage gets no aggregate, unless one was published before its usage was cancelled.
        if before.is_none() && self.figures.types.is_empty() {
            return None;
        }
        let changed = before.is_none_or(|(_, _, inputs)| *inputs != self.figures.inputs);
        AggregateState::next(before.map(|(state, ..)| *state), self.finished, changed)
    }

    fn row(&self, id: &str, state: AggregateState, revision: i64, body: &str) -> Vec<Value> {
        params![
            id,
            self.due.customer,
            self.due.period.as_str(),
            self.due.key.as_str(),
            self.period.start,
            self.period.end,
            state.number(),
            revision,
            self.figures.inputs.as_slice(),
            body,
            self.at,
        ]
    }
}

const AGGREGATES: Bulk = Bulk {
    table: Cow::Borrowed("meter_aggregate"),
    columns: Cow::Borrowed(&[
        ("id", ColumnType::Text),
        ("customer", ColumnType::Int),
        ("period", ColumnType::Text),
        ("period_key", ColumnType::Text),
        ("start_ms", ColumnType::Int),
        ("end_ms", ColumnType::Int),
        ("state", ColumnType::Int),
        ("revision", ColumnType::Int),
        ("inputs", ColumnType::Blob),
        ("body", ColumnType::Text),
        ("computed_ms", ColumnType::Int),
    ]),
    key_columns: 1,
    on_conflict: Cow::Borrowed(
        "DO UPDATE SET state = excluded.state, revision = excluded.revision,
            inputs = excluded.inputs, body = excluded.body, computed_ms = excluded.computed_ms",
    ),
};

const REVISIONS: Bulk = Bulk {
    table: Cow::Borrowed("meter_revision"),
    columns: Cow::Borrowed(&[
        ("id", ColumnType::Text),
        ("revision", ColumnType::Int),
        ("state", ColumnType::Int),
        ("inputs", ColumnType::Blob),
        ("body", ColumnType::Text),
        ("computed_ms", ColumnType::Int),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(""),
};
