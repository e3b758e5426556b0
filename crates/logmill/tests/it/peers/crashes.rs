//! A simulated node over HTTP, whose chain is known block by block: crashes at any time, and nodes that lie.
//!
//! Guarantees: in the end exactly the chain is stored, whatever happened before.

use std::time::Duration;

use logmill_chain::sim::rpc::NodeFaults;
use logmill_chain::sim::{Lie, SimChain, SimSettings};
use logmill_sim::http::JsonRpc;
use logmill_sim::node::SimNodeServer;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use super::answers::{assert_same_blocks_but, assert_same_logs};
use super::anvil_chain::{SETTINGS, SplitMix64, assert_linked, hex, wait_for_all};
use crate::process::{Sandbox, Server};

/// Methods that the simulated node lacks.
const LACKS: [&str; 6] = [
    "eth_getBlockTransactionCountByNumber",
    "eth_getBlockTransactionCountByHash",
    "eth_getUncleCountByBlockNumber",
    "eth_getUncleCountByBlockHash",
    "eth_getTransactionByBlockNumberAndIndex",
    "eth_getTransactionByBlockHashAndIndex",
];

/// Nodes that run until this is dropped.
#[derive(Default)]
struct Nodes(Vec<SimNodeServer>);

impl Nodes {
    fn add(&mut self, chain: &SimChain, faults: NodeFaults) {
        let node = SimNodeServer::start(chain);
        node.node().set_faults(faults);
        self.0.push(node);
    }

    fn rpc(&self, at: usize) -> JsonRpc {
        JsonRpc::at(self.0[at].address())
    }

    fn serve(&self, sandbox: &Sandbox) -> Server {
        let urls: Vec<String> = self.0.iter().map(SimNodeServer::url).collect();
        let arguments = urls.iter().flat_map(|url| ["--rpc-url", url.as_str()]);
        sandbox.serve_with(&arguments.collect::<Vec<_>>())
    }
}

fn chain(seed: u64) -> SimChain {
    SimChain::with(SimSettings { seed, finality_lag: Some(12), ..SimSettings::default() })
}

/// A number in a table that a command printed.
fn figure(table: &str, name: &str) -> u64 {
    let row = table.lines().find_map(|line| line.trim().strip_prefix(name));
    let figure = row.and_then(|row| row.trim().parse().ok());
    figure.unwrap_or_else(|| panic!("no {name:?} in {table}"))
}

#[test]
fn whenever_the_server_is_killed_the_chain_is_stored_in_the_end() {
    const ROUNDS: u64 = 14;
    let chain = chain(21);
    chain.grow(260);
    let mut nodes = Nodes::default();
    nodes.add(&chain, NodeFaults { delay: Duration::from_millis(2), ..NodeFaults::default() });
    let sandbox = Sandbox::with(&SETTINGS);
    let mut random = SplitMix64(22);
    for _ in 0..ROUNDS {
        let server = nodes.serve(&sandbox);
        for _ in 0..random.below(4) {
            let depth = random.below(6);
            match random.below(2) {
                0 => drop(chain.grow(random.below(8))),
                _ => drop(chain.reorg(depth, depth + random.below(3)).expect("above final blocks")),
            }
            std::thread::sleep(Duration::from_millis(random.below(250)));
        }
        server.kill();
    }
    chain.grow(1);
    let server = nodes.serve(&sandbox);
    let (ours, node) = (server.rpc(), nodes.rpc(0));
    wait_for_all(ours, node);
    assert_same_blocks_but(ours, node, &LACKS);
    assert!(assert_same_logs(ours, node) > 1_000);
    assert_linked(ours);
    let finalized = chain.heads().finalized.expect("some are final").number;
    let latest = chain.latest();
    let coverage = ours.call("logmill_coverage", json!([]));
    assert_eq!(coverage["covered"], json!([{"from": "0x0", "to": hex(latest.number)}]));
    assert_eq!(coverage["head"]["hash"], json!(latest.hash));
    assert!(server.terminate().success());
    let report = sandbox.run(&["verify", "--json"]).json();
    assert_eq!(report["damaged"], 0, "{report}");
    assert_eq!(report["verified"], finalized + 1, "{report}");
    // The leftovers of crashes become garbage after `index.build_ms`, and then are removed.
    std::thread::sleep(Duration::from_millis(1_100));
    sandbox.run(&["index", "gc"]).answer();
    let left = sandbox.run(&["index", "gc", "--dry-run"]);
    for name in ["orphan chunks", "orphan chunk bytes", "chunks in flight, kept"] {
        assert_eq!(figure(left.answer(), name), 0, "{left:?}");
    }
    let report = sandbox.run(&["verify", "--json"]).json();
    assert_eq!(report["verified"], finalized + 1, "nothing that is needed was deleted: {report}");
}

