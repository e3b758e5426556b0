//! Schemas of events, aggregates, live values, query results and settings.
//!
//! Guarantees: those of the document. Leaves to others: the values.

use serde_json::{Map, Value, json};

use super::{Schemas, named};
use crate::http::operation::{array, flag, maybe, number, object, reference, text};

pub(super) fn all() -> Schemas {
    [events(), aggregations(), live(), answers(), trends(), corrections(), settings()].concat()
}

/// An average without a finite decimal form.
fn mean() -> Value {
    object(
        "an average with infinitely many digits, as an exact fraction",
        &["sum", "count"],
        json!({"sum": text("sum of the values"), "count": number("number of values")}),
    )
}

/// A JSON number, where that is exact.
fn shown_number(about: &str) -> Value {
    json!({"type": ["number", "integer", "null"], "description": about})
}

/// Fields that every aggregate has.
const FIGURE_FIELDS: [&str; 3] = ["events", "eventsExact", "eventCounts"];

fn answers() -> Schemas {
    let provisional = json!({
        "type": ["object", "null"],
        "description": "usage that is not final yet and not part of the value",
        "required": ["value", "valueExact", "count"],
        "properties": {
            "value": shown_number("as a JSON number; null if a JSON number would not be exact"),
            "valueExact": text("exact value, as text"),
            "count": number("number of events"),
        },
    });
    let group = json!({"type": ["string", "null"]});
    let line = object(
        "One line of a query result.",
        &["start", "end", "group", "value", "valueExact", "exact", "count", "final", "provisional"],
        json!({
            "start": text("start of the window"),
            "end": text("end of the window, exclusive"),
            "group": {
                "type": "object",
                "description": "values of the dimensions that the line is grouped by",
                "additionalProperties": group,
            },
            "value": shown_number(
                "as a JSON number; the nearest double if it is not exact; null if the value \
                    is exact and a JSON number would not be, or if there is no value",
            ),
            "valueExact": maybe("string", "exact value, as text; rounded to 36 decimal places if `exact` is false"),
            "mean": mean(),
            "exact": flag("whether the value is exact"),
            "count": number("number of events behind the value"),
            "final": flag("whether its window and the grace have passed, and usage of chains is complete"),
            "provisional": provisional,
        }),
    );
    let answer = object(
        "Result of a query.",
        &[
            "eventType",
            "op",
            "from",
            "to",
            "window",
            "zone",
            "provisionalComplete",
            "provisionalIncomplete",
            "data",
        ],
        json!({
            "eventType": text("event type"),
            "op": text("operation"),
            "from": text("start of the queried time"),
            "to": text("end of the queried time, exclusive"),
            "window": maybe("string", "kind of the windows"),
            "zone": text("time zone"),
            "provisionalComplete": flag(
                "whether all usage of chains is in `value` or in `provisional`, and no \
                    recorded usage comes from replaced blocks",
            ),
            "provisionalIncomplete": {
                "type": "array",
                "description": "human-readable reasons why usage of chains is missing or not corrected yet; \
                    empty if `provisionalComplete` is true",
                "items": {"type": "string"},
            },
            "data": array("MeterLine"),
        }),
    );
    vec![named("MeterLine", line), named("MeterAnswer", answer)]
}

fn trends() -> Schemas {
    let value = |about: &str| {
        json!({
            "value": shown_number("as a JSON number; the nearest double if the value is not exact; null if it \
                    is exact and a JSON number would not be"),
            "valueExact": text(about),
            "exact": flag("whether `valueExact` is exact"),
        })
    };
    let slope = json!({
        "type": ["object", "null"],
        "description": "change of the line from one period to the next; null with fewer than two \
                    points",
        "required": ["value", "valueExact", "exact"],
        "properties": value("as text; rounded to 36 decimal places if it has infinitely many digits"),
    });
    let of_period = |about: &str, kind: Value| {
        let mut properties =
            value("as text; rounded to 36 decimal places if it has infinitely many digits");
        properties["start"] = text("start of the period");
        properties["end"] = text("end of the period, exclusive");
        json!({
            "type": kind,
            "description": about,
            "required": ["start", "end", "value", "valueExact", "exact"],
            "properties": properties,
        })
    };
    let trend = object(
        "A straight line through the last final aggregates of a customer.",
        &["eventType", "customerId", "period", "op", "points", "slope", "forecast"],
        json!({
            "eventType": text("event type"),
            "customerId": text("customer"),
            "period": text("kind of period"),
            "op": text("operation of the values"),
            "points": {
                "type": "array",
                "description": "points of the line, oldest first",
                "items": of_period("value of a period", json!("object")),
            },
            "slope": slope,
            "forecast": of_period(
                "value of the line at the period after the newest final one; null with fewer \
                    than two points",
                json!(["object", "null"]),
            ),
        }),
    );
    vec![named("MeterTrend", trend)]
}

