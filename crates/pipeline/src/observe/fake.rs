//! A node that answers as a test tells it to.
//!
//! Guarantees: it answers each question by contract and call data, at the blocks whose state it keeps; what it was not
//! told reverts, and a contract has nothing to say before it is there. Leaves to others: blocks, of which it has none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::{Address, B256, hex};
use async_trait::async_trait;
use logmill_chain::{
    Block, BlockRef, ChainInfo, ChainSource, Error, Finality, Heads, NodeStatus, Result,
};

/// What the node says to a call.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This JSON, whatever it is.
    Json(String),
    /// An error.
    Error(i64, &'static str),
    /// Nothing, ever.
    Nothing,
}

/// The node.
#[derive(Debug, Default)]
pub(crate) struct FakeNode {
    says: Mutex<BTreeMap<(Address, Vec<u8>), Says>>,
    /// The first block of contracts that are not there from the beginning.
    born: Mutex<BTreeMap<Address, u64>>,
    /// The newest block.
    pub(crate) latest: AtomicU64,
    /// The newest final block.
    pub(crate) finalized: AtomicU64,
    /// The lowest block whose state it keeps.
    pub(crate) floor: AtomicU64,
    /// How many questions came.
    pub(crate) asked: AtomicUsize,
    /// Whether it can not be reached.
    pub(crate) is_down: AtomicBool,
    /// The last question.
    pub(crate) last: Mutex<String>,
}

impl FakeNode {
    pub(crate) fn new(finalized: u64) -> Arc<Self> {
        let node = Self::default();
        node.finalized.store(finalized, Ordering::SeqCst);
        node.latest.store(finalized + 64, Ordering::SeqCst);
        Arc::new(node)
    }

    /// From now on, this is said to this call.
    pub(crate) fn tell(&self, to: Address, data: &[u8], says: Says) {
        let mut told = self.says.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert((to, data.to_vec()), says);
    }

    /// From this block on, the contract is there.
    pub(crate) fn create(&self, contract: Address, block: u64) {
        let mut born = self.born.lock().unwrap_or_else(PoisonError::into_inner);
        born.insert(contract, block);
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn told(&self, to: Address, data: Vec<u8>) -> Option<Says> {
        self.says.lock().unwrap_or_else(PoisonError::into_inner).get(&(to, data)).cloned()
    }

    /// What is said to a question: of the contract by itself if it has no call data.
    async fn said(&self, method: &str, params: &serde_json::Value, at: u64) -> Result<String> {
        let (to, data) = match method {
            "eth_call" => (&params[0]["to"], params[0]["data"].as_str().unwrap_or_default()),
            _ => (&params[0], ""),
        };
        let to: Address = to.as_str().unwrap_or_default().parse().expect("an address");
        let data = hex::decode(data).expect("bytes");
        let born = self.born.lock().unwrap_or_else(PoisonError::into_inner).get(&to).copied();
        if born.is_some_and(|born| at < born) {
            return Ok(r#""0x""#.to_owned());
        }
        match self.told(to, data) {
            Some(Says::Bytes(bytes)) => Ok(format!("\"{}\"", hex::encode_prefixed(bytes))),
            Some(Says::Json(json)) => Ok(json),
            Some(Says::Error(code, message)) => {
                Err(Error::Rpc { code, message: message.to_owned() })
            }
            Some(Says::Nothing) => std::future::pending().await,
            None => Err(Error::Rpc { code: 3, message: "execution reverted".to_owned() }),
        }
    }
}

fn at(number: u64) -> BlockRef {
    let (hash, parent) = (B256::with_last_byte(1), B256::ZERO);
    BlockRef { number, hash, parent_hash: parent, timestamp: number * 12 }
}

#[async_trait]
impl ChainSource for FakeNode {
    async fn info(&self) -> Result<ChainInfo> {
        Ok(ChainInfo { chain_id: 1, finality: Finality::Tags, client: "fake".to_owned() })
    }

    async fn heads(&self) -> Result<Heads> {
        let finalized = Some(at(self.finalized.load(Ordering::SeqCst)));
        Ok(Heads { latest: at(self.latest.load(Ordering::SeqCst)), safe: None, finalized })
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        Err(Error::NotYet { number: range.start })
    }

    async fn block_by_hash(&self, _hash: B256) -> Result<Option<Block>> {
        Ok(None)
    }

    async fn changed(&self, _at_most: Duration) {
        std::future::pending::<()>().await;
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        Vec::new()
    }

    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = params.to_owned();
        if self.is_down.load(Ordering::SeqCst) {
            let why = "it is down".to_owned();
            return Err(Error::Unavailable { what: method.to_owned(), why });
        }
        let params: serde_json::Value = serde_json::from_str(params).expect("JSON");
        let block = params[1].as_str().and_then(|block| block.strip_prefix("0x"));
        let block = u64::from_str_radix(block.expect("a block"), 16).expect("a number");
        if block < self.floor.load(Ordering::SeqCst) {
            let message = "missing trie node 1234 (path )".to_owned();
            return Err(Error::Rpc { code: -32_000, message });
        }
        self.said(method, &params, block).await
    }
}
