//! `logmill collect` as a process, against a simulated node whose events are known.

use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256, U256};
use logmill_chain::sim::action::{DEPOSIT, FEES_COLLECTED, WITHDRAWAL};
use logmill_chain::sim::rpc::NodeFaults;
use logmill_chain::sim::{FEE_COLLECTOR, Shape, SimSettings, WETH};
use logmill_sim::http::{JsonRpc, request};
use logmill_sim::node::{SimNodeServer, grown, sparse};
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use crate::process::{LOGMILL, Sandbox, Server, WAIT_MAX, command, finish, wait_until};

const KIND: &str = "collect-1337-fees_worker";

/// Small batches and short intervals.
const SETTINGS: [&str; 7] = [
    "database.durability=relaxed",
    "collect.batch_size=7",
    "collect.job_lease_ttl_ms=1500",
    "collect.historical_poll_interval_ms=50",
    "collect.realtime_poll_interval_ms=100",
    "collect.api_port=0",
    "log.level=info",
];

/// A node, and the fees of its chain.
struct FeeNode(SimNodeServer);

impl FeeNode {
    fn new(seed: u64, blocks: u64) -> Self {
        let shape = Shape { transactions: 4, logs: 8, ..Shape::sparse() };
        let settings = SimSettings { shape, ..sparse(seed, 12) };
        Self(SimNodeServer::start(&grown(settings, blocks)))
    }

    fn faults(&self, faults: NodeFaults) {
        self.0.node().set_faults(faults);
    }

    /// The arguments of a fee collector.
    fn arguments(&self) -> Vec<String> {
        let contract = FEE_COLLECTOR.to_string();
        let url = self.0.url();
        let all = ["collect", "--rpc-url", &url, "--active-chain", "1337", "--start-point", "1"];
        let all = all.into_iter().chain(["--contract-address", &contract]);
        all.map(str::to_owned).collect()
    }

    fn start(&self, sandbox: &Sandbox, more: &[&str]) -> Server {
        let arguments = self.arguments();
        let all: Vec<&str> =
            arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        sandbox.start_with(&all)
    }

    fn finalized(&self) -> u64 {
        self.0.chain().heads().finalized.expect("some are final").number
    }

    /// All fees of final blocks, newest first, in the format of the API.
    fn expected(&self) -> Vec<Value> {
        let mut events = Vec::new();
        for number in 1..=self.finalized() {
            let block = self.0.chain().block(number).expect("a block");
            for placed in block.logs() {
                let log = placed.log;
                if log.address != FEE_COLLECTOR || log.topics.first() != Some(&FEES_COLLECTED) {
                    continue;
                }
                let word = |at: usize| U256::from_be_slice(&log.data[at * 32..at * 32 + 32]);
                events.push(json!({
                    "chainId": 1337,
                    "transactionHash": placed.transaction_hash,
                    "logIndex": placed.log_index,
                    "blockNumber": number,
                    "token": Address::from_word(log.topics[1]).to_string(),
                    "eventIntegrator": Address::from_word(log.topics[2]).to_string(),
                    "integratorFee": word(0).to_string(),
                    "lifiFee": word(1).to_string(),
                }));
            }
        }
        events.reverse();
        events
    }
}

/// All fees that the API returns.
#[track_caller]
fn served(api: JsonRpc) -> Vec<Value> {
    let mut events = Vec::new();
    for page in 1.. {
        let answer = api.get(&format!("/fees?integrator=1337&limit=100&page={page}"));
        let data = answer["data"].as_array().expect("a list");
        events.extend(data.iter().map(|event| {
            let mut event = event.clone();
            assert!(event["createdAt"].is_string() && event["final"] == true, "{event}");
            for beside in ["createdAt", "final", "symbol", "decimals"] {
                event.as_object_mut().expect("an object").remove(beside).expect(beside);
            }
            event
        }));
        if data.len() < 100 {
            assert_eq!(answer["pagination"]["total"], events.len());
            break;
        }
    }
    events
}

