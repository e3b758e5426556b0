//! The conformance cases of the Ethereum execution API, replayed over HTTP on their own chain.

use std::io::Read;
use std::path::Path;

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes};
use alloy_rlp::Decodable;
use logmill_chain::{Block, BlockRef, Header, Log, Outcome, Receipt, Transaction, VerifyLevel};
use serde_json::Value;

use super::test_server::TestServer;

fn field<T: serde::de::DeserializeOwned>(value: &Value, name: &str) -> T {
    serde_json::from_value(value[name].clone()).unwrap_or_else(|e| panic!("{name}: {e}: {value}"))
}

fn number(value: &Value, name: &str) -> u64 {
    let text: String = field(value, name);
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number")
}

fn receipt(value: &Value) -> Receipt {
    let outcome = match value.get("status") {
        Some(status) => Outcome::Status(status == "0x1"),
        None => Outcome::StateRoot(field(value, "root")),
    };
    let logs = value["logs"].as_array().expect("logs").iter().map(|log| Log {
        address: field(log, "address"),
        topics: field::<Vec<B256>>(log, "topics").into_iter().collect(),
        data: field(log, "data"),
    });
    Receipt {
        tx_type: u8::try_from(number(value, "type")).expect("a type"),
        outcome,
        cumulative_gas_used: number(value, "cumulativeGasUsed"),
        logs: logs.collect(),
        extra: None,
    }
}

/// The 55 blocks of the chain; of the first only some fields are known.
pub(super) fn chain(folder: &Path) -> (Vec<Block>, Vec<Value>) {
    let mut text = String::new();
    let packed = std::fs::File::open(folder.join("blocks_and_receipts.json.gz")).expect("it");
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("gzip");
    let known: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let raw = std::fs::read(folder.join("chain.rlp")).expect("it");
    let mut rest = &raw[..];
    let mut blocks = Vec::new();
    for known in &known {
        let header = &known["header"];
        let at = BlockRef {
            number: number(header, "number"),
            hash: field(header, "hash"),
            parent_hash: field(header, "parentHash"),
            timestamp: number(header, "timestamp"),
        };
        let receipts: Vec<_> =
            known["receipts"].as_array().expect("receipts").iter().map(receipt).collect();
        let mut block = Block {
            at,
            header: Header::Foreign(header.to_string().into_bytes().into()),
            uncles: Vec::new(),
            withdrawals: None,
            size: 540,
            transactions: Vec::new(),
            receipts,
            verified: VerifyLevel::Off,
            node_fields: logmill_chain::KeptFields::default(),
        };
        if at.number > 0 {
            let before = rest.len();
            let decoded = alloy_consensus::Block::<TxEnvelope>::decode(&mut rest).expect("RLP");
            assert_eq!(decoded.header.hash_slow(), at.hash, "block {}", at.number);
            let mut header = Vec::new();
            alloy_rlp::Encodable::encode(&decoded.header, &mut header);
            block.header = Header::Canonical(header.into());
            block.size = u64::try_from(before - rest.len()).expect("small");
            block.withdrawals = decoded.body.withdrawals.map(|withdrawals| {
                let mut out = Vec::new();
                alloy_rlp::Encodable::encode(&withdrawals, &mut out);
                Bytes::from(out)
            });
            block.uncles = decoded.body.ommers.iter().map(|uncle| uncle.hash_slow()).collect();
            let transactions = decoded.body.transactions.iter();
            block.transactions =
                transactions.map(|tx| Transaction::canonical(tx.encoded_2718().into())).collect();
        }
        blocks.push(block);
    }
    assert!(rest.is_empty(), "all blocks were read");
    (blocks, known)
}

/// Serves the chain with its last blocks in the tip.
pub(super) async fn served(folder: &Path) -> (TestServer, Vec<Value>) {
    let (mut blocks, known) = chain(folder);
    let tip = blocks.split_off(47);
    (TestServer::with(blocks, tip, |state| state.limits.max_body_bytes = 8 << 20).await, known)
}

#[tokio::test]
async fn every_conformance_case_is_answered_as_expected() {
    let Some(data) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let folder = data.join("execution_apis");
    let (server, _) = served(&folder).await;
    let mut cases = 0;
    for method in std::fs::read_dir(&folder).expect("the folder") {
        let method = method.expect("an entry");
        let name = method.file_name().to_string_lossy().into_owned();
        if !method.file_type().expect("a type").is_dir()
            || logmill_serve::rpc::methods::find(&name).is_none()
        {
            continue;
        }
        for file in std::fs::read_dir(method.path()).expect("cases") {
            let path = file.expect("a case").path();
            let text = std::fs::read_to_string(&path).expect("text");
            let line = |mark: &str| text.lines().find_map(|line| line.strip_prefix(mark));
            let (asked, expected) = (line(">> ").expect("asked"), line("<< ").expect("said"));
            let expected: Value = serde_json::from_str(expected).expect("JSON");
            let (status, answer) = server.post("/", asked).await;
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            assert_eq!((status, &answer), (200, &expected), "{}", path.display());
            cases += 1;
        }
    }
    assert!(cases >= 17, "{cases} cases");
}

#[tokio::test]
async fn every_receipt_of_the_chain_has_the_fields_of_a_node_that_executed_it() {
    let Some(data) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let (server, known) = served(&data.join("execution_apis")).await;
    let mut receipts = 0;
    for (block, known) in known.iter().enumerate() {
        let answer =
            server.call("eth_getBlockReceipts", serde_json::json!([format!("0x{block:x}")])).await;
        let expected = known["receipts"].as_array().expect("receipts");
        let answered = answer.as_array().expect("a list");
        assert_eq!(answered.len(), expected.len());
        for (ours, theirs) in answered.iter().zip(expected) {
            for (name, value) in theirs.as_object().expect("an object") {
                // The price of blob gas follows from chain rules that are not in the block.
                if name != "blobGasPrice" {
                    assert_eq!(&ours[name], value, "{name} in block {block}");
                }
            }
            receipts += 1;
        }
        if let Some(first) = expected.first() {
            let hash = serde_json::json!([first["transactionHash"]]);
            let receipt = server.call("eth_getTransactionReceipt", hash.clone()).await;
            assert_eq!(receipt["blockHash"], first["blockHash"]);
            let transaction = server.call("eth_getTransactionByHash", hash).await;
            assert_eq!(transaction["hash"], first["transactionHash"]);
            assert_eq!(transaction["from"], first["from"]);
            let address: Option<Address> = field(&transaction, "to");
            assert_eq!(address, field(first, "to"));
        }
    }
    assert!(receipts > 200, "{receipts} receipts");
    let full = server.call("eth_getBlockByNumber", serde_json::json!(["0x36", true])).await;
    assert_eq!(full["transactions"].as_array().map(Vec::len), Some(4));
    assert_eq!(full["hash"], known[54]["header"]["hash"]);
}
