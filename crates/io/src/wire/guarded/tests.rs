//! Tests of the guarded client against a server in this process and a fake resolver.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::clock::SystemClock;
use crate::task::Tasks;

const BYTES_MAX: usize = 64 << 10;

const LIMITS: Limits = Limits { bytes_max: BYTES_MAX, timeout: Duration::from_secs(10) };

struct Server {
    at: SocketAddr,
    asked: Arc<AtomicUsize>,
    _tasks: Tasks<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("bound");
        let asked = Arc::new(AtomicUsize::new(0));
        let mut tasks = Tasks::new();
        let seen = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut connections = Tasks::new();
            while let Ok((stream, _)) = listener.accept().await {
                seen.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, at));
            }
        });
        Self { at, asked, _tasks: tasks }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Answers one request and closes the connection.
async fn serve(mut stream: TcpStream, at: SocketAddr) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => head.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let plain = |status: &str, headers: &str, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
    };
    let to = |url: String| plain("302 Found", &format!("location: {url}\r\n"), "");
    let answer = match path {
        "/fine" => plain("200 OK", "content-type: application/json\r\n", "{\"name\":\"x\"}"),
        "/head" => plain("200 OK", "", &head),
        "/missing" => plain("404 Not Found", "retry-after: 7\r\n", "gone"),
        "/gzip" => plain("200 OK", "content-encoding: gzip\r\n", "\u{1f}\u{8b}"),
        "/to-fine" => to("/fine".to_owned()),
        "/to-private" => to(format!("http://127.0.0.2:{}/fine", at.port())),
        "/to-metadata" => to("http://169.254.169.254/latest".to_owned()),
        "/to-file" => to("file:///etc/passwd".to_owned()),
        "/to-login" => to(format!("http://user:secret@{at}/fine")),
        "/to-nowhere" => to("http://[".to_owned()),
        "/to-itself" => to("/to-itself".to_owned()),
        "/3" | "/2" | "/1" => to(format!("/{}", path[1..].parse::<u32>().unwrap_or(1) - 1)),
        "/0" => plain("200 OK", "", "arrived"),
        "/announced" => "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n".to_owned(),
        "/endless" => return endless(stream).await,
        "/slow" => {
            let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
            drop(stream.write_all(begun).await);
            return std::future::pending().await;
        }
        _ => plain("500 Internal Server Error", "", "what?"),
    };
    drop(stream.write_all(answer.as_bytes()).await);
}

async fn endless(mut stream: TcpStream) {
    drop(stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await);
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    while stream.write_all(chunk.as_bytes()).await.is_ok() {}
}

