//! Usage, with the program as a process: recorded before it is acknowledged, and counted once even if processes die,
//! by one process or many.

mod acceptance;
mod deliveries;
mod five_processes;
mod held;
mod receiver;
mod sources;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use logmill_sim::http::request;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use crate::process::{Sandbox, at, get, post, signal, wait_until};

const EVENTS: &str =
    r#"meter.events={ "api.calls" = { op = "sum" }, "test.count" = { op = "count" } }"#;
/// Events per batch.
const BATCH: u64 = 50;

fn sandbox(more: &[&str]) -> Sandbox {
    Sandbox::with(&[&[EVENTS, "database.durability=relaxed"], more].concat())
}

/// The batch with this number; its content is deterministic.
fn batch(number: u64) -> Value {
    let event = |index: u64| {
        json!({
            "eventType": "api.calls", "customerId": format!("c{}", index % 3), "value": 1,
            "id": format!("{number}-{index}"),
        })
    };
    (0..BATCH).map(event).collect()
}

/// Sum of the yearly aggregates of all customers.
fn counted(to: SocketAddr) -> u64 {
    let all = get(to, "/aggregations?period=yearly");
    let all = all.as_array().expect("an array").iter();
    all.filter_map(|one| one["events"]["api.calls"].as_u64()).sum()
}

/// Triggers aggregation until the aggregates count `events` events.
#[track_caller]
fn wait_for(to: SocketAddr, events: u64) {
    wait_until("all are counted", || {
        let (status, _) = post(to, "/aggregations/trigger", &Value::Null);
        assert!(status == 202 || status == 200, "{status}");
        counted(to) == events
    });
}

#[test]
fn a_server_meters_the_configured_event_types() {
    let sandbox = sandbox(&["meter.periods=daily,yearly"]);
    let server = sandbox.serve();
    let to = at(&server);
    assert_eq!(post(to, "/usagebatch", &batch(1)).0, 201);
    assert_eq!(post(to, "/usagebatch", &batch(1)).0, 201, "again, and counted once");
    wait_for(to, BATCH);
    let config = get(to, "/config");
    assert_eq!(config["events"]["api.calls"]["op"], "sum");
    assert_eq!(config["periods"], json!(["daily", "yearly"]));
    let refused = sandbox.run(&["meter", "recount"]);
    refused.assert_refused(1, &["needs exclusive access"]);
    assert_eq!(
        sandbox.run(&["meter", "trigger"]).answer(),
        "requested; the running server enqueues the jobs"
    );
    assert_eq!(sandbox.count("meter.sweep", "dead"), 0);
    assert!(server.terminate().success());
    let recounted = sandbox.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(BATCH), &json!(0)));
    assert!(sandbox.run(&["meter", "trigger"]).answer().contains("jobs for 3 customers"));
}

#[test]
fn without_event_types_usage_is_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve();
    let (status, body) = post(at(&server), "/usage/api.calls", &json!({}));
    assert_eq!(status, 503, "{body}");
    assert!(server.terminate().success());
    assert!(!sandbox.data().join("meter.db").exists());
    sandbox.run(&["meter", "recount"]).assert_refused(1, &["no database"]);
}

