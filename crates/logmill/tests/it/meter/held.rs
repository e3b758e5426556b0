//! Webhooks of the configuration of a server whose key of webhook secrets is missing: their messages are held.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::receiver::Receiver;
use super::{Sandbox, at, get, post, wait_until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Sends usage of a past hour of January and waits until the message about it is stored.
fn use_hour(to: SocketAddr, hour: usize) {
    let time = format!("2026-01-13T{hour:02}:10:00Z");
    let event = json!({"customerId": "c", "value": hour, "timestamp": time});
    assert_eq!(post(to, "/usage/api.calls", &event).0, 201);
    assert_eq!(post(to, "/aggregations/trigger", &Value::Null).0, 202);
    wait_until("there is a message", || deliveries(to).len() == hour);
}

fn deliveries(to: SocketAddr) -> Vec<Value> {
    get(to, "/webhooks/deliveries").as_array().expect("a list").clone()
}

fn endpoint(to: SocketAddr) -> Value {
    let mut endpoints = get(to, "/webhooks/endpoints").as_array().expect("a list").clone();
    assert_eq!(endpoints.len(), 1, "{endpoints:?}");
    endpoints.remove(0)
}

/// The key comes back, or another one takes its sandbox: the secret itself is in the configuration.
#[test]
fn messages_for_webhooks_of_the_configuration_are_held_while_the_key_is_missing() {
    let receiver = Receiver::start();
    receiver.expect("/hook", SECRET);
    let webhooks =
        format!(r#"meter.webhooks=[{{ url = "{}", secret = "{SECRET}" }}]"#, receiver.url("/hook"));
    let events = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
    let more = ["meter.periods=hourly", "meter.delivery.allowed=127.0.0.1", "work.slow_poll_ms=50"];
    let sandbox =
        Sandbox::with(&[&["database.durability=relaxed", events, &webhooks], &more[..]].concat());
    let taken = || receiver.received().iter().filter(|one| one.is_taken).count();

    let server = sandbox.serve();
    use_hour(at(&server), 1);
    wait_until("the first is sent", || taken() == 1);
    assert!(server.terminate().success());
    let file = sandbox.data().join("secrets.key");
    let key = fs::read_to_string(&file).expect("a key");
    let another = sandbox.run(&["secrets", "generate"]).answer().to_owned();

    for (hour, later) in [(2, key.as_str()), (3, another.as_str())] {
        fs::remove_file(&file).expect("removed");
        let server = sandbox.serve();
        let to = at(&server);
        use_hour(to, hour);
        let held = endpoint(to);
        assert_eq!(held["enabled"], false, "{held}");
        assert!(held.to_string().contains("a key that is not configured"), "{held}");
        let all = deliveries(to);
        let states: Vec<&Value> = all.iter().map(|one| &one["state"]).collect();
        assert_eq!(states[0], "pending", "{all:?}");
        assert!(states[1..].iter().all(|state| *state == "succeeded"), "{all:?}");
        assert!(server.terminate().success());
        assert_eq!(receiver.received().len(), hour - 1, "nothing is sent meanwhile");

        fs::write(&file, later).expect("written");
        let server = sandbox.serve();
        wait_until("what was held is sent", || taken() == hour);
        let shown = endpoint(at(&server));
        assert_eq!(shown["enabled"], true, "{shown}");
        assert!(server.terminate().success());
    }
    let received = receiver.received();
    assert!(received.len() == 3 && received.iter().all(|one| one.is_verified), "{received:?}");
}