/// Waits until all final blocks are collected.
#[track_caller]
fn wait_for_all(node: &FeeNode, api: JsonRpc) {
    let end = Instant::now() + WAIT_MAX;
    loop {
        let collected = api.get("/status")["collector"]["collected"].take();
        if collected["cursor"] == node.finalized() + 1 {
            return;
        }
        assert!(Instant::now() < end, "never caught up: {collected:#}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Numbers from a seed (SplitMix64).
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[test]
fn five_workers_that_are_killed_at_random_collect_every_event_once() {
    const WORKERS: usize = 5;
    const KILLS: usize = 14;
    let node = FeeNode::new(51, 1_200);
    node.faults(NodeFaults {
        fail_every: 23,
        too_many_every: 41,
        cut_every: 31,
        logs_blocks_max: 5,
        logs_max: 4,
        delay: Duration::from_millis(15),
        ..NodeFaults::default()
    });
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let shared = [url.as_str(), "database.schema=logmill_test", "database.connections=4"];
    let sandbox = Sandbox::with(&[&SETTINGS[..], &shared[..]].concat());
    let worker = || node.start(&sandbox, &["--worker-only"]);
    let mut workers: Vec<Server> = (0..WORKERS).map(|_| worker()).collect();
    let api = node.start(&sandbox, &["--api-only"]);
    let mut random = SplitMix64(52);
    for kill in 0..KILLS {
        if kill == KILLS / 2 {
            let collected = api.rpc().get("/status")["collector"]["collected"].take();
            assert!(
                collected["cursor"].as_u64() < Some(1_150),
                "killed while it works: {collected:#}"
            );
        }
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let depth = random.below(12);
        match random.below(2) {
            0 => {
                node.0.chain().grow(random.below(12));
            }
            _ => {
                let reorganized = node.0.chain().reorg(depth, depth + random.below(4));
                reorganized.map(|_| ()).expect("above what is final");
            }
        }
        let at = usize::try_from(random.below(WORKERS as u64)).expect("small");
        workers.remove(at).kill();
        workers.push(worker());
    }
    node.0.chain().grow(20);
    wait_for_all(&node, api.rpc());
    let expected = node.expected();
    assert!(expected.len() > 100, "only {} events", expected.len());
    assert_eq!(served(api.rpc()), expected);
    check_sums_and_filters(api.rpc(), &expected);
    for worker in workers {
        assert!(worker.terminate().success());
    }
    assert_eq!(sandbox.count(KIND, "running"), 0);
    assert_eq!(sandbox.count(KIND, "dead"), 0);
    let arguments = node.arguments();
    let mut check: Vec<&str> = arguments.iter().map(String::as_str).collect();
    check.push("--check");
    let status = sandbox.run(&check).json();
    assert_eq!(status["covered"], json!([{"from": 1, "to": node.finalized()}]), "{status:#}");
    assert!(api.terminate().success());
}

/// Checks that sums count every event, and that filters select the right ones.
fn check_sums_and_filters(api: JsonRpc, expected: &[Value]) {
    for period in ["day", "month", "all"] {
        let sums = api.get(&format!("/fees/summary?period={period}"));
        let counts = sums["data"].as_array().expect("a list").iter();
        let count: u64 = counts.filter_map(|sum| sum["events"].as_u64()).sum();
        assert_eq!(count, expected.len() as u64, "{period}");
    }
    let token = expected[0]["token"].as_str().expect("an address");
    let of_token = api.get(&format!("/fees?limit=100&token={token}&fromBlock=5&toTime=2100-01-01"));
    assert_eq!(of_token["data"][0]["token"], token, "{of_token}");
}

#[test]
fn one_process_collects_and_serves_in_a_folder() {
    let node = FeeNode::new(61, 150);
    let sandbox = Sandbox::with(&SETTINGS);
    let mut server = node.start(&sandbox, &["--workers", "3"]);
    let api = server.rpc();
    wait_for_all(&node, api);
    let expected = node.expected();
    assert!(expected.len() > 20, "only {} events", expected.len());
    assert_eq!(served(api), expected);
    let status = api.get("/status");
    let report = &status["collector"];
    assert_eq!(report["collected"]["start"], 1);
    assert_eq!(report["finalized"], node.finalized());
    assert_eq!(report["collected"]["dead"], 0, "{report:#}");
    wait_until("it says that it is ready", || api.get("/ready")["ready"] == true);
    assert_eq!(api.get("/status")["collector"]["mode"], "realtime");
    server.expect_line("idle: no work");
    assert_eq!(body(api, "/"), "Api Running");
    assert!(body(api, "/metrics").contains("logmill_collect_events_total"));
    let sums = api.get("/fees/summary?period=month");
    assert!(sums["data"].as_array().is_some_and(|sums| !sums.is_empty()), "{sums}");
    // New blocks are collected, while a second process serves the same data.
    node.0.chain().grow(30);
    wait_for_all(&node, api);
    let reader = node.start(&sandbox, &["--api-only"]);
    assert_eq!(served(reader.rpc()), node.expected());
    wait_until("the reader is ready", || reader.rpc().get("/ready")["ready"] == true);
    assert!(reader.terminate().success());
    let arguments = node.arguments();
    let second: Vec<&str> = arguments.iter().map(String::as_str).collect();
    sandbox.run(&second).assert_refused(1, &[&format!("process {}", server.id())]);
    crate::process::signal("INT", server.id());
    server.expect_line("stopped");
    assert!(server.wait_for_end().success());
}

fn body(api: JsonRpc, path: &str) -> String {
    let address = api.url().trim_start_matches("http://").parse().expect("an address");
    let (status, body) = request(address, "GET", path, "").expect("an answer");
    assert_eq!(status, 200, "{path}");
    body
}

#[test]
fn a_process_that_only_serves_is_not_ready_once_no_worker_makes_progress() {
    let node = FeeNode::new(62, 40);
    let quick = ["ready.head_seen_within_ms=4000", "server.health_listen=127.0.0.1:0"];
    let sandbox = Sandbox::with(&[&SETTINGS[..], &quick[..]].concat());
    let worker = node.start(&sandbox, &["--worker-only"]);
    let reader = node.start(&sandbox, &["--api-only"]);
    let codes = || reader.rpc().get("/ready")["reasons"].to_string();
    wait_until("the reader is ready", || codes() == "[]");
    // The collector has a separate health listener too.
    let health = reader.log().split_once("health=\"").and_then(|(_, rest)| rest.split('"').next());
    let health = health.expect("an address").parse().expect("an address");
    let (status, _) = request(health, "GET", "/health", "").expect("an answer");
    assert_eq!(status, 200);
    worker.kill();
    wait_until("no worker gets on", || codes().contains("collector_stopped"));
    assert_eq!(served(reader.rpc()), node.expected(), "what is collected is served");
    // A head that does not advance is fine for an archived chain.
    assert!(reader.terminate().success());
    let archived =
        Sandbox::with(&[&SETTINGS[..], &quick[..], &["ready.archived_chains=1337"]].concat());
    let worker = node.start(&archived, &["--worker-only"]);
    wait_until("it collects", || archived.data().join("tables.db").exists());
    worker.kill();
    let reader = node.start(&archived, &["--api-only"]);
    wait_until("the reader is ready", || reader.rpc().get("/ready")["ready"] == true);
    assert!(reader.terminate().success());
}

#[test]
fn workers_do_not_sleep_while_there_is_more_to_collect() {
    let node = FeeNode::new(65, 150);
    let slow = [
        "collect.historical_poll_interval_ms=3600000",
        "collect.realtime_poll_interval_ms=3600000",
    ];
    let sandbox = Sandbox::with(&[&SETTINGS[..], &slow[..]].concat());
    let server = node.start(&sandbox, &[]);
    wait_for_all(&node, server.rpc());
    assert_eq!(served(server.rpc()), node.expected());
    assert!(server.terminate().success());
}

#[test]
fn a_collector_whose_database_stays_unreachable_ends_with_1() {
    let node = FeeNode::new(66, 60);
    let mut database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let sandbox = Sandbox::with(&[&SETTINGS[..], &[&url, "database.schema=logmill_test"]].concat());
    let server = node.start(&sandbox, &[]);
    wait_for_all(&node, server.rpc());
    database.stop();
    assert_eq!(server.wait_for_end().code(), Some(1));
}

#[test]
fn a_signal_releases_the_running_job_at_once() {
    let node = FeeNode::new(71, 60);
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let shared = [url.as_str(), "database.schema=logmill_test", "collect.job_lease_ttl_ms=600000"];
    let sandbox = Sandbox::with(&[&SETTINGS[..], &shared[..]].concat());
    node.faults(NodeFaults { delay: Duration::from_millis(1_500), ..NodeFaults::default() });
    let server = node.start(&sandbox, &["--worker-only"]);
    wait_until("a job runs", || sandbox.count(KIND, "running") == 1);
    let asked = Instant::now();
    assert!(server.terminate().success());
    // Far less than the lease, even on a busy machine.
    assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", asked.elapsed());
    assert_eq!(sandbox.count(KIND, "running"), 0);
    let left = sandbox.run(&["jobs", "list", KIND, "--state", "pending", "--json"]).json();
    let jobs = left.as_array().expect("a list");
    assert!(!jobs.is_empty() && jobs.iter().all(|job| job["attempts"] == 0), "{left:#}");
}

#[test]
fn ranges_whose_attempts_all_failed_are_reported_and_can_be_retried() {
    let node = FeeNode::new(81, 60);
    let quick = ["collect.historical_poll_interval_ms=1", "collect.realtime_poll_interval_ms=1"];
    let sandbox = Sandbox::with(&[&SETTINGS[..], &quick[..]].concat());
    // The node returns the head, but no block below it.
    node.faults(NodeFaults { floor: 30, ..NodeFaults::default() });
    let mut server = node.start(&sandbox, &["--workers", "4"]);
    let arguments = node.arguments();
    let with = |more: &'static str| {
        arguments.iter().map(String::as_str).chain([more]).collect::<Vec<&str>>()
    };
    wait_until("they are given up", || {
        let collected = server.rpc().get("/status")["collector"]["collected"].take();
        collected["dead"] == 5 && collected["pending"] == 0 && collected["running"] == 0
    });
    server.expect_line("gave up on a range");
    wait_until("readiness says so", || {
        let ready = server.rpc().get("/ready").to_string();
        ready.contains("collector_incomplete") && ready.contains("5 ranges are missing")
    });
    let check = sandbox.run(&with("--check"));
    check.assert_refused(1, &["5 ranges are missing"]);
    // The jobs are stored with the tables, in a folder without another queue.
    assert_eq!(sandbox.count(KIND, "dead"), 5);
    let status = sandbox.run(&["jobs", "status", "--json"]).json();
    let rows = status["kinds"].as_array().expect("a list").iter();
    let mut rows: Vec<String> =
        rows.map(|row| format!("{} {}", row["kind"], row["state"])).collect();
    let listed = rows.len();
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), listed, "nothing is listed twice: {status:#}");
    let dead = sandbox.run(&["jobs", "list", KIND, "--state", "dead", "--json"]).json();
    assert_eq!(dead.as_array().map(Vec::len), Some(5), "{dead:#}");
    let status: Value = serde_json::from_str(&check.stdout).expect("JSON");
    assert_eq!(status["missing"][0]["from"], 1, "{status:#}");
    assert_eq!(status["missing"][0]["attempts"], 10, "{status:#}");
    assert!(server.terminate().success());
    node.faults(NodeFaults::default());
    assert_eq!(sandbox.run(&with("--redrive")).answer(), "5 ranges will be retried");
    let server = node.start(&sandbox, &[]);
    wait_for_all(&node, server.rpc());
    assert_eq!(served(server.rpc()), node.expected());
    assert_eq!(sandbox.run(&with("--check")).json()["dead"], 0);
    assert!(server.terminate().success());
}

