//! Stored final blocks are replaced while tables are derived from them: a chain that was reset and is rebuilt, and a
//! repair that meets another chain.
//!
//! Guarantees: what is served as true is of the chain that is followed; everything else says that it is not.

use std::collections::BTreeSet;

use logmill_sim::http::JsonRpc;
use serde_json::{Value, json};

use super::derived::wait_for_tables;
use super::scene::{SETTINGS, Town, wait_for_all};
use crate::process::{Place, wait_until};

const API: &str = "/api/v1/31337";
/// Keccak-256 of `Transfer(address,address,uint256)`.
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// A chain with so many transfers, of amounts from `first` on, all of them final.
fn town(seed: u64, transfers: u64, first: u64) -> Town {
    let town = Town::new(seed);
    for number in 0..transfers {
        town.send(&town.transfer(number % 5 + 1, first + number));
        town.anvil.mine(1);
    }
    town.anvil.mine(12);
    town
}

/// The transactions of the transfers of a token, as the node has them.
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
    let dead = town(31, 30, 1);
    let place = Place::with(&SETTINGS);
    let server = dead.serve(&place);
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
    place.run(&["index", "resolve", "rebuild-from", "0"]).answer();
    // The new chain is shorter, and has the token at the same address.
    let town = town(32, 20, 1_000);
    assert_eq!(&town.contracts[0], token);
    // As long as nothing is derived again, the old rows can be read, and are not said to be true.
    let url = town.rpc().url();
    let no_room = "derive.disk_reserve_bytes=9000000000000000000";
    let server = place.serve_with(&["--rpc-url", &url, "--set", no_room]);
    wait_for_all(server.rpc(), town.rpc());
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
    let server = town.serve(&place);
    wait_for_tables(server.rpc(), town.rpc());
    wait_until("the tables are those of the new chain", || {
        page(server.rpc(), token)["asOf"]["complete"] == true
    });
    let after = page(server.rpc(), token);
    assert_eq!(hashes(&after["items"]), truth(town.rpc(), token));
    assert_eq!(after["items"].as_array().map(Vec::len), Some(20));
    let status = server.rpc().get(&format!("{API}/status"));
    for row in status["checkpoints"].as_array().expect("a list") {
        assert_eq!((&row["complete"], &row["reason"]), (&json!(true), &Value::Null), "{row}");
    }
    assert!(server.terminate().success());
}

#[test]
fn a_repair_that_meets_another_chain_is_refused_and_changes_nothing() {
    let mut town = town(33, 12, 1);
    let place = Place::with(&SETTINGS);
    let server = town.serve(&place);
    wait_for_tables(server.rpc(), town.rpc());
    let head = server.rpc().call("logmill_coverage", json!([]))["finalized"]["number"].clone();
    let logs = |ours: JsonRpc| {
        ours.call("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": head.clone()}]))
    };
    let before = logs(server.rpc());
    assert!(before.as_array().is_some_and(|logs| logs.len() >= 12));
    town.anvil.stop();
    place.run(&["repair", "999999"]).refused(1, &["above the newest final block"]);
    let asked = place.run(&["repair", "5"]);
    assert!(asked.answer().contains("jobs show repair-31337"), "{}", asked.answer());
    assert!(server.terminate().success());
    assert_eq!(place.count("repair-31337", "done"), 0);
    let other = Town::new(34);
    other.grow(60);
    let server = other.serve(&place);
    wait_until("the repair is refused", || place.count("repair-31337", "dead") == 1);
    let dead = place
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
        error.contains("was final as") || error.contains("more than")
    });
    assert!(server.terminate().success());
    assert_eq!(place.run(&["verify", "--json"]).json()["damaged"], 0);
    // With the right node again, the repair is done.
    town.anvil.resume();
    let server = town.serve(&place);
    place.run(&["repair", "5"]).answer();
    wait_until("it is repaired", || place.count("repair-31337", "done") == 1);
    assert_eq!(logs(server.rpc()), before);
    assert!(server.terminate().success());
}