fn corrections() -> Schemas {
    let fields = json!({
        "chain": number("chain id"),
        "replacement": number("number of the replacement of stored blocks"),
        "firstBlock": number("first replaced block"),
        "lastBlock": number("last replaced block"),
        "reason": text("reason"),
        "blocks": number("blocks whose usage changed"),
        "cancelled": number("cancelled usage events"),
        "recorded": number("usage events recorded in their place"),
        "begunAt": text("start of the correction"),
        "doneAt": maybe("string", "end of the correction; null while it is in progress"),
    });
    let required = [
        "chain",
        "replacement",
        "firstBlock",
        "lastBlock",
        "reason",
        "blocks",
        "cancelled",
        "recorded",
        "begunAt",
        "doneAt",
    ];
    let about = "How usage of a chain was corrected after stored blocks were replaced.";
    vec![
        named("ChainCorrection", object(about, &required, fields)),
        named("ChainCorrections", array("ChainCorrection")),
    ]
}

fn events() -> Schemas {
    let fields = json!({
        "eventType": text("event type"),
        "customerId": text("customer"),
        "value": {
            "type": ["number", "integer", "null"],
            "description": "as a JSON number; null if a JSON number would not be exact",
        },
        "valueExact": text("exact value, as text"),
        "metadata": {"type": "object", "description": "as sent", "additionalProperties": true},
        "receivedAt": text("time of arrival"),
        "timestamp": text("time of the event"),
        "source": text("source of the event"),
        "id": text("id, unique within its source"),
        "state": {"type": "string", "enum": ["recorded", "amended", "cancelled"]},
        "minute": text("YYYYMMDDHHmm of the event, in UTC"),
        "hour": text("YYYYMMDDHH"),
        "day": text("YYYYMMDD"),
        "week": text("YYYYWW, by ISO 8601"),
        "month": text("YYYYMM"),
        "year": text("YYYY"),
    });
    let names: Vec<String> =
        fields.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let correction = object(
        "A correction of an event.",
        &["action", "valueBefore", "valueAfter", "reason", "actor", "at"],
        json!({
            "action": {"type": "string", "enum": ["cancel", "amend", "lost"]},
            "valueBefore": text("value before"),
            "valueAfter": maybe("string", "value after; null if the event no longer counts"),
            "reason": text("reason"),
            "actor": text("name of the key that made the correction"),
            "at": text("time of the correction"),
        }),
    );
    let corrections = json!({"corrections": {"type": "array", "items": correction}});
    vec![
        named("Event", object("A recorded event.", &names, fields)),
        named(
            "Events",
            json!({
                "type": "array",
                "description": "events, followed by the damaged events of the page; the header \
                    x-damaged-events has the number of the latter, if there are any",
                "items": {"oneOf": [reference("Event"), reference("DamagedEvent")]},
            }),
        ),
        named("DamagedEvent", damaged_event()),
        named(
            "EventWithCorrections",
            json!({
                "allOf": [
                    reference("Event"),
                    {"type": "object", "required": ["corrections"], "properties": corrections},
                ],
            }),
        ),
    ]
}

/// The usage fields of an aggregate.
fn figure_fields() -> Map<String, Value> {
    let by_type = |of: Value, about: &str| json!({"type": "object", "description": about, "additionalProperties": of});
    let numbers = json!({"type": ["number", "integer", "null"]});
    [
        (
            "events",
            by_type(
                numbers,
                "by event type; the nearest double for types in `approximate`; null where the \
                    value is exact and a JSON number would not be",
            ),
        ),
        (
            "eventsExact",
            by_type(
                json!({"type": "string"}),
                "exact values as text; rounded to 36 decimal places for types in `approximate`",
            ),
        ),
        ("eventsMean", by_type(mean(), "averages with infinitely many digits, if there are any")),
        ("eventCounts", by_type(json!({"type": "integer"}), "number of events, by event type")),
        (
            "approximate",
            json!({
                "type": "array",
                "items": {"type": "string"},
                "description": "event types whose value is not exact, if there are any",
            }),
        ),
    ]
    .map(|(name, schema)| (name.to_owned(), schema))
    .into_iter()
    .collect()
}

