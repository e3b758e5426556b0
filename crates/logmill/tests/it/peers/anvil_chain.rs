//! A node with contracts that emit many logs, and a server that follows it.
//!
//! Guarantees: cells, pieces and chunks are small, so that few blocks fill sealed chunks, a tail and a tip; a seed
//! determines the chain, except for block times. Leaves to others: the comparisons.

use std::cell::Cell;

use alloy_primitives::keccak256;
use logmill_sim::anvil::{Anvil, transaction};
use logmill_sim::http::{JsonRpc, quantity};
use serde_json::{Value, json};

use crate::process::{Sandbox, Server, WAIT_MAX, wait_until};

/// Small sizes and short intervals.
pub(super) const SETTINGS: [&str; 13] = [
    // No test simulates a power failure.
    "database.durability=relaxed",
    "index.cell_blocks=32",
    "index.piece_logs=200",
    "index.chunk_logs=2000",
    "index.commit_blocks=8",
    "index.lease_ms=1000",
    "index.build_ms=1000",
    "work.lease_ms=1000",
    "work.slow_poll_ms=200",
    "ingest.poll_ms=30",
    "ingest.error_wait_ms=100",
    "ingest.history_batch_size=8",
    "log.level=info",
];

/// Compiled from `tests/contracts/Burst.sol`.
pub(super) const BURST: &str = include_str!("../../contracts/Burst.json");

pub(super) struct AnvilChain {
    pub(super) anvil: Anvil,
    pub(super) accounts: Vec<String>,
    pub(super) contracts: Vec<String>,
    seed: Cell<u64>,
}

impl AnvilChain {
    /// A fresh chain with three contracts.
    pub(super) fn new(seed: u64) -> Self {
        let anvil = Anvil::start();
        let accounts = anvil.accounts();
        let build: Value = serde_json::from_str(BURST).expect("a build");
        let code = build["bytecode"].as_str().expect("the code");
        let sent: Vec<String> =
            accounts.iter().take(3).map(|from| anvil.send(from, None, code)).collect();
        anvil.mine(1);
        let contract = |hash: String| {
            let receipt = anvil.rpc().call("eth_getTransactionReceipt", json!([hash]));
            receipt["contractAddress"].as_str().expect("a contract").to_owned()
        };
        let contracts = sent.into_iter().map(contract).collect();
        Self { accounts, contracts, seed: Cell::new(seed), anvil }
    }

    pub(super) fn rpc(&self) -> JsonRpc {
        self.anvil.rpc()
    }

    fn random(&self) -> u64 {
        self.seed.set(self.seed.get() + 1);
        SplitMix64(self.seed.get()).next()
    }

    /// A transaction that emits `logs` logs.
    pub(super) fn burst(&self, logs: u64) -> Value {
        let number = self.random();
        let from = &self.accounts[index_below(number, self.accounts.len())];
        let to = &self.contracts[index_below(number >> 16, self.contracts.len())];
        transaction(from, Some(to), &calldata("burst(uint256,uint256)", &[logs, number]))
    }

    /// A transfer of the first contract's token, from the first account to the address `to`.
    pub(super) fn transfer(&self, to: u64, value: u64) -> Value {
        let data = calldata("transfer(address,uint256)", &[to, value]);
        transaction(&self.accounts[0], Some(&self.contracts[0]), &data)
    }

    /// Sends a transaction; returns its hash.
    pub(super) fn send(&self, transaction: &Value) -> String {
        let sent = self.rpc().call("eth_sendTransaction", json!([transaction]));
        sent.as_str().expect("a hash").to_owned()
    }

    /// Adds blocks, most with bursts of logs, some empty, some with transactions that fail.
    pub(super) fn grow(&self, blocks: u64) {
        for _ in 0..blocks {
            let number = self.random();
            let calls: Vec<(String, Value)> = (0..number % 4)
                .map(|more| {
                    let mut call = self.burst((number >> 8) % 30 + more);
                    if (number >> 16).is_multiple_of(11) {
                        call["data"] = json!(calldata("fail()", &[]));
                    }
                    ("eth_sendTransaction".to_owned(), json!([call]))
                })
                .collect();
            self.rpc().call_all(&calls);
            self.anvil.mine(1);
        }
    }

    /// Starts a server that follows this node.
    pub(super) fn serve(&self, index_below: &Sandbox) -> Server {
        index_below.serve_with(&["--rpc-url", &self.rpc().url()])
    }
}

/// Waits until the server has all blocks of the node.
#[track_caller]
pub(super) fn wait_for_all(ours: JsonRpc, node: JsonRpc) {
    let mut last = Value::Null;
    let mut seen = || {
        let coverage = ours.call("logmill_coverage", json!([]));
        let at = |tag: &str| node.call("eth_getBlockByNumber", json!([tag, false]))["hash"].take();
        let same = coverage["head"]["hash"] == at("latest")
            && coverage["finalized"]["hash"] == at("finalized")
            && coverage["safe"]["hash"] == at("safe")
            && coverage["complete"] == true;
        last = coverage;
        same
    };
    let end = std::time::Instant::now() + WAIT_MAX;
    while !seen() {
        if std::time::Instant::now() > end {
            panic!("never caught up: {last}, {}", ours.get("/status"));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Waits until the server has the newest block of a node.
#[track_caller]
pub(super) fn wait_for_head(ours: JsonRpc, node: JsonRpc) {
    wait_until("the same head", || {
        let latest = |of: JsonRpc| of.ask("eth_getBlockByNumber", &json!(["latest", false])).ok();
        let hash = |answer: Option<Value>| answer.map(|answer| answer["result"]["hash"].clone());
        let ours = hash(latest(ours));
        ours.as_ref().is_some_and(Value::is_string) && ours == hash(latest(node))
    });
}

/// Checks that every block links to the one below it.
#[track_caller]
pub(super) fn assert_linked(ours: JsonRpc) {
    let head = ours.head();
    let calls = (0..=head).map(|n| call("eth_getBlockByNumber", json!([hex(n), false])));
    let calls: Vec<_> = calls.collect();
    // Each call of a batch has its own view, so repeat the batch until two in a row are equal.
    let mut blocks = ours.call_all(&calls);
    wait_until("the same twice", || {
        let again = ours.call_all(&calls);
        std::mem::replace(&mut blocks, again) == blocks
    });
    for (n, pair) in blocks.windows(2).enumerate() {
        assert_eq!(pair[0]["hash"], pair[1]["parentHash"], "block {} links", n + 1);
        assert_eq!(quantity(&pair[0]["number"]), n as u64);
    }
}

pub(super) fn call(method: &str, params: Value) -> (String, Value) {
    (method.to_owned(), params)
}

pub(super) fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// Calldata with numbers as arguments.
pub(super) fn calldata(signature: &str, arguments: &[u64]) -> String {
    let selector = keccak256(signature);
    let mut data = format!("0x{}", alloy_primitives::hex::encode(&selector[..4]));
    for argument in arguments {
        data.push_str(&format!("{argument:064x}"));
    }
    data
}

fn index_below(number: u64, among: usize) -> usize {
    usize::try_from(number).expect("64 bits") % among
}

/// Numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[index_below(self.next(), list.len())]
    }
}
