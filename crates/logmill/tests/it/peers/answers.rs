//! The server's answers equal those of the node that it follows.
//!
//! Deviations of Anvil from other nodes, which the server does not copy:
//!
//! - A filter that ends in wildcards matches only logs with at least that many topics. Anvil ignores these wildcards.
//! - Ranges that are reversed, or end beyond the head, are errors. Anvil returns no logs.

use std::collections::BTreeSet;

use alloy_primitives::keccak256;
use logmill_sim::http::{JsonRpc, quantity};
use serde_json::{Value, json};

use super::anvil_chain::{
    AnvilChain, SETTINGS, SplitMix64, assert_linked, call, hex, wait_for_all,
};
use crate::process::{Sandbox, finish};

/// Compares everything about every block with the node.
#[track_caller]
pub(super) fn assert_same_blocks(ours: JsonRpc, node: JsonRpc) {
    assert_same_blocks_but(ours, node, &[]);
}

/// The same, except for methods that the node lacks.
#[track_caller]
pub(super) fn assert_same_blocks_but(ours: JsonRpc, node: JsonRpc, lacks: &[&str]) {
    let head = node.head();
    let mut calls = Vec::new();
    let by_number = (0..=head).map(|n| call("eth_getBlockByNumber", json!([hex(n), false])));
    for block in node.call_all(&by_number.collect::<Vec<_>>()) {
        let (number, hash) = (&block["number"], &block["hash"]);
        for full in [true, false] {
            calls.push(call("eth_getBlockByNumber", json!([number, full])));
            calls.push(call("eth_getBlockByHash", json!([hash, full])));
        }
        calls.push(call("eth_getBlockReceipts", json!([number])));
        calls.push(call("eth_getBlockReceipts", json!([hash])));
        calls.push(call("eth_getBlockTransactionCountByNumber", json!([number])));
        calls.push(call("eth_getBlockTransactionCountByHash", json!([hash])));
        calls.push(call("eth_getUncleCountByBlockNumber", json!([number])));
        calls.push(call("eth_getUncleCountByBlockHash", json!([hash])));
        for (at, transaction) in
            block["transactions"].as_array().expect("a list").iter().enumerate()
        {
            let at = hex(at as u64);
            calls.push(call("eth_getTransactionByBlockNumberAndIndex", json!([number, at])));
            calls.push(call("eth_getTransactionByBlockHashAndIndex", json!([hash, at])));
            calls.push(call("eth_getTransactionByHash", json!([transaction])));
            calls.push(call("eth_getTransactionReceipt", json!([transaction])));
        }
    }
    let unknown = format!("0x{}", "77".repeat(32));
    for method in ["eth_getTransactionByHash", "eth_getTransactionReceipt"] {
        calls.push(call(method, json!([unknown])));
    }
    calls.push(call("eth_getBlockByHash", json!([unknown, false])));
    calls.push(call("eth_getBlockByNumber", json!([hex(head + 1), false])));
    for tag in ["latest", "safe", "finalized", "earliest"] {
        calls.push(call("eth_getBlockByNumber", json!([tag, false])));
    }
    calls.retain(|(method, _)| !lacks.contains(&method.as_str()));
    let (got, expected) = (ours.call_all(&calls), node.call_all(&calls));
    for ((call, got), expected) in calls.iter().zip(got).zip(expected) {
        assert_eq!(got, expected, "{call:?}");
    }
}

/// Compares all logs with the node; returns their number.
#[track_caller]
pub(super) fn assert_same_logs(ours: JsonRpc, node: JsonRpc) -> usize {
    let all = json!([{"fromBlock": "earliest", "toBlock": "latest"}]);
    let (got, expected) = (ours.call("eth_getLogs", all.clone()), node.call("eth_getLogs", all));
    assert!(got == expected, "the logs differ");
    expected.as_array().expect("a list").len()
}

/// Values of the chain from which random filters are made.
struct FilterValues {
    addresses: Vec<Value>,
    topics: [Vec<Value>; 4],
    hashes: Vec<Value>,
    head: u64,
    safe: u64,
    finalized: u64,
}

