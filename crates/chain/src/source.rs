//! Where blocks are asked for.
//!
//! Guarantees: what a source gives is checked as far as it says ([`crate::Block::verified`]), consecutive blocks link
//! by parent hash, and a block that can not be had is an error. Leaves to others: which blocks, and in what order.

use std::ops::Range;
use std::time::Duration;

use alloy_primitives::{Address, B256};
use async_trait::async_trait;
use serde::Serialize;

use crate::block::{Block, BlockRef, Log};
use crate::error::{Error, Result};

/// A chain that can be asked.
#[async_trait]
pub trait ChainSource: Send + Sync + std::fmt::Debug {
    /// Which chain it is, after checking that it can be reached and is one chain.
    async fn info(&self) -> Result<ChainInfo>;

    /// Where the chain is now. The heads are those of one node at one time.
    async fn heads(&self) -> Result<Heads>;

    /// The blocks of a range, in order, linked to each other and verified. If some can not be had, those before
    /// the first such are given; if that is none, the error is.
    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>>;

    /// A block by its hash, verified; none if no node knows it.
    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>>;

    /// Completes when there may be a new head, or after `at_most`.
    async fn changed(&self, at_most: Duration);

    /// The logs that a filter wants of a range of final blocks, in order and all of them, from nodes that have
    /// `anchor`: a final block at or above the last of the range. Sources of whole blocks have no such shortcut.
    async fn logs(
        &self,
        filter: &LogFilter,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>> {
        let _ = (filter, range, anchor);
        Err(Error::Invalid { what: "this source gives whole blocks alone".to_owned() })
    }

    /// How its nodes are.
    fn nodes(&self) -> Vec<NodeStatus>;

    /// Asks a node for something that is none of our business, and gives its answer as JSON text.
    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        let _ = params;
        Err(Error::Rpc { code: -32_601, message: format!("the method {method} does not exist") })
    }
}

/// What a chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// Its id, as of EIP-155.
    pub chain_id: u64,
    /// How its finality is known.
    pub finality: Finality,
    /// What the node calls itself.
    pub client: String,
}

/// How finality is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// By the tags `finalized` and `safe`.
    Tags,
    /// By this many blocks on top.
    Depth(u64),
}

/// Where a chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The newest block.
    pub latest: BlockRef,
    /// The newest block that will hardly be replaced, if the chain says so.
    pub safe: Option<BlockRef>,
    /// The newest block that can not be replaced any more; none if none is yet.
    pub finalized: Option<BlockRef>,
}

/// Which logs are wanted: those of these contracts with one of these first topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// The contracts; at least one.
    pub addresses: Vec<Address>,
    /// The first topics; at least one.
    pub topics: Vec<B256>,
}

impl LogFilter {
    /// Whether a log is one of those.
    pub fn wants(&self, log: &Log) -> bool {
        self.addresses.contains(&log.address)
            && log.topics.first().is_some_and(|topic| self.topics.contains(topic))
    }
}

/// A log that was found, with its place in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLog {
    /// The number of its block.
    pub block: u64,
    /// The hash of its block.
    pub block_hash: B256,
    /// The time of its block, in seconds since 1970.
    pub timestamp: u64,
    /// The position of its transaction in the block.
    pub transaction_index: usize,
    /// The hash of its transaction.
    pub transaction_hash: B256,
    /// Its own position in the block.
    pub log_index: usize,
    /// The log.
    pub log: Log,
}

/// How a node is, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Its name: its address without credentials.
    pub name: String,
    /// Whether it is asked at the moment.
    pub healthy: bool,
    /// The newest block that it has told of.
    pub head: Option<u64>,
    /// How many requests it was sent.
    pub requests: u64,
    /// How many of them failed.
    pub failures: u64,
    /// How many of its blocks were refused because they contradict themselves.
    pub lies: u64,
    /// The last thing that went wrong with it.
    pub last_error: Option<String>,
}
