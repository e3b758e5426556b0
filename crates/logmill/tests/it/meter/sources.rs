//! Renamed keys, and keys with another source: what counts, what is rejected, and how to accept it.

use serde_json::{Value, json};

use super::{EVENTS, at, request};
use crate::process::{Sandbox, Server};

const SECRET: &str = "0123456789abcdef";

/// Starts a server with one key; `source` is empty, or a colon and the source.
fn serve(sandbox: &Sandbox, name: &str, source: &str) -> Server {
    let keys = format!("server.keys={name}:{SECRET}:admin{source}");
    sandbox.serve_with(&["--set", &keys])
}

#[track_caller]
fn ask(server: &Server, method: &str, path: &str, body: &Value) -> (u16, Value) {
    // The rest of the request line becomes a meaningless header.
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
    let sandbox = Sandbox::with(&[EVENTS, "database.durability=relaxed"]);
    let server = serve(&sandbox, "app", "");
    assert_eq!(send(&server), 201);
    assert!(server.terminate().success());
    // After a rename, a repeated event counts once.
    let server = serve(&sandbox, "billing", "");
    assert_eq!(send(&server), 201);
    assert_eq!(count(&server), 1);
    assert_eq!(ask(&server, "GET", "/config", &Value::Null).1["source"], "app");
    assert!(server.terminate().success());
    // With another source it would count twice.
    let keys = format!("server.keys=billing:{SECRET}:admin:other");
    let with = |arguments: &[&str]| sandbox.run(&[arguments, &["--set", &keys]].concat());
    with(&["run"]).assert_refused(1, &["API key billing", "source app", "meter sources --force"]);
    with(&["meter", "sources"]).assert_refused(1, &["source app"]);
    let shown = with(&["meter", "sources", "--force", "--json"]).json();
    assert_eq!(shown, json!([{"name": "billing", "source": "other", "used": true}]));
    let server = serve(&sandbox, "billing", ":other");
    assert_eq!(send(&server), 201);
    assert_eq!(count(&server), 2, "as was accepted");
    assert!(server.terminate().success());
}
