//! Invalid or excessive HTTP requests: each gets an error response, and its connection is closed.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::test_server::{TestServer, small};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;

/// Far less than the server's body timeout.
const SOON: Duration = Duration::from_secs(15);

/// Sends bytes and reads until the server closes. `half_closes`: the client closes its side first.
async fn exchange(server: &TestServer, sent: &[u8], half_closes: bool) -> String {
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    stream.write_all(sent).await.expect("all of it is taken");
    if half_closes {
        stream.shutdown().await.expect("half closed");
    }
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
    read.expect("it is closed soon").expect("and not reset");
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    let kind = "Content-Type: application/json\r\n";
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{kind}{headers}\r\n{body}").into_bytes()
}

async fn server() -> TestServer {
    let (last, tip) = small();
    TestServer::of(last, tip).await
}

#[tokio::test]
async fn a_malformed_request_gets_the_reason_and_the_connection_is_closed() {
    let server = server().await;
    let chunked = format!("{:x}\r\n{CALL}\r\n0\r\n\r\n", CALL.len());
    let length = CALL.len();
    let (te, cl) = ("Transfer-Encoding: chunked\r\n", format!("Content-Length: {length}\r\n"));
    let long = "x".repeat(70 << 10);
    let huge = 10_u64 << 30;
    for (name, sent, status) in [
        ("two lengths", post(&format!("{te}{cl}"), &chunked), 400),
        ("two lengths, the other way", post(&format!("{cl}{te}"), &chunked), 400),
        ("two different lengths", post(&format!("{cl}Content-Length: 3\r\n"), CALL), 400),
        ("no length", post("Content-Length: many\r\n", CALL), 400),
        ("another encoding", post("Transfer-Encoding: gzip\r\n", CALL), 400),
        ("a head of 70 KiB", post(&format!("X: {long}\r\n{cl}"), CALL), 431),
        ("a body of 10 GiB", post(&format!("Content-Length: {huge}\r\n"), "{"), 413),
        ("no HTTP", b"nonsense\r\n\r\n".to_vec(), 400),
        ("no Host", b"GET /health HTTP/1.1\r\n\r\n".to_vec(), 400),
        ("no Host but a target", b"GET http://a/health HTTP/1.1\r\n\r\n".to_vec(), 400),
        ("two Hosts", b"GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".to_vec(), 400),
    ] {
        let answer = exchange(&server, &sent, false).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{name}: {answer}");
        if status != 431 && name.contains("two lengths") || status == 413 {
            assert!(answer.to_lowercase().contains("connection: close"), "{name}: {answer}");
        }
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: {answer}");
    }
    let answer = exchange(&server, b"GET /health HTTP/1.0\r\n\r\n", false).await;
    assert!(answer.starts_with("HTTP/1.0 200 "), "only HTTP/1.1 needs a Host: {answer}");
    let cut = post("Content-Length: 1000\r\n", CALL);
    let answer = exchange(&server, &cut, true).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "a body that is cut: {answer}");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_while_it_is_sent_and_the_client_reads_why() {
    let server = server().await;
    // Announced by its length, and sent in chunks.
    let mut by_length = post("Content-Length: 2097152\r\n", "");
    by_length.extend(std::iter::repeat_n(b' ', 2 << 20));
    let mut by_pieces = post("Transfer-Encoding: chunked\r\n", "");
    for _ in 0..32 {
        by_pieces.extend(b"10000\r\n");
        by_pieces.extend(std::iter::repeat_n(b' ', 1 << 16));
        by_pieces.extend(b"\r\n");
    }
    by_pieces.extend(b"0\r\n\r\n");
    for sent in [by_length, by_pieces] {
        let answer = exchange(&server, &sent, false).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
}

#[tokio::test]
async fn a_valid_request_is_answered_and_the_connection_is_kept() {
    let server = server().await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let length = CALL.len();
    let plain = post(&format!("Content-Length: {length}\r\n"), CALL);
    let chunked =
        post("Transfer-Encoding: chunked\r\n", &format!("{length:x}\r\n{CALL}\r\n0\r\n\r\n"));
    for request in [&plain, &chunked, &plain] {
        stream.write_all(request).await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let read = stream.read_buf(&mut answer).await.expect("an answer");
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    }
    // Pipelined requests, the second of which has two lengths: the rest must not be answered as a third request.
    let mut both = plain.clone();
    both.extend(post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"));
    both.extend(&plain);
    let answer = exchange(&server, &both, false).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 2, "{answer}");
}
