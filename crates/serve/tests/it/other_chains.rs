//! Blocks of chains other than Ethereum, from a node's JSON to JSON-RPC: every field that the node returned is served.
//!
//! The files are real blocks; the odd blocks come from a simulated chain, modified in the ways of other chains' nodes.

use std::sync::Arc;

use alloy_consensus::proofs::ordered_trie_root_with_encoder;
use alloy_primitives::{Address, B256};
use async_trait::async_trait;
use bytes::Bytes;
use logmill_chain::evm::{EvmSettings, EvmSource, NodeConnections, NodeSettings};
use logmill_chain::sim::{Fork, Shape, SimChain, SimSettings};
use logmill_chain::{Block, BlockSource, ChainProfile, Family, VerifyLevel, stored};
use logmill_io::wire::{Endpoint, HttpClient, HttpWire, Limits, Wire, WireResponse};
use logmill_io::{OsEntropy, SystemClock};
use serde_json::{Map, Value, json};

use super::test_server::TestServer;

/// A chain id without a profile.
const UNKNOWN: u64 = 7_331;

#[derive(Clone, Debug)]
struct SingleBlockNode {
    chain_id: u64,
    block: Value,
    receipts: Value,
}

impl SingleBlockNode {
    fn read(text: &str) -> Self {
        let recorded: Value = serde_json::from_str(text).expect("JSON");
        let chain_id = quantity(&recorded["chainId"]);
        let (block, receipts) = (recorded["block"].clone(), recorded["receipts"].clone());
        Self { chain_id, block, receipts }
    }

    /// A block with transactions of several types, and with logs.
    fn simulated(seed: u64) -> Self {
        Self::of_fork(seed, Fork::Prague)
    }

    fn of_fork(seed: u64, fork: Fork) -> Self {
        let shape = Shape { transactions: 8, logs: 24, fork, ..Shape::sparse() };
        let settings = SimSettings { seed, chain_id: UNKNOWN, shape, ..SimSettings::default() };
        let chain = SimChain::with(settings);
        chain.grow(6);
        let ask = |method: &str, params: Value| -> Value {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            let answer = logmill_chain::sim::rpc::answer(&chain, &call.to_string());
            serde_json::from_str::<Value>(&answer).expect("JSON")["result"].take()
        };
        let block = ask("eth_getBlockByNumber", json!(["0x5", true]));
        let receipts = ask("eth_getBlockReceipts", json!(["0x5"]));
        assert!(receipts.as_array().is_some_and(|all| all.len() > 2), "{receipts}");
        Self { chain_id: UNKNOWN, block, receipts }
    }

    fn number(&self) -> u64 {
        quantity(&self.block["number"])
    }

    fn one(&self, call: &Value) -> Value {
        let result = match call["method"].as_str().expect("a method") {
            "eth_chainId" => json!(format!("{:#x}", self.chain_id)),
            "eth_blockNumber" => self.block["number"].clone(),
            "eth_getBlockByNumber" => {
                let asked = &call["params"][0];
                let is_it = asked == &self.block["number"] || !asked.to_string().contains("0x");
                if is_it { self.block.clone() } else { Value::Null }
            }
            "eth_getBlockReceipts" => self.receipts.clone(),
            _ => Value::Null,
        };
        json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
    }

    /// The block as a source decodes it; without a level, verified by the profile of its chain.
    async fn decoded(&self, verify: Option<VerifyLevel>) -> Result<Block, String> {
        fetched(Arc::new(self.clone()), self.number(), verify).await
    }
}

/// A block of a node, as a source decodes it.
async fn fetched(
    wire: Arc<dyn Wire>,
    number: u64,
    verify: Option<VerifyLevel>,
) -> Result<Block, String> {
    let address = NodeSettings::new(Endpoint::parse("http://recorded.example").expect("fine"));
    let settings = EvmSettings {
        auto: verify.is_none(),
        verify: verify.unwrap_or(VerifyLevel::Full),
        patience: std::time::Duration::from_millis(1),
        ..EvmSettings::new("recorded")
    };
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let nodes = vec![(address, NodeConnections { wire, feed: None })];
    let source = EvmSource::with_connections(nodes, settings, clock, &entropy);
    let blocks = source.expect("fine settings").blocks(number..number + 1).await;
    blocks.map(|mut blocks| blocks.remove(0)).map_err(|error| logmill_io::error_chain(&error))
}

