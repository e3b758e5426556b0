//! Processes die: ours at any moment, and the node under us; and nodes may part.
//!
//! Guarantees: after each of it, our answers are those of the node that we follow, with nothing lost or doubled.

use std::time::Duration;

use serde_json::json;

use super::answers::{assert_same_blocks, assert_same_logs};
use super::scene::{Draw, SETTINGS, Town, assert_linked, hex, wait_for_all, wait_for_head};
use crate::process::{Place, wait_until};

#[test]
fn a_server_that_is_killed_again_and_again_ends_with_every_log_once() {
    let town = Town::new(3);
    town.grow(220);
    let place = Place::with(&SETTINGS);
    let mut draw = Draw(11);
    for round in 0..8 {
        let server = town.serve(&place);
        // At any moment: while it fills history, follows, seals, or has just begun.
        if round % 2 == 0 {
            town.grow(draw.below(6));
        }
        std::thread::sleep(Duration::from_millis(draw.below(900)));
        server.kill();
        match round % 4 {
            1 => town.grow(3),
            3 => town.anvil.reorg(2, &[town.burst(9)]),
            _ => {}
        }
    }
    let server = town.serve(&place);
    town.grow(4);
    wait_for_all(server.rpc(), town.rpc());
    assert_same_blocks(server.rpc(), town.rpc());
    assert_same_logs(server.rpc(), town.rpc());
    assert_linked(server.rpc());
    assert!(server.terminate().success());
    assert_eq!(place.run(&["verify", "--json"]).json()["damaged"], 0);
}

#[test]
fn a_node_that_goes_away_and_comes_back_is_followed_again() {
    let mut town = Town::new(4);
    town.grow(80);
    let place = Place::with(&SETTINGS);
    let server = town.serve(&place);
    wait_for_all(server.rpc(), town.rpc());
    let head = town.rpc().head();
    town.anvil.stop();
    wait_until("it says that the node is away", || {
        server.rpc().get("/status")["chains"][0]["nodes"][0]["healthy"] == false
    });
    // What is stored is served all the same.
    assert_eq!(server.rpc().head(), head);
    server.rpc().call("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "latest"}]));
    // A server can start without its node.
    server.kill();
    let server = town.serve(&place);
    assert_eq!(server.rpc().head(), head);
    town.anvil.resume();
    town.grow(20);
    wait_for_all(server.rpc(), town.rpc());
    assert_same_blocks(server.rpc(), town.rpc());
    assert_same_logs(server.rpc(), town.rpc());
}

#[test]
fn of_two_nodes_that_part_one_is_followed_and_branches_are_not_mixed() {
    let mut town = Town::new(5);
    town.grow(50);
    let other = town.anvil.fork();
    let (one, two) = (town.rpc(), other.rpc());
    let place = Place::with(&SETTINGS);
    let server = place.serve_with(&["--rpc-url", &one.url(), "--rpc-url", &two.url()]);
    let ours = server.rpc();
    wait_for_all(ours, one);
    let parted = one.head();
    town.grow(3);
    for value in 0..3 {
        two.call("eth_sendTransaction", json!([town.transfer(0xf0, value)]));
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
        let told = ours.get("/status")["chains"][0]["ingest"]["ingest"].take();
        let error = told["last_error"].as_str().unwrap_or_default();
        error.contains("the nodes do not agree") || told["reorgs"].as_u64() > Some(0)
    });
    assert_linked(ours);
    // One goes on, and its branch becomes final: the other is too far behind to be believed.
    town.grow(14);
    wait_for_head(ours, one);
    assert_linked(ours);
    wait_for_all(ours, one);
    assert_same_logs(ours, one);
    // Then the other overtakes it, from below what is final: that is never taken.
    other.mine(30);
    let finalized = one.head() - 8;
    wait_until("it says so", || {
        let status = ours.get("/status");
        let chain = &status["chains"][0];
        chain["ready"] == false || chain["nodes"][1]["lies"].as_u64() > Some(0)
    });
    let said = ours.get("/status");
    for n in [parted, parted + 1, parted + 3, finalized] {
        assert_eq!(hash(ours, n), hash(one, n), "block {n}: {said}");
    }
    assert_linked(ours);
    // And when the first is ahead again, all goes on.
    town.grow(40);
    wait_for_all(ours, one);
    assert_same_logs(ours, one);
}