#[test]
fn checking_an_event_that_was_never_collected_is_an_error_and_creates_no_folder() {
    let node = FeeNode::new(85, 30);
    let sandbox = Sandbox::with(&SETTINGS);
    let arguments = node.arguments();
    let with = |more: &[&'static str]| {
        let all = arguments.iter().map(String::as_str).chain(more.iter().copied());
        sandbox.run(&all.collect::<Vec<&str>>())
    };
    let folder = sandbox.data().display().to_string();
    for command in ["--check", "--redrive"] {
        with(&[command]).assert_refused(1, &["no database", &folder]);
    }
    assert!(!sandbox.data().exists());
    let server = node.start(&sandbox, &[]);
    wait_for_all(&node, server.rpc());
    assert!(server.terminate().success());
    assert_eq!(with(&["--check"]).json()["dead"], 0);
    for command in ["--check", "--redrive"] {
        let refused = with(&[command, "--event", "event Never(uint256 happened)"]);
        refused.assert_refused(1, &["collect_never_", "1337"]);
        assert_eq!(refused.stdout, "");
        let contract = FEE_COLLECTOR.to_string();
        let other = "0x1111111111111111111111111111111111111111";
        let of_other = arguments.iter().map(|text| if *text == contract { other } else { text });
        let refused = sandbox.run(&of_other.chain([command]).collect::<Vec<&str>>());
        let collected = format!("{FEE_COLLECTOR:#x}");
        refused.assert_refused(1, &[&collected, "never from 0x1111"]);
        assert_eq!(refused.stdout, "");
    }
}

