//! Usage, with the program as a process: recorded before it is answered, counted once whoever dies, by one process or
//! many.

mod deliveries;
mod five;
mod receiver;
mod sources;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use logmill_sim::http::request;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use crate::process::{Place, Server, wait_until};

const EVENTS: &str =
    r#"meter.events={ "api.calls" = { op = "sum" }, "test.count" = { op = "count" } }"#;
/// Events of one batch.
const BATCH: u64 = 50;

fn place(more: &[&str]) -> Place {
    Place::with(&[&[EVENTS, "database.durability=relaxed"], more].concat())
}

fn at(server: &Server) -> SocketAddr {
    server.rpc().address()
}

#[track_caller]
fn post(to: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = request(to, "POST", path, &body.to_string()).expect("an answer");
    (status, serde_json::from_str(&answer).expect("JSON"))
}

#[track_caller]
fn get(to: SocketAddr, path: &str) -> Value {
    let (status, answer) = request(to, "GET", path, "").expect("an answer");
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).expect("JSON")
}

/// The batch with a number, always the same.
fn batch(number: u64) -> Value {
    let event = |index: u64| {
        json!({
            "eventType": "api.calls", "customerId": format!("c{}", index % 3), "value": 1,
            "id": format!("{number}-{index}"),
        })
    };
    (0..BATCH).map(event).collect()
}

/// What the aggregates of today say of all customers together.
fn counted(to: SocketAddr) -> u64 {
    let all = get(to, "/aggregations?period=yearly");
    let all = all.as_array().expect("an array").iter();
    all.filter_map(|one| one["events"]["api.calls"].as_u64()).sum()
}

/// Triggers until the aggregates say so many.
#[track_caller]
fn wait_for(to: SocketAddr, events: u64) {
    wait_until("all are counted", || {
        let (status, _) = post(to, "/aggregations/trigger", &Value::Null);
        assert!(status == 202 || status == 200, "{status}");
        counted(to) == events
    });
}

#[test]
fn a_server_meters_what_its_configuration_names() {
    let place = place(&["meter.periods=daily,yearly"]);
    let server = place.serve();
    let to = at(&server);
    assert_eq!(post(to, "/usagebatch", &batch(1)).0, 201);
    assert_eq!(post(to, "/usagebatch", &batch(1)).0, 201, "again, and counted once");
    wait_for(to, BATCH);
    let config = get(to, "/config");
    assert_eq!(config["events"]["api.calls"]["op"], "sum");
    assert_eq!(config["periods"], json!(["daily", "yearly"]));
    let refused = place.run(&["meter", "recount"]);
    refused.refused(1, &["needs it for itself"]);
    assert_eq!(place.run(&["meter", "trigger"]).answer(), "asked for; the server does it");
    assert_eq!(place.count("meter.sweep", "dead"), 0);
    assert!(server.terminate().success());
    let recounted = place.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(BATCH), &json!(0)));
    assert!(place.run(&["meter", "trigger"]).answer().contains("jobs for 3 customers"));
}

#[test]
fn without_event_types_nothing_is_metered_and_it_is_said() {
    let place = Place::new();
    let server = place.serve();
    let (status, body) = post(at(&server), "/usage/api.calls", &json!({}));
    assert_eq!(status, 503, "{body}");
    assert!(server.terminate().success());
    assert!(!place.data().join("meter.db").exists());
    place.run(&["meter", "recount"]).refused(1, &["no database"]);
}

#[test]
fn the_systemconfig_of_older_meters_is_read() {
    let place =
        Place::with(&["database.durability=relaxed", "meter.systemconfig=systemconfig.json"]);
    let file = place.root().join("systemconfig.json");
    let config = json!({
        "periods": ["hourly", "daily", "weekly", "monthly"],
        "events": {"api.calls": {"op": "sum"}, "response.time.ms": {"op": "avg"}},
        "webhooks": [{"enabled": true, "url": "https://example.com/sesame", "secret": "your_webhook_secret"}],
    });
    std::fs::write(&file, config.to_string()).expect("written");
    let shown = place.run(&["config", "check"]);
    assert!(shown.answer().contains("response.time.ms"), "{shown:?}");
    assert!(!shown.stdout.contains("your_webhook_secret") && !shown.stdout.contains("sesame"));
    let server = place.serve();
    let config = get(at(&server), "/config");
    assert_eq!(config["events"]["response.time.ms"]["op"], "avg");
    assert!(!config.to_string().contains("your_webhook_secret"), "{config}");
    assert!(server.terminate().success());
    std::fs::write(&file, r#"{"events": {"a": {"op": "sum"}}, "secrets": "sesame"}"#)
        .expect("written");
    let refused = place.run(&["config", "check"]);
    refused.refused(2, &["systemconfig.json"]);
    assert!(!refused.stderr.contains("sesame"), "{refused:?}");
    std::fs::write(&file, r#"{"events": {"a": {"op": "total"}}}"#).expect("written");
    place.run(&["config", "check"]).refused(2, &["meter.events", "total"]);
}

/// Sends batches until it is told to stop, each until it is acknowledged; gives how many were.
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
fn what_was_acknowledged_counts_once_after_kill_9() {
    let place = place(&["meter.periods=yearly"]);
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
            let server = place.serve();
            let to = at(&server);
            port.store(to.port().into(), Ordering::SeqCst);
            let before = get(to, "/events?limit=1")[0]["id"].clone();
            wait_until("more came", || get(to, "/events?limit=1")[0]["id"] != before);
            server.kill();
        }
        let server = place.serve();
        port.store(at(&server).port().into(), Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        let sent: u64 = senders.into_iter().map(|sender| sender.join().expect("no panic")).sum();
        // One more of each, which may have been recorded without an answer.
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
    let recounted = place.run(&["meter", "recount", "--json"]).json();
    assert_eq!(recounted["wrong"], 0, "{recounted}");
    assert!(recounted["events"].as_u64().expect("a count") >= acknowledged * BATCH);
}

#[test]
fn two_processes_share_postgresql() {
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let place = place(&["meter.periods=yearly", &url, "database.schema=logmill_test"]);
    let servers = [place.serve(), place.serve()];
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        // The same batches to both: each event counts once.
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
    let recounted = place.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(sent * BATCH), &json!(0)));
    for server in servers {
        assert!(server.terminate().success());
    }
}
