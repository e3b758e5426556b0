//! The nodes of a chain, and which of them a request asks next.
//!
//! Guarantees: a node is asked nothing else before it is known to serve the chain. Leaves to others: the requests
//! ([`super::blocks`], [`super::heads`], [`super::logs`]).

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alloy_primitives::U64;
use futures::future::join_all;
use logmill_io::Clock;

use super::choice::{Candidate, Choice, choose};
use super::node::Node;
use super::node_error::NodeError;
use super::pool_request::PoolRequest;
use super::probed_level::ProbedLevel;
use super::rpc::{Call, CallResult};
use super::settings::EvmSettings;
use crate::error::{Error, Result};
use crate::profile::ChainProfile;

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) settings: EvmSettings,
    pub(super) clock: Arc<dyn Clock>,
    /// Set once known.
    pub(super) chain_id: OnceLock<u64>,
    /// The highest final block that any node reported.
    pub(super) finalized: AtomicU64,
    /// Whether it was logged that the final block went back.
    pub(super) went_back: AtomicBool,
    /// Used if the chain's profile decides the level.
    pub(super) level: ProbedLevel,
    /// Confirmations that make a block final, if neither a setting nor the nodes determine it.
    pub(super) depth: OnceLock<u64>,
    /// Whether any node knows the tag `finalized`.
    pub(super) knows_finalized: AtomicBool,
}

impl Pool {
    /// `None` until the chain id is known.
    pub(super) fn profile(&self) -> Option<ChainProfile> {
        let id = self.settings.chain_id.or_else(|| self.chain_id.get().copied());
        id.map(ChainProfile::of)
    }

    /// Confirmations that make a block final; `None` if the nodes report finality.
    pub(super) fn confirmations(&self) -> Option<u64> {
        self.settings.confirmations.or_else(|| self.depth.get().copied())
    }

    /// Remaining rest of each node. While all rest, each rests no longer than a last node may.
    pub(super) fn rests(&self) -> Vec<Option<Duration>> {
        let rests: Vec<Option<Duration>> = self.nodes.iter().map(|node| node.rest()).collect();
        if rests.iter().any(Option::is_none) {
            return rests;
        }
        self.nodes.iter().map(|node| node.rest_as_last()).collect()
    }

    /// Starts a request with the full time limit.
    pub(super) fn start_request(&self, what: String, number: Option<u64>) -> PoolRequest {
        let deadline = self.clock.monotonic().saturating_add(self.settings.patience);
        PoolRequest::new(what, number, deadline)
    }

    /// The next node to ask; an error if there is none within the time limit.
    pub(super) async fn next(&self, request: &mut PoolRequest) -> Result<(usize, Arc<Node>), ()> {
        while request.attempt() {
            match choose(&self.candidates(request), request.number) {
                Choice::Ask(index) => {
                    let node = self.nodes.get(index).ok_or(())?;
                    if self.serves_chain(node).await {
                        return Ok((index, Arc::clone(node)));
                    }
                }
                Choice::Refresh(lagging) => {
                    let nodes = lagging.iter().filter_map(|index| self.nodes.get(*index));
                    join_all(nodes.map(|node| ask_head(node))).await;
                }
                Choice::Wait(rest) => {
                    // A little longer, so that the rest is surely over.
                    let rest = rest.saturating_add(Duration::from_millis(1));
                    if self.clock.monotonic().saturating_add(rest) > request.deadline {
                        return Err(());
                    }
                    self.clock.sleep(rest).await;
                }
                Choice::Exhausted => return Err(()),
            }
        }
        Err(())
    }

    fn candidates(&self, request: &PoolRequest) -> Vec<Candidate> {
        let now = self.clock.monotonic();
        let nodes = self.nodes.iter().zip(self.rests()).enumerate();
        let candidates = nodes.map(|(index, (node, rest))| Candidate {
            answered: request.is_answered_by(index),
            rest: rest.max(request.wait_for(index, now)),
            head: node.head(),
            load: if request.one_by_one { node.silence() } else { node.load() },
        });
        candidates.collect()
    }

    /// Whether a node serves the chain; asks it if that is not known yet. Records errors.
    async fn serves_chain(&self, node: &Node) -> bool {
        if node.is_checked() {
            return true;
        }
        let call = Call::new("eth_chainId", "[]");
        let Ok(reported) = node.call(vec![call], |outcomes| number(outcomes.first())).await else {
            return false;
        };
        self.accept(node, reported).is_ok()
    }

    /// Checks the chain id that a node reported.
    pub(super) fn accept(&self, node: &Node, reported: u64) -> Result<()> {
        let expected =
            self.settings.chain_id.unwrap_or_else(|| *self.chain_id.get_or_init(|| reported));
        if reported == expected {
            node.mark_checked();
            return Ok(());
        }
        let error = Error::WrongChain { node: node.name.clone(), expected, got: reported };
        node.mark_wrong_chain(error.to_string());
        Err(error)
    }
}

async fn ask_head(node: &Node) {
    let call = Call::new("eth_blockNumber", "[]");
    if let Ok(head) = node.call(vec![call], |outcomes| number(outcomes.first())).await {
        node.record_head(head);
    }
}

/// Parses a hex number.
pub(super) fn number(outcome: Option<&CallResult<'_>>) -> Result<u64, NodeError> {
    let json = outcome.cloned().transpose()?.flatten();
    let json = json.ok_or_else(|| NodeError::failed("it returned null instead of a number"))?;
    let number: Result<U64, _> = serde_json::from_str(json.get());
    number
        .map(|number| number.to())
        .map_err(|error| NodeError::failed(format!("cannot parse a number: {error}")))
}
