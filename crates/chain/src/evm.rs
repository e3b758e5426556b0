//! EVM chains, by the JSON-RPC of their nodes.
//!
//! | module | what |
//! |---|---|
//! | `pool` | the nodes as one: failover, parts of a range, branches; `choice` and `turn` decide |
//! | `fetch` | blocks from one node, with receipts in the best way that it has |
//! | `logs` | logs of some contracts over a range, without their blocks |
//! | `node` | one node: limits, `health`, `pace`, sizes that adapt (`adapt`) |
//! | `json`, `transaction`, `receipt` | what nodes say, as blocks |
//! | `rpc`, `wording`, `trouble` | calls, answers, and what their errors mean |
//! | `heads`, `wake` | what the chain is, where it is, and being told of news |
//!
//! Guarantees: those of [`ChainSource`]; a node that gives a false block is named in log, metric and status, and
//! another is asked. Leaves to others: which blocks are asked for, and keeping them.

mod adapt;
mod choice;
mod fetch;
mod heads;
mod health;
mod json;
mod logs;
mod node;
mod pace;
mod pool;
mod receipt;
mod rpc;
mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod transaction;
mod trouble;
mod turn;
mod wake;
mod wording;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use logmill_io::wire::{
    Endpoint, Feed, HttpClient, HttpWire, IpcWire, Scheme, WebSocketFeed, Wire,
};
use logmill_io::{Clock, Entropy, Tasks};
use serde_json::value::RawValue;

use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use crate::source::{ChainInfo, ChainSource, FoundLog, Heads, LogFilter, NodeStatus};
use node::Node;
use pool::Pool;
use rpc::{Call, Outcome};
use trouble::Trouble;
use wake::Wake;
use wording::meaning;

pub use settings::{EvmSettings, NodeSettings};
pub use wording::{Meaning, meaning_of};

/// The most nodes of a chain.
const NODES_MAX: usize = 100;

/// The largest answer that is passed on unread.
const PASS_BYTES_MAX: usize = 32 << 20;

/// How a node is reached.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Where it is asked.
    pub wire: Arc<dyn Wire>,
    /// Where it tells of new blocks, if it does.
    pub feed: Option<Arc<dyn Feed>>,
}

/// An EVM chain.
pub struct EvmSource {
    pool: Pool,
    wake: Arc<Wake>,
    /// They end with this.
    _listeners: Tasks<()>,
}

impl EvmSource {
    /// A chain by its nodes. Must be called on a runtime.
    pub fn new(
        nodes: Vec<NodeSettings>,
        settings: EvmSettings,
        http: &HttpClient,
        clock: Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self> {
        let reached: Result<Vec<(NodeSettings, Reach)>> = nodes
            .into_iter()
            .map(|node| {
                let wire: Arc<dyn Wire> = wire(&node.address, http, &clock)?;
                let feed = node.web_socket.clone();
                let feed = feed.map(|to| -> Arc<dyn Feed> {
                    Arc::new(WebSocketFeed::new(to, Arc::clone(&clock)))
                });
                Ok((node, Reach { wire, feed }))
            })
            .collect();
        Self::reached_by(reached?, settings, clock, entropy)
    }

    /// A chain by nodes that are reached in a given way. Must be called on a runtime.
    pub fn reached_by(
        nodes: Vec<(NodeSettings, Reach)>,
        settings: EvmSettings,
        clock: Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self> {
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            let what =
                format!("{} has {} nodes: it needs 1 to {NODES_MAX}", settings.chain, nodes.len());
            return Err(Error::Invalid { what });
        }
        let wake = Wake::new();
        let mut listeners = Tasks::new();
        let mut pooled = Vec::with_capacity(nodes.len());
        let mut names = BTreeSet::new();
        for (mut node, reach) in nodes {
            node.name = Some(unique(&mut names, node.name()));
            if let Some(feed) = reach.feed {
                let (wake, clock, entropy) =
                    (Arc::clone(&wake), Arc::clone(&clock), Arc::clone(entropy));
                listeners.spawn(wake::listen(node.name(), feed, wake, clock, entropy));
            }
            let (clock, entropy) = (Arc::clone(&clock), Arc::clone(entropy));
            pooled.push(Arc::new(Node::new(&node, &settings, reach.wire, clock, entropy)));
        }
        let (chain_id, finalized) = (OnceLock::new(), AtomicU64::new(0));
        let pool = Pool { nodes: pooled, settings, clock, chain_id, finalized };
        Ok(Self { pool, wake, _listeners: listeners })
    }
}

/// A name that no other node has: two may differ in what of their address is not shown.
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
            let what = format!("{to} tells of new blocks alone: give an http address as well");
            Err(Error::Invalid { what })
        }
    }
}

#[async_trait]
impl ChainSource for EvmSource {
    async fn info(&self) -> Result<ChainInfo> {
        self.pool.info().await
    }

    async fn heads(&self) -> Result<Heads> {
        self.pool.heads().await
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        self.pool.blocks(range).await
    }

    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        self.pool.block_by_hash(hash).await
    }

    async fn changed(&self, at_most: Duration) {
        self.wake.wait(&*self.pool.clock, at_most).await;
    }

    async fn logs(
        &self,
        filter: &LogFilter,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>> {
        self.pool.logs(filter, range, anchor).await
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        let nodes = self.pool.nodes.iter().zip(self.pool.rests());
        nodes.map(|(node, rest)| node.status(rest.is_none())).collect()
    }

    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        let is_json = serde_json::from_str::<&RawValue>(params).is_ok();
        if !is_json || !params.trim_start().starts_with(['[', '{']) {
            return Err(Error::Rpc { code: -32_602, message: "invalid parameters".to_owned() });
        }
        let call = Call { method: Cow::Owned(method.to_owned()), params: params.to_owned() };
        let mut turn = self.pool.turn(rpc::said(method), None);
        loop {
            let Ok((index, node)) = self.pool.next(&mut turn).await else {
                return Err(turn.verdict(&self.pool.nodes));
            };
            match node.call_within(PASS_BYTES_MAX, vec![call.clone()], relay).await {
                Ok(Ok(json)) => return Ok(json),
                Ok(Err(error)) => {
                    let message = node.redact(&error.message);
                    return Err(Error::Rpc { code: error.code, message });
                }
                Err(trouble) => turn.take(index, trouble, true),
            }
        }
    }
}

/// An answer as it is, unless it is about the node and not about the question.
fn relay(outcomes: &[Outcome<'_>]) -> Result<Result<String, rpc::RpcError>, Trouble> {
    match outcomes.first() {
        Some(Ok(Some(json))) => Ok(Ok(json.get().to_owned())),
        Some(Ok(None)) => Ok(Ok("null".to_owned())),
        Some(Err(error)) => match meaning(error) {
            Meaning::Throttled | Meaning::Slow => Err(Trouble::from(error.clone())),
            _ => Ok(Err(error.clone())),
        },
        None => Err(Trouble::failed("no answer")),
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
