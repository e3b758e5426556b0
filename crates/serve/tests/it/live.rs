//! How clients learn about chain changes: filters, subscriptions, and the feed.

use std::time::Duration;

use alloy_primitives::Address;
use serde_json::{Value, json};

use super::test_server::{TestServer, blocks, log, small};

/// Reorganizes the last two blocks of the tip.
async fn reorganise(
    server: &TestServer,
    tip: &[logmill_chain::Block],
) -> Vec<logmill_chain::Block> {
    let branch = blocks(Some(&tip[0]), 3, 2, |_| vec![vec![log(1, &[7], 0), log(3, &[], 0)]]);
    let mut now = vec![tip[0].clone()];
    now.extend(branch.clone());
    server.stage(now).await;
    branch
}

fn brief(log: &Value) -> (String, bool) {
    let number = log["blockNumber"].as_str().expect("a number").to_owned();
    (number, log["removed"].as_bool().expect("removed"))
}

#[tokio::test]
async fn a_filter_reports_new_logs_and_logs_removed_by_a_reorganization() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip.clone()).await;
    let filter = json!([{"address": Address::repeat_byte(1)}]);
    let logs = server.call("eth_newFilter", filter).await;
    let heads = server.call("eth_newBlockFilter", json!([])).await;
    let early = server.call("eth_newFilter", json!([{"fromBlock": "0xd", "toBlock": "0xd"}])).await;
    assert_eq!(server.call("eth_getFilterChanges", json!([logs])).await, json!([]));
    let branch = reorganise(&server, &tip).await;
    let changes = server.call("eth_getFilterChanges", json!([logs])).await;
    let told: Vec<_> = changes.as_array().expect("logs").iter().map(brief).collect();
    let said = |number: &str, removed| (number.to_owned(), removed);
    assert_eq!(
        told,
        [
            said("0xc", true),
            said("0xc", true),
            said("0xb", true),
            said("0xb", true),
            said("0xb", false),
            said("0xc", false),
            said("0xd", false),
        ]
    );
    assert_eq!(changes[0]["blockHash"], json!(tip[2].at.hash));
    assert_eq!(changes[4]["blockHash"], json!(branch[0].at.hash));
    let hashes: Vec<_> = branch.iter().map(|block| block.at.hash).collect();
    assert_eq!(server.call("eth_getFilterChanges", json!([heads])).await, json!(hashes));
    assert_eq!(server.call("eth_getFilterChanges", json!([heads])).await, json!([]));
    let ranged = server.call("eth_getFilterChanges", json!([early])).await;
    assert_eq!(ranged.as_array().map(Vec::len), Some(2), "block 13 alone: {ranged}");
    let held = server.call("eth_getFilterLogs", json!([logs])).await;
    assert_eq!(held.as_array().map(Vec::len), Some(1), "the newest block by default");
    assert_eq!(server.refused("eth_getFilterLogs", json!([heads])).await.0, -32_000);
    assert_eq!(server.call("eth_uninstallFilter", json!([logs])).await, json!(true));
    assert_eq!(server.call("eth_uninstallFilter", json!([logs])).await, json!(false));
    assert_eq!(server.refused("eth_getFilterChanges", json!([logs])).await.0, -32_000);
    server.clock.move_on(Duration::from_secs(301));
    assert_eq!(server.refused("eth_getFilterChanges", json!([heads])).await.0, -32_000);
}

#[tokio::test]
async fn a_filter_that_missed_changes_says_so() {
    let (last, tip) = small();
    let server = TestServer::of(last.clone(), tip.clone()).await;
    let heads = server.call("eth_newBlockFilter", json!([])).await;
    for salt in 10..270 {
        server.stage(blocks(last.last(), 1, salt, |_| Vec::new())).await;
    }
    let (code, message, _) = server.refused("eth_getFilterChanges", json!([heads])).await;
    assert_eq!(code, -32_000);
    assert!(message.starts_with("filter not found: it was polled too rarely"), "{message}");
    assert_eq!(server.refused("eth_getFilterChanges", json!([heads])).await.1, "filter not found");
}

#[tokio::test]
async fn clients_of_a_reopened_chain_are_disconnected_and_do_not_wait_forever() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let heads = server.call("eth_newBlockFilter", json!([])).await;
    let mut client = server.connect("/").await;
    client.call("eth_subscribe", json!(["newHeads"])).await;
    server.chain.close_changes();
    let why = client.next().await.expect_err("it is disconnected");
    assert!(why.contains("the chain is no longer served"), "{why}");
    let (code, message, _) = server.refused("eth_getFilterChanges", json!([heads])).await;
    assert_eq!(code, -32_000);
    assert!(message.starts_with("filter not found: the chain was reopened"), "{message}");
}

