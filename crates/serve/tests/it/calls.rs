//! Single calls: answers, errors and limits.

use std::time::Duration;

use alloy_primitives::{Address, B256};
use serde_json::{Value, json};

use super::test_server::{TestServer, blocks, log, small};

#[tokio::test]
async fn methods_without_block_data_are_answered() {
    let (last, tip) = small();
    let (first, head) = (last[0].clone(), tip[2].clone());
    let server = TestServer::of(last, tip).await;
    for (method, params, expected) in [
        ("eth_chainId", json!([]), json!("0x539")),
        ("eth_chainId", Value::Null, json!("0x539")),
        ("net_version", json!([]), json!("1337")),
        ("eth_blockNumber", json!([]), json!("0xc")),
        ("eth_getBlockTransactionCountByNumber", json!(["0x5"]), json!("0x2")),
        ("eth_getBlockTransactionCountByHash", json!([head.at.hash]), json!("0x2")),
        ("eth_getUncleCountByBlockNumber", json!(["latest"]), json!("0x0")),
        ("eth_getUncleCountByBlockHash", json!([first.at.hash]), json!("0x0")),
        ("eth_getBlockByNumber", json!(["0xd", true]), Value::Null),
        ("eth_getBlockByHash", json!([B256::repeat_byte(7), true]), Value::Null),
        ("eth_getTransactionByHash", json!([B256::repeat_byte(7)]), Value::Null),
        ("eth_getTransactionReceipt", json!([B256::repeat_byte(7)]), Value::Null),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x5", "0x2"]), Value::Null),
        ("web3_sha3", json!(["0x"]), json!(alloy_primitives::keccak256([]))),
    ] {
        assert_eq!(server.call(method, params.clone()).await, expected, "{method} {params}");
    }
    let version = server.call("web3_clientVersion", json!([])).await;
    assert!(version.as_str().is_some_and(|text| text.starts_with("logmill/v")), "{version}");
    assert_eq!(server.call("rpc_modules", json!([])).await["eth"], "1.0");
}

#[tokio::test]
async fn blocks_and_transactions_are_found_in_history_and_tip_by_number_tag_and_hash() {
    let (last, tip) = small();
    let server = TestServer::of(last.clone(), tip.clone()).await;
    for block in last.iter().chain(&tip) {
        let number = format!("0x{:x}", block.at.number);
        let by_number = server.call("eth_getBlockByNumber", json!([number, true])).await;
        let by_hash = server.call("eth_getBlockByHash", json!([block.at.hash, true])).await;
        assert_eq!(by_number, by_hash);
        assert_eq!(by_number["hash"], json!(block.at.hash));
        let receipts = server.call("eth_getBlockReceipts", json!([number])).await;
        for (position, transaction) in block.transactions.iter().enumerate() {
            let whole = &by_number["transactions"][position];
            let at = format!("0x{position:x}");
            let hash = json!([transaction.hash]);
            assert_eq!(&server.call("eth_getTransactionByHash", hash.clone()).await, whole);
            let params = json!([block.at.hash, at]);
            let method = "eth_getTransactionByBlockHashAndIndex";
            assert_eq!(&server.call(method, params).await, whole);
            let method = "eth_getTransactionByBlockNumberAndIndex";
            assert_eq!(&server.call(method, json!([number, at])).await, whole);
            let receipt = server.call("eth_getTransactionReceipt", hash).await;
            assert_eq!(receipt, receipts[position]);
            assert_eq!(receipt["status"], if position == 1 { "0x0" } else { "0x1" });
        }
    }
    for (tag, number) in
        [("earliest", "0x0"), ("finalized", "0x9"), ("safe", "0x9"), ("latest", "0xc")]
    {
        let block = server.call("eth_getBlockByNumber", json!([tag, false])).await;
        assert_eq!(block["number"], number, "{tag}");
    }
}

