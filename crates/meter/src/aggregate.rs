//! Aggregates: what is said of one customer's usage in one period.
//!
//! ```text
//!   (nothing) ──▶ provisional ──▶ final ──▶ corrected ─┐
//!       │                           ▲           ▲      │ each time that usage changed
//!       └───────────────────────────┘           └──────┘
//! ```
//!
//! Guarantees: an aggregate is final once its period and the grace have passed and usage of chains is complete,
//! whatever was asked before; what was said stays as a revision; who is told of a final or corrected one is told in the
//! transaction that makes it so. A type that can not be computed fails the whole aggregate: none is left out. Leaves to
//! others: when to make one ([`crate::due`]), writing many at once (`write`), delivering ([`crate::webhooks`]).

use async_trait::async_trait;
use logmill_io::{Timestamp, params};
use logmill_work::{Claim, Failure, Handler, Outcome, Queue, Running};
use serde_json::{Map, Value as Json, json};

use crate::due::{AGGREGATE_JOB, DuePeriod, aggregate_id};
use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::meter::Meter;
use crate::period::{Period, format_time};
use crate::webhooks::{NewMessage, message_id};
use write::Ready;
pub(crate) use write::Together;

mod write;

/// The most bytes of figures that a message carries.
const FIGURES_BYTES_MAX: usize = 40 << 10;

/// How sure an aggregate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateState {
    /// Its period may still get usage.
    Provisional,
    /// Its period and the grace have passed.
    Final,
    /// Usage changed after it was final.
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
            .ok_or_else(|| Error::corrupt(format!("an aggregate in state {number}")))
    }

    /// The name that people see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Provisional => "provisional",
            Self::Final => "final",
            Self::Corrected => "corrected",
        }
    }

    /// The state after an aggregate was made anew, with other numbers or the same; none if nothing changes.
    fn next(before: Option<Self>, finished: bool, changed: bool) -> Option<Self> {
        match before {
            None if finished => Some(Self::Final),
            None => Some(Self::Provisional),
            // Whatever the clock says now, it has been final.
            Some(Self::Final | Self::Corrected) => changed.then_some(Self::Corrected),
            Some(Self::Provisional) if finished => Some(Self::Final),
            Some(Self::Provisional) => changed.then_some(Self::Provisional),
        }
    }
}

/// What is stored, and what webhooks carry as `data` besides the period.
pub(crate) fn body(figures: &Figures) -> Json {
    let (mut numbers, mut exact, mut counts) = (Map::new(), Map::new(), Map::new());
    let (mut approximate, mut means) = (Vec::new(), Map::new());
    for (name, figure) in &figures.types {
        let answer = &figure.answer;
        // An exact number that readers of JSON would round is given as text alone.
        let number = answer.json_number().map_or(Json::Null, Json::Number);
        numbers.insert(name.clone(), number);
        exact.insert(name.clone(), answer.value.to_string().into());
        counts.insert(name.clone(), figure.count.into());
        if !answer.exact {
            approximate.push(name.as_str());
        }
        if let Some(mean) = answer.mean {
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

/// Makes aggregates, one a job.
#[derive(Clone, Debug)]
pub struct Aggregator(pub Meter);

#[async_trait]
impl Handler for Aggregator {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let made = Box::pin(self.0.aggregate(&running.queue, &running.claim)).await;
        made.map_err(|error| Failure::again(error.chain()))?;
        self.0.webhooks.wake();
        // The next period may have become due with it.
        self.0.queue.wakes().wake(AGGREGATE_JOB);
        Ok(Outcome::Completed)
    }
}

impl Meter {
    /// Makes the aggregate that a job asks for, and completes the job with it.
    async fn aggregate(&self, queue: &Queue, claim: &Claim) -> Result<()> {
        let due: DuePeriod = serde_json::from_str(&claim.payload)
            .map_err(|error| Error::corrupt(format!("the job {}: {error}", claim.key)))?;
        // First, so that whatever changes from here on makes it due again.
        let generation = self.generation(&due).await?;
        let period = self.calendar.period_of_key(self.period_kind(&due.period)?, &due.key)?;
        let name = self.customer_name(due.customer).await?;
        // What was final is not under way again because a clock went back.
        let was_final = self.was_final(&aggregate_id(&name, &due.period, &due.key)).await?;
        if was_final && period.end > self.corrected_before_of(due.customer).await? {
            // Half a correction is not announced. The mark stays, and the end of the correction sweeps.
            return self.postpone(queue, claim).await;
        }
        let finished = period.end <= self.final_before_of(due.customer).await? || was_final;
        let at = self.clock().now();
        let until = if finished { period.end } else { at };
        let figures = self.figures(due.customer, &period, until).await?;
        let made = Made { due, name, period, finished, figures, at };
        self.write_together(queue, Ready { made, claim: claim.clone(), generation }).await
    }

    /// Ends a job without an aggregate; the period stays due.
    async fn postpone(&self, queue: &Queue, claim: &Claim) -> Result<()> {
        let remove =
            |tx| async move { Ok(queue.remove_many_in(&tx, std::slice::from_ref(claim)).await?) };
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
        let found =
            self.sql.query("SELECT name FROM meter_customer WHERE id = $1", params![id]).await?;
        let row = found.rows.first();
        let row = row.ok_or_else(|| Error::corrupt(format!("customer {id} has no name")))?;
        Ok(row.text(0)?.to_owned())
    }
}

/// An aggregate that was computed and not yet written.
#[derive(Debug)]
struct Made {
    due: DuePeriod,
    name: String,
    period: Period,
    finished: bool,
    figures: Figures,
    at: Timestamp,
}

impl Made {
    fn id(&self) -> String {
        aggregate_id(&self.name, &self.due.period, &self.due.key)
    }

    fn message(&self, state: AggregateState, revision: i64) -> Result<NewMessage> {
        let kind = match state {
            AggregateState::Corrected => "aggregation.corrected",
            AggregateState::Provisional | AggregateState::Final => "aggregation.completed",
        };
        let mut data = body(&self.figures);
        // A message must stay small; whoever gets it can ask for the aggregate by its id.
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

/// The id of the message that tells of a revision.
pub fn revision_message_id(aggregate: &str, revision: i64) -> String {
    message_id(&["aggregate", aggregate, &revision.to_string()])
}
