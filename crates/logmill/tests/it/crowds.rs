//! Crowds of connections that send nothing, or hardly anything: a client that sends a request is still served.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use logmill_chain::sim::{Shape, SimChain, SimSettings};
use logmill_sim::http::request;
use logmill_sim::node::{SimNodeServer, grown, sparse};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use crate::process::{Sandbox, Server, wait_until};

/// More than the maximum connections of a server.
const CROWD: usize = 1_500;
/// Time limit of an answer, with room for a busy machine.
const SOON: Duration = Duration::from_secs(10);

const NOTHING: &str = "";
const HALF_A_HEAD: &str = "GET /status HTTP/1.1\r\nHost: localhost\r\nX-";
const HALF_A_BODY: &str = "POST /usagebatch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
    Content-Length: 1000\r\n\r\n{";

fn sandbox(more: &[&str]) -> Sandbox {
    // The meter accepts requests with bodies.
    let meter = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
    Sandbox::with(&[&["database.durability=relaxed", meter], more].concat())
}

/// A connection from a loopback address that has sent only `sent`.
async fn half_open(from: IpAddr, to: SocketAddr, sent: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::new(from, 0)).expect("all of 127.0.0.0/8 is ours");
    let mut stream = socket.connect(to).await.expect("connected");
    // The server may have closed it already.
    let _ = stream.write_all(sent.as_bytes()).await;
    stream
}

/// Opens more connections than a server allows, from `addresses` addresses.
async fn crowd(to: SocketAddr, addresses: usize, sent: &str) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for number in 0..CROWD {
        let last = u8::try_from(number % addresses).expect("at most 250") + 1;
        streams.push(half_open([127, 0, 0, last].into(), to, sent).await);
    }
    streams
}

#[track_caller]
fn assert_answers(to: SocketAddr, path: &str) {
    let asked = Instant::now();
    let (status, body) = request(to, "GET", path, "").expect("an answer");
    assert_eq!(status, 200, "{body}");
    let took = asked.elapsed();
    println!("{path} was answered after {took:?}");
    assert!(took < SOON, "{path} was answered after {took:?}");
}

fn check_crowd(addresses: usize, sent: &str) {
    logmill_io::raise_open_files();
    // Far longer than the test, so that connections are closed only to admit others.
    let sandbox = sandbox(&["server.header_timeout_ms=600000", "server.body_timeout_ms=600000"]);
    let server = sandbox.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let streams = runtime.block_on(crowd(to, addresses, sent));
    for path in ["/health", "/status", "/metrics"] {
        assert_answers(to, path);
    }
    let (_, metrics) = request(to, "GET", "/metrics", "").expect("an answer");
    assert!(metrics.contains("logmill_http_connections_dropped_total"), "{metrics}");
    drop(streams);
    assert!(server.terminate().success());
}

#[test]
fn half_open_connections_of_many_addresses_do_not_stop_requests() {
    check_crowd(250, HALF_A_HEAD);
}

#[test]
fn half_open_connections_of_one_address_do_not_stop_requests_from_the_same() {
    check_crowd(1, NOTHING);
}

#[test]
fn bodies_that_never_end_do_not_stop_requests() {
    check_crowd(100, HALF_A_BODY);
}

/// Waits until the server closes a connection; returns what the server had sent.
fn until_closed(runtime: &Runtime, mut stream: TcpStream) -> String {
    let closed = runtime.block_on(async {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer));
        let _ = read.await.expect("the server lets go of it");
        answer
    });
    String::from_utf8_lossy(&closed).into_owned()
}

#[test]
fn connections_that_take_too_long_to_send_are_closed() {
    let sandbox = sandbox(&["server.header_timeout_ms=300", "server.body_timeout_ms=300"]);
    let server = sandbox.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let idle = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (sent, answered) in
        [(NOTHING, ""), (HALF_A_HEAD, ""), (HALF_A_BODY, ""), (idle, "HTTP/1.1 200 OK")]
    {
        let stream = runtime.block_on(half_open([127, 0, 0, 1].into(), to, sent));
        let message = until_closed(&runtime, stream);
        assert!(message.starts_with(answered), "{sent:?}: {message:?}");
    }
    assert!(server.terminate().success());
}

