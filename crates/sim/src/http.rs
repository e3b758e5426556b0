//! A blocking client for HTTP and JSON-RPC, independent of the code under test.
//!
//! Guarantees: one HTTP/1.0 request per connection, so that a response ends with the connection; no wait is longer
//! than `WAIT_MAX`. Leaves to others: what is expected.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// Read and write timeout.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Maximum number of calls in a batch.
const BATCH_MAX: usize = 500;

/// A JSON-RPC server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonRpc {
    address: SocketAddr,
}

impl JsonRpc {
    pub fn at(address: SocketAddr) -> Self {
        Self { address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL for HTTP clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// URL for WebSocket clients.
    pub fn ws_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Returns the complete response to a call.
    ///
    /// # Errors
    /// If there is no response, or it is not JSON.
    pub fn ask(&self, method: &str, params: &Value) -> io::Result<Value> {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let (_, body) = request(self.address, "POST", "/", &call.to_string())?;
        Ok(serde_json::from_str(&body)?)
    }

    /// Returns the result of a call.
    ///
    /// # Panics
    /// If the call fails.
    #[track_caller]
    #[allow(clippy::needless_pass_by_value, reason = "it is made on the spot")]
    pub fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, &params);
        let mut answer = answer.unwrap_or_else(|error| panic!("{method} {params}: {error}"));
        assert!(answer.get("error").is_none(), "{method} {params}: {answer}");
        answer["result"].take()
    }

    /// Returns code and message of the error of a call.
    ///
    /// # Panics
    /// If the call succeeds.
    #[track_caller]
    #[allow(clippy::needless_pass_by_value, reason = "it is made on the spot")]
    pub fn refusal(&self, method: &str, params: Value) -> (i64, String) {
        let answer = self.ask(method, &params);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {params}: {error}"));
        let error = &answer["error"];
        let code = error["code"].as_i64().unwrap_or_else(|| panic!("{method} {params}: {answer}"));
        (code, error["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns the complete responses to many calls, in order, with as few requests as possible.
    ///
    /// # Panics
    /// If a response is missing.
    #[track_caller]
    pub fn ask_all(&self, calls: &[(String, Value)]) -> Vec<Value> {
        let mut answers = Vec::with_capacity(calls.len());
        for some in calls.chunks(BATCH_MAX) {
            let batch = some.iter().enumerate().map(|(id, (method, params))| {
                json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            });
            let batch: Value = batch.collect();
            let (_, body) = request(self.address, "POST", "/", &batch.to_string())
                .unwrap_or_else(|error| panic!("a batch: {error}"));
            let mut got: Vec<Value> =
                serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body:.500}"));
            assert_eq!(got.len(), some.len(), "as many answers as calls");
            got.sort_by_key(|answer| answer["id"].as_u64());
            answers.append(&mut got);
        }
        answers
    }

    /// Returns the results of many calls, in order.
    ///
    /// # Panics
    /// If a call fails.
    #[track_caller]
    pub fn call_all(&self, calls: &[(String, Value)]) -> Vec<Value> {
        let answers = self.ask_all(calls).into_iter().zip(calls);
        answers
            .map(|(mut answer, call)| {
                assert!(answer.get("error").is_none(), "{call:?}: {answer}");
                answer["result"].take()
            })
            .collect()
    }

    /// Number of the newest block.
    ///
    /// # Panics
    /// If the call fails.
    #[track_caller]
    pub fn head(&self) -> u64 {
        quantity(&self.call("eth_blockNumber", json!([])))
    }

    /// Returns the JSON at a path.
    ///
    /// # Panics
    /// If there is no JSON response.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let (_, body) = request(self.address, "GET", path, "")
            .unwrap_or_else(|error| panic!("GET {path}: {error}"));
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("GET {path}: {error}: {body}"))
    }
}

/// Parses a number of the form `0x…`.
///
/// # Panics
/// If it is not such a number.
#[track_caller]
pub fn quantity(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.unwrap_or_else(|| panic!("no number: {value}"))
}

/// Sends one request; returns status and body.
///
/// # Errors
/// If there is no response, or it is not valid HTTP.
pub fn request(to: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let (status, _, body) = request_with_head(to, method, path, body)?;
    Ok((status, body))
}

/// Sends one request; returns status, head and body.
pub fn request_with_head(
    to: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    let broken = || io::Error::other(format!("no answer of HTTP: {answer:.200}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(broken)?, head.to_owned(), body.to_owned()))
}
