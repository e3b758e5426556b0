//! A fake chain, and nodes that serve it correctly or incorrectly.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy_consensus::{Header as EvmHeader, Signed, TxEip1559, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes as RawBytes, Signature, TxKind, U256, keccak256};
use alloy_rlp::BufMut;
use alloy_trie::root::ordered_trie_root_with_encoder;
use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{Limits, Wire, WireResponse};
use logmill_io::{Clock, Error, Result};
use serde_json::{Value, json};

use crate::block::{Log, Outcome, Receipt};
use crate::verify::receipts_root;

/// A result with this field is answered as an error with the field's value as message.
pub(super) const INSTEAD: &str = "error instead";

/// Changes a fake node's answer.
pub(super) type Tamper = Arc<dyn Fn(&str, &mut Value) + Send + Sync>;

/// A chain as JSON: each block, and its receipts.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeChain {
    pub(super) blocks: Vec<Value>,
    pub(super) receipts: Vec<Value>,
    pub(super) uncles: Vec<Value>,
}

impl FakeChain {
    /// Blocks `0..length`. From block `fork` on it is the branch `branch`.
    pub(super) fn new(length: u64, fork: u64, branch: u64) -> Self {
        let mut chain = Self::default();
        let mut parent = B256::ZERO;
        for number in 0..length {
            let branch = if number >= fork { branch } else { 0 };
            parent = chain.push(number, parent, branch, None);
        }
        chain
    }

    /// The last block has an uncle.
    pub(super) fn with_uncle(length: u64) -> Self {
        let mut chain = Self::new(length - 1, 0, 0);
        let uncle = EvmHeader { number: length - 2, gas_limit: 7, ..EvmHeader::default() };
        let parent = chain.hash(length - 2);
        chain.push(length - 1, parent, 0, Some(&uncle));
        chain.uncles.push(header_json(&uncle));
        chain
    }

    /// The last block has transactions that used no gas and emitted no logs.
    pub(super) fn with_idle(length: u64) -> Self {
        let mut chain = Self::new(length - 1, 0, 0);
        let number = length - 1;
        let parent = chain.hash(number - 1);
        let idle = |index| Receipt {
            cumulative_gas_used: 0,
            logs: Vec::new(),
            ..receipt(number, index, 0)
        };
        let receipts: Vec<Receipt> = (0..=number % 3).map(idle).collect();
        chain.push_with(number, parent, 0, None, &receipts);
        chain
    }

    pub(super) fn hash(&self, number: u64) -> B256 {
        let block = &self.blocks[usize::try_from(number).expect("small")];
        serde_json::from_value(block["hash"].clone()).expect("a hash")
    }

    fn push(&mut self, number: u64, parent: B256, branch: u64, uncle: Option<&EvmHeader>) -> B256 {
        let count = if number == 0 { 0 } else { number % 3 + 1 };
        let receipts: Vec<Receipt> =
            (0..count).map(|index| receipt(number, index, branch)).collect();
        self.push_with(number, parent, branch, uncle, &receipts)
    }

    /// The same with these receipts and as many transactions.
    fn push_with(
        &mut self,
        number: u64,
        parent: B256,
        branch: u64,
        uncle: Option<&EvmHeader>,
        receipts: &[Receipt],
    ) -> B256 {
        let nonces = (number * 10..).take(receipts.len());
        let made: Vec<(RawBytes, Value)> = nonces.map(|nonce| transaction(nonce, branch)).collect();
        let mut header = EvmHeader {
            parent_hash: parent,
            number,
            timestamp: number * 12,
            gas_limit: 30_000_000,
            gas_used: receipts.last().map_or(0, |last| last.cumulative_gas_used),
            extra_data: RawBytes::from(branch.to_be_bytes().to_vec()),
            transactions_root: ordered_trie_root_with_encoder(&made, |(bytes, _), out| {
                out.put_slice(bytes);
            }),
            receipts_root: receipts_root(receipts),
            ..EvmHeader::default()
        };
        receipts.iter().for_each(|receipt| header.logs_bloom |= receipt.bloom());
        if let Some(uncle) = uncle {
            header.ommers_hash = keccak256(alloy_rlp::encode(vec![uncle.clone()]));
        }
        let hash = header.hash_slow();
        let mut json = header_json(&header);
        json["size"] = json!("0x400");
        json["uncles"] = uncle.map_or(json!([]), |uncle| json!([uncle.hash_slow()]));
        let transactions: Vec<Value> = made.into_iter().map(|(_, json)| json).collect();
        self.receipts.push(receipts_json(number, hash, &transactions, receipts));
        json["transactions"] = json!(transactions);
        self.blocks.push(json);
        hash
    }
}

