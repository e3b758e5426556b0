//! The stored sample: a small data folder that an earlier build wrote, and the answers it returned. A change that
//! is not meant to alter behaviour or formats must leave every answer unchanged, byte for byte.
//!
//! `make sample` rewrites both (`tests/sample/`), after an intended change.
//!
//! Guarantees: every GET in `/openapi.json` is requested, or has its reason in [`NOT_ASKED`]; the same holds for
//! every command with `--json`. For answers that depend on the current time or load, only the names of the fields are
//! compared ([`OF_THE_MOMENT`]). Leaves to others: whether the answers are right.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use logmill_chain::sim::SimSettings;
use logmill_sim::http::request;
use logmill_sim::node::{SimNodeServer, grown, sparse};
use serde_json::{Map, Value, json};

use crate::process::{Sandbox, Server, at, get, post, wait_until};

/// Blocks of the sample, of which the last [`FINALITY_LAG`] are not final.
const BLOCKS: u64 = 60;
const FINALITY_LAG: u64 = 6;
const CHAIN: u64 = 1337;

const SETTINGS: [&str; 8] = [
    "database.durability=relaxed",
    "index.cell_blocks=16",
    "index.piece_logs=40",
    "ingest.poll_ms=50",
    "chain.id=1337",
    r#"meter.events={ "api.calls" = { op = "sum" }, "fees.collected" = { op = "sum" } }"#,
    "meter.periods=daily,monthly",
    "meter.grace_ms=0",
];

/// Requests and commands that are not run, and the reason.
const NOT_ASKED: [(&str, &str); 7] = [
    ("/metrics", "figures of the moment"),
    ("/meters/stream", "a stream without an end"),
    ("/openapi.json", "compared with docs/openapi.json elsewhere"),
    ("/ws", "WebSocket"),
    ("/ws/{chain}", "WebSocket"),
    ("/webhooks/endpoints/{id}", "there is none, as its secret would be stored with the sample"),
    ("/webhooks/deliveries/{messageId}/{endpointId}/attempts", "nothing is delivered"),
];

/// Requests whose answers depend on the current time or load: only the names of their fields are compared.
const OF_THE_MOMENT: [&str; 6] = [
    "GET /health",
    "GET /ready",
    "GET /ready/rpc",
    "GET /status",
    "GET /ws/status",
    "logmill jobs status --json",
];

/// Sources of path parameters: the path with the parameter, a path that lists its values, and the field.
const FOUND_IN: [(&str, &str, &str); 9] = [
    ("/api/v1/{chain}/tokens/{address}", "/api/v1/{chain}/tokens", "address"),
    (
        "/api/v1/{chain}/collections/{address}/items/{id}",
        "/api/v1/{chain}/collections/{address}/items",
        "id",
    ),
    ("/api/v1/{chain}/collections/{address}", "/api/v1/{chain}/collections", "address"),
    ("/api/v1/{chain}/pairs/{pair}", "/api/v1/{chain}/pairs", "pair"),
    ("/api/v1/{chain}/transactions/{hash}", "/api/v1/{chain}/transactions", "hash"),
    ("/api/v1/{chain}/accounts/{address}", "/api/v1/{chain}/transactions", "from"),
    ("/api/v1/{chain}/contracts/{address}", "/api/v1/{chain}/transactions?limit=100", "contract"),
    (
        "/api/v1/{chain}/staking/validators/{index}",
        "/api/v1/{chain}/staking/events?limit=100",
        "validator",
    ),
    ("/aggregations/{id}", "/aggregations", "_id"),
];

/// Commands with `--json`, and their arguments.
const COMMANDS: [&[&str]; 8] = [
    &["jobs", "status"],
    &["jobs", "list", "history-cell-1337", "--state", "dead"],
    &["index", "status"],
    &["index", "logs", "--from", "10", "--to", "12"],
    &["verify"],
    &["meter", "recount"],
    &["meter", "damaged"],
    &["meter", "sources"],
];

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample")
}

fn is_made_again() -> bool {
    std::env::var_os("LOGMILL_SAMPLE").is_some_and(|value| value == "make")
}

fn tar(arguments: &[&str], folder: &Path) {
    let done = Command::new("tar").args(arguments).current_dir(folder).status();
    assert!(done.expect("tar runs").success());
}

