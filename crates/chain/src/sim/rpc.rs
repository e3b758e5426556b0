//! A simulated chain over JSON-RPC, without a socket: request text in, answer text out.
//!
//! The JSON is produced by the types of `alloy`, independently of how the rest of this crate reads and writes
//! JSON, so that each checks the other. [`SimNode`] adds the faults of real nodes.
//!
//! Guarantees: every request has an answer, which may be an error; no request causes a panic. Leaves to others:
//! sockets, and delays.

mod filter;
mod node;
mod render;

use alloy_primitives::B256;
use serde_json::{Value, json};

use super::SimChain;
use crate::block::Block;
use crate::source::Heads;
use filter::{Filter, Span};

pub use node::{NodeFaults, Reply, SimNode};

/// Maximum number of requests in a batch.
pub const BATCH_MAX: usize = 1_000;
/// Maximum number of logs in an answer.
pub const LOGS_MAX: usize = 20_000;
/// Maximum block range of a log query.
pub const RANGE_MAX: u64 = 100_000;
/// How many blocks below the head are searched for a transaction.
pub const SCAN_MAX: u64 = 10_000;

const CLIENT: &str = "logmill-sim/1";

/// The code of every contract: `STOP`.
const CODE: &str = "0x00";

/// Answers a request, or a batch of them.
pub fn answer(chain: &SimChain, request: &str) -> String {
    let limits = LogLimits::default();
    NodeView { chain, behind: 0, floor: 0, limits, change: &|block| Some(block) }.answer(request)
}

/// A chain as a node presents it.
struct NodeView<'a> {
    chain: &'a SimChain,
    /// How many of the newest blocks it lacks.
    behind: u64,
    /// The first block that is not pruned.
    floor: u64,
    limits: LogLimits,
    /// Changes a block before it is returned; `None` hides it.
    change: &'a dyn Fn(Block) -> Option<Block>,
}

/// Limits of a node for log queries, and whether it reports ranges above its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogLimits {
    logs_max: usize,
    blocks_max: u64,
    /// Ignores blocks above its head instead of returning an error.
    silent_above_head: bool,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { logs_max: LOGS_MAX, blocks_max: RANGE_MAX, silent_above_head: false }
    }
}

/// A JSON-RPC error.
#[derive(Debug)]
struct Refusal {
    code: i64,
    message: String,
}

type RpcResult = Result<Value, Refusal>;

