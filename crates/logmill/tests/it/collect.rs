//! `logmill collect` as processes, beside a simulated node whose events are known.

use std::time::{Duration, Instant};

use alloy_primitives::{Address, U256};
use logmill_chain::sim::action::{DEPOSIT, FEES_COLLECTED};
use logmill_chain::sim::rpc::{NodeFaults, SimNode};
use logmill_chain::sim::{FEE_COLLECTOR, Shape, SimChain, SimSettings, WETH};
use logmill_sim::http::{JsonRpc, request};
use logmill_sim::node::SimNodeServer;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::process::{LOGMILL, Place, Server, command, finish, wait_until};

/// The kind of the jobs.
const KIND: &str = "collect-1337-fees_worker";

/// Everything quick.
const SETTINGS: [&str; 7] = [
    "database.durability=relaxed",
    "collect.batch_size=7",
    "collect.job_lease_ttl_ms=1500",
    "collect.historical_poll_interval_ms=50",
    "collect.realtime_poll_interval_ms=100",
    "collect.api_port=0",
    "log.level=info",
];

/// A chain and a node that runs as long as this does.
struct Scene {
    chain: SimChain,
    server: SimNodeServer,
    _runtime: Runtime,
}

impl Scene {
    fn new(seed: u64, blocks: u64) -> Self {
        let chain = SimChain::with(SimSettings {
            seed,
            shape: Shape { transactions: 4, logs: 8, ..Shape::sparse() },
            finality_lag: Some(12),
            ..SimSettings::default()
        });
        chain.grow(blocks);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
        let server = runtime.block_on(SimNodeServer::start(SimNode::new(chain.clone())));
        Self { chain, server, _runtime: runtime }
    }

    fn faults(&self, faults: NodeFaults) {
        self.server.node().set_faults(faults);
    }

    /// The arguments of a collector of fees.
    fn arguments(&self) -> Vec<String> {
        let contract = FEE_COLLECTOR.to_string();
        let url = self.server.url();
        let all = ["collect", "--rpc-url", &url, "--active-chain", "1337", "--start-point", "1"];
        let all = all.into_iter().chain(["--contract-address", &contract]);
        all.map(str::to_owned).collect()
    }

    fn start(&self, place: &Place, more: &[&str]) -> Server {
        let arguments = self.arguments();
        let all: Vec<&str> =
            arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        place.start_with(&all)
    }

    fn finalized(&self) -> u64 {
        self.chain.heads().finalized.expect("some are final").number
    }

