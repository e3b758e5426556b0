//! Aggregates: the figures of one customer's usage in one period.
//!
//! ```text
//!   (nothing) ──▶ provisional ──▶ final ──▶ corrected ─┐
//!       │                           ▲           ▲      │ whenever usage changed
//!       └───────────────────────────┘           └──────┘
//! ```
//!
//! Guarantees: an aggregate is final once its period and the grace have passed and usage of chains is complete, no
//! matter when it was first computed. Every published version stays as a revision. The webhook message of a final or
//! corrected aggregate is written in the transaction that publishes it. If one event type cannot be computed, the whole
//! aggregate fails: no type is left out. Leaves to others: when to compute one ([`crate::due`]), writing many at once
//! (`write`), delivery ([`crate::webhooks`]).

use async_trait::async_trait;
use logmill_io::{Timestamp, params};
use logmill_work::{Claim, Failure, Handler, Outcome, Queue, RunningJob};
use serde_json::{Map, Value as Json, json};

use crate::Meter;
use crate::aggregate::due::{AGGREGATE_JOB, DuePeriod, aggregate_id};
use crate::aggregate::figures::Figures;
use crate::error::{Error, Result};
use crate::period::{Period, format_time};
use crate::store::names::read_customer;
use crate::webhooks::{NewMessage, message_id};
pub(crate) use write::AggregateCommitter;
use write::ReadyAggregate;

pub(crate) mod alerts;
pub(crate) mod due;
pub(crate) mod figures;
mod finality;
mod write;

/// Maximum size of the figures in a message.
const FIGURES_BYTES_MAX: usize = 40 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateState {
    /// More usage may still arrive for the period.
    Provisional,
    /// The period and the grace have passed.
    Final,
    /// Usage changed after the aggregate was final.
    Corrected,
}

impl AggregateState {
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Provisional => 0,
            Self::Final => 1,
            Self::Corrected => 2,
        }
    }

    pub(crate) fn from_number(number: i64) -> Result<Self> {
        [Self::Provisional, Self::Final, Self::Corrected]
            .into_iter()
            .find(|state| state.number() == number)
            .ok_or_else(|| Error::corrupt(format!("unknown aggregate state {number}")))
    }

    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Provisional => "provisional",
            Self::Final => "final",
            Self::Corrected => "corrected",
        }
    }

    /// The state after an aggregate was computed again; `None` if nothing changes.
    fn next(before: Option<Self>, finished: bool, changed: bool) -> Option<Self> {
        match before {
            None if finished => Some(Self::Final),
            None => Some(Self::Provisional),
            // A final aggregate stays final, even if the clock went back.
            Some(Self::Final | Self::Corrected) => changed.then_some(Self::Corrected),
            Some(Self::Provisional) if finished => Some(Self::Final),
            Some(Self::Provisional) => changed.then_some(Self::Provisional),
        }
    }
}

/// The stored figures, which webhooks also carry as `data` besides the period.
pub(crate) fn body(figures: &Figures) -> Json {
    let (mut numbers, mut exact, mut counts) = (Map::new(), Map::new(), Map::new());
    let (mut approximate, mut means) = (Vec::new(), Map::new());
    for (name, figure) in &figures.types {
        let result = &figure.result;
        // A number that JSON readers would round is returned only as text.
        let number = result.json_number().map_or(Json::Null, Json::Number);
        numbers.insert(name.clone(), number);
        exact.insert(name.clone(), result.value.to_string().into());
        counts.insert(name.clone(), figure.count.into());
        if !result.exact {
            approximate.push(name.as_str());
        }
        if let Some(mean) = result.mean {
            means.insert(name.clone(), mean.to_json());
        }
    }
    let mut body = json!({ "events": numbers, "eventsExact": exact, "eventCounts": counts });
    if !approximate.is_empty() {
        body["approximate"] = json!(approximate);
    }
    if !means.is_empty() {
        body["eventsMean"] = Json::Object(means);
    }
    body
}

/// Worker that computes one aggregate per job.
#[derive(Clone, Debug)]
pub struct Aggregator(pub Meter);

#[async_trait]
impl Handler for Aggregator {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let computed = Box::pin(self.0.aggregate(&running.queue, &running.claim)).await;
        computed.map_err(|error| Failure::again(error.chain()))?;
        self.0.webhooks.wake();
        // This aggregate may have made the next period due.
        self.0.queue.wakes().wake(AGGREGATE_JOB);
        Ok(Outcome::Completed)
    }
}

