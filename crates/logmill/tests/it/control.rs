//! The control socket, used directly: limits, and errors as JSON.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::process::Sandbox;

/// Sends a request; returns status and body.
fn ask(sandbox: &Sandbox, head: &str, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(sandbox.data().join("control.sock")).expect("connected");
    let head = format!(
        "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    // A server that rejects a body need not read it, so the write may fail.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn requests_have_limits_and_errors_are_json() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve();
    let enqueue = "POST /api/v1/jobs/enqueue";
    let large = format!(r#"{{"kind":"k","key":"1","payload":"{}"}}"#, "x".repeat(2 << 20));
    for (head, body, status) in [
        ("GET /", "", 404),
        ("GET /api/v1/jobs/enqueue", "", 405),
        (enqueue, "{", 400),
        (enqueue, r#"{"kind":"k","key":"1"}"#, 422),
        (enqueue, r#"{"kind":"k","key":"1","payload":1,"colour":2}"#, 422),
        (enqueue, r#"{"kind":"","key":"1","payload":1}"#, 400),
        (enqueue, &large, 413),
        ("POST /api/v1/jobs/cancel", r#"{"kind":"k","key":"1"}"#, 404),
        ("POST /api/v1/jobs/purge", r#"{"kind":"k","state":"odd","older_than_ms":1}"#, 400),
    ] {
        let (answered, problem) = ask(&sandbox, head, body);
        assert_eq!(answered, status, "{head} {problem}");
        assert!(problem["error"].is_string(), "{head} {problem}");
    }
    let (status, answer) = ask(&sandbox, enqueue, r#"{"kind":"k","key":"1","payload":{"a":1}}"#);
    assert_eq!((status, &answer["outcome"]), (200, &"created".into()));
    assert_eq!(sandbox.count("k", "pending"), 1);
    assert!(server.terminate().success());
}

#[test]
fn a_silent_client_does_not_delay_the_stop() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve();
    let _silent = UnixStream::connect(sandbox.data().join("control.sock")).expect("connected");
    assert!(server.terminate().success());
}