#[test]
fn nodes_that_lie_or_hang_up_do_no_harm_beside_an_honest_node_and_are_named() {
    let chain = chain(31);
    chain.grow(200);
    let mut nodes = Nodes::default();
    nodes.add(&chain, NodeFaults::default());
    let lie = NodeFaults { lie: Some(Lie::DropLog), lie_every: 3, ..NodeFaults::default() };
    nodes.add(&chain, lie);
    nodes.add(&chain, NodeFaults { fail_every: 3, cut_every: 4, ..NodeFaults::default() });
    let sandbox = Sandbox::with(&SETTINGS);
    let server = nodes.serve(&sandbox);
    let (ours, node) = (server.rpc(), nodes.rpc(0));
    chain.grow(30);
    chain.reorg(5, 7).expect("above what is final");
    wait_for_all(ours, node);
    assert_same_blocks_but(ours, node, &LACKS);
    assert_same_logs(ours, node);
    let status = ours.get("/status");
    let listed = status["chains"][0]["nodes"].as_array().expect("a list");
    let of = |at: usize| {
        let name = nodes.rpc(at).url();
        let found = listed.iter().find(|node| {
            node["name"].as_str().is_some_and(|n| name.contains(n) || n.contains(&name))
        });
        found.cloned().unwrap_or(Value::Null)
    };
    assert!(of(1)["lies"].as_u64() > Some(0), "{status:#}");
    assert_eq!(of(0)["lies"], 0, "{status:#}");
    assert!(of(2)["failures"].as_u64() > Some(0), "{status:#}");
    assert!(server.terminate().success());
    assert_eq!(sandbox.run(&["verify", "--json"]).json()["damaged"], 0);
}

#[test]
fn processes_that_share_a_database_work_together_and_one_takes_over_when_the_other_dies() {
    let chain = chain(41);
    chain.grow(200);
    let mut nodes = Nodes::default();
    nodes.add(&chain, NodeFaults::default());
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let shared = [url.as_str(), "database.schema=logmill_test"];
    let sandbox = Sandbox::with(&[&SETTINGS[..], &shared[..]].concat());
    let (one, two) = (nodes.serve(&sandbox), nodes.serve(&sandbox));
    let node = nodes.rpc(0);
    for _ in 0..3 {
        chain.grow(10);
        chain.reorg(4, 6).expect("above what is final");
        for server in [&one, &two] {
            wait_for_all(server.rpc(), node);
            assert_same_logs(server.rpc(), node);
        }
    }
    // The first server holds the lease.
    one.kill();
    chain.grow(20);
    chain.reorg(3, 5).expect("above what is final");
    wait_for_all(two.rpc(), node);
    assert_same_blocks_but(two.rpc(), node, &LACKS);
    assert_same_logs(two.rpc(), node);
    assert_linked(two.rpc());
    assert!(two.terminate().success());
    assert_eq!(sandbox.run(&["verify", "--json"]).json()["damaged"], 0);
}
