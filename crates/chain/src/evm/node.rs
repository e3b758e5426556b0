//! One node: how it is asked, and what is known of it.
//!
//! Guarantees: never more requests at once or per second than its settings say, no answer beyond its limits, and
//! nothing that it says is shown with the secrets of its address. Leaves to others: which node is asked.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use logmill_io::wire::{Answer, Endpoint, Limits, Wire};
use logmill_io::{Clock, Entropy, compute};
use metrics::counter;
use tokio::sync::Semaphore;

use super::adapt::Size;
use super::health::Health;
use super::pace::Pace;
use super::rpc::{self, Call, Outcome};
use super::settings::{EvmSettings, NodeSettings};
use super::trouble::Trouble;
use crate::source::NodeStatus;
use crate::verify::Mismatch;

/// Answers up to this size are read in place; larger ones where they hold up no other task.
const IN_PLACE_BYTES_MAX: usize = 16 * 1024;

/// How many blocks are asked for at once, to begin with.
const BLOCKS_FIRST: u64 = 8;

/// How many calls a batch has at most.
const CALLS_MAX: u64 = 100;

/// How many blocks `eth_getLogs` is asked for at once, to begin with and at most.
const LOGS_BLOCKS_MAX: u64 = 1000;

/// How many blocks it is asked for logs of some contracts in, to begin with and at most.
const FOUND_BLOCKS_FIRST: u64 = 1000;
const FOUND_BLOCKS_MAX: u64 = 10_000;

/// How long a node that lacks a method is taken to lack it. Some are many nodes behind one address.
const LACKING: Duration = Duration::from_secs(600);

/// How long a node of another chain is left alone.
const WRONG_CHAIN_REST: Duration = Duration::from_secs(600);

/// How a node gives receipts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receipts {
    /// By `eth_getBlockReceipts`.
    OfBlock,
    /// By `eth_getTransactionReceipt`.
    OfTransaction,
    /// Not at all: `eth_getLogs` must do.
    Logs,
}

/// A node.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) weight: u32,
    chain: String,
    address: Endpoint,
    wire: Arc<dyn Wire>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    limits: Limits,
    permits: Semaphore,
    in_flight: AtomicU64,
    state: Mutex<State>,
}

struct State {
    health: Health,
    pace: Pace,
    blocks: Size,
    calls: Size,
    logs: Size,
    found: Size,
    batches: bool,
    receipts: Receipts,
    receipts_at: Duration,
    head: Option<(u64, Duration)>,
    checked: bool,
    /// It gave a header that had its hash.
    headers_hash: bool,
    requests: u64,
    failures: u64,
    last_error: Option<String>,
}

