//! Identifies the chain and fetches its heads.
//!
//! Guarantees: heads are from one node at one time, and the newest block is never below the final one. Leaves to
//! others: following them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::B256;
use futures::future::join_all;
use serde_json::value::RawValue;

use super::error_class::{ErrorClass, classify_error, is_unknown_tag, is_young};
use super::json::block_ref;
use super::node::{Node, UNCLES};
use super::node_error::NodeError;
use super::pool::{Pool, number};
use super::pool_request::PoolRequest;
use super::rpc::{Call, CallResult};
use crate::block::BlockRef;
use crate::error::{Error, Result};
use crate::source::{ChainInfo, Finality, Heads};
use crate::verify_level::VerifyLevel;

/// If a node is further behind the newest known head, another node is asked first.
const LAG_BLOCKS_MAX: u64 = 3;

/// Maximum length of a node's client version.
const CLIENT_CHARS_MAX: usize = 100;

/// Advice for nodes that do not report final blocks.
const NO_FINALITY: &str =
    "do not know the tag `finalized`: set how many confirmations make a block final";

/// What a node reports about itself and its chain.
#[derive(Debug)]
struct NodeIdentity {
    chain_id: u64,
    head: u64,
    client: String,
    knows_finalized: bool,
}

impl Pool {
    /// Asks all nodes. Checks that one can be reached and that all serve the same chain, and finds out how finality
    /// is known.
    pub(super) async fn info(&self) -> Result<ChainInfo> {
        let identities = join_all(self.nodes.iter().map(|node| identify(node))).await;
        let mut info: Option<ChainInfo> = None;
        for (node, identity) in self.nodes.iter().zip(identities) {
            let Ok(identity) = identity else { continue };
            self.accept(node, identity.chain_id)?;
            node.record_head(identity.head);
            self.knows_finalized.fetch_or(identity.knows_finalized, Ordering::Relaxed);
            let finality = self.confirmations().map_or(Finality::Tags, Finality::Depth);
            let first =
                ChainInfo { chain_id: identity.chain_id, finality, client: identity.client };
            info.get_or_insert(first);
        }
        let unknown =
            || self.start_request("its chain id".to_owned(), None).into_error(&self.nodes);
        let mut info = info.ok_or_else(unknown)?;
        if self.verify_level() == VerifyLevel::Full {
            let of_the_chain = self.nodes.iter().filter(|node| node.is_checked());
            join_all(of_the_chain.map(|node| try_uncles(node))).await;
        }
        if info.finality == Finality::Tags && !self.knows_finalized.load(Ordering::Relaxed) {
            let depth = self.depth_without_tags().ok_or_else(|| {
                let what = format!("the nodes of {} {NO_FINALITY}", self.settings.chain);
                Error::Invalid { what }
            })?;
            info.finality = Finality::Depth(depth);
        }
        // Probes an unknown chain at startup, so that checks it cannot pass are reported then.
        let _ = self.read_options().await;
        Ok(info)
    }

    pub(super) async fn heads(&self) -> Result<Heads> {
        let mut request = self.start_request("the newest block".to_owned(), None);
        // Choosing by load, one node might never be asked, because fetches between two calls can go to the other.
        request.one_by_one = true;
        let mut best: Option<Heads> = None;
        loop {
            let Ok((index, node)) = self.next(&mut request).await else {
                return self.best_of(best, request);
            };
            let heads = match self.heads_of(&node).await {
                Ok(heads) => heads,
                Err(error) => {
                    request.record(index, error, true);
                    continue;
                }
            };
            node.record_head(heads.latest.number);
            if !self.is_behind(&heads) {
                self.note_finalized(&heads);
                return Ok(heads);
            }
            if best.as_ref().is_none_or(|best| order(best) < order(&heads)) {
                best = Some(heads);
            }
            request.record(index, NodeError::Missing, true);
        }
    }

