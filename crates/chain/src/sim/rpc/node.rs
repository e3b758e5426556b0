//! A node of a simulated chain, with what real nodes do wrong.
//!
//! Guarantees: one script and one sequence of requests give one sequence of answers. Leaves to others: the socket, and
//! waiting as long as [`NodeFaults::delay`] says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{Answer, Limits, Wire};

use super::{LogLimits, View};
use crate::block::Block;
use crate::sim::{Lie, SimChain};

/// What a node does wrong. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFaults {
    /// How it lies about blocks.
    pub lie: Option<Lie>,
    /// It lies about the blocks whose numbers this divides; about all if 0.
    pub lie_every: u64,
    /// How many blocks it is behind the chain.
    pub behind: u64,
    /// Blocks that it says do not exist.
    pub missing: BTreeSet<u64>,
    /// Blocks below this one are pruned.
    pub floor: u64,
    /// Each request of this number is one too many (HTTP 429); none if 0.
    pub too_many_every: u64,
    /// Each request of this number fails (HTTP 503); none if 0.
    pub fail_every: u64,
    /// Each answer of this number is cut in the middle; none if 0.
    pub cut_every: u64,
    /// How long an answer takes.
    pub delay: Duration,
    /// The most logs of an answer; as many as an honest node gives if 0.
    pub logs_max: usize,
    /// The most blocks of a question for logs; as many as an honest node takes if 0.
    pub logs_blocks_max: u64,
    /// Asked for logs of blocks that it does not have yet, it gives those that it has, and says nothing.
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

/// What a node sends back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An answer, which may be a JSON-RPC error.
    Json(String),
    /// A status of HTTP and nothing else.
    Status(u16),
}

/// A node of a simulated chain. Clones are the same node. Given a [`SimChain::fork`], it is on a branch of its own.
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
    /// An honest node.
    pub fn new(chain: SimChain) -> Self {
        let (faults, requests) = (Mutex::default(), AtomicU64::new(0));
        Self { inner: Arc::new(Inner { chain, faults, requests }) }
    }

    /// The chain behind it.
    pub fn chain(&self) -> &SimChain {
        &self.inner.chain
    }

    /// What it does wrong from now on.
    pub fn set_faults(&self, faults: NodeFaults) {
        *self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// What it does wrong.
    pub fn faults(&self) -> NodeFaults {
        self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many requests it was sent; a batch is one.
    pub fn requests(&self) -> u64 {
        self.inner.requests.load(Ordering::SeqCst)
    }

    /// Its answer to a request, or to a batch of them.
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
                lie.tell(&mut block);
            }
            Some(block)
        };
        let view = View {
            chain: &self.inner.chain,
            behind: faults.behind,
            floor: faults.floor,
            limits: faults.limits(),
            change: &change,
        };
        let mut answer = view.answer(request);
        if is_due(count, faults.cut_every) {
            // All of it is ASCII.
            answer.truncate(answer.len() / 2);
        }
        Reply::Json(answer)
    }
}

/// A wire without a socket, for clients in the same process.
#[async_trait]
impl Wire for SimNode {
    async fn exchange(&self, body: Bytes, _: Limits) -> logmill_io::Result<Answer> {
        let (status, body) = match self.answer(&String::from_utf8_lossy(&body)) {
            Reply::Json(json) => (200, Bytes::from(json)),
            Reply::Status(status) => (status, Bytes::new()),
        };
        Ok(Answer { status, retry_after: None, body })
    }
}

fn is_due(count: u64, every: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
}