impl Node {
    pub(super) fn new(
        node: &NodeSettings,
        settings: &EvmSettings,
        wire: Arc<dyn Wire>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let limits =
            Limits { bytes_max: settings.response_bytes_max, timeout: settings.request_timeout };
        let state = State {
            health: Health::default(),
            pace: Pace::new(node.requests_per_second),
            blocks: Size::new(BLOCKS_FIRST, node.batch_blocks_max),
            calls: Size::new(CALLS_MAX, CALLS_MAX),
            logs: Size::new(LOGS_BLOCKS_MAX, LOGS_BLOCKS_MAX),
            found: Size::new(FOUND_BLOCKS_FIRST, FOUND_BLOCKS_MAX),
            batches: true,
            receipts: Receipts::OfBlock,
            receipts_at: Duration::ZERO,
            head: None,
            checked: false,
            headers_hash: false,
            requests: 0,
            failures: 0,
            last_error: None,
        };
        Self {
            name: node.name(),
            weight: node.weight.max(1),
            chain: settings.chain.clone(),
            address: node.address.clone(),
            wire,
            clock,
            entropy,
            limits,
            permits: Semaphore::new(node.concurrent_max.clamp(1, Semaphore::MAX_PERMITS)),
            in_flight: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Makes calls, and reads their answers where it holds up no other task. What goes wrong is noted.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        calls: Vec<Call>,
        read: impl FnOnce(&[Outcome<'_>]) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        self.call_within(self.limits.bytes_max, calls, read).await
    }

    /// The same with answers of at most `bytes_max`.
    pub(super) async fn call_within<T: Send + 'static>(
        &self,
        bytes_max: usize,
        calls: Vec<Call>,
        read: impl FnOnce(&[Outcome<'_>]) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let _flight = Flight::of(&self.in_flight);
        let limits = Limits { bytes_max: bytes_max.min(self.limits.bytes_max), ..self.limits };
        let done = match self.exchange(&calls, limits).await {
            Ok(bodies) => read_bodies(bodies, read).await,
            Err(trouble) => Err(trouble),
        };
        match done {
            Ok(done) => {
                self.state().health.answered();
                Ok(done)
            }
            Err(trouble) => Err(self.note(trouble)),
        }
    }

    /// Sends calls in one batch, or one by one where there are none, and gives each body with how many it is for.
    async fn exchange(
        &self,
        calls: &[Call],
        limits: Limits,
    ) -> Result<Vec<(Bytes, usize)>, Trouble> {
        let wait = self.state().pace.take(self.clock.monotonic(), calls.len());
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let at_once = usize::try_from(self.calls_at_once()).unwrap_or(1);
        let mut bodies = Vec::new();
        for part in calls.chunks(at_once) {
            self.state().requests += 1;
            counter!("logmill_node_requests_total", "chain" => self.chain.clone(), "node" => self.name.clone())
                .increment(1);
            let answer = self.wire.exchange(rpc::body(part), limits).await;
            let answer = answer.map_err(Trouble::from).and_then(accepted);
            let asked = u64::try_from(part.len()).unwrap_or(u64::MAX);
            match &answer {
                Err(Trouble::TooMuch { .. }) => self.state().calls.was_too_much(asked, None),
                Err(_) => {}
                Ok(_) => self.state().calls.went_well(asked),
            }
            bodies.push((answer?, part.len()));
        }
        Ok(bodies)
    }

    /// How many calls go into one batch.
    pub(super) fn calls_at_once(&self) -> u64 {
        let state = self.state();
        if state.batches { state.calls.now() } else { 1 }
    }

    /// A batch of this many calls was refused by the words of its answer.
    pub(super) fn calls_were_too_many(&self, asked: u64) {
        self.state().calls.was_too_much(asked, None);
    }

    /// Takes note of what went wrong, and gives it back without secrets.
    pub(super) fn note(&self, trouble: Trouble) -> Trouble {
        let trouble = trouble.redacted(|text| self.address.redact(text));
        let trouble = self.judge(trouble);
        self.keep(&trouble);
        trouble
    }

    /// Fields that we do not know explain no wrong hash where headers had the right one without them.
    fn judge(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Unverifiable {
                number,
                hash,
                mismatch: Mismatch::ForeignHeader { computed, claimed, unknown },
            } if self.state().headers_hash => {
                let mismatch = Mismatch::HeaderHash { computed, claimed, unknown };
                Trouble::Lie { number, hash, mismatch }
            }
            other => other,
        }
    }

    /// It gave blocks whose headers have their hashes.
    pub(super) fn gave_hashed_headers(&self) {
        self.state().headers_hash = true;
    }

    fn keep(&self, trouble: &Trouble) {
        let now = self.clock.monotonic();
        let mut state = self.state();
        state.last_error = Some(trouble.why());
        let retry_after = match trouble {
            Trouble::Failed { retry_after, .. } => *retry_after,
            Trouble::Slow { .. } | Trouble::Rpc(_) | Trouble::Unverifiable { .. } => None,
            Trouble::NoBatches => {
                state.batches = false;
                return;
            }
            Trouble::Lie { number, hash, mismatch } => {
                state.health.lied(now, &*self.entropy);
                drop(state);
                let (chain, node) = (&self.chain, &self.name);
                tracing::warn!(%chain, %node, block = number, %hash, %mismatch, "a node gave a false block");
                counter!("logmill_node_lies_total", "chain" => self.chain.clone(), "node" => self.name.clone())
                    .increment(1);
                return;
            }
            // These are no reason to leave it alone.
            Trouble::TooMuch { .. }
            | Trouble::NoMethod { .. }
            | Trouble::Missing
            | Trouble::Pruned
            | Trouble::Late { .. }
            | Trouble::Moved
            | Trouble::Unlinked { .. } => return,
        };
        state.failures += 1;
        state.health.failed(now, retry_after, &*self.entropy);
        drop(state);
        counter!("logmill_node_failures_total", "chain" => self.chain.clone(), "node" => self.name.clone())
            .increment(1);
    }

    /// How much longer it rests; none if it can be asked.
    pub(super) fn rest(&self) -> Option<Duration> {
        self.state().health.rest(self.clock.monotonic())
    }

    /// How much longer it rests while no other node can be asked.
    pub(super) fn rest_as_last(&self) -> Option<Duration> {
        self.state().health.rest_as_last(self.clock.monotonic())
    }

    /// How busy it is for its weight; the least busy is asked.
    pub(super) fn load(&self) -> (u64, u64) {
        // Scaled, so that weights up to this make a difference.
        const SCALE: u64 = 1 << 16;
        let weight = u64::from(self.weight);
        let in_flight = self.in_flight.load(Ordering::Relaxed).saturating_add(1);
        let requests = self.state().requests;
        (in_flight.saturating_mul(SCALE) / weight, requests.saturating_mul(SCALE) / weight)
    }

    /// How long it has not told of its head, as a load: who was silent longest is asked, else the least busy.
    pub(super) fn silence(&self) -> (u64, u64) {
        let silent = self.head().map_or(Duration::MAX, |(_, age)| age);
        let silent = u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX);
        (u64::MAX - silent, self.load().1)
    }

    /// The newest block that it told of, and how long ago.
    pub(super) fn head(&self) -> Option<(u64, Duration)> {
        let now = self.clock.monotonic();
        self.state().head.map(|(head, at)| (head, now.saturating_sub(at)))
    }

    pub(super) fn told_head(&self, head: u64) {
        self.state().head = Some((head, self.clock.monotonic()));
    }

    /// How many blocks it is asked for at once.
    pub(super) fn blocks_at_once(&self) -> u64 {
        self.state().blocks.now()
    }

    pub(super) fn blocks_went_well(&self, asked: u64) {
        self.state().blocks.went_well(asked);
    }

    pub(super) fn blocks_were_too_many(&self, asked: u64) {
        self.state().blocks.was_too_much(asked, None);
    }

    /// How many blocks it is asked for logs of at once.
    pub(super) fn logs_at_once(&self) -> u64 {
        self.state().logs.now()
    }

    pub(super) fn logs_went_well(&self, asked: u64) {
        self.state().logs.went_well(asked);
    }

    pub(super) fn logs_were_too_many(&self, asked: u64, better: Option<u64>) {
        self.state().logs.was_too_much(asked, better);
    }

    /// In how many blocks it is asked for logs of some contracts at once.
    pub(super) fn found_at_once(&self) -> u64 {
        self.state().found.now()
    }

    pub(super) fn found_went_well(&self, asked: u64) {
        self.state().found.went_well(asked);
    }

    pub(super) fn found_was_too_much(&self, asked: u64, better: Option<u64>) {
        self.state().found.was_too_much(asked, better);
    }

    /// How it gives receipts.
    pub(super) fn receipts(&self) -> Receipts {
        let now = self.clock.monotonic();
        let mut state = self.state();
        if now.saturating_sub(state.receipts_at) >= LACKING {
            state.receipts = Receipts::OfBlock;
        }
        state.receipts
    }

    /// It lacks the method for `how`; the next less good one is used. False if there is none.
    pub(super) fn lacks(&self, how: Receipts) -> bool {
        let next = match how {
            Receipts::OfBlock => Receipts::OfTransaction,
            Receipts::OfTransaction => Receipts::Logs,
            Receipts::Logs => return false,
        };
        let mut state = self.state();
        state.receipts = next;
        state.receipts_at = self.clock.monotonic();
        drop(state);
        tracing::info!(chain = %self.chain, node = %self.name, ?next, "the node lacks a method for receipts");
        true
    }

    /// Whether it is known to be of the right chain.
    pub(super) fn is_checked(&self) -> bool {
        self.state().checked
    }

    pub(super) fn is_of_the_chain(&self) {
        self.state().checked = true;
    }

    pub(super) fn is_of_another_chain(&self, why: String) {
        let now = self.clock.monotonic();
        let mut state = self.state();
        state.failures += 1;
        state.last_error = Some(why);
        state.health.rest_for(now, WRONG_CHAIN_REST);
    }

    /// A text of this node, without the secrets of its address.
    pub(super) fn redact(&self, text: &str) -> String {
        self.address.redact(text)
    }

    /// What went wrong last.
    pub(super) fn last_error(&self) -> Option<String> {
        self.state().last_error.clone()
    }

    /// What is shown of it; the pool says whether it rests.
    pub(super) fn status(&self, healthy: bool) -> NodeStatus {
        let state = self.state();
        NodeStatus {
            name: self.name.clone(),
            healthy,
            head: state.head.map(|(head, _)| head),
            requests: state.requests,
            failures: state.failures,
            lies: state.health.lies(),
            last_error: state.last_error.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.name)
    }
}

/// Counts a request while it is on its way, also when its future is dropped.
struct Flight<'a>(&'a AtomicU64);

impl<'a> Flight<'a> {
    fn of(in_flight: &'a AtomicU64) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn read_bodies<T: Send + 'static>(
    bodies: Vec<(Bytes, usize)>,
    read: impl FnOnce(&[Outcome<'_>]) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let bytes: usize = bodies.iter().map(|(body, _)| body.len()).sum();
    let work = move || {
        let mut outcomes = Vec::new();
        for (body, calls) in &bodies {
            outcomes.extend(rpc::answers(body, *calls)?);
        }
        read(&outcomes)
    };
    if bytes <= IN_PLACE_BYTES_MAX { work() } else { compute(work).await }
}

/// The body of an answer, unless its status says that it is none.
fn accepted(answer: Answer) -> Result<Bytes, Trouble> {
    let status = answer.status;
    let mut why = format!("http status {status}");
    if let Some(wait) = answer.retry_after {
        why = format!("{why}, Retry-After {} s", wait.as_secs());
    }
    // Many nodes give an error of JSON-RPC a status as well, and its words say more.
    let speaks = matches!(answer.body.trim_ascii_start().first(), Some(b'{' | b'['));
    match status {
        200..=299 => Ok(answer.body),
        429 => Err(Trouble::Failed { why, retry_after: answer.retry_after }),
        413 => Err(Trouble::TooMuch { why, better: None }),
        408 | 504 | 524 => Err(Trouble::Slow { why }),
        400 | 404 | 405 | 500 if speaks => Ok(answer.body),
        401 | 403 => Err(Trouble::failed(format!("{why}: it does not accept our key"))),
        _ => Err(Trouble::Failed { why, retry_after: answer.retry_after }),
    }
}