#[tokio::test]
async fn logs_join_history_and_tip_without_a_seam() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let logs = async |filter: Value| server.call("eth_getLogs", json!([filter])).await;
    let all = logs(json!({"fromBlock": "0x0", "toBlock": "latest"})).await;
    assert_eq!(all.as_array().map(Vec::len), Some(13 * 3));
    let seam = logs(json!({"fromBlock": "0x9", "toBlock": "0xa", "topics": [null, null]})).await;
    let numbers: Vec<_> =
        seam.as_array().expect("logs").iter().map(|l| &l["blockNumber"]).collect();
    assert_eq!(numbers, ["0x9", "0xa"]);
    let newest = logs(json!({})).await;
    assert_eq!(newest.as_array().map(Vec::len), Some(3), "the newest block alone by default");
    let address = logs(json!({"fromBlock": "0x0", "address": Address::repeat_byte(2)})).await;
    assert_eq!(address.as_array().map(Vec::len), Some(13));
    assert_eq!(logs(json!({"address": [Address::repeat_byte(5)]})).await, json!([]));
}

/// Log filters that are rejected: the filter, the error code, and the start of the message.
fn wrong_filters() -> Vec<(Value, i64, &'static str)> {
    let hash = B256::repeat_byte(7);
    let many: Vec<_> = (0..200_u64).map(|n| B256::from(alloy_primitives::U256::from(n))).collect();
    let range = |from: &str, to: &str| json!({"fromBlock": from, "toBlock": to});
    let (reversed, beyond, pending) = (
        "invalid block range params",
        "block range extends beyond current head block",
        "pending logs are not supported",
    );
    let both = "invalid argument 0: cannot specify both BlockHash";
    let broad = "query too broad: 200 addresses or topics at one position, at most 128";
    vec![
        (Value::Null, -32_602, "missing value for required argument 0"),
        (json!(7), -32_602, "invalid argument 0: "),
        (range("0x5", "0x4"), -32_602, reversed),
        (range("latest", "0x4"), -32_602, reversed),
        (range("0x1", "0xd"), -32_602, beyond),
        (json!({"fromBlock": "0xd"}), -32_602, beyond),
        (range("0xd", "0xe"), -32_602, beyond),
        (range("0xe", "0xd"), -32_602, reversed),
        (json!({"fromBlock": "pending"}), -32_602, pending),
        (json!({"toBlock": "pending"}), -32_602, pending),
        (json!({"fromBlock": 5}), -32_602, "invalid argument 0: "),
        (json!({"topics": [[], [], [], [], []]}), -32_602, "invalid argument 0: exceed max topics"),
        (json!({"topics": [many]}), -32_005, broad),
        (json!({"blockHash": hash}), -32_000, "Block not found."),
        (json!({"blockHash": hash, "toBlock": "latest"}), -32_602, both),
    ]
}

#[tokio::test]
async fn invalid_filters_are_refused_with_their_codes() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    for method in ["eth_getLogs", "logmill_getLogs", "logmill_explain"] {
        for (filter, code, text) in wrong_filters() {
            let (got, message, _) = server.refused(method, json!([filter])).await;
            assert!(got == code && message.starts_with(text), "{method} {filter}: {got} {message}");
        }
    }
}

#[tokio::test]
async fn invalid_calls_are_refused_with_their_codes() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let hash = B256::repeat_byte(7);
    let pending = "pending blocks are not supported";
    let (cursor, limit) =
        ("invalid argument 1: invalid cursor", "invalid argument 1: the limit must be at least 1");
    for (method, params, code, text) in [
        ("eth_getLogs", json!({}), -32_602, "non-array args"),
        ("eth_getBlockByNumber", json!(["pending", false]), -32_602, pending),
        ("eth_getBlockByNumber", json!(["0x0", 1]), -32_602, "invalid argument 1: "),
        ("eth_getBlockByHash", json!(["0x12", false]), -32_602, "invalid argument 0: "),
        ("eth_getFilterChanges", json!(["0x12"]), -32_000, "filter not found"),
        ("eth_getFilterLogs", json!(["0x12"]), -32_000, "filter not found"),
        ("eth_newFilter", json!([{"blockHash": hash}]), -32_602, "a filter takes a block range"),
        ("eth_subscribe", json!(["newHeads"]), -32_602, "subscriptions need a WebSocket"),
        ("eth_call", json!([]), -32_601, "the method eth_call does not exist"),
        ("other", json!([]), -32_601, "the method other does not exist"),
        ("passed_on", json!([]), -32_601, "the method passed_on does not exist"),
        ("logmill_getLogs", json!([{}, {"cursor": "5"}]), -32_602, cursor),
        ("logmill_getLogs", json!([{}, {"limit": 0}]), -32_602, limit),
    ] {
        let (got, message, _) = server.refused(method, params.clone()).await;
        assert!(got == code && message.starts_with(text), "{method} {params}: {got} {message}");
    }
}

