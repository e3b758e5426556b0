//! Access to usage by scope, and secrets that are never shown.

use http_body_util::Full;
use logmill_meter::Settings;
use logmill_serve::http::Keys;
use serde_json::json;

use super::engine::{Engine, on_both_engines};
use super::ground::{Answer, Metered, settings};

const KEYS: &str =
    "reader:rrrrrrrrrrrrrrrr:read,app:uuuuuuuuuuuuuuuu:usage,boss:aaaaaaaaaaaaaaaa:admin";

async fn ask(metered: &Metered, method: &str, path: &str, key: Option<&str>) -> Answer {
    let body = match path {
        "/aggregations/trigger" => json!({}),
        path if path.starts_with("/events/") => json!({"id": "e", "reason": ""}),
        _ => json!({"customerId": "c", "value": 1, "id": "e"}),
    };
    let body = body.to_string();
    let mut request =
        hyper::Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some(key) = key {
        request = request.header("x-apikey", key);
    }
    let body = if method == "GET" { String::new() } else { body };
    metered.ask(request.body(Full::from(body)).expect("a request")).await
}

async fn guarded(engine: &Engine, settings: Settings) -> Metered {
    Metered::with(engine, settings, |state| {
        state.limits.keys = Keys::parse(KEYS).expect("three keys");
    })
    .await
}

async fn a_key_does_what_its_scopes_allow(engine: Engine) {
    let metered = guarded(&engine, settings()).await;
    let (reader, app, boss) = ("r".repeat(16), "u".repeat(16), "a".repeat(16));
    for (method, path, expected) in [
        ("POST", "/usage/api.calls", [401, 403, 201, 201]),
        ("GET", "/events", [401, 200, 403, 200]),
        ("GET", "/events/lookup?source=app&id=e", [401, 200, 403, 200]),
        ("GET", "/aggregations", [401, 200, 403, 200]),
        ("GET", "/config", [401, 200, 403, 200]),
        ("POST", "/aggregations/trigger", [401, 403, 202, 202]),
        ("POST", "/events/amend", [401, 403, 403, 400]),
        ("POST", "/events/cancel", [401, 403, 403, 400]),
        ("GET", "/ping", [200, 200, 200, 200]),
    ] {
        let keys = [None, Some(reader.as_str()), Some(app.as_str()), Some(boss.as_str())];
        for (key, expected) in keys.into_iter().zip(expected) {
            let answer = ask(&metered, method, path, key).await;
            assert_eq!(answer.status, expected, "{method} {path} {key:?}: {}", answer.body);
        }
    }
    let stream = format!("ws://{}/meters/stream?customerId=c", metered.address);
    assert!(tokio_tungstenite::connect_async(stream).await.is_err(), "nor the stream");
}

async fn no_page_of_another_site_sends_usage_or_makes_an_endpoint(engine: Engine) {
    let metered = Metered::with(&engine, settings(), |_| {}).await;
    let endpoint = json!({"url": "https://evil.example/"});
    let usage = json!({"customerId": "c", "value": 1});
    for (path, body) in [("/webhooks/endpoints", &endpoint), ("/usage/api.calls", &usage)] {
        for (header, value) in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("host", "rebound.example"),
        ] {
            let mut request = hyper::Request::post(path).header("content-type", "text/plain");
            if header != "host" {
                request = request.header("host", "localhost");
            }
            let request = request.header(header, value);
            let request = request.body(Full::from(body.to_string())).expect("a request");
            let answer = metered.ask(request).await;
            assert_eq!(answer.status, 403, "{path} {header}: {}", answer.body);
            assert!(answer.body["error"].as_str().is_some_and(|why| why.contains("server.keys")));
        }
    }
    let listed = ask(&metered, "GET", "/webhooks/endpoints", None).await;
    assert!(!listed.body.to_string().contains("evil"), "{}", listed.body);
}

async fn the_source_of_usage_is_the_name_of_the_key(engine: Engine) {
    let metered = guarded(&engine, settings()).await;
    let (app, boss) = ("u".repeat(16), "a".repeat(16));
    assert_eq!(ask(&metered, "POST", "/usage/api.calls", Some(&app)).await.status, 201);
    // The same id sent with another key is another event.
    assert_eq!(ask(&metered, "POST", "/usage/api.calls", Some(&boss)).await.status, 201);
    let events = ask(&metered, "GET", "/events", Some(&boss)).await.body;
    let sources: Vec<&str> = events
        .as_array()
        .expect("a page")
        .iter()
        .filter_map(|event| event["source"].as_str())
        .collect();
    assert_eq!(sources, ["boss", "app"]);
}

async fn a_wrong_method_is_told(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for path in ["/usage/api.calls", "/usagebatch", "/aggregations/trigger", "/events/cancel"] {
        assert_eq!(metered.get(path).await.status, 405, "{path}");
    }
    assert_eq!(metered.post("/ping", &json!({})).await.status, 405);
}

on_both_engines![
    a_key_does_what_its_scopes_allow,
    no_page_of_another_site_sends_usage_or_makes_an_endpoint,
    the_source_of_usage_is_the_name_of_the_key,
    a_wrong_method_is_told,
];
