//! Usage of a chain: the earnings of integrators are metered once from their events, without removed blocks.

use std::collections::BTreeMap;

use alloy_primitives::U256;
use logmill_sim::http::JsonRpc;
use serde_json::Value;

use super::anvil_chain::SETTINGS;
use super::derived::wait_for_tables;
use super::market::{COLLECTOR, Market};
use crate::process::{Sandbox, wait_until};

pub(super) const EVENTS: &str =
    r#"meter.events={ "fees.collected" = { op = "sum", dimensions = ["token"] } }"#;
pub(super) const RULES: &str = "meter.rules=[{ name = \"fees\", event_type = \"fees.collected\", \
    event = \"event FeesCollected(address indexed token, address indexed integrator, \
    uint256 integratorFee, uint256 lifiFee)\", \
    contracts = [\"0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9\"], \
    customer = \"integrator\", value = \"integratorFee\", dimensions = { token = \"token\" } }]";

/// Sums by integrator and token.
pub(super) type Sums = BTreeMap<(String, String), U256>;

fn number(value: &Value) -> U256 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_lowercase()
}

/// The sums of the fees table, tip included.
fn collected(ours: JsonRpc) -> Sums {
    let page = ours.get("/fees/summary?period=all");
    let rows = page["data"].as_array().unwrap_or_else(|| panic!("{page}"));
    let sum = |row: &Value| {
        ((text(&row["eventIntegrator"]), text(&row["token"])), number(&row["integratorFee"]))
    };
    rows.iter().map(sum).filter(|(_, sum)| !sum.is_zero()).collect()
}

/// The final and the provisional sums of the meter.
pub(super) fn metered(ours: JsonRpc) -> (Sums, Sums) {
    let path = "/meters/query?eventType=fees.collected&from=2017-01-01T00:00:00Z\
                &to=2100-01-01T00:00:00Z&groupBy=customerId&groupBy=token";
    sums_of(&ours.get(path))
}

/// The final and the provisional sums of an answer.
pub(super) fn sums_of(page: &Value) -> (Sums, Sums) {
    let rows = page["data"].as_array().unwrap_or_else(|| panic!("{page}"));
    let (mut all, mut beside) = (Sums::new(), Sums::new());
    for row in rows {
        let key = (text(&row["group"]["customerId"]), text(&row["group"]["token"]));
        for (sums, value) in
            [(&mut all, &row["valueExact"]), (&mut beside, &row["provisional"]["valueExact"])]
        {
            if !number(value).is_zero() {
                sums.insert(key.clone(), number(value));
            }
        }
    }
    (all, beside)
}

pub(super) fn added(one: &Sums, other: &Sums) -> Sums {
    let mut all = one.clone();
    for (key, value) in other {
        *all.entry(key.clone()).or_default() += *value;
    }
    all
}

#[test]
fn what_integrators_earn_is_metered_from_the_chain_through_kills_and_reorgs() {
    let market = Market::new();
    market.grow(6, 1);
    let settings = [&SETTINGS[..], &[EVENTS, RULES]].concat();
    let sandbox = Sandbox::with(&settings);
    let serve = || sandbox.serve_with(&["--rpc-url", &market.anvil.rpc().url()]);
    let server = serve();
    let wait = |ours: JsonRpc| {
        wait_for_tables(ours, market.anvil.rpc());
        wait_until("all usage is relayed", || {
            let (all, beside) = metered(ours);
            added(&all, &beside) == collected(ours)
        });
    };
    wait(server.rpc());
    assert!(!collected(server.rpc()).is_empty(), "{COLLECTOR} collected nothing");
    server.kill();
    market.anvil.rollback(3);
    market.grow(4, 7);
    let server = serve();
    wait(server.rpc());
    market.anvil.rollback(2);
    market.grow(3, 9);
    // Mine until the last usage is final.
    market.anvil.rpc().call("anvil_mine", serde_json::json!(["0x50"]));
    wait(server.rpc());
    wait_until("all usage is recorded", || metered(server.rpc()).1.is_empty());
    assert_eq!(metered(server.rpc()), (collected(server.rpc()), Sums::new()));
    assert!(server.terminate().success());
    let recounted: Value =
        serde_json::from_str(sandbox.run(&["meter", "recount", "--json"]).answer()).expect("JSON");
    assert!(recounted["wrong"] == 0 && recounted["events"].as_u64() > Some(0), "{recounted}");
}

/// The reasons why usage is incomplete, in the server's answer.
fn incomplete(ours: JsonRpc) -> Vec<String> {
    let page = ours.get(
        "/meters/query?eventType=fees.collected&from=2017-01-01T00:00:00Z&to=2100-01-01T00:00:00Z",
    );
    let why: Vec<String> =
        serde_json::from_value(page["provisionalIncomplete"].clone()).expect("a list");
    assert_eq!(page["provisionalComplete"] == true, why.is_empty(), "{page}");
    why
}

#[test]
fn usage_is_incomplete_until_a_process_that_was_killed_has_seen_the_head_again() {
    let market = Market::new();
    market.grow(4, 1);
    let rules = RULES.replace("name = \"fees\",", "name = \"fees\", chains = [31337],");
    let settings = [&SETTINGS[..], &[EVENTS, &rules, "chain.id=31337"]].concat();
    let sandbox = Sandbox::with(&settings);
    let server = sandbox.serve_with(&["--rpc-url", &market.anvil.rpc().url()]);
    wait_until("all usage is there", || incomplete(server.rpc()).is_empty());
    server.kill();
    // Without its node, the server cannot know about new blocks, even if it saw the head very recently.
    let dead = "http://127.0.0.1:1";
    let server = sandbox.serve_with(&["--rpc-url", dead]);
    for _ in 0..50 {
        let why = incomplete(server.rpc());
        assert!(why.iter().any(|why| why.contains("has not been seen yet")), "{why:?}");
    }
    server.kill();
    // Rules for a chain of which this process stores nothing.
    let elsewhere = rules.replace("[31337]", "[31337, 5]");
    let sandbox = Sandbox::with(&[&SETTINGS[..], &[EVENTS, &elsewhere]].concat());
    let server = sandbox.serve_with(&["--rpc-url", &market.anvil.rpc().url()]);
    wait_until("only what is unknown is missing", || {
        incomplete(server.rpc()) == ["chain 5: this process has no blocks of it"]
    });
}
