//! Stored final blocks are replaced while tables are derived from them: a chain that was reset and is rebuilt, and a
//! repair against a node of another chain.
//!
//! Guarantees: only data of the followed chain is served as complete; everything else is marked.

use std::collections::BTreeSet;

use logmill_sim::http::JsonRpc;
use serde_json::{Value, json};

use super::anvil_chain::{AnvilChain, SETTINGS, wait_for_all};
use super::derived::wait_for_tables;
use crate::index::fixture::{IndexFixture, blocks};
use crate::process::{Sandbox, wait_until};

const API: &str = "/api/v1/31337";
/// Keccak-256 of `Transfer(address,address,uint256)`.
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// A chain with `transfers` transfers of increasing amounts from `first`, all of them final.
fn chain(seed: u64, transfers: u64, first: u64) -> AnvilChain {
    let chain = AnvilChain::new(seed);
    for number in 0..transfers {
        chain.send(&chain.transfer(number % 5 + 1, first + number));
        chain.anvil.mine(1);
    }
    chain.anvil.mine(12);
    chain
}

/// The node's transactions with transfers of a token.
fn truth(node: JsonRpc, token: &str) -> BTreeSet<String> {
    let filter =
        json!([{"fromBlock": "0x0", "toBlock": "latest", "address": token, "topics": [TRANSFER]}]);
    hashes(&node.call("eth_getLogs", filter))
}

fn hashes(list: &Value) -> BTreeSet<String> {
    let hash = |one: &Value| one["transactionHash"].as_str().expect("a hash").to_owned();
    list.as_array().expect("a list").iter().map(hash).collect()
}

fn page(ours: JsonRpc, token: &str) -> Value {
    ours.get(&format!("{API}/tokens/{token}/transfers?limit=100"))
}

#[test]
fn after_a_reset_and_a_rebuild_no_row_of_the_dead_chain_is_served_as_true() {
    let dead = chain(31, 30, 1);
    let sandbox = Sandbox::with(&SETTINGS);
    let server = dead.serve(&sandbox);
    let token = &dead.contracts[0];
    wait_for_tables(server.rpc(), dead.rpc());
    let before = page(server.rpc(), token);
    assert_eq!(hashes(&before["items"]), truth(dead.rpc(), token));
    assert_eq!(before["items"].as_array().map(Vec::len), Some(30));
    assert_eq!(
        (&before["asOf"]["complete"], &before["asOf"]["reason"]),
        (&json!(true), &Value::Null)
    );
    assert!(server.terminate().success());
    sandbox.run(&["index", "resolve", "rebuild-from", "0"]).answer();
    // The new chain is shorter, and has the token at the same address.
    let chain = chain(32, 20, 1_000);
    assert_eq!(&chain.contracts[0], token);
    // Until the tables are derived again, the old rows are served, but marked.
    let url = chain.rpc().url();
    let no_room = "derive.disk_reserve_bytes=9000000000000000000";
    let server = sandbox.serve_with(&["--rpc-url", &url, "--set", no_room]);
    wait_for_all(server.rpc(), chain.rpc());
    wait_until("the reason is shown", || {
        let page = page(server.rpc(), token);
        let reason = page["asOf"]["reason"].as_str().unwrap_or_default();
        page["asOf"]["complete"] == false && reason.contains("bytes free")
    });
    let stale = page(server.rpc(), token);
    assert_eq!(stale["items"], before["items"], "they stay readable");
    wait_until("readiness says so", || {
        let ready = server.rpc().get("/ready/tables");
        let reasons = ready["reasons"].as_array().cloned().unwrap_or_default();
        reasons.iter().any(|reason| reason["code"] == "tables_replaced")
    });
    let account = format!("0x{:040x}", 1);
    let holdings = server.rpc().get(&format!("{API}/accounts/{account}/holdings"));
    let items = holdings["items"].as_array().expect("a list");
    assert!(!items.is_empty());
    for item in items {
        assert_eq!((&item["complete"], &item["balance"]), (&json!(false), &Value::Null), "{item}");
    }
    let status = server.rpc().get(&format!("{API}/status"));
    for row in status["checkpoints"].as_array().expect("a list") {
        assert_eq!(row["complete"], false, "{row}");
        assert!(row["reason"].as_str().is_some_and(|why| why.contains("replacement 1")), "{row}");
    }
    assert!(server.terminate().success());
    let server = chain.serve(&sandbox);
    wait_for_tables(server.rpc(), chain.rpc());
    wait_until("the tables are those of the new chain", || {
        page(server.rpc(), token)["asOf"]["complete"] == true
    });
    let after = page(server.rpc(), token);
    assert_eq!(hashes(&after["items"]), truth(chain.rpc(), token));
    assert_eq!(after["items"].as_array().map(Vec::len), Some(20));
    let status = server.rpc().get(&format!("{API}/status"));
    for row in status["checkpoints"].as_array().expect("a list") {
        assert_eq!((&row["complete"], &row["reason"]), (&json!(true), &Value::Null), "{row}");
    }
    assert!(server.terminate().success());
}