#[async_trait]
impl Wire for SingleBlockNode {
    async fn exchange(&self, body: Bytes, _limits: Limits) -> logmill_io::Result<WireResponse> {
        let answer = match serde_json::from_slice(&body).expect("we send JSON") {
            Value::Array(calls) => Value::Array(calls.iter().map(|call| self.one(call)).collect()),
            call => self.one(&call),
        };
        let body = answer.to_string().into_bytes().into();
        Ok(WireResponse { status: 200, retry_after: None, body })
    }
}

fn quantity(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x")).expect("a quantity");
    u64::from_str_radix(digits, 16).expect("a number")
}

/// Fields that are served although the node did not return them. They follow from the block, and nodes differ in
/// whether they include them: Cronos omits the price in receipts of legacy transactions.
const ADDED: &[&str] = &["blockTimestamp", "effectiveGasPrice", "removed"];

/// Collects the fields that the node returned and that are served differently or not at all, and the fields that are
/// served but were not returned. Hexadecimal digits may differ in case, because addresses may be written with a
/// checksum.
fn differences(given: &Value, served: &Value, path: &str, found: &mut Vec<String>) {
    match (given, served) {
        (Value::Object(given), Value::Object(served)) => {
            let is_added =
                |name: &&String| !given.contains_key(*name) && !ADDED.contains(&name.as_str());
            let added = served.keys().filter(is_added);
            found.extend(added.map(|name| format!("{path}.{name}: it was not given")));
            for (name, value) in given {
                let path = format!("{path}.{name}");
                match served.get(name) {
                    Some(served) => differences(value, served, &path, found),
                    None => found.push(format!("{path}: {value} is not served")),
                }
            }
        }
        (Value::Array(given), Value::Array(served)) if given.len() == served.len() => {
            for (at, (given, served)) in given.iter().zip(served).enumerate() {
                differences(given, served, &format!("{path}[{at}]"), found);
            }
        }
        (Value::String(given), Value::String(served)) if given.eq_ignore_ascii_case(served) => {}
        (given, served) if given == served => {}
        (given, served) => found.push(format!("{path}: {given} is served as {served}")),
    }
}

fn check(given: &Value, served: &Value, what: &str) {
    let mut found = Vec::new();
    differences(given, served, "", &mut found);
    assert!(found.is_empty(), "{what}: {found:#?}");
}

/// Serves a block that is stored as final.
async fn served(block: Block) -> TestServer {
    assert_eq!(stored::decode(&stored::encode(&block)).expect("it is read"), block, "in the tip");
    TestServer::with(vec![block], Vec::new(), |state| state.limits.max_body_bytes = 8 << 20).await
}

/// Compares every JSON-RPC answer about a block with the node's answer.
async fn check_served(server: &TestServer, node: &SingleBlockNode, what: &str) {
    let number = &node.block["number"];
    let whole = server.call("eth_getBlockByNumber", json!([number, true])).await;
    check(&node.block, &whole, what);
    let by_hash = server.call("eth_getBlockByHash", json!([node.block["hash"], false])).await;
    let mut header = node.block.clone();
    let transactions = header["transactions"].take();
    let transactions = transactions.as_array().expect("a list");
    header["transactions"] = transactions.iter().map(|tx| tx["hash"].clone()).collect();
    check(&header, &by_hash, what);
    let receipts = server.call("eth_getBlockReceipts", json!([number])).await;
    check(&node.receipts, &receipts, what);
    for (position, transaction) in transactions.iter().enumerate() {
        let by_hash = server.call("eth_getTransactionByHash", json!([transaction["hash"]])).await;
        check(transaction, &by_hash, what);
        let at = json!([number, format!("{position:#x}")]);
        let by_place = server.call("eth_getTransactionByBlockNumberAndIndex", at).await;
        check(transaction, &by_place, what);
    }
    for receipt in node.receipts.as_array().expect("a list") {
        let hash = json!([receipt["transactionHash"]]);
        let by_hash = server.call("eth_getTransactionReceipt", hash).await;
        check(receipt, &by_hash, what);
    }
}

