//! EVM chains, through the JSON-RPC of their nodes.
//!
//! | module | what |
//! |---|---|
//! | `pool` | the nodes, and which of them is asked next; `choice` and `pool_request` decide |
//! | `blocks` | blocks from all nodes as one source: failover, parts of a range, branches |
//! | `fetch` | blocks from one node, with receipts by the best method that it supports |
//! | `logs` | logs of some contracts over a range, without their blocks |
//! | `node` | one node: limits, `health`, `pace`, request sizes that adapt (`adapt`); `exchange` classifies refusals |
//! | `json`, `transaction`, `receipt` | decode the nodes' JSON; `compare` keeps what does not follow from the block |
//! | `rpc`, `error_class`, `node_error` | calls, responses, and the classes of their errors |
//! | `level`, `probed_level` | the verification level, where the chain's profile decides |
//! | `heads`, `head_waker` | identity of the chain, its heads, and announcements of new ones |
//!
//! Guarantees: those of [`ChainSource`]; a node that returns a false block is named in log, metric and status, and
//! another node is asked. Leaves to others: which blocks to fetch, and storing them.

mod adapt;
mod blocks;
mod choice;
mod compare;
mod error_class;
mod exchange;
mod fetch;
mod head_waker;
mod heads;
mod health;
mod json;
mod level;
mod logs;
mod node;
mod node_error;
mod pace;
mod patience;
mod pool;
mod pool_request;
mod probed_level;
mod receipt;
mod rpc;
mod settings;
#[cfg(test)]
mod tests;
mod transaction;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alloy_primitives::{B256, Bytes, keccak256};
use async_trait::async_trait;
use logmill_io::wire::{
    Endpoint, Feed, HttpClient, HttpWire, IpcWire, Scheme, WebSocketFeed, Wire,
};
use logmill_io::{Clock, Entropy, Tasks};
use serde_json::value::RawValue;

use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use crate::source::{
    BlockSource, ChainInfo, ChainSource, ChecksStatus, FoundLog, Heads, LogFilter, NodeSource,
    NodeStatus,
};
use error_class::classify_error;
use head_waker::HeadWaker;
use node::Node;
use node_error::NodeError;
use pool::Pool;
use rpc::{Call, CallResult};

pub use error_class::{ErrorClass, classify_message};
pub use settings::{EvmSettings, NodeSettings};

const NODES_MAX: usize = 100;

/// Maximum size of a response that [`NodeSource::pass`] forwards.
const PASS_BYTES_MAX: usize = 32 << 20;

/// Connections to a node.
#[derive(Clone, Debug)]
pub struct NodeConnections {
    /// Answers requests.
    pub wire: Arc<dyn Wire>,
    /// Announces new blocks, if the node supports that.
    pub feed: Option<Arc<dyn Feed>>,
}

pub struct EvmSource {
    pool: Pool,
    wake: Arc<HeadWaker>,
    /// Dropping them ends the tasks.
    _listeners: Tasks<()>,
}

