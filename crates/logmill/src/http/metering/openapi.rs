//! What metering adds to the OpenAPI document, made of the same declarations as its routes.
//!
//! Guarantees: every path, parameter and status of its own that is served is in it. Leaves to others: the document
//! ([`crate::http::api`]).

use serde_json::{Map, Value, json};

use super::route::{Param, ROUTES, Route};

/// The errors that any of these paths may have: status, when.
const FAILURES: [(&str, &str); 6] = [
    ("400", "a parameter or the body makes no sense"),
    ("401", "a key is needed"),
    ("403", "the key does not allow this"),
    ("404", "there is none"),
    ("500", "something is wrong here"),
    ("503", "not at the moment, or nothing is metered here"),
];

/// The paths with what can be done there.
pub(in crate::http) fn paths() -> Map<String, Value> {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    paths
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "tags": ["metering"],
        "parameters": parameters(route),
        "responses": responses(route),
    });
    match route.scope {
        None => operation["security"] = json!([{}]),
        Some(scope) => {
            let about = format!("{} Needs the scope `{}`.", route.summary, scope.name());
            operation["description"] = about.into();
        }
    }
    if !route.bodies.is_empty() {
        let content: Map<String, Value> = route.bodies.iter().map(content).collect();
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": "percent-encoded",
            "schema": {"type": "string"},
        })
    });
    in_path.chain(route.params.iter().map(parameter)).collect()
}

