//! Uncles: a block stores their hashes, a node has their headers, and only the header with the stored hash is served.

use std::sync::Arc;

use alloy_consensus::Header as EvmHeader;
use alloy_primitives::{B256, keccak256};
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings};
use logmill_chain::{Block, BlockRef, BlockSource, Header, NodeSource, VerifyLevel};
use logmill_io::wire::{Endpoint, HttpClient};
use logmill_io::{OsEntropy, SystemClock};
use logmill_serve::http::ServerParts;
use serde_json::{Value, json};

use super::node::FakeNode;
use super::test_server::{CHAIN_ID, TestServer};

/// A block without transactions that passes verification.
fn block(number: u64, parent_hash: B256, uncles: &[EvmHeader]) -> Block {
    let ommers_hash = keccak256(alloy_rlp::encode(uncles.to_vec()));
    let header = EvmHeader {
        number,
        parent_hash,
        ommers_hash,
        timestamp: 1_000 + number,
        ..EvmHeader::default()
    };
    let (hash, timestamp) = (header.hash_slow(), header.timestamp);
    let header = alloy_rlp::encode(&header);
    let body: usize = uncles.iter().map(alloy_rlp::Encodable::length).sum();
    Block {
        at: BlockRef { number, hash, parent_hash, timestamp },
        size: logmill_chain::body::size(header.len(), body + 2),
        header: Header::Canonical(header.into()),
        uncles: uncles.iter().map(EvmHeader::hash_slow).collect(),
        withdrawals: None,
        transactions: Vec::new(),
        receipts: Vec::new(),
        verified: VerifyLevel::Off,
        node_fields: logmill_chain::KeptFields::default(),
    }
}

fn uncle() -> EvmHeader {
    EvmHeader { number: 1, gas_limit: 7, ..EvmHeader::default() }
}

fn chain() -> Vec<Block> {
    let mut blocks = vec![block(0, B256::ZERO, &[])];
    for number in 1..4 {
        let uncles = if number == 2 { vec![uncle()] } else { Vec::new() };
        blocks.push(block(number, blocks[blocks.len() - 1].at.hash, &uncles));
    }
    blocks
}

/// A node that returns the same header for every uncle.
fn node_with(header: &EvmHeader) -> Arc<FakeNode> {
    let mut fields = serde_json::to_value(header).expect("JSON");
    fields["hash"] = json!(header.hash_slow());
    let text = fields.to_string();
    FakeNode::new(move |method, _| {
        assert_eq!(method, "eth_getUncleByBlockHashAndIndex");
        Ok(Some(text.clone()))
    })
}

async fn server(node: Option<Arc<FakeNode>>) -> TestServer {
    server_with(node, |_| {}).await
}

async fn server_with(
    node: Option<Arc<FakeNode>>,
    change: impl FnOnce(&mut ServerParts),
) -> TestServer {
    let mut blocks = chain();
    let tip = blocks.split_off(3);
    TestServer::with(blocks, tip, |state| {
        let source = node.map(|node| node as Arc<dyn NodeSource>);
        state.chains.get_mut(&CHAIN_ID).expect("it").source = source;
        change(state);
    })
    .await
}