/// Writes the content of the sample folder.
fn fill(sandbox: &Sandbox) {
    let settings = SimSettings { chain_id: CHAIN, ..sparse(16, FINALITY_LAG) };
    let node = SimNodeServer::start(&grown(settings, BLOCKS));
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    let to = at(&server);
    // Long ago, so that the figures of every period are final.
    let event = |number: u64| {
        json!({
            "eventType": "api.calls", "customerId": format!("c{}", number % 3), "value": number,
            "id": format!("e{number}"), "source": "sample",
            "timestamp": format!("2025-01-{:02}T10:00:00Z", number % 4 + 1),
        })
    };
    let events: Value = (0..40).map(event).collect();
    assert_eq!(post(to, "/usagebatch", &events).0, 201);
    wait_until("aggregates are final", || {
        post(to, "/aggregations/trigger", &Value::Null);
        let all = get(to, "/aggregations?period=monthly");
        all.as_array().is_some_and(|all| all.len() == 3)
    });
    wait_until("everything is stored and derived", || {
        let status = get(to, "/status");
        let chain = &status["chains"][0];
        chain["covered"][0]["from"] == 0 && chain["head"]["number"] == BLOCKS && is_derived(to)
    });
    assert!(server.terminate().success());
}

/// Whether every processor has derived all blocks.
fn is_derived(to: SocketAddr) -> bool {
    let status = get(to, &format!("/api/v1/{CHAIN}/status"));
    let rows = status["checkpoints"].as_array().cloned().unwrap_or_default();
    let done = |row: &Value| row["missing"] == 0 && row["tip"] == BLOCKS;
    rows.len() > 10 && rows.iter().all(done)
}

/// The stored folder, unpacked.
fn stored() -> Sandbox {
    let sandbox = Sandbox::with(&SETTINGS);
    let archive = sample().join("folder.tar.gz");
    tar(&["-xzf", &archive.display().to_string()], sandbox.root());
    sandbox
}

