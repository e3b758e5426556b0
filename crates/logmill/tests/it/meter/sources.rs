//! Keys that are renamed, and keys that get another source: what counts, what is refused, and the way out.

use serde_json::{Value, json};

use super::{EVENTS, at, request};
use crate::process::{Place, Server};

const SECRET: &str = "0123456789abcdef";

/// Starts a server whose only key is called so, and may have a source.
fn serve(place: &Place, name: &str, source: &str) -> Server {
    let keys = format!("server.keys={name}:{SECRET}:admin{source}");
    place.serve_with(&["--set", &keys])
}

#[track_caller]
fn ask(server: &Server, method: &str, path: &str, body: &Value) -> (u16, Value) {
    // The rest of the request line becomes a header of no meaning.
    let path = format!("{path} HTTP/1.0\r\nx-apikey: {SECRET}\r\nx-rest:");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, answer) = request(at(server), method, &path, &body).expect("an answer");
    (status, serde_json::from_str(&answer).expect("JSON"))
}

fn send(server: &Server) -> u16 {
    let usage = json!({"customerId": "c", "value": 1, "id": "e1"});
    ask(server, "POST", "/usage/api.calls", &usage).0
}

fn count(server: &Server) -> usize {
    let (status, events) = ask(server, "GET", "/events", &Value::Null);
    assert_eq!(status, 200, "{events}");
    events.as_array().expect("a page").len()
}

#[test]
fn a_renamed_key_bills_once_and_another_source_must_be_forced() {
    let place = Place::with(&[EVENTS, "database.durability=relaxed"]);
    let server = serve(&place, "app", "");
    assert_eq!(send(&server), 201);
    assert!(server.terminate().success());
    // Renamed: what was sent before is sent again, and counts once.
    let server = serve(&place, "billing", "");
    assert_eq!(send(&server), 201);
    assert_eq!(count(&server), 1);
    assert_eq!(ask(&server, "GET", "/config", &Value::Null).1["source"], "app");
    assert!(server.terminate().success());
    // Another source would count it twice.
    let keys = format!("server.keys=billing:{SECRET}:admin:other");
    let with = |arguments: &[&str]| place.run(&[arguments, &["--set", &keys]].concat());
    with(&["run"]).refused(1, &["API key billing", "source app", "meter sources --force"]);
    with(&["meter", "sources"]).refused(1, &["source app"]);
    let shown = with(&["meter", "sources", "--force", "--json"]).json();
    assert_eq!(shown, json!([{"name": "billing", "source": "other", "used": true}]));
    let server = serve(&place, "billing", ":other");
    assert_eq!(send(&server), 201);
    assert_eq!(count(&server), 2, "as was accepted");
    assert!(server.terminate().success());
}
