//! Several chains in one process: each is stored, derived and served separately, and a chain without its node does not
//! affect the others.

use logmill_chain::sim::{Shape, SimChain, SimSettings};
use logmill_sim::failing_sync_shim;
use logmill_sim::http::request;
use logmill_sim::node::{SimNodeServer, grown, sparse};
use serde_json::{Value, json};

use crate::process::{LOGMILL, Sandbox, Server, command, wait_until};

const QUICK: [&str; 5] = [
    "database.durability=relaxed",
    "index.cell_blocks=16",
    "ingest.poll_ms=30",
    "ingest.error_wait_ms=200",
    "ready.head_seen_within_ms=2000",
];

fn chain(chain_id: u64, seed: u64, blocks: u64) -> SimChain {
    grown(SimSettings { chain_id, ..sparse(seed, 5) }, blocks)
}

/// Calls a method of one chain.
fn call(server: &Server, chain_id: u64, method: &str, params: &Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let to = server.rpc().address();
    let (status, body) =
        request(to, "POST", &format!("/rpc/{chain_id}"), &body).expect("an answer");
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    answer["result"].clone()
}

fn is_served(server: &Server, chain: &SimChain) -> bool {
    let (id, latest) = (chain.settings().chain_id, chain.latest());
    let block = call(server, id, "eth_getBlockByNumber", &json!(["latest", false]));
    block["hash"] == json!(latest.hash)
}

/// Whether all blocks of a chain are derived, from the first.
fn is_derived(server: &Server, chain: &SimChain) -> bool {
    let path = format!("/api/v1/{}/tokens", chain.settings().chain_id);
    let (_, body) = request(server.rpc().address(), "GET", &path, "").expect("an answer");
    let tokens: Value = serde_json::from_str(&body).unwrap_or_default();
    let covered = json!([{"from": 0, "to": chain.latest().number}]);
    tokens["asOf"]["covered"] == covered
        && tokens["items"].as_array().is_some_and(|all| !all.is_empty())
}

/// Checks that exactly the logs of the chain are served.
fn compare(server: &Server, chain: &SimChain) {
    let id = chain.settings().chain_id;
    let logs = call(server, id, "eth_getLogs", &json!([{"fromBlock": "0x0", "toBlock": "latest"}]));
    let served: Vec<&Value> =
        logs.as_array().expect("logs").iter().map(|log| &log["blockHash"]).collect();
    let mut expected = Vec::new();
    for number in 0..=chain.latest().number {
        let block = chain.block(number).expect("a block");
        expected.extend(block.logs().map(|_| json!(chain.at(number).expect("a block").hash)));
    }
    assert!(!expected.is_empty());
    assert_eq!(served, expected.iter().collect::<Vec<_>>(), "chain {id}");
}

