//! Gas prices: of stored blocks, the prediction for the next, and the node that is asked where neither is known.

use std::sync::Arc;

use alloy_consensus::{Header as EvmHeader, SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Signature, TxKind, U256};
use logmill_chain::{
    Block, BlockRef, Error, Header, NodeSource, Outcome, Receipt, Transaction, VerifyLevel,
};
use serde_json::{Value, json};

use super::conformance;
use super::node::FakeNode;
use super::test_server::{CHAIN_ID, TestServer, small};

/// A block with one transaction for each pair of tip and gas used.
fn block(
    parent: Option<&Block>,
    change: impl FnOnce(&mut EvmHeader),
    paid: &[(u128, u64)],
) -> Block {
    let number = parent.map_or(0, |parent| parent.at.number + 1);
    let parent_hash = parent.map(|parent| parent.at.hash).unwrap_or_default();
    let mut header = EvmHeader {
        number,
        parent_hash,
        timestamp: 1_000 + number,
        gas_limit: 20_000_000,
        gas_used: paid.iter().map(|(_, gas)| gas).sum(),
        base_fee_per_gas: Some(1_000_000_000),
        ..EvmHeader::default()
    };
    change(&mut header);
    let base_fee = u128::from(header.base_fee_per_gas.unwrap_or(0));
    let (mut transactions, mut receipts, mut gas) = (Vec::new(), Vec::new(), 0);
    for (nonce, (tip, used)) in paid.iter().enumerate() {
        let tx = TxEip1559 {
            nonce: number * 1_000 + u64::try_from(nonce).expect("few"),
            max_fee_per_gas: base_fee + tip,
            max_priority_fee_per_gas: *tip,
            to: TxKind::Create,
            ..TxEip1559::default()
        };
        let signed = tx.into_signed(Signature::new(U256::ONE, U256::from(6), false));
        transactions.push(Transaction::canonical(TxEnvelope::from(signed).encoded_2718().into()));
        gas += used;
        let outcome = Outcome::Status(true);
        let cumulative_gas_used = gas;
        receipts.push(Receipt {
            tx_type: 2,
            outcome,
            cumulative_gas_used,
            logs: Vec::new(),
            extra: None,
        });
    }
    Block {
        at: BlockRef { number, hash: header.hash_slow(), parent_hash, timestamp: header.timestamp },
        header: Header::Canonical(alloy_rlp::encode(&header).into()),
        uncles: Vec::new(),
        withdrawals: None,
        size: 500,
        transactions,
        receipts,
        verified: VerifyLevel::Off,
        node_fields: logmill_chain::KeptFields::default(),
    }
}

/// Blocks whose base fees follow from each other, with the given gas used.
fn chain(gas: &[u64]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fee = 1_000_000_000;
    for used in gas {
        let parent = blocks.last();
        blocks.push(block(parent, |header| header.base_fee_per_gas = Some(fee), &[(3, *used)]));
        fee = logmill_chain::fee_market::next_base_fee(fee, *used, 20_000_000).expect("a fee");
    }
    blocks
}