impl FilterValues {
    fn of(chain: &AnvilChain) -> Self {
        let node = chain.rpc();
        let logs =
            node.call("eth_getLogs", json!([{"fromBlock": "earliest", "toBlock": "latest"}]));
        let logs = logs.as_array().expect("a list");
        let mut topics: [Vec<Value>; 4] = Default::default();
        for (at, seen) in topics.iter_mut().enumerate() {
            let text = logs.iter().filter_map(|log| log["topics"][at].as_str());
            let distinct: BTreeSet<&str> = text.collect();
            seen.extend(distinct.into_iter().map(Value::from));
            seen.push(json!(format!("0x{}", "99".repeat(32))));
        }
        let tag =
            |tag: &str| quantity(&node.call("eth_getBlockByNumber", json!([tag, false]))["number"]);
        let mut addresses: Vec<Value> = chain.contracts.iter().map(|text| json!(text)).collect();
        addresses.push(json!(format!("0x{}", "99".repeat(20))));
        let head = node.head();
        let calls = (0..=head).map(|n| call("eth_getBlockByNumber", json!([hex(n), false])));
        let blocks = node.call_all(&calls.collect::<Vec<_>>());
        let hashes = blocks.into_iter().map(|mut block| block["hash"].take()).collect();
        let (safe, finalized) = (tag("safe"), tag("finalized"));
        Self { addresses, topics, hashes, head, safe, finalized }
    }

    /// A random filter, and whether it is valid.
    fn filter(&self, random: &mut SplitMix64) -> (Value, bool) {
        let mut filter = json!({});
        let mut valid = true;
        if random.below(8) == 0 {
            filter["blockHash"] = random.of(&self.hashes).clone();
        } else {
            let (from, to) = (self.end(random), self.end(random));
            valid = from.1 <= to.1 && to.1 <= self.head;
            filter["fromBlock"] = from.0;
            filter["toBlock"] = to.0;
        }
        match random.below(4) {
            0 => {}
            1 => filter["address"] = random.of(&self.addresses).clone(),
            2 => filter["address"] = some(random, &self.addresses),
            _ => filter["address"] = json!([]),
        }
        let positions = random.below(6).min(4);
        let topics = self.topics.iter().take(usize::try_from(positions).expect("small"));
        let topics = topics.map(|known| match random.below(5) {
            0 | 1 => Value::Null,
            2 => some(random, known),
            3 => json!([]),
            _ => random.of(known).clone(),
        });
        filter["topics"] = topics.collect();
        (filter, valid)
    }

    /// A random end of a range, as JSON and as a number; often near a boundary.
    fn end(&self, random: &mut SplitMix64) -> (Value, u64) {
        match random.below(10) {
            0 => (json!("earliest"), 0),
            1 => (json!("finalized"), self.finalized),
            2 => (json!("safe"), self.safe),
            3 | 4 => (json!("latest"), self.head),
            5 => {
                let near = self.finalized.saturating_sub(3) + random.below(14);
                (json!(hex(near)), near)
            }
            _ => {
                let any = random.below(self.head + 1);
                (json!(hex(any)), any)
            }
        }
    }
}

/// One to four random elements of a list, with repetitions.
fn some(random: &mut SplitMix64, list: &[Value]) -> Value {
    (0..random.below(4) + 1).map(|_| random.of(list).clone()).collect()
}

/// Removes the logs that have fewer topics than the filter has positions from an answer of Anvil.
fn with_arity(mut logs: Value, filter: &Value) -> Value {
    let positions = filter["topics"].as_array().map_or(0, Vec::len);
    let logs_ = logs.as_array_mut().expect("a list");
    logs_.retain(|log| log["topics"].as_array().is_some_and(|topics| topics.len() >= positions));
    logs
}

