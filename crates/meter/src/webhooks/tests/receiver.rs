//! A real receiver on loopback: it keeps its requests, and answers as its path says.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use logmill_io::Tasks;
use sha2::{Digest as _, Sha256};
use standardwebhooks::Webhook;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(super) fn id(&self) -> &str {
        self.header("webhook-id")
    }

    /// Whether the Standard Webhooks library signs this request the same, ignoring the age of the
    /// timestamp.
    pub(super) fn is_signed_by(&self, secret: &str) -> bool {
        let timestamp = self.header("webhook-timestamp").parse().expect("a time");
        let webhook = Webhook::new(secret).expect("a secret in base64");
        let wanted = webhook.sign(self.id(), timestamp, &self.body).expect("it signs");
        self.header("webhook-signature").split(' ').any(|signature| signature == wanted)
    }

    /// Whether the library accepts this request, including its timestamp.
    pub(super) fn is_verified_by(&self, secret: &str) -> bool {
        let headers = (&self.headers).try_into().expect("they are headers");
        Webhook::new(secret).expect("a secret").verify(&self.body, &headers).is_ok()
    }

    /// Whether the plain signature is the HMAC of the documented text.
    pub(super) fn is_plainly_signed_by(&self, secret: &str) -> bool {
        let mut text = format!("{}.", self.header("x-webhook-timestamp")).into_bytes();
        text.extend_from_slice(&self.body);
        let mac = hmac_by_hand(secret.as_bytes(), &text);
        let hex: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        self.header("x-webhook-signature") == format!("v1={hex}")
    }
}

/// HMAC-SHA256 as specified by RFC 2104.
fn hmac_by_hand(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner: Vec<u8> = block.iter().map(|byte| byte ^ 0x36).chain(text.iter().copied()).collect();
    let outer = block.iter().map(|byte| byte ^ 0x5c).chain(Sha256::digest(inner));
    Sha256::digest(outer.collect::<Vec<u8>>()).to_vec()
}

/// Two minutes after the start of a test, by its clock.
const BUSY_UNTIL: &str = "retry-after: Mon, 21 Sep 2026 14:15:20 GMT\r\n";
/// Two minutes later by a clock that is years behind.
const BUSY_UNTIL_BY_DATE: &str = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    retry-after: Sun, 06 Nov 1994 08:51:37 GMT\r\n";

/// A receiver that stops when dropped.
pub(super) struct Receiver {
    at: SocketAddr,
    state: Arc<State>,
    changes: watch::Receiver<usize>,
    _tasks: Tasks<()>,
}

struct State {
    requests: Mutex<Vec<Request>>,
    /// Paths that answer 200 from now on, whatever they are called.
    mended: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
}

impl Receiver {
    #[expect(clippy::disallowed_methods, reason = "a receiver of a test has to listen somewhere")]
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("bound");
        let (count, changes) = watch::channel(0);
        let (requests, mended) = (Mutex::default(), Mutex::default());
        let state = Arc::new(State { requests, mended, count });
        let mut tasks = Tasks::new();
        let serving = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = Tasks::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Self { at, state, changes, _tasks: tasks }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    pub(super) fn port(&self) -> u16 {
        self.at.port()
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The requests to a path.
    pub(super) fn to(&self, path: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.path == path).collect()
    }

    /// Makes a path answer 200.
    pub(super) fn mend(&self, path: &str) {
        let mut mended = self.state.mended.lock().unwrap_or_else(PoisonError::into_inner);
        mended.push(path.to_owned());
    }

    /// Waits until a path has received `wanted` requests.
    pub(super) async fn wait_for(&mut self, path: &str, wanted: usize) {
        while self.to(path).len() < wanted {
            self.changes.changed().await.expect("the receiver lives");
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let path = request.path.clone();
        state.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        state.count.send_modify(|count| *count += 1);
        let mended = state.mended.lock().unwrap_or_else(PoisonError::into_inner).contains(&path);
        let name = if mended { "/fine" } else { path.trim_end_matches(char::is_numeric) };
        let answer = match name {
            "/fail" => answer("500 Internal Server Error", "", b"no luck"),
            "/redirect" => answer("302 Found", "location: /fine\r\n", b""),
            "/missing?key=SESAME" => answer("404 Not Found", "", b""),
            "/gone" => answer("410 Gone", "", b""),
            "/busy" => answer("429 Too Many Requests", "retry-after: 120\r\n", b""),
            "/busy-until" => answer("429 Too Many Requests", BUSY_UNTIL, b""),
            "/busy-until-by-date" => answer("429 Too Many Requests", BUSY_UNTIL_BY_DATE, b""),
            "/odd" => answer("200 OK", "", b"a\0b\xff"),
            "/large" => answer("200 OK", "", &vec![b'x'; 3 << 20]),
            "/large-failure" => answer("503 Service Unavailable", "", &vec![b'x'; 3 << 20]),
            "/reset" => return,
            "/stall" => return std::future::pending().await,
            _ => answer("200 OK", "", b"thanks"),
        };
        if stream.get_mut().write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut answer =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n").into_bytes();
    answer.extend_from_slice(body);
    answer
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length: usize = headers.get("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { path, headers, body })
}
