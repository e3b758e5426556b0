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
        "source": text("who says it; the source of the key if it is not given"),
        "timestamp": text("when it happened, by RFC 3339 or in milliseconds; now if it is not given"),
    });
    let mut typed = fields.clone();
    typed["eventType"] = text("one of the configured types");
    let mut of_path = fields;
    of_path["eventType"] = text("the type of the path, or left out");
    let cloud = json!({
        "specversion": {"type": "string", "enum": ["1.0"]},
        "id": text("what makes it this event"),
        "source": text("who says it"),
        "type": text("one of the configured types"),
        "subject": text("whose usage"),
        "time": text("when it happened"),
        "datacontenttype": text("that `data` is JSON; nothing else is taken"),
        "data": any("`value`, 1 if it is not given; the rest is metadata"),
        "data_base64": text("`data` in base64, instead of it"),
    });
    let mut correction = json!({
        "source": text("who sent the event; the source of the caller's own key if it is not given"),
        "id": text("which event of that source"),
        "reason": text("why"),
    });
    let cancellation = object("An event to be taken back.", &["id", "reason"], correction.clone());
    correction["value"] = value;
    vec![
        named("UsageEvent", closed(object("A usage event.", &["customerId", "value"], of_path))),
        named(
            "TypedEvent",
            closed(object(
                "A usage event with its type.",
                &["eventType", "customerId", "value"],
                typed,
            )),
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

/// An object with no other fields.
fn closed(mut schema: Value) -> Value {
    schema["additionalProperties"] = false.into();
    schema
}

pub(super) fn answers() -> Schemas {
    [of_one(), of_many(), of_others()].concat()
}

fn of_one() -> Schemas {
    let errors = json!({"type": "array", "items": {"type": "string"}});
    let mut captured = json!({
        "message": text("for people"),
        "eventType": text("its type"),
        "customerId": text("whose usage"),
        "id": text("its id"),
    });
    let about_it = ["eventType", "customerId", "id"];
    let fields = [&["message"][..], &about_it].concat();
    let made = object("A recorded event.", &fields, captured.clone());
    if let Some(fields) = captured.as_object_mut() {
        fields.remove("message");
    }
    captured["error"] = text("for people");
    let fields = [&["error"][..], &about_it].concat();
    let conflict = object("An event that was not recorded.", &fields, captured);
    let invalid = object(
        "What is wrong with an event.",
        &["error", "details"],
        json!({"error": text("for people"), "details": errors}),
    );
    vec![named("Captured", made), named("EventConflict", conflict), named("EventInvalid", invalid)]
}

fn of_many() -> Schemas {
    let texts =
        |about: &str| json!({"type": "array", "items": {"type": "string"}, "description": about});
    let index = number("which event of the batch");
    let wrong = object(
        "What is wrong with one event.",
        &["index", "errors"],
        json!({"index": index, "errors": texts("what is wrong")}),
    );
    let clash = object(
        "An event that was not recorded.",
        &["index", "id"],
        json!({"index": index, "id": text("its id")}),
    );
    let (message, ids) = (text("for people"), texts("the ids, in order"));
    let captured = json!({"message": message, "count": number("how many"), "ids": ids});
    let partly = json!({
        "message": message,
        "successCount": number("how many are recorded"),
        "failedCount": number("how many are not"),
        "conflicts": {"type": "array", "items": clash},
        "ids": ids,
    });
    let invalid = json!({
        "error": text("for people"),
        "validationErrors": {"type": "array", "items": wrong},
        "validCount": number("how many are fine"),
        "invalidCount": number("how many are not"),
    });
    let large = json!({
        "error": text("for people"),
        "received": number("how many events came"),
        "maxAllowed": number("how many are taken at a time"),
    });
    let captured_fields = ["message", "count", "ids"];
    let partly_fields = ["message", "successCount", "failedCount", "conflicts", "ids"];
    let invalid_fields = ["error", "validationErrors", "validCount", "invalidCount"];
    vec![
        named("BatchCaptured", object("Recorded events.", &captured_fields, captured)),
        named("BatchPartly", object("Events partly recorded.", &partly_fields, partly)),
        named("BatchInvalid", object("What is wrong with a batch.", &invalid_fields, invalid)),
        named("BatchTooLarge", object("A batch or body that is too large.", &["error"], large)),
    ]
}

fn of_others() -> Schemas {
    let error = json!({"error": text("for people")});
    let nothing = json!({"message": text("for people"), "jobsQueued": number("none")});
    let nothing = object("There is nothing to aggregate.", &["message", "jobsQueued"], nothing);
    let pong = object("Somebody is there.", &["message"], json!({"message": text("pong")}));
    vec![
        named("MeterError", object("Why a request failed.", &["error"], error)),
        named("Triggered", triggered()),
        named("NothingToDo", nothing),
        named("Pong", pong),
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
