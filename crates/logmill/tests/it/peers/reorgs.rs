//! Reorganizations: the node replaces and removes blocks while the server follows.
//!
//! Guarantees: afterwards the server's answers equal the node's, and subscribers are notified of every removed and
//! every added log.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use logmill_sim::http::JsonRpc;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::answers::{assert_same_blocks, assert_same_logs};
use super::anvil_chain::{AnvilChain, SETTINGS, assert_linked, hex, wait_for_all, wait_for_head};
use crate::process::Sandbox;

const MESSAGE_WAIT: Duration = Duration::from_secs(20);

/// A client that subscribes to all logs, and keeps those that were not removed.
struct Listener {
    runtime: tokio::runtime::Runtime,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// By block hash and log index.
    logs: BTreeMap<(String, String), Value>,
    /// Number of removed logs.
    removed: usize,
}

impl Listener {
    fn new(server: JsonRpc) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let socket = runtime.block_on(async {
            let connected = tokio_tungstenite::connect_async(server.ws_url()).await;
            let (mut socket, _) = connected.expect("it connects");
            let call =
                json!({"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["logs", {}]});
            socket.send(Message::text(call.to_string())).await.expect("sent");
            let answer = socket.next().await.expect("an answer").expect("a message");
            assert!(answer.to_text().expect("text").contains("result"), "{answer}");
            socket
        });
        Self { runtime, socket, logs: BTreeMap::new(), removed: 0 }
    }

    /// Applies the next message: an added or a removed log.
    fn read_message(&mut self) {
        let next = async { tokio::time::timeout(MESSAGE_WAIT, self.socket.next()).await };
        let message = self.runtime.block_on(next).expect("a message comes in time");
        let message = message.expect("the socket is open").expect("a message");
        let Message::Text(text) = message else { return };
        let message: Value = serde_json::from_str(&text).expect("JSON");
        let mut log = message["params"]["result"].clone();
        let part = |name: &str| log[name].as_str().expect("text").to_owned();
        let position = (part("blockHash"), part("logIndex"));
        if log["removed"] == true {
            log["removed"] = json!(false);
            assert_eq!(
                self.logs.remove(&position),
                Some(log),
                "a removed log equals the one that was added"
            );
            self.removed += 1;
        } else {
            assert!(self.logs.insert(position, log).is_none(), "a log is sent once");
        }
    }

    /// Reads messages until its logs from a block on equal the node's.
    fn read_until_equal(&mut self, node: JsonRpc, from: u64) {
        let filter = json!([{"fromBlock": hex(from), "toBlock": "latest"}]);
        let expected = node.call("eth_getLogs", filter);
        let expected = expected.as_array().expect("a list").clone();
        let same = |known: &BTreeMap<_, Value>| {
            known.len() == expected.len()
                && expected.iter().all(|log| known.values().any(|k| k == log))
        };
        while !same(&self.logs) {
            self.read_message();
        }
    }
}

fn reorgs(server: JsonRpc) -> u64 {
    let status = server.get("/status");
    status["chains"][0]["ingest"]["ingest"]["reorgs"].as_u64().expect("a number")
}

#[test]
fn replaced_and_removed_blocks_are_followed_and_subscribers_are_notified() {
    let chain = AnvilChain::new(2);
    chain.grow(60);
    let position = Sandbox::with(&SETTINGS);
    let mut server = chain.serve(&position);
    let (ours, node) = (server.rpc(), chain.rpc());
    wait_for_all(ours, node);
    let mut listener = Listener::new(ours);
    let from = node.head() + 1;
    let filter = ours.call("eth_newBlockFilter", json!([]));
    let mut dead = 0;
    for depth in 1..=3 {
        for value in 0..3 {
            chain.send(&chain.transfer(0xc0 + depth, value));
            chain.send(&chain.burst(5));
            chain.anvil.mine(1);
        }
        wait_for_all(ours, node);
        listener.read_until_equal(node, from);
        dead += 6 * usize::try_from(depth).expect("small");
        chain.anvil.reorg(depth, &[chain.transfer(0xd0, depth), chain.burst(7)]);
        chain.grow(1);
        wait_for_all(ours, node);
        listener.read_until_equal(node, from);
        assert_eq!(listener.removed, dead, "every log of the {depth} dead blocks");
        assert_same_logs(ours, node);
        assert_eq!(reorgs(ours), depth);
    }
    // Removed, and replaced only later: meanwhile no block is served that the node does not have.
    let gone = chain.send(&chain.transfer(0xe0, 1));
    chain.anvil.mine(1);
    wait_for_all(ours, node);
    listener.read_until_equal(node, from);
    let (before, removed_before) = (node.head(), listener.removed);
    // The server may have seen a reorganization half done, with a final block that is briefly lower.
    let final_went_back = "the nodes report an older final block than before";
    server.has_logged("nothing, but all lines are read");
    let warned_before = server.log().matches(final_went_back).count();
    chain.anvil.rollback(2);
    wait_for_head(ours, node);
    assert_eq!((node.head(), ours.head()), (before - 2, before - 2));
    assert_eq!(ours.call("eth_getTransactionReceipt", json!([gone])), Value::Null);
    listener.read_until_equal(node, from);
    assert!(listener.removed > removed_before, "every log of the blocks that are gone");
    assert_eq!(reorgs(ours), 4);
    chain.send(&chain.transfer(0xe0, 2));
    chain.anvil.mine(1);
    // Not everything is equal now: Anvil removes blocks that it reported as final, and the server keeps them.
    wait_for_head(ours, node);
    listener.read_until_equal(node, from);
    assert_eq!((ours.head(), reorgs(ours)), (before - 1, 4));
    server.has_logged("nothing, but all lines are read");
    let warned = |what: &str| server.log().matches(what).count();
    assert_eq!(warned("the head went back"), 1, "{}", server.log());
    assert_eq!(warned(final_went_back), warned_before + 1, "{}", server.log());
    chain.grow(12);
    wait_for_all(ours, node);
    assert_same_blocks(ours, node);
    assert_same_logs(ours, node);
    assert_linked(ours);
    let heads = ours.call("eth_getFilterChanges", json!([filter]));
    let latest = node.call("eth_getBlockByNumber", json!(["latest", false]));
    assert_eq!(heads.as_array().and_then(|heads| heads.last()), Some(&latest["hash"]));
}