#[test]
fn connections_of_a_trusted_proxy_are_not_limited_by_address() {
    logmill_io::raise_open_files();
    let limits = ["server.max_waiting_per_address=10", "server.trusted_proxies=127.0.0.7"];
    let sandbox = sandbox(&limits);
    let server = sandbox.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let open = |last: u8| {
        let streams = (0..50).map(|_| half_open([127, 0, 0, last].into(), to, NOTHING));
        runtime.block_on(futures::future::join_all(streams))
    };
    // Connections that were kept answer a request.
    let kept = |streams: Vec<TcpStream>| {
        streams.iter().filter(|stream| runtime.block_on(answers(stream))).count()
    };
    assert_eq!(kept(open(7)), 50, "of the proxy all");
    let crowd = open(8);
    // The server may not have accepted every connection yet.
    wait_until("those that are too many are closed", || dropped(to) == 40);
    assert_eq!(kept(crowd), 10, "of another address the newest");
    assert!(server.terminate().success());
}

/// Number of connections that were closed to admit others.
fn dropped(to: SocketAddr) -> u64 {
    let (_, metrics) = request(to, "GET", "/metrics", "").expect("an answer");
    let counts =
        metrics.lines().filter(|line| line.starts_with("logmill_http_connections_dropped"));
    let count = |line: &str| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
    counts.filter_map(count).sum()
}

