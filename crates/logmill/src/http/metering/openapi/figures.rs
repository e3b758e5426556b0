//! Schemas of what is said of usage: events, aggregates, live values, answers to queries, settings.
//!
//! Guarantees: those of the document. Leaves to others: saying it.

use serde_json::{Map, Value, json};

use super::{Schemas, array, flag, maybe, named, number, object, reference, text};

pub(super) fn all() -> Schemas {
    [events(), aggregations(), live(), answers(), corrections(), settings()].concat()
}

/// An average whose digits do not end.
fn mean() -> Value {
    object(
        "an average whose digits do not end, exactly",
        &["sum", "count"],
        json!({"sum": text("the sum of the values"), "count": number("how many there are")}),
    )
}

/// A number as JSON, where that is exact.
fn shown_number(about: &str) -> Value {
    json!({"type": ["number", "integer", "null"], "description": about})
}

/// What every aggregate says.
const SAYS: [&str; 3] = ["events", "eventsExact", "eventCounts"];

fn answers() -> Schemas {
    let provisional = json!({
        "type": ["object", "null"],
        "description": "usage that is not final yet and not part of the value",
        "required": ["value", "valueExact", "count"],
        "properties": {
            "value": shown_number("as a JSON number; null if that would not be exact"),
            "valueExact": text("as text, exactly"),
            "count": number("how many events"),
        },
    });
    let group = json!({"type": ["string", "null"]});
    let line = object(
        "One line of an answer.",
        &["start", "end", "group", "value", "valueExact", "exact", "count", "final", "provisional"],
        json!({
            "start": text("the first moment of its window"),
            "end": text("the first moment after its window"),
            "group": {
                "type": "object",
                "description": "the values that it is of",
                "additionalProperties": group,
            },
            "value": shown_number(
                "as a JSON number; of what is not exact the nearest double; null if it is exact and a JSON number \
                 would not be, or there is none",
            ),
            "valueExact": maybe("string", "as text, exactly; rounded to 36 decimal places if `exact` is false"),
            "mean": mean(),
            "exact": flag("whether it is exact"),
            "count": number("how many events it is made of"),
            "final": flag("whether its window and the grace have passed, and usage of chains is complete"),
            "provisional": provisional,
        }),
    );
    let answer = object(
        "The answer to a query.",
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
            "eventType": text("of which usage"),
            "op": text("how it was computed"),
            "from": text("from when on"),
            "to": text("until when, and not at that moment"),
            "window": maybe("string", "the kind of windows"),
            "zone": text("their time zone"),
            "provisionalComplete": flag(
                "whether all usage of chains is in `value` or in `provisional`, and no recorded usage is of blocks \
                 that were replaced",
            ),
            "provisionalIncomplete": {
                "type": "array",
                "description": "why usage of chains is missing or not corrected yet, for people; empty if \
                    `provisionalComplete` is true",
                "items": {"type": "string"},
            },
            "data": array("MeterLine"),
        }),
    );
    vec![named("MeterLine", line), named("MeterAnswer", answer)]
}

