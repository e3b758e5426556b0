//! HTTP/2 with prior knowledge: many requests on one connection, within limits.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use logmill_io::Tasks;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::test_server::{TestServer, small};

fn request(address: std::net::SocketAddr, id: usize) -> hyper::Request<Full<bytes::Bytes>> {
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "eth_blockNumber"});
    hyper::Request::post(format!("http://{address}/"))
        .header("content-type", "application/json")
        .body(Full::from(call.to_string()))
        .expect("a request")
}

#[tokio::test]
async fn many_requests_are_answered_on_one_connection() {
    let (last, tip) = small();
    let server =
        TestServer::with(last, tip, |state| state.limits.connections.max_connections = 1).await;
    let stream = TcpStream::connect(server.address).await.expect("connected");
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    let mut tasks: Tasks<()> = Tasks::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    // With the first response comes the stream limit, which the client respects from then on.
    let first = sender.clone().send_request(request(server.address, 0)).await.expect("an answer");
    assert_eq!(first.status().as_u16(), 200);
    let mut asking: Tasks<()> = Tasks::new();
    for id in 0..200 {
        let (mut sender, request) = (sender.clone(), request(server.address, id));
        asking.spawn(async move {
            sender.ready().await.expect("it goes on");
            let response = sender.send_request(request).await.expect("an answer");
            assert_eq!(response.version(), hyper::Version::HTTP_2);
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            let answer: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &json!("0xc")));
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.expect("no panic");
    }
    // The host is checked for HTTP/2 too.
    let mut sender = sender;
    sender.ready().await.expect("it goes on");
    let foreign = hyper::Request::post("http://rebound.example/")
        .header("content-type", "application/json")
        .body(Full::from("{}"))
        .expect("a request");
    assert_eq!(sender.send_request(foreign).await.expect("an answer").status().as_u16(), 403);
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[tokio::test]
async fn a_client_that_never_opens_its_window_loses_its_connection() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| {
        state.limits.connections.body_timeout = Duration::from_millis(200);
    })
    .await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0: the server may send no response body.
    sent.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    sent.extend(frame(1, 0x5, 1, &[0x82, 0x86, 0x84]));
    stream.write_all(&sent).await.expect("sent");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    // The connection may be reset, because the server's settings are not acknowledged.
    let _ = ended.await.expect("the connection ends");
    assert_eq!(server.get("/health").await.0, 200, "others are served");
}

#[tokio::test]
async fn a_client_that_resets_its_requests_at_once_loses_its_connection() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    for request in 0..5_000_u32 {
        let id = 2 * request + 1;
        // `:method GET`, `:scheme http`, `:path /` from the static table; then the stream is reset.
        sent.extend(frame(1, 0x5, id, &[0x82, 0x86, 0x84]));
        sent.extend(frame(3, 0, id, &8_u32.to_be_bytes()));
    }
    // The server may close the connection during the write.
    let _ = stream.write_all(&sent).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    // GOAWAY with the code ENHANCE_YOUR_CALM.
    let mut rest = &answer[..];
    let mut codes = Vec::new();
    while let Some((head, more)) = rest.split_at_checked(9) {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, more)) = more.split_at_checked(length) else { break };
        if head[3] == 7 {
            codes.push(payload[7]);
        }
        rest = more;
    }
    assert!(codes.contains(&0xb) || answer.is_empty(), "{codes:?}");
    assert_eq!(server.get("/health").await.0, 200, "others are served");
}