fn header_json(header: &EvmHeader) -> Value {
    let mut json = serde_json::to_value(header).expect("a header is JSON");
    json["hash"] = json!(header.hash_slow());
    json
}

fn transaction(nonce: u64, branch: u64) -> (RawBytes, Value) {
    // As large as in a real signature.
    let large = |number: u64| U256::from(number) << 200;
    let signature = Signature::new(large(nonce + 1), large((branch + 1) << 32), nonce % 2 == 1);
    let to = Address::with_last_byte(9);
    let common = json!({"nonce": format!("{nonce:#x}"), "gas": "0xc350", "to": to, "value": "0x5", "input": "0xabcd",
        "r": signature.r(), "s": signature.s(), "from": to, "blockNumber": "0x1"});
    let input = RawBytes::from_static(&[0xab, 0xcd]);
    let value = U256::from(5);
    let mut json = common;
    let bytes = if nonce.is_multiple_of(2) {
        json["type"] = json!("0x0");
        json["gasPrice"] = json!("0x1");
        json["v"] = json!(format!("{:#x}", 35 + 2 * 1337 + u64::from(signature.v())));
        let (chain_id, to) = (Some(1337), TxKind::Call(to));
        let tx = TxLegacy { chain_id, nonce, gas_price: 1, gas_limit: 50_000, to, value, input };
        Signed::new_unchecked(tx, signature, B256::ZERO).encoded_2718()
    } else {
        json["type"] = json!("0x2");
        json["chainId"] = json!("0x539");
        json["maxFeePerGas"] = json!("0x9");
        json["maxPriorityFeePerGas"] = json!("0x3");
        json["accessList"] = json!([]);
        json["yParity"] = json!(format!("{:#x}", u64::from(signature.v())));
        let tx = TxEip1559 {
            chain_id: 1337,
            nonce,
            gas_limit: 50_000,
            max_fee_per_gas: 9,
            max_priority_fee_per_gas: 3,
            to: TxKind::Call(to),
            value,
            input,
            ..TxEip1559::default()
        };
        Signed::new_unchecked(tx, signature, B256::ZERO).encoded_2718()
    };
    json["hash"] = json!(keccak256(&bytes));
    (RawBytes::from(bytes), json)
}

fn receipt(number: u64, index: u64, branch: u64) -> Receipt {
    let logs = (0..=index).map(|at| Log {
        address: Address::with_last_byte(u8::try_from(at).expect("small")),
        topics: [keccak256((number * 7 + branch).to_be_bytes())].into_iter().collect(),
        data: RawBytes::from(vec![u8::try_from(number % 250).expect("small"); 64]),
    });
    let tx_type = if (number * 10 + index).is_multiple_of(2) { 0 } else { 2 };
    let cumulative_gas_used = (index + 1) * 50_000;
    Receipt {
        tx_type,
        outcome: Outcome::Status(true),
        cumulative_gas_used,
        logs: logs.collect(),
        extra: None,
    }
}

fn receipts_json(number: u64, block: B256, transactions: &[Value], receipts: &[Receipt]) -> Value {
    let each = transactions.iter().zip(receipts).enumerate().map(|(index, (tx, receipt))| {
        // Numbered wrongly on purpose: there is a gap at every transaction.
        let logs = receipt.logs.iter().enumerate().map(|(at, log)| {
            json!({"address": log.address, "topics": log.topics, "data": log.data, "blockHash": block,
                "blockNumber": format!("{number:#x}"), "transactionHash": tx["hash"],
                "logIndex": format!("{:#x}", index * 100 + at), "removed": false})
        });
        json!({"transactionHash": tx["hash"], "blockHash": block, "type": tx["type"], "status": "0x1",
            "transactionIndex": format!("{index:#x}"), "gasUsed": "0xc350", "logsBloom": receipt.bloom(),
            "cumulativeGasUsed": format!("{:#x}", receipt.cumulative_gas_used),
            "logs": logs.collect::<Vec<_>>()})
    });
    json!(each.collect::<Vec<_>>())
}

