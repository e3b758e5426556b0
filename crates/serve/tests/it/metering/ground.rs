//! A meter on one of the engines, served on a local port, at a time that the test sets.
//!
//! Guarantees: everything ends when the ground is dropped; jobs run when a test says so. Leaves to others: assertions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use logmill_io::blob::MemoryBlobs;
use logmill_io::wire::GuardedClient;
use logmill_io::wire::guarded::{AllowedTarget, Net};
use logmill_io::{Clock, Entropy, SeededEntropy, SystemClock, Tasks, Timestamp};
use logmill_meter::aggregate::Aggregator;
use logmill_meter::due::AGGREGATE_JOB;
use logmill_meter::period::parse_time;
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::{WebhookSettings, Webhooks};
use logmill_meter::{Meter, Recorder, Settings};
use logmill_serve::http::{Keys, Limits, Metering, ServerParts, serve_with_health};
use logmill_serve::readiness::Readiness;
use logmill_serve::usage::Usage;
use logmill_serve::usage::key_sources::KeySources;
use logmill_work::{Handler, Queue, RunningJob};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::super::test_server::limits;
use super::engine::Engine;

/// A Tuesday.
pub(super) const NOW: &str = "2026-01-13T08:20:00.000Z";

/// A clock that tests set; sleeps are real.
#[derive(Debug)]
pub(super) struct SetClock {
    real: Arc<dyn Clock>,
    now_ms: AtomicI64,
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        self.real.sleep(wait)
    }
}

/// Randomness that restarts when a test begins, so that random values are the same on both engines.
#[derive(Debug)]
struct Drawn(Mutex<Arc<dyn Entropy>>);

impl Default for Drawn {
    fn default() -> Self {
        Self(Mutex::new(SeededEntropy::shared(7)))
    }
}

impl Drawn {
    fn start_again(&self) {
        *self.0.lock().expect("not poisoned") = SeededEntropy::shared(7);
    }
}

impl Entropy for Drawn {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().expect("not poisoned").fill(bytes);
    }
}

/// The seed's event types, and one with dimensions.
pub(super) fn settings() -> Settings {
    let mut settings = Settings::default();
    for (name, op) in [
        ("api.calls", Op::Sum),
        ("storage.bytes", Op::Max),
        ("response.time.ms", Op::Avg),
        ("test.min", Op::Min),
        ("test.count", Op::Count),
        ("test.first", Op::First),
        ("test.last", Op::Last),
    ] {
        settings.events.insert(name.to_owned(), EventType::new(op));
    }
    settings
}

pub(super) struct Metered {
    pub(super) meter: Meter,
    pub(super) address: SocketAddr,
    clock: Arc<SetClock>,
    pub(super) queue: Queue,
    engine: Engine,
    _tasks: Tasks<()>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: hyper::HeaderMap,
    pub(super) body: Value,
}

impl Metered {
    /// With the seed's event types, without keys.
    pub(super) async fn new(engine: &Engine) -> Self {
        Self::with(engine, settings(), |_| {}).await
    }

    pub(super) async fn with(
        engine: &Engine,
        settings: Settings,
        change: impl FnOnce(&mut ServerParts),
    ) -> Self {
        Self::delivering(engine, settings, WebhookSettings::default(), change).await
    }

