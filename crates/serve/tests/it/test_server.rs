//! Test setup: a chain over in-memory stores, served on a local port, and its clients.
//!
//! Guarantees: everything ends when the server is dropped. Leaves to others: assertions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_consensus::{Header as EvmHeader, SignableTransaction, TxEnvelope, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Signature, TxKind, U256};
use finalized_log_index::{LogIndex, Settings, Stores, Writer};
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use logmill_chain::{Block, Header, Log, Outcome, Receipt, Transaction, VerifyLevel};
use logmill_io::blob::MemoryBlobs;
use logmill_io::meta::MemoryMeta;
use logmill_io::{Clock, MetaStore, SeededEntropy, SystemClock, Tasks, Timestamp};
use logmill_pipeline::tip::Tip;
use logmill_pipeline::{Chain, block};
use logmill_serve::http::{Keys, Limits, Metering, ServerParts, serve_with_health};
use logmill_serve::readiness::Readiness;
use logmill_serve::rpc::{self, ChainStatus, ServedChain};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

pub(super) const CHAIN_ID: u64 = 0x539;

pub(super) struct TestServer {
    pub(super) chain: Chain,
    pub(super) address: SocketAddr,
    pub(super) clock: Arc<HandClock>,
    pub(super) readiness: Arc<Readiness>,
    writer: Writer,
    stop: Option<oneshot::Sender<()>>,
    tasks: Tasks<()>,
}

/// A clock that tests advance by hand; sleeps are real.
#[derive(Debug)]
pub(super) struct HandClock {
    real: Arc<dyn Clock>,
    ahead_ms: AtomicU64,
}

impl HandClock {
    pub(super) fn move_on(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).expect("short");
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        self.real.now()
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic() + Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst))
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        self.real.sleep(wait)
    }
}

/// Fixed operator status of the chain.
#[derive(Debug)]
struct FixedStatus;

impl ChainStatus for FixedStatus {
    fn status_json(&self) -> Value {
        json!({"forward": 7})
    }

    fn reported_head(&self) -> Option<u64> {
        None
    }
}

/// Limits that no test reaches by accident.
pub(super) fn limits() -> rpc::Limits {
    rpc::Limits {
        max_batch: 100,
        max_results: 20_000,
        max_blocks: 0,
        max_response_bytes: 256 << 20,
        timeout: Duration::from_secs(30),
        filter_ttl: Duration::from_secs(300),
        max_filters: 100,
        max_subscriptions: 8,
        sync_lag_blocks: 2,
        forward: forward(false),
    }
}

/// Limits of pass-through, which may be switched off.
pub(super) fn forward(is_on: bool) -> rpc::forward::ForwardLimits {
    rpc::forward::ForwardLimits {
        is_on,
        named: Vec::new(),
        max_calls: 4,
        max_call_bytes: 1 << 10,
        max_answer_bytes: 4 << 10,
        timeout: Duration::from_secs(20),
        cache_bytes: 1 << 20,
    }
}

impl TestServer {
    /// A chain with these finalized blocks and this tip.
    pub(super) async fn of(last: Vec<Block>, tip: Vec<Block>) -> Self {
        Self::with(last, tip, |_| {}).await
    }