/// The usage fields of an aggregate, and more.
fn with_figures(more: &Value) -> Value {
    let mut fields = figure_fields();
    fields.extend(more.as_object().cloned().unwrap_or_default());
    Value::Object(fields)
}

/// Delivery progress of an aggregate.
fn delivery_summary() -> Value {
    object(
        "State of the webhook deliveries of an aggregate.",
        &["delivered", "attempts"],
        json!({
            "delivered": flag("whether every endpoint has received the message"),
            "attempts": number("number of attempts"),
            "deliveredAt": text("time at which the last endpoint received the message"),
            "lastAttemptAt": text("time of the last attempt"),
            "lastError": text("last error"),
            "dryRun": flag("whether this is a dry run, in which nothing is sent"),
        }),
    )
}

fn aggregations() -> Schemas {
    let state = json!({"type": "string", "enum": ["provisional", "final", "corrected"]});
    let aggregation = with_figures(&json!({
        "_id": text("customer, kind of period and period key"),
        "customerId": text("customer"),
        "period": text("kind of period"),
        "periodStart": text("start of the period"),
        "periodEnd": text("last millisecond of the period"),
        "periodKey": text("key of the period within its kind"),
        "timestamp": text("time of the computation"),
        "state": state,
        "revision": number("revision number, from 1"),
        "correctionPending": flag(
            "whether blocks with usage of this aggregate were replaced and the usage is not \
                corrected yet: a corrected aggregate may follow",
        ),
        "webhookStatus": delivery_summary(),
    }));
    let revision = with_figures(&json!({
        "revision": number("revision number, from 1"),
        "state": state,
        "timestamp": text("time of the computation"),
    }));
    let all = ["_id", "customerId", "period", "periodStart", "periodEnd", "periodKey", "timestamp"];
    let all: Vec<&str> =
        [&all[..], &FIGURE_FIELDS, &["state", "revision", "correctionPending", "webhookStatus"]]
            .concat();
    let revision = object("One revision of an aggregate.", &FIGURE_FIELDS, revision);
    let revisions = json!({"revisions": {"type": "array", "items": revision}});
    vec![
        named(
            "Aggregation",
            object("The figures of one customer in one period.", &all, aggregation),
        ),
        named("Aggregations", array("Aggregation")),
        named(
            "AggregationWithRevisions",
            json!({
                "allOf": [
                    reference("Aggregation"),
                    {"type": "object", "required": ["revisions"], "properties": revisions},
                ],
            }),
        ),
    ]
}

fn damaged_event() -> Value {
    object(
        "An event whose stored row is not what was recorded. Its content is not shown.",
        &["damaged", "sequence", "error"],
        json!({
            "damaged": flag("always true"),
            "sequence": number("sequence number, for `logmill meter restore-event`"),
            "error": text("human-readable"),
        }),
    )
}

fn live() -> Schemas {
    let period = with_figures(&json!({
        "period": text("kind of period"),
        "periodKey": text("key of the period within its kind"),
        "periodStart": text("start of the period"),
        "periodEnd": text("last millisecond of the period"),
    }));
    let payload = object(
        "Figures of the periods in progress.",
        &["customerId", "timestamp", "periods"],
        json!({
            "customerId": text("customer"),
            "timestamp": text("time at which the figures were read"),
            "periods": {"type": "array", "items": object("Figures of one period.", &FIGURE_FIELDS, period)},
        }),
    );
    let fields = json!({"type": {"type": "string", "enum": ["meters"]}, "payload": payload});
    let message = object("One message of the stream.", &["type", "payload"], fields);
    vec![named("LiveMeters", message)]
}

fn settings() -> Schemas {
    let any = json!({"type": "object", "additionalProperties": true});
    let list = |about: &str| json!({"type": "array", "items": any, "description": about});
    let fields = json!({
        "periods": {
            "type": "array",
            "items": {"type": ["string", "object"], "additionalProperties": true},
            "description": "kinds of periods",
        },
        "zone": text("time zone"),
        "graceMs": number("how long a period stays open for late events, in milliseconds"),
        "events": {"type": "object", "description": "event types by name", "additionalProperties": any},
        "alerts": list("alert rules"),
        "webhooks": list("webhooks of the configuration, without secrets"),
        "source": text("source of events that the caller sends without one"),
    });
    let names = ["periods", "zone", "graceMs", "events", "alerts", "webhooks"];
    vec![named("MeterConfig", object("The metering configuration.", &names, fields))]
}
