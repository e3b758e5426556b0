//! Access by keys and scopes, and the operator endpoints.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use logmill_serve::http::{Keys, serve_with_health};
use logmill_serve::readiness::{Cause, Finding};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::test_server::{CHAIN_ID, TestServer, small};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;

#[tokio::test]
async fn with_keys_configured_every_path_but_health_requires_one() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| {
        state.limits.keys = Keys::parse("me:0123456789abcdef:read").expect("a key");
    })
    .await;
    for path in ["/", "/rpc", "/rpc/1337"] {
        let (status, body) = server.post(path, CALL).await;
        assert_eq!(status, 401, "{path}");
        assert!(serde_json::from_slice::<Value>(&body).expect("JSON")["error"].is_string());
    }
    for (path, expected) in [
        ("/", 200),
        ("/health", 200),
        ("/ready", 200),
        ("/status", 401),
        ("/metrics", 401),
        ("/ws", 401),
    ] {
        assert_eq!(server.get(path).await.0, expected, "{path}");
    }
    let upgrade = format!("ws://{}/", server.address);
    assert!(tokio_tungstenite::connect_async(upgrade).await.is_err(), "nor by WebSocket");
    for (name, value, expected) in [
        ("x-apikey", "0123456789abcdef", 200),
        ("authorization", "Bearer 0123456789abcdef", 200),
        ("authorization", "Bearer 0123456789abcdee", 401),
    ] {
        let request = hyper::Request::post("/")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header(name, value)
            .body(Full::from(CALL))
            .expect("a request");
        assert_eq!(server.ask(request).await.0, expected, "{name}: {value}");
    }
}

#[tokio::test]
async fn nothing_is_served_beyond_this_machine_without_keys() {
    let (last, tip) = small();
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let mut taken = None;
    let _ground = TestServer::with(last, tip, |state| {
        taken = Some(logmill_serve::http::ServerParts {
            late_chains: None,
            readiness: Arc::clone(&state.readiness),
            tables: None,
            collecting: None,
            metering: Default::default(),
            chains: state.chains.clone(),
            limits: state.limits.clone(),
            rpc: state.rpc.clone(),
            clock: state.clock.clone(),
            entropy: state.entropy.clone(),
            metrics: None,
        });
    })
    .await;
    let state = taken.expect("a state");
    let refused = serve_with_health(listener, None, state, async {}).await;
    let refused = refused.expect_err("no keys");
    assert!(refused.to_string().contains("no API keys are set"), "{refused}");
    assert!(matches!(refused, logmill_serve::Error::NoKeys { .. }));
}

#[tokio::test]
async fn operators_see_health_readiness_and_status() {
    let (last, tip) = small();
    let head = tip[2].at.hash;
    let recorder = PrometheusBuilder::new().build_recorder();
    let server = TestServer::with(last, tip, |state| state.metrics = Some(recorder.handle())).await;
    assert_eq!(server.get("/").await, (200, "Api Running".to_owned()));
    let (status, about) = server.get_with("/", &[("accept", "application/json")]).await;
    let about: serde_json::Value = serde_json::from_str(&about).expect("JSON");
    assert_eq!((status, &about["service"]), (200, &serde_json::json!("logmill")), "{about}");
    assert_eq!(about["openapi"], "/openapi.json");
    let paths = about["paths"].as_array().expect("a list");
    for path in ["/usage/{eventType}", "/api/v1/{chain}/status", "/ping"] {
        assert!(paths.contains(&serde_json::json!(path)), "{path} is not in {about}");
    }
    let (status, health) = server.get("/health").await;
    let health: serde_json::Value = serde_json::from_str(&health).expect("JSON");
    assert_eq!((status, &health["status"]), (200, &serde_json::json!("ok")));
    assert!(health["timestamp"].as_str().is_some_and(|now| now.ends_with('Z')), "{health}");
    let (status, text) = server.get("/ready").await;
    assert_eq!((status, text.as_str()), (200, r#"{"ready":true,"reasons":[]}"#));
    let behind = Finding::new(Cause::Behind, Some(CHAIN_ID), "7 blocks behind");
    server.readiness.report(behind);
    let (status, text) = server.get("/ready").await;
    assert!(status == 503 && text.contains("7 blocks behind"), "{text}");
    let status: Value = serde_json::from_str(&server.get("/status").await.1).expect("JSON");
    let chain = &status["chains"][0];
    assert_eq!(chain["chain_id"], 1_337);
    assert_eq!(chain["head"]["hash"], serde_json::json!(head));
    assert_eq!(chain["finalized"]["number"], 9);
    assert_eq!(chain["covered"], serde_json::json!([{"from": 0, "to": 12}]));
    assert_eq!(chain["ingest"]["forward"], 7);
    assert!(status["uptime_seconds"].is_u64());
    assert_eq!(server.get("/metrics").await.0, 200);
    for (path, expected) in [("/nowhere", 404), ("/rpc", 405), ("/rpc/9", 405)] {
        assert_eq!(server.get(path).await.0, expected, "{path}");
    }
    for (kind, expected) in [
        (Some("application/json"), 200),
        (Some("Application/JSON; charset=utf-8"), 200),
        (Some("application/json-rpc"), 200),
        (Some("application/jsonrequest"), 200),
        (Some("text/html"), 415),
        (Some("text/plain;charset=UTF-8"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some(""), 415),
        (None, 415),
    ] {
        let request = hyper::Request::post("/").header("host", "localhost");
        let request = match kind {
            Some(kind) => request.header("content-type", kind),
            None => request,
        };
        let request = request.body(Full::from(CALL)).expect("a request");
        assert_eq!(server.ask(request).await.0, expected, "{kind:?}");
    }
    assert_eq!(server.post("/health", "").await.0, 405);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_a_busy_one_ends() {
    let (last, tip) = small();
    let server =
        TestServer::with(last, tip, |state| state.limits.connections.max_connections = 2).await;
    let first = server.connect("/").await;
    let mut socket = server.connect("/").await;
    let waiting = server.get("/health");
    tokio::pin!(waiting);
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("it was served beyond the limit"),
        version = socket.call("web3_clientVersion", json!([])) => assert!(version.is_string()),
    }
    drop(first);
    assert_eq!(waiting.await.0, 200);
}

#[tokio::test]
async fn a_request_without_a_free_slot_gets_an_unavailable_error() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| {
        state.limits.max_requests = 0;
        state.rpc.timeout = Duration::from_millis(20);
    })
    .await;
    let (status, answer) = server.post("/", CALL).await;
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!((status, &answer["error"]["code"]), (503, &json!(-32_002)), "{answer}");
    let mut socket = server.connect("/").await;
    socket.send(CALL).await;
    assert_eq!(socket.next().await.expect("an answer")["error"]["code"], -32_002);
    assert_eq!(server.get("/health").await.0, 200, "operators are not held up");
}