    /// All nodes are behind the known heads: returns the best of them.
    fn best_of(&self, best: Option<Heads>, request: PoolRequest) -> Result<Heads> {
        let Some(best) = best else {
            return Err(request.into_error(&self.nodes));
        };
        let known = self.finalized.load(Ordering::Relaxed);
        let reported = best.finalized.map_or(0, |at| at.number);
        // Warns once, not on every poll while it lasts.
        let is_back = reported < known;
        if is_back && !self.went_back.swap(true, Ordering::Relaxed) {
            let chain = &self.settings.chain;
            tracing::warn!(%chain, known, reported, "the nodes report an older final block than before");
        }
        Ok(best)
    }

    /// Whether heads are so far behind those of other nodes that another node is asked.
    fn is_behind(&self, heads: &Heads) -> bool {
        let nodes = self.nodes.iter().zip(self.rests());
        let awake = nodes.filter(|(_, rest)| rest.is_none());
        let known = awake.filter_map(|(node, _)| Some(node.head()?.0)).max().unwrap_or(0);
        let finalized = heads.finalized.map_or(0, |at| at.number);
        heads.latest.number.saturating_add(LAG_BLOCKS_MAX) < known
            || finalized < self.finalized.load(Ordering::Relaxed)
    }

    fn note_finalized(&self, heads: &Heads) {
        if let Some(at) = heads.finalized {
            self.finalized.fetch_max(at.number, Ordering::Relaxed);
            self.went_back.store(false, Ordering::Relaxed);
        }
    }

    async fn heads_of(&self, node: &Arc<Node>) -> Result<Heads, NodeError> {
        if let Some(depth) = self.confirmations() {
            return by_depth(node, depth).await;
        }
        let Some(heads) = by_tags(node).await? else {
            if self.knows_finalized.load(Ordering::Relaxed) {
                let why = "it does not know the tag `finalized`, which another node knows";
                return Err(node.note(NodeError::failed(why)));
            }
            let unknown = || NodeError::failed(format!("the nodes {NO_FINALITY}"));
            let depth = self.depth_without_tags().ok_or_else(|| node.note(unknown()))?;
            return by_depth(node, depth).await;
        };
        self.knows_finalized.store(true, Ordering::Relaxed);
        let latest = heads.latest.number;
        let Some(finalized) = heads.finalized.filter(|at| at.number >= latest) else {
            return Ok(heads);
        };
        let profile = self.profile().filter(|profile| profile.takes_blocks_back);
        if let Some(depth) = profile.and_then(|profile| profile.confirmations) {
            let finalized = Some(block_at(node, latest.saturating_sub(depth)).await?);
            return Ok(Heads { finalized, ..heads });
        }
        if finalized.number > latest {
            return Err(node.note(NodeError::failed("its newest block is below its final one")));
        }
        Ok(heads)
    }

    /// Confirmations that make a block final according to the chain's profile, because no node knows the tag. `None`
    /// if the profile has no value. Once set, the value stays.
    fn depth_without_tags(&self) -> Option<u64> {
        let depth = self.profile()?.confirmations?;
        let mut is_new = false;
        let depth = *self.depth.get_or_init(|| {
            is_new = true;
            depth
        });
        if is_new {
            let chain = self.settings.chain_id.or_else(|| self.chain_id.get().copied());
            tracing::warn!(
                chain,
                confirmations = depth,
                "the nodes do not know the tag `finalized`, using confirmations; set chain.confirmations to override"
            );
        }
        Some(depth)
    }
}

fn order(heads: &Heads) -> (u64, u64) {
    (heads.finalized.map_or(0, |at| at.number), heads.latest.number)
}