/// Compares the logs of the index with those of the receipts, in the fields that logs have on Ethereum. Fields that
/// only a chain's own receipts have are served with receipts alone: the index keeps logs without the node's additions.
async fn check_logs(server: &TestServer, node: &SingleBlockNode, what: &str) {
    const INDEXED: [&str; 8] = [
        "address",
        "topics",
        "data",
        "blockNumber",
        "blockHash",
        "transactionHash",
        "transactionIndex",
        "logIndex",
    ];
    let range = json!([{"fromBlock": node.block["number"], "toBlock": node.block["number"]}]);
    let found = server.call("eth_getLogs", range).await;
    let receipts = node.receipts.as_array().expect("a list");
    let logs = receipts.iter().flat_map(|receipt| receipt["logs"].as_array().expect("logs"));
    let given: Vec<Value> = logs
        .map(|log| {
            let field = |name: &&str| Some(((*name).to_owned(), log.get(*name)?.clone()));
            Value::Object(INDEXED.iter().filter_map(field).collect::<Map<String, Value>>())
        })
        .collect();
    check(&Value::Array(given), &found, what);
}

fn recorded() -> Option<Vec<(String, SingleBlockNode)>> {
    let folder = logmill_sim::test_data()?.join("other_chains");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).ok()?.map(|file| file.expect("a file").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let read = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, SingleBlockNode::read(&std::fs::read_to_string(&path).expect("text")))
    };
    Some(files.into_iter().map(read).collect())
}

#[tokio::test]
async fn every_field_of_real_blocks_of_other_chains_is_served_as_the_node_returned_it() {
    let Some(recorded) = recorded() else {
        return logmill_sim::skip("no recorded chain data");
    };
    assert!(recorded.len() > 5, "{}", recorded.len());
    for (name, node) in recorded {
        let block = node.decoded(None).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(block.node_fields.is_compared(), "{name}");
        let profile = ChainProfile::of(node.chain_id);
        let expected =
            if profile.family == Family::Unknown { VerifyLevel::Bloom } else { profile.verify };
        assert_eq!(block.verified, expected, "{name}");
        let server = served(block).await;
        check_served(&server, &node, &name).await;
        check_logs(&server, &node, &name).await;
        check_raw_receipts(&server, &node, &name).await;
        server.end().await;
    }
}

/// Receipts as bytes: they match the header, or there are none.
async fn check_raw_receipts(server: &TestServer, node: &SingleBlockNode, what: &str) {
    let answer = server.answer("debug_getRawReceipts", json!([node.block["number"]])).await;
    if answer["error"]["code"] == 4_444 {
        return;
    }
    let raw: Vec<alloy_primitives::Bytes> =
        serde_json::from_value(answer["result"].clone()).expect("bytes");
    let root = ordered_trie_root_with_encoder(&raw, |bytes, out| out.extend_from_slice(bytes));
    assert_eq!(json!(root), node.block["receiptsRoot"], "{what}");
}

/// A Logmill that serves one block, used as a node of that chain.
#[derive(Debug)]
struct LogmillNode {
    wire: HttpWire,
    chain_id: u64,
}

impl LogmillNode {
    fn to(server: &TestServer, chain_id: u64) -> Self {
        let address = Endpoint::parse(&format!("http://{}", server.address)).expect("an address");
        let client = HttpClient::new(SystemClock::shared()).expect("a client");
        Self { wire: HttpWire::new(client, address), chain_id }
    }
}

#[async_trait]
impl Wire for LogmillNode {
    /// All servers have the same chain id, so `eth_chainId` is answered with the block's.
    async fn exchange(&self, body: Bytes, limits: Limits) -> logmill_io::Result<WireResponse> {
        let request: Value = serde_json::from_slice(&body).expect("we send JSON");
        if request["method"] != "eth_chainId" {
            return self.wire.exchange(body, limits).await;
        }
        let result = json!(format!("{:#x}", self.chain_id));
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
        Ok(WireResponse { status: 200, retry_after: None, body: answer.into_bytes().into() })
    }
}

