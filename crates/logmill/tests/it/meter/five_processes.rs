//! Five processes on one PostgreSQL: overlapping batches go to all of them while some are killed, and every event
//! counts once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use logmill_sim::http::request;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use super::{Sandbox, at, get, post, wait_until};
use crate::process::Server;

const TYPES: &str = "meter.events={ \"a.sum\" = { op = \"sum\" }, \"b.last\" = { op = \"last\" }, \
    \"c.max\" = { op = \"max\" }, \"d.count\" = { op = \"count\" } }";
const NAMES: [&str; 4] = ["a.sum", "b.last", "c.max", "d.count"];
const PROCESSES: usize = 5;
/// Events per batch. Each batch starts [`STEP`] events after the one before, so most events are in three batches.
const BATCH: u64 = 30;
const STEP: u64 = 10;
const BATCHES: u64 = 60;
const EVENTS: u64 = (BATCHES - 1) * STEP + BATCH;
/// 2026-01-13T00:00Z. Events are [`APART_MS`] apart, so that they span two days.
const START_MS: u64 = 1_768_262_400_000;
const APART_MS: u64 = 200_000;

fn value(number: u64) -> i64 {
    i64::try_from(number * 7_919 % 1_009).expect("small") - 500
}

fn event(number: u64) -> Value {
    json!({
        "eventType": NAMES[usize::try_from(number % 4).expect("small")],
        "customerId": format!("c{}", number % 3), "value": value(number),
        "id": format!("e{number}"), "timestamp": START_MS + number * APART_MS,
    })
}

fn batch(number: u64) -> Value {
    (number * STEP..number * STEP + BATCH).map(event).collect()
}

/// By customer, day and type: the value and the number of events.
type Figures = BTreeMap<(String, String, String), (i64, u64)>;

fn naive() -> Figures {
    let mut figures = Figures::new();
    for number in 0..EVENTS {
        let day = 13 + number * APART_MS / 86_400_000;
        let name = NAMES[usize::try_from(number % 4).expect("small")];
        let key = (format!("c{}", number % 3), format!("202601{day}"), name.to_owned());
        let (value, before) = (value(number), figures.get(&key).copied());
        let (sum, count) = before.unwrap_or((0, 0));
        let folded = match name {
            "a.sum" => sum + value,
            "b.last" => value,
            "c.max" => before.map_or(value, |(most, _)| most.max(value)),
            _ => sum + 1,
        };
        figures.insert(key, (folded, count + 1));
    }
    figures
}

fn aggregated(to: SocketAddr) -> Figures {
    let mut figures = Figures::new();
    for one in get(to, "/aggregations?period=daily&limit=1000").as_array().expect("an array") {
        let text = |name: &str| one[name].as_str().expect("text").to_owned();
        for (name, count) in one["eventCounts"].as_object().expect("counts") {
            let key = (text("customerId"), text("periodKey"), name.clone());
            let value = one["events"][name].as_i64().expect("a number");
            figures.insert(key, (value, count.as_u64().expect("a count")));
        }
    }
    figures
}

/// The same figures from live queries.
fn queried(to: SocketAddr) -> Figures {
    let mut figures = Figures::new();
    for name in NAMES {
        let path = format!(
            "/meters/query?eventType={name}&from=2026-01-13T00:00:00Z&to=2026-01-16T00:00:00Z\
             &window=daily&groupBy=customerId"
        );
        for line in get(to, &path)["data"].as_array().expect("lines") {
            let customer = line["group"]["customerId"].as_str().expect("a customer");
            let day = line["start"].as_str().expect("a moment")[..10].replace('-', "");
            let (value, count) = (line["value"].as_i64(), line["count"].as_u64());
            let figure = (value.expect("a number"), count.expect("a count"));
            figures.insert((customer.to_owned(), day, name.to_owned()), figure);
        }
    }
    figures
}

/// Sends every batch until it is acknowledged, each to the next process; a retry must return the same answer. Each
/// sender starts with a different batch.
fn send_all(sender: usize, addresses: &[Mutex<SocketAddr>], acknowledged: &AtomicU64) {
    let first = BATCHES / 5 * u64::try_from(sender).expect("small");
    for step in 0..BATCHES {
        let number = (first + step) % BATCHES;
        let process = (sender + usize::try_from(step).expect("small")) % PROCESSES;
        let ids = (number * STEP..number * STEP + BATCH).map(|event| format!("e{event}"));
        let expected = json!({
            "message": "Events captured", "count": BATCH, "ids": ids.collect::<Vec<_>>(),
        });
        loop {
            let to = *addresses[process].lock().expect("no panic");
            match request(to, "POST", "/usagebatch", &batch(number).to_string()) {
                Ok((201, body)) => {
                    let answer: Value = serde_json::from_str(&body).expect("JSON");
                    assert_eq!(answer, expected);
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                Ok((503, _)) | Err(_) => std::thread::yield_now(),
                Ok((status, body)) => panic!("{status}: {body}"),
            }
        }
    }
}

#[test]
fn five_processes_of_which_two_are_killed_count_every_event_once() {
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let schema = "database.schema=logmill_test";
    let sandbox =
        Sandbox::with(&[TYPES, "database.durability=relaxed", "meter.periods=daily", &url, schema]);
    let mut servers: Vec<Server> = (0..PROCESSES).map(|_| sandbox.serve()).collect();
    let addresses: Vec<Mutex<SocketAddr>> =
        servers.iter().map(|server| Mutex::new(at(server))).collect();
    let (acknowledged, all) = (AtomicU64::new(0), BATCHES * 5);
    std::thread::scope(|scope| {
        for sender in 0..5 {
            let (addresses, acknowledged) = (&addresses, &acknowledged);
            scope.spawn(move || send_all(sender, addresses, acknowledged));
        }
        for (process, after) in [(1, all / 6), (3, all / 3)] {
            let so_far = || acknowledged.load(Ordering::SeqCst);
            wait_until("a part was sent", || so_far() >= after);
            servers.remove(process).kill();
            assert!(so_far() < all, "it was killed in the middle");
            servers.insert(process, sandbox.serve());
            *addresses[process].lock().expect("no panic") = at(&servers[process]);
        }
    });
    assert_eq!(acknowledged.load(Ordering::SeqCst), all);
    let naive = naive();
    for server in &servers {
        assert_eq!(queried(at(server)), naive);
    }
    assert_eq!(post(at(&servers[3]), "/aggregations/trigger", &Value::Null).0, 202);
    // Compare values, not only their number: a sweep may have aggregated before the rest was sent.
    wait_until("all is aggregated", || aggregated(at(&servers[0])) == naive);
    for server in &servers {
        assert_eq!(aggregated(at(server)), naive);
    }
    let recounted = sandbox.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(EVENTS), &json!(0)));
    for server in servers {
        assert!(server.terminate().success());
    }
}
