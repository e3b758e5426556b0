//! One node: sending requests to it, and its state.
//!
//! Guarantees: never more requests at once or per second than its settings allow, no answer beyond its limits, and no
//! text of the node is shown with the secrets of its address. Leaves to others: which node is asked.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use logmill_io::wire::{Endpoint, Limits, Wire};
use logmill_io::{Clock, Entropy};
use metrics::counter;
use tokio::sync::Semaphore;

use super::adapt::RequestSize;
use super::exchange::{accepted, is_broken, read_bodies, unanswered};
use super::health::Health;
use super::node_error::{BatchLimit, NodeError};
use super::pace::Pace;
use super::patience::Patience;
use super::rpc::{self, Call, CallResult};
use super::settings::{EvmSettings, NodeSettings};
use crate::mismatch::Mismatch;
use crate::source::NodeStatus;

/// Initial blocks per request.
const BLOCKS_FIRST: u64 = 8;

/// Maximum calls per batch.
const CALLS_MAX: u64 = 100;

/// Initial and maximum blocks per `eth_getLogs`.
const LOGS_BLOCKS_MAX: u64 = 1000;

/// Initial and maximum blocks per `eth_getLogs` for some contracts.
const FOUND_BLOCKS_FIRST: u64 = 1000;
const FOUND_BLOCKS_MAX: u64 = 10_000;

/// Time until a missing method is tried again. One address may have many nodes behind it.
const LACKING: Duration = Duration::from_secs(600);

const WRONG_CHAIN_REST: Duration = Duration::from_secs(600);

/// The method for uncles, which may be missing on chains that never had any.
pub(super) const UNCLES: &str = "eth_getUncleByBlockHashAndIndex";

/// How receipts are obtained from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiptMethod {
    /// By `eth_getBlockReceipts`.
    OfBlock,
    /// By `eth_getTransactionReceipt`.
    OfTransaction,
    /// Not at all; only logs, by `eth_getLogs`.
    Logs,
}

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
    /// How long missing parts of a block are waited for, where nothing is checked.
    pub(super) patience: Arc<Patience>,
    state: Mutex<State>,
}