/// Faults of a fake node.
#[derive(Clone, Default)]
pub(super) struct Quirks {
    /// HTTP statuses to answer with, one after the other, each with its Retry-After.
    pub(super) statuses: Vec<(u16, Option<u64>)>,
    /// A body for every response.
    pub(super) body: Option<String>,
    /// It takes longer than any timeout.
    pub(super) hangs: bool,
    pub(super) unreachable: bool,
    pub(super) missing: BTreeSet<&'static str>,
    pub(super) batch_max: Option<usize>,
    /// How it refuses batches that are too large: with this HTTP status, by answering only some of the calls if 0, or
    /// with a JSON-RPC error if `None`.
    pub(super) batch_status: Option<u16>,
    pub(super) no_batches: bool,
    pub(super) logs_range_max: Option<u64>,
    pub(super) chain_id: Option<u64>,
    /// An error for each call.
    pub(super) error: Option<(i64, String)>,
    /// The final block; by default there is none yet.
    pub(super) finalized: Option<u64>,
    pub(super) no_tags: bool,
    pub(super) tamper: Option<Tamper>,
}

pub(super) struct FakeNode {
    pub(super) chain: Mutex<FakeChain>,
    pub(super) quirks: Mutex<Quirks>,
    /// The methods called, in order. `requests` has the number of calls per request.
    pub(super) called: Mutex<Vec<String>>,
    pub(super) requests: Mutex<Vec<usize>>,
    clock: Arc<dyn Clock>,
}

impl FakeNode {
    pub(super) fn new(chain: FakeChain, quirks: Quirks, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (called, requests) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            chain: Mutex::new(chain),
            quirks: Mutex::new(quirks),
            called,
            requests,
            clock,
        })
    }

    pub(super) fn calls_of(&self, method: &str) -> usize {
        self.called.lock().unwrap().iter().filter(|called| *called == method).count()
    }

    fn answer(&self, call: &Value) -> Value {
        let method = call["method"].as_str().expect("a method");
        self.called.lock().unwrap().push(method.to_owned());
        let quirks = self.quirks.lock().unwrap().clone();
        let error = |code: i64, message: &str| {
            let error = json!({"code": code, "message": message});
            json!({"jsonrpc": "2.0", "id": call["id"], "error": error})
        };
        if let Some((code, message)) = &quirks.error {
            return error(*code, message);
        }
        if quirks.missing.contains(method) {
            return error(-32_601, "the method does not exist/is not available");
        }
        match self.result(method, &call["params"], &quirks) {
            Ok(mut result) => {
                if let Some(tamper) = &quirks.tamper {
                    tamper(method, &mut result);
                }
                if let Some(said) = result[INSTEAD].as_str() {
                    return error(-32_000, said);
                }
                json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
            }
            Err((code, message)) => error(code, message),
        }
    }

    fn result(
        &self,
        method: &str,
        params: &Value,
        quirks: &Quirks,
    ) -> Result<Value, (i64, &'static str)> {
        let chain = self.chain.lock().unwrap();
        let head = chain.blocks.len() - 1;
        let position = |block: &Value| -> Option<usize> {
            let text = block.as_str().expect("a string");
            let by_hash = || chain.blocks.iter().position(|block| block["hash"] == text);
            if text.len() == 66 { by_hash() } else { number(text).filter(|at| *at <= head) }
        };
        let block =
            |block: &Value| position(block).map_or(Value::Null, |at| chain.blocks[at].clone());
        let receipt = |hash: &Value| {
            let all =
                chain.receipts.iter().flat_map(|of_block| of_block.as_array().expect("a list"));
            all.clone().find(|receipt| receipt["transactionHash"] == *hash).cloned()
        };
        Ok(match method {
            "eth_chainId" => json!(format!("{:#x}", quirks.chain_id.unwrap_or(1337))),
            "eth_blockNumber" => json!(format!("{head:#x}")),
            "web3_clientVersion" => json!("fake/1.0"),
            "eth_getBlockByNumber" => match params[0].as_str().expect("a tag") {
                "latest" => chain.blocks[head].clone(),
                "safe" | "finalized" if quirks.no_tags => {
                    return Err((-32_602, "invalid block tag"));
                }
                "safe" | "finalized" => match quirks.finalized {
                    Some(at) => chain.blocks[usize::try_from(at).expect("small")].clone(),
                    None => return Err((-39_001, "Unknown block")),
                },
                _ => block(&params[0]),
            },
            "eth_getBlockByHash" => block(&params[0]),
            "eth_getBlockReceipts" => {
                position(&params[0]).map_or(Value::Null, |at| chain.receipts[at].clone())
            }
            "eth_getTransactionReceipt" => receipt(&params[0]).unwrap_or_default(),
            "eth_getUncleByBlockHashAndIndex" => chain.uncles.first().cloned().unwrap_or_default(),
            "eth_getLogs" => return logs(&chain, &params[0], quirks.logs_range_max),
            _ => return Err((-32_601, "method not found")),
        })
    }
}

