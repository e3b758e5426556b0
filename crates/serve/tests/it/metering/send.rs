//! Sending usage: every status and body, for first and repeated requests.

use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::{Metered, settings};

const CLOUD: &str = "application/cloudevents+json";
const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

/// The types in the order in which errors list them.
const TYPES: &str =
    "api.calls, response.time.ms, storage.bytes, test.count, test.first, test.last, test.min";

async fn one_event_is_captured_and_told_as_the_seed_does(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let body = json!({"customerId": "cust_123", "value": 100, "metadata": {"a": 1}, "id": "e1"});
    let told = metered.send("api.calls", body).await;
    let expected = json!({
        "message": "Event captured", "eventType": "api.calls", "customerId": "cust_123", "id": "e1",
    });
    assert_eq!(told, expected);
    let found = metered.found("/events?customerId=cust_123").await;
    let expected = json!([{
        "eventType": "api.calls", "customerId": "cust_123", "value": 100, "valueExact": "100",
        "metadata": {"a": 1}, "receivedAt": "2026-01-13T08:20:00.000Z",
        "timestamp": "2026-01-13T08:20:00.000Z", "source": "local", "id": "e1", "state": "recorded",
        "minute": "202601130820", "hour": "2026011308", "day": "20260113", "week": "202603",
        "month": "202601", "year": "2026",
    }]);
    assert_eq!(found, expected);
}

async fn what_is_wrong_with_one_event_is_said_in_the_words_of_the_seed(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let unknown = format!("Invalid event type: x. Must be one of: {TYPES}");
    for (event_type, body, details) in [
        ("api.calls", json!({"value": 1}), vec!["customerId is required"]),
        ("api.calls", json!({"customerId": 5, "value": 1}), vec!["customerId must be a string"]),
        ("api.calls", json!({"customerId": "", "value": 1}), vec!["customerId is required"]),
        ("api.calls", json!({"customerId": "c"}), vec!["value is required"]),
        ("api.calls", json!({"customerId": "c", "value": null}), vec!["value is required"]),
        (
            "api.calls",
            json!({"customerId": "c", "value": "x"}),
            vec!["value must be a finite number"],
        ),
        (
            "api.calls",
            json!({"customerId": "c", "value": "NaN"}),
            vec!["value must be a finite number"],
        ),
        (
            "api.calls",
            json!({"customerId": "c", "value": 1, "metadata": [1]}),
            vec!["metadata must be an object if provided"],
        ),
        ("api.calls", json!({}), vec!["customerId is required", "value is required"]),
        ("x", json!({"customerId": "c", "value": 1}), vec![unknown.as_str()]),
    ] {
        let answer = metered.post(&format!("/usage/{event_type}"), &body).await;
        let expected = json!({"error": "Validation failed", "details": details});
        assert_eq!((answer.status, answer.body), (422, expected), "{body}");
    }
    for body in ["[]", "1", "\"x\"", "null", "", "{", "{} {}", "\u{7f}"] {
        let answer = metered.post_as("/usage/api.calls", "application/json", body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.body["error"].is_string(), "{body}");
    }
    assert_eq!(metered.found("/events").await, json!([]));
}

async fn values_are_exact_whatever_they_are(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let wei = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    for (value, number, exact) in [
        ("0", json!(0), "0"),
        ("-7", json!(-7), "-7"),
        ("0.1", json!(0.1), "0.1"),
        ("\"0.3\"", json!(0.3), "0.3"),
        ("1e3", json!(1000), "1000"),
        (wei, Value::Null, wei),
        ("0.123456789012345678", Value::Null, "0.123456789012345678"),
    ] {
        let body = format!("{{\"customerId\":\"c\",\"value\":{value}}}");
        let answer = metered.post_as("/usage/api.calls", "application/json", &body).await;
        assert_eq!(answer.status, 201, "{body}: {}", answer.body);
        let event = metered.found("/events?limit=1").await[0].take();
        assert_eq!((&event["value"], &event["valueExact"]), (&number, &json!(exact)), "{value}");
    }
}

async fn a_repeated_request_is_answered_the_same_and_counts_once(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let body = json!({"customerId": "c", "value": 5, "id": "same"});
    let first = metered.send("api.calls", body.clone()).await;
    let again = metered.send("api.calls", body).await;
    assert_eq!(first, again);
    // The same content, formatted differently.
    let text = " { \"id\": \"same\", \"value\": 5.0, \"customerId\": \"c\" } ";
    let answer = metered.post_as("/usage/api.calls", "application/json", text).await;
    assert_eq!((answer.status, &answer.body), (201, &first));
    assert_eq!(metered.found("/events").await.as_array().map(Vec::len), Some(1));
    let made = metered.send("api.calls", json!({"customerId": "c", "value": 5})).await;
    let other = metered.send("api.calls", json!({"customerId": "c", "value": 5})).await;
    assert_ne!(made["id"], other["id"], "without an id each request is an event of its own");
    assert_eq!(metered.found("/events").await.as_array().map(Vec::len), Some(3));
}