#[test]
fn a_start_that_cannot_succeed_ends_with_1_and_says_why() {
    let node = FeeNode::new(91, 20);
    let sandbox = Sandbox::new();
    let url = node.0.url();
    let contract = FEE_COLLECTOR.to_string();
    let all = [
        ("RPC_URL", url.as_str()),
        ("ACTIVE_CHAIN", "1337"),
        ("CONTRACT_ADDRESS", contract.as_str()),
        ("START_POINT", "1"),
        ("API_PORT", "0"),
    ];
    let refused = |change: (&str, &str), message: &[&str]| {
        let mut collect = command(LOGMILL, sandbox.root());
        collect.arg("collect").arg("--data").arg(sandbox.data());
        for (name, value) in all {
            collect.env(name, if name == change.0 { change.1 } else { value });
        }
        collect.env(change.0, change.1);
        finish(&mut collect).assert_refused(1, message);
    };
    refused(("RPC_URL", ""), &["invalid chain config", "RPC_URL is not set"]);
    refused(("CONTRACT_ADDRESS", ""), &["invalid chain config", "CONTRACT_ADDRESS is not set"]);
    refused(("START_POINT", ""), &["invalid chain config", "START_POINT is not set"]);
    refused(("START_POINT", "soon"), &["START_POINT must be a number"]);
    refused(("ACTIVE_CHAIN", "0"), &["ACTIVE_CHAIN is not set"]);
    refused(("EVENT", "Transfer"), &["EVENT", "not an event signature"]);
    assert!(!sandbox.data().join("tables.db").exists(), "nothing was made");
    // The database is opened first, even before other settings are checked.
    let mut collect = command(LOGMILL, sandbox.root());
    collect.args(["collect", "--set", "database.url=postgres://nobody@127.0.0.1:1/none"]);
    collect.args(["--set", "ready.start_wait_ms=1"]).arg("--data").arg(sandbox.data());
    let message = ["PostgreSQL database cannot be used", "database.url"];
    finish(collect.env("RPC_URL", "").env("CONTRACT_ADDRESS", "")).assert_refused(1, &message);
    refused(("ACTIVE_CHAIN", "137"), &["wrong RPC chain id", "serves chain 1337, not 137"]);
    let nobody = "0x0000000000000000000000000000000000000bad";
    refused(("CONTRACT_ADDRESS", nobody), &["no contract deployed"]);
    refused(("RPC_URL", "http://127.0.0.1:1/"), &["127.0.0.1:1"]);
}

