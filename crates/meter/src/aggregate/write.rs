//! Writing aggregates: those that are ready at the same time share one transaction.
//!
//! A commit waits for the disk, and that takes longer than all else about an aggregate. So whoever has one ready waits
//! for his turn, and then writes all that are ready by then; of those who wait most find theirs written.
//!
//! Guarantees: an aggregate, its revision, its message, the end of its mark and that of its job are written together or
//! not at all; one that can not be written fails alone. Whoever goes away in the middle leaves nothing half done: what
//! he had taken over is written by those whose it is. Leaves to others: computing aggregates.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Tx, Value, params};
use logmill_work::{Claim, Queue};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::{AggregateState, Made, body};
use crate::due::aggregate_id;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::settings::Op;

/// The most aggregates of one transaction.
const GROUP_MAX: usize = 100;

/// An aggregate to be written, and the job that asked for it.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) made: Made,
    pub(super) claim: Claim,
    /// What its mark said before anything was read.
    pub(super) generation: Option<i64>,
}

/// One that is ready, and where to say what became of it.
type Waiting = (Arc<Ready>, oneshot::Sender<Result<()>>);

/// Aggregates that are ready, and the turn to write them.
#[derive(Debug, Default)]
pub(crate) struct Together {
    waiting: Mutex<VecDeque<Waiting>>,
    turn: tokio::sync::Mutex<()>,
}

impl Together {
    fn add(&self, ready: Arc<Ready>) -> oneshot::Receiver<Result<()>> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((ready, answer));
        answered
    }

    fn take(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let most = waiting.len().min(GROUP_MAX);
        waiting.drain(..most).collect()
    }
}

/// What was said of a period until now.
type Before = (AggregateState, i64, Vec<u8>);

impl Meter {
    /// Writes an aggregate, with whatever else is ready.
    pub(super) async fn write_together(&self, queue: &Queue, ready: Ready) -> Result<()> {
        let ready = Arc::new(ready);
        let mut answered = self.together.add(Arc::clone(&ready));
        loop {
            let _turn = self.together.turn.lock().await;
            match answered.try_recv() {
                Ok(written) => return written,
                // Whoever wrote it was stopped in the middle.
                Err(TryRecvError::Closed) => return self.write_aggregates(queue, &[ready]).await,
                Err(TryRecvError::Empty) => self.write_ready(queue).await,
            }
        }
    }

    async fn write_ready(&self, queue: &Queue) {
        let group = self.together.take();
        let all: Vec<Arc<Ready>> = group.iter().map(|(ready, _)| Arc::clone(ready)).collect();
        let written = self.write_aggregates(queue, &all).await;
        if let (Err(error), true) = (&written, group.len() > 1) {
            // One of several may be at fault, so that each is tried alone.
            tracing::debug!(error = error.chain(), "writes aggregates one by one");
            for (ready, answer) in group {
                drop(answer.send(self.write_aggregates(queue, &[ready]).await));
            }
            return;
        }
        // Whoever waited may be gone; what was written stays.
        let mut error = written.err();
        for (_, answer) in group {
            drop(answer.send(error.take().map_or(Ok(()), Err)));
        }
    }

    async fn write_aggregates(&self, queue: &Queue, all: &[Arc<Ready>]) -> Result<()> {
        let written = self
            .sql
            .write(|tx| async move { Ok(self.write_aggregates_in(&tx, queue, all).await?) });
        Ok(written.await?)
    }