#[tokio::test]
async fn an_uncle_is_the_header_whose_hash_its_block_has() {
    let server = server(Some(node_with(&uncle()))).await;
    let hash = chain()[2].at.hash;
    let by_hash = server.call("eth_getUncleByBlockHashAndIndex", json!([hash, "0x0"])).await;
    let by_number = server.call("eth_getUncleByBlockNumberAndIndex", json!(["0x2", "0x0"])).await;
    assert_eq!(by_hash, by_number);
    assert_eq!(by_hash["hash"], json!(uncle().hash_slow()));
    assert_eq!((&by_hash["gasLimit"], &by_hash["uncles"]), (&json!("0x7"), &json!([])));
    assert!(by_hash.get("transactions").is_none());
    assert_eq!(server.call("eth_getUncleCountByBlockHash", json!([hash])).await, "0x1");
    assert_eq!(server.call("eth_getUncleCountByBlockNumber", json!(["0x1"])).await, "0x0");
    for (method, params) in [
        ("eth_getUncleByBlockHashAndIndex", json!([hash, "0x1"])),
        ("eth_getUncleByBlockNumberAndIndex", json!(["0x1", "0x0"])),
        ("eth_getUncleByBlockNumberAndIndex", json!(["0x2", "0xffffffffffffffff"])),
        ("eth_getUncleByBlockNumberAndIndex", json!(["0x9", "0x0"])),
        ("eth_getUncleByBlockHashAndIndex", json!([B256::repeat_byte(1), "0x0"])),
    ] {
        assert_eq!(server.call(method, params.clone()).await, Value::Null, "{method} {params}");
    }
    let raw = server.call("debug_getRawBlock", json!(["0x2"])).await;
    let raw: alloy_primitives::Bytes = serde_json::from_value(raw).expect("bytes");
    let whole: alloy_consensus::Block<alloy_consensus::TxEnvelope> =
        alloy_rlp::Decodable::decode(&mut &raw[..]).expect("a block");
    assert_eq!((whole.header.hash_slow(), whole.body.ommers), (hash, vec![uncle()]));
}

#[tokio::test]
async fn a_header_that_is_not_the_uncle_is_not_served() {
    let other = EvmHeader { gas_limit: 8, ..uncle() };
    let wrong = server(Some(node_with(&other))).await;
    let alone = server(None).await;
    for method in ["eth_getUncleByBlockNumberAndIndex", "debug_getRawBlock"] {
        let params = || match method {
            "debug_getRawBlock" => json!(["0x2"]),
            _ => json!(["0x2", "0x0"]),
        };
        assert_eq!(wrong.refused(method, params()).await.0, -32_002, "{method}");
        let (code, message, _) = alone.refused(method, params()).await;
        assert!(code == 4_444 && message.contains("only the hashes of the uncles"), "{message}");
    }
}

#[tokio::test]
async fn fetching_uncles_obeys_the_limits_of_the_pass_through() {
    let params = || json!(["0x2", "0x0"]);
    let method = "eth_getUncleByBlockNumberAndIndex";
    let hanging = FakeNode::new(|_, _| Ok(None));
    let slow = server_with(Some(Arc::clone(&hanging)), |state| {
        state.rpc.forward.timeout = std::time::Duration::from_millis(50);
        state.rpc.forward.max_calls = 1;
    })
    .await;
    let ask = || slow.refused(method, params());
    let (one, other) = tokio::join!(ask(), ask());
    for (code, message, _) in [one, other] {
        assert!(code == -32_002 && message.contains("in time"), "{message}");
    }
    let large =
        server_with(Some(node_with(&uncle())), |state| state.rpc.forward.max_answer_bytes = 100);
    let (code, message, _) = large.await.refused(method, params()).await;
    assert!(code == -32_005 && message.contains("100 bytes"), "{message}");
}

#[tokio::test]
async fn a_logmill_feeds_a_logmill_blocks_with_uncles() {
    // Without a node, only the hashes of uncles are available.
    for node in [Some(node_with(&uncle())), None] {
        let server = server(node).await;
        assert_feeds(&server).await;
    }
}

async fn assert_feeds(server: &TestServer) {
    let address = format!("http://{}", server.address);
    let node = NodeSettings::new(Endpoint::parse(&address).expect("an address"));
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let client = HttpClient::new(Arc::clone(&clock)).expect("a client");
    let settings = EvmSettings::new("test");
    let source = EvmSource::new(vec![node], settings, &client, clock, &entropy).expect("a source");
    let fetched = source.blocks(0..4).await.expect("all blocks");
    assert!(fetched.iter().all(|block| block.verified == VerifyLevel::Full));
    for (fetched, stored) in fetched.iter().zip(chain()) {
        assert_eq!((fetched.at, &fetched.header), (stored.at, &stored.header));
        assert_eq!(fetched.uncles, stored.uncles);
    }
}
