//! Crowds of connections that send nothing, or hardly anything: whoever sends a request is served all the same.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use logmill_sim::http::request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use crate::process::{Place, Server, wait_until};

/// More than the most connections of a server.
const CROWD: usize = 1_500;
/// In which a request is answered, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

const NOTHING: &str = "";
const HALF_A_HEAD: &str = "GET /status HTTP/1.1\r\nHost: localhost\r\nX-";
const HALF_A_BODY: &str = "POST /usagebatch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
    Content-Length: 1000\r\n\r\n{";

fn place(more: &[&str]) -> Place {
    // Something that wants bodies.
    let meter = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
    Place::with(&[&["database.durability=relaxed", meter], more].concat())
}

/// A connection from an address of this machine that has sent this much.
async fn half_open(from: IpAddr, to: SocketAddr, sent: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::new(from, 0)).expect("all of 127.0.0.0/8 is ours");
    let mut stream = socket.connect(to).await.expect("connected");
    // The server may have let go of it.
    let _ = stream.write_all(sent.as_bytes()).await;
    stream
}

/// Some connections more than a server takes, from as many addresses.
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
    // Far longer than the test: nothing but a better claim makes room.
    let place = place(&["server.header_timeout_ms=600000", "server.body_timeout_ms=600000"]);
    let server = place.serve();
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

/// Waits until the server closes a connection; returns what it had sent.
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
    let place = place(&["server.header_timeout_ms=300", "server.body_timeout_ms=300"]);
    let server = place.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let idle = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (sent, answered) in
        [(NOTHING, ""), (HALF_A_HEAD, ""), (HALF_A_BODY, ""), (idle, "HTTP/1.1 200 OK")]
    {
        let stream = runtime.block_on(half_open([127, 0, 0, 1].into(), to, sent));
        let said = until_closed(&runtime, stream);
        assert!(said.starts_with(answered), "{sent:?}: {said:?}");
    }
    assert!(server.terminate().success());
}

#[test]
fn connections_of_a_trusted_proxy_are_not_limited_by_address() {
    logmill_io::raise_open_files();
    let limits = ["server.max_waiting_per_address=10", "server.trusted_proxies=127.0.0.7"];
    let place = place(&limits);
    let server = place.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let open = |last: u8| {
        let streams = (0..50).map(|_| half_open([127, 0, 0, last].into(), to, NOTHING));
        runtime.block_on(futures::future::join_all(streams))
    };
    // Those that are kept answer a request.
    let kept = |streams: Vec<TcpStream>| {
        streams.iter().filter(|stream| runtime.block_on(answers(stream))).count()
    };
    assert_eq!(kept(open(7)), 50, "of the proxy all");
    let crowd = open(8);
    // A connection that was made may not have been looked at yet.
    wait_until("those that are too many are closed", || dropped(to) == 40);
    assert_eq!(kept(crowd), 10, "of another address the newest");
    assert!(server.terminate().success());
}

/// How many connections were closed to make room.
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

/// Asks for a WebSocket; returns the connection and the first line of the answer.
async fn websocket(to: SocketAddr) -> (TcpStream, String) {
    let head = "GET /ws/status HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut stream = TcpStream::connect(to).await.expect("connected");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.expect("an answer"));
    }
    (stream, String::from_utf8_lossy(&line).trim().to_owned())
}

#[test]
fn websockets_leave_room_for_requests_and_health_has_its_own() {
    let more = ["server.max_connections=5", "server.health_listen=127.0.0.1:0"];
    let place = place(&[&more[..], &["server.max_websockets=4"]].concat());
    let server = place.serve();
    let to = server.rpc().address();
    let runtime = Runtime::new().expect("a runtime");
    let sockets: Vec<_> = (0..4).map(|_| runtime.block_on(websocket(to))).collect();
    assert!(sockets.iter().all(|(_, said)| said.starts_with("HTTP/1.1 101")), "{sockets:?}");
    let (refused, said) = runtime.block_on(websocket(to));
    assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    drop(refused);
    assert_answers(to, "/health");
    // The last place is taken by a body that does not end, from which a new connection may take it.
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

/// Where a server answers for its health alone.
fn health_address(server: &Server) -> SocketAddr {
    let address = server.log().split_once("health=\"").and_then(|(_, rest)| rest.split('"').next());
    address.expect("it says so").parse().expect("an address")
}
