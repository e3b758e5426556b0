//! Schemas of webhooks: endpoints, deliveries, attempts.
//!
//! Guarantees: those of the document; a secret is in no answer but of who makes or rotates one. Leaves to others:
//! delivering.

use serde_json::{Value, json};

use super::{Schemas, array, flag, maybe, named, number, object, text};

pub(super) fn all() -> Schemas {
    [requests(), endpoints(), outcomes(), deliveries()].concat()
}

fn names(about: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": about})
}

fn requests() -> Schemas {
    let mut fields = json!({
        "url": text("where messages are posted to"),
        "description": text("what it is for"),
        "events": names("the kinds of messages that it gets; all if none is named"),
        "customers": names("about whom it gets messages; about everybody if none is named"),
        "ordered": flag("whether a message is sent only once the one before it is settled"),
        "enabled": flag("whether it gets anything"),
    });
    let change = object("What is to be changed of an endpoint.", &[], fields.clone());
    fields["secret"] =
        text("16 to 256 bytes, or `whsec_` and 24 to 64 bytes in base64; made if it is not given");
    let rotation = json!({
        "secret": text("the new one; made if it is not given"),
        "overlapSeconds": number("how long the old one signs along: a day if it is not given, at most a week"),
    });
    let replay = json!({
        "messageId": text("one message, whatever became of it"),
        "since": text("all that failed or were cancelled since this moment"),
    });
    vec![
        named("NewEndpoint", object("An endpoint to be made.", &["url"], fields)),
        named("EndpointChange", change),
        named("Rotation", object("A new secret.", &[], rotation)),
        named("Replay", object("What is to be sent again: one or the other.", &[], replay)),
    ]
}

fn endpoints() -> Schemas {
    let mut fields = json!({
        "id": text("its name"),
        "url": text("where messages are posted to"),
        "description": text("what it is for"),
        "events": names("the kinds of messages that it gets; all if none is named"),
        "customers": names("about whom it gets messages; about everybody if none is named"),
        "ordered": flag("whether a message is sent only once the one before it is settled"),
        "enabled": flag("whether it gets anything"),
        "configured": flag("whether it comes from the configuration"),
        "disabledWhy": maybe("string", "why it was disabled"),
        "failingSince": maybe("string", "since when every attempt has failed"),
        "lastError": maybe("string", "what went wrong last"),
        "lastErrorAt": maybe("string", "when that was"),
        "createdAt": text("when it was made"),
        "updatedAt": text("when it was changed"),
    });
    let required = |fields: &Value| -> Vec<String> {
        fields.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    };
    let of = |about: &str, fields: &Value| {
        let names = required(fields);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        object(about, &names, fields.clone())
    };
    let endpoint = of("An endpoint.", &fields);
    fields["secret"] = text("its secret, which is never shown again");
    let made = of("An endpoint that was made.", &fields);
    if let Some(fields) = fields.as_object_mut() {
        fields.remove("secret");
    }
    for (name, about) in [
        ("pending", "deliveries that are due, now or later"),
        ("failing", "those of them that have failed at least once"),
        ("waiting", "deliveries that wait for the one before"),
        ("exhausted", "deliveries whose attempts have all failed"),
        ("cancelled", "deliveries that were cancelled"),
    ] {
        fields[name] = number(about);
    }
    fields["oldestAt"] =
        maybe("string", "when the oldest message that is not settled was published");
    vec![
        named("Endpoint", endpoint),
        named("MadeEndpoint", made),
        named("EndpointStatus", of("An endpoint, and how it stands.", &fields)),
        named("EndpointStatuses", array("EndpointStatus")),
    ]
}

fn outcomes() -> Schemas {
    let secret = json!({"secret": text("which is never shown again")});
    let message = json!({"messageId": text("its message")});
    let replayed = json!({
        "deliveries": number("how many deliveries"),
        "more": flag("whether there may be more: then ask again"),
    });
    vec![
        named("Rotated", object("A new secret.", &["secret"], secret)),
        named("Tested", object("A test under way.", &["messageId"], message)),
        named("Replayed", object("What is sent again.", &["deliveries", "more"], replayed)),
    ]
}

fn deliveries() -> Schemas {
    let states = ["pending", "waiting", "succeeded", "exhausted", "cancelled"];
    let delivery = object(
        "One message to one endpoint.",
        &[
            "messageId",
            "kind",
            "customerId",
            "endpointId",
            "state",
            "round",
            "attempts",
            "lastStatus",
            "lastError",
            "nextAt",
            "createdAt",
            "updatedAt",
        ],
        json!({
            "messageId": text("its message, `webhook-id` of every attempt"),
            "kind": text("what that tells of"),
            "customerId": maybe("string", "about whom"),
            "endpointId": text("its endpoint"),
            "state": {"type": "string", "enum": states},
            "round": number("how often it was replayed"),
            "attempts": number("how many attempts were made in this round"),
            "lastStatus": maybe("integer", "the last status that came back"),
            "lastError": maybe("string", "what went wrong last"),
            "nextAt": maybe("string", "when the next attempt is due"),
            "createdAt": text("when it was published"),
            "updatedAt": text("when something happened to it last"),
        }),
    );
    let attempt = object(
        "One attempt.",
        &["round", "attempt", "at", "durationMs", "status", "error", "response", "dryRun"],
        json!({
            "round": number("how often the delivery had been replayed"),
            "attempt": number("the number of the attempt in its round"),
            "at": text("when it was made"),
            "durationMs": number("how long it took"),
            "status": maybe("integer", "the status that came back"),
            "error": maybe("string", "what went wrong"),
            "response": text("the beginning of what came back"),
            "dryRun": flag("whether nothing was sent"),
        }),
    );
    vec![
        named("Delivery", delivery),
        named("Deliveries", array("Delivery")),
        named("Attempt", attempt),
        named("Attempts", array("Attempt")),
    ]
}