fn logs(
    chain: &FakeChain,
    filter: &Value,
    range_max: Option<u64>,
) -> Result<Value, (i64, &'static str)> {
    let (from, to) = match filter["blockHash"].as_str() {
        Some(hash) => {
            let at = chain.blocks.iter().position(|block| block["hash"] == hash);
            let at = at.ok_or((-32_000, "unknown block"))?;
            (at, at)
        }
        None => (
            number(filter["fromBlock"].as_str().expect("a number")).expect("a number"),
            number(filter["toBlock"].as_str().expect("a number")).expect("a number"),
        ),
    };
    if range_max.is_some_and(|max| u64::try_from(to - from + 1).expect("small") > max) {
        return Err((-32_602, "query exceeds max block range"));
    }
    let receipts = chain.receipts[from..=to].iter().flat_map(|all| all.as_array().expect("a list"));
    let logs = receipts.flat_map(|receipt| receipt["logs"].as_array().expect("a list").clone());
    Ok(json!(logs.collect::<Vec<_>>()))
}

fn number(text: &str) -> Option<usize> {
    usize::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[async_trait]
impl Wire for FakeNode {
    async fn exchange(&self, body: Bytes, limits: Limits) -> Result<WireResponse> {
        let quirks = self.quirks.lock().unwrap().clone();
        let request: Value = serde_json::from_slice(&body).expect("we send JSON");
        let calls = request.as_array().map_or(1, Vec::len);
        self.requests.lock().unwrap().push(calls);
        // A network takes time, so that several requests are in flight at once.
        self.clock.sleep(Duration::from_millis(10)).await;
        if quirks.hangs {
            self.clock.sleep(limits.timeout).await;
            return Err(Error::TooSlow { doing: "ask", limit_ms: 1 });
        }
        if quirks.unreachable {
            let source = "connection refused".into();
            return Err(Error::Socket { doing: "connect to", place: "nowhere".to_owned(), source });
        }
        let next = {
            let statuses = &mut self.quirks.lock().unwrap().statuses;
            (!statuses.is_empty()).then(|| statuses.remove(0))
        };
        if let Some((status, retry_after)) = next {
            let retry_after = retry_after.map(Duration::from_secs);
            return Ok(WireResponse { status, retry_after, body: Bytes::new() });
        }
        let is_too_large = quirks.batch_max.is_some_and(|max| calls > max);
        if let Some(status) = quirks.batch_status.filter(|status| is_too_large && *status > 0) {
            let body = Bytes::from_static(b"<html>no</html>");
            return Ok(WireResponse { status, retry_after: None, body });
        }
        let refusal = |code: i64, message: &str| {
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}})
                .to_string()
        };
        let answer = match request {
            _ if quirks.body.is_some() => quirks.body.unwrap_or_default(),
            Value::Array(_) if quirks.no_batches => refusal(-32_600, "invalid request"),
            Value::Array(calls) if is_too_large && quirks.batch_status == Some(0) => {
                let some = calls.iter().take(quirks.batch_max.unwrap_or(1));
                json!(some.map(|call| self.answer(call)).collect::<Vec<_>>()).to_string()
            }
            Value::Array(_) if is_too_large => refusal(-32_600, "batch too large"),
            Value::Array(calls) => {
                // In a different order, as a node may.
                json!(calls.iter().rev().map(|call| self.answer(call)).collect::<Vec<_>>())
                    .to_string()
            }
            call => self.answer(&call).to_string(),
        };
        if answer.len() > limits.bytes_max {
            return Err(Error::TooLarge { what: "fake".to_owned(), limit_bytes: limits.bytes_max });
        }
        Ok(WireResponse { status: 200, retry_after: None, body: Bytes::from(answer) })
    }
}

impl fmt::Debug for FakeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeNode")
    }
}
