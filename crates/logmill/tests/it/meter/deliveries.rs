//! Webhooks of the program as a process: whatever receivers do, and however often the server is killed, every final
//! aggregate is delivered to every live endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::receiver::{ReceivedRequest, Receiver};
use super::{Sandbox, at, get, post, wait_until};

const SETTINGS: [&str; 7] = [
    r#"meter.events={ "api.calls" = { op = "sum" } }"#,
    "meter.periods=hourly",
    "meter.delivery.allowed=127.0.0.1",
    "meter.delivery.timeout_ms=3000",
    "work.lease_ms=3000",
    "work.slow_poll_ms=200",
    "database.durability=relaxed",
];
const PATHS: [&str; 4] = ["/fine", "/flaky", "/reset", "/ordered"];
/// How often the server is killed.
const KILLS: u64 = 4;
const CUSTOMERS: u64 = 4;
/// Hours of usage between two kills.
const HOURS: u64 = 4;
/// 2026-01-13T00:00Z: all periods are over.
const START_MS: u64 = 1_768_262_400_000;

/// Creates an endpoint for each path and returns the paths by endpoint id; and one endpoint that nothing answers.
fn make_endpoints(to: SocketAddr, receiver: &Receiver) -> BTreeMap<String, &'static str> {
    let mut endpoints = BTreeMap::new();
    for path in PATHS {
        let new = json!({"url": receiver.url(path), "ordered": path == "/ordered"});
        let (status, made) = post(to, "/webhooks/endpoints", &new);
        assert_eq!(status, 201, "{made}");
        receiver.expect(path, made["secret"].as_str().expect("a secret"));
        endpoints.insert(made["id"].as_str().expect("an id").to_owned(), path);
    }
    let dead = format!("http://127.0.0.1:{}/", logmill_sim::postgres::free_port());
    assert_eq!(post(to, "/webhooks/endpoints", &json!({ "url": dead })).0, 201);
    endpoints
}

/// Sends usage of the hours between two kills, and of the last hour before them, which makes a correction.
fn send_usage(to: SocketAddr, kill: u64) {
    let hours = (kill * HOURS).saturating_sub(1)..(kill + 1) * HOURS;
    let events = hours.flat_map(|hour| {
        (0..CUSTOMERS).map(move |customer| {
            json!({
                "eventType": "api.calls", "customerId": format!("c{customer}"), "value": hour + 1,
                "id": format!("{kill}-{hour}-{customer}"), "timestamp": START_MS + hour * 3_600_000,
            })
        })
    });
    assert_eq!(post(to, "/usagebatch", &events.collect()).0, 201);
    assert_eq!(post(to, "/aggregations/trigger", &Value::Null).0, 202);
    // An earlier kill would interrupt aggregation instead of a delivery.
    let count = |number: u64| usize::try_from(number).expect("few");
    let (all, corrected) = (count((kill + 1) * HOURS * CUSTOMERS), count(kill * CUSTOMERS));
    wait_until("all is aggregated", || {
        let made = aggregates(to);
        let is_corrected = |(state, _): &&(String, i64)| state == "corrected";
        let counts = (made.len(), made.values().filter(is_corrected).count());
        counts == (all, corrected)
    });
}

/// State and value of every aggregate.
fn aggregates(to: SocketAddr) -> BTreeMap<String, (String, i64)> {
    let all = get(to, "/aggregations?limit=1000");
    let all = all.as_array().expect("an array").iter().map(|one| {
        let text = |name: &str| one[name].as_str().expect("text").to_owned();
        (text("_id"), (text("state"), one["events"]["api.calls"].as_i64().expect("a number")))
    });
    all.collect()
}

/// The ids of an endpoint's messages in a state, oldest first.
fn listed(to: SocketAddr, endpoint: &str, state: &str) -> Vec<String> {
    let path = format!("/webhooks/deliveries?endpointId={endpoint}&state={state}&limit=1000");
    let all = get(to, &path);
    let ids = all.as_array().expect("a page").iter().rev();
    ids.map(|one| one["messageId"].as_str().expect("an id").to_owned()).collect()
}