pub(super) fn header_by(tag: &str) -> Call {
    Call::new("eth_getBlockByNumber", format!(r#"["{tag}",false]"#))
}

/// The blocks of the tags; `None` if the node does not know the tag `finalized`.
async fn by_tags(node: &Node) -> Result<Option<Heads>, NodeError> {
    let calls = ["latest", "safe", "finalized"].map(header_by).to_vec();
    let read = |outcomes: &[CallResult<'_>]| {
        let latest = existing(outcomes.first())?;
        let Some(finalized) = tagged(outcomes.get(2))? else { return Ok(None) };
        // Some nodes take `safe` from a different source than `latest`, or do not know it.
        let safe = tagged(outcomes.get(1))?.flatten().filter(|at| at.number <= latest.number);
        Ok(Some(Heads { latest, safe, finalized }))
    };
    node.call(calls, read).await
}

async fn by_depth(node: &Node, depth: u64) -> Result<Heads, NodeError> {
    let read = |outcomes: &[CallResult<'_>]| existing(outcomes.first());
    let latest = node.call(vec![header_by("latest")], read).await?;
    let finalized = match latest.number.checked_sub(depth) {
        None => None,
        Some(number) => Some(block_at(node, number).await?),
    };
    Ok(Heads { latest, safe: None, finalized })
}

async fn block_at(node: &Node, number: u64) -> Result<BlockRef, NodeError> {
    let read = move |outcomes: &[CallResult<'_>]| {
        let at = existing(outcomes.first())?;
        if at.number != number {
            return Err(NodeError::failed(format!(
                "it returned block {} instead of {number}",
                at.number
            )));
        }
        Ok(at)
    };
    node.call(vec![header_by(&format!("{number:#x}"))], read).await
}

fn existing(outcome: Option<&CallResult<'_>>) -> Result<BlockRef, NodeError> {
    let json: Option<&RawValue> = outcome.cloned().transpose()?.flatten();
    let json = json.ok_or_else(|| NodeError::failed("it returned no newest block"))?;
    block_ref(json).map_err(NodeError::failed)
}

/// The block of a tag: `None` if the node does not know the tag, `Some(None)` while there is no such block yet.
fn tagged(outcome: Option<&CallResult<'_>>) -> Result<Option<Option<BlockRef>>, NodeError> {
    match outcome {
        Some(Ok(Some(json))) => block_ref(json).map(|at| Some(Some(at))).map_err(NodeError::failed),
        Some(Ok(None)) | None => Ok(Some(None)),
        Some(Err(error)) if is_young(error) => Ok(Some(None)),
        Some(Err(error)) if is_unknown_tag(error) => Ok(None),
        Some(Err(error)) => Err(NodeError::from(error.clone())),
    }
}

async fn identify(node: &Node) -> Result<NodeIdentity, NodeError> {
    let calls = vec![
        Call::new("eth_chainId", "[]"),
        Call::new("eth_blockNumber", "[]"),
        Call::new("web3_clientVersion", "[]"),
        header_by("finalized"),
    ];
    node.call(calls, |outcomes: &[CallResult<'_>]| read_identity(outcomes)).await
}

/// Requests a nonexistent uncle, to find out whether the node supports the method.
async fn try_uncles(node: &Node) {
    let call = Call::new(UNCLES, format!(r#"["{}","0x0"]"#, B256::ZERO));
    let read = |outcomes: &[CallResult<'_>]| match outcomes.first() {
        // Any other error shows that the method exists.
        Some(Err(error)) if classify_error(error) == ErrorClass::NoMethod => Ok(false),
        _ => Ok(true),
    };
    if let Ok(false) = node.call(vec![call], read).await {
        node.note_no_uncles();
    }
}

fn read_identity(outcomes: &[CallResult<'_>]) -> Result<NodeIdentity, NodeError> {
    let client = match outcomes.get(2) {
        Some(Ok(Some(json))) => serde_json::from_str::<String>(json.get()).unwrap_or_default(),
        _ => String::new(),
    };
    let knows_finalized = match outcomes.get(3) {
        Some(Ok(_)) => true,
        Some(Err(error)) => {
            // An unrelated error reveals nothing about tags: the node may answer next time.
            if !is_young(error) && !is_unknown_tag(error) {
                return Err(NodeError::from(error.clone()));
            }
            is_young(error)
        }
        None => false,
    };
    Ok(NodeIdentity {
        chain_id: number(outcomes.first())?,
        head: number(outcomes.get(1))?,
        client: client.chars().filter(|c| !c.is_control()).take(CLIENT_CHARS_MAX).collect(),
        knows_finalized,
    })
}
