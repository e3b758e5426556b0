//! CloudEvents: where the value is, and which events are refused.

use logmill_io::SeededEntropy;
use logmill_meter::event::{CloudEvent, Event, Sender, from_cloud};
use logmill_sim::meter_world::{at, settings};
use serde_json::{Value, json};

fn checked(more: &Value) -> Result<Event, Vec<String>> {
    let mut event = json!({"specversion": "1.0", "type": "api.calls", "subject": "c",
        "source": "s", "id": "1"});
    for (name, value) in more.as_object().expect("fields") {
        event[name] = value.clone();
    }
    let text = event.to_string();
    let cloud: CloudEvent<'_> = serde_json::from_str(&text).expect("an object");
    let entropy = SeededEntropy::shared(1);
    let sender = Sender { source: "key", now: at("2026-01-13T08:20:00Z"), entropy: &*entropy };
    from_cloud(&cloud, &settings(), &sender)
}

#[test]
fn data_in_base64_is_decoded() {
    let plain = checked(&json!({"data": {"value": 42, "region": "eu"}})).expect("an event");
    assert_eq!(plain.value.to_string(), "42");
    // {"value": 42, "region": "eu"}
    let encoded = "eyJ2YWx1ZSI6IDQyLCAicmVnaW9uIjogImV1In0=";
    for content_type in
        [Value::Null, json!("application/json; charset=utf-8"), json!("Application/Usage+JSON")]
    {
        let event = json!({"data_base64": encoded, "datacontenttype": content_type});
        let found = checked(&event).unwrap_or_else(|errors| panic!("{event}: {errors:?}"));
        assert_eq!((found.value, found.content), (plain.value, plain.content), "{event}");
    }
    assert_eq!(checked(&json!({})).expect("an event").value.to_string(), "1");
}

#[test]
fn data_that_cannot_be_parsed_is_refused_and_does_not_count_as_one() {
    let encoded = "eyJ2YWx1ZSI6IDQyLCAicmVnaW9uIjogImV1In0=";
    for (event, wrong) in [
        (
            json!({"data": {"value": 1}, "data_base64": encoded}),
            "data and data_base64 must not both be present",
        ),
        (
            json!({"data_base64": encoded, "datacontenttype": "application/xml"}),
            "datacontenttype of data_base64 must be JSON",
        ),
        (
            json!({"data_base64": encoded, "datacontenttype": 7}),
            "datacontenttype of data_base64 must be JSON",
        ),
        (
            json!({"data_base64": encoded.trim_end_matches('=')}),
            "data_base64 must be base64 with padding",
        ),
        (json!({"data_base64": {"value": 1}}), "data_base64 must be base64 with padding"),
        (json!({"data_base64": "/w=="}), "data_base64 must be JSON in UTF-8"),
        (json!({"data_base64": ""}), "data must be an object"),
        (json!({"data_base64": "NDI="}), "data must be an object"),
        (json!({"data": 42}), "data must be an object"),
    ] {
        assert_eq!(checked(&event), Err(vec![wrong.to_owned()]), "{event}");
    }
}