#[test]
fn the_systemconfig_of_older_meters_is_read() {
    let sandbox =
        Sandbox::with(&["database.durability=relaxed", "meter.systemconfig=systemconfig.json"]);
    let file = sandbox.root().join("systemconfig.json");
    let config = json!({
        "periods": ["hourly", "daily", "weekly", "monthly"],
        "events": {"api.calls": {"op": "sum"}, "response.time.ms": {"op": "avg"}},
        "webhooks": [{"enabled": true, "url": "https://example.com/sesame", "secret": "your_webhook_secret"}],
    });
    std::fs::write(&file, config.to_string()).expect("written");
    let shown = sandbox.run(&["config", "check"]);
    assert!(shown.answer().contains("response.time.ms"), "{shown:?}");
    assert!(!shown.stdout.contains("your_webhook_secret") && !shown.stdout.contains("sesame"));
    let server = sandbox.serve();
    let config = get(at(&server), "/config");
    assert_eq!(config["events"]["response.time.ms"]["op"], "avg");
    assert!(!config.to_string().contains("your_webhook_secret"), "{config}");
    let endpoints = get(at(&server), "/webhooks/endpoints");
    assert_eq!(endpoints[0]["url"], "https://example.com/sesame", "{endpoints}");
    assert_eq!(endpoints[0]["enabled"], true, "{endpoints}");
    assert!(server.terminate().success());
    std::fs::write(&file, r#"{"events": {"a": {"op": "sum"}}, "secrets": "sesame"}"#)
        .expect("written");
    let refused = sandbox.run(&["config", "check"]);
    refused.assert_refused(2, &["systemconfig.json"]);
    assert!(!refused.stderr.contains("sesame"), "{refused:?}");
    std::fs::write(&file, r#"{"events": {"a": {"op": "total"}}}"#).expect("written");
    sandbox.run(&["config", "check"]).assert_refused(2, &["meter.events", "total"]);
}

#[test]
fn enabled_webhooks_of_the_systemconfig_are_notified_and_signed_with_their_secret() {
    const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SECOND: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";
    let settings = [
        "database.durability=relaxed",
        "meter.systemconfig=systemconfig.json",
        "meter.delivery.allowed=127.0.0.1",
    ];
    let (sandbox, receiver) = (Sandbox::with(&settings), receiver::Receiver::start());
    receiver.expect("/on", FIRST);
    receiver.expect("/off", SECOND);
    let config = json!({
        "periods": ["hourly"],
        "events": {"api.calls": {"op": "sum"}},
        "webhooks": [
            {"enabled": true, "url": receiver.url("/on"), "secret": FIRST},
            {"enabled": false, "url": receiver.url("/off"), "secret": SECOND},
        ],
    });
    std::fs::write(sandbox.root().join("systemconfig.json"), config.to_string()).expect("written");
    let server = sandbox.serve();
    let event = json!({"customerId": "c", "value": 7, "timestamp": "2026-01-13T05:10:00Z"});
    assert_eq!(post(at(&server), "/usage/api.calls", &event).0, 201);
    assert_eq!(post(at(&server), "/aggregations/trigger", &Value::Null).0, 202);
    // The receiver checks the signature with the secret of the path.
    wait_until("the first is notified", || receiver.received().iter().any(|one| one.is_taken));
    let received = receiver.received();
    assert!(received.iter().all(|one| one.path == "/on"), "the second is off");
    assert!(received.iter().all(|one| one.is_verified), "{received:?}");
    // The deliveries to all endpoints are created with the message, so none can follow later.
    let endpoints = get(at(&server), "/webhooks/endpoints");
    let enabled = endpoints.as_array().expect("a list").iter().filter(|one| one["enabled"] == true);
    let enabled: Vec<&Value> = enabled.collect();
    let url = enabled[0]["url"].as_str().expect("an address");
    assert!(enabled.len() == 1 && url.ends_with("/on"), "{endpoints}");
    let deliveries = get(at(&server), "/webhooks/deliveries");
    let deliveries = deliveries.as_array().expect("a list");
    assert!(deliveries.iter().all(|one| one["endpointId"] == enabled[0]["id"]), "{deliveries:?}");
    assert!(!deliveries.is_empty());
    assert!(server.terminate().success());
}

/// Sends batches until `stop` is set, retrying each until it is acknowledged; returns how many were.
fn send_until(stop: &AtomicBool, to: impl Fn() -> Option<SocketAddr>, from: u64) -> u64 {
    let mut number = from;
    while !stop.load(Ordering::SeqCst) {
        let Some(to) = to() else { continue };
        match request(to, "POST", "/usagebatch", &batch(number).to_string()) {
            Ok((201, _)) => number += 1,
            Ok((503, _)) | Err(_) => std::thread::yield_now(),
            Ok((status, body)) => panic!("{status}: {body}"),
        }
    }
    number - from
}

#[test]
fn acknowledged_usage_counts_once_after_kill_9() {
    let sandbox = sandbox(&["meter.periods=yearly"]);
    let (stop, port) = (AtomicBool::new(false), AtomicU64::new(0));
    let address = || {
        let port = u16::try_from(port.load(Ordering::SeqCst)).expect("a port");
        (port != 0).then(|| SocketAddr::from(([127, 0, 0, 1], port)))
    };
    let acknowledged = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                let (stop, address) = (&stop, &address);
                scope.spawn(move || send_until(stop, address, sender * 1_000_000))
            })
            .collect();
        for _ in 0..3 {
            let server = sandbox.serve();
            let to = at(&server);
            port.store(to.port().into(), Ordering::SeqCst);
            let before = get(to, "/events?limit=1")[0]["id"].clone();
            wait_until("more came", || get(to, "/events?limit=1")[0]["id"] != before);
            server.kill();
        }
        let server = sandbox.serve();
        port.store(at(&server).port().into(), Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        let sent: u64 = senders.into_iter().map(|sender| sender.join().expect("no panic")).sum();
        // One more batch of each sender may have been recorded without an answer.
        let to = at(&server);
        wait_until("all are counted", || {
            post(to, "/aggregations/trigger", &Value::Null);
            let count = counted(to);
            count >= sent * BATCH && count <= (sent + 2) * BATCH && count.is_multiple_of(BATCH)
        });
        assert!(server.terminate().success());
        sent
    });
    assert!(acknowledged > 0);
    let recounted = sandbox.run(&["meter", "recount", "--json"]).json();
    assert_eq!(recounted["wrong"], 0, "{recounted}");
    assert!(recounted["events"].as_u64().expect("a count") >= acknowledged * BATCH);
}

#[test]
fn two_processes_share_postgresql() {
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let sandbox = sandbox(&["meter.periods=yearly", &url, "database.schema=logmill_test"]);
    let servers = [sandbox.serve(), sandbox.serve()];
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        // Both get the same batches: each event counts once.
        let senders: Vec<_> = servers
            .iter()
            .map(|server| {
                let (to, stop) = (at(server), &stop);
                scope.spawn(move || send_until(stop, || Some(to), 0))
            })
            .collect();
        let enough = json!(format!("20-{}", BATCH - 1));
        let newest = || get(at(&servers[0]), "/events?limit=1000");
        wait_until("both have sent", || {
            newest().as_array().is_some_and(|all| all.iter().any(|event| event["id"] == enough))
        });
        stop.store(true, Ordering::SeqCst);
        senders.into_iter().map(|sender| sender.join().expect("no panic")).max().unwrap_or(0)
    });
    for server in &servers {
        wait_for(at(server), sent * BATCH);
    }
    let recounted = sandbox.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(sent * BATCH), &json!(0)));
    for server in servers {
        assert!(server.terminate().success());
    }
}

#[test]
fn an_idle_server_that_meters_stops_at_once_and_not_at_its_deadline() {
    let sandbox = sandbox(&["meter.periods=yearly", "work.stop_deadline_ms=60000"]);
    let server = sandbox.serve();
    assert!(get(at(&server), "/status")["services"]["meter"].is_boolean());
    signal("TERM", server.id());
    // Far longer than it needs, and far shorter than the deadline.
    let (ended, log) = server.wait_for_end_within(Duration::from_secs(20));
    assert!(ended.success(), "{log}");
}