fn corrections() -> Schemas {
    let fields = json!({
        "chain": number("which chain"),
        "replacement": number("number of the replacement of stored blocks"),
        "firstBlock": number("the first replaced block"),
        "lastBlock": number("the last replaced block"),
        "reason": text("why"),
        "blocks": number("blocks whose usage changed"),
        "cancelled": number("usage events that were cancelled"),
        "recorded": number("usage events that were recorded in their place"),
        "begunAt": text("when it began"),
        "doneAt": maybe("string", "when it was complete; null while it is under way"),
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
        "eventType": text("its type"),
        "customerId": text("whose usage"),
        "value": {
            "type": ["number", "integer", "null"],
            "description": "as a JSON number; null if that would not be exact",
        },
        "valueExact": text("as text, exactly"),
        "metadata": {"type": "object", "description": "as it was sent", "additionalProperties": true},
        "receivedAt": text("when it came"),
        "timestamp": text("when it happened"),
        "source": text("who said it"),
        "id": text("which event of that source"),
        "state": {"type": "string", "enum": ["recorded", "amended", "cancelled"]},
        "minute": text("YYYYMMDDHHmm of when it happened, in UTC"),
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
        "What was done to an event.",
        &["action", "valueBefore", "valueAfter", "reason", "actor", "at"],
        json!({
            "action": {"type": "string", "enum": ["cancel", "amend"]},
            "valueBefore": text("its value before"),
            "valueAfter": {"type": ["string", "null"], "description": "its value since, if it has one"},
            "reason": text("why"),
            "actor": text("the key of who did it"),
            "at": text("when"),
        }),
    );
    let corrections = json!({"corrections": {"type": "array", "items": correction}});
    vec![
        named("Event", object("A recorded event.", &names, fields)),
        named("Events", array("Event")),
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

/// What an aggregate says of usage.
fn said() -> Map<String, Value> {
    let by_type = |of: Value, about: &str| json!({"type": "object", "description": about, "additionalProperties": of});
    let numbers = json!({"type": ["number", "integer", "null"]});
    [
        (
            "events",
            by_type(
                numbers,
                "by event type; the nearest double of what is in `approximate`; null where the value is exact \
                 and a JSON number would not be",
            ),
        ),
        (
            "eventsExact",
            by_type(
                json!({"type": "string"}),
                "the same as text, exactly; rounded to 36 decimal places if it is in `approximate`",
            ),
        ),
        ("eventsMean", by_type(mean(), "averages whose digits do not end, if there are any")),
        ("eventCounts", by_type(json!({"type": "integer"}), "how many events, by event type")),
        (
            "approximate",
            json!({
                "type": "array",
                "items": {"type": "string"},
                "description": "the event types whose value is not exact, if there are any",
            }),
        ),
    ]
    .map(|(name, schema)| (name.to_owned(), schema))
    .into_iter()
    .collect()
}

/// What an aggregate says of usage, and more.
fn with_said(more: &Value) -> Value {
    let mut fields = said();
    fields.extend(more.as_object().cloned().unwrap_or_default());
    Value::Object(fields)
}

/// How far the delivery of an aggregate has come.
fn delivery_summary() -> Value {
    object(
        "How far webhooks are with telling of it.",
        &["delivered", "attempts"],
        json!({
            "delivered": flag("whether every endpoint was told"),
            "attempts": number("how many attempts were made"),
            "deliveredAt": text("when the last endpoint was told"),
            "lastAttemptAt": text("when the last attempt was made"),
            "lastError": text("what went wrong last"),
            "dryRun": flag("whether nothing is sent"),
        }),
    )
}

fn aggregations() -> Schemas {
    let state = json!({"type": "string", "enum": ["provisional", "final", "corrected"]});
    let aggregation = with_said(&json!({
        "_id": text("customer, period and key"),
        "customerId": text("whose usage"),
        "period": text("the kind of its period"),
        "periodStart": text("its first moment"),
        "periodEnd": text("its last millisecond"),
        "periodKey": text("which period of its kind"),
        "timestamp": text("when it was computed"),
        "state": state,
        "revision": number("how often it was computed anew"),
        "webhookStatus": delivery_summary(),
    }));
    let revision = with_said(&json!({
        "revision": number("which"),
        "state": state,
        "timestamp": text("when it was computed"),
    }));
    let all = ["_id", "customerId", "period", "periodStart", "periodEnd", "periodKey", "timestamp"];
    let all: Vec<&str> = [&all[..], &SAYS, &["state", "revision", "webhookStatus"]].concat();
    let revision = object("What an aggregate said.", &SAYS, revision);
    let revisions = json!({"revisions": {"type": "array", "items": revision}});
    vec![
        named("Aggregation", object("What is said of a period.", &all, aggregation)),
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

fn live() -> Schemas {
    let period = with_said(&json!({
        "period": text("the kind of the period"),
        "periodKey": text("which period of its kind"),
        "periodStart": text("its first moment"),
        "periodEnd": text("its last millisecond"),
    }));
    let payload = object(
        "What the periods under way say.",
        &["customerId", "timestamp", "periods"],
        json!({
            "customerId": text("whose usage"),
            "timestamp": text("when it was looked"),
            "periods": {"type": "array", "items": object("A period.", &SAYS, period)},
        }),
    );
    let fields = json!({"type": {"type": "string", "enum": ["meters"]}, "payload": payload});
    let message = object("A message of the stream.", &["type", "payload"], fields);
    vec![named("LiveMeters", message)]
}

fn settings() -> Schemas {
    let any = json!({"type": "object", "additionalProperties": true});
    let list = |about: &str| json!({"type": "array", "items": any, "description": about});
    let fields = json!({
        "periods": {
            "type": "array",
            "items": {"type": ["string", "object"], "additionalProperties": true},
            "description": "the kinds of periods",
        },
        "zone": text("their time zone"),
        "graceMs": number("how long a period waits for late events"),
        "events": {"type": "object", "description": "event types", "additionalProperties": any},
        "alerts": list("thresholds"),
        "webhooks": list("webhooks of the configuration, without secrets"),
        "source": text("the source of events that the caller sends without one"),
    });
    let names = ["periods", "zone", "graceMs", "events", "alerts", "webhooks"];
    vec![named("MeterConfig", object("What is metered.", &names, fields))]
}