impl Meter {
    /// Computes the aggregate of a job, and completes the job in the same transaction.
    async fn aggregate(&self, queue: &Queue, claim: &Claim) -> Result<()> {
        let due: DuePeriod = serde_json::from_str(&claim.payload).map_err(|error| {
            Error::corrupt(format!("the payload of job {} cannot be parsed: {error}", claim.key))
        })?;
        // Read first, so that any later change makes the period due again.
        let generation = self.generation(&due).await?;
        let period = self.calendar.period_of_key(self.period_kind(&due.period)?, &due.key)?;
        let name = self.customer_name(due.customer).await?;
        // A clock that went back must not reopen a final period.
        let was_final = self.was_final(&aggregate_id(&name, &due.period, &due.key)).await?;
        if was_final && period.end > self.corrected_before_of(due.customer).await? {
            // Half a correction is not announced. The mark stays, and the end of the correction triggers a sweep.
            return self.postpone(queue, claim).await;
        }
        let finished = period.end <= self.final_before_of(due.customer).await? || was_final;
        let at = self.clock().now();
        let until = if finished { period.end } else { at };
        let figures =
            Figures::of_customer(&self.sql, &self.settings, due.customer, &period, until).await?;
        let computed = ComputedAggregate { due, name, period, finished, figures, at };
        self.write_grouped(queue, ReadyAggregate { computed, claim: claim.clone(), generation })
            .await
    }

    /// Ends the job without an aggregate; the period stays due.
    async fn postpone(&self, queue: &Queue, claim: &Claim) -> Result<()> {
        let remove =
            |tx| async move { queue.remove_many_in(&tx, std::slice::from_ref(claim)).await };
        Ok(self.sql.write(remove).await?)
    }

    async fn was_final(&self, id: &str) -> Result<bool> {
        let text = "SELECT state FROM meter_aggregate WHERE id = $1";
        let found = self.sql.query(text, params![id]).await?;
        let state = found.rows.first().map(|row| AggregateState::from_number(row.int(0)?));
        Ok(state.transpose()?.is_some_and(|state| state != AggregateState::Provisional))
    }

    async fn generation(&self, due: &DuePeriod) -> Result<Option<i64>> {
        let text = "SELECT generation FROM meter_due
                    WHERE customer = $1 AND period = $2 AND period_key = $3";
        let params = params![due.customer, due.period.as_str(), due.key.as_str()];
        let found = self.sql.query(text, params).await?;
        Ok(found.rows.first().map(|row| row.int(0)).transpose()?)
    }

    pub(crate) async fn customer_name(&self, id: i64) -> Result<String> {
        read_customer(&self.sql.reading(), id).await
    }
}

/// A computed aggregate that is not yet written.
#[derive(Debug)]
struct ComputedAggregate {
    due: DuePeriod,
    name: String,
    period: Period,
    finished: bool,
    figures: Figures,
    at: Timestamp,
}

impl ComputedAggregate {
    fn id(&self) -> String {
        aggregate_id(&self.name, &self.due.period, &self.due.key)
    }

    fn message(&self, state: AggregateState, revision: i64) -> Result<NewMessage> {
        let kind = match state {
            AggregateState::Corrected => "aggregation.corrected",
            AggregateState::Provisional | AggregateState::Final => "aggregation.completed",
        };
        let mut data = body(&self.figures);
        // Messages must stay small; the receiver can query the aggregate by its id.
        if data.to_string().len() > FIGURES_BYTES_MAX {
            data = json!({ "truncated": true });
        }
        data["aggregationId"] = self.id().into();
        data["periodStart"] = format_time(self.period.start).into();
        data["periodEnd"] = format_time(self.period.end_inclusive()).into();
        data["periodKey"] = self.due.key.as_str().into();
        data["timestamp"] = format_time(self.at).into();
        data["state"] = state.name().into();
        data["revision"] = revision.into();
        let id = revision_message_id(&self.id(), revision);
        Ok(NewMessage {
            customer: Some(self.name.clone()),
            period: Some(self.due.period.clone()),
            ..NewMessage::new(id, kind, self.at, &data)?
        })
    }
}

/// The id of the message that announces a revision.
pub fn revision_message_id(aggregate: &str, revision: i64) -> String {
    message_id(&["aggregate", aggregate, &revision.to_string()])
}