    /// With webhooks that are delivered as set, also to this machine.
    pub(super) async fn delivering(
        engine: &Engine,
        settings: Settings,
        hooks: WebhookSettings,
        change: impl FnOnce(&mut ServerParts),
    ) -> Self {
        let now_ms = AtomicI64::new(parse_time(NOW).expect("a moment").millis());
        let clock = Arc::new(SetClock { real: SystemClock::shared(), now_ms });
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let drawn = Arc::new(Drawn::default());
        let entropy = Arc::clone(&drawn) as Arc<dyn Entropy>;
        let sql = engine.open(Arc::clone(&shared), Arc::clone(&entropy)).await;
        let queue = Queue::open(sql).await.expect("a queue");
        let loopback = AllowedTarget::Net(Net::parse("127.0.0.2").expect("an address"));
        let client =
            GuardedClient::new(Arc::clone(&shared), hooks.guard(vec![loopback])).expect("a client");
        let webhooks = Webhooks::open(queue.clone(), client, hooks).await.expect("webhooks");
        let is_metered = !settings.events.is_empty();
        let blobs = MemoryBlobs::shared();
        let meter = Meter::open(queue.clone(), blobs, webhooks, settings).await.expect("a meter");
        let mut tasks = Tasks::new();
        let (recorder, recording) = Recorder::new(meter.clone());
        tasks.spawn(async move { recording.await.expect("the store works") });
        let usage = is_metered.then(|| Usage::new(meter.clone(), recorder));
        let timeout = std::time::Duration::from_secs(5);
        let mut state = ServerParts {
            late_chains: None,
            readiness: Readiness::new(Arc::clone(&shared), timeout, Default::default()),
            tables: None,
            collecting: None,
            metering: Metering { usage, config: json!({"periods": ["daily"]}) },
            chains: Default::default(),
            limits: Limits {
                connections: logmill_serve::http::ConnectionLimits {
                    max_connections: 64,
                    ..Default::default()
                },
                max_requests: 16,
                max_body_bytes: 1 << 20,
                compress_min_bytes: 4_096,
                default_chain: None,
                keys: Keys::default(),
            },
            rpc: limits(),
            clock: shared,
            entropy,
            metrics: None,
        };
        change(&mut state);
        let keys = state.limits.keys.senders();
        if let (Some(usage), false) = (&mut state.metering.usage, keys.is_empty()) {
            let keys = meter.sync_key_sources(&keys, false).await.expect("sources");
            usage.sources = KeySources::new(&keys);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tasks.spawn(async move {
            let stop = std::future::pending();
            serve_with_health(listener, None, state, stop).await.expect("it serves");
        });
        // One engine may have drawn more random values than the other up to here.
        drawn.start_again();
        let engine = engine.clone();
        Self { meter, address, clock, queue, engine, _tasks: tasks }
    }

    pub(super) fn set(&self, now: &str) {
        let now = parse_time(now).expect("a moment").millis();
        let before = self.clock.now_ms.swap(now, Ordering::SeqCst);
        self.queue.sql().skew_clock(now - before);
    }

    pub(super) async fn ask(&self, request: hyper::Request<Full<bytes::Bytes>>) -> Answer {
        let (status, headers, body) = self.raw(request).await;
        let text = String::from_utf8_lossy(&body);
        let body = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {text}"));
        Answer { status, headers, body }
    }

    async fn raw(
        &self,
        request: hyper::Request<Full<bytes::Bytes>>,
    ) -> (u16, hyper::HeaderMap, bytes::Bytes) {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        let mut tasks = Tasks::new();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("in memory").to_bytes();
        let noted = format!("{} {} {}", parts.method, parts.uri, String::from_utf8_lossy(&body));
        let request = hyper::Request::from_parts(parts, Full::new(body));
        let response = sender.send_request(request).await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        self.engine.note(&noted, status, &body);
        (status, headers, body)
    }

    /// Sends a request whose response has no body; returns its status.
    pub(super) async fn status(&self, request: hyper::Request<Full<bytes::Bytes>>) -> u16 {
        self.raw(request).await.0
    }

    /// Posts a body with a media type.
    pub(super) async fn post_as(&self, path: &str, media: &str, body: &str) -> Answer {
        let request = hyper::Request::post(path)
            .header("host", "localhost")
            .header("content-type", media)
            .body(Full::from(body.to_owned()));
        self.ask(request.expect("a request")).await
    }

    /// Posts JSON with an `Idempotency-Key`.
    pub(super) async fn post_once(&self, path: &str, key: &str, body: &Value) -> Answer {
        let request = hyper::Request::post(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::from(body.to_string()));
        self.ask(request.expect("a request")).await
    }

    /// Delivers all due messages; returns the number of requests made.
    pub(super) async fn deliver(&self) -> u64 {
        let deliverer = self.meter.webhooks().deliverer("test");
        deliverer.expect("a deliverer").drain().await.expect("delivered")
    }

    /// Posts JSON.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_as(path, "application/json", &body.to_string()).await
    }

    /// Sends usage that must be accepted.
    pub(super) async fn send(&self, event_type: &str, body: Value) -> Value {
        let answer = self.post(&format!("/usage/{event_type}"), &body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        let request = hyper::Request::get(path).header("host", "localhost").body(Full::default());
        self.ask(request.expect("a request")).await
    }

    /// Gets a path that must exist.
    pub(super) async fn found(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Runs all aggregation jobs.
    pub(super) async fn work(&self) {
        loop {
            let lease = Duration::from_secs(60);
            let claims = self.queue.claim(AGGREGATE_JOB, 100, lease, "me").await.expect("claimed");
            if claims.is_empty() {
                return;
            }
            for claim in claims {
                let running = RunningJob { claim, queue: self.queue.clone() };
                Aggregator(self.meter.clone()).run(running).await.expect("made");
            }
        }
    }

    /// Triggers aggregation, runs the jobs, and returns the aggregates that match a query.
    pub(super) async fn aggregated(&self, query: &str) -> Vec<Value> {
        let answer = self.post("/aggregations/trigger", &json!(null)).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        self.work().await;
        let found = self.found(&format!("/aggregations?{query}")).await;
        found.as_array().expect("an array").clone()
    }
}