#[tokio::test]
async fn blocks_of_other_chains_pass_through_two_logmills_unchanged() {
    let Some(recorded) = recorded() else {
        return logmill_sim::skip("no recorded chain data");
    };
    for (name, node) in recorded {
        let block = node.decoded(None).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let verified = block.verified;
        let mut server = served(block).await;
        for hop in 1..=2 {
            let wire = Arc::new(LogmillNode::to(&server, node.chain_id));
            let next = fetched(wire, node.number(), Some(verified)).await;
            let next = next.unwrap_or_else(|error| panic!("{name}, hop {hop}: {error}"));
            assert_eq!(next.verified, verified, "{name}");
            server.end().await;
            server = served(next).await;
        }
        check_served(&server, &node, &name).await;
        check_logs(&server, &node, &name).await;
        server.end().await;
    }
}

#[tokio::test]
async fn full_names_the_check_that_fails_on_another_chain_and_the_setting_that_helps() {
    let Some(recorded) = recorded() else {
        return logmill_sim::skip("no recorded chain data");
    };
    for (name, node) in recorded {
        let error = node.decoded(Some(VerifyLevel::Full)).await.expect_err(&name);
        assert!(error.contains("set `verify = "), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_real_block_with_another_header_is_refused_in_bloom_where_headers_match_their_hashes() {
    let Some(recorded) = recorded() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let has_ethereum_headers =
        |node: &SingleBlockNode| ChainProfile::of(node.chain_id).has_ethereum_headers();
    for (name, mut node) in recorded.into_iter().filter(|(_, node)| has_ethereum_headers(node)) {
        // Only the hash reveals this.
        node.block["stateRoot"] = node.block["parentHash"].clone();
        for level in [None, Some(VerifyLevel::Bloom), Some(VerifyLevel::Full)] {
            let error = node.decoded(level).await.expect_err(&name);
            assert!(error.contains("the fields of its header hash to"), "{name}: {error}");
            assert!(!error.contains("set `verify = "), "{name}: {error}");
        }
    }
}

/// Modifies a block and its receipts.
type Change = fn(&mut Value, &mut Value);

/// Name of the case without a bloom.
const NO_BLOOM: &str = "parts of a block that are not what they should be";

/// Odd blocks, and whether their logs are served with other indexes than the node's.
const ODD: &[(&str, Change, bool)] = &[
    ("unchanged", |_, _| {}, false),
    (
        "a deposit of the OP stack",
        |block, receipts| {
            let deposit = block["transactions"][0].as_object_mut().expect("an object");
            for name in ["chainId", "accessList", "maxFeePerGas", "maxPriorityFeePerGas", "yParity"]
            {
                deposit.remove(name);
            }
            for name in ["r", "s", "v", "gasPrice"] {
                deposit.insert(name.to_owned(), json!("0x0"));
            }
            deposit.insert("type".to_owned(), json!("0x7e"));
            deposit.insert("sourceHash".to_owned(), json!(B256::repeat_byte(0x11)));
            deposit.insert("mint".to_owned(), json!("0x5"));
            deposit.insert("isSystemTx".to_owned(), json!(false));
            receipts[0]["type"] = json!("0x7e");
            receipts[0]["depositNonce"] = json!("0x9");
            receipts[0]["depositReceiptVersion"] = json!("0x1");
        },
        false,
    ),
    (
        "delegations that are left out",
        |block, receipts| {
            block["transactions"][0]["type"] = json!("0x4");
            let fields = block["transactions"][0].as_object_mut().expect("an object");
            fields.remove("authorizationList");
            receipts[0]["type"] = json!("0x4");
        },
        false,
    ),
    (
        "a type that nobody knows",
        |block, receipts| {
            block["transactions"][0]["type"] = json!("0x7d");
            block["transactions"][0]["payload"] = json!({"calls": [{"to": "0x12"}], "ttl": 5});
            receipts[0]["type"] = json!("0x7d");
        },
        false,
    ),
    (
        "types that are no bytes",
        |block, receipts| {
            block["transactions"][0]["type"] = json!("TxTypeSmartContractExecution");
            receipts[0]["type"] = json!("TxTypeSmartContractExecution");
            receipts[1]["type"] = json!("0x1234");
        },
        false,
    ),
    (
        "fields that nobody knows, at each level",
        |block, receipts| {
            block["l1BatchNumber"] = json!("0x5");
            block["nested"] = json!({"a": [1, null, {"b": "c\"\\\n"}]});
            block["transactions"][1]["l1BatchTxIndex"] = json!(null);
            block["transactions"][1]["quote\"d"] = json!(true);
            receipts[1]["l2ToL1Logs"] = json!([{"key": "0x1"}]);
            receipts[1]["timeboosted"] = json!(null);
            first_log(receipts)["logType"] = json!(null);
            first_log(receipts)["transactionLogIndex"] = json!("0x0");
        },
        false,
    ),
    (
        "a sender without a signature",
        |block, receipts| {
            for name in ["r", "s"] {
                block["transactions"][0][name] = json!("0x0");
            }
            block["transactions"][0]["from"] = json!(Address::repeat_byte(0x42));
            receipts[0]["from"] = json!(Address::repeat_byte(0x42));
        },
        false,
    ),
    (
        "fields that are left out",
        |block, _| {
            for transaction in block["transactions"].as_array_mut().expect("a list") {
                let fields = transaction.as_object_mut().expect("an object");
                for name in ["authorizationList", "accessList", "yParity", "v", "chainId"] {
                    fields.remove(name);
                }
            }
        },
        false,
    ),
    (
        "values that do not follow",
        |block, receipts| {
            block["totalDifficulty"] = json!("0x10");
            block["size"] = json!("0x7");
            block["transactions"][1]["gasPrice"] = json!("0x123456789");
            receipts[0]["effectiveGasPrice"] = json!("0x5f5e100");
            receipts[0]["gasUsed"] = json!("0x1");
            receipts[0]["contractAddress"] = json!(Address::repeat_byte(0x43));
            receipts[1]["cumulativeGasUsed"] = json!(77);
            receipts[1]["status"] = json!("ok");
            receipts[1]["logsBloom"] = json!("0x");
        },
        false,
    ),
    (
        NO_BLOOM,
        |block, _| {
            block["uncles"] = json!(null);
            block["withdrawals"] = json!("none");
            block["logsBloom"] = json!("0x");
            block["gasUsed"] = json!("0xffffffffffffffffffff");
            block["baseFeePerGas"] = json!(null);
        },
        false,
    ),
    (
        "logs whose numbers have gaps",
        |_, receipts| {
            let mut index = 3;
            for log in logs(receipts) {
                log["logIndex"] = json!(format!("{index:#x}"));
                index += 2;
            }
        },
        false,
    ),
    (
        "logs that are numbered backwards",
        |_, receipts| {
            let count = logs(receipts).len();
            for (at, log) in logs(receipts).into_iter().enumerate() {
                log["logIndex"] = json!(format!("{:#x}", count - at));
            }
        },
        true,
    ),
];

fn logs(receipts: &mut Value) -> Vec<&mut Value> {
    let receipts = receipts.as_array_mut().expect("a list").iter_mut();
    receipts.flat_map(|receipt| receipt["logs"].as_array_mut().expect("logs")).collect()
}

fn first_log(receipts: &mut Value) -> &mut Value {
    logs(receipts).into_iter().next().expect("a log")
}

/// Sets the index of every log to its position.
fn number_logs(receipts: &mut Value) {
    for (at, log) in logs(receipts).into_iter().enumerate() {
        log["logIndex"] = json!(format!("{at:#x}"));
    }
}

#[tokio::test]
async fn odd_blocks_are_stored_and_served_as_the_node_returned_them_in_bloom_and_off() {
    let cases = ODD.iter().flat_map(|odd| [10, 137, 31_337, UNKNOWN].map(|id| (odd, id)));
    for ((name, change, is_renumbered), chain_id) in cases {
        for level in [VerifyLevel::Bloom, VerifyLevel::Off] {
            let what = format!("{name}, chain {chain_id}, {level}");
            let mut node = SingleBlockNode { chain_id, ..SingleBlockNode::simulated(3) };
            change(&mut node.block, &mut node.receipts);
            let decoded = node.decoded(Some(level)).await;
            if level == VerifyLevel::Bloom && *name == NO_BLOOM {
                let refused = decoded.expect_err("there is nothing to compare with");
                assert!(refused.contains("set `verify = \"off\"`"), "{what}: {refused}");
                continue;
            }
            let block = decoded.unwrap_or_else(|error| panic!("{what}: {error}"));
            let server = served(block).await;
            if *is_renumbered {
                number_logs(&mut node.receipts);
            }
            check_served(&server, &node, &what).await;
            check_logs(&server, &node, &what).await;
            server.end().await;
        }
    }
}

#[tokio::test]
async fn logs_numbered_backwards_are_renumbered_by_position() {
    let mut node = SingleBlockNode::simulated(3);
    let (_, change, _) = ODD.last().expect("a case");
    change(&mut node.block, &mut node.receipts);
    let server = served(node.decoded(Some(VerifyLevel::Off)).await.expect("decoded")).await;
    let mut receipts = server.call("eth_getBlockReceipts", json!([node.block["number"]])).await;
    for (at, log) in logs(&mut receipts).into_iter().enumerate() {
        assert_eq!(log["logIndex"], json!(format!("{at:#x}")));
    }
    server.end().await;
}

#[tokio::test]
async fn a_transaction_without_a_receipt_is_served_and_its_receipt_is_null() {
    let mut node = SingleBlockNode::simulated(3);
    let missing = node.receipts.as_array_mut().expect("a list").remove(1);
    let refused = node.decoded(Some(VerifyLevel::Bloom)).await.expect_err("it is not checked");
    assert!(refused.contains("4 transactions") && refused.contains("3 receipts"), "{refused}");
    let block = node.decoded(Some(VerifyLevel::Off)).await.expect("decoded");
    assert_eq!((block.gas_used(1), block.lacks_receipt(1)), (None, true));
    let server = served(block).await;
    // The gas of the following receipts continues from the receipt before it: the node reported what each used.
    check_served(&server, &node, "a receipt is missing").await;
    let hash = json!([missing["transactionHash"]]);
    assert_eq!(server.call("eth_getTransactionReceipt", hash.clone()).await, Value::Null);
    let transaction = server.call("eth_getTransactionByHash", hash).await;
    assert_eq!(transaction["transactionIndex"], "0x1");
    server.end().await;
}

#[tokio::test]
async fn a_receipt_without_a_transaction_is_served_and_its_logs_are_found() {
    let mut node = SingleBlockNode::simulated(3);
    let transactions = node.block["transactions"].as_array_mut().expect("a list");
    let hidden = transactions.pop().expect("one");
    let listed = transactions.len();
    node.decoded(Some(VerifyLevel::Bloom)).await.expect_err("it is not checked");
    let block = node.decoded(Some(VerifyLevel::Off)).await.expect("decoded");
    let server = served(block).await;
    check_served(&server, &node, "a transaction is missing").await;
    check_logs(&server, &node, "a transaction is missing").await;
    let number = json!([node.block["number"]]);
    let count = server.call("eth_getBlockTransactionCountByNumber", number).await;
    assert_eq!(count, json!(format!("{listed:#x}")));
    let hash = json!([hidden["hash"]]);
    assert_eq!(server.call("eth_getTransactionByHash", hash).await, Value::Null);
    server.end().await;
}

#[tokio::test]
async fn node_fields_of_a_block_are_bounded() {
    let mut node = SingleBlockNode::simulated(3);
    node.block["small"] = json!("kept");
    node.block["large"] = json!("x".repeat(300 << 10));
    for at in 0..300 {
        node.receipts[0][format!("field{at}")] = json!(at);
    }
    let server = served(node.decoded(Some(VerifyLevel::Off)).await.expect("decoded")).await;
    let block = server.call("eth_getBlockByNumber", json!([node.block["number"], false])).await;
    assert_eq!((block["small"].as_str(), block.get("large")), (Some("kept"), None));
    let receipts = server.call("eth_getBlockReceipts", json!([node.block["number"]])).await;
    let fields = receipts[0].as_object().expect("an object").keys();
    assert_eq!(fields.filter(|name| name.starts_with("field")).count(), 256);
    server.end().await;
}

#[tokio::test]
async fn a_block_whose_fields_all_follow_is_stored_as_on_ethereum() {
    // Nodes report blob gas, which is stored on Ethereum and follows from the block elsewhere: there is none here.
    let node = SingleBlockNode::of_fork(3, Fork::London);
    let on_ethereum = SingleBlockNode { chain_id: 1, ..node.clone() };
    let plain = on_ethereum.decoded(Some(VerifyLevel::Full)).await.expect("it passes");
    let compared = node.decoded(Some(VerifyLevel::Full)).await.expect("it passes");
    assert_eq!(plain, compared);
    let (plain, compared) = (stored::encode(&plain), stored::encode(&compared));
    assert_eq!((plain[0], compared[0]), (1, 3), "the versions");
    assert!(!stored::is_compared(&plain) && stored::is_compared(&compared));
    // Seven empty lists: unknown senders, and six kinds of fields.
    assert_eq!(&compared[1..], [&plain[1..], &[0; 7]].concat());
}

#[tokio::test]
async fn fees_are_what_the_receipt_says_and_not_what_the_transaction_offers() {
    let mut node = SingleBlockNode::simulated(3);
    node.receipts[0]["effectiveGasPrice"] = json!("0x5f5e100");
    node.receipts[0]["gasUsed"] = json!("0x123");
    node.receipts[0]["contractAddress"] = json!(Address::repeat_byte(0x43));
    let block = node.decoded(Some(VerifyLevel::Bloom)).await.expect("decoded");
    let render = logmill_chain::render::BlockRenderer::of(&block).expect("a block");
    let sent = render.transaction_view(0).expect("a transaction");
    assert_ne!(sent.gas_price, Some(100_000_000));
    assert_eq!(block.effective_gas_price(0, &sent), Some(100_000_000));
    assert_eq!(block.gas_used(0), Some(0x123));
    assert_eq!(block.created_contract(0, &sent), Some(Address::repeat_byte(0x43)));
    let on_ethereum = SingleBlockNode { chain_id: 1, ..node };
    let block = on_ethereum.decoded(Some(VerifyLevel::Full)).await.expect("what is checked passes");
    assert_eq!(block.effective_gas_price(0, &sent), sent.gas_price, "there it follows");
    assert_ne!(block.gas_used(0), Some(0x123));
}

#[tokio::test]
async fn a_polygon_state_sync_is_outside_the_roots_and_is_served() {
    let mut node = SingleBlockNode { chain_id: 137, ..SingleBlockNode::simulated(3) };
    let (number, hash) = (node.number(), node.block["hash"].clone());
    let of: B256 = serde_json::from_value(hash.clone()).expect("a hash");
    let key = [&b"matic-bor-receipt-"[..], &number.to_be_bytes(), of.as_slice()].concat();
    let sync = json!(alloy_primitives::keccak256(key));
    let position = json!(format!("{:#x}", node.receipts.as_array().expect("a list").len()));
    let nobody = json!(Address::ZERO);
    let log_index = json!(format!("{:#x}", logs(&mut node.receipts).len()));
    let transaction = json!({
        "blockHash": hash, "blockNumber": node.block["number"], "from": nobody, "gas": "0x0", "gasPrice": "0x0",
        "hash": sync, "input": "0x", "nonce": "0x0", "to": nobody, "transactionIndex": position, "value": "0x0",
        "type": "0x0", "v": "0x0", "r": "0x0", "s": "0x0",
    });
    let receipt = json!({
        "blockHash": hash, "blockNumber": node.block["number"], "contractAddress": null, "cumulativeGasUsed": "0x0",
        "effectiveGasPrice": "0x0", "from": nobody, "gasUsed": "0x0", "status": "0x1", "to": nobody,
        "transactionHash": sync, "transactionIndex": position, "type": "0x0", "logsBloom": "0x0",
        "logs": [{"address": Address::repeat_byte(0x10), "topics": [B256::repeat_byte(1)], "data": "0x01",
            "blockNumber": node.block["number"], "blockHash": hash, "transactionHash": sync,
            "transactionIndex": position, "logIndex": log_index, "removed": false}],
    });
    node.block["transactions"].as_array_mut().expect("a list").push(transaction);
    node.receipts.as_array_mut().expect("a list").push(receipt);
    for level in [None, Some(VerifyLevel::Full)] {
        let block = node.decoded(level).await.expect("it passes");
        assert_eq!(block.verified, level.unwrap_or(VerifyLevel::Bloom));
        let server = served(block).await;
        check_served(&server, &node, "state sync").await;
        check_logs(&server, &node, "state sync").await;
        server.end().await;
    }
    let last = node.block["transactions"].as_array().expect("a list").len() - 1;
    for part in
        [&mut node.block["transactions"][last]["hash"], &mut node.receipts[last]["transactionHash"]]
    {
        *part = json!(B256::repeat_byte(9));
    }
    node.decoded(None).await.expect_err("another transaction is in the bloom, or is refused");
}

/// Identities, and the content of the index: a block without these cannot be stored, and the caller waits for it.
const NEEDED: [&str; 11] = [
    "hash",
    "number",
    "parentHash",
    "timestamp",
    "transactions",
    "transactionHash",
    "blockHash",
    "logs",
    "address",
    "topics",
    "data",
];

/// The paths of all fields of a value that may be changed.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}/{name}");
                paths(value, &path, found);
                if !NEEDED.contains(&name.as_str()) {
                    found.push(path);
                }
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                paths(value, &format!("{path}/{at}"), found);
            }
        }
        _ => {}
    }
}

