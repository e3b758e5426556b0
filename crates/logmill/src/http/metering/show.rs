//! Events and aggregates as JSON, with the fields that the seed gave them and ours beside.
//!
//! Guarantees: an exact number is shown as a JSON number only if every reader of JSON reads it exactly, and always as
//! text beside; metadata is the text that was sent. Leaves to others: which are shown.

use std::collections::BTreeMap;

use logmill_io::Timestamp;
use logmill_meter::aggregate::revision_message_id;
use logmill_meter::correct::Corrected;
use logmill_meter::list::{Aggregate, ListedEvent, Revision};
use logmill_meter::period::{Fields, format_time};
use logmill_meter::webhooks::DeliverySummary;
use logmill_meter::{Error, Meter, Result};
use serde::Serialize;
use serde_json::Number;
use serde_json::value::RawValue;

/// An event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownEvent {
    event_type: String,
    customer_id: String,
    value: Option<Number>,
    value_exact: String,
    metadata: Box<RawValue>,
    received_at: String,
    timestamp: String,
    source: String,
    id: String,
    state: &'static str,
    #[serde(flatten)]
    fields: Fields,
}

impl ShownEvent {
    pub(super) fn of(listed: ListedEvent) -> Result<Self> {
        let ListedEvent { event, customer, event_type } = listed;
        let metadata = event.metadata.unwrap_or_else(|| "{}".to_owned());
        Ok(Self {
            event_type,
            customer_id: customer,
            value: event.value.json_number(),
            value_exact: event.value.to_string(),
            metadata: raw(metadata)?,
            received_at: format_time(event.received),
            timestamp: format_time(event.time),
            source: event.source,
            id: event.id,
            state: event.state.name(),
            fields: Fields::of(event.time)?,
        })
    }
}

/// What was done to an event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownCorrection {
    action: String,
    value_before: String,
    value_after: Option<String>,
    reason: String,
    actor: String,
    at: String,
}

impl From<Corrected> for ShownCorrection {
    fn from(made: Corrected) -> Self {
        Self {
            action: made.action,
            value_before: made.before,
            value_after: made.after,
            reason: made.reason,
            actor: made.actor,
            at: format_time(made.at),
        }
    }
}

/// An event with what was done to it.
#[derive(Serialize)]
pub(super) struct EventWithCorrections {
    #[serde(flatten)]
    pub(super) event: ShownEvent,
    pub(super) corrections: Vec<ShownCorrection>,
}

/// `events`, `eventsExact` and `eventCounts`, as they were written.
type Said = BTreeMap<String, Box<RawValue>>;

/// An aggregate.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownAggregate {
    #[serde(rename = "_id")]
    id: String,
    customer_id: String,
    period: String,
    period_start: String,
    period_end: String,
    period_key: String,
    timestamp: String,
    state: &'static str,
    revision: i64,
    #[serde(flatten)]
    said: Said,
    webhook_status: ShownDeliverySummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    revisions: Option<Vec<ShownRevision>>,
}

/// What an aggregate said before.
#[derive(Serialize)]
struct ShownRevision {
    revision: i64,
    state: &'static str,
    timestamp: String,
    #[serde(flatten)]
    said: Said,
}

/// How far the delivery of what it says now has come.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownDeliverySummary {
    delivered: bool,
    attempts: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    dry_run: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ShownAggregate {
    /// Aggregates, with how far the delivery of each has come.
    pub(super) async fn all(meter: &Meter, aggregates: Vec<Aggregate>) -> Result<Vec<Self>> {
        let id = |aggregate: &Aggregate| revision_message_id(&aggregate.id, aggregate.revision);
        let ids: Vec<String> = aggregates.iter().map(id).collect();
        let mut summaries = meter.webhooks().summaries(&ids).await?;
        let dry_run = meter.webhooks().settings().dry_run;
        let both = ids.iter().zip(aggregates).map(|(id, aggregate)| {
            Self::of(aggregate, summaries.remove(id).unwrap_or_default(), dry_run)
        });
        both.collect()
    }

    fn of(aggregate: Aggregate, summary: DeliverySummary, dry_run: bool) -> Result<Self> {
        // The end is shown as the last millisecond that is in it.
        let last = Timestamp(aggregate.end.millis().saturating_sub(1));
        Ok(Self {
            said: said(&aggregate.body)?,
            id: aggregate.id,
            customer_id: aggregate.customer,
            period: aggregate.period,
            period_start: format_time(aggregate.start),
            period_end: format_time(last),
            period_key: aggregate.key,
            timestamp: format_time(aggregate.computed),
            state: aggregate.state.name(),
            revision: aggregate.revision,
            webhook_status: ShownDeliverySummary {
                delivered: summary.delivered,
                attempts: summary.attempts,
                delivered_at: summary.delivered_at.map(format_time),
                last_attempt_at: summary.last_attempt_at.map(format_time),
                last_error: summary.last_error,
                dry_run,
            },
            revisions: None,
        })
    }

    /// The same with all that it said.
    pub(super) fn with(self, revisions: Vec<Revision>) -> Result<Self> {
        let shown = revisions.into_iter().map(|revision| {
            Ok(ShownRevision {
                revision: revision.revision,
                state: revision.state.name(),
                timestamp: format_time(revision.computed),
                said: said(&revision.body)?,
            })
        });
        Ok(Self { revisions: Some(shown.collect::<Result<_>>()?), ..self })
    }
}

fn said(body: &str) -> Result<Said> {
    serde_json::from_str(body).map_err(|error| unreadable(&error))
}

fn raw(text: String) -> Result<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::Corrupt { what: format!("stored JSON: {error}") }
}
