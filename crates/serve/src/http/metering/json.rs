//! Events and aggregates as JSON, with the seed's fields and additional ones.
//!
//! Guarantees: an exact number is shown as a JSON number only if every JSON reader reads it exactly, and always as text
//! too; metadata is the text that was sent. Leaves to others: which ones are shown.

use std::collections::BTreeMap;

use logmill_io::Timestamp;
use logmill_meter::aggregate::revision_message_id;
use logmill_meter::correct::CorrectionRecord;
use logmill_meter::list::{Aggregate, ListedEvent, Revision};
use logmill_meter::period::{PeriodFields, format_time};
use logmill_meter::webhooks::DeliverySummary;
use logmill_meter::{Error, Meter, Result};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Number;
use serde_json::value::RawValue;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventJson {
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
    fields: PeriodFields,
}

impl EventJson {
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
            fields: PeriodFields::of(event.time)?,
        })
    }
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum EventEntry {
    Whole(Box<EventJson>),
    /// A stored event that does not match what was recorded: its number, and what to do.
    Damaged {
        damaged: bool,
        sequence: i64,
        error: String,
    },
}

impl EventEntry {
    pub(super) fn damaged(sequence: i64) -> Self {
        let error = Error::DamagedEvent { seq: sequence }.to_string();
        Self::Damaged { damaged: true, sequence, error }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CorrectionJson {
    action: String,
    value_before: String,
    value_after: Option<String>,
    reason: String,
    actor: String,
    at: String,
}

impl From<CorrectionRecord> for CorrectionJson {
    fn from(made: CorrectionRecord) -> Self {
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

#[derive(Serialize)]
pub(super) struct EventWithCorrections {
    #[serde(flatten)]
    pub(super) event: EventJson,
    pub(super) corrections: Vec<CorrectionJson>,
}

/// `events`, `eventsExact` and `eventCounts`, verbatim.
type FigureFields = BTreeMap<String, Box<RawValue>>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AggregateJson {
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
    /// Whether blocks of its usage were replaced and the correction is pending.
    correction_pending: bool,
    #[serde(flatten)]
    figures: FigureFields,
    webhook_status: DeliverySummaryJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    revisions: Option<Vec<RevisionJson>>,
}

/// An earlier revision of an aggregate.
#[derive(Serialize)]
struct RevisionJson {
    revision: i64,
    state: &'static str,
    timestamp: String,
    #[serde(flatten)]
    figures: FigureFields,
}

/// Delivery progress of the current revision.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeliverySummaryJson {
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

impl AggregateJson {
    /// Aggregates, each with its delivery progress.
    pub(super) async fn all(meter: &Meter, aggregates: Vec<Aggregate>) -> Result<Vec<Self>> {
        let id = |aggregate: &Aggregate| revision_message_id(&aggregate.id, aggregate.revision);
        let ids: Vec<String> = aggregates.iter().map(id).collect();
        let mut summaries = meter.webhooks().summaries(&ids).await?;
        let dry_run = meter.webhooks().settings().dry_run;
        let pending = meter.pending_corrections().await?;
        let both = ids.iter().zip(aggregates).map(|(id, aggregate)| {
            let (end, summary) = (aggregate.end, summaries.remove(id).unwrap_or_default());
            let mut json = Self::of(aggregate, summary, dry_run)?;
            json.correction_pending = pending.concern(&event_types(&json.figures)?, end);
            Ok(json)
        });
        both.collect()
    }

    fn of(aggregate: Aggregate, summary: DeliverySummary, dry_run: bool) -> Result<Self> {
        // The end is shown as the last millisecond of the period.
        let last = Timestamp(aggregate.end.millis().saturating_sub(1));
        Ok(Self {
            figures: figures(&aggregate.body)?,
            id: aggregate.id,
            customer_id: aggregate.customer,
            period: aggregate.period,
            period_start: format_time(aggregate.start),
            period_end: format_time(last),
            period_key: aggregate.key,
            timestamp: format_time(aggregate.computed),
            state: aggregate.state.name(),
            revision: aggregate.revision,
            correction_pending: false,
            webhook_status: DeliverySummaryJson {
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

    /// Adds all revisions.
    pub(super) fn with_revisions(self, revisions: Vec<Revision>) -> Result<Self> {
        let shown = revisions.into_iter().map(|revision| {
            Ok(RevisionJson {
                revision: revision.revision,
                state: revision.state.name(),
                timestamp: format_time(revision.computed),
                figures: figures(&revision.body)?,
            })
        });
        Ok(Self { revisions: Some(shown.collect::<Result<_>>()?), ..self })
    }
}

/// The event types in an aggregate.
fn event_types(figures: &FigureFields) -> Result<Vec<String>> {
    let Some(events) = figures.get("events") else { return Ok(Vec::new()) };
    let events: BTreeMap<String, IgnoredAny> =
        serde_json::from_str(events.get()).map_err(|error| unreadable(&error))?;
    Ok(events.into_keys().collect())
}

fn figures(body: &str) -> Result<FigureFields> {
    serde_json::from_str(body).map_err(|error| unreadable(&error))
}

fn raw(text: String) -> Result<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::Corrupt { what: format!("stored JSON: {error}") }
}