#[tokio::test]
async fn a_fee_history_covers_its_blocks_and_the_next_one() {
    let mut all = chain(&[0, 20_000_000, 10_000_000]);
    let fee = 984_375_000_u64;
    let paid = [(9, 1_000_000), (1, 6_000_000), (5, 3_000_000)];
    let parent = all.last().cloned();
    all.push(block(parent.as_ref(), |header| header.base_fee_per_gas = Some(fee), &paid));
    let tip = all.split_off(2);
    let server = TestServer::of(all, tip).await;
    let params = json!(["0x2", "latest", [0, 60, 61, 90.5, 100]]);
    assert_eq!(
        server.call("eth_feeHistory", params).await,
        json!({
            "oldestBlock": "0x2",
            "reward": [["0x3", "0x3", "0x3", "0x3", "0x3"], ["0x1", "0x1", "0x5", "0x9", "0x9"]],
            // The block used exactly its target.
            "baseFeePerGas": ["0x3aac5ed8", "0x3aac5ed8", "0x3aac5ed8"],
            "gasUsedRatio": [0.5, 0.5],
            "baseFeePerBlobGas": ["0x0", "0x0", "0x0"],
            "blobGasUsedRatio": [0, 0],
        })
    );
    let (code, message, _) = server.refused("eth_feeHistory", json!([1, "0x4"])).await;
    assert_eq!((code, &*message), (-32_000, "request beyond head block: requested 4, head 3"));
    let all = server.call("eth_feeHistory", json!(["5000", "0x2"])).await;
    assert_eq!((&all["oldestBlock"], all.get("reward")), (&json!("0x0"), None));
    assert_eq!(all["gasUsedRatio"], json!([0, 1, 0.5]));
    assert_eq!(all["baseFeePerGas"].as_array().map(Vec::len), Some(4));
    let none = json!({"oldestBlock": "0x0", "gasUsedRatio": null});
    for params in [json!(["0x0", "latest"]), json!([1, "pending"])] {
        assert_eq!(server.call("eth_feeHistory", params).await, none);
    }
    let below = server.call("eth_feeHistory", json!([2, "pending"])).await;
    assert_eq!(below["oldestBlock"], "0x3");
    let many = json!([1, "latest", vec![1; 101]]);
    assert_eq!(server.refused("eth_feeHistory", many).await.0, -32_000);
    assert_eq!(server.call("eth_baseFee", json!([])).await, "0x3aac5ed8");
    assert_eq!(server.call("eth_blobBaseFee", json!([])).await, Value::Null);
}

#[tokio::test]
async fn blocks_before_the_base_fee_have_none() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    assert_eq!(server.call("eth_baseFee", json!([])).await, Value::Null);
    let history = server.call("eth_feeHistory", json!([2, "0x5", [50]])).await;
    assert_eq!(history["baseFeePerGas"], json!(["0x0", "0x0", "0x0"]));
    assert_eq!(history["reward"], json!([["0x3"], ["0x3"]]), "the whole price");
}

#[tokio::test]
async fn every_base_fee_of_a_recorded_chain_is_predicted_before_its_block() {
    let Some(data) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let (mut blocks, _) = conformance::chain(&data.join("execution_apis"));
    let fees: Vec<Option<u64>> = blocks
        .iter()
        .map(|block| block.header.facts().expect("a header").base_fee_per_gas)
        .collect();
    let tip = blocks.split_off(30);
    let server = TestServer::of(blocks, tip[..1].to_vec()).await;
    for known in 1..tip.len() {
        server.stage(tip[..known].to_vec()).await;
        let next = server.call("eth_baseFee", json!([])).await;
        let expected = fees[30 + known].expect("a fee");
        assert_eq!(next, format!("{expected:#x}"), "block {}", 30 + known);
    }
    let history = server.call("eth_feeHistory", json!([200, "latest", [10, 90]])).await;
    let said = history["baseFeePerGas"].as_array().expect("fees");
    for (said, fee) in said.iter().zip(&fees) {
        assert_eq!(*said, format!("{:#x}", fee.unwrap_or(0)));
    }
    assert_eq!(history["reward"].as_array().map(Vec::len), Some(54));
}

/// A node that knows the rules of its chain.
fn node() -> Arc<FakeNode> {
    FakeNode::new(|method, params| match method {
        "eth_baseFee" | "eth_blobBaseFee" => Ok(Some("\"0x7\"".to_owned())),
        "eth_feeHistory" => Ok(Some(format!("{{\"asked\":{params}}}"))),
        _ => Err(Error::NotYet { number: 0 }),
    })
}

async fn server(blocks: Vec<Block>, node: Option<Arc<FakeNode>>) -> TestServer {
    TestServer::with(blocks, Vec::new(), |state| {
        state.rpc.forward = super::test_server::forward(node.is_some());
        let source = node.map(|node| node as Arc<dyn NodeSource>);
        state.chains.get_mut(&CHAIN_ID).expect("it").source = source;
    })
    .await
}