struct State {
    health: Health,
    pace: Pace,
    blocks: RequestSize,
    calls: RequestSize,
    logs: RequestSize,
    found: RequestSize,
    receipts: ReceiptMethod,
    receipts_at: Duration,
    /// When the method for uncles was found missing.
    no_uncles_at: Option<Duration>,
    head: Option<(u64, Duration)>,
    checked: bool,
    /// It returned a header that matched its hash.
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
            blocks: RequestSize::new(BLOCKS_FIRST, node.batch_blocks_max),
            calls: RequestSize::new(CALLS_MAX, CALLS_MAX),
            logs: RequestSize::new(LOGS_BLOCKS_MAX, LOGS_BLOCKS_MAX),
            found: RequestSize::new(FOUND_BLOCKS_FIRST, FOUND_BLOCKS_MAX),
            receipts: ReceiptMethod::OfBlock,
            receipts_at: Duration::ZERO,
            no_uncles_at: None,
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
            patience: Arc::new(Patience::new(Arc::clone(&clock))),
            clock,
            entropy,
            limits,
            permits: Semaphore::new(node.concurrent_max.clamp(1, Semaphore::MAX_PERMITS)),
            in_flight: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Makes calls and parses the answers, large ones off the async threads. Records errors.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        calls: Vec<Call>,
        read: impl Fn(&[CallResult<'_>]) -> Result<T, NodeError> + Send + Sync + 'static,
    ) -> Result<T, NodeError> {
        self.call_within(self.limits.bytes_max, calls, read).await
    }

    /// The same with answers of at most `bytes_max`. A refused batch is retried in halves, down to single calls, and
    /// the accepted size is remembered.
    pub(super) async fn call_within<T: Send + 'static>(
        &self,
        bytes_max: usize,
        calls: Vec<Call>,
        read: impl Fn(&[CallResult<'_>]) -> Result<T, NodeError> + Send + Sync + 'static,
    ) -> Result<T, NodeError> {
        let _flight = InFlightGuard::of(&self.in_flight);
        let limits = Limits { bytes_max: bytes_max.min(self.limits.bytes_max), ..self.limits };
        let read = Arc::new(read);
        let mut at_once = self.calls_at_once().min(calls.len()).max(1);
        let mut refused = None;
        let done = loop {
            let done = match self.exchange(&calls, at_once, limits).await {
                Ok(bodies) => read_bodies(bodies, Arc::clone(&read)).await,
                Err(error) => Err(error),
            };
            match done {
                Err(NodeError::BatchRefused { because, .. }) if at_once > 1 => {
                    refused = Some((at_once, because));
                    at_once = if because == BatchLimit::Single { 1 } else { at_once / 2 };
                }
                // It was a single call.
                Err(NodeError::BatchRefused { why, .. }) => {
                    break Err(NodeError::TooMuch { why, better: None });
                }
                done => break done,
            }
        };
        self.learn_batch(&done, at_once, refused);
        match done {
            Ok(done) => {
                self.state().health.answered();
                Ok(done)
            }
            Err(error) => Err(self.note(error)),
        }
    }

    /// Learns how many calls the node accepts per request, if it accepted these.
    fn learn_batch<T>(
        &self,
        done: &Result<T, NodeError>,
        at_once: usize,
        refused: Option<(usize, BatchLimit)>,
    ) {
        let count = |calls: usize| u64::try_from(calls).unwrap_or(u64::MAX);
        let failed = matches!(
            done,
            Err(NodeError::Failed { .. } | NodeError::Slow { .. } | NodeError::TooMuch { .. })
        );
        let mut state = self.state();
        match refused {
            _ if failed => {}
            None => state.calls.went_well(count(at_once)),
            Some((asked, BatchLimit::Calls | BatchLimit::Single)) => {
                state.calls.was_refused(count(asked), count(at_once));
                drop(state);
                let (chain, node) = (&self.chain, &self.name);
                tracing::info!(%chain, %node, calls = at_once, "the node accepts only smaller batches");
            }
            Some((asked, BatchLimit::Bytes)) => {
                state.calls.was_too_much(count(asked), Some(count(at_once)));
            }
        }
    }

    /// Sends calls, `at_once` per request, and returns each body with its number of calls.
    async fn exchange(
        &self,
        calls: &[Call],
        at_once: usize,
        limits: Limits,
    ) -> Result<Vec<(Bytes, usize)>, NodeError> {
        let wait = self.state().pace.take(self.clock.monotonic(), calls.len());
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let mut bodies = Vec::new();
        for part in calls.chunks(at_once) {
            self.state().requests += 1;
            counter!("logmill_node_requests_total", "chain" => self.chain.clone(), "node" => self.name.clone())
                .increment(1);
            let answer = self.wire.exchange(rpc::body(part), limits).await;
            if answer.as_ref().is_err_and(is_broken) {
                // A different node may answer at this address later, so its chain id must be checked again.
                self.state().checked = false;
            }
            let answer = answer.map_err(|error| unanswered(error, part.len()));
            bodies.push((accepted(answer?, part.len())?, part.len()));
        }
        Ok(bodies)
    }

    fn calls_at_once(&self) -> usize {
        usize::try_from(self.state().calls.now()).unwrap_or(1)
    }

    /// Records an error, and returns it without secrets.
    pub(super) fn note(&self, error: NodeError) -> NodeError {
        let error = error.redacted(|text| self.address.redact(text));
        let error = self.judge(error);
        self.keep(&error);
        error
    }

    /// Unknown fields and types do not excuse a wrong hash if the node's other headers matched their hashes.
    fn judge(&self, error: NodeError) -> NodeError {
        let NodeError::Unverifiable { number, hash, mismatch } = error else {
            return error;
        };
        let (computed, claimed, unknown) = match mismatch {
            Mismatch::ForeignHeader { computed, claimed, unknown } if self.state().headers_hash => {
                (computed, claimed, unknown)
            }
            Mismatch::ForeignBlock { computed, claimed, .. } if self.state().headers_hash => {
                (computed, claimed, Vec::new())
            }
            mismatch => return NodeError::Unverifiable { number, hash, mismatch },
        };
        NodeError::Lie {
            number,
            hash,
            mismatch: Mismatch::HeaderHash { computed, claimed, unknown },
        }
    }

    /// It returned blocks whose headers match their hashes.
    pub(super) fn note_hashed_headers(&self) {
        self.state().headers_hash = true;
    }

    fn keep(&self, error: &NodeError) {
        let now = self.clock.monotonic();
        let mut state = self.state();
        state.last_error = Some(error.why());
        let retry_after = match error {
            NodeError::Failed { retry_after, .. } => *retry_after,
            NodeError::Slow { .. } | NodeError::Rpc(_) | NodeError::Unverifiable { .. } => None,
            NodeError::Lie { number, hash, mismatch } => {
                state.health.lied(now, &*self.entropy);
                drop(state);
                let (chain, node) = (&self.chain, &self.name);
                tracing::warn!(%chain, %node, block = number, %hash, %mismatch, "a node returned a false block");
                counter!("logmill_node_lies_total", "chain" => self.chain.clone(), "node" => self.name.clone())
                    .increment(1);
                return;
            }
            // These are no reason to rest.
            NodeError::TooMuch { .. }
            | NodeError::BatchRefused { .. }
            | NodeError::NoMethod { .. }
            | NodeError::Missing
            | NodeError::Pruned
            | NodeError::Late { .. }
            | NodeError::Moved
            | NodeError::Unlinked { .. } => return,
        };
        state.failures += 1;
        state.health.failed(now, retry_after, &*self.entropy);
        drop(state);
        counter!("logmill_node_failures_total", "chain" => self.chain.clone(), "node" => self.name.clone())
            .increment(1);
    }

    /// Remaining rest; `None` if it can be asked.
    pub(super) fn rest(&self) -> Option<Duration> {
        self.state().health.rest(self.clock.monotonic())
    }

    /// Remaining rest while no other node can be asked.
    pub(super) fn rest_as_last(&self) -> Option<Duration> {
        self.state().health.rest_as_last(self.clock.monotonic())
    }

    /// Load relative to its weight; the node with the lowest is asked.
    pub(super) fn load(&self) -> (u64, u64) {
        // Scaled, so that weights up to this make a difference.
        const SCALE: u64 = 1 << 16;
        let weight = u64::from(self.weight);
        let in_flight = self.in_flight.load(Ordering::Relaxed).saturating_add(1);
        let requests = self.state().requests;
        (in_flight.saturating_mul(SCALE) / weight, requests.saturating_mul(SCALE) / weight)
    }

    /// Time since it last reported its head, as a load: the node that was silent longest is asked, then the least
    /// busy.
    pub(super) fn silence(&self) -> (u64, u64) {
        let silent = self.head().map_or(Duration::MAX, |(_, age)| age);
        let silent = u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX);
        (u64::MAX - silent, self.load().1)
    }

    /// The newest block it reported, and how long ago.
    pub(super) fn head(&self) -> Option<(u64, Duration)> {
        let now = self.clock.monotonic();
        self.state().head.map(|(head, at)| (head, now.saturating_sub(at)))
    }

    pub(super) fn record_head(&self, head: u64) {
        self.state().head = Some((head, self.clock.monotonic()));
    }

    pub(super) fn blocks_at_once(&self) -> u64 {
        self.state().blocks.now()
    }

    pub(super) fn blocks_went_well(&self, asked: u64) {
        self.state().blocks.went_well(asked);
    }

    pub(super) fn blocks_were_too_many(&self, asked: u64) {
        self.state().blocks.was_too_much(asked, None);
    }

    /// Blocks per `eth_getLogs` of whole blocks.
    pub(super) fn logs_at_once(&self) -> u64 {
        self.state().logs.now()
    }

    pub(super) fn logs_went_well(&self, asked: u64) {
        self.state().logs.went_well(asked);
    }

    pub(super) fn logs_were_too_many(&self, asked: u64, better: Option<u64>) {
        self.state().logs.was_too_much(asked, better);
    }

    /// Blocks per `eth_getLogs` for some contracts.
    pub(super) fn found_at_once(&self) -> u64 {
        self.state().found.now()
    }

    pub(super) fn found_went_well(&self, asked: u64) {
        self.state().found.went_well(asked);
    }

    pub(super) fn found_was_too_much(&self, asked: u64, better: Option<u64>) {
        self.state().found.was_too_much(asked, better);
    }

    pub(super) fn receipts(&self) -> ReceiptMethod {
        let now = self.clock.monotonic();
        let mut state = self.state();
        if now.saturating_sub(state.receipts_at) >= LACKING {
            state.receipts = ReceiptMethod::OfBlock;
        }
        state.receipts
    }

    /// Records that it lacks the method for `how`, and falls back to the next best one. Returns false if there is
    /// none.
    pub(super) fn fall_back_from(&self, how: ReceiptMethod) -> bool {
        let next = match how {
            ReceiptMethod::OfBlock => ReceiptMethod::OfTransaction,
            ReceiptMethod::OfTransaction => ReceiptMethod::Logs,
            ReceiptMethod::Logs => return false,
        };
        let mut state = self.state();
        state.receipts = next;
        state.receipts_at = self.clock.monotonic();
        drop(state);
        let (chain, node) = (&self.chain, &self.name);
        tracing::info!(%chain, %node, ?next, "the node does not support a method for receipts, using another");
        true
    }

    pub(super) fn has_uncles(&self) -> bool {
        let now = self.clock.monotonic();
        self.state().no_uncles_at.is_none_or(|at| now.saturating_sub(at) >= LACKING)
    }

    /// Records that it lacks the method for uncles: the uncles hash in a header cannot be checked.
    pub(super) fn note_no_uncles(&self) {
        let is_known = self.state().no_uncles_at.replace(self.clock.monotonic()).is_some();
        if !is_known {
            tracing::warn!(
                chain = %self.chain, node = %self.name, method = UNCLES,
                "the node does not support a method: uncles of its blocks are not checked against their headers"
            );
        }
    }

    /// Whether it is known to serve the right chain.
    pub(super) fn is_checked(&self) -> bool {
        self.state().checked
    }

    pub(super) fn mark_checked(&self) {
        self.state().checked = true;
    }

    pub(super) fn mark_wrong_chain(&self, why: String) {
        let now = self.clock.monotonic();
        let mut state = self.state();
        state.failures += 1;
        state.last_error = Some(why);
        state.health.rest_for(now, WRONG_CHAIN_REST);
    }

    /// Removes the secrets of its address from a text.
    pub(super) fn redact(&self, text: &str) -> String {
        self.address.redact(text)
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.state().last_error.clone()
    }

    /// The pool knows whether it rests.
    pub(super) fn status(&self, healthy: bool) -> NodeStatus {
        let state = self.state();
        NodeStatus {
            name: self.name.clone(),
            healthy,
            head: state.head.map(|(head, _)| head),
            requests: state.requests,
            failures: state.failures,
            lies: state.health.lies(),
            lacks: state.no_uncles_at.map(|_| UNCLES.to_owned()).into_iter().collect(),
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

/// Counts a request in flight, and uncounts it when its future is dropped.
struct InFlightGuard<'a>(&'a AtomicU64);

impl<'a> InFlightGuard<'a> {
    fn of(in_flight: &'a AtomicU64) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