async fn the_same_id_with_other_content_is_a_conflict(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 5, "id": "e"})).await;
    let other = json!({"customerId": "c", "value": 6, "id": "e"});
    let answer = metered.post("/usage/api.calls", &other).await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert_eq!(answer.body["id"], "e");
    assert!(answer.body["error"].as_str().is_some_and(|why| why.contains("other content")));
    let elsewhere = json!({"customerId": "c", "value": 6, "id": "e", "source": "other"});
    metered.send("api.calls", elsewhere).await;
    let events = metered.found("/events").await;
    assert_eq!(events.as_array().map(Vec::len), Some(2));
}

fn event(value: i64, id: &str) -> Value {
    json!({"eventType": "api.calls", "customerId": "c", "value": value, "id": id})
}

async fn a_batch_is_recorded_at_one_moment_and_repeated_without_harm(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let batch = json!([event(1, "a"), event(2, "b"), event(3, "c")]);
    for _ in 0..2 {
        let answer = metered.post("/usagebatch", &batch).await;
        let expected = json!({"message": "Events captured", "count": 3, "ids": ["a", "b", "c"]});
        assert_eq!((answer.status, answer.body), (201, expected));
    }
    let events = metered.found("/events").await;
    let events = events.as_array().expect("an array");
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| event["receivedAt"] == events[0]["receivedAt"]));
}

async fn of_a_batch_with_one_wrong_event_nothing_is_stored(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let batch = json!([event(1, "a"), {"eventType": "x", "customerId": "c"}, event(3, "c"), 7]);
    let answer = metered.post("/usagebatch", &batch).await;
    assert_eq!(answer.status, 422);
    let body = answer.body;
    assert_eq!(body["error"], "Validation failed for some events");
    assert_eq!((&body["validCount"], &body["invalidCount"]), (&json!(2), &json!(2)));
    let errors = body["validationErrors"].as_array().expect("a list");
    assert_eq!((&errors[0]["index"], &errors[1]["index"]), (&json!(1), &json!(3)));
    let expected =
        [format!("Invalid event type: x. Must be one of: {TYPES}"), "value is required".to_owned()];
    assert_eq!(errors[0]["errors"], json!(expected));
    assert_eq!(metered.found("/events").await, json!([]));
}

async fn a_batch_that_is_none_is_refused(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for (body, error) in [
        ("[]", "Events array cannot be empty"),
        ("{}", "Request body must be an array of events"),
        ("null", "Request body must be an array of events"),
    ] {
        let answer = metered.post_as("/usagebatch", "application/json", body).await;
        assert_eq!((answer.status, &answer.body["error"]), (400, &json!(error)), "{body}");
    }
    let missing = metered.post_as("/usagebatch", "application/json", "").await;
    assert_eq!(missing.status, 400);
    let many: Vec<Value> = (0..1_001).map(|number| event(1, &number.to_string())).collect();
    let answer = metered.post("/usagebatch", &json!(many)).await;
    assert_eq!(answer.status, 413);
    assert_eq!(
        (&answer.body["received"], &answer.body["maxAllowed"]),
        (&json!(1_001), &json!(1_000))
    );
    assert!(answer.body["error"].is_string());
    let answer = metered.post("/usagebatch", &json!(many[..1_000])).await;
    assert_eq!((answer.status, &answer.body["count"]), (201, &json!(1_000)));
    let large = "x".repeat((1 << 20) + 1);
    assert_eq!(metered.post_as("/usagebatch", "application/json", &large).await.status, 413);
}

async fn events_of_a_batch_that_contradict_recorded_ones_are_named_and_the_others_stored(
    engine: Engine,
) {
    let metered = Metered::new(&engine).await;
    metered.post("/usagebatch", &json!([event(1, "a"), event(2, "b")])).await;
    let batch = json!([event(1, "a"), event(9, "b"), event(3, "c"), event(4, "c")]);
    let answer = metered.post("/usagebatch", &batch).await;
    assert_eq!(answer.status, 207, "{}", answer.body);
    let body = answer.body;
    assert_eq!((&body["successCount"], &body["failedCount"]), (&json!(2), &json!(2)));
    let expected = json!([{"index": 1, "id": "b"}, {"index": 3, "id": "c"}]);
    assert_eq!(body["conflicts"], expected);
    let values = metered.found("/events").await;
    let values: Vec<i64> =
        values.as_array().expect("events").iter().filter_map(|one| one["value"].as_i64()).collect();
    assert_eq!(values, [3, 2, 1]);
}