/// Compares raw transactions, fees and passed-on methods with the node.
#[track_caller]
fn assert_same_bytes_and_fees(ours: JsonRpc, node: JsonRpc) {
    let head = node.head();
    for number in head - 20..=head {
        let block = node.call("eth_getBlockByNumber", json!([hex(number), false]));
        for (at, transaction) in
            block["transactions"].as_array().expect("a list").iter().enumerate()
        {
            let at = hex(at as u64);
            for (method, params) in [
                ("debug_getRawTransaction", json!([transaction])),
                ("eth_getRawTransactionByHash", json!([transaction])),
                ("eth_getRawTransactionByBlockHashAndIndex", json!([block["hash"], at])),
                ("eth_getRawTransactionByBlockNumberAndIndex", json!([hex(number), at])),
            ] {
                let raw = ours.call(method, params);
                let bytes = raw.as_str().and_then(|raw| alloy_primitives::hex::decode(raw).ok());
                let hash = keccak256(bytes.expect("bytes")).to_string();
                assert_eq!(json!(hash), *transaction, "{method}");
            }
        }
        let fees = json!(["0x5", hex(number), []]);
        let (got, expected) =
            (ours.call("eth_feeHistory", fees.clone()), node.call("eth_feeHistory", fees));
        for field in ["oldestBlock", "baseFeePerGas"] {
            assert_eq!(got[field], expected[field], "{field} up to block {number}");
        }
    }
    assert_eq!(ours.call("eth_syncing", json!([])), json!(false));
    let account = node.call("eth_accounts", json!([]))[0].clone();
    for block in ["latest", "finalized", "0x5", "0x5"] {
        let params = json!([account, block]);
        assert_eq!(
            ours.call("eth_getBalance", params.clone()),
            node.call("eth_getBalance", params)
        );
    }
}

#[test]
fn every_answer_equals_the_nodes() {
    const FILTERS: usize = 1_500;
    let chain = AnvilChain::new(1);
    chain.grow(150);
    let sandbox = Sandbox::with(&SETTINGS);
    let server = chain.serve(&sandbox);
    // Add more blocks while the server follows.
    chain.grow(60);
    let (ours, node) = (server.rpc(), chain.rpc());
    wait_for_all(ours, node);
    assert!(assert_same_logs(ours, node) > 3_000);
    assert_same_blocks(ours, node);
    assert_linked(ours);
    assert_same_bytes_and_fees(ours, node);
    let values = FilterValues::of(&chain);
    let mut random = SplitMix64(7);
    let filters: Vec<(Value, bool)> = (0..FILTERS).map(|_| values.filter(&mut random)).collect();
    let calls: Vec<_> =
        filters.iter().map(|(filter, _)| call("eth_getLogs", json!([filter]))).collect();
    let (mut found, mut refused) = (0, 0);
    for ((got, expected), (filter, valid)) in
        ours.ask_all(&calls).into_iter().zip(node.ask_all(&calls)).zip(&filters)
    {
        if !valid {
            assert_eq!(got["error"]["code"], -32_602, "{filter}: {got}");
            refused += 1;
            continue;
        }
        let expected = with_arity(expected["result"].clone(), filter);
        assert_eq!(got["result"], expected, "{filter}");
        found += usize::from(expected != json!([]));
    }
    // Many of the random filters must match something, and some must be rejected.
    assert!(found > FILTERS / 4 && refused > FILTERS / 10, "{found} found, {refused} refused");
    let (code, message) =
        ours.refusal("eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": hex(values.head + 1)}]));
    assert_eq!((code, &*message), (-32_602, "block range extends beyond current head block"));
    let unknown = format!("0x{}", "77".repeat(32));
    let (code, message) = ours.refusal("eth_getLogs", json!([{"blockHash": unknown}]));
    assert_eq!((code, &*message), (-32_000, "Block not found."));
}

#[test]
fn the_contracts_of_the_tests_are_the_builds_of_their_sources() {
    let root = logmill_sim::workspace_root();
    let script = root.join("tools/contracts.sh");
    let built = finish(std::process::Command::new(script).arg("--print")).json();
    let folder = root.join("crates/logmill/tests/contracts");
    for (name, build) in built.as_object().expect("a build of every contract") {
        let stored = std::fs::read_to_string(folder.join(format!("{name}.json")));
        let stored: Value = serde_json::from_str(&stored.expect("a build")).expect("JSON");
        assert!(stored == *build, "tools/contracts.sh makes another build of {name}");
    }
    assert_eq!(
        built["Burst"],
        serde_json::from_str::<Value>(super::anvil_chain::BURST).expect("JSON")
    );
}