    /// All fees of final blocks, newest first, as the API shows them.
    fn expected(&self) -> Vec<Value> {
        let mut events = Vec::new();
        for number in 1..=self.finalized() {
            let block = self.chain.block(number).expect("a block");
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

/// All fees that are served.
#[track_caller]
fn served(api: JsonRpc) -> Vec<Value> {
    let mut events = Vec::new();
    for page in 1.. {
        let answer = api.get(&format!("/fees?integrator=1337&limit=100&page={page}"));
        let data = answer["data"].as_array().expect("a list");
        events.extend(data.iter().map(|event| {
            let mut event = event.clone();
            assert!(event["createdAt"].take().is_string());
            event.as_object_mut().expect("an object").remove("createdAt");
            event
        }));
        if data.len() < 100 {
            assert_eq!(answer["pagination"]["total"], events.len());
            break;
        }
    }
    events
}

/// Waits until everything that is final is collected.
#[track_caller]
fn wait_for_all(scene: &Scene, api: JsonRpc) {
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        let collected = api.get("/status")["collector"]["collected"].take();
        if collected["cursor"] == scene.finalized() + 1 {
            return;
        }
        assert!(Instant::now() < end, "never caught up: {collected:#}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Numbers from a seed (SplitMix64).
struct Draw(u64);

impl Draw {
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
    let scene = Scene::new(51, 1_200);
    scene.faults(NodeFaults {
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
    let place = Place::with(&[&SETTINGS[..], &shared[..]].concat());
    let worker = || scene.start(&place, &["--worker-only"]);
    let mut workers: Vec<Server> = (0..WORKERS).map(|_| worker()).collect();
    let api = scene.start(&place, &["--api-only"]);
    let mut draw = Draw(52);
    for kill in 0..KILLS {
        if kill == KILLS / 2 {
            let collected = api.rpc().get("/status")["collector"]["collected"].take();
            assert!(
                collected["cursor"].as_u64() < Some(1_150),
                "killed while it works: {collected:#}"
            );
        }
        std::thread::sleep(Duration::from_millis(draw.below(400)));
        let depth = draw.below(12);
        match draw.below(2) {
            0 => {
                scene.chain.grow(draw.below(12));
            }
            _ => {
                let reorganized = scene.chain.reorg(depth, depth + draw.below(4));
                reorganized.map(|_| ()).expect("above what is final");
            }
        }
        let at = usize::try_from(draw.below(WORKERS as u64)).expect("small");
        workers.remove(at).kill();
        workers.push(worker());
    }
    scene.chain.grow(20);
    wait_for_all(&scene, api.rpc());
    let expected = scene.expected();
    assert!(expected.len() > 100, "only {} events", expected.len());
    assert_eq!(served(api.rpc()), expected);
    check_sums_and_filters(api.rpc(), &expected);
    for worker in workers {
        assert!(worker.terminate().success());
    }
    assert_eq!(place.count(KIND, "running"), 0);
    assert_eq!(place.count(KIND, "dead"), 0);
    let arguments = scene.arguments();
    let mut check: Vec<&str> = arguments.iter().map(String::as_str).collect();
    check.push("--check");
    let status = place.run(&check).json();
    assert_eq!(status["covered"], json!([[1, scene.finalized()]]), "{status:#}");
    assert!(api.terminate().success());
}

/// Sums count every event, and filters pick some.
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
    let scene = Scene::new(61, 150);
    let place = Place::with(&SETTINGS);
    let mut server = scene.start(&place, &["--workers", "3"]);
    let api = server.rpc();
    wait_for_all(&scene, api);
    let expected = scene.expected();
    assert!(expected.len() > 20, "only {} events", expected.len());
    assert_eq!(served(api), expected);
    let status = api.get("/status");
    let report = &status["collector"];
    assert_eq!(report["collected"]["start"], 1);
    assert_eq!(report["finalized"], scene.finalized());
    assert_eq!(report["collected"]["dead"], 0, "{report:#}");
    wait_until("it says that it is ready", || api.get("/ready")["ready"] == true);
    assert_eq!(api.get("/status")["collector"]["mode"], "realtime");
    assert_eq!(body(api, "/"), "Api Running");
    assert!(body(api, "/metrics").contains("logmill_collect_events_total"));
    let sums = api.get("/fees/summary?period=month");
    assert!(sums["data"].as_array().is_some_and(|sums| !sums.is_empty()), "{sums}");
    // What is added is collected; another reads beside it.
    scene.chain.grow(30);
    wait_for_all(&scene, api);
    let reader = scene.start(&place, &["--api-only"]);
    assert_eq!(served(reader.rpc()), scene.expected());
    assert!(reader.terminate().success());
    let arguments = scene.arguments();
    let second: Vec<&str> = arguments.iter().map(String::as_str).collect();
    place.run(&second).refused(1, &[&format!("process {}", server.id())]);
    crate::process::signal("INT", server.id());
    server.expect_line("stopped");
    assert!(server.ended().success());
}

fn body(api: JsonRpc, path: &str) -> String {
    let address = api.url().trim_start_matches("http://").parse().expect("an address");
    let (status, body) = request(address, "GET", path, "").expect("an answer");
    assert_eq!(status, 200, "{path}");
    body
}

#[test]
fn nobody_sleeps_while_there_is_more_to_collect() {
    let scene = Scene::new(65, 150);
    let slow = [
        "collect.historical_poll_interval_ms=3600000",
        "collect.realtime_poll_interval_ms=3600000",
    ];
    let place = Place::with(&[&SETTINGS[..], &slow[..]].concat());
    let server = scene.start(&place, &[]);
    wait_for_all(&scene, server.rpc());
    assert_eq!(served(server.rpc()), scene.expected());
    assert!(server.terminate().success());
}

#[test]
fn a_database_that_is_gone_for_good_ends_it_with_1() {
    let scene = Scene::new(66, 60);
    let mut database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let place = Place::with(&[&SETTINGS[..], &[&url, "database.schema=logmill_test"]].concat());
    let server = scene.start(&place, &[]);
    wait_for_all(&scene, server.rpc());
    database.stop();
    assert_eq!(server.ended().code(), Some(1));
}

#[test]
fn a_signal_gives_the_job_back_at_once() {
    let scene = Scene::new(71, 60);
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let shared = [url.as_str(), "database.schema=logmill_test", "collect.job_lease_ttl_ms=600000"];
    let place = Place::with(&[&SETTINGS[..], &shared[..]].concat());
    scene.faults(NodeFaults { delay: Duration::from_millis(1_500), ..NodeFaults::default() });
    let server = scene.start(&place, &["--worker-only"]);
    wait_until("a job runs", || place.count(KIND, "running") == 1);
    let asked = Instant::now();
    assert!(server.terminate().success());
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(place.count(KIND, "running"), 0);
    let left = place.run(&["jobs", "list", KIND, "--state", "pending", "--json"]).json();
    let jobs = left.as_array().expect("a list");
    assert!(!jobs.is_empty() && jobs.iter().all(|job| job["attempts"] == 0), "{left:#}");
}

#[test]
fn ranges_that_nobody_could_collect_are_reported_and_can_be_tried_again() {
    let scene = Scene::new(81, 60);
    let quick = ["collect.historical_poll_interval_ms=1", "collect.realtime_poll_interval_ms=1"];
    let place = Place::with(&[&SETTINGS[..], &quick[..]].concat());
    // The head can be had, but no block below it.
    scene.faults(NodeFaults { floor: 30, ..NodeFaults::default() });
    let mut server = scene.start(&place, &["--workers", "4"]);
    let arguments = scene.arguments();
    let with = |more: &'static str| {
        arguments.iter().map(String::as_str).chain([more]).collect::<Vec<&str>>()
    };
    wait_until("they are given up", || {
        let collected = server.rpc().get("/status")["collector"]["collected"].take();
        collected["dead"] == 5 && collected["pending"] == 0 && collected["running"] == 0
    });
    server.expect_line("a range is given up, and missing");
    wait_until("readiness says so", || {
        let ready = server.rpc().get("/ready").to_string();
        ready.contains("collector_incomplete") && ready.contains("5 ranges are missing")
    });
    let check = place.run(&with("--check"));
    check.refused(1, &["5 ranges are missing"]);
    let status: Value = serde_json::from_str(&check.stdout).expect("JSON");
    assert_eq!(status["missing"][0]["first"], 1, "{status:#}");
    assert_eq!(status["missing"][0]["attempts"], 10, "{status:#}");
    assert!(server.terminate().success());
    scene.faults(NodeFaults::default());
    assert_eq!(place.run(&with("--redrive")).answer(), "5 ranges are tried again");
    let server = scene.start(&place, &[]);
    wait_for_all(&scene, server.rpc());
    assert_eq!(served(server.rpc()), scene.expected());
    assert_eq!(place.run(&with("--check")).json()["dead"], 0);
    assert!(server.terminate().success());
}

#[test]
fn a_start_that_can_not_go_well_ends_with_1_and_says_why() {
    let scene = Scene::new(91, 20);
    let place = Place::new();
    let url = scene.server.url();
    let contract = FEE_COLLECTOR.to_string();
    let all = [
        ("RPC_URL", url.as_str()),
        ("ACTIVE_CHAIN", "1337"),
        ("CONTRACT_ADDRESS", contract.as_str()),
        ("START_POINT", "1"),
        ("API_PORT", "0"),
    ];
    let refused = |change: (&str, &str), said: &[&str]| {
        let mut collect = command(LOGMILL, place.root());
        collect.arg("collect").arg("--data").arg(place.data());
        for (name, value) in all {
            collect.env(name, if name == change.0 { change.1 } else { value });
        }
        collect.env(change.0, change.1);
        finish(&mut collect).refused(1, said);
    };
    refused(("RPC_URL", ""), &["RPC_URL", "missing"]);
    refused(("CONTRACT_ADDRESS", ""), &["CONTRACT_ADDRESS", "missing"]);
    refused(("START_POINT", ""), &["START_POINT", "missing"]);
    refused(("START_POINT", "soon"), &["START_POINT", "number"]);
    refused(("ACTIVE_CHAIN", "0"), &["ACTIVE_CHAIN", "missing"]);
    refused(("EVENT", "Transfer"), &["EVENT", "no event"]);
    assert!(!place.data().join("tables.db").exists(), "nothing was made");
    refused(("ACTIVE_CHAIN", "137"), &["of chain 1337, not 137"]);
    let nobody = "0x0000000000000000000000000000000000000bad";
    refused(("CONTRACT_ADDRESS", nobody), &["no contract is deployed"]);
    refused(("RPC_URL", "http://127.0.0.1:1/"), &["127.0.0.1:1"]);
}

#[test]
fn any_event_becomes_a_table_and_mongo_is_told_of_sql() {
    let scene = Scene::new(95, 80);
    let place = Place::with(&SETTINGS);
    let weth = WETH.to_string();
    let mut collect = command(LOGMILL, place.root());
    collect.args(["collect", "--workers", "2"]).arg("--data").arg(place.data());
    for setting in SETTINGS {
        collect.args(["--set", setting]);
    }
    collect.env("LOGMILL_SERVER_LISTEN", "127.0.0.1:0");
    collect.env("RPC_URL", scene.server.url()).env("ACTIVE_CHAIN", "1337");
    collect.env("CONTRACT_ADDRESS", &weth).env("START_POINT", "1");
    collect.env("EVENT", "event Deposit(address indexed dst, uint256 wad)");
    collect.env("MONGO_URI", "mongodb://me:sesame@127.0.0.1/fees");
    let server = Server::start(&mut collect);
    assert!(server.log().contains("MONGO_URI is not used") && !server.log().contains("sesame"));
    wait_for_all(&scene, server.rpc());
    let name = server.rpc().get("/status")["collector"]["collected"]["consumer"].take();
    assert!(server.terminate().success());
    let table = name.as_str().expect("a name").replacen("collect_", "collected_", 1);
    let mut expected = 0;
    for number in 1..=scene.finalized() {
        let block = scene.chain.block(number).expect("a block");
        let is_one = |log: &logmill_chain::Log| log.address == WETH && log.topics[0] == DEPOSIT;
        expected += block.logs().filter(|placed| is_one(placed.log)).count();
    }
    assert!(expected > 3);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let found = runtime.block_on(async {
        let file = logmill_io::sql::SqliteSettings::file(place.data().join("tables.db"));
        let (clock, entropy) = (logmill_io::SystemClock::shared(), logmill_io::OsEntropy::shared());
        let sql = logmill_io::Sql::sqlite(&file, clock, entropy).await.expect("a database");
        let text = format!("SELECT count(*) FROM {table} WHERE length(dst) = 20");
        let found = sql.query(&text, vec![]).await.expect("the table is there");
        found.row().expect("a row").count(0).expect("a number")
    });
    assert_eq!(found, expected as u64);
}
