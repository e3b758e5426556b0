//! The whole way: a node, a server, its tables, its API; what it says of holdings is what the contracts say.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use logmill_sim::http::JsonRpc;
use serde_json::{Value, json};

use super::market::{COLLECTOR, HOLDERS, ITEMS, Market, WETH, word_of};
use super::scene::{Draw, SETTINGS, wait_for_all};
use crate::process::{Place, wait_until};

const API: &str = "/api/v1/31337";

/// Waits until everything that is stored is derived, tip included.
pub(super) fn wait_for_tables(ours: JsonRpc, node: JsonRpc) {
    wait_for_all(ours, node);
    wait_until("everything is derived", || {
        let status = ours.get(&format!("{API}/status"));
        let head = status["head"]["number"].as_u64();
        let rows = status["checkpoints"].as_array().cloned().unwrap_or_default();
        let newest = |row: &Value| {
            let covered = row["covered"].as_array().and_then(|all| all.last()).cloned();
            let done = covered.and_then(|last| last["end"].as_u64()).map(|end| end - 1);
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

#[test]
fn holdings_over_http_are_what_the_contracts_say_through_kills_reorgs_and_deriving_anew() {
    let market = Market::new();
    market.grow(10, 1);
    let place = Place::with(&SETTINGS);
    let serve = || place.serve_with(&["--rpc-url", &market.anvil.rpc().url()]);
    let mut draw = Draw(5);
    for round in 0..4 {
        let server = serve();
        std::thread::sleep(Duration::from_millis(draw.below(1_200)));
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
    market.anvil.rollback(5);
    market.grow(7, 2);
    wait_for_tables(server.rpc(), market.anvil.rpc());
    check(&market, server.rpc());
    let ended = place.run(&["rederive", "ft_holdings_worker"]);
    assert!(ended.answer().contains("serves what was derived anew"), "{}", ended.answer());
    place.run(&["rederive", "no_worker"]).refused(2, &["no_worker", "token_worker"]);
    wait_for_tables(server.rpc(), market.anvil.rpc());
    check(&market, server.rpc());
    assert!(server.terminate().success());
    // Without a server it is done at once.
    let ended = place.run(&["rederive", "token_worker"]);
    assert!(ended.answer().contains("serves what was derived anew"), "{}", ended.answer());
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
