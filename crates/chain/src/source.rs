//! The interfaces of a chain. Each extends the one before it.
//!
//! | trait | what it serves | used by |
//! |---|---|---|
//! | [`BlockSource`] | blocks | backward ingest |
//! | [`ChainSource`] | also heads | forward ingest |
//! | [`NodeSource`] | also other requests to nodes | JSON-RPC, async workers, `collect` |
//!
//! Guarantees: returned blocks are verified as far as they record ([`crate::Block::verified`]), consecutive blocks
//! link by parent hash, and an unavailable block is an error. Leaves to others: which blocks to fetch, and in what
//! order.

use std::ops::Range;
use std::time::Duration;

use alloy_primitives::{Address, B256};
use async_trait::async_trait;
use serde::Serialize;

use crate::block::{Block, BlockRef, Log};
use crate::error::{Error, Result};
use crate::profile::Family;
use crate::verify_level::VerifyLevel;

/// Blocks of a chain, from nodes or files.
#[async_trait]
pub trait BlockSource: Send + Sync + std::fmt::Debug {
    /// Identifies the chain, after checking that it can be reached and that all nodes serve the same one.
    async fn info(&self) -> Result<ChainInfo>;

    /// Returns the blocks of a range in order, linked to each other and verified. If a block is unavailable, returns
    /// those before it, or the error if there are none.
    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>>;

    /// Returns the verified block, or `None` if no node knows the hash.
    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>>;

    fn nodes(&self) -> Vec<NodeStatus>;
}

/// A chain that can be followed: it also reports its heads.
#[async_trait]
pub trait ChainSource: BlockSource {
    /// All heads are from one node at one time.
    async fn heads(&self) -> Result<Heads>;

    /// Completes when there may be a new head, or after `at_most`.
    async fn changed(&self, at_most: Duration);

    /// Completes a pending [`ChainSource::changed`] now, without an announcement from a node.
    fn nudge(&self) {}

    /// Whether a node has announced a head since the last call of [`ChainSource::announced`].
    fn has_news(&self) -> bool {
        false
    }

    /// Returns the heads that nodes announced since the last call, oldest first, each with its age. They are
    /// unverified. [`ChainSource::changed`] no longer completes for them, since the caller is about to fetch the
    /// heads.
    fn announced(&self) -> Vec<(u64, Duration)> {
        Vec::new()
    }
}

/// A chain whose nodes answer other requests than those for blocks and heads. The default methods are those of a
/// source without such nodes: they refuse.
#[async_trait]
pub trait NodeSource: ChainSource {
    /// Returns all logs in `range` that match `filter`, in order. The range must be final. Asks only nodes that have
    /// `anchor`, a final block at or above the last of the range.
    async fn logs(
        &self,
        filter: &LogFilter,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>> {
        let _ = (filter, range, anchor);
        Err(Error::Invalid {
            what: "this source returns whole blocks only, not single logs".to_owned(),
        })
    }

    /// Reports what is checked of the chain's blocks, and why; `None` if that does not depend on the chain.
    fn checks(&self) -> Option<ChecksStatus> {
        None
    }

    /// Forwards a request to a node unchanged and returns its result as JSON text.
    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        let _ = params;
        let message = format!("the method {method} does not exist");
        Err(Error::Rpc { code: -32_601, message, data: None })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// As defined by EIP-155.
    pub chain_id: u64,
    pub finality: Finality,
    /// The node's own description of its software and version.
    pub client: String,
}

/// How final blocks are recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// By the tags `finalized` and `safe`.
    Tags,
    /// By this many blocks on top.
    Depth(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub latest: BlockRef,
    /// The newest block that is unlikely to be replaced, if the chain reports one.
    pub safe: Option<BlockRef>,
    /// The newest block that cannot be replaced; `None` if there is none yet.
    pub finalized: Option<BlockRef>,
}

/// Matches logs of any of these contracts whose first topic is any of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// At least one.
    pub addresses: Vec<Address>,
    /// First topics; at least one.
    pub topics: Vec<B256>,
}

impl LogFilter {
    pub fn matches(&self, log: &Log) -> bool {
        self.addresses.contains(&log.address)
            && log.topics.first().is_some_and(|topic| self.topics.contains(topic))
    }
}

/// A log that matched a filter, with its place in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLog {
    /// Block number.
    pub block: u64,
    pub block_hash: B256,
    /// Of the block, in seconds since 1970.
    pub timestamp: u64,
    pub transaction_index: usize,
    pub transaction_hash: B256,
    /// Position in the block.
    pub log_index: usize,
    pub log: Log,
}

/// The checks applied to a chain's blocks, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChecksStatus {
    /// `None` until the chain id is known.
    pub family: Option<Family>,
    /// The level in force now.
    pub verify: VerifyLevel,
    /// The source of that level: `setting`, `profile`, or `blocks` that cannot pass a higher one.
    pub decided_by: &'static str,
    /// The check that such a block failed.
    pub why: Option<String>,
    /// Confirmations that make a block final; `None` if the nodes report finality.
    pub confirmations: Option<u64>,
}

/// State of a node, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Its address without credentials.
    pub name: String,
    /// Whether requests are sent to it now.
    pub healthy: bool,
    /// The newest block it reported.
    pub head: Option<u64>,
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Blocks rejected because they contradict themselves.
    pub lies: u64,
    /// Methods that it does not support, so that less of its blocks can be checked.
    pub lacks: Vec<String>,
    pub last_error: Option<String>,
}
