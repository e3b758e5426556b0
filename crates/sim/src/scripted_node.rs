//! A node with scripted answers.
//!
//! Guarantees: it answers by contract and call data, at blocks whose state it keeps; calls without a scripted answer
//! revert, and a contract that does not exist yet answers with nothing. Leaves to others: blocks, of which it has none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::{Address, B256, hex};
use async_trait::async_trait;
use logmill_chain::{
    Block, BlockRef, BlockSource, ChainInfo, ChainSource, Error, Finality, Heads, NodeSource,
    NodeStatus, Result,
};

/// Scripted answer to a call.
#[derive(Clone, Debug)]
pub enum ScriptedAnswer {
    Bytes(Vec<u8>),
    /// Any JSON.
    Json(String),
    Error(i64, &'static str),
    /// Never answers.
    Nothing,
}

type CallKey = (Address, Vec<u8>);

#[derive(Debug, Default)]
pub struct ScriptedNode {
    answers: Mutex<BTreeMap<CallKey, ScriptedAnswer>>,
    /// Answers at older blocks, up to and including the given one.
    older_answers: Mutex<BTreeMap<CallKey, (u64, ScriptedAnswer)>>,
    /// First block of contracts that do not exist from the beginning.
    born: Mutex<BTreeMap<Address, u64>>,
    pub latest: AtomicU64,
    pub finalized: AtomicU64,
    /// The lowest block whose state it keeps.
    pub floor: AtomicU64,
    /// Number of requests.
    pub requests: AtomicUsize,
    /// Whether it is unreachable.
    pub is_down: AtomicBool,
    /// Parameters of the last request.
    pub last: Mutex<String>,
}

impl ScriptedNode {
    pub fn new(finalized: u64) -> Arc<Self> {
        let node = Self::default();
        node.finalized.store(finalized, Ordering::SeqCst);
        node.latest.store(finalized + 64, Ordering::SeqCst);
        Arc::new(node)
    }

    /// Scripts the answer to a call.
    pub fn script(&self, to: Address, data: &[u8], answer: ScriptedAnswer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert((to, data.to_vec()), answer);
    }

    /// Scripts another answer to a call up to this block.
    pub fn script_until(&self, block: u64, to: Address, data: &[u8], answer: ScriptedAnswer) {
        let mut older = self.older_answers.lock().unwrap_or_else(PoisonError::into_inner);
        older.insert((to, data.to_vec()), (block, answer));
    }

    /// The contract exists from this block on.
    pub fn create(&self, contract: Address, block: u64) {
        let mut born = self.born.lock().unwrap_or_else(PoisonError::into_inner);
        born.insert(contract, block);
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn scripted(&self, to: Address, data: Vec<u8>, at: u64) -> Option<ScriptedAnswer> {
        let older = self.older_answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, answer)) = older.get(&(to, data.clone()))
            && at <= *until
        {
            return Some(answer.clone());
        }
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&(to, data)).cloned()
    }

    /// The answer to a request; for other methods than `eth_call`, the one scripted with empty call data.
    async fn answer(&self, method: &str, params: &serde_json::Value, at: u64) -> Result<String> {
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
        match self.scripted(to, data, at) {
            Some(ScriptedAnswer::Bytes(bytes)) => {
                Ok(format!("\"{}\"", hex::encode_prefixed(bytes)))
            }
            Some(ScriptedAnswer::Json(json)) => Ok(json),
            Some(ScriptedAnswer::Error(code, message)) => {
                Err(Error::Rpc { code, message: message.to_owned(), data: None })
            }
            Some(ScriptedAnswer::Nothing) => std::future::pending().await,
            None => {
                Err(Error::Rpc { code: 3, message: "execution reverted".to_owned(), data: None })
            }
        }
    }
}

fn at(number: u64) -> BlockRef {
    let (hash, parent) = (B256::with_last_byte(1), B256::ZERO);
    BlockRef { number, hash, parent_hash: parent, timestamp: number * 12 }
}

#[async_trait]
impl BlockSource for ScriptedNode {
    async fn info(&self) -> Result<ChainInfo> {
        Ok(ChainInfo { chain_id: 1, finality: Finality::Tags, client: "fake".to_owned() })
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        Err(Error::NotYet { number: range.start })
    }

    async fn block_by_hash(&self, _hash: B256) -> Result<Option<Block>> {
        Ok(None)
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        Vec::new()
    }
}

#[async_trait]
impl ChainSource for ScriptedNode {
    async fn heads(&self) -> Result<Heads> {
        let finalized = Some(at(self.finalized.load(Ordering::SeqCst)));
        Ok(Heads { latest: at(self.latest.load(Ordering::SeqCst)), safe: None, finalized })
    }

    async fn changed(&self, _at_most: Duration) {
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl NodeSource for ScriptedNode {
    async fn pass(&self, method: &str, params: &str) -> Result<String> {
        self.requests.fetch_add(1, Ordering::SeqCst);
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
            return Err(Error::Rpc { code: -32_000, message, data: None });
        }
        self.answer(method, &params, block).await
    }
}
