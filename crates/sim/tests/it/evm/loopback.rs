//! The clients over real sockets: HTTP, Unix sockets and WebSockets, with servers that behave and that do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings};
use logmill_chain::{BlockSource, ChainSource, VerifyLevel};
use logmill_io::wire::{
    Endpoint, Feed, HttpClient, HttpWire, IpcWire, Limits, WebSocketFeed, Wire,
};
use logmill_io::{Error, OsEntropy, SystemClock, Tasks};
use logmill_sim::skip;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;

use super::RecordedNode;
use super::servers::{Responder, http, serve_http, serve_ipc};

const LIMITS: Limits = Limits { bytes_max: 1 << 20, timeout: Duration::from_secs(20) };

fn endpoint(address: &str) -> Endpoint {
    Endpoint::parse(address).expect("a fine address")
}

fn client() -> HttpClient {
    HttpClient::new(SystemClock::shared()).expect("a client")
}

fn source(address: &str, set: impl FnOnce(&mut NodeSettings)) -> EvmSource {
    let mut node = NodeSettings::new(endpoint(address));
    set(&mut node);
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    EvmSource::new(vec![node], EvmSettings::new("test"), &client(), clock, &entropy).expect("fine")
}

async fn post(
    responder: Responder,
    limits: Limits,
    with: &str,
) -> Result<logmill_io::wire::WireResponse, Error> {
    let mut server = Tasks::new();
    let address = serve_http(responder, &mut server).await;
    let wire = HttpWire::new(client(), endpoint(&format!("http://{with}{address}/v2/secretkey")));
    wire.exchange(Bytes::from_static(b"{}"), limits).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recorded_chain_comes_over_http() {
    let Some(node) = RecordedNode::read() else {
        return skip("no recorded chain data");
    };
    let mut server = Tasks::new();
    let responder: Responder = Arc::new(move |head, body| {
        assert!(head.starts_with("POST /v2/key HTTP/1.1") && head.contains("application/json"));
        http("200 OK", "", &node.answer(body))
    });
    let address = serve_http(responder, &mut server).await;
    let source = source(&format!("http://{address}/v2/key"), |_| {});
    let blocks = source.blocks(1..55).await.expect("blocks");
    assert_eq!(blocks.len(), 54);
    assert!(blocks.iter().all(|block| block.verified == VerifyLevel::Full));
    assert_eq!(source.nodes()[0].name, address);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recorded_chain_comes_over_a_unix_socket() {
    let Some(node) = RecordedNode::read() else {
        return skip("no recorded chain data");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.ipc");
    let mut server = Tasks::new();
    let responder: Responder = Arc::new(move |_, body| node.answer(body).into_bytes());
    // The node disconnects after every third answer.
    serve_ipc(&path, responder, 3, &mut server);
    let source = source(path.to_str().expect("a path"), |_| {});
    for from in 3..30 {
        let blocks = source.blocks(from..from + 4).await.expect("blocks");
        assert_eq!(blocks.len(), 4);
    }
    assert_eq!(source.nodes()[0].name, "node.ipc");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_cut_off() {
    let endless: Responder = Arc::new(|_, _| {
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..64 {
            answer.extend_from_slice(format!("10000\r\n{}\r\n", "x".repeat(0x10000)).as_bytes());
        }
        answer
    });
    let error = post(endless, LIMITS, "").await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { limit_bytes: 1_048_576, .. }), "{error}");
    // A response that announces its size is not even read.
    let honest: Responder =
        Arc::new(|_, _| b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n".to_vec());
    let error = post(honest, LIMITS, "").await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_finishes_its_answer_times_out() {
    let silent: Responder =
        Arc::new(|_, _| b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec());
    let limits = Limits { timeout: Duration::from_millis(200), ..LIMITS };
    let error = post(silent, limits, "").await.expect_err("too slow");
    assert!(matches!(error, Error::TooSlow { limit_ms: 200, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let elsewhere: Responder = Arc::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        http("307 Temporary Redirect", "Location: /elsewhere\r\nRetry-After: 7\r\n", "")
    });
    let answer = post(elsewhere, LIMITS, "").await.expect("an answer");
    assert_eq!((answer.status, answer.retry_after), (307, Some(Duration::from_secs(7))));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_sent_and_never_shown() {
    let login: Responder = Arc::new(|head, _| {
        let told = head.to_lowercase().contains("authorization: basic dxnlcjpwyxnzd29yza==");
        http(if told { "200 OK" } else { "401 Unauthorized" }, "", "{}")
    });
    let answer = post(login, LIMITS, "user:password@").await.expect("an answer");
    assert_eq!(answer.status, 200);
    let gone: Responder = Arc::new(|_, _| b"garbage\r\n\r\n".to_vec());
    let error = post(gone, LIMITS, "user:password@").await.expect_err("no HTTP");
    let shown = format!("{error} {} {error:?}", error.chain());
    assert!(!shown.contains("password") && !shown.contains("secretkey"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_that_misbehaves_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Tasks::new();
    let ask = |name: &str| {
        IpcWire::new(
            endpoint(folder.path().join(name).to_str().expect("a path")),
            SystemClock::shared(),
        )
    };
    let error =
        ask("nobody").exchange(Bytes::from_static(b"{}"), LIMITS).await.expect_err("nobody");
    assert!(matches!(error, Error::Socket { .. }), "{error}");
    let large: Responder = Arc::new(|_, _| vec![b'['; 2 << 20]);
    serve_ipc(&folder.path().join("large"), large, 1, &mut server);
    let error = ask("large").exchange(Bytes::from_static(b"{}"), LIMITS).await.expect_err("large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let cut: Responder = Arc::new(|_, _| b"{\"id\":".to_vec());
    serve_ipc(&folder.path().join("cut"), cut, 1, &mut server);
    let error = ask("cut").exchange(Bytes::from_static(b"{}"), LIMITS).await.expect_err("cut");
    assert!(matches!(error, Error::Socket { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_socket_wakes_and_one_that_breaks_is_opened_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut server = Tasks::new();
    server.spawn(async move {
        // The first connection sends garbage, the second announces blocks.
        for connection in 0.. {
            let (socket, _) = listener.accept().await.expect("a connection");
            let mut socket = tokio_tungstenite::accept_async(socket).await.expect("a handshake");
            let hello = socket.next().await.expect("a message").expect("a text");
            assert!(hello.to_text().expect("a text").contains("newHeads"));
            if connection == 0 {
                let _ = socket.send(Message::binary(vec![0xff; 10])).await;
                continue;
            }
            let news = r#"{"jsonrpc":"2.0","method":"eth_subscription","params":{}}"#;
            let _ = socket.send(Message::text(news)).await;
            while let Some(Ok(_)) = socket.next().await {}
        }
    });
    let source = source(&format!("ws://{address}/v2/key"), |_| {});
    let hour = Duration::from_secs(3600);
    tokio::time::timeout(Duration::from_secs(60), source.changed(hour)).await.expect("it is woken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_speak_tls_is_an_error() {
    let mut server = Tasks::new();
    let plain: Responder = Arc::new(|_, _| http("200 OK", "", "{}"));
    let address = serve_http(plain, &mut server).await;
    let wire = HttpWire::new(client(), endpoint(&format!("https://{address}/secretkey")));
    let limits = Limits { timeout: Duration::from_secs(2), ..LIMITS };
    let error = wire.exchange(Bytes::from_static(b"{}"), limits).await.expect_err("no TLS");
    assert!(!format!("{error:?}").contains("secretkey"), "{error:?}");
    let to = endpoint(&format!("wss://{address}/secretkey"));
    let feed = WebSocketFeed::new(to, SystemClock::shared());
    let Err(error) = feed.open(String::new(), limits).await else { panic!("no TLS") };
    assert!(!format!("{error:?}").contains("secretkey"), "{error:?}");
}