impl EvmSource {
    /// Must be called on a runtime.
    pub fn new(
        nodes: Vec<NodeSettings>,
        settings: EvmSettings,
        http: &HttpClient,
        clock: Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self> {
        let reached: Result<Vec<(NodeSettings, NodeConnections)>> = nodes
            .into_iter()
            .map(|node| {
                let wire: Arc<dyn Wire> = wire(&node.address, http, &clock)?;
                let feed = node.web_socket.clone();
                let feed = feed.map(|to| -> Arc<dyn Feed> {
                    Arc::new(WebSocketFeed::new(to, Arc::clone(&clock)))
                });
                Ok((node, NodeConnections { wire, feed }))
            })
            .collect();
        Self::with_connections(reached?, settings, clock, entropy)
    }

    /// Like [`EvmSource::new`], with connections that the caller made. Must be called on a runtime.
    pub fn with_connections(
        nodes: Vec<(NodeSettings, NodeConnections)>,
        settings: EvmSettings,
        clock: Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self> {
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            let what =
                format!("{} has {} nodes; it needs 1 to {NODES_MAX}", settings.chain, nodes.len());
            return Err(Error::Invalid { what });
        }
        let wake = HeadWaker::new();
        let mut listeners = Tasks::new();
        let mut pooled = Vec::with_capacity(nodes.len());
        let mut names = BTreeSet::new();
        for (mut node, reach) in nodes {
            node.name = Some(unique(&mut names, node.name()));
            if let Some(feed) = reach.feed {
                let (wake, clock, entropy) =
                    (Arc::clone(&wake), Arc::clone(&clock), Arc::clone(entropy));
                listeners.spawn(head_waker::listen(node.name(), feed, wake, clock, entropy));
            }
            let (clock, entropy) = (Arc::clone(&clock), Arc::clone(entropy));
            pooled.push(Arc::new(Node::new(&node, &settings, reach.wire, clock, entropy)));
        }
        let (chain_id, finalized) = (OnceLock::new(), AtomicU64::new(0));
        let went_back = AtomicBool::new(false);
        let (level, depth, knows_finalized) = Default::default();
        let pool = Pool {
            nodes: pooled,
            settings,
            clock,
            chain_id,
            finalized,
            went_back,
            level,
            depth,
            knows_finalized,
        };
        Ok(Self { pool, wake, _listeners: listeners })
    }
}

/// Makes a node name unique: two addresses may differ only in parts that are not shown.
fn unique(taken: &mut BTreeSet<String>, name: String) -> String {
    let numbered = (2..).map(|number| format!("{name}#{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name));
    let free = free.unwrap_or(name);
    taken.insert(free.clone());
    free
}

fn wire(to: &Endpoint, http: &HttpClient, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Wire>> {
    match to.scheme() {
        Scheme::Http => Ok(Arc::new(HttpWire::new(http.clone(), to.clone()))),
        Scheme::Ipc => Ok(Arc::new(IpcWire::new(to.clone(), Arc::clone(clock)))),
        Scheme::WebSocket => {
            let what = format!("{to} only announces new blocks: give an HTTP address as well");
            Err(Error::Invalid { what })
        }
    }
}

#[async_trait]
impl BlockSource for EvmSource {
    async fn info(&self) -> Result<ChainInfo> {
        self.pool.info().await
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        self.pool.blocks(range).await
    }

    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        self.pool.block_by_hash(hash).await
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        let nodes = self.pool.nodes.iter().zip(self.pool.rests());
        nodes.map(|(node, rest)| node.status(rest.is_none())).collect()
    }
}

#[async_trait]
impl ChainSource for EvmSource {
    async fn heads(&self) -> Result<Heads> {
        self.pool.heads().await
    }

    async fn changed(&self, at_most: Duration) {
        self.wake.wait(&*self.pool.clock, at_most).await;
    }

    fn nudge(&self) {
        self.wake.ring();
    }

    fn has_news(&self) -> bool {
        self.wake.has_rung()
    }

    fn announced(&self) -> Vec<(u64, Duration)> {
        self.wake.take_announced(self.pool.clock.monotonic())
    }
}

#[async_trait]
impl NodeSource for EvmSource {
    async fn logs(
        &self,
        filter: &LogFilter,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>> {
        self.pool.logs(filter, range, anchor).await
    }

    fn checks(&self) -> Option<ChecksStatus> {
        Some(self.pool.checks())
    }

    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        let is_json = serde_json::from_str::<&RawValue>(params).is_ok();
        if !is_json || !params.trim_start().starts_with(['[', '{']) {
            let message = "invalid parameters".to_owned();
            return Err(Error::Rpc { code: -32_602, message, data: None });
        }
        let call = Call { method: Cow::Owned(method.to_owned()), params: params.to_owned() };
        let mut request = self.pool.start_request(rpc::one_line(method), None);
        let mut lacking = None;
        loop {
            let Ok((index, node)) = self.pool.next(&mut request).await else {
                return Err(lacking.unwrap_or_else(|| request.into_error(&self.pool.nodes)));
            };
            match node.call_within(PASS_BYTES_MAX, vec![call.clone()], relay).await {
                Ok(Ok(json)) => return Ok(json),
                Ok(Err(error)) => {
                    let rpc_error = Error::Rpc {
                        code: error.code,
                        message: node.redact(&error.message),
                        data: error.data.as_deref().and_then(|data| redacted_json(&node, data)),
                    };
                    match classify_error(&error) {
                        // Another node may have what this one lacks.
                        ErrorClass::NoMethod | ErrorClass::Pruned | ErrorClass::NoBlock => {
                            lacking = Some(rpc_error);
                            request.record(index, NodeError::Missing, true);
                        }
                        _ => return Err(rpc_error),
                    }
                }
                Err(_) if !may_repeat(method) => {
                    let why = "the answer was lost, and the node may have executed the request";
                    return Err(Error::Unavailable {
                        what: rpc::one_line(method),
                        why: why.to_owned(),
                    });
                }
                Err(error) => request.record(index, error, true),
            }
        }
    }
}

/// Whether a method may be sent again, to the same node or another, if its answer is lost. Only reads may: others,
/// such as `eth_sendTransaction` or `evm_mine`, would be executed twice.
fn may_repeat(method: &str) -> bool {
    const READS: [&str; 14] = [
        "debug_get",
        "debug_trace",
        "eth_base",
        "eth_blo",
        "eth_call",
        "eth_chainId",
        "eth_createAccessList",
        "eth_estimateGas",
        "eth_feeHistory",
        "eth_ga",
        "eth_get",
        "eth_maxPriorityFeePerGas",
        "eth_simulate",
        "trace_",
    ];
    READS.iter().any(|beginning| method.starts_with(beginning))
        || method.starts_with("net_")
        || method.starts_with("web3_")
}

/// The `data` of a node's error without its secrets; `None` if it is not valid JSON afterwards.
fn redacted_json(node: &node::Node, data: &str) -> Option<String> {
    let data = node.redact(data);
    serde_json::from_str::<&RawValue>(&data).is_ok().then_some(data)
}

/// Encodes a node's JSON header in RLP; `None` if it does not hash to `hash`.
pub fn header_with_hash(json: &str, hash: B256) -> Option<Bytes> {
    let json: &RawValue = serde_json::from_str(json).ok()?;
    json::header_bytes(json).filter(|bytes| keccak256(bytes) == hash)
}

/// Passes an answer on unchanged, unless it is about the node rather than the request.
fn relay(outcomes: &[CallResult<'_>]) -> Result<Result<String, rpc::RpcError>, NodeError> {
    match outcomes.first() {
        Some(Ok(Some(json))) => Ok(Ok(json.get().to_owned())),
        Some(Ok(None)) => Ok(Ok("null".to_owned())),
        Some(Err(error)) => match classify_error(error) {
            ErrorClass::Throttled => Err(NodeError::from(error.clone())),
            // A call that takes the node too long is the client's fault: the node must not rest for it.
            _ => Ok(Err(error.clone())),
        },
        None => Err(NodeError::failed("no answer")),
    }
}

impl fmt::Debug for EvmSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvmSource")
            .field("chain", &self.pool.settings.chain)
            .field("nodes", &self.pool.nodes)
            .finish_non_exhaustive()
    }
}
