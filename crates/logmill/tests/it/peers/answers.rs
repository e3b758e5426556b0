//! What we answer, and what the node answers that we follow: the same.
//!
//! Where anvil deviates from other nodes, and we do not follow it:
//!
//! - A filter that ends in wildcards asks for logs with at least so many topics. Anvil forgets how many there were.
//! - Its blocks have a `totalDifficulty`, which nodes dropped after proof of work had ended.
//! - Its receipts have a `blockTimestamp` that is no text but a number. Those of logs are as others have them.
//! - Ranges that are reversed, or end beyond the head, are errors. Anvil answers with no logs.

use std::collections::BTreeSet;

use logmill_sim::http::{JsonRpc, quantity};
use serde_json::{Value, json};

use super::scene::{Draw, SETTINGS, Town, assert_linked, call, hex, wait_for_all};
use crate::process::{Place, finish};

/// Everything about every block: the same as the node's.
#[track_caller]
pub(super) fn assert_same_blocks(ours: JsonRpc, node: JsonRpc) {
    assert_same_blocks_but(ours, node, &[]);
}

/// The same, without methods that the node lacks.
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
        assert_eq!(got, without_oddities(expected), "{call:?}");
    }
}

/// What anvil says, without what it alone says.
pub(super) fn without_oddities(mut said: Value) -> Value {
    match &mut said {
        Value::Object(fields) => {
            fields.remove("totalDifficulty");
            fields.retain(|name, value| !(name == "blockTimestamp" && value.is_number()));
            for value in fields.values_mut() {
                *value = without_oddities(value.take());
            }
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|value| *value = without_oddities(value.take()));
        }
        _ => {}
    }
    said
}

/// All logs: the same as the node's.
#[track_caller]
pub(super) fn assert_same_logs(ours: JsonRpc, node: JsonRpc) -> usize {
    let all = json!([{"fromBlock": "earliest", "toBlock": "latest"}]);
    let (got, expected) = (ours.call("eth_getLogs", all.clone()), node.call("eth_getLogs", all));
    assert!(got == expected, "the logs differ");
    expected.as_array().expect("a list").len()
}

/// What is known of the chain, to draw filters from.
struct Known {
    addresses: Vec<Value>,
    topics: [Vec<Value>; 4],
    hashes: Vec<Value>,
    head: u64,
    safe: u64,
    finalized: u64,
}

impl Known {
    fn of(town: &Town) -> Self {
        let node = town.rpc();
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
        let mut addresses: Vec<Value> = town.contracts.iter().map(|text| json!(text)).collect();
        addresses.push(json!(format!("0x{}", "99".repeat(20))));
        let head = node.head();
        let calls = (0..=head).map(|n| call("eth_getBlockByNumber", json!([hex(n), false])));
        let blocks = node.call_all(&calls.collect::<Vec<_>>());
        let hashes = blocks.into_iter().map(|mut block| block["hash"].take()).collect();
        let (safe, finalized) = (tag("safe"), tag("finalized"));
        Self { addresses, topics, hashes, head, safe, finalized }
    }

    /// A filter, and whether it makes sense.
    fn filter(&self, draw: &mut Draw) -> (Value, bool) {
        let mut filter = json!({});
        let mut valid = true;
        if draw.below(8) == 0 {
            filter["blockHash"] = draw.of(&self.hashes).clone();
        } else {
            let (from, to) = (self.end(draw), self.end(draw));
            valid = from.1 <= to.1 && to.1 <= self.head;
            filter["fromBlock"] = from.0;
            filter["toBlock"] = to.0;
        }
        match draw.below(4) {
            0 => {}
            1 => filter["address"] = draw.of(&self.addresses).clone(),
            2 => filter["address"] = some(draw, &self.addresses),
            _ => filter["address"] = json!([]),
        }
        let positions = draw.below(6).min(4);
        let topics = self.topics.iter().take(usize::try_from(positions).expect("small"));
        let topics = topics.map(|known| match draw.below(5) {
            0 | 1 => Value::Null,
            2 => some(draw, known),
            3 => json!([]),
            _ => draw.of(known).clone(),
        });
        filter["topics"] = topics.collect();
        (filter, valid)
    }

    /// An end of a range, as it is written and as a number; often near a border.
    fn end(&self, draw: &mut Draw) -> (Value, u64) {
        match draw.below(10) {
            0 => (json!("earliest"), 0),
            1 => (json!("finalized"), self.finalized),
            2 => (json!("safe"), self.safe),
            3 | 4 => (json!("latest"), self.head),
            5 => {
                let near = self.finalized.saturating_sub(3) + draw.below(14);
                (json!(hex(near)), near)
            }
            _ => {
                let any = draw.below(self.head + 1);
                (json!(hex(any)), any)
            }
        }
    }
}

/// Some of a list.
fn some(draw: &mut Draw, list: &[Value]) -> Value {
    (0..draw.below(4) + 1).map(|_| draw.of(list).clone()).collect()
}

/// What anvil answered, without logs that have fewer topics than the filter has positions.
fn with_arity(mut logs: Value, filter: &Value) -> Value {
    let positions = filter["topics"].as_array().map_or(0, Vec::len);
    let logs_ = logs.as_array_mut().expect("a list");
    logs_.retain(|log| log["topics"].as_array().is_some_and(|topics| topics.len() >= positions));
    logs
}

#[test]
fn every_answer_equals_the_nodes() {
    const FILTERS: usize = 1_500;
    let town = Town::new(1);
    town.grow(150);
    let place = Place::with(&SETTINGS);
    let server = town.serve(&place);
    // Some while it follows, too.
    town.grow(60);
    let (ours, node) = (server.rpc(), town.rpc());
    wait_for_all(ours, node);
    assert!(assert_same_logs(ours, node) > 3_000);
    assert_same_blocks(ours, node);
    assert_linked(ours);
    let known = Known::of(&town);
    let mut draw = Draw(7);
    let filters: Vec<(Value, bool)> = (0..FILTERS).map(|_| known.filter(&mut draw)).collect();
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
    // The draw is such that most filters find something, and some are refused.
    assert!(found > FILTERS / 4 && refused > FILTERS / 10, "{found} found, {refused} refused");
    let (code, said) =
        ours.refusal("eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": hex(known.head + 1)}]));
    assert_eq!((code, &*said), (-32_602, "block range extends beyond current head block"));
    let unknown = format!("0x{}", "77".repeat(32));
    let (code, said) = ours.refusal("eth_getLogs", json!([{"blockHash": unknown}]));
    assert_eq!((code, &*said), (-32_000, "Block not found."));
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
    assert_eq!(built["Burst"], serde_json::from_str::<Value>(super::scene::BURST).expect("JSON"));
}