/// A resolver with given answers: one after the other, the last one forever.
#[derive(Debug)]
struct FakeResolver {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl FakeResolver {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = |answer: &&[&str]| -> Vec<IpAddr> {
            answer.iter().map(|address| address.parse().expect("an address")).collect()
        };
        let answers = Mutex::new(answers.iter().map(parsed).collect());
        Arc::new(Self { answers, asked: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl NameResolver for FakeResolver {
    async fn look_up(&self, _name: &str) -> std::io::Result<Vec<IpAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Ok(next.unwrap_or_default())
    }
}

fn client(allowed: &[&str], redirects_max: u32, names: Arc<dyn NameResolver>) -> GuardedClient {
    let allowed = allowed.iter().map(|net| AllowedTarget::Net(Net::parse(net).expect("a network")));
    let settings = GuardedSettings {
        ports: Vec::new(),
        redirects_max,
        allowed: allowed.collect(),
        ..GuardedSettings::default()
    };
    GuardedClient::with_names(SystemClock::shared(), settings, names).expect("a client")
}

/// A client that may reach the test's server, and nothing else that is not public.
fn local(redirects_max: u32) -> GuardedClient {
    client(&["127.0.0.1"], redirects_max, FakeResolver::new(&[&["127.0.0.1"]]))
}

async fn get(client: &GuardedClient, url: &str) -> Result<GuardedResponse> {
    client.get(url, "application/json", LIMITS).await
}

fn refusal<T: fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::Refused { why, .. }) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn an_allowed_url_returns_its_status_and_type() {
    let server = Server::start().await;
    let client = local(3);
    let fine = get(&client, &server.url("/fine")).await.expect("an answer");
    assert_eq!((fine.status, &fine.body[..]), (200, &b"{\"name\":\"x\"}"[..]));
    assert_eq!(fine.content_type.as_deref(), Some("application/json"));
    let missing = get(&client, &server.url("/missing")).await.expect("an answer");
    assert_eq!((missing.status, missing.retry_after), (404, Some(Duration::from_secs(7))));
    let head = get(&client, &server.url("/head")).await.expect("an answer").body;
    let head = String::from_utf8_lossy(&head).to_lowercase();
    assert!(head.contains("accept-encoding: identity"), "{head}");
    assert!(!head.contains("cookie") && !head.contains("referer"), "{head}");
}

#[tokio::test]
async fn an_address_that_is_not_public_is_never_connected_to() {
    let server = Server::start().await;
    let strict = client(&[], 3, FakeResolver::new(&[&["127.0.0.1"]]));
    let by_name = format!("http://token.example:{}/fine", server.at.port());
    for url in [server.url("/fine"), by_name] {
        let why = refusal(get(&strict, &url).await);
        assert!(why.contains("127.0.0.1 is not public"), "{why}");
        let posted = strict.post(&url, &[], Bytes::new(), LIMITS).await;
        assert!(refusal(posted).contains("127.0.0.1"), "posting is no way around");
    }
    assert_eq!(server.asked(), 0);
}

#[tokio::test]
async fn every_way_to_write_a_private_address_is_refused() {
    let names = FakeResolver::new(&[&["93.184.216.34"]]);
    let strict = client(&[], 3, Arc::clone(&names) as Arc<dyn NameResolver>);
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "%31%32%37.0.0.1",
        "①②⑦.0.0.1",
        "0",
        "10.1",
        "169.254.169.254",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[2002:7f00:1::]",
    ] {
        let why = refusal(get(&strict, &format!("http://{host}/")).await);
        assert!(why.contains("is not public"), "{host}: {why}");
    }
    assert_eq!(names.asked.load(Ordering::SeqCst), 0, "no name was looked up");
}

#[tokio::test]
async fn names_of_this_machine_are_refused_before_they_are_looked_up() {
    // Whatever the names resolve to.
    let names = FakeResolver::new(&[&["93.184.216.34"]]);
    let with = |allowed: Vec<AllowedTarget>, allowed_setting| {
        let settings = GuardedSettings {
            ports: Vec::new(),
            allowed,
            allowed_setting,
            ..GuardedSettings::default()
        };
        let names = Arc::clone(&names) as Arc<dyn NameResolver>;
        GuardedClient::with_names(SystemClock::shared(), settings, names).expect("a client")
    };
    let strict = with(Vec::new(), Some("some.setting"));
    let own = ["localhost", "LocalHost", "localhost.", "hooks.localhost", "a.b.localhost."];
    for host in own {
        let url = format!("http://{host}:8080/hook");
        let why = refusal(strict.check_address(&url));
        assert!(why.contains("some.setting"), "{host}: {why}");
        assert_eq!(refusal(get(&strict, &url).await), why);
        let silent = refusal(with(Vec::new(), None).check_address(&url));
        assert!(!silent.contains("setting"), "{host}: {silent}");
    }
    let why = refusal(strict.check_address("http://127.0.0.1/"));
    assert!(why.contains("some.setting"), "{why}");
    assert_eq!(names.asked.load(Ordering::SeqCst), 0, "no name was looked up");
    for host in ["localhost.example", "mylocalhost", "localhosts"] {
        strict.check_address(&format!("http://{host}/")).expect(host);
    }
    let net = |net: &str| AllowedTarget::Net(Net::parse(net).expect("a network"));
    for allowed in [net("127.0.0.0/8"), net("::1"), AllowedTarget::Host("localhost".to_owned())] {
        let client = with(vec![allowed.clone()], None);
        for url in ["http://localhost/", "http://localhost./"] {
            client.check_address(url).unwrap_or_else(|why| panic!("{allowed:?} {url}: {why}"));
        }
    }
    let other = with(vec![net("10.0.0.0/8"), AllowedTarget::Host("a.localhost".to_owned())], None);
    refusal(other.check_address("http://localhost/"));
    other.check_address("http://A.localhost/").expect("it is named");
}

#[tokio::test]
async fn invalid_urls_are_refused() {
    let names = FakeResolver::new(&[&["127.0.0.1"]]);
    let client = GuardedClient::with_names(
        SystemClock::shared(),
        GuardedSettings::default(),
        Arc::clone(&names) as Arc<dyn NameResolver>,
    )
    .expect("a client");
    for url in [
        "file:///etc/passwd",
        "ftp://host.example/x",
        "gopher://host.example/x",
        "data:text/plain,hello",
        "javascript:alert(1)",
        "http://user:secret@host.example/",
        "http://user@host.example/",
        "http://:secret@host.example/",
        "http://host.example:22/",
        "https://host.example:8545/",
        "http://host.example:0/",
    ] {
        let error = get(&client, url).await.expect_err(url);
        assert!(matches!(error, Error::Refused { .. }), "{url}: {error}");
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(!error.chain().contains("secret"), "{error}");
    }
    let long = format!("http://host.example/{}", "x".repeat(URL_LENGTH_MAX));
    for url in ["", "hello", "http://", "//host.example/", "http://a b/", long.as_str()] {
        let error = get(&client, url).await.expect_err("no address");
        assert!(matches!(error, Error::Invalid { .. }), "{url:.40}: {error}");
    }
    assert_eq!(names.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn one_private_address_among_public_ones_refuses_the_name() {
    let names =
        FakeResolver::new(&[&["93.184.216.34", "10.0.0.1"], &["::1", "93.184.216.34"], &[]]);
    let strict = client(&[], 3, names);
    assert!(refusal(get(&strict, "http://host.example/").await).contains("10.0.0.1"));
    assert!(refusal(get(&strict, "http://host.example/").await).contains("::1"));
    assert!(refusal(get(&strict, "http://host.example/").await).contains("0 addresses"));
}

#[tokio::test]
async fn the_client_connects_to_the_address_that_was_checked() {
    let server = Server::start().await;
    let url = format!("http://rebind.example:{}/fine", server.at.port());
    // The second answer is not allowed: a client that resolved the name again to connect would get it.
    let names = FakeResolver::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let client = client(&["127.0.0.1"], 3, Arc::clone(&names) as Arc<dyn NameResolver>);
    get(&client, &url).await.expect("the first answer is allowed");
    assert_eq!(names.asked.load(Ordering::SeqCst), 1, "one look-up for one connection");
    assert!(refusal(get(&client, &url).await).contains("127.0.0.2"));
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn a_host_can_be_allowed_by_its_name_alone() {
    let server = Server::start().await;
    let settings = GuardedSettings {
        ports: Vec::new(),
        allowed: vec![AllowedTarget::Host("hooks.internal".to_owned())],
        ..GuardedSettings::default()
    };
    let names = FakeResolver::new(&[&["127.0.0.1"]]);
    let client = GuardedClient::with_names(SystemClock::shared(), settings, names).expect("fine");
    let port = server.at.port();
    get(&client, &format!("http://HOOKS.internal:{port}/fine")).await.expect("it is allowed");
    refusal(get(&client, &format!("http://other.internal:{port}/fine")).await);
    refusal(get(&client, &server.url("/fine")).await);
}

#[tokio::test]
async fn redirects_are_followed_up_to_the_limit_and_each_is_checked() {
    let server = Server::start().await;
    let client = local(3);
    let arrived = get(&client, &server.url("/to-fine")).await.expect("an answer");
    assert_eq!(arrived.status, 200);
    assert_eq!(get(&client, &server.url("/3")).await.expect("three hops").body, "arrived");
    for (path, part) in [
        ("/to-private", "127.0.0.2 is not public"),
        ("/to-metadata", "169.254.169.254 is not public"),
        ("/to-file", "neither http nor https"),
        ("/to-login", "credentials"),
        ("/to-nowhere", "an invalid URL"),
        ("/to-itself", "more than 3 redirects"),
    ] {
        let why = refusal(get(&client, &server.url(path)).await);
        assert!(why.contains(part), "{path}: {why}");
    }
    assert!(refusal(get(&local(2), &server.url("/3")).await).contains("more than 2"));
    assert!(refusal(get(&local(0), &server.url("/to-fine")).await).contains("more than 0"));
}

#[tokio::test]
async fn a_redirect_of_a_post_is_returned() {
    let server = Server::start().await;
    let headers = [("content-type", "application/json"), ("x-signature", "abc")];
    let (client, url) = (local(3), server.url("/to-private"));
    let posted = client.post(&url, &headers, Bytes::from("{}"), LIMITS).await;
    assert_eq!(posted.expect("an answer").status, 302);
    assert_eq!(server.asked(), 1);
    let bad = [("x-signature", "a\r\nx: y")];
    let posted = client.post(&url, &bad, Bytes::new(), LIMITS).await;
    assert!(matches!(posted, Err(Error::Invalid { .. })), "{posted:?}");
}

#[tokio::test]
async fn a_body_is_cut_off_at_its_limit_with_or_without_a_length() {
    let server = Server::start().await;
    for path in ["/announced", "/endless"] {
        let error = get(&local(3), &server.url(path)).await.expect_err("too large");
        assert!(matches!(error, Error::TooLarge { limit_bytes: BYTES_MAX, .. }), "{path}: {error}");
    }
    assert!(refusal(get(&local(3), &server.url("/gzip")).await).contains("compressed"));
}

#[tokio::test]
async fn if_only_the_status_matters_no_body_is_an_error() {
    let server = Server::start().await;
    let limits = Limits { bytes_max: 10_000, timeout: Duration::from_millis(500) };
    for (path, kept) in [("/endless", 10_000), ("/announced", 0), ("/slow", 3), ("/gzip", 0)] {
        let client = local(3);
        let posted = client.post_for_status(&server.url(path), &[], Bytes::new(), limits).await;
        let posted = posted.expect("a status");
        assert_eq!((posted.status, posted.body.len()), (200, kept), "{path}");
    }
    let url = server.url("/missing");
    let missing = local(3).post_for_status(&url, &[], Bytes::new(), limits).await;
    let missing = missing.expect("a status");
    assert_eq!((missing.status, missing.retry_after), (404, Some(Duration::from_secs(7))));
    assert_eq!(missing.body, "gone");
    let strict = client(&[], 3, FakeResolver::new(&[&["127.0.0.1"]]));
    refusal(strict.post_for_status(&url, &[], Bytes::new(), limits).await);
}

#[test]
fn a_url_can_be_checked_before_it_is_requested() {
    let strict = client(&[], 3, FakeResolver::new(&[&["127.0.0.1"]]));
    assert_eq!(strict.check_address("https://host.example/x").expect("fine"), "host.example:443");
    for url in ["http://[::1]/", "http://10.1/", "ftp://host.example/", "http://u:p@host.example/"]
    {
        refusal(strict.check_address(url));
    }
    assert!(strict.check_address("hello").is_err());
}

#[tokio::test]
async fn one_deadline_applies_to_the_whole_request() {
    let server = Server::start().await;
    let limits = Limits { timeout: Duration::from_millis(200), ..LIMITS };
    let slow = local(3).get(&server.url("/slow"), "*/*", limits).await;
    assert!(matches!(slow, Err(Error::TooSlow { limit_ms: 200, .. })), "{slow:?}");
}

#[tokio::test]
async fn no_error_repeats_path_or_query() {
    let client = local(3);
    // Nothing listens on the port of a server that is gone.
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    for url in [
        format!("http://{gone}/SECRET?key=SECRET"),
        "http://10.0.0.1/SECRET?key=SECRET".to_owned(),
        "ftp://host.example/SECRET".to_owned(),
    ] {
        let error = get(&client, &url).await.expect_err("no answer").chain();
        assert!(!error.contains("SECRET"), "{error}");
    }
}
