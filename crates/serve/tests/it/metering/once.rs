//! Requests with an `Idempotency-Key`: a repetition gets the first response and changes nothing.

use logmill_meter::webhooks::EndpointChange;
use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::{Answer, Metered, settings};

const ENDPOINTS: &str = "/webhooks/endpoints";

fn endpoint(path: &str) -> Value {
    json!({"url": format!("https://example.com/{path}")})
}

async fn count(metered: &Metered) -> usize {
    metered.found(ENDPOINTS).await.as_array().expect("a list").len()
}

fn same(first: &Answer, again: &Answer) {
    assert_eq!((again.status, &again.body), (first.status, &first.body));
}

async fn a_repeated_request_makes_no_second_endpoint(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let first = metered.post_once(ENDPOINTS, "k1", &endpoint("a")).await;
    assert_eq!(first.status, 201, "{}", first.body);
    assert!(first.body["secret"].is_string());
    same(&first, &metered.post_once(ENDPOINTS, "k1", &endpoint("a")).await);
    assert_eq!(count(&metered).await, 1);
    let other = metered.post_once(ENDPOINTS, "k1", &endpoint("b")).await;
    assert_eq!(other.status, 409, "the key of another request: {}", other.body);
    assert!(other.body["error"].as_str().is_some_and(|why| why.contains("Idempotency-Key")));
    // Without a key, or with another one, there is still no second identical endpoint.
    for again in [
        metered.post(ENDPOINTS, &endpoint("a")).await,
        metered.post_once(ENDPOINTS, "k2", &endpoint("a")).await,
    ] {
        assert_eq!((again.status, &again.body["id"]), (200, &first.body["id"]));
        assert!(again.body.get("secret").is_none(), "it is not shown again");
    }
    let mut with_secret = endpoint("a");
    with_secret["secret"] = "another secret of 30 characters".into();
    assert_eq!(metered.post(ENDPOINTS, &with_secret).await.status, 409);
    with_secret["secret"] = first.body["secret"].clone();
    assert_eq!(metered.post(ENDPOINTS, &with_secret).await.status, 200);
    assert_eq!(count(&metered).await, 1);
    let mut described = endpoint("a");
    described["description"] = "a second one, on purpose".into();
    assert_eq!(metered.post(ENDPOINTS, &described).await.status, 201);
    // A failed request is not remembered.
    let bad = json!({"url": "ftp://example.com/"});
    assert_eq!(metered.post_once(ENDPOINTS, "k3", &bad).await.status, 400);
    assert_eq!(metered.post_once(ENDPOINTS, "k3", &endpoint("c")).await.status, 201);
    metered.set("2026-01-14T08:21:00Z");
    let later = metered.post_once(ENDPOINTS, "k1", &endpoint("d")).await;
    assert_eq!(later.status, 201, "after a day a key is free: {}", later.body);
}

async fn a_repeated_request_is_answered_as_it_was_whatever_the_endpoint_became(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let made = metered.post_once(ENDPOINTS, "made", &endpoint("a")).await;
    let found = metered.post_once(ENDPOINTS, "found", &endpoint("a")).await;
    assert_eq!((made.status, found.status), (201, 200), "{} {}", made.body, found.body);
    let id = made.body["id"].as_str().expect("an id");
    let hooks = metered.meter.webhooks();
    let secret = hooks.rotate(id, None, None).await.expect("rotated");
    let description = Some("no longer like the request".to_owned());
    let change = EndpointChange { description, ..EndpointChange::default() };
    hooks.update(id, &change).await.expect("changed");
    // The request that found an endpoint still refers to it and creates no second one.
    let again = metered.post_once(ENDPOINTS, "found", &endpoint("a")).await;
    assert_eq!((again.status, &again.body["id"]), (200, &made.body["id"]), "{}", again.body);
    // The request that created it does not receive a later secret.
    let again = metered.post_once(ENDPOINTS, "made", &endpoint("a")).await;
    assert_eq!((again.status, &again.body["id"]), (201, &made.body["id"]), "{}", again.body);
    assert!(again.body.get("secret").is_none(), "{}", again.body);
    assert!(!again.body.to_string().contains(secret.expose()));
    assert_eq!(count(&metered).await, 1);
}

async fn a_key_is_its_senders_and_must_make_sense(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for key in ["", &"x".repeat(256)] {
        let refused = metered.post_once(ENDPOINTS, key, &endpoint("a")).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        let usage = json!({"customerId": "c", "value": 1});
        assert_eq!(metered.post_once("/usage/api.calls", key, &usage).await.status, 400);
    }
    let fine = metered.post_once(ENDPOINTS, &"x".repeat(255), &endpoint("a")).await;
    assert_eq!(fine.status, 201);
}

