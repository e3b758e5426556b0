//! The node changes its mind: blocks are replaced and taken back while we follow.
//!
//! Guarantees: our answers are the node's again, and who listens is told of every log that died, and of every one that
//! came.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use logmill_sim::http::JsonRpc;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::answers::{assert_same_blocks, assert_same_logs};
use super::scene::{SETTINGS, Town, assert_linked, hex, wait_for_all, wait_for_head};
use crate::process::Place;

/// How long a message may take.
const MESSAGE_WAIT: Duration = Duration::from_secs(20);

/// A client that subscribed to all logs, and keeps those that are left.
struct Listener {
    runtime: tokio::runtime::Runtime,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// By the hash of the block and the position in it.
    logs: BTreeMap<(String, String), Value>,
    /// How many were taken back.
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

    /// Takes the next message: a log that is new, or one that is not any more.
    fn hear(&mut self) {
        let next = async { tokio::time::timeout(MESSAGE_WAIT, self.socket.next()).await };
        let message = self.runtime.block_on(next).expect("a message comes in time");
        let message = message.expect("the socket is open").expect("a message");
        let Message::Text(text) = message else { return };
        let message: Value = serde_json::from_str(&text).expect("JSON");
        let mut log = message["params"]["result"].clone();
        let part = |name: &str| log[name].as_str().expect("text").to_owned();
        let place = (part("blockHash"), part("logIndex"));
        if log["removed"] == true {
            log["removed"] = json!(false);
            assert_eq!(self.logs.remove(&place), Some(log), "it died as it lived");
            self.removed += 1;
        } else {
            assert!(self.logs.insert(place, log).is_none(), "it is told once");
        }
    }

    /// Listens until it knows all logs of the node from a block on, and no others.
    fn hear_all(&mut self, node: JsonRpc, from: u64) {
        let filter = json!([{"fromBlock": hex(from), "toBlock": "latest"}]);
        let expected = node.call("eth_getLogs", filter);
        let expected = expected.as_array().expect("a list").clone();
        let same = |known: &BTreeMap<_, Value>| {
            known.len() == expected.len()
                && expected.iter().all(|log| known.values().any(|k| k == log))
        };
        while !same(&self.logs) {
            self.hear();
        }
    }
}

fn reorgs(server: JsonRpc) -> u64 {
    let status = server.get("/status");
    status["chains"][0]["ingest"]["ingest"]["reorgs"].as_u64().expect("a number")
}

#[test]
fn blocks_that_are_replaced_or_taken_back_are_followed_and_told() {
    let town = Town::new(2);
    town.grow(60);
    let place = Place::with(&SETTINGS);
    let server = town.serve(&place);
    let (ours, node) = (server.rpc(), town.rpc());
    wait_for_all(ours, node);
    let mut listener = Listener::new(ours);
    let from = node.head() + 1;
    let filter = ours.call("eth_newBlockFilter", json!([]));
    let mut dead = 0;
    for depth in 1..=3 {
        for value in 0..3 {
            town.send(&town.transfer(0xc0 + depth, value));
            town.send(&town.burst(5));
            town.anvil.mine(1);
        }
        wait_for_all(ours, node);
        listener.hear_all(node, from);
        dead += 6 * usize::try_from(depth).expect("small");
        town.anvil.reorg(depth, &[town.transfer(0xd0, depth), town.burst(7)]);
        town.grow(1);
        wait_for_all(ours, node);
        listener.hear_all(node, from);
        assert_eq!(listener.removed, dead, "every log of the {depth} dead blocks");
        assert_same_logs(ours, node);
        assert_eq!(reorgs(ours), depth);
    }
    // Taken back, and replaced only later: what the node had said holds until it says something else.
    let before = node.head();
    town.anvil.rollback(2);
    assert_eq!((node.head(), ours.head()), (before - 2, before));
    town.send(&town.transfer(0xe0, 1));
    town.anvil.mine(1);
    // Not all is the same now: anvil takes back what it called final, and we do not.
    wait_for_head(ours, node);
    listener.hear_all(node, from);
    assert_eq!((ours.head(), reorgs(ours)), (before - 1, 4));
    town.grow(12);
    wait_for_all(ours, node);
    assert_same_blocks(ours, node);
    assert_same_logs(ours, node);
    assert_linked(ours);
    let heads = ours.call("eth_getFilterChanges", json!([filter]));
    let latest = node.call("eth_getBlockByNumber", json!(["latest", false]));
    assert_eq!(heads.as_array().and_then(|heads| heads.last()), Some(&latest["hash"]));
}