#[tokio::test]
async fn blocks_that_are_not_stored_are_an_error_with_the_coverage_and_never_empty() {
    let all = blocks(None, 20, 1, |_| vec![vec![log(1, &[1], 0)]]);
    let server = TestServer::of(all[5..15].to_vec(), all[15..].to_vec()).await;
    let covered = json!({"covered": [{"from": "0x5", "to": "0x13"}]});
    for (method, params) in [
        ("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "0x7"}])),
        ("eth_getLogs", json!([{"fromBlock": "earliest", "toBlock": "latest"}])),
        ("eth_getLogs", json!([{"fromBlock": "0x3", "toBlock": "0x3"}])),
        ("eth_getBlockByNumber", json!(["0x3", false])),
        ("eth_getBlockByNumber", json!(["earliest", false])),
        ("eth_getBlockReceipts", json!(["0x3"])),
        ("eth_getBlockByHash", json!([all[3].at.hash, false])),
        ("eth_getTransactionByHash", json!([all[3].transactions[0].hash])),
        ("eth_getTransactionReceipt", json!([all[3].transactions[0].hash])),
        ("eth_getBlockTransactionCountByHash", json!([all[3].at.hash])),
    ] {
        let (code, message, data) = server.refused(method, params.clone()).await;
        assert_eq!((code, &data), (4_444, &covered), "{method} {params}: {message}");
        assert!(message.starts_with("Pruned history unavailable"), "{message}");
    }
    let params = json!([{"blockHash": all[3].at.hash}]);
    let (code, message, data) = server.refused("eth_getLogs", params).await;
    assert_eq!((code, message.as_str(), data), (-32_000, "Block not found.", covered.clone()));
    assert_eq!(server.call("eth_getBlockByNumber", json!(["0x14", false])).await, Value::Null);
    let coverage = server.call("logmill_coverage", json!([])).await;
    assert_eq!((&coverage["covered"], &coverage["complete"]), (&covered["covered"], &json!(false)));
    assert_eq!(coverage["head"]["hash"], json!(all[19].at.hash));
    assert_eq!(coverage["finalized"]["number"], "0xe");
}

#[tokio::test]
async fn a_chain_without_blocks_has_no_tags() {
    let server = TestServer::of(Vec::new(), Vec::new()).await;
    for (method, params) in [
        ("eth_blockNumber", json!([])),
        ("eth_getLogs", json!([{}])),
        ("eth_getBlockByNumber", json!(["latest", false])),
        ("eth_getBlockByNumber", json!(["finalized", false])),
        ("eth_getBlockByNumber", json!(["safe", false])),
        ("eth_getLogs", json!([{"fromBlock": "finalized"}])),
    ] {
        let (code, message, _) = server.refused(method, params).await;
        assert_eq!(code, -39_001, "{method}: {message}");
    }
}

#[tokio::test]
async fn an_exceeded_limit_is_an_error_that_suggests_a_range() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| {
        state.rpc.max_results = 7;
        state.rpc.max_blocks = 12;
        state.rpc.max_filters = 2;
    })
    .await;
    let whole = |from: &str, to: &str| json!([{"fromBlock": from, "toBlock": to}]);
    for (params, message, data) in [
        (
            whole("0x2", "0x9"),
            "query exceeds max results 7, retry with the range 2-3",
            json!({"from": "0x2", "to": "0x3", "limit": 7, "reason": "results"}),
        ),
        (
            whole("0x9", "0xc"),
            "query exceeds max results 7, retry with the range 9-10",
            json!({"from": "0x9", "to": "0xa", "limit": 7, "reason": "results"}),
        ),
        (
            whole("0x0", "0xc"),
            "query exceeds max block range 12, retry with the range 0-11",
            json!({"from": "0x0", "to": "0xb", "limit": 12, "reason": "blocks"}),
        ),
    ] {
        let refused = server.refused("eth_getLogs", params).await;
        assert_eq!(refused, (-32_005, message.to_owned(), data));
    }
    let retried = server.call("eth_getLogs", whole("0x2", "0x3")).await;
    assert_eq!(retried.as_array().map(Vec::len), Some(6), "the range that was named does");
    for _ in 0..2 {
        server.call("eth_newBlockFilter", json!([])).await;
    }
    assert_eq!(server.refused("eth_newBlockFilter", json!([])).await.0, -32_005);
    server.clock.move_on(Duration::from_secs(400));
    server.call("eth_newBlockFilter", json!([])).await;
}

