//! Every response matches the OpenAPI document, and every path is in it.

use serde_json::{Value, json};

use super::super::api::schema::{check, openapi};
use super::engine::{Engine, on_both_engines};
use super::ground::{Answer, Metered};

/// Fails if a response does not match the document.
pub(super) fn check_answer(path: &str, method: &str, answer: &Answer) {
    let document = openapi();
    let responses = &document["paths"][path][method]["responses"];
    let response = &responses[answer.status.to_string()];
    assert!(response.is_object(), "{method} {path}: {} is not documented", answer.status);
    let schema = &response["content"]["application/json"]["schema"];
    check(document, schema, &answer.body, &format!("{method} {path}"));
}

async fn answers_are_what_the_document_says(engine: Engine) {
    let metered = Metered::new(&engine).await;
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
    let endpoint =
        metered.post("/webhooks/endpoints", &json!({"url": "https://example.com/"})).await;
    check_answer("/webhooks/endpoints", "post", &endpoint);
    let id = endpoint.body["id"].as_str().expect("an id").to_owned();
    metered.set("2026-02-14T00:30:00Z");
    metered.aggregated("").await;
    let path = "/webhooks/endpoints/{id}";
    for (action, body) in [
        ("test", Value::Null),
        ("rotate", json!({"overlapSeconds": 5})),
        ("replay", json!({"since": "2026-01-01T00:00:00Z"})),
        ("replay", json!({})),
    ] {
        let answer = metered.post(&format!("/webhooks/endpoints/{id}/{action}"), &body).await;
        check_answer(&format!("{path}/{action}"), "post", &answer);
    }
    check_answer(path, "get", &metered.get(&format!("/webhooks/endpoints/{id}")).await);
    check_answer(path, "get", &metered.get("/webhooks/endpoints/none").await);
    for (path, real) in [
        ("/events", "/events"),
        ("/events", "/events?limit=x"),
        ("/events/lookup", "/events/lookup?id=e"),
        ("/events/lookup", "/events/lookup?id=f"),
        ("/aggregations", "/aggregations"),
        ("/aggregations/{id}", "/aggregations/c_daily_20260113"),
        ("/aggregations/{id}", "/aggregations/none"),
        ("/aggregations/{id}/events", "/aggregations/c_daily_20260113/events"),
        ("/webhooks/endpoints", "/webhooks/endpoints"),
        ("/webhooks/deliveries", "/webhooks/deliveries"),
        (
            "/meters/query",
            "/meters/query?eventType=api.calls&from=2026-01-13T00:00:00Z&groupBy=customerId",
        ),
        ("/meters/query", "/meters/query?eventType=x&from=0"),
        ("/meters/trend", "/meters/trend?eventType=api.calls&customerId=c&period=daily"),
        ("/meters/trend", "/meters/trend?eventType=x&customerId=c&period=daily"),
        ("/ping", "/ping"),
    ] {
        check_answer(path, "get", &metered.get(real).await);
    }
}

async fn bodies_may_be_compressed_and_the_document_says_how(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let request = hyper::Request::post("/usagebatch")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("content-encoding", "br")
        .body("[]".into());
    let answer = metered.ask(request.expect("a request")).await;
    assert_eq!(answer.status, 415, "{}", answer.body);
    check_answer("/usagebatch", "post", &answer);
    for (path, methods) in openapi()["paths"].as_object().expect("paths") {
        let metering = |operation: &Value| operation["tags"] == json!(["metering"]);
        for (method, operation) in methods.as_object().expect("methods") {
            if !metering(operation) {
                continue;
            }
            let has_body = operation["requestBody"].is_object();
            let parameters = operation["parameters"].as_array().expect("a list");
            let encoding = parameters.iter().find(|one| one["name"] == "Content-Encoding");
            assert_eq!(encoding.is_some(), has_body, "{method} {path}");
            assert_eq!(operation["responses"]["415"].is_object(), has_body, "{method} {path}");
        }
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
    for name in schemas.keys() {
        let reference = format!("\"#/components/schemas/{name}\"");
        assert!(text.contains(&reference), "{name} is not used");
    }
}

on_both_engines![
    answers_are_what_the_document_says,
    bodies_may_be_compressed_and_the_document_says_how,
];