fn parameter(param: &Param) -> Value {
    let schema = match param.name {
        "limit" => json!({"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}),
        _ => json!({"type": "string"}),
    };
    json!({
        "name": param.name,
        "in": "query",
        "required": param.is_required,
        "description": param.about,
        "schema": schema,
    })
}

fn responses(route: &Route) -> Map<String, Value> {
    let mut responses = Map::new();
    for (status, about) in FAILURES {
        let is_of_keys = matches!(status, "401" | "403");
        if route.scope.is_some() || !is_of_keys {
            responses.insert(status.to_owned(), response("MeterError", about));
        }
    }
    for (status, schema, about) in route.failures.iter().chain(route.answers) {
        responses.insert((*status).to_owned(), response(schema, about));
    }
    responses
}

fn response(schema: &str, about: &str) -> Value {
    match schema.is_empty() {
        true => json!({"description": about}),
        false => {
            let content: Map<String, Value> = [content(&("application/json", schema))].into();
            json!({"description": about, "content": content})
        }
    }
}

fn content((media, schema): &(&str, &str)) -> (String, Value) {
    ((*media).to_owned(), json!({"schema": reference(schema)}))
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// The schemas that these paths name.
pub(in crate::http) fn schemas() -> Map<String, Value> {
    let all = [requests(), answers(), events(), aggregations(), settings()];
    all.into_iter().flatten().collect()
}

type Schemas = Vec<(String, Value)>;

/// An object with these fields, some of which are always there.
fn object(about: &str, required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "description": about, "required": required, "properties": properties})
}

fn named(name: &str, schema: Value) -> (String, Value) {
    (name.to_owned(), schema)
}

fn array(of: &str) -> Value {
    json!({"type": "array", "items": reference(of)})
}

fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

fn number(about: &str) -> Value {
    json!({"type": "integer", "description": about})
}

fn requests() -> Schemas {
    let any = |about: &str| json!({"type": "object", "description": about});
    let value = json!({
        "type": ["number", "string"],
        "description": "an exact decimal: a JSON number, or its text; text keeps all digits of large ones",
    });
    let fields = json!({
        "customerId": text("whose usage"),
        "value": value,
        "metadata": any("anything else"),
        "id": text("what makes it this event and no other of its source; made if it is not given"),
        "source": text("who says it; the name of the key if it is not given"),
        "timestamp": text("when it happened, by RFC 3339 or in milliseconds; now if it is not given"),
    });
    let mut typed = fields.clone();
    typed["eventType"] = text("one of the configured types");
    let cloud = json!({
        "specversion": {"type": "string", "enum": ["1.0"]},
        "id": text("what makes it this event"),
        "source": text("who says it"),
        "type": text("one of the configured types"),
        "subject": text("whose usage"),
        "time": text("when it happened"),
        "data": any("`value`, 1 if it is not given; the rest is metadata"),
    });
    let mut correction = json!({
        "source": text("who sent the event; the caller's own key if it is not given"),
        "id": text("which event of that source"),
        "reason": text("why"),
    });
    let cancellation = object("An event to be taken back.", &["id", "reason"], correction.clone());
    correction["value"] = value;
    vec![
        named("UsageEvent", object("A usage event.", &["customerId", "value"], fields)),
        named(
            "TypedEvent",
            object(
                "A usage event with its type.",
                &["eventType", "customerId", "value"],
                typed,
            ),
        ),
        named("TypedEvents", array("TypedEvent")),
        named(
            "CloudEvent",
            object(
                "A usage event as a CloudEvent.",
                &["specversion", "id", "source", "type", "subject"],
                cloud,
            ),
        ),
        named("CloudEvents", array("CloudEvent")),
        named("Cancellation", cancellation),
        named(
            "Amendment",
            object("An event to be amended.", &["id", "reason", "value"], correction),
        ),
    ]
}

fn answers() -> Schemas {
    let ids = json!({"type": "array", "items": {"type": "string"}, "description": "in order"});
    let errors = json!({"type": "array", "items": {"type": "string"}});
    let about_one = json!({
        "message": text("for people"),
        "eventType": text("its type"),
        "customerId": text("whose usage"),
        "id": text("its id"),
    });
    let mut conflict = about_one.clone();
    if let Some(fields) = conflict.as_object_mut() {
        fields.remove("message");
    }
    conflict["error"] = text("for people");
    let wrong = object(
        "What is wrong with one event.",
        &["index", "errors"],
        json!({"index": number("which event of the batch"), "errors": errors}),
    );
    let clash = object(
        "An event that was not recorded.",
        &["index", "id"],
        json!({"index": number("which event of the batch"), "id": text("its id")}),
    );
    let error = json!({"error": text("for people")});
    vec![
        named("MeterError", object("Why a request failed.", &["error"], error)),
        named(
            "Captured",
            object("A recorded event.", &["message", "eventType", "customerId", "id"], about_one),
        ),
        named(
            "EventConflict",
            object(
                "An event that was not recorded.",
                &["error", "eventType", "customerId", "id"],
                conflict,
            ),
        ),
        named(
            "EventInvalid",
            object(
                "What is wrong with an event.",
                &["error", "details"],
                json!({"error": text("for people"), "details": errors}),
            ),
        ),
        named(
            "BatchCaptured",
            object(
                "Recorded events.",
                &["message", "count", "ids"],
                json!({"message": text("for people"), "count": number("how many"), "ids": ids}),
            ),
        ),
        named(
            "BatchPartly",
            object(
                "Events of which some were recorded.",
                &["message", "successCount", "failedCount", "conflicts", "ids"],
                json!({
                    "message": text("for people"),
                    "successCount": number("how many are recorded"),
                    "failedCount": number("how many are not"),
                    "conflicts": {"type": "array", "items": clash},
                    "ids": ids,
                }),
            ),
        ),
        named(
            "BatchInvalid",
            object(
                "What is wrong with a batch.",
                &["error", "validationErrors", "validCount", "invalidCount"],
                json!({
                    "error": text("for people"),
                    "validationErrors": {"type": "array", "items": wrong},
                    "validCount": number("how many are fine"),
                    "invalidCount": number("how many are not"),
                }),
            ),
        ),
        named(
            "BatchTooLarge",
            object(
                "A batch or a body that is too large.",
                &["error"],
                json!({
                    "error": text("for people"),
                    "received": number("how many events came"),
                    "maxAllowed": number("how many are taken at a time"),
                }),
            ),
        ),
        named("Triggered", triggered()),
        named(
            "NothingToDo",
            object(
                "There is nothing to aggregate.",
                &["message", "jobsQueued"],
                json!({"message": text("for people"), "jobsQueued": number("none")}),
            ),
        ),
        named(
            "Pong",
            object("Somebody is there.", &["message"], json!({"message": text("pong")})),
        ),
    ]
}

fn triggered() -> Value {
    object(
        "What a trigger found.",
        &[
            "message",
            "jobsCreated",
            "jobsUpdated",
            "jobsQueued",
            "customersFound",
            "periodsConfigured",
            "eventsScanned",
        ],
        json!({
            "message": text("for people"),
            "jobsCreated": number("jobs that are new"),
            "jobsUpdated": number("jobs that were there"),
            "jobsQueued": number("all of them"),
            "customersFound": number("customers with such periods"),
            "periodsConfigured": number("kinds of periods"),
            "eventsScanned": number("events that came since it was last looked"),
        }),
    )
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
    let names: Vec<String> = fields.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
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
        ("events", by_type(numbers, "by event type; null where a JSON number would not be exact")),
        ("eventsExact", by_type(json!({"type": "string"}), "the same as text, exactly")),
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

fn aggregations() -> Schemas {
    let state = json!({"type": "string", "enum": ["provisional", "final", "corrected"]});
    let with_said = |more: Value| {
        let mut fields = said();
        fields.extend(more.as_object().cloned().unwrap_or_default());
        Value::Object(fields)
    };
    let aggregation = with_said(json!({
        "_id": text("customer, period and key"),
        "customerId": text("whose usage"),
        "period": text("the kind of its period"),
        "periodStart": text("its first moment"),
        "periodEnd": text("its last millisecond"),
        "periodKey": text("which period of its kind"),
        "timestamp": text("when it was computed"),
        "state": state,
        "revision": number("how often it was computed anew"),
    }));
    let revision = with_said(json!({
        "revision": number("which"),
        "state": state,
        "timestamp": text("when it was computed"),
    }));
    let live = with_said(json!({
        "period": text("the kind of the period"),
        "periodKey": text("which period of its kind"),
        "periodStart": text("its first moment"),
        "periodEnd": text("its last millisecond"),
    }));
    let says = ["events", "eventsExact", "eventCounts"];
    let all = ["_id", "customerId", "period", "periodStart", "periodEnd", "periodKey", "timestamp"];
    let all: Vec<&str> = [&all[..], &says, &["state", "revision"]].concat();
    let revision = object("What an aggregate said.", &says, revision);
    let revisions = json!({"revisions": {"type": "array", "items": revision}});
    let payload = object(
        "What the periods under way say.",
        &["customerId", "timestamp", "periods"],
        json!({
            "customerId": text("whose usage"),
            "timestamp": text("when it was looked"),
            "periods": {"type": "array", "items": object("A period.", &says, live)},
        }),
    );
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
        named(
            "LiveMeters",
            object(
                "A message of the stream.",
                &["type", "payload"],
                json!({"type": {"type": "string", "enum": ["meters"]}, "payload": payload}),
            ),
        ),
    ]
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
    });
    let names = ["periods", "zone", "graceMs", "events", "alerts", "webhooks"];
    vec![named("MeterConfig", object("What is metered.", &names, fields))]
}