#[tokio::test]
async fn a_single_block_is_never_split_and_large_answers_are_streamed_completely() {
    let logs = |number| {
        vec![(0..if number == 1 { 3_000 } else { 1 }).map(|_| log(1, &[1], 100)).collect()]
    };
    let all = blocks(None, 4, 1, logs);
    let server = TestServer::with(all[..2].to_vec(), all[2..].to_vec(), |state| {
        state.rpc.max_results = 10;
        state.rpc.max_response_bytes = 4 << 20;
    })
    .await;
    let one = json!([{"fromBlock": "0x1", "toBlock": "0x1"}]);
    let answer = server.call("eth_getLogs", one.clone()).await;
    let answer = answer.as_array().expect("a list");
    assert_eq!(answer.len(), 3_000, "far more than a piece");
    assert_eq!(answer[2_999]["logIndex"], "0xbb7");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": one});
    let (_, batch) = server.post("/", &json!([call, call, call, call]).to_string()).await;
    let batch: Vec<Value> = serde_json::from_slice(&batch).expect("JSON");
    let outcome = |answer: &Value| answer["error"]["code"].as_i64();
    let outcomes: Vec<_> = batch.iter().map(outcome).collect();
    assert_eq!(outcomes, [None, None, Some(-32_005), Some(-32_005)], "the limit is of the whole");
}

#[tokio::test]
async fn an_answer_that_is_too_large_suggests_a_range_that_fits() {
    let all = blocks(None, 6, 1, |_| vec![vec![log(1, &[1], 1_000)]]);
    let server =
        TestServer::with(all, Vec::new(), |state| state.rpc.max_response_bytes = 8_000).await;
    let all = json!([{"fromBlock": "0x0", "toBlock": "0x5"}]);
    let (code, message, data) = server.refused("eth_getLogs", all).await;
    assert_eq!(code, -32_005);
    assert_eq!(message, "query exceeds max response size 8000, retry with the range 0-2");
    assert_eq!(data["to"], "0x2");
    let less = json!([{"fromBlock": "0x0", "toBlock": "0x2"}]);
    assert_eq!(server.call("eth_getLogs", less).await.as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn a_request_that_takes_too_long_gets_a_timeout_error() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| state.rpc.timeout = Duration::ZERO).await;
    // With no time at all, the request may not even be read.
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}).to_string();
    let (status, answer) = server.post("/", &body).await;
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    let said = (status, answer["error"]["code"].as_i64());
    assert!(said == (200, Some(-32_002)) || said == (408, None), "{status} {answer}");
}

#[tokio::test]
async fn batches_notifications_and_ids_follow_the_specification() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let call = r#"{"jsonrpc":"2.0","id":"a","method":"eth_chainId"}"#;
    let silent = r#"{"jsonrpc":"2.0","method":"eth_chainId"}"#;
    let answer = r#"{"jsonrpc":"2.0","id":"a","result":"0x539"}"#;
    let error = |code: i64, message: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"{message}"}}}}"#)
    };
    for (body, status, expected) in [
        (call.to_owned(), 200, answer.to_owned()),
        (silent.to_owned(), 204, String::new()),
        (format!("[{silent},{silent}]"), 204, String::new()),
        (format!("[{silent},{call}]"), 200, format!("[{answer}]")),
        (format!("[{call},{call}]"), 200, format!("[{answer},{answer}]")),
        (format!("[{call},5]"), 200, format!("[{answer},{}]", error(-32_600, "invalid request"))),
        ("[]".to_owned(), 200, error(-32_600, "empty batch")),
        ("nonsense".to_owned(), 200, error(-32_700, "parse error")),
        (
            format!("[{}]", vec![call; 101].join(",")),
            200,
            error(-32_600, "batch too large: 101 calls, at most 100"),
        ),
    ] {
        let (got, said) = server.post("/rpc", &body).await;
        assert_eq!((got, &*String::from_utf8_lossy(&said)), (status, expected.as_str()), "{body}");
    }
    let (status, _) = server.post("/", &" ".repeat((1 << 20) + 1)).await;
    assert_eq!(status, 413);
    let (status, _) = server.post("/rpc/1337", call).await;
    assert_eq!(status, 200, "by its number too");
    assert_eq!(server.post("/rpc/1", call).await.0, 404);
}