#[test]
fn any_event_becomes_a_table_and_a_mongo_uri_causes_a_warning() {
    let node = FeeNode::new(95, 80);
    let sandbox = Sandbox::with(&SETTINGS);
    let weth = WETH.to_string();
    let mut collect = command(LOGMILL, sandbox.root());
    collect.args(["collect", "--workers", "2"]).arg("--data").arg(sandbox.data());
    for setting in SETTINGS {
        collect.args(["--set", setting]);
    }
    collect.env("LOGMILL_SERVER_LISTEN", "127.0.0.1:0");
    collect.env("RPC_URL", node.0.url()).env("ACTIVE_CHAIN", "1337");
    collect.env("CONTRACT_ADDRESS", &weth).env("START_POINT", "1");
    collect.env("EVENT", "event Deposit(address indexed dst, uint256 wad)");
    collect.env("MONGO_URI", "mongodb://me:sesame@127.0.0.1/fees");
    let server = Server::start(&mut collect);
    assert!(server.log().contains("MONGO_URI is not used") && !server.log().contains("sesame"));
    wait_for_all(&node, server.rpc());
    let name = server.rpc().get("/status")["collector"]["collected"]["consumer"].take();
    assert!(server.terminate().success());
    let table = name.as_str().expect("a name").replacen("collect_", "collected_", 1);
    let mut expected = 0;
    for number in 1..=node.finalized() {
        let block = node.0.chain().block(number).expect("a block");
        let is_one = |log: &logmill_chain::Log| log.address == WETH && log.topics[0] == DEPOSIT;
        expected += block.logs().filter(|placed| is_one(placed.log)).count();
    }
    assert!(expected > 3);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let found = runtime.block_on(async {
        let file = logmill_io::sql::SqliteSettings::file(sandbox.data().join("tables.db"));
        let (clock, entropy) = (logmill_io::SystemClock::shared(), logmill_io::OsEntropy::shared());
        let sql = logmill_io::Sql::sqlite(&file, clock, entropy).await.expect("a database");
        let text =
            format!("SELECT count(*) FROM {table} WHERE dst LIKE '0x%' AND length(dst) = 42");
        let found = sql.query(&text, vec![]).await.expect("the table is there");
        found.row().expect("a row").count(0).expect("a number")
    });
    assert_eq!(found, expected as u64);
}

