//! Schemas of sending usage: what is sent, and what comes back.
//!
//! Guarantees: those of the document. Leaves to others: checking.

use serde_json::{Value, json};

use super::{Schemas, array, named, number, object, text};

pub(super) fn requests() -> Schemas {
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
            object("A usage event with its type.", &["eventType", "customerId", "value"], typed),
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

pub(super) fn answers() -> Schemas {
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
        named("Pong", object("Somebody is there.", &["message"], json!({"message": text("pong")}))),
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