fn strange(kind: u8, old: &Value) -> Value {
    match kind % 8 {
        0 => Value::Null,
        1 => json!("0x"),
        2 => json!(-1.5),
        3 => json!({"a": [old]}),
        4 => json!("0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
        5 => json!("\u{0}\"\\é"),
        6 => json!([]),
        _ => json!(true),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(logmill_io::proof_cases(48)))]

    #[test]
    fn no_change_of_a_real_block_makes_a_chain_stall_where_nothing_is_checked(
        which in proptest::prelude::any::<proptest::sample::Index>(),
        changes in proptest::collection::vec(
            (proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()),
            1..6),
        dropped in proptest::option::of(proptest::prelude::any::<proptest::sample::Index>()),
    ) {
        let mut nodes = vec![SingleBlockNode::simulated(3), SingleBlockNode::simulated(4)];
        nodes.extend(recorded().unwrap_or_default().into_iter().map(|(_, node)| node));
        let mut node = nodes.swap_remove(which.index(nodes.len()));
        for (at, kind) in changes {
            for part in [&mut node.block, &mut node.receipts] {
                let mut found = Vec::new();
                paths(part, "", &mut found);
                if let Some(value) = part.pointer_mut(&found[at.index(found.len())]) {
                    *value = strange(kind, value);
                }
            }
        }
        let receipts = node.receipts.as_array_mut().expect("a list");
        if let Some(dropped) = dropped.filter(|_| receipts.len() > 1) {
            receipts.remove(dropped.index(receipts.len()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let decoded = node.decoded(Some(VerifyLevel::Off)).await;
            let block = decoded.unwrap_or_else(|error| panic!("{error}: {node:?}"));
            let read = stored::decode(&stored::encode(&block)).expect("it is read");
            assert_eq!(read, block);
            let number = block.at.number;
            let finalized = logmill_pipeline::block::to_finalized(block);
            finalized.validate().expect("the index takes it");
            let render = logmill_chain::render::BlockRenderer::of(&read).expect("a block");
            let mut out = Vec::new();
            render.block(&mut out, true).expect("it is served");
            let whole: Value = serde_json::from_slice(&out).expect("JSON");
            check(&node.block, &whole, "the block");
            out.clear();
            render.receipts(&mut out).expect("they are served");
            serde_json::from_slice::<Value>(&out).expect("JSON");
            let read = Arc::new(read);
            let decoded = logmill_pipeline::derive::DecodedBlock::new(node.chain_id, read);
            decoded.expect("tables read it");
            assert_eq!(number, node.number());
        });
    }
}