/// Whether a request on this connection is answered.
async fn answers(stream: &TcpStream) -> bool {
    let asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    if stream.writable().await.is_err() || stream.try_write(asked).is_err() {
        return false;
    }
    let mut answer = [0; 12];
    loop {
        if stream.readable().await.is_err() {
            return false;
        }
        match stream.try_read(&mut answer) {
            Ok(read) => return answer[..read].starts_with(b"HTTP/1.1 200"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
}

/// Requests a WebSocket; returns the connection and the status line of the answer.
async fn websocket(to: SocketAddr) -> (TcpStream, String) {
    websocket_at(to, "/ws/status").await
}

/// The same at a given path.
async fn websocket_at(to: SocketAddr, path: &str) -> (TcpStream, String) {
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut stream = TcpStream::connect(to).await.expect("connected");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    let answer = String::from_utf8_lossy(&answer);
    (stream, answer.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn websockets_leave_room_for_requests_and_health_has_its_own() {
    let more = ["server.max_connections=5", "server.health_listen=127.0.0.1:0"];
    let sandbox = sandbox(&[&more[..], &["server.max_websockets=4"]].concat());
    let server = sandbox.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let sockets: Vec<_> = (0..4).map(|_| runtime.block_on(websocket(to))).collect();
    assert!(sockets.iter().all(|(_, message)| message.starts_with("HTTP/1.1 101")), "{sockets:?}");
    let (refused, message) = runtime.block_on(websocket(to));
    assert!(message.starts_with("HTTP/1.1 503"), "{message}");
    drop(refused);
    assert_answers(to, "/health");
    // The last slot is held by an unfinished body, which a new connection may replace.
    let stream = runtime.block_on(half_open([127, 0, 0, 1].into(), to, HALF_A_BODY));
    assert_answers(to, "/health");
    let health = health_address(&server);
    for path in ["/health", "/ready", "/metrics"] {
        assert_answers(health, path);
    }
    let (status, _) = request(health, "GET", "/status", "").expect("an answer");
    assert_eq!(status, 404, "nothing else is served there");
    drop((sockets, stream));
    assert!(server.terminate().success());
}

/// Address of a server's health listener.
fn health_address(server: &Server) -> SocketAddr {
    let address = server.log().split_once("health=\"").and_then(|(_, rest)| rest.split('"').next());
    address.expect("it says so").parse().expect("an address")
}

/// A text frame of a WebSocket client, with a mask of zeros.
fn frame(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("short");
    let mut frame = vec![0x81];
    match text.len() {
        short @ 0..126 => frame.push(0x80 | u8::try_from(short).expect("short")),
        _ => {
            frame.push(0x80 | 126);
            frame.extend(length.to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

/// Subscriptions per client.
const SUBSCRIPTIONS: usize = 11;

/// A client with eleven confirmed subscriptions: to heads, to all logs, and to nine filters, most of which match
/// nothing.
async fn subscriber(to: SocketAddr, number: usize) -> TcpStream {
    let (mut stream, message) = websocket_at(to, "/").await;
    assert!(message.starts_with("HTTP/1.1 101"), "{message}");
    let mut wanted = vec![json!(["newHeads"]), json!(["logs", {}])];
    for filter in 0..SUBSCRIPTIONS - 2 {
        let address = format!("0x{:040x}", number % 100 * 9 + filter);
        wanted.push(json!(["logs", {"address": address}]));
    }
    for params in wanted {
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "eth_subscribe", "params": params});
        stream.write_all(&frame(&call.to_string())).await.expect("sent");
    }
    let (mut answers, mut buffer) = (String::new(), vec![0; 4 << 10]);
    while answers.matches("\"id\":7").count() < SUBSCRIPTIONS {
        let read = stream.read(&mut buffer).await.expect("an answer");
        assert!(read > 0, "the server closed the connection: {answers}");
        answers.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    stream
}

/// Reads at least `bytes` bytes from a connection; returns the number read.
async fn read_bytes(mut stream: TcpStream, bytes: usize) -> usize {
    let (mut heard, mut buffer) = (0, vec![0; 16 << 10]);
    while heard < bytes {
        match stream.read(&mut buffer).await {
            Ok(read @ 1..) => heard += read,
            _ => break,
        }
    }
    heard
}

/// CPU time of the threads of a server.
#[derive(Clone, Copy, Debug)]
struct CpuTime {
    /// Threads that run the sessions of sockets, and nothing else.
    sockets: Duration,
    /// All others, on which ingest runs.
    others: Duration,
}

impl CpuTime {
    fn of(server: &Server) -> Self {
        let mut all = Self { sockets: Duration::ZERO, others: Duration::ZERO };
        let tasks = format!("/proc/{}/task", server.id());
        for task in std::fs::read_dir(tasks).expect("a process").map_while(Result::ok) {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name));
            // A thread may end meanwhile.
            let (Ok(name), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
            let nanos = stat.split(' ').next().expect("nanoseconds").parse().expect("a number");
            let is_of_sockets = name.trim() == "logmill-crowd";
            let sum = if is_of_sockets { &mut all.sockets } else { &mut all.others };
            *sum += Duration::from_nanos(nanos);
        }
        all
    }

    fn since(self, before: Self) -> Self {
        Self { sockets: self.sockets - before.sockets, others: self.others - before.others }
    }
}

/// Blocks per round. Their notifications fit into the socket buffers of the subscribers.
const BLOCKS: u64 = 12;

/// Makes blocks, each after the one before is served; returns the CPU time until all clients have heard of them.
fn make_blocks(
    server: &Server,
    chain: &SimChain,
    runtime: &Runtime,
    clients: Vec<TcpStream>,
) -> CpuTime {
    let before = CpuTime::of(server);
    for _ in 0..BLOCKS {
        let head = chain.grow(1).number;
        wait_until("the block is served", || server.rpc().head() >= head);
    }
    // A header has more than a kilobyte, and each client is notified of every block.
    let bytes = usize::try_from(BLOCKS << 10).expect("few");
    let each = clients.into_iter().map(|client| read_bytes(client, bytes));
    let heard = runtime.block_on(futures::future::join_all(each));
    assert!(heard.iter().all(|heard| *heard >= bytes), "all hear of all blocks");
    CpuTime::of(server).since(before)
}

/// Measures CPU time, which the load of other programs hardly changes: the threads of ingest do no more for a block
/// beside a crowd than alone, and others do what the crowd costs. What little they do for sockets (readiness of
/// the operating system) is far less than what a block costs.
#[test]
fn subscriptions_do_not_hold_ingest_back() {
    const SOCKETS: usize = 900;
    logmill_io::raise_open_files();
    let runtime = Runtime::new().expect("a runtime");
    let shape = Shape { transactions: 2, logs: 6, ..Shape::sparse() };
    let chain = grown(SimSettings { shape, ..sparse(3, 40) }, 20);
    let node = SimNodeServer::start(&chain);
    let more = ["server.max_connections=2000", "server.max_websockets=1000"];
    let slow = ["server.max_waiting_per_address=2000", "ingest.poll_ms=100"];
    let sandbox = sandbox(&[&more[..], &slow, &["ingest.raw_only=true"]].concat());
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until("the chain is served", || {
        let head = server.rpc().ask("eth_blockNumber", &json!([]));
        head.is_ok_and(|answer| answer["result"] == "0x14")
    });
    let to = server.rpc().address();
    let alone = make_blocks(&server, &chain, &runtime, Vec::new());
    let each = (0..SOCKETS).map(|number| subscriber(to, number));
    let clients = runtime.block_on(futures::future::join_all(each));
    let crowded = make_blocks(&server, &chain, &runtime, clients);
    println!("{BLOCKS} blocks took {alone:?} alone, {crowded:?} beside {SOCKETS} sockets");
    assert!(crowded.others <= alone.others * 2, "{alone:?} alone, {crowded:?} beside sockets");
    assert!(crowded.sockets > alone.others, "{alone:?} alone, {crowded:?} beside sockets");
    assert!(server.terminate().success());
}