#[tokio::test]
async fn a_path_whose_chain_is_no_number_is_refused_with_what_is_wrong() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let call = r#"{"jsonrpc":"2.0","id":"a","method":"eth_chainId"}"#;
    for (chain, shown) in [
        ("abc", "\"abc\""),
        ("-1", "\"-1\""),
        ("0x539", "\"0x539\""),
        ("99999999999999999999", "\"99999999999999999999\""),
        ("%ff", "the last part of the path"),
    ] {
        let (status, body) = server.post(&format!("/rpc/{chain}"), call).await;
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let why = format!(
            "{shown} is no chain id: the path must have it in decimal digits, such as /rpc/1"
        );
        assert_eq!((status, body), (400, json!({"error": why})), "{chain}");
    }
    for path in ["/rpc/abc", "/ws/abc"] {
        let upgrade = [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let (status, body) = server.get_with(path, &upgrade).await;
        assert!(status == 400 && body.starts_with(r#"{"error":"\"abc\""#), "{status} {body}");
    }
}

#[tokio::test]
async fn pages_add_up_to_all_logs_and_a_reorganization_invalidates_the_cursor() {
    let (last, tip) = small();
    let server = TestServer::of(last.clone(), tip.clone()).await;
    let filter = json!({"fromBlock": "0x1", "toBlock": "latest"});
    let expected = server.call("eth_getLogs", json!([filter])).await;
    let (mut found, mut cursor, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let paging = json!({"cursor": cursor, "limit": "0x7"});
        let page = server.call("logmill_getLogs", json!([filter, paging])).await;
        found.extend(page["logs"].as_array().expect("logs").clone());
        assert_eq!(page["range"]["to"]["hash"], json!(tip[2].at.hash));
        pages += 1;
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((json!(found), pages), (expected, 6));
    let paging = json!({"limit": 33});
    let page = server.call("logmill_getLogs", json!([filter, paging])).await;
    assert_eq!(page["range"]["from"]["hash"], json!(last[1].at.hash));
    server.stage(blocks(last.last(), 3, 2, |_| Vec::new())).await;
    let paging = json!({"cursor": page["cursor"], "limit": 33});
    let (code, message, _) = server.refused("logmill_getLogs", json!([filter, paging])).await;
    assert!(code == -32_000 && message.starts_with("the chain changed"), "{message}");
    let by_hash = json!([{"blockHash": last[4].at.hash}]);
    let page = server.call("logmill_getLogs", by_hash).await;
    assert_eq!(page["range"]["from"], page["range"]["to"]);
    assert_eq!(page["logs"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn an_explanation_reports_the_work_done() {
    let (last, tip) = small();
    let (in_history, in_tip) = (last[3].at.hash, tip[1].at.hash);
    let server = TestServer::of(last, tip).await;
    let filter = json!({"fromBlock": "0x2", "toBlock": "0xb", "address": Address::repeat_byte(2)});
    let told = server.call("logmill_explain", json!([filter])).await;
    assert_eq!((&told["results"], &told["tipBlocks"]), (&json!(8), &json!("0x2")));
    assert_eq!(told["sources"][0]["clauses"][0]["kind"], "addr");
    assert_eq!(told["range"]["to"], "0xb");
    let told = server.call("logmill_explain", json!([{"blockHash": in_history}])).await;
    assert_eq!(told["results"], 3);
    let told = server.call("logmill_explain", json!([{"blockHash": in_tip}])).await;
    assert_eq!((&told["results"], &told["tipBlocks"]), (&json!(0), &json!("0x1")));
    let nowhere = json!([{"blockHash": B256::repeat_byte(7)}]);
    assert_eq!(server.refused("logmill_explain", nowhere).await.0, -32_000);
}
