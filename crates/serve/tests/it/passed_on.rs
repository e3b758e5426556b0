//! Pass-through methods: which ones, within which limits, and which answers are cached.

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::Error;
use logmill_serve::http::ServerParts;
use serde_json::{Value, json};

use super::node::FakeNode;
use super::test_server::{CHAIN_ID, TestServer, blocks, small};

/// A node that echoes its requests, except for some methods.
fn echo() -> Arc<FakeNode> {
    let refused = |code, message: &str, data: Option<&str>| {
        let (message, data) = (message.to_owned(), data.map(str::to_owned));
        Err(Error::Rpc { code, message, data })
    };
    FakeNode::new(move |method, params| match method {
        "eth_gasPrice" => refused(-32_077, "no", None),
        "eth_estimateGas" => refused(3, "execution reverted: no", Some(r#""0x08c379a0""#)),
        "eth_createAccessList" => refused(3, "no", Some(r#"{"why":[1,2]}"#)),
        "net_peerCount" => Ok(Some("{ not JSON".to_owned())),
        "eth_maxPriorityFeePerGas" => {
            Err(Error::Unavailable { what: "x".to_owned(), why: "secret.example".to_owned() })
        }
        "eth_simulateV1" => Ok(Some(format!("\"{}\"", "x".repeat(2_000)))),
        "eth_getProof" => Ok(None),
        method => Ok(Some(format!("{{\"method\":\"{method}\",\"params\":{params}}}"))),
    })
}

async fn server(node: &Arc<FakeNode>, change: impl FnOnce(&mut ServerParts)) -> TestServer {
    let (last, tip) = small();
    let node = Arc::clone(node);
    TestServer::with(last, tip, |state| {
        state.rpc.forward = super::test_server::forward(true);
        state.rpc.forward.max_answer_bytes = 1 << 10;
        state.chains.get_mut(&CHAIN_ID).expect("it").source = Some(node);
        change(state);
    })
    .await
}

#[tokio::test]
async fn reads_are_passed_on_and_nothing_that_changes_state() {
    let node = echo();
    let server = server(&node, |_| {}).await;
    let passed = server.call("eth_call", json!([{"to": "0x1"}, "latest"])).await;
    assert_eq!(passed, json!({"method": "eth_call", "params": [{"to": "0x1"}, "latest"]}));
    assert_eq!(server.call("eth_chainId", json!([])).await, "0x539", "ours stays ours");
    for method in [
        "eth_accounts",
        "eth_newPendingTransactionFilter",
        "eth_sendRawTransaction",
        "eth_sendTransaction",
        "eth_sign",
        "debug_setHead",
        "debug_traceTransaction",
        "trace_block",
        "admin_peers",
        "personal_sign",
        "miner_start",
        "engine_newPayloadV4",
        "anvil_mine",
        "evm_mine",
        "hardhat_reset",
    ] {
        assert_eq!(server.refused(method, json!([])).await.0, -32_601, "{method}");
    }
    assert_eq!(node.requests(), 1, "the node heard of none of these");
    let status: Value = serde_json::from_str(&server.get("/status").await.1).expect("JSON");
    assert_eq!(status["chains"][0]["nodes"][0]["name"], "node.example");
    let document = server.call("rpc.discover", json!([])).await;
    assert!(document["x-passed-on"].as_array().expect("names").contains(&json!("eth_call")));
}

#[tokio::test]
async fn methods_named_in_the_settings_are_passed_on_too() {
    let node = echo();
    let named = vec!["eth_sendRawTransaction".to_owned(), "trace_*".to_owned()];
    let with_names = server(&node, |state| state.rpc.forward.named = named).await;
    for method in ["eth_sendRawTransaction", "trace_block"] {
        assert_eq!(with_names.call(method, json!(["0x"])).await["method"], method);
    }
    assert_eq!(with_names.refused("eth_sendTransaction", json!([])).await.0, -32_601);
    let off = server(&node, |state| state.rpc.forward.is_on = false).await;
    assert_eq!(off.refused("eth_call", json!([])).await.0, -32_601);
    let (last, tip) = small();
    let forward = super::test_server::forward(true);
    let alone = TestServer::with(last, tip, |state| state.rpc.forward = forward).await;
    let (code, message, _) = alone.refused("eth_call", json!([])).await;
    assert!(code == -32_601 && message.contains("nodes answer it"), "{message}");
}

#[tokio::test]
async fn notifications_are_run_and_not_answered() {
    let node = echo();
    let named = vec!["eth_sendRawTransaction".to_owned()];
    let server = server(&node, |state| state.rpc.forward.named = named).await;
    let silent = |method: &str, param: &str| {
        json!({"jsonrpc": "2.0", "method": method, "params": [param]}).to_string()
    };
    let send = |param: &str| silent("eth_sendRawTransaction", param);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}).to_string();
    // `eth_gasPrice` fails at the node, and the last one is no method: neither is answered.
    let failing = format!("{},{}", silent("eth_gasPrice", "0x"), silent("nonsense", "0x"));
    let mut asked = 0;
    for (body, calls, is_answered) in [
        (send("0x01"), 1, false),
        (format!("[{},{}]", send("0x02"), send("0x03")), 2, false),
        (format!("[{},{call},{failing},{}]", send("0x04"), send("0x05")), 3, true),
    ] {
        let (status, answer) = server.post("/", &body).await;
        asked += calls;
        assert_eq!(
            (status, node.requests()),
            (if is_answered { 200 } else { 204 }, asked),
            "{body}"
        );
        if is_answered {
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            assert_eq!(answer, json!([{"jsonrpc": "2.0", "id": 1, "result": "0x539"}]));
        }
        let mut socket = server.connect("/rpc").await;
        socket.send(&body).await;
        asked += calls;
        // Messages are answered in their order: this answer would be preceded by any other.
        if is_answered {
            let answer = socket.next().await.expect("an answer");
            assert_eq!(answer.as_array().map(Vec::len), Some(1), "{answer}");
        }
        assert_eq!(socket.call("eth_chainId", json!([])).await, "0x539");
        assert_eq!(node.requests(), asked, "{body}");
    }
}

#[tokio::test]
async fn the_error_of_a_node_is_passed_on_without_its_secrets() {
    let server = server(&echo(), |_| {}).await;
    for (method, code, data) in [
        ("eth_gasPrice", -32_077, Value::Null),
        ("eth_estimateGas", 3, json!("0x08c379a0")),
        ("eth_createAccessList", 3, json!({"why": [1, 2]})),
        ("net_peerCount", -32_002, Value::Null),
        ("eth_maxPriorityFeePerGas", -32_002, Value::Null),
    ] {
        let (got, message, said) = server.refused(method, json!([])).await;
        assert_eq!((got, said), (code, data), "{method}");
        assert!(!message.contains("secret.example"));
    }
}

#[tokio::test]
async fn calls_and_answers_have_limits() {
    let node = echo();
    let short = Duration::from_millis(50);
    let server = server(&node, |state| {
        state.rpc.forward.timeout = short;
        state.rpc.forward.max_calls = 1;
    })
    .await;
    let long = json!(["x".repeat(2_000)]);
    assert_eq!(server.refused("eth_call", long).await.0, -32_005, "a call that is too long");
    assert_eq!(node.requests(), 0);
    let (code, message, data) = server.refused("eth_simulateV1", json!([])).await;
    assert_eq!((code, &data["limit"]), (-32_005, &json!(1 << 10)), "{message}");
    // A node that never answers, and a call that waits for a free slot.
    for method in ["eth_getProof", "eth_getProof", "eth_call"] {
        let outcome = server.answer(method, json!([])).await;
        let expected = if method == "eth_call" { None } else { Some(-32_002) };
        assert_eq!(outcome["error"]["code"].as_i64(), expected, "{outcome}");
    }
    let two = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_getProof", "params": []});
    let asked = node.requests();
    let body = two.to_string();
    let (one, other) = tokio::join!(server.post("/", &body), server.post("/", &body));
    for (_, answer) in [one, other] {
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer["error"]["code"], -32_002);
    }
    assert!(node.requests() <= asked + 2);
}

#[tokio::test]
async fn answers_about_blocks_that_cannot_change_are_cached() {
    let node = echo();
    let server = server(&node, |_| {}).await;
    let (last, tip) = small();
    let account = json!("0x0000000000000000000000000000000000000001");
    let by_hash = json!({"blockHash": tip[1].at.hash});
    let final_hash = json!({"blockHash": last[4].at.hash});
    for (blocks, asked) in [
        (vec![by_hash.clone(), by_hash], 1),
        // A final number is equivalent to the hash of its block.
        (vec![json!("0x4"), json!("0x4"), final_hash], 1),
        (vec![json!("0x5")], 1),
        // Answers that may change are not cached, and neither are those to invalid parameters.
        (vec![json!("0xb"), json!("0xb")], 2),
        (vec![json!("latest"), json!("latest")], 2),
        (vec![json!("finalized"), json!("finalized")], 2),
        (vec![json!("0x05"), json!("0x05")], 2),
        (vec![json!("0xffff"), json!("0xffff")], 2),
    ] {
        let before = node.requests();
        let mut answers = Vec::new();
        for block in &blocks {
            answers.push(server.call("eth_getBalance", json!([account, block])).await);
        }
        assert_eq!(node.requests() - before, asked, "{blocks:?}");
        assert!(answers.windows(2).all(|pair| pair[0]["method"] == pair[1]["method"]));
    }
    // Another method, account or state is another cache key.
    let before = node.requests();
    server.call("eth_getCode", json!([account, "0x4"])).await;
    server.call("eth_getBalance", json!(["0x02", "0x4"])).await;
    server.call("eth_call", json!([{}, "0x4"])).await;
    server.call("eth_call", json!([{}, "0x4", {"0x01": {"balance": "0x1"}}])).await;
    assert_eq!(node.requests() - before, 4);
    // Errors are not cached.
    for _ in 0..2 {
        server.refused("eth_estimateGas", json!([{}, "0x4"])).await;
    }
    assert_eq!(node.requests() - before, 6);
}

#[tokio::test]
async fn the_cache_is_bounded_and_a_replaced_branch_is_not_served() {
    let node = echo();
    let server = server(&node, |state| state.rpc.forward.cache_bytes = 8_000).await;
    let (last, tip) = small();
    // More than the cache holds: some of it is requested again.
    for _ in 0..2 {
        for slot in 0..100 {
            let params = json!(["0x01", format!("{slot:#x}"), "0x4"]);
            server.call("eth_getStorageAt", params).await;
        }
    }
    assert!(node.requests() > 120, "{} of 200 were asked of the node", node.requests());
    // A replaced block has another hash, so cached answers about the old block are not used.
    let number = format!("{:#x}", tip[0].at.number);
    server.stage(blocks(last.last(), 1, 2, |_| Vec::new())).await;
    let before = node.requests();
    server.call("eth_getBalance", json!(["0x01", number])).await;
    assert_eq!(node.requests() - before, 1);
}