    async fn write_aggregates_in(&self, tx: &Tx, queue: &Queue, all: &[Arc<Ready>]) -> Result<()> {
        let changed = self.publish_aggregates(tx, all).await?;
        let finished = all.iter().filter(|ready| ready.made.finished);
        let marked: Vec<(&Made, i64)> =
            finished.clone().filter_map(|ready| Some((&ready.made, ready.generation?))).collect();
        let params = marked.iter().map(|(made, generation)| {
            let due = &made.due;
            params![due.customer, due.period.as_str(), due.key.as_str(), *generation]
        });
        // A mark goes unless usage changed again since it was looked at.
        let text = "DELETE FROM meter_due
                    WHERE customer = $1 AND period = $2 AND period_key = $3 AND generation = $4";
        let gone = tx.execute_many(text, params.collect::<Vec<_>>()).await?;
        let claims: Vec<Claim> = all.iter().map(|ready| ready.claim.clone()).collect();
        queue.remove_many_in(tx, &claims).await?;
        // What changed meanwhile was not enqueued, as its job was running.
        for ((made, _), _) in marked.iter().zip(gone).filter(|(_, gone)| *gone == 0) {
            self.make_again(tx, made).await?;
        }
        // After the jobs are gone: one of them may be made anew.
        for ready in finished {
            self.go_on(tx, &ready.made, changed.contains(&ready.made.id())).await?;
        }
        Ok(())
    }

    /// Enqueues the job of an aggregate again if its period is still due.
    async fn make_again(&self, tx: &Tx, made: &Made) -> Result<()> {
        let text =
            "SELECT 1 FROM meter_due WHERE customer = $1 AND period = $2 AND period_key = $3";
        let due = &made.due;
        let params = params![due.customer, due.period.as_str(), due.key.as_str()];
        if !tx.execute(text, params).await?.rows.is_empty() {
            self.queue.enqueue_many_in(tx, &[due.job(&made.name)?]).await?;
        }
        Ok(())
    }

    /// A value that holds on makes the next period due, though nothing may happen in it; and so does another value, or
    /// none, where something was said of that period.
    async fn go_on(&self, tx: &Tx, made: &Made, changed: bool) -> Result<()> {
        let goes_on = made.figures.goes_on();
        let holds = || self.settings.events.values().any(|known| known.op == Op::TimeWeighted);
        let may_matter = goes_on || (changed && holds());
        if !may_matter {
            return Ok(());
        }
        let next = self.calendar.next(&made.period)?;
        let text = "SELECT 1 FROM meter_aggregate WHERE id = $1";
        let id = aggregate_id(&made.name, &made.due.period, &next.key);
        let is_said = !tx.execute(text, params![id]).await?.rows.is_empty();
        if if is_said { changed } else { goes_on } {
            self.make_due(tx, (made.due.customer, &made.name), &next).await?;
        }
        Ok(())
    }

    /// Writes the aggregates that say something new, and tells of them; gives their ids.
    async fn publish_aggregates(&self, tx: &Tx, all: &[Arc<Ready>]) -> Result<BTreeSet<String>> {
        let before = before(tx, all).await?;
        let (mut rows, mut revisions, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        let mut changed = BTreeSet::new();
        for ready in all {
            let made = &ready.made;
            let id = made.id();
            let before = before.get(&id);
            let Some(state) = made.next_state(before) else {
                continue;
            };
            let revision = before.map_or(0, |(_, revision, _)| *revision) + 1;
            let body = body(&made.figures).to_string();
            rows.push(made.row(&id, state, revision, &body));
            let inputs = made.figures.inputs.as_slice();
            revisions.push(params![id.as_str(), revision, state.number(), inputs, body, made.at]);
            if state != AggregateState::Provisional {
                messages.push(made.message(state, revision)?);
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

/// What was said of these periods until now, by the ids of aggregates; locked until the end of the transaction.
async fn before(tx: &Tx, all: &[Arc<Ready>]) -> Result<BTreeMap<String, Before>> {
    let ids: Vec<serde_json::Value> = all.iter().map(|ready| json!([ready.made.id()])).collect();
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

impl Made {
    /// The state of this aggregate once it is written; none if it says nothing new.
    fn next_state(&self, before: Option<&Before>) -> Option<AggregateState> {
        // Of a period without usage nothing is said, unless something was said before its usage was taken back.
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