    /// The same, with changed server state.
    pub(super) async fn with(
        last: Vec<Block>,
        tip: Vec<Block>,
        change: impl FnOnce(&mut ServerParts),
    ) -> Self {
        let (real, entropy) = (SystemClock::shared(), SeededEntropy::shared(7));
        let meta: Arc<dyn MetaStore> = MemoryMeta::shared(Arc::clone(&real), Arc::clone(&entropy));
        let stores = Stores {
            meta: Arc::clone(&meta),
            blobs: MemoryBlobs::shared(),
            clock: Arc::clone(&real),
            entropy: Arc::clone(&entropy),
        };
        let index = LogIndex::open(stores, Settings::default()).await.expect("an index");
        let writer = index.writer("the test").await.expect("nobody else writes");
        let safe = last.last().map(|block| block.at);
        if !last.is_empty() {
            let blocks: Vec<_> = last.into_iter().map(block::to_finalized).collect();
            writer.ingest_finalized_blocks(&blocks).await.expect("indexed");
        }
        let opened = Tip::open(meta, "test").await.expect("a tip");
        let chain = Chain::new(CHAIN_ID, index, opened);
        let clock = Arc::new(HandClock { real, ahead_ms: AtomicU64::new(0) });
        let timeout = Duration::from_secs(5);
        let readiness =
            Readiness::new(Arc::clone(&clock) as Arc<dyn Clock>, timeout, BTreeMap::new());
        let served = ServedChain {
            chain: chain.clone(),
            source: None,
            status: Arc::new(FixedStatus),
            reader: None,
        };
        let connections =
            logmill_serve::http::ConnectionLimits { max_connections: 64, ..Default::default() };
        let mut state = ServerParts {
            late_chains: None,
            readiness: Arc::clone(&readiness),
            tables: None,
            collecting: None,
            metering: Metering::default(),
            chains: BTreeMap::from([(CHAIN_ID, served)]),
            limits: Limits {
                connections,
                max_requests: 16,
                max_body_bytes: 1 << 20,
                compress_min_bytes: 4_096,
                default_chain: None,
                keys: Keys::default(),
            },
            rpc: limits(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            entropy,
            metrics: None,
        };
        change(&mut state);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let mut tasks = Tasks::new();
        tasks.spawn(async move {
            let stop = stopped.map(|_| ());
            serve_with_health(listener, None, state, stop).await.expect("it serves");
        });
        let server = Self { chain, address, clock, readiness, writer, stop: Some(stop), tasks };
        if !tip.is_empty() {
            server.stage_with(tip, safe).await;
        }
        server
    }

    pub(super) async fn stage(&self, tip: Vec<Block>) {
        self.stage_with(tip, None).await;
    }

    async fn stage_with(&self, tip: Vec<Block>, safe: Option<logmill_chain::BlockRef>) {
        let tip = tip.into_iter().map(Arc::new).collect();
        self.chain.stage(tip, safe, self.writer.fence()).await.expect("staged");
    }

    /// Stops the server and waits until it has ended.
    pub(super) async fn end(mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic");
        }
    }

    /// Sends a request; returns status, headers and body.
    pub(super) async fn ask(
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
        let response = sender.send_request(request).await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, headers, body)
    }

    /// Posts a JSON body.
    pub(super) async fn post(&self, path: &str, body: &str) -> (u16, bytes::Bytes) {
        let request = hyper::Request::post(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::from(body.to_owned()));
        let (status, _, body) = self.ask(request.expect("a request")).await;
        (status, body)
    }

    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        self.get_with(path, &[]).await
    }

    /// Gets a path with additional headers.
    pub(super) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut request = hyper::Request::get(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (status, _, body) = self.ask(request.body(Full::default()).expect("a request")).await;
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    /// Makes a call; returns the whole answer.
    pub(super) async fn answer(&self, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let (status, answer) = self.post("/", &body.to_string()).await;
        assert_eq!(status, 200, "{method}");
        serde_json::from_slice(&answer)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&answer)))
    }

    /// Makes a call that must succeed; returns its result.
    #[track_caller]
    pub(super) fn call(&self, method: &str, params: Value) -> impl Future<Output = Value> + '_ {
        let method = method.to_owned();
        async move {
            let mut answer = self.answer(&method, params).await;
            assert!(answer.get("error").is_none(), "{method}: {answer}");
            answer["result"].take()
        }
    }

    /// Makes a call that must fail; returns its code, message and data.
    pub(super) async fn refused(&self, method: &str, params: Value) -> (i64, String, Value) {
        let mut answer = self.answer(method, params).await;
        let error = &mut answer["error"];
        let code = error["code"].as_i64().unwrap_or_else(|| panic!("{method} is answered"));
        let message = error["message"].as_str().expect("a message").to_owned();
        (code, message, error["data"].take())
    }

    pub(super) async fn connect(&self, path: &str) -> Client {
        let address = format!("ws://{}{path}", self.address);
        let (socket, _) = tokio_tungstenite::connect_async(address).await.expect("a WebSocket");
        Client { socket, notices: Vec::new() }
    }
}

pub(super) struct Client {
    pub(super) socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    notices: Vec<Value>,
}

impl Client {
    pub(super) async fn send(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.expect("sent");
    }

