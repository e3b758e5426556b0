//! Who may ask what, and what operators are told.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Full;
use logmill_chain::{Block, ChainInfo, ChainSource, Error, Heads, NodeStatus};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::ground::{CHAIN_ID, Ground, small};
use crate::http::Keys;
use crate::readiness::{Cause, Finding};

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
            .header("host", "localhost")
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
    let (status, health) = ground.get("/health").await;
    let health: serde_json::Value = serde_json::from_str(&health).expect("JSON");
    assert_eq!((status, &health["status"]), (200, &serde_json::json!("ok")));
    assert!(health["timestamp"].as_str().is_some_and(|now| now.ends_with('Z')), "{health}");
    let (status, text) = ground.get("/ready").await;
    assert_eq!((status, text.as_str()), (200, r#"{"ready":true,"reasons":[]}"#));
    let behind = Finding::new(Cause::Behind, Some(CHAIN_ID), "7 blocks behind");
    ground.readiness.report(behind);
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
        .header("host", "localhost")
        .header("content-type", "text/html")
        .body(Full::from(CALL));
    assert_eq!(ground.ask(request.expect("a request")).await.0, 415);
    assert_eq!(ground.post("/health", "").await.0, 405);
}

/// A node that repeats what it is asked.
#[derive(Debug)]
struct Echo;

#[async_trait]
impl ChainSource for Echo {
    async fn info(&self) -> logmill_chain::Result<ChainInfo> {
        Err(Error::NotYet { number: 0 })
    }

    async fn heads(&self) -> logmill_chain::Result<Heads> {
        Err(Error::NotYet { number: 0 })
    }

    async fn blocks(&self, _: std::ops::Range<u64>) -> logmill_chain::Result<Vec<Block>> {
        Err(Error::NotYet { number: 0 })
    }

    async fn block_by_hash(
        &self,
        _: alloy_primitives::B256,
    ) -> logmill_chain::Result<Option<Block>> {
        Ok(None)
    }

    async fn changed(&self, _: Duration) {}

    fn nodes(&self) -> Vec<NodeStatus> {
        vec![NodeStatus {
            name: "node.example".to_owned(),
            healthy: true,
            head: Some(5),
            requests: 1,
            failures: 0,
            lies: 0,
            last_error: None,
        }]
    }

    async fn pass(&self, method: &str, params: &str) -> logmill_chain::Result<String> {
        match method {
            "eth_gasPrice" => Err(Error::Rpc { code: -32_077, message: "no".to_owned() }),
            "eth_mining" => Ok("{ not JSON".to_owned()),
            "eth_syncing" => {
                Err(Error::Unavailable { what: "x".to_owned(), why: "secret.example".to_owned() })
            }
            method => Ok(format!("{{\"method\":\"{method}\",\"params\":{params}}}")),
        }
    }
}

#[tokio::test]
async fn what_is_not_ours_is_passed_on_only_if_that_is_wanted() {
    for is_wanted in [true, false] {
        let (last, tip) = small();
        let ground = Ground::with(last, tip, |state| {
            state.rpc.pass_through = is_wanted;
            state.chains.get_mut(&CHAIN_ID).expect("it").source = Some(Arc::new(Echo));
        })
        .await;
        if !is_wanted {
            assert_eq!(ground.refused("eth_call", json!([])).await.0, -32_601);
            continue;
        }
        let passed = ground.call("eth_call", json!([{"to": "0x1"}, "latest"])).await;
        assert_eq!(passed, json!({"method": "eth_call", "params": [{"to": "0x1"}, "latest"]}));
        assert_eq!(ground.call("eth_chainId", json!([])).await, "0x539", "ours stays ours");
        for (method, code) in [
            ("eth_gasPrice", -32_077),
            ("eth_mining", -32_002),
            ("eth_syncing", -32_002),
            ("eth_sendTransaction", -32_601),
            ("eth_newPendingTransactionFilter", -32_601),
            ("admin_peers", -32_601),
            ("personal_sign", -32_601),
        ] {
            let (got, message, _) = ground.refused(method, json!([])).await;
            assert_eq!(got, code, "{method}");
            assert!(!message.contains("secret.example"));
        }
        let status: Value = serde_json::from_str(&ground.get("/status").await.1).expect("JSON");
        assert_eq!(status["chains"][0]["nodes"][0]["name"], "node.example");
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_of_those_in_use_ends() {
    let (last, tip) = small();
    let ground =
        Ground::with(last, tip, |state| state.limits.connections.max_connections = 2).await;
    let first = ground.connect("/").await;
    let mut socket = ground.connect("/").await;
    let waiting = ground.get("/health");
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
async fn when_all_room_is_taken_a_request_is_told_so() {
    let (last, tip) = small();
    let ground = Ground::with(last, tip, |state| {
        state.limits.max_requests = 0;
        state.rpc.timeout = Duration::from_millis(20);
    })
    .await;
    let (status, answer) = ground.post("/", CALL).await;
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!((status, &answer["error"]["code"]), (503, &json!(-32_002)), "{answer}");
    let mut socket = ground.connect("/").await;
    socket.send(CALL).await;
    assert_eq!(socket.next().await.expect("an answer")["error"]["code"], -32_002);
    assert_eq!(ground.get("/health").await.0, 200, "operators are not held up");
}