/// The field of a list's first entry.
fn first(to: SocketAddr, path: &str, field: &str) -> Option<String> {
    let (_, answer) = request(to, "GET", path, "").expect("an answer");
    let answer: Value = serde_json::from_str(&answer).ok()?;
    let list = answer.as_array().or_else(|| answer["items"].as_array())?;
    let value = list.iter().find_map(|one| Some(&one[field]).filter(|value| !value.is_null()))?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Replaces the parameters of a path with values.
fn with_values(to: SocketAddr, path: &str) -> String {
    let mut path = path.to_owned();
    for (of, list, field) in FOUND_IN {
        if path.starts_with(of) {
            let list = with_values(to, list);
            let value = first(to, &list, field).unwrap_or_else(|| panic!("{list} has no {field}"));
            let name = &of[of.rfind('{').expect("a parameter")..];
            path = path.replacen(name, &value, 1);
        }
    }
    for (name, value) in [
        ("{chain}", CHAIN.to_string()),
        ("{block}", "20".to_owned()),
        ("{service}", "rpc".to_owned()),
        // No validator has this key.
        ("{pubkey}", format!("0x{}", "11".repeat(48))),
    ] {
        path = path.replace(name, &value);
    }
    path
}

fn calls() -> [(&'static str, Value); 10] {
    [
        ("eth_blockNumber", json!([])),
        ("eth_chainId", json!([])),
        ("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "0x4"}])),
        ("eth_getBlockByNumber", json!(["0x14", true])),
        ("eth_getBlockByNumber", json!(["finalized", false])),
        ("eth_getBlockReceipts", json!(["0x14"])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x3c", "0x0"])),
        ("eth_feeHistory", json!(["0x5", "0x3c", [50.0]])),
        ("debug_getRawBlock", json!(["0x14"])),
        ("eth_getUncleCountByBlockNumber", json!(["0x14"])),
    ]
}

/// Requests with query parameters.
fn more_questions() -> [String; 6] {
    [
        "/fees?page=2&limit=3".to_owned(),
        "/fees/summary?period=month".to_owned(),
        "/events?customerId=c1&limit=4".to_owned(),
        "/events/lookup?source=sample&id=e7".to_owned(),
        "/meters/query?eventType=api.calls&from=2025-01-01T00:00:00Z&to=2025-01-06T00:00:00Z&window=daily"
            .to_owned(),
        format!("/api/v1/{CHAIN}/transactions?limit=2"),
    ]
}

/// An answer as one line: the status or exit code, then the body.
fn line(code: impl Display, answer: &str) -> String {
    format!("{code} {}", answer.trim_end().replace('\n', "\\n").replace('\t', "\\t"))
}

/// The names of the fields of an answer.
fn without_values(line: &str) -> String {
    let (_, answer) = line.split_once(' ').expect("a code and an answer");
    let answer: Value = serde_json::from_str(&answer.replace("\\n", " ")).expect("JSON");
    names(&answer).to_string()
}

fn names(value: &Value) -> Value {
    match value {
        Value::Array(all) => all.first().map(names).into_iter().collect(),
        Value::Object(fields) => {
            let names = |(name, value): (&String, &Value)| (name.clone(), names(value));
            Value::Object(fields.iter().map(names).collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

/// Every answer of the sample, by request or command.
fn answers(sandbox: &Sandbox) -> BTreeMap<String, String> {
    let mut answers = BTreeMap::new();
    for arguments in COMMANDS {
        let asked = format!("logmill {} --json", arguments.join(" "));
        let ended = sandbox.run(&[arguments, &["--json"]].concat());
        answers.insert(asked, line(ended.code.unwrap_or(-1), &ended.stdout));
    }
    let server: Server = sandbox.serve();
    let to = at(&server);
    let paths = get(to, "/openapi.json")["paths"].take();
    let paths = paths.as_object().expect("paths");
    let asked = paths.iter().filter(|(path, methods)| {
        methods.get("get").is_some() && !NOT_ASKED.iter().any(|(not, _)| not == path)
    });
    let question = |(path, methods): (&String, &Value)| {
        let is_list = methods["get"]["parameters"].to_string().contains("limit");
        format!("{}{}", with_values(to, path), if is_list { "?limit=3" } else { "" })
    };
    let asked: Vec<String> = asked.map(question).collect();
    for path in asked.into_iter().chain(more_questions()) {
        let (status, answer) = request(to, "GET", &path, "").expect("an answer");
        answers.insert(format!("GET {path}"), line(status, &answer));
    }
    for (method, params) in calls() {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let (status, answer) = request(to, "POST", "/", &call.to_string()).expect("an answer");
        answers.insert(format!("{method} {params}"), line(status, &answer));
    }
    assert!(server.terminate().success());
    for question in OF_THE_MOMENT {
        let answer = answers.get_mut(question).unwrap_or_else(|| panic!("{question} is not asked"));
        *answer = without_values(answer);
    }
    answers
}

/// The files of chunks that cover whole cells.
fn whole_chunks(sandbox: &Sandbox) -> BTreeMap<String, Vec<u8>> {
    let folder = sandbox.data().join(format!("blobs/log-index+/{CHAIN}+/chunks+"));
    let files = std::fs::read_dir(folder).expect("chunks").map(|file| file.expect("a file"));
    let named = files.map(|file| (file.file_name().to_string_lossy().into_owned(), file.path()));
    let cell = |name: &str| -> Option<(u64, u64)> {
        let mut parts = name.split('-').map(|part| u64::from_str_radix(part, 16));
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let whole = named.filter(|(name, _)| cell(name).is_some_and(|(from, to)| to - from == 16));
    // The last part of the name is random.
    let chunk =
        |name: &str| name.rsplit_once('-').map_or(name.to_owned(), |(chunk, _)| chunk.to_owned());
    whole.map(|(name, path)| (chunk(&name), std::fs::read(path).expect("its bytes"))).collect()
}

#[test]
fn a_new_folder_has_the_chunks_of_the_stored_one() {
    let sandbox = Sandbox::with(&SETTINGS);
    fill(&sandbox);
    let (found, expected) = (whole_chunks(&sandbox), whole_chunks(&stored()));
    assert!(expected.len() >= 6, "{:?}", expected.keys());
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    let differ: Vec<&String> =
        found.keys().filter(|name| found[*name] != expected[*name]).collect();
    assert!(differ.is_empty(), "{differ:?} have other bytes");
}

#[test]
fn a_stored_folder_returns_the_stored_answers() {
    let file = sample().join("answers.txt");
    if is_made_again() {
        let sandbox = Sandbox::with(&SETTINGS);
        fill(&sandbox);
        let archive = sample().join("folder.tar.gz");
        tar(&["-czf", "new.tar.gz", "data"], sandbox.root());
        std::fs::copy(sandbox.root().join("new.tar.gz"), archive).expect("stored");
        let line = |(question, answer): (&String, &String)| format!("{question}\t{answer}\n");
        let lines: String = answers(&stored()).iter().map(line).collect();
        std::fs::write(&file, lines).expect("written");
    }
    let expected = std::fs::read_to_string(&file).expect("the stored answers");
    let lines = expected.lines().map(|line| line.split_once('\t').expect("a question"));
    let expected: BTreeMap<String, String> =
        lines.map(|(question, answer)| (question.to_owned(), answer.to_owned())).collect();
    let found = answers(&stored());
    let questions =
        |answers: &BTreeMap<String, String>| answers.keys().cloned().collect::<Vec<_>>();
    assert_eq!(questions(&found), questions(&expected));
    let differences: Vec<String> = found
        .iter()
        .filter(|(question, answer)| expected.get(*question) != Some(answer))
        .map(|(question, answer)| {
            format!("{question}\n  is  {answer}\n  was {}", expected[question])
        })
        .collect();
    assert!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        found.len(),
        differences.join("\n")
    );
}