    /// The next message, or the reason why the socket was closed.
    pub(super) async fn next(&mut self) -> Result<Value, String> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => {
                    return Ok(serde_json::from_str(&text).expect("JSON"));
                }
                Some(Ok(Message::Close(frame))) => {
                    return Err(frame.map(|frame| frame.reason.to_string()).unwrap_or_default());
                }
                Some(Ok(_)) => {}
                ended => return Err(format!("{ended:?}")),
            }
        }
    }

    /// Makes a call and returns its result; notifications received meanwhile are kept.
    pub(super) async fn call(&mut self, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send(&body.to_string()).await;
        loop {
            let mut message = self.next().await.expect("an answer");
            if message.get("id").is_some() {
                assert!(message.get("error").is_none(), "{message}");
                return message["result"].take();
            }
            self.notices.push(message);
        }
    }

    /// The subscription and the result of the next notification.
    pub(super) async fn notice(&mut self) -> (Value, Value) {
        let mut notice = match self.notices.is_empty() {
            true => self.next().await.expect("a notification"),
            false => self.notices.remove(0),
        };
        assert_eq!(notice["method"], "eth_subscription");
        (notice["params"]["subscription"].take(), notice["params"]["result"].take())
    }
}

/// Blocks on top of a parent, each with one transaction per list of logs. `salt` distinguishes branches.
pub(super) fn blocks(
    parent: Option<&Block>,
    count: u64,
    salt: u64,
    logs: impl Fn(u64) -> Vec<Vec<Log>>,
) -> Vec<Block> {
    let mut made: Vec<Block> = Vec::new();
    for _ in 0..count {
        let parent = made.last().or(parent);
        let number = parent.map_or(0, |parent| parent.at.number + 1);
        let parent = parent.map(|parent| parent.at.hash).unwrap_or_default();
        made.push(one(number, parent, salt, logs(number)));
    }
    made
}

fn one(number: u64, parent_hash: B256, salt: u64, logs: Vec<Vec<Log>>) -> Block {
    let header = EvmHeader {
        number,
        parent_hash,
        timestamp: 1_000 + number,
        difficulty: U256::from(salt),
        ..EvmHeader::default()
    };
    let at = logmill_chain::BlockRef {
        number,
        hash: header.hash_slow(),
        parent_hash,
        timestamp: header.timestamp,
    };
    let (mut transactions, mut receipts, mut gas) = (Vec::new(), Vec::new(), 0);
    for (position, logs) in logs.into_iter().enumerate() {
        let tx = TxLegacy {
            nonce: number * 1_000 + u64::try_from(position).expect("few"),
            gas_price: 3,
            to: TxKind::Call(Address::repeat_byte(9)),
            value: U256::from(salt),
            ..TxLegacy::default()
        };
        // Any signature with a point on the curve belongs to some account.
        let signed = tx.into_signed(Signature::new(U256::ONE, U256::from(6), false));
        transactions.push(Transaction::canonical(TxEnvelope::from(signed).encoded_2718().into()));
        gas += 21_000;
        receipts.push(Receipt {
            tx_type: 0,
            outcome: Outcome::Status(position != 1),
            cumulative_gas_used: gas,
            logs,
            extra: None,
        });
    }
    let mut raw = Vec::new();
    alloy_rlp::Encodable::encode(&header, &mut raw);
    Block {
        at,
        header: Header::Canonical(raw.into()),
        uncles: Vec::new(),
        withdrawals: None,
        size: 500,
        transactions,
        receipts,
        verified: VerifyLevel::Off,
        node_fields: logmill_chain::KeptFields::default(),
    }
}

/// A log whose address and topics are repeated bytes.
pub(super) fn log(address: u8, topics: &[u8], data_bytes: usize) -> Log {
    Log {
        address: Address::repeat_byte(address),
        topics: topics.iter().map(|byte| B256::repeat_byte(*byte)).collect(),
        data: vec![address; data_bytes].into(),
    }
}

/// Ten finalized blocks and three in the tip, each with two transactions, of one and two logs.
pub(super) fn small() -> (Vec<Block>, Vec<Block>) {
    let logs = |_| vec![vec![log(1, &[1], 3)], vec![log(1, &[2, 3], 0), log(2, &[], 1)]];
    let last = blocks(None, 10, 1, logs);
    let tip = blocks(last.last(), 3, 1, logs);
    (last, tip)
}
