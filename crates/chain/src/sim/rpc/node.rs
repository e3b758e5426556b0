//! A node of a simulated chain, with the faults of real nodes.
//!
//! Guarantees: the same script and sequence of requests produce the same answers. Leaves to others: the socket,
//! and waiting for [`NodeFaults::delay`].

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{Limits, Wire, WireResponse};

use super::{LogLimits, NodeView};
use crate::block::Block;
use crate::sim::{Lie, SimChain};

/// The faults of a node; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFaults {
    pub lie: Option<Lie>,
    /// Falsifies blocks whose numbers are multiples of this; all if 0.
    pub lie_every: u64,
    /// How many blocks it lags behind the chain.
    pub behind: u64,
    /// Blocks that it reports as not existing.
    pub missing: BTreeSet<u64>,
    /// Blocks below this one are pruned.
    pub floor: u64,
    /// Answers every n-th request with HTTP 429; none if 0.
    pub too_many_every: u64,
    /// Answers every n-th request with HTTP 503; none if 0.
    pub fail_every: u64,
    /// Cuts every n-th answer in half; none if 0.
    pub cut_every: u64,
    pub delay: Duration,
    /// Maximum number of logs in an answer; the default limit if 0.
    pub logs_max: usize,
    /// Maximum block range of a log query; the default limit if 0.
    pub logs_blocks_max: u64,
    /// Answers a log query beyond its head with the logs that it has, without an error.
    pub silent_above_head: bool,
}

impl NodeFaults {
    fn limits(&self) -> LogLimits {
        let usual = LogLimits::default();
        LogLimits {
            logs_max: if self.logs_max == 0 { usual.logs_max } else { self.logs_max },
            blocks_max: match self.logs_blocks_max {
                0 => usual.blocks_max,
                most => most,
            },
            silent_above_head: self.silent_above_head,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A body, which may be a JSON-RPC error.
    Json(String),
    /// An HTTP status without a body.
    Status(u16),
}

/// A node of a simulated chain. Clones are handles to the same node. Use [`SimChain::fork`] for a node on its
/// own branch.
#[derive(Clone, Debug)]
pub struct SimNode {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    chain: SimChain,
    faults: Mutex<NodeFaults>,
    requests: AtomicU64,
}

impl SimNode {
    /// A node without faults.
    pub fn new(chain: SimChain) -> Self {
        let (faults, requests) = (Mutex::default(), AtomicU64::new(0));
        Self { inner: Arc::new(Inner { chain, faults, requests }) }
    }

    pub fn chain(&self) -> &SimChain {
        &self.inner.chain
    }

    /// Replaces the faults from now on.
    pub fn set_faults(&self, faults: NodeFaults) {
        *self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    pub fn faults(&self) -> NodeFaults {
        self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of requests so far; a batch counts as one.
    pub fn requests(&self) -> u64 {
        self.inner.requests.load(Ordering::SeqCst)
    }

    /// Answers a request, or a batch of them.
    pub fn answer(&self, request: &str) -> Reply {
        let count = self.inner.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let faults = self.faults();
        if is_due(count, faults.too_many_every) {
            return Reply::Status(429);
        }
        if is_due(count, faults.fail_every) {
            return Reply::Status(503);
        }
        let change = |mut block: Block| {
            if faults.missing.contains(&block.at.number) {
                return None;
            }
            if let Some(lie) = faults.lie
                && block.at.number.is_multiple_of(faults.lie_every.max(1))
            {
                lie.apply(&mut block);
            }
            Some(block)
        };
        let view = NodeView {
            chain: &self.inner.chain,
            behind: faults.behind,
            floor: faults.floor,
            limits: faults.limits(),
            change: &change,
        };
        let mut answer = view.answer(request);
        if is_due(count, faults.cut_every) {
            // The answer is ASCII.
            answer.truncate(answer.len() / 2);
        }
        Reply::Json(answer)
    }
}

/// A wire without a socket, for clients in the same process.
#[async_trait]
impl Wire for SimNode {
    async fn exchange(&self, body: Bytes, _: Limits) -> logmill_io::Result<WireResponse> {
        let (status, body) = match self.answer(&String::from_utf8_lossy(&body)) {
            Reply::Json(json) => (200, Bytes::from(json)),
            Reply::Status(status) => (status, Bytes::new()),
        };
        Ok(WireResponse { status, retry_after: None, body })
    }
}

fn is_due(count: u64, every: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
}
