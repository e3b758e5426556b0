//! Who may ask what, and what operators are told.

use std::sync::atomic::Ordering;

use http_body_util::Full;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use tokio::net::TcpListener;

use super::ground::{Ground, small};
use crate::http::Keys;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;

#[tokio::test]
async fn with_keys_nobody_asks_without_one_but_for_health() {
    let (last, tip) = small();
    let ground = Ground::with(last, tip, |state| {
        state.limits.keys = Keys::parse("me:0123456789abcdef:read").expect("a key");
    })
    .await;
    for path in ["/", "/rpc", "/rpc/1337"] {
        let (status, body) = ground.post(path, CALL).await;
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
        assert_eq!(ground.get(path).await.0, expected, "{path}");
    }
    let upgrade = format!("ws://{}/", ground.address);
    assert!(tokio_tungstenite::connect_async(upgrade).await.is_err(), "nor by WebSocket");
    for (name, value, expected) in [
        ("x-apikey", "0123456789abcdef", 200),
        ("authorization", "Bearer 0123456789abcdef", 200),
        ("authorization", "Bearer 0123456789abcdee", 401),
    ] {
        let request = hyper::Request::post("/")
            .header("host", "test")
            .header(name, value)
            .body(Full::from(CALL))
            .expect("a request");
        assert_eq!(ground.ask(request).await.0, expected, "{name}: {value}");
    }
}

#[tokio::test]
async fn nothing_is_served_beyond_this_machine_without_keys() {
    let (last, tip) = small();
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let mut taken = None;
    let _ground = Ground::with(last, tip, |state| {
        taken = Some(crate::http::State {
            chains: state.chains.clone(),
            limits: state.limits.clone(),
            rpc: state.rpc.clone(),
            clock: state.clock.clone(),
            entropy: state.entropy.clone(),
            metrics: None,
        });
    })
    .await;
    let refused = crate::http::serve(listener, taken.expect("a state"), async {}).await;
    let refused = refused.expect_err("no keys");
    assert!(refused.to_string().contains("there are no keys"), "{refused}");
    assert_eq!(refused.exit_code(), 2);
}

#[tokio::test]
async fn operators_see_how_it_is() {
    let (last, tip) = small();
    let head = tip[2].at.hash;
    let recorder = PrometheusBuilder::new().build_recorder();
    let ground = Ground::with(last, tip, |state| state.metrics = Some(recorder.handle())).await;
    assert_eq!(ground.get("/").await, (200, "Api Running".to_owned()));
    assert_eq!(ground.get("/health").await, (200, r#"{"status":"ok"}"#.to_owned()));
    let (status, text) = ground.get("/ready").await;
    assert_eq!((status, text.as_str()), (200, r#"{"ready":true,"reasons":[]}"#));
    ground.progress.is_behind.store(true, Ordering::SeqCst);
    let (status, text) = ground.get("/ready").await;
    assert!(status == 503 && text.contains("7 blocks behind"), "{text}");
    let status: Value = serde_json::from_str(&ground.get("/status").await.1).expect("JSON");
    let chain = &status["chains"][0];
    assert_eq!(chain["chain_id"], 1_337);
    assert_eq!(chain["head"]["hash"], serde_json::json!(head));
    assert_eq!(chain["finalized"]["number"], 9);
    assert_eq!(chain["covered"], serde_json::json!([{"start": 0, "end": 13}]));
    assert_eq!(chain["ingest"]["forward"], 7);
    assert!(status["uptime_seconds"].is_u64());
    assert_eq!(ground.get("/metrics").await.0, 200);
    for (path, expected) in [("/nowhere", 404), ("/rpc", 405), ("/rpc/9", 405)] {
        assert_eq!(ground.get(path).await.0, expected, "{path}");
    }
    let request = hyper::Request::post("/")
        .header("host", "test")
        .header("content-type", "text/html")
        .body(Full::from(CALL));
    assert_eq!(ground.ask(request.expect("a request")).await.0, 415);
    assert_eq!(ground.post("/health", "").await.0, 405);
}