#[test]
fn a_repair_from_a_node_of_another_chain_is_refused_and_changes_nothing() {
    let mut chain = chain(33, 12, 1);
    let sandbox = Sandbox::with(&SETTINGS);
    let server = chain.serve(&sandbox);
    wait_for_tables(server.rpc(), chain.rpc());
    let head = server.rpc().call("logmill_coverage", json!([]))["finalized"]["number"].clone();
    let logs = |ours: JsonRpc| {
        ours.call("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": head.clone()}]))
    };
    let before = logs(server.rpc());
    assert!(before.as_array().is_some_and(|logs| logs.len() >= 12));
    chain.anvil.stop();
    sandbox.run(&["repair", "999999"]).assert_refused(1, &["above the newest final block"]);
    let asked = sandbox.run(&["repair", "5"]);
    assert!(asked.answer().contains("jobs show repair-31337"), "{}", asked.answer());
    assert!(server.terminate().success());
    assert_eq!(sandbox.count("repair-31337", "done"), 0);
    let other = AnvilChain::new(34);
    other.grow(60);
    let server = other.serve(&sandbox);
    wait_until("the repair is refused", || sandbox.count("repair-31337", "dead") == 1);
    let dead = sandbox
        .run(&["jobs", "list", "repair-31337", "--state", "dead", "--json"])
        .answer()
        .to_owned();
    let hash = |of: JsonRpc| of.call("eth_getBlockByNumber", json!(["0x5", false]))["hash"].clone();
    let (stored, foreign) = (hash(server.rpc()), hash(other.rpc()));
    for hash in [&stored, &foreign] {
        assert!(dead.contains(hash.as_str().expect("a hash")), "{hash} in {dead}");
    }
    assert!(dead.contains("rebuild-from"), "{dead}");
    assert_eq!(logs(server.rpc()), before);
    wait_until("it says that this is another chain", || {
        let error = server.rpc().get("/status")["chains"][0].to_string();
        error.contains("was finalized as") || error.contains("more than")
    });
    assert!(server.terminate().success());
    assert_eq!(sandbox.run(&["verify", "--json"]).json()["damaged"], 0);
    // With the right node the repair succeeds.
    chain.anvil.resume();
    let server = chain.serve(&sandbox);
    sandbox.run(&["repair", "5"]).answer();
    wait_until("it is repaired", || sandbox.count("repair-31337", "done") == 1);
    assert_eq!(logs(server.rpc()), before);
    assert!(server.terminate().success());
}

#[test]
fn a_running_server_carries_out_an_operators_decision() {
    let dead = chain(36, 12, 1);
    let sandbox = Sandbox::with(&SETTINGS);
    let server = dead.serve(&sandbox);
    let token = &dead.contracts[0];
    wait_for_tables(server.rpc(), dead.rpc());
    assert!(server.terminate().success());
    let chain = chain(37, 8, 1_000);
    let server = chain.serve(&sandbox);
    wait_until("it says that this is another chain", || {
        let error = server.rpc().get("/status")["chains"][0].to_string();
        error.contains("was finalized as") || error.contains("more than")
    });
    let resolved = sandbox.run(&["index", "resolve", "rebuild-from", "0"]);
    let message: Vec<&str> = resolved.answer().lines().collect();
    assert!(message[0].starts_with("plan: discard all blocks from 0 on"), "{resolved:?}");
    assert!(message[1].starts_with("done: "), "{resolved:?}");
    assert!(message[2].starts_with("next: let ingest continue with block 0"), "{resolved:?}");
    wait_for_all(server.rpc(), chain.rpc());
    wait_for_tables(server.rpc(), chain.rpc());
    wait_until("the tables are those of the new chain", || {
        let page = page(server.rpc(), token);
        page["asOf"]["complete"] == true && hashes(&page["items"]) == truth(chain.rpc(), token)
    });
    assert!(server.terminate().success());
}

#[test]
fn a_stored_chain_whose_node_comes_late_is_followed_and_derived_once() {
    let mut chain = chain(38, 6, 1);
    // With two stored chains, only a node determines which one is meant.
    let fixture = IndexFixture::new();
    fixture.ingest(&blocks(10));
    let url = chain.rpc().url();
    let serve = || fixture.sandbox.serve_with(&["--rpc-url", &url, "--set", "ingest.poll_ms=30"]);
    // The role of the ingest of the chain, and whether its tables are derived.
    let of_town = |ours: JsonRpc| {
        let status = ours.get("/status");
        let chains = status["chains"].as_array().cloned().unwrap_or_default();
        let chain = chains.into_iter().find(|chain| chain["chain_id"] == 31_337);
        let mut parts = chain.unwrap_or_default()["ingest"].take();
        let leads = parts["derive"]["derivers"]["leads"] == true;
        (parts["ingest"]["role"].take(), leads)
    };
    let is_run = |ours: JsonRpc| of_town(ours) == (json!("writer"), true);
    let server = serve();
    wait_until("it follows and derives", || is_run(server.rpc()));
    assert!(server.terminate().success());
    chain.anvil.stop();
    let server = serve();
    wait_until("it is served without a node", || {
        let (role, leads) = of_town(server.rpc());
        leads && role != "writer"
    });
    chain.anvil.resume();
    wait_until("it follows and derives", || is_run(server.rpc()));
    assert!(server.terminate().success());
}