#[tokio::test]
async fn for_chains_with_other_rules_a_node_is_asked_and_nothing_is_guessed() {
    // Base fees that follow no rule, base fees that never change, and a chain too short to tell.
    let mut jumping: Vec<Block> = Vec::new();
    let mut constant: Vec<Block> = Vec::new();
    for number in 0..5_u64 {
        let fee = 1_000 + 7 * (number % 2);
        jumping.push(block(jumping.last(), |header| header.base_fee_per_gas = Some(fee), &[]));
        constant.push(block(constant.last(), |header| header.base_fee_per_gas = Some(0), &[]));
    }
    for blocks in [jumping.clone(), constant, jumping[..1].to_vec()] {
        let newest = format!("{:#x}", blocks.len() - 1);
        let alone = server(blocks.clone(), None).await;
        for (method, params) in [("eth_baseFee", json!([])), ("eth_feeHistory", json!([1, newest]))]
        {
            let (code, message, _) = alone.refused(method, params).await;
            assert!(code == -32_002 && message.contains("is unknown"), "{message}");
        }
        let node = node();
        let asking = server(blocks, Some(Arc::clone(&node))).await;
        assert_eq!(asking.call("eth_baseFee", json!([])).await, "0x7");
        let params = json!([1, newest]);
        let history = asking.call("eth_feeHistory", params.clone()).await;
        assert_eq!(history, json!({"asked": params}));
        assert_eq!(node.requests(), 2);
    }
    // The history of stored blocks needs no node if the block after them is stored too.
    let alone = server(jumping, None).await;
    let history = alone.call("eth_feeHistory", json!([2, "0x3"])).await;
    assert_eq!(history["baseFeePerGas"], json!(["0x3e8", "0x3ef", "0x3e8"]));
}

#[tokio::test]
async fn the_price_of_blob_gas_is_returned_where_it_is_known() {
    let blobs = |excess: u64, used: u64| {
        let mut all = chain(&[0, 0]);
        let fee = logmill_chain::fee_market::next_base_fee(875_000_000, 0, 20_000_000);
        let last = all.last().cloned();
        all.push(block(
            last.as_ref(),
            |header| {
                header.base_fee_per_gas = fee;
                header.excess_blob_gas = Some(excess);
                header.blob_gas_used = Some(used);
                header.parent_beacon_block_root = Some(B256::ZERO);
                header.withdrawals_root = Some(B256::ZERO);
            },
            &[],
        ));
        all
    };
    let plain = server(blobs(0, 0), None).await;
    assert_eq!(plain.call("eth_blobBaseFee", json!([])).await, "0x1");
    let history = plain.call("eth_feeHistory", json!([2, "latest"])).await;
    assert_eq!(history["baseFeePerBlobGas"], json!(["0x0", "0x1", "0x1"]));
    assert_eq!(history["blobGasUsedRatio"], json!([0, 0]));
    // The price of an excess depends on the chain's rules.
    let unknown = server(blobs(1 << 20, 1 << 17), None).await;
    assert_eq!(unknown.refused("eth_blobBaseFee", json!([])).await.0, -32_002);
    let history = unknown.call("eth_feeHistory", json!([1, "latest"])).await;
    assert!(history.get("baseFeePerBlobGas").is_none() && history["gasUsedRatio"] == json!([0]));
    let asking = server(blobs(1 << 20, 1 << 17), Some(node())).await;
    assert_eq!(asking.call("eth_blobBaseFee", json!([])).await, "0x7");
    // A node's receipt reports the price.
    let mut told = blobs(1 << 20, 1 << 17);
    let paid = block(None, |_| {}, &[(1, 21_000)]);
    told[2].transactions = paid.transactions;
    told[2].receipts = paid.receipts;
    told[2].receipts[0].extra =
        Some(json!({"blobGasPrice": "0x2a"}).to_string().into_bytes().into());
    assert_eq!(server(told, None).await.call("eth_blobBaseFee", json!([])).await, "0x2a");
}
