//! Blocks, headers, receipts and transactions as bytes: those of a recorded chain, and requests for parts that a block
//! lacks.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_consensus::proofs::calculate_receipt_root;
use alloy_consensus::{ReceiptEnvelope, TxEnvelope};
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Decodable;
use logmill_chain::Header;
use serde_json::{Value, json};

use super::conformance;
use super::node::FakeNode;
use super::test_server::{CHAIN_ID, TestServer, blocks, small};

async fn bytes(server: &TestServer, method: &str, params: Value) -> Bytes {
    serde_json::from_value(server.call(method, params).await).expect("bytes")
}

/// A node with the uncles of a chain given in RLP.
fn node_with_uncles(raw: &[u8]) -> Arc<FakeNode> {
    let (mut rest, mut uncles) = (raw, BTreeMap::new());
    while !rest.is_empty() {
        let block = alloy_consensus::Block::<TxEnvelope>::decode(&mut rest).expect("RLP");
        for (index, uncle) in block.body.ommers.iter().enumerate() {
            let asked = format!("[\"{}\",\"{index:#x}\"]", block.header.hash_slow());
            uncles.insert(asked, serde_json::to_string(uncle).expect("JSON"));
        }
    }
    FakeNode::new(move |_, params| Ok(uncles.get(params).cloned()))
}

#[tokio::test]
async fn the_bytes_of_a_recorded_chain_are_served_as_they_were() {
    let Some(data) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let folder = data.join("execution_apis");
    let raw = std::fs::read(folder.join("chain.rlp")).expect("the chain");
    let (mut blocks, _) = conformance::chain(&folder);
    let tip = blocks.split_off(47);
    let node = node_with_uncles(&raw);
    let server = TestServer::with(blocks, tip, |state| {
        state.chains.get_mut(&CHAIN_ID).expect("it").source = Some(node.clone());
    })
    .await;
    let mut rest = &raw[..];
    let (mut number, mut transactions) = (0, 0);
    while !rest.is_empty() {
        number += 1;
        let before = rest;
        let block = alloy_consensus::Block::<TxEnvelope>::decode(&mut rest).expect("RLP");
        let expected = &before[..before.len() - rest.len()];
        let at = format!("{number:#x}");
        let hash = block.header.hash_slow();
        assert_eq!(&bytes(&server, "debug_getRawBlock", json!([at])).await[..], expected);
        assert_eq!(&bytes(&server, "debug_getRawBlock", json!([hash])).await[..], expected);
        let header = bytes(&server, "debug_getRawHeader", json!([at])).await;
        assert_eq!(keccak256(&header), hash);
        let receipts = server.call("debug_getRawReceipts", json!([at])).await;
        let receipts: Vec<Bytes> = serde_json::from_value(receipts).expect("bytes");
        let receipts = receipts.iter().map(|raw| ReceiptEnvelope::decode_2718_exact(raw));
        let receipts: Vec<ReceiptEnvelope> = receipts.collect::<Result<_, _>>().expect("receipts");
        assert_eq!(calculate_receipt_root(&receipts), block.header.receipts_root, "{number}");
        for (index, transaction) in block.body.transactions.iter().enumerate() {
            let expected = transaction.encoded_2718();
            let position = format!("{index:#x}");
            for (method, params) in [
                ("eth_getRawTransactionByHash", json!([transaction.tx_hash()])),
                ("debug_getRawTransaction", json!([transaction.tx_hash()])),
                ("eth_getRawTransactionByBlockHashAndIndex", json!([hash, position])),
                ("eth_getRawTransactionByBlockNumberAndIndex", json!([at, position])),
            ] {
                assert_eq!(&bytes(&server, method, params).await[..], &expected[..], "{method}");
            }
            transactions += 1;
        }
    }
    assert!(number == 54 && transactions > 200, "{number} blocks, {transactions} transactions");
    assert!(node.requests() > 0, "some blocks have uncles");
}

#[tokio::test]
async fn what_does_not_exist_is_null_and_blocks_stored_as_json_have_no_bytes() {
    let (mut last, tip) = small();
    last[3].header = Header::Foreign(json!({"number": "0x3"}).to_string().into_bytes().into());
    let server = TestServer::of(last, tip).await;
    let unknown = json!([B256::repeat_byte(7)]);
    for (method, params) in [
        ("debug_getRawBlock", json!(["0xff"])),
        ("debug_getRawHeader", unknown.clone()),
        ("debug_getRawReceipts", json!(["0xff"])),
        ("debug_getRawTransaction", unknown.clone()),
        ("eth_getRawTransactionByHash", unknown.clone()),
        ("eth_getRawTransactionByBlockNumberAndIndex", json!(["0x1", "0x9"])),
        ("eth_getHeaderByNumber", json!(["0xff"])),
        ("eth_getHeaderByHash", unknown.clone()),
        ("eth_getBlockAccessList", unknown),
        ("eth_getBlockAccessList", json!(["pending"])),
    ] {
        assert_eq!(server.call(method, params.clone()).await, Value::Null, "{method} {params}");
    }
    for method in ["debug_getRawBlock", "debug_getRawHeader"] {
        let (code, message, _) = server.refused(method, json!(["0x3"])).await;
        assert!(code == 4_444 && message.contains("stored as JSON"), "{message}");
    }
    // The headers of these blocks commit to other receipts, so any bytes would be invented.
    for number in ["0x2", "0x3"] {
        let (code, message, _) = server.refused("debug_getRawReceipts", json!([number])).await;
        assert!(code == 4_444 && message.contains("receiptsRoot"), "{message}");
    }
}

#[tokio::test]
async fn a_header_is_its_block_without_transactions_and_uncles() {
    let (last, tip) = small();
    let hash = tip[1].at.hash;
    let server = TestServer::of(last, tip).await;
    let mut block = server.call("eth_getBlockByNumber", json!(["0xb", false])).await;
    let fields = block.as_object_mut().expect("an object");
    for name in ["transactions", "uncles", "withdrawals"] {
        fields.remove(name);
    }
    assert_eq!(server.call("eth_getHeaderByNumber", json!(["0xb"])).await, block);
    assert_eq!(server.call("eth_getHeaderByHash", json!([hash])).await, block);
}

#[tokio::test]
async fn an_access_list_is_missing_before_its_fork_and_not_stored_after_it() {
    let mut all = blocks(None, 3, 1, |_| Vec::new());
    let hash = B256::repeat_byte(9);
    let header = json!({"number": "0x2", "blockAccessListHash": hash});
    all[2].header = Header::Foreign(header.to_string().into_bytes().into());
    let server = TestServer::of(all, Vec::new()).await;
    let (code, message, _) = server.refused("eth_getBlockAccessList", json!(["0x1"])).await;
    assert!(code == -32_001 && message.starts_with("Resource not found"), "{message}");
    let (code, message, _) = server.refused("eth_getBlockAccessList", json!(["0x2"])).await;
    assert!(code == 4_444 && message.starts_with("Pruned history unavailable"), "{message}");
}
