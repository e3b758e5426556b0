//! End to end: a node, a server, its tables and its API; holdings equal what the contracts report.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use logmill_sim::http::{JsonRpc, quantity};
use serde_json::{Value, json};

use super::anvil_chain::{SETTINGS, SplitMix64, hex, wait_for_all};
use super::market::{COLLECTOR, HOLDERS, ITEMS, Market, WETH, word_of};
use crate::process::{Sandbox, wait_until};

const API: &str = "/api/v1/31337";

/// Waits until all stored blocks are derived, tip included.
pub(super) fn wait_for_tables(ours: JsonRpc, node: JsonRpc) {
    wait_for_all(ours, node);
    wait_until("everything is derived", || {
        let status = ours.get(&format!("{API}/status"));
        let head = status["head"]["number"].as_u64();
        let rows = status["checkpoints"].as_array().cloned().unwrap_or_default();
        let newest = |row: &Value| {
            let covered = row["covered"].as_array().and_then(|all| all.last()).cloned();
            let done = covered.and_then(|last| last["to"].as_u64());
            row["tip"].as_u64().or(done)
        };
        let done = |row: &Value| row["missing"] == 0 && newest(row) == head;
        status["head"]["number"] == node.head() && rows.len() > 10 && rows.iter().all(done)
    });
}

fn holders(market: &Market) -> Vec<Address> {
    let numbered = (1..=HOLDERS).map(|holder| Address::from_word(U256::from(holder).into()));
    let persons = market.accounts.iter().map(|text| text.parse().expect("an address"));
    numbered.chain(persons).chain([COLLECTOR.parse().expect("an address")]).collect()
}

/// Compares holdings, owners and quantities with the contracts, for every holder.
fn check(market: &Market, ours: JsonRpc) {
    for holder in holders(market) {
        let page = ours.get(&format!("{API}/accounts/{holder}/holdings?limit=100"));
        let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
        for token in [&*market.coin, WETH] {
            let balance = market.ask(token, "balanceOf(address)", &[word_of(holder)]);
            let same = |item: &&Value| {
                item["token"].as_str().is_some_and(|one| one.eq_ignore_ascii_case(token))
            };
            let ours = items.iter().find(same);
            let shown = ours.map_or(json!("0"), |item| item["balance"].clone());
            assert_eq!(shown, json!(balance.to_string()), "{holder} of {token}: {page}");
            assert!(ours.is_none_or(|item| item["complete"] == true && item["negative"] == false));
        }
    }
    for id in 1..=ITEMS {
        let owner = market.ask(&market.deed, "ownerOf(uint256)", &[U256::from(id)]);
        let owner = Address::from_word(owner.into());
        let path = format!("{API}/collections/{}/items/{id}", market.deed);
        let (status, text) =
            logmill_sim::http::request(ours.address(), "GET", &path, "").expect("an answer");
        let item: Value = serde_json::from_str(&text).expect("JSON");
        if status == 404 {
            assert_eq!(owner, Address::ZERO, "deed {id} was never there: {item}");
            continue;
        }
        let shown = item["owner"].as_str().and_then(|text| text.parse::<Address>().ok());
        assert_eq!(shown.unwrap_or(Address::ZERO), owner, "deed {id}: {item}");
    }
}

/// Checks that the newest transfer of the coin equals the node's: its transaction by hash, and the first entry of the
/// token's transfers.
fn check_newest_transfer(market: &Market, ours: JsonRpc) {
    let (node, coin) = (market.anvil.rpc(), &market.coin);
    let transfer = alloy_primitives::keccak256("Transfer(address,address,uint256)");
    let from = hex(node.head().saturating_sub(5));
    let filter = json!({"address": coin, "topics": [transfer], "fromBlock": from});
    let logs = node.call("eth_getLogs", json!([filter]));
    let log = logs.as_array().and_then(|logs| logs.last()).expect("the newest blocks have some");
    let hash = log["transactionHash"].as_str().expect("a hash");
    let found = ours.get(&format!("{API}/transactions/{hash}"));
    let position = (&found["hash"], &found["blockNumber"], &found["blockHash"]);
    let number = json!(quantity(&log["blockNumber"]));
    assert_eq!(position, (&json!(hash), &number, &log["blockHash"]), "{found}");
    assert_eq!((&found["derived"], &found["success"]), (&json!(true), &json!(true)), "{found}");
    let page = ours.get(&format!("{API}/tokens/{coin}/transfers?limit=1"));
    let newest = &page["items"][0];
    let position = (&newest["transactionHash"], &newest["logIndex"]);
    assert_eq!(position, (&json!(hash), &json!(quantity(&log["logIndex"]))), "{page}");
    let word = |value: &Value| value.as_str().and_then(|text| text.parse::<U256>().ok());
    let amount = newest["amount"].as_str().and_then(|text| U256::from_str_radix(text, 10).ok());
    assert_eq!(amount, word(&log["data"]), "{page}");
    for (end, topic) in [("from", 1), ("to", 2)] {
        let address = newest[end].as_str().and_then(|text| text.parse::<Address>().ok());
        assert_eq!(address.map(word_of), word(&log["topics"][topic]), "{page}");
    }
}

#[test]
fn holdings_over_http_equal_those_of_the_contracts_through_kills_reorgs_and_rederiving() {
    let market = Market::new();
    market.grow(10, 1);
    let sandbox = Sandbox::with(&SETTINGS);
    let serve = || sandbox.serve_with(&["--rpc-url", &market.anvil.rpc().url()]);
    let mut random = SplitMix64(5);
    for round in 0..4 {
        let server = serve();
        std::thread::sleep(Duration::from_millis(random.below(1_200)));
        if round == 2 {
            market.anvil.rollback(3);
            market.grow(4, 7);
        }
        server.kill();
        market.grow(1, 10 + round);
    }
    let server = serve();
    wait_for_tables(server.rpc(), market.anvil.rpc());
    check(&market, server.rpc());
    check_newest_transfer(&market, server.rpc());
    market.anvil.rollback(5);
    market.grow(7, 2);
    wait_for_tables(server.rpc(), market.anvil.rpc());
    check(&market, server.rpc());
    check_newest_transfer(&market, server.rpc());
    let ended = sandbox.run(&["rederive", "ft_holdings_worker"]);
    assert!(ended.answer().contains("now serves the rebuilt tables"), "{}", ended.answer());
    sandbox.run(&["rederive", "no_worker"]).assert_refused(2, &["no_worker", "token_worker"]);
    wait_for_tables(server.rpc(), market.anvil.rpc());
    check(&market, server.rpc());
    assert!(server.terminate().success());
    // Without a running server, the command derives the tables itself.
    let ended = sandbox.run(&["rederive", "token_worker"]);
    assert!(ended.answer().contains("now serves the rebuilt tables"), "{}", ended.answer());
    let server = serve();
    wait_for_tables(server.rpc(), market.anvil.rpc());
    check(&market, server.rpc());
    let token = server.rpc().get(&format!("{API}/tokens/{}", market.coin));
    let supply = market.ask(&market.coin, "totalSupply()", &[]);
    let amount = |name: &str| token[name].as_str().and_then(|text| text.parse::<U256>().ok());
    let ours = amount("minted").zip(amount("burned")).map(|(minted, burned)| minted - burned);
    assert_eq!(ours, Some(supply), "{token}");
    assert!(server.terminate().success());
}