/// Checks that every metric of a chain is labelled with the chain, and counts only its blocks.
fn compare_metrics(server: &Server, chains: &[&SimChain]) {
    const OF_CHAINS: [&str; 4] =
        ["log_index_", "logmill_forward_", "logmill_history_", "logmill_audit"];
    let text = || request(server.rpc().address(), "GET", "/metrics", "").expect("an answer").1;
    let value = |text: &str, name: &str, chain: u64| -> Option<u64> {
        let start = format!("{name}{{chain=\"{chain}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
    };
    for chain in chains {
        // Blocks are final up to a fixed distance from the newest, and every block was stored once.
        let id = chain.settings().chain_id;
        let all = chain.latest().number + 1;
        wait_until("every block is counted for its chain", || {
            let text = text();
            let [forward, history] =
                ["logmill_forward_blocks_total", "logmill_history_blocks_total"]
                    .map(|name| value(&text, name, id).unwrap_or(0));
            forward + history >= all && value(&text, "log_index_tail_blocks", id).is_some()
        });
    }
    let text = text();
    for line in text.lines().filter(|line| OF_CHAINS.iter().any(|name| line.starts_with(name))) {
        let is_named =
            |chain: &&SimChain| line.contains(&format!("chain=\"{}\"", chain.settings().chain_id));
        assert!(chains.iter().any(is_named), "{line}");
    }
}

#[test]
fn several_chains_are_followed_by_one_process_and_none_waits_for_another() {
    let (first, second) = (chain(1_337, 5, 60), chain(4_242, 6, 40));
    let nodes = [SimNodeServer::start(&first), SimNodeServer::start(&second)];
    let first_entry = format!(r#"{{ id = 1337, rpc_urls = "{}" }}"#, nodes[0].url());
    let second_entry = format!(
        r#"{{ id = 4242, rpc_urls = "{}", ingest = {{ history_batch_size = 7 }} }}"#,
        nodes[1].url(),
    );
    let list = format!("chains=[{first_entry}, {second_entry}]");
    let sandbox = Sandbox::with(&[&QUICK[..], &[&list]].concat());
    let message = sandbox.run(&["preflight"]);
    assert!(
        message.answer().contains("chain 1337") && message.answer().contains("chain 4242"),
        "{message:?}"
    );
    let server = sandbox.serve();
    for chain in [&first, &second] {
        wait_until("both are stored and derived", || {
            is_served(&server, chain) && is_derived(&server, chain)
        });
        compare(&server, chain);
    }
    compare_metrics(&server, &[&first, &second]);
    server.kill();

    // Without one node, the other chain is still followed, and all stored blocks are served.
    let server = sandbox.serve();
    let [gone, _stays] = nodes;
    drop(gone);
    second.grow(9);
    wait_until("the other goes on", || is_served(&server, &second));
    compare(&server, &second);
    compare(&server, &first);
    wait_until("it is message which is away", || {
        let (status, body) = request(server.rpc().address(), "GET", "/ready/rpc", "").expect("it");
        status == 503 && body.contains("node_silent") && body.contains("1337")
    });
    assert!(server.terminate().success());
}

#[test]
fn a_node_of_another_chain_than_its_entry_is_refused() {
    let chain = chain(1_337, 5, 10);
    let node = SimNodeServer::start(&chain);
    let list = format!(r#"chains=[{{ id = 7, rpc_urls = "{}" }}]"#, node.url());
    let sandbox = Sandbox::with(&[&QUICK[..], &[&list]].concat());
    sandbox.run(&["run"]).assert_refused(1, &["1337", "7"]);
}

/// How long a commit of the log index takes on the slow disk: far longer than the rest of it.
const SYNC_MS: u64 = 50;

/// A server on a disk that syncs the log index slowly, so that everything waits for the thread that writes it.
fn serve_on_slow_disk(sandbox: &Sandbox, settings: &[&str]) -> Server {
    let mut run = command(LOGMILL, sandbox.root());
    run.args(["run", "--data"]).arg(sandbox.data());
    for setting in QUICK.iter().filter(|setting| !setting.starts_with("database.")).chain(settings)
    {
        run.args(["--set", setting]);
    }
    run.env("LD_PRELOAD", failing_sync_shim(sandbox.root()));
    run.env("LOGMILL_SLOW_FILE", "index.db-wal").env("LOGMILL_SYNC_MS", SYNC_MS.to_string());
    Server::start(&mut run)
}

/// Number of commits of the log index, as its sidecar has it: the higher of its two slots.
fn commits(sandbox: &Sandbox) -> u64 {
    let bytes = std::fs::read(sandbox.data().join("index.db-state")).expect("a sidecar");
    let slots = [0, 4_096].into_iter().filter_map(|at| bytes.get(at + 24..at + 32));
    slots.map(|slot| u64::from_le_bytes(slot.try_into().expect("8 bytes"))).max().expect("a slot")
}

/// Number of blocks of history of a chain that were fetched.
fn fetched(server: &Server, chain_id: u64) -> u64 {
    let (_, metrics) = request(server.rpc().address(), "GET", "/metrics", "").expect("an answer");
    let start = format!("logmill_history_blocks_total{{chain=\"{chain_id}\"}} ");
    let found = metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok());
    found.unwrap_or(0)
}

/// Many workers of one chain have fetched a block of history, and each of them waits for a commit that announces its
/// chunk. Blocks of another chain are made one by one, each after the one before is served. In the order of arrival
/// each of their writes would wait for all those commits; in turn it waits for one.
#[test]
fn a_chain_that_fills_its_history_does_not_hold_up_another() {
    const WORKERS: u64 = 250;
    const BLOCKS: u64 = 3;
    let shape = Shape { transactions: 1, logs: 1, ..Shape::sparse() };
    let of = |chain_id: u64, blocks: u64| {
        grown(SimSettings { shape, chain_id, ..sparse(chain_id, 5) }, blocks)
    };
    let (large, small) = (of(1_337, 3 * WORKERS), of(4_242, 8));
    let nodes = [SimNodeServer::start(&large), SimNodeServer::start(&small)];
    let entry = |id: u64, url: String| format!(r#"{{ id = {id}, rpc_urls = "{url}" }}"#);
    let list =
        format!("chains=[{}, {}]", entry(1_337, nodes[0].url()), entry(4_242, nodes[1].url()));
    let workers = format!("ingest.history_worker_count={WORKERS}");
    let busy = ["index.cell_blocks=1", "ingest.raw_only=true", &workers, &list];
    let sandbox = Sandbox::with(&[]);
    let server = serve_on_slow_disk(&sandbox, &busy);
    wait_until("both are followed, and many workers of one have fetched their block", || {
        is_served(&server, &small) && fetched(&server, 1_337) >= WORKERS * 4 / 5
    });
    let before = commits(&sandbox);
    for _ in 0..BLOCKS {
        small.grow(1);
        wait_until("it is served", || is_served(&server, &small));
    }
    let meanwhile = commits(&sandbox) - before;
    println!("{meanwhile} commits while {BLOCKS} blocks of the other chain were stored");
    // In the order of arrival it would wait for almost all: about three times the number of workers.
    assert!(meanwhile < WORKERS * 3 / 2, "the other chain waited for {meanwhile} commits");
    server.kill();
}