#[tokio::test]
async fn a_subscription_reports_heads_logs_and_reorganizations() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip.clone()).await;
    let mut client = server.connect("/").await;
    let heads = client.call("eth_subscribe", json!(["newHeads"])).await;
    let filter = json!(["logs", {"topics": [[alloy_primitives::B256::repeat_byte(7)]]}]);
    let sevens = client.call("eth_subscribe", filter).await;
    let all = client.call("eth_subscribe", json!(["logs"])).await;
    assert_eq!(client.call("eth_chainId", json!([])).await, "0x539", "calls work beside");
    let branch = reorganise(&server, &tip).await;
    let mut told: std::collections::BTreeMap<String, Vec<Value>> = Default::default();
    for _ in 0..3 + 3 + 6 + 6 {
        let (subscription, result) = client.notice().await;
        let id = subscription.as_str().expect("an id").to_owned();
        told.entry(id).or_default().push(result);
    }
    let of = |id: &Value| told.get(id.as_str().expect("an id")).expect("told").clone();
    let heads_told: Vec<_> = of(&heads).iter().map(|head| head["hash"].clone()).collect();
    let expected: Vec<_> = branch.iter().map(|block| json!(block.at.hash)).collect();
    assert_eq!(heads_told, expected);
    assert!(of(&heads)[0].get("transactions").is_none());
    assert_eq!(of(&sevens).len(), 3);
    let removed = |log: &Value| log["removed"] == json!(true);
    let all_told = of(&all);
    assert_eq!(all_told.iter().filter(|log| removed(log)).count(), 6);
    assert!(all_told[..6].iter().all(removed), "what went is told first");
    assert_eq!(all_told[0]["blockNumber"], "0xc", "highest first");
    assert_eq!(client.call("eth_unsubscribe", json!([all])).await, json!(true));
    assert_eq!(client.call("eth_unsubscribe", json!([heads])).await, json!(true));
    let mut now = vec![tip[0].clone()];
    now.extend(branch.clone());
    now.extend(blocks(branch.last(), 1, 2, |_| vec![vec![log(5, &[7], 0), log(5, &[8], 0)]]));
    server.stage(now).await;
    let (id, result) = client.notice().await;
    assert_eq!((id, &result["blockNumber"]), (sevens, &json!("0xe")), "only the one that is left");
}

#[tokio::test]
async fn a_socket_has_limits_and_says_why_it_is_closed() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| {
        state.rpc.max_subscriptions = 1;
        state.limits.max_body_bytes = 1_000;
    })
    .await;
    let mut client = server.connect("/rpc/1337").await;
    client.call("eth_subscribe", json!(["newHeads"])).await;
    let call = json!({"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]});
    client.send(&call.to_string()).await;
    assert_eq!(client.next().await.expect("an answer")["error"]["code"], -32_005);
    client.send("[{}").await;
    assert_eq!(client.next().await.expect("an answer")["error"]["code"], -32_700);
    client.send(&"x".repeat(2_000)).await;
    let closed = client.next().await.expect_err("too large");
    assert!(closed.contains("too large") || closed.contains("reset"), "{closed}");
    let mut client = server.connect("/").await;
    client.call("eth_chainId", json!([])).await;
    let ended = async { server.end().await };
    let (closed, ()) = tokio::join!(client.next(), ended);
    assert_eq!(closed.expect_err("the end"), "the server is stopping");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_with_the_reason() {
    let (last, _) = small();
    let server = TestServer::of(last.clone(), Vec::new()).await;
    let mut slow = server.connect("/").await;
    slow.call("eth_subscribe", json!(["logs"])).await;
    // Much more than the socket buffers hold.
    for salt in 10..600 {
        server.stage(blocks(last.last(), 1, salt, |_| vec![vec![log(1, &[], 64 << 10)]])).await;
        tokio::task::yield_now().await;
    }
    let mut heard = 0;
    let reason = loop {
        match slow.next().await {
            Ok(_) => heard += 1,
            Err(reason) => break reason,
        }
    };
    assert_eq!(reason, "client too slow, changes were skipped: subscribe again");
    assert!(heard < 2 * 590, "it did not hear of all: {heard}");
}

#[tokio::test]
async fn the_feed_sends_blocks_and_their_transactions() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip[..1].to_vec()).await;
    let mut client = server.connect("/ws").await;
    let mut other = server.connect("/ws/1337").await;
    server.stage(tip[..2].to_vec()).await;
    for client in [&mut client, &mut other] {
        let block = client.next().await.expect("a block");
        assert_eq!(block["type"], "new_block");
        assert_eq!(
            block["payload"],
            json!({
                "height": 11,
                "id": tip[1].at.hash,
                "timestamp": "1970-01-01T00:16:51Z",
                "tx_count": 2,
                "event_count": 3,
            })
        );
        let first = client.next().await.expect("a transaction");
        assert_eq!(first["type"], "new_transaction");
        assert_eq!(first["payload"]["id"], json!(tip[1].transactions[0].hash));
        assert_eq!(first["payload"]["block_height"], 11);
        assert_eq!(first["payload"]["execution_status"], "SUCCESS");
        assert!(first["payload"].get("error_message").is_none());
        let hash = json!([tip[1].transactions[0].hash]);
        let known = server.call("eth_getTransactionByHash", hash).await;
        assert_eq!(first["payload"]["payer_address"], known["from"]);
        let second = client.next().await.expect("a transaction");
        assert_eq!(second["payload"]["execution_status"], "FAILURE");
    }
    assert_eq!(server.get("/ws").await.0, 400, "a WebSocket and nothing else");
}

#[tokio::test]
async fn the_status_is_sent_at_once_and_repeatedly() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let mut client = server.connect("/ws/status").await;
    for _ in 0..2 {
        let told = client.next().await.expect("the status");
        assert_eq!(told["type"], "status");
        assert_eq!(told["payload"]["chains"][0]["chain_id"], 1_337);
        assert!(told["payload"]["version"].is_string(), "{told}");
    }
}