async fn tests_rotations_and_replays_are_done_once(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let made = metered.post(ENDPOINTS, &endpoint("a")).await;
    let one = format!("{ENDPOINTS}/{}", made.body["id"].as_str().expect("an id"));
    let test = format!("{one}/test");
    let first = metered.post_once(&test, "t", &Value::Null).await;
    assert_eq!(first.status, 202, "{}", first.body);
    same(&first, &metered.post_once(&test, "t", &Value::Null).await);
    let deliveries = metered.found("/webhooks/deliveries").await;
    assert_eq!(deliveries.as_array().map(Vec::len), Some(1));
    let message = first.body["messageId"].clone();
    let replay = json!({"messageId": message});
    for _ in 0..2 {
        let replayed = metered.post_once(&format!("{one}/replay"), "r", &replay).await;
        assert_eq!((replayed.status, &replayed.body["deliveries"]), (202, &json!(1)));
    }
    assert_eq!(metered.found("/webhooks/deliveries").await[0]["round"], 1, "once");
    let since = json!({"since": "2026-01-01T00:00:00Z"});
    let first = metered.post_once(&format!("{one}/replay"), "s", &since).await;
    same(&first, &metered.post_once(&format!("{one}/replay"), "s", &since).await);
    let rotate = format!("{one}/rotate");
    let first = metered.post_once(&rotate, "o", &json!({})).await;
    assert_eq!(first.status, 200, "{}", first.body);
    same(&first, &metered.post_once(&rotate, "o", &json!({})).await);
    let next = metered.post_once(&rotate, "p", &json!({})).await;
    assert_ne!(next.body["secret"], first.body["secret"]);
    let stale = metered.post_once(&rotate, "o", &json!({})).await;
    assert_eq!(stale.status, 409, "that secret is not the newest: {}", stale.body);
}

async fn a_correction_is_made_once_and_answered_as_it_was(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "e"})).await;
    let amend = json!({"id": "e", "value": 2, "reason": "x"});
    let first = metered.post_once("/events/amend", "a", &amend).await;
    assert_eq!((first.status, &first.body["valueExact"]), (200, &json!("2")), "{}", first.body);
    same(&first, &metered.post_once("/events/amend", "a", &amend).await);
    let cancel = json!({"id": "e", "reason": "y"});
    let second = metered.post_once("/events/cancel", "b", &cancel).await;
    assert_eq!((second.status, &second.body["state"]), (200, &json!("cancelled")));
    // Each gets its original response, whatever came after.
    same(&first, &metered.post_once("/events/amend", "a", &amend).await);
    same(&second, &metered.post_once("/events/cancel", "b", &cancel).await);
    let found = metered.found("/events/lookup?id=e").await;
    assert_eq!(found["corrections"].as_array().map(Vec::len), Some(2));
    assert_eq!(metered.post("/events/cancel", &cancel).await.status, 409, "without a key");
    let refused = metered.post_once("/events/cancel", "c", &cancel).await;
    assert_eq!(refused.status, 409, "and with one of its own: {}", refused.body);
}

async fn a_trigger_is_answered_the_same(engine: Engine) {
    let metered = Metered::with(&engine, settings(), |_| {}).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1})).await;
    let first = metered.post_once("/aggregations/trigger", "t", &Value::Null).await;
    assert_eq!((first.status, &first.body["jobsCreated"]), (202, &json!(4)));
    metered.work().await;
    same(&first, &metered.post_once("/aggregations/trigger", "t", &Value::Null).await);
}

async fn usage_without_an_id_has_that_of_its_request(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let usage = json!({"customerId": "c", "value": 5});
    let first = metered.post_once("/usage/api.calls", "u1", &usage).await;
    assert_eq!((first.status, &first.body["id"]), (201, &json!("u1")));
    same(&first, &metered.post_once("/usage/api.calls", "u1", &usage).await);
    let typed =
        |id: Value| json!({"eventType": "api.calls", "customerId": "c", "value": 5, "id": id});
    let batch = json!([typed(Value::Null), typed("own".into()), typed(Value::Null)]);
    let first = metered.post_once("/usagebatch", "u2", &batch).await;
    assert_eq!(first.body["ids"], json!(["u2.0", "own", "u2.2"]));
    same(&first, &metered.post_once("/usagebatch", "u2", &batch).await);
    let events = metered.found("/events").await;
    assert_eq!(events.as_array().map(Vec::len), Some(4));
    let other = json!({"customerId": "c", "value": 6});
    assert_eq!(metered.post_once("/usage/api.calls", "u1", &other).await.status, 409);
}

on_both_engines![
    a_repeated_request_makes_no_second_endpoint,
    a_repeated_request_is_answered_as_it_was_whatever_the_endpoint_became,
    a_key_is_its_senders_and_must_make_sense,
    tests_rotations_and_replays_are_done_once,
    a_correction_is_made_once_and_answered_as_it_was,
    a_trigger_is_answered_the_same,
    usage_without_an_id_has_that_of_its_request,
];