impl NodeView<'_> {
    fn answer(&self, request: &str) -> String {
        let answer = match serde_json::from_str::<Value>(request) {
            Err(error) => {
                response(&Value::Null, Err(refusal(-32_700, format!("parse error: {error}"))))
            }
            Ok(Value::Array(requests)) if requests.is_empty() || requests.len() > BATCH_MAX => {
                let message = format!("a batch must have 1 to {BATCH_MAX} requests");
                response(&Value::Null, Err(refusal(-32_600, message)))
            }
            Ok(Value::Array(requests)) => requests.iter().map(|one| self.one(one)).collect(),
            Ok(request) => self.one(&request),
        };
        answer.to_string()
    }

    fn one(&self, request: &Value) -> Value {
        let id = request.get("id").unwrap_or(&Value::Null);
        let Some(method) = request.get("method").and_then(Value::as_str) else {
            return response(id, Err(refusal(-32_600, "a request must name a method")));
        };
        response(id, self.call(method, request.get("params").unwrap_or(&Value::Null)))
    }

    fn call(&self, method: &str, params: &Value) -> RpcResult {
        let chain_id = self.chain.settings().chain_id;
        let param = |at: usize| params.get(at).unwrap_or(&Value::Null);
        match method {
            "eth_chainId" => Ok(json!(format!("{chain_id:#x}"))),
            "net_version" => Ok(json!(chain_id.to_string())),
            "web3_clientVersion" => Ok(json!(CLIENT)),
            "eth_syncing" => Ok(json!(false)),
            "eth_blockNumber" => Ok(json!(format!("{:#x}", self.heads().latest.number))),
            "eth_getBlockByNumber" => self.block(self.by_tag(param(0))?, param(1)),
            "eth_getBlockByHash" => self.block(self.by_hash(hash(param(0))?)?, param(1)),
            "eth_getBlockReceipts" => {
                let block = match hash(param(0)) {
                    Ok(hash) => self.by_hash(hash)?,
                    Err(_) => self.by_tag(param(0))?,
                };
                match block {
                    Some(block) => render::receipts(&block).map_err(internal),
                    None => Ok(Value::Null),
                }
            }
            "eth_getTransactionReceipt" => self.of_transaction(param(0), render::receipts),
            "eth_getTransactionByHash" => self.of_transaction(param(0), render::transactions),
            "eth_getLogs" => self.logs(param(0)),
            "eth_getCode" => self.code(param(0)),
            _ => Err(refusal(-32_601, format!("the method {method} does not exist"))),
        }
    }

    fn heads(&self) -> Heads {
        let mut heads = self.chain.heads();
        let number = heads.latest.number.saturating_sub(self.behind);
        heads.latest = self.chain.at(number).unwrap_or(heads.latest);
        heads.safe = heads.safe.filter(|at| at.number <= number);
        heads.finalized = heads.finalized.filter(|at| at.number <= number);
        heads
    }

    fn block(&self, block: Option<Block>, full: &Value) -> RpcResult {
        match block {
            Some(block) => render::block(&block, full == &Value::Bool(true)).map_err(internal),
            None => Ok(Value::Null),
        }
    }

    fn by_tag(&self, tag: &Value) -> Result<Option<Block>, Refusal> {
        self.at(self.number(tag)?)
    }

    fn at(&self, number: u64) -> Result<Option<Block>, Refusal> {
        if number > self.heads().latest.number {
            return Ok(None);
        }
        if number < self.floor {
            return Err(refusal(4_444, "pruned history unavailable"));
        }
        let block = self.chain.block(number);
        Ok(block.and_then(|block| (self.change)(Block::clone(&block))))
    }

    fn by_hash(&self, hash: B256) -> Result<Option<Block>, Refusal> {
        let Some(block) = self.chain.block_by_hash(hash) else {
            return Ok(None);
        };
        if block.at.number > self.heads().latest.number {
            return Ok(None);
        }
        if block.at.number < self.floor {
            return Err(refusal(4_444, "pruned history unavailable"));
        }
        Ok((self.change)(Block::clone(&block)))
    }

    /// The number of a tag or a hex number.
    fn number(&self, tag: &Value) -> Result<u64, Refusal> {
        let heads = self.heads();
        let known = |at: Option<crate::BlockRef>| {
            at.map(|at| at.number).ok_or_else(|| refusal(-39_001, "unknown block"))
        };
        match tag.as_str() {
            Some("latest" | "pending") => Ok(heads.latest.number),
            Some("safe") => known(heads.safe),
            Some("finalized") => known(heads.finalized),
            Some("earliest") => Ok(0),
            Some(text) => {
                let digits = text.strip_prefix("0x");
                let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                number.ok_or_else(|| invalid(format!("{text:?} is not a block")))
            }
            None => Err(invalid("a block must be a tag or a number in hex")),
        }
    }

    /// Finds the block of a transaction, renders it, and returns the transaction's part.
    fn of_transaction(
        &self,
        wanted: &Value,
        render: fn(&Block) -> Result<Value, String>,
    ) -> RpcResult {
        let wanted = hash(wanted)?;
        let latest = self.heads().latest.number;
        for number in (latest.saturating_sub(SCAN_MAX).max(self.floor)..=latest).rev() {
            let Some(block) = self.at(number)? else { continue };
            let index = block.transactions.iter().position(|tx| tx.hash == wanted);
            if let Some(index) = index {
                let mut all = render(&block).map_err(internal)?;
                return Ok(all.get_mut(index).map(Value::take).unwrap_or_default());
            }
        }
        Ok(Value::Null)
    }

    /// There is no state: every contract has the same code, and other addresses have none.
    fn code(&self, address: &Value) -> RpcResult {
        let parsed = address.as_str().and_then(|text| text.parse().ok());
        let address = parsed.ok_or_else(|| invalid("an address must have 20 bytes in hex"))?;
        let code = if self.chain.actors().is_contract(address) { CODE } else { "0x" };
        Ok(json!(code))
    }

    fn logs(&self, filter: &Value) -> RpcResult {
        let filter = Filter::parse(filter).map_err(invalid)?;
        let mut found = Vec::new();
        for block in self.span(&filter.span)? {
            let Some(block) = block? else { continue };
            let matching = block.logs().filter(|placed| filter.matches(placed.log));
            found.extend(matching.map(|placed| render::log(&block, &placed)));
            let most = self.limits.logs_max;
            if found.len() > most {
                return Err(refusal(-32_005, format!("query exceeds max results {most}")));
            }
        }
        serde_json::to_value(found).map_err(|error| internal(error.to_string()))
    }

    /// The blocks that a filter covers.
    #[expect(clippy::type_complexity, reason = "only this function has such a type")]
    fn span<'a>(
        &'a self,
        span: &Span,
    ) -> Result<Box<dyn Iterator<Item = Result<Option<Block>, Refusal>> + 'a>, Refusal> {
        let (from, to) = match span {
            Span::Hash(hash) => match self.by_hash(*hash)? {
                Some(block) => return Ok(Box::new(std::iter::once(Ok(Some(block))))),
                None => return Err(refusal(-32_000, "unknown block")),
            },
            Span::Range { from, to } => (self.number(from)?, self.number(to)?),
        };
        if from > to {
            return Err(invalid("invalid block range params"));
        }
        if to > self.heads().latest.number && !self.limits.silent_above_head {
            return Err(invalid("block range extends beyond current head block"));
        }
        let most = self.limits.blocks_max;
        if to - from >= most {
            return Err(invalid(format!("query exceeds max block range {most}")));
        }
        Ok(Box::new((from..=to).map(|number| self.at(number))))
    }
}

fn response(id: &Value, answer: RpcResult) -> Value {
    match answer {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(Refusal { code, message }) => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
        }
    }
}

fn hash(value: &Value) -> Result<B256, Refusal> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| invalid("a hash must have 32 bytes in hex"))
}

fn refusal(code: i64, message: impl Into<String>) -> Refusal {
    Refusal { code, message: message.into() }
}

fn invalid(message: impl Into<String>) -> Refusal {
    refusal(-32_602, message)
}

fn internal(message: String) -> Refusal {
    refusal(-32_603, message)
}

#[cfg(test)]
mod tests;
