//! Readiness, with the program as a process: causes, the services that they affect, and recovery. Causes that need no
//! process are tested in `readiness::tests`.

mod chains;
mod failures;
mod shared;
mod starts;

use std::net::SocketAddr;

use logmill_chain::sim::rpc::NodeFaults;
use logmill_sim::http::request;
use logmill_sim::node::{SimNodeServer, grown, sparse};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::process::{Sandbox, Server, at, wait_until};

const EVENTS: &str = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
/// Small sizes and short intervals; a head counts as seen for two seconds.
const QUICK: [&str; 12] = [
    EVENTS,
    "database.durability=relaxed",
    "index.cell_blocks=16",
    "index.piece_logs=40",
    "index.lease_ms=2000",
    "work.lease_ms=2000",
    "work.slow_poll_ms=500",
    "ingest.poll_ms=50",
    "ingest.error_wait_ms=200",
    "chain.request_timeout_ms=1000",
    "ready.head_seen_within_ms=2000",
    "ready.store_timeout_ms=2000",
];

fn sandbox(more: &[&str]) -> Sandbox {
    Sandbox::with(&[&QUICK[..], more].concat())
}

/// A node of a chain of `blocks` blocks.
fn start_node(blocks: u64, finality_lag: u64) -> SimNodeServer {
    SimNodeServer::start(&grown(sparse(5, finality_lag), blocks))
}

/// Status and cause codes of a path below `/ready`.
fn ready(server: &Server, service: &str) -> (u16, Vec<String>) {
    let (status, body) = request(at(server), "GET", &format!("/ready{service}"), "").expect("it");
    let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    let reasons = body["reasons"].as_array().expect("a list");
    let codes: Vec<String> =
        reasons.iter().map(|reason| reason["code"].as_str().expect("a code").to_owned()).collect();
    assert_eq!(body["ready"], codes.is_empty());
    assert_eq!(status, if codes.is_empty() { 200 } else { 503 });
    (status, codes)
}

/// Waits until a cause is reported, and then until exactly the services `left` are ready.
#[track_caller]
fn wait_for(server: &Server, code: &str, left: &[&str]) {
    let mut last = Vec::new();
    let mut holds = || {
        last = ready(server, "").1;
        let of = |service: &&str| ready(server, &format!("/{service}")).0 == 200;
        last.iter().any(|found| found == code)
            && ["rpc", "tables", "meter"].iter().all(|s| of(s) == left.contains(s))
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !holds() {
        if std::time::Instant::now() > end {
            let status = server.rpc().get("/status");
            panic!("{code} with {left:?} left never came: {last:?}, {status:#}");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (health, _) = request(at(server), "GET", "/health", "").expect("an answer");
    assert_eq!(health, 200, "the process is up");
}

#[track_caller]
fn wait_until_ready(server: &Server) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while ready(server, "").0 != 200 {
        if std::time::Instant::now() > end {
            panic!("never ready: {:#}", server.rpc().get("/status"));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Sends a usage event; returns the status of the answer.
fn send(server: &Server, id: &str) -> u16 {
    let event = json!({"eventType": "api.calls", "customerId": "acme", "value": 1, "id": id});
    match request(at(server), "POST", "/usagebatch", &json!([event]).to_string()) {
        Ok((status, _)) => status,
        Err(_) => 0,
    }
}
