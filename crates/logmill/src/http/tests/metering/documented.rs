//! Every answer is what the OpenAPI document says, and every path is in it.

use serde_json::{Value, json};

use super::super::api::schema::{check, openapi};
use super::ground::{Answer, Metered};

/// Fails if an answer is not what the document says of it.
fn check_answer(path: &str, method: &str, answer: &Answer) {
    let document = openapi();
    let responses = &document["paths"][path][method]["responses"];
    let response = &responses[answer.status.to_string()];
    assert!(response.is_object(), "{method} {path}: {} is not documented", answer.status);
    let schema = &response["content"]["application/json"]["schema"];
    check(document, schema, &answer.body, &format!("{method} {path}"));
}

#[tokio::test]
async fn answers_are_what_the_document_says() {
    let metered = Metered::new().await;
    let event = |value: i64| json!({"eventType": "api.calls", "customerId": "c", "value": value, "id": "e"});
    for (path, real, body) in [
        ("/usage/{eventType}", "/usage/api.calls", event(1)),
        ("/usage/{eventType}", "/usage/api.calls", event(2)),
        ("/usage/{eventType}", "/usage/api.calls", json!({})),
        ("/usage/{eventType}", "/usage/api.calls", json!([])),
        ("/usage", "/usage", event(1)),
        ("/events", "/events", event(2)),
        ("/usagebatch", "/usagebatch", json!([event(1)])),
        ("/usagebatch", "/usagebatch", json!([event(2)])),
        ("/usagebatch", "/usagebatch", json!([1])),
        ("/usagebatch", "/usagebatch", json!([])),
        ("/usagebatch", "/usagebatch", json!(vec![1; 1_001])),
        ("/aggregations/trigger", "/aggregations/trigger", Value::Null),
        ("/events/amend", "/events/amend", json!({"id": "e", "value": 3, "reason": "x"})),
        ("/events/amend", "/events/amend", json!({"id": "e", "value": 3, "reason": "x"})),
        ("/events/cancel", "/events/cancel", json!({"id": "e", "reason": "x"})),
    ] {
        check_answer(path, "post", &metered.post(real, &body).await);
    }
    metered.send("api.calls", json!({"customerId": "c", "value": 5, "metadata": {"a": [1]}})).await;
    metered.aggregated("").await;
    for (path, real) in [
        ("/events", "/events"),
        ("/events", "/events?limit=x"),
        ("/events/lookup", "/events/lookup?id=e"),
        ("/events/lookup", "/events/lookup?id=f"),
        ("/aggregations", "/aggregations"),
        ("/aggregations/{id}", "/aggregations/c_daily_20260113"),
        ("/aggregations/{id}", "/aggregations/none"),
        ("/aggregations/{id}/events", "/aggregations/c_daily_20260113/events"),
        ("/ping", "/ping"),
    ] {
        check_answer(path, "get", &metered.get(real).await);
    }
}

#[test]
fn every_schema_that_is_named_is_there_and_used() {
    let document = openapi();
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for part in text.split("#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap_or_default();
        assert!(schemas.contains_key(name), "{name} is not there");
    }
    // A message of a WebSocket is named in words alone.
    for name in schemas.keys().filter(|name| *name != "LiveMeters") {
        let reference = format!("\"#/components/schemas/{name}\"");
        assert!(text.contains(&reference), "{name} is not used");
    }
}