async fn cloud_events_come_one_by_one_and_in_batches(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let cloud = |id: &str| {
        json!({
            "specversion": "1.0", "id": id, "source": "app", "type": "api.calls", "subject": "c",
            "time": "2026-01-13T07:00:00Z", "data": {"value": "2.5", "region": "eu"},
        })
    };
    for path in ["/usage", "/events"] {
        let answer = metered.post_as(path, CLOUD, &cloud(path).to_string()).await;
        assert_eq!((answer.status, &answer.body["id"]), (201, &json!(path)), "{}", answer.body);
    }
    for path in ["/usage", "/events", "/usagebatch"] {
        let batch = json!([cloud("1"), cloud(path)]).to_string();
        let answer = metered.post_as(path, CLOUD_BATCH, &batch).await;
        assert_eq!((answer.status, &answer.body["count"]), (201, &json!(2)), "{}", answer.body);
    }
    let event = metered.found("/events/lookup?source=app&id=1").await;
    assert_eq!(event["metadata"], json!({"region": "eu"}));
    assert_eq!(
        (&event["value"], &event["timestamp"]),
        (&json!(2.5), &json!("2026-01-13T07:00:00.000Z"))
    );
    let answer = metered.post_as("/usage", CLOUD, r#"{"specversion":"0.3"}"#).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    let plain = metered.post("/usage", &event_of("api.calls")).await;
    assert_eq!(plain.status, 201, "{}", plain.body);
}

fn event_of(event_type: &str) -> Value {
    json!({"eventType": event_type, "customerId": "c", "value": 1})
}

async fn what_a_path_does_not_take_is_unsupported(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for (path, media) in [
        ("/usage/api.calls", CLOUD),
        ("/usage/api.calls", "text/plain"),
        ("/usage", "text/plain"),
        ("/usagebatch", CLOUD),
        ("/usagebatch", "application/x-www-form-urlencoded"),
    ] {
        assert_eq!(metered.post_as(path, media, "{}").await.status, 415, "{path} {media}");
    }
    let media = "Application/JSON; charset=utf-8";
    let answer = metered.post_as("/usage", media, &event_of("api.calls").to_string()).await;
    assert_eq!(answer.status, 201);
}

async fn without_event_types_there_is_no_service(engine: Engine) {
    let metered = Metered::with(&engine, Default::default(), |_| {}).await;
    let expected = json!({"error": "Service misconfigured: no event types available"});
    for path in ["/usage/api.calls", "/usagebatch", "/usage", "/aggregations/trigger"] {
        let answer = metered.post(path, &event_of("api.calls")).await;
        assert_eq!((answer.status, &answer.body), (503, &expected), "{path}");
    }
    for path in ["/events", "/aggregations", "/meters/stream?customerId=c"] {
        assert_eq!(metered.get(path).await.status, 503, "{path}");
    }
    assert_eq!(metered.found("/ping").await, json!({"message": "pong"}));
    assert_eq!(metered.get("/config").await.status, 200);
}

async fn events_of_other_times_are_taken_within_bounds(engine: Engine) {
    let mut settings = settings();
    settings.past_max = Some(std::time::Duration::from_secs(3_600));
    let metered = Metered::with(&engine, settings.clone(), |_| {}).await;
    for (timestamp, status) in [
        (json!("2026-01-13T08:20:00Z"), 201),
        (json!("2026-01-13T08:25:00Z"), 201),
        (json!("2026-01-13T08:25:00.001Z"), 422),
        (json!("2026-01-13T07:20:00Z"), 201),
        (json!("2026-01-13T07:19:59.999Z"), 422),
        (json!("2026-01-13T09:20:00+01:00"), 201),
        (json!(1_768_292_400_000_i64), 201),
        (json!("yesterday"), 422),
        (json!(true), 422),
    ] {
        let body = json!({"customerId": "c", "value": 1, "timestamp": timestamp});
        let answer = metered.post("/usage/api.calls", &body).await;
        assert_eq!(answer.status, status, "{timestamp}: {}", answer.body);
    }
    // Time zones did not exist at that time.
    settings.past_max = None;
    settings.zone = "Europe/Berlin".to_owned();
    let in_berlin = Metered::with(&engine, settings, |_| {}).await;
    let body = json!({"customerId": "c", "value": 1, "timestamp": "1890-06-01T12:00:00Z"});
    let answer = in_berlin.post("/usage/api.calls", &body).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert!(answer.body["details"][0].as_str().is_some_and(|why| why.contains("in no")));
    // An event that was recorded in time gets its original response, however late it is sent again.
    let timestamp = "2026-01-13T08:20:00Z";
    let body = json!({"customerId": "c", "value": 1, "timestamp": timestamp, "id": "a"});
    let first = metered.post("/usage/api.calls", &body).await;
    let batch = json!([{"eventType": "api.calls", "customerId": "c", "value": 1, "timestamp": timestamp, "id": "a"}]);
    let first_batch = metered.post("/usagebatch", &batch).await;
    metered.set("2026-01-14T08:20:00Z");
    let again = metered.post("/usage/api.calls", &body).await;
    assert_eq!((first.status, &first.body), (201, &again.body));
    let again = metered.post("/usagebatch", &batch).await;
    assert_eq!((first_batch.status, &first_batch.body), (201, &again.body));
    for (id, value) in [("a", 2), ("b", 1)] {
        let body = json!({"customerId": "c", "value": value, "timestamp": timestamp, "id": id});
        assert_eq!(metered.post("/usage/api.calls", &body).await.status, 422, "{id}: {value}");
        let batch = json!([{"eventType": "api.calls", "customerId": "c", "value": value,
            "timestamp": timestamp, "id": id}]);
        let answer = metered.post("/usagebatch", &batch).await;
        assert_eq!((answer.status, &answer.body["invalidCount"]), (422, &json!(1)));
    }
}

async fn a_field_that_an_event_has_not_is_named_and_nothing_recorded(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let misspelt = json!({"customerId": "c", "value": 1, "timestamps": "2026-01-12T00:00:00Z"});
    let answer = metered.post("/usage/api.calls", &misspelt).await;
    let expected = "timestamps: unknown field; an event has eventType, customerId, value, \
        metadata, id, source and timestamp";
    assert_eq!((answer.status, &answer.body["details"]), (422, &json!([expected])));
    let typed = json!({"eventType": "api.calls", "customerId": "c", "value": 1, "Value": 2});
    let answer = metered.post("/usage", &typed).await;
    assert_eq!((answer.status, answer.body["details"].as_array().map(Vec::len)), (422, Some(1)));
    let batch = json!([event(1, "a"), typed]);
    let answer = metered.post("/usagebatch", &batch).await;
    assert_eq!((answer.status, &answer.body["invalidCount"]), (422, &json!(1)));
    assert_eq!(answer.body["validationErrors"][0]["index"], 1);
    // The type in the path and the type in the body must agree.
    let other = json!({"eventType": "test.min", "customerId": "c", "value": 1});
    let answer = metered.post("/usage/api.calls", &other).await;
    let expected = json!(["eventType must match the event type in the path"]);
    assert_eq!((answer.status, &answer.body["details"]), (422, &expected));
    let twice = r#"{"customerId": "c", "value": 1, "value": 2}"#;
    let answer = metered.post_as("/usage/api.calls", "application/json", twice).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert_eq!(metered.found("/events").await, json!([]));
    // CloudEvents may have extensions.
    let cloud = json!({"specversion": "1.0", "id": "1", "source": "app", "type": "api.calls",
        "subject": "c", "traceparent": "x", "data": {"value": 1}});
    assert_eq!(metered.post_as("/usage", CLOUD, &cloud.to_string()).await.status, 201);
}

on_both_engines![
    one_event_is_captured_and_told_as_the_seed_does,
    what_is_wrong_with_one_event_is_said_in_the_words_of_the_seed,
    values_are_exact_whatever_they_are,
    a_repeated_request_is_answered_the_same_and_counts_once,
    the_same_id_with_other_content_is_a_conflict,
    a_batch_is_recorded_at_one_moment_and_repeated_without_harm,
    of_a_batch_with_one_wrong_event_nothing_is_stored,
    a_batch_that_is_none_is_refused,
    events_of_a_batch_that_contradict_recorded_ones_are_named_and_the_others_stored,
    cloud_events_come_one_by_one_and_in_batches,
    what_a_path_does_not_take_is_unsupported,
    without_event_types_there_is_no_service,
    events_of_other_times_are_taken_within_bounds,
    a_field_that_an_event_has_not_is_named_and_nothing_recorded,
];