fn set(ids: &[String]) -> BTreeSet<&str> {
    ids.iter().map(String::as_str).collect()
}

/// The newest state and value of each aggregate that an endpoint received.
fn newest_received(received: &[&ReceivedRequest]) -> BTreeMap<String, (String, i64)> {
    let mut newest_of: BTreeMap<String, (i64, (String, i64))> = BTreeMap::new();
    let mut ids: BTreeMap<(String, i64), &str> = BTreeMap::new();
    let mut bodies: BTreeMap<&str, &str> = BTreeMap::new();
    for one in received {
        assert!(one.is_verified, "{one:?}");
        assert_eq!(*bodies.entry(&one.id).or_insert(&one.body), one.body, "always the same");
        let message: Value = serde_json::from_str(&one.body).expect("JSON");
        let data = &message["data"];
        // The test message of an endpoint has no aggregate.
        let Some(name) = data["aggregationId"].as_str() else { continue };
        let revision = data["revision"].as_i64().expect("a number");
        let id = ids.entry((name.to_owned(), revision)).or_insert(&one.id);
        assert_eq!(*id, one.id, "{name} has one message for revision {revision}");
        let state = data["state"].as_str().expect("text").to_owned();
        let figure = (state, data["events"]["api.calls"].as_i64().expect("a number"));
        let newest = newest_of.entry(name.to_owned()).or_insert((revision, figure.clone()));
        if newest.0 <= revision {
            *newest = (revision, figure);
        }
    }
    newest_of.into_iter().map(|(name, (_, figure))| (name, figure)).collect()
}

#[test]
fn every_final_aggregate_reaches_every_living_endpoint_through_kills() {
    let sandbox = Sandbox::with(&SETTINGS);
    let receiver = Receiver::start();
    let mut server = sandbox.serve();
    let endpoints = make_endpoints(at(&server), &receiver);
    for kill in 0..KILLS {
        let to = at(&server);
        send_usage(to, kill);
        receiver.set_silent(true);
        for endpoint in endpoints.keys() {
            let path = format!("/webhooks/endpoints/{endpoint}/test");
            assert_eq!(post(to, &path, &Value::Null).0, 202);
        }
        wait_until("requests are under way", || receiver.holds("/fine"));
        server.kill();
        receiver.set_silent(false);
        server = sandbox.serve();
        let received = receiver.received();
        for (endpoint, path) in &endpoints {
            // A message that counts as delivered was received, at any time.
            for id in listed(at(&server), endpoint, "succeeded") {
                let is_this =
                    |one: &ReceivedRequest| one.path == *path && one.id == id && one.is_taken;
                assert!(received.iter().any(is_this), "{path} {id}");
            }
        }
    }
    let to = at(&server);
    wait_until("all are notified", || {
        let open = |endpoint: &String, state| !listed(to, endpoint, state).is_empty();
        endpoints.keys().all(|endpoint| !open(endpoint, "pending") && !open(endpoint, "waiting"))
    });
    let (received, made) = (receiver.received(), aggregates(to));
    assert_eq!(u64::try_from(made.len()).expect("few"), KILLS * HOURS * CUSTOMERS);
    for (endpoint, path) in &endpoints {
        let own: Vec<&ReceivedRequest> = received.iter().filter(|one| one.path == *path).collect();
        assert_eq!(newest_received(&own), made, "{path}");
        let succeeded = listed(to, endpoint, "succeeded");
        let taken: Vec<String> =
            own.iter().filter(|one| one.is_taken).map(|one| one.id.clone()).collect();
        assert_eq!(set(&succeeded), set(&taken), "{path}");
        assert!(own.len() > succeeded.len() || *path != "/fine", "those under way were sent again");
        if *path == "/ordered" {
            let mut order: Vec<String> = own.iter().map(|one| one.id.clone()).collect();
            order.dedup();
            assert_eq!(order, succeeded, "each after the one before");
        }
    }
    assert!(server.terminate().success());
}
