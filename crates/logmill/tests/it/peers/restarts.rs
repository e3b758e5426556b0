//! Processes die: the server at any time, and its node; and nodes disagree.
//!
//! Guarantees: after each failure, the server's answers equal those of the node that it follows, with nothing lost or
//! duplicated.

use std::time::{Duration, Instant};

use serde_json::json;

use super::answers::{assert_same_blocks, assert_same_logs};
use super::anvil_chain::{
    AnvilChain, SETTINGS, SplitMix64, assert_linked, hex, wait_for_all, wait_for_head,
};
use crate::process::{Sandbox, WAIT_MAX, wait_until};

#[test]
fn a_server_that_is_killed_repeatedly_stores_every_log_once() {
    let chain = AnvilChain::new(3);
    chain.grow(220);
    let sandbox = Sandbox::with(&SETTINGS);
    let mut random = SplitMix64(11);
    for round in 0..8 {
        let server = chain.serve(&sandbox);
        // At any time: while it fetches history, follows, seals, or starts.
        if round % 2 == 0 {
            chain.grow(random.below(6));
        }
        std::thread::sleep(Duration::from_millis(random.below(900)));
        server.kill();
        match round % 4 {
            1 => chain.grow(3),
            3 => chain.anvil.reorg(2, &[chain.burst(9)]),
            _ => {}
        }
    }
    let server = chain.serve(&sandbox);
    chain.grow(4);
    wait_for_all(server.rpc(), chain.rpc());
    assert_same_blocks(server.rpc(), chain.rpc());
    assert_same_logs(server.rpc(), chain.rpc());
    assert_linked(server.rpc());
    assert!(server.terminate().success());
    assert_eq!(sandbox.run(&["verify", "--json"]).json()["damaged"], 0);
}

#[test]
fn a_node_that_goes_away_and_comes_back_is_followed_again() {
    let mut chain = AnvilChain::new(4);
    chain.grow(80);
    let sandbox = Sandbox::with(&SETTINGS);
    let server = chain.serve(&sandbox);
    wait_for_all(server.rpc(), chain.rpc());
    let head = chain.rpc().head();
    chain.anvil.stop();
    wait_until("it says that the node is away", || {
        server.rpc().get("/status")["chains"][0]["nodes"][0]["healthy"] == false
    });
    // Stored data is still served.
    assert_eq!(server.rpc().head(), head);
    server.rpc().call("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "latest"}]));
    // A server can start without its node.
    server.kill();
    let server = chain.serve(&sandbox);
    assert_eq!(server.rpc().head(), head);
    chain.anvil.resume();
    chain.grow(20);
    wait_for_all(server.rpc(), chain.rpc());
    assert_same_blocks(server.rpc(), chain.rpc());
    assert_same_logs(server.rpc(), chain.rpc());
}

#[test]
fn if_two_nodes_diverge_one_is_followed_and_branches_are_not_mixed() {
    let mut chain = AnvilChain::new(5);
    chain.grow(50);
    let other = chain.anvil.fork();
    let (one, two) = (chain.rpc(), other.rpc());
    let sandbox = Sandbox::with(&SETTINGS);
    let server = sandbox.serve_with(&["--rpc-url", &one.url(), "--rpc-url", &two.url()]);
    let ours = server.rpc();
    wait_for_all(ours, one);
    let parted = one.head();
    chain.grow(3);
    for value in 0..3 {
        two.call("eth_sendTransaction", json!([chain.transfer(0xf0, value)]));
        other.mine(1);
    }
    let hash = |of: logmill_sim::http::JsonRpc, n: u64| {
        of.call("eth_getBlockByNumber", json!([hex(n), false]))["hash"].clone()
    };
    let heads = [hash(one, parted + 3), hash(two, parted + 3)];
    wait_until("it has the head of one of them", || {
        ours.head() == parted + 3 && heads.contains(&hash(ours, parted + 3))
    });
    wait_until("it says that they do not agree, or that the chain changed", || {
        let ingest = ours.get("/status")["chains"][0]["ingest"]["ingest"].take();
        let error = ingest["last_error"].as_str().unwrap_or_default();
        error.contains("the nodes disagree") || ingest["reorgs"].as_u64() > Some(0)
    });
    assert_linked(ours);
    // One node continues, and its branch becomes final; the other is too far behind to be followed.
    chain.grow(14);
    wait_for_head(ours, one);
    assert_linked(ours);
    wait_for_all(ours, one);
    assert_same_logs(ours, one);
    // Then the other overtakes it with a branch from below the final block, which is never accepted.
    other.mine(30);
    let finalized = one.head() - 8;
    wait_until("it says so", || {
        let status = ours.get("/status");
        let chain = &status["chains"][0];
        chain["ready"] == false || chain["nodes"][1]["lies"].as_u64() > Some(0)
    });
    let message = ours.get("/status");
    for n in [parted, parted + 1, parted + 3, finalized] {
        assert_eq!(hash(ours, n), hash(one, n), "block {n}: {message}");
    }
    assert_linked(ours);
    // When the first is ahead again, the server continues: at once, or after a node that contradicted a final block has
    // rested, which takes up to a minute.
    chain.grow(40);
    let end = Instant::now() + 3 * WAIT_MAX;
    while ours.head() != one.head() {
        assert!(Instant::now() < end, "it does not follow the node that is ahead again");
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_for_all(ours, one);
    assert_same_logs(ours, one);
}