/// Number of logs of WETH with this topic in final blocks.
fn logs_of_weth(node: &FeeNode, topic: B256) -> usize {
    let is_one = |log: &logmill_chain::Log| log.address == WETH && log.topics[0] == topic;
    let blocks =
        (1..=node.finalized()).map(|number| node.0.chain().block(number).expect("a block"));
    blocks.map(|block| block.logs().filter(|placed| is_one(placed.log)).count()).sum()
}

#[test]
fn several_events_have_a_table_each_and_changing_the_list_loses_none() {
    let node = FeeNode::new(97, 120);
    let sandbox = Sandbox::with(&SETTINGS);
    let (url, weth) = (node.0.url(), WETH.to_string());
    let with = |more: &[&'static str]| {
        let all = ["collect", "--rpc-url", &url, "--active-chain", "1337", "--start-point", "1"];
        let all = all.into_iter().chain(["--contract-address", &weth]).chain(more.iter().copied());
        all.map(str::to_owned).collect::<Vec<String>>()
    };
    let start = |more: &[&'static str]| {
        let all = with(more);
        sandbox.start_with(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let both = [
        "--event",
        "event Deposit(address indexed dst, uint256 wad)",
        "--event",
        "event Withdrawal(address indexed src, uint256 wad);",
    ];
    let server = start(&both);
    wait_until("both are collected", || {
        let collectors = server.rpc().get("/status")["collector"].take();
        let all = collectors.as_array().expect("a list");
        assert_eq!(all.len(), 2);
        all.iter().all(|one| one["collected"]["cursor"] == node.finalized() + 1)
    });
    let totals = |server: &Server| {
        let tables = server.rpc().get("/collected")["data"].take();
        let tables = tables.as_array().expect("a list").clone();
        let total = |table: &Value| {
            let name = table["table"].as_str().expect("a name").to_owned();
            let page = server.rpc().get(&format!("/collected/{name}?limit=1"));
            (name, page["pagination"]["total"].clone())
        };
        tables.iter().map(total).collect::<Vec<(String, Value)>>()
    };
    let found = totals(&server);
    let expected = [logs_of_weth(&node, DEPOSIT), logs_of_weth(&node, WITHDRAWAL)];
    assert!(expected.iter().all(|count| *count > 3), "{expected:?}");
    let counts: Vec<&Value> = found.iter().map(|(_, total)| total).collect();
    assert_eq!(counts, [&json!(expected[0]), &json!(expected[1])], "{found:?}");
    let csv = body(server.rpc(), &format!("/collected/{}?format=csv&limit=1000", found[1].0));
    assert_eq!(csv.lines().count(), expected[1] + 1);
    assert!(server.terminate().success());
    let mut check = with(&both);
    check.push("--check".to_owned());
    let status = sandbox.run(&check.iter().map(String::as_str).collect::<Vec<_>>()).json();
    assert_eq!(status.as_array().map(Vec::len), Some(2), "{status:#}");
    let server = start(&both[..2]);
    wait_for_all(&node, server.rpc());
    assert_eq!(totals(&server), found, "the other event is not collected, and is served");
    assert!(server.terminate().success());
}
