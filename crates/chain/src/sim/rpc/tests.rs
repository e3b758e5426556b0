//! Tests of the answers of a simulated node.

use alloy_consensus::ReceiptEnvelope;
use alloy_eips::eip2718::Encodable2718;
use alloy_rpc_types_eth as rpc;

use super::*;
use crate::block::{BlockRef, Header, Transaction};
use crate::sender::Sender;
use crate::sim::{FEE_COLLECTOR, Lie, Shape, action};
use crate::verify::verify;
use crate::verify_level::VerifyLevel;

fn chain(blocks: u64) -> SimChain {
    let chain = SimChain::new(12, Shape::sparse());
    chain.grow(blocks);
    chain
}

fn ask(chain: &SimChain, method: &str, params: &Value) -> Value {
    asked(&SimNode::new(chain.clone()), method, params)
}

fn asked(node: &SimNode, method: &str, params: &Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
    let Reply::Json(answer) = node.answer(&request.to_string()) else { panic!("a status") };
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((&answer["id"], &answer["jsonrpc"]), (&json!(7), &json!("2.0")));
    answer.get("result").cloned().unwrap_or_else(|| answer["error"].clone())
}

/// Builds a block from a node's JSON alone, like a client that uses alloy.
fn from_json(node: &SimNode, number: u64) -> Block {
    let tag = format!("{number:#x}");
    let block = asked(node, "eth_getBlockByNumber", &json!([tag, true]));
    let block: rpc::Block = serde_json::from_value(block).expect("alloy reads it");
    let receipts = asked(node, "eth_getBlockReceipts", &json!([tag]));
    let receipts: Vec<rpc::TransactionReceipt> =
        serde_json::from_value(receipts).expect("alloy reads it");
    let transactions = block.transactions.as_transactions().expect("full");
    for transaction in transactions {
        let signer = Sender::of(transaction.inner.inner()).address().expect("signed");
        assert_eq!(signer, transaction.inner.signer());
    }
    Block {
        at: BlockRef {
            number: block.header.inner.number,
            hash: block.header.hash,
            parent_hash: block.header.inner.parent_hash,
            timestamp: block.header.inner.timestamp,
        },
        header: Header::Canonical(alloy_rlp::encode(&block.header.inner).into()),
        uncles: block.uncles.clone(),
        withdrawals: block.withdrawals.as_ref().map(|list| alloy_rlp::encode(&list.0).into()),
        size: block.header.size.expect("given").to(),
        transactions: transactions
            .iter()
            .map(|tx| Transaction::canonical(tx.inner.inner().encoded_2718().into()))
            .collect(),
        receipts: receipts.into_iter().map(|receipt| receipt_from(&receipt.inner)).collect(),
        verified: VerifyLevel::Off,
        node_fields: crate::KeptFields::default(),
    }
}

fn receipt_from(receipt: &ReceiptEnvelope<rpc::Log>) -> crate::Receipt {
    crate::Receipt {
        tx_type: u8::from(receipt.tx_type()),
        outcome: crate::Outcome::Status(receipt.status()),
        cumulative_gas_used: receipt.cumulative_gas_used(),
        logs: receipt
            .logs()
            .iter()
            .map(|log| crate::Log {
                address: log.address(),
                topics: log.topics().iter().copied().collect(),
                data: log.data().data.clone(),
            })
            .collect(),
        extra: None,
    }
}

#[test]
fn a_block_read_back_from_its_json_is_the_same_and_verifies() {
    let chain = chain(80);
    let node = SimNode::new(chain.clone());
    for number in 0..=80 {
        let mut block = from_json(&node, number);
        assert_eq!(block, *chain.block(number).expect("grown"), "{number}");
        verify(&mut block, VerifyLevel::Full).expect("true");
    }
}

#[test]
fn verification_detects_a_lie_told_in_json() {
    let node = SimNode::new(chain(30));
    for lie in [Lie::DropLog, Lie::AddLog, Lie::ChangeLog, Lie::SwapReceipts, Lie::DropTransaction]
    {
        node.set_faults(NodeFaults { lie: Some(lie), lie_every: 10, ..NodeFaults::default() });
        for number in [9u64, 10] {
            let checked = verify(&mut from_json(&node, number), VerifyLevel::Full);
            assert_eq!(checked.is_err(), number == 10, "{lie:?}");
        }
    }
}

#[test]
fn tags_and_the_simple_methods_answer() {
    let chain = chain(100);
    assert_eq!(ask(&chain, "eth_chainId", &json!([])), json!("0x539"));
    assert_eq!(ask(&chain, "net_version", &json!([])), json!("1337"));
    assert_eq!(ask(&chain, "eth_blockNumber", &json!([])), json!("0x64"));
    assert_eq!(ask(&chain, "web3_clientVersion", &json!([])), json!(CLIENT));
    for (tag, number) in
        [("latest", "0x64"), ("safe", "0x44"), ("finalized", "0x24"), ("earliest", "0x0")]
    {
        let block = ask(&chain, "eth_getBlockByNumber", &json!([tag, false]));
        assert_eq!(block["number"], json!(number));
        assert_eq!(ask(&chain, "eth_getBlockByHash", &json!([block["hash"], false])), block);
    }
    assert_eq!(ask(&chain, "eth_getBlockByNumber", &json!(["0x65", false])), Value::Null);
    assert_eq!(ask(&chain, "eth_getBlockByHash", &json!([B256::ZERO, false])), Value::Null);
    assert_eq!(ask(&chain, "eth_mine", &json!([]))["code"], json!(-32_601));
    let young = SimChain::new(1, Shape::sparse());
    let refused = ask(&young, "eth_getBlockByNumber", &json!(["finalized", false]));
    assert_eq!(refused["code"], json!(-39_001));
}

#[test]
fn receipts_and_transactions_are_found_by_hash() {
    let chain = chain(40);
    let block = (1..40).filter_map(|number| chain.block(number)).find(|b| b.transactions.len() > 2);
    let block = block.expect("a busy one");
    let hash = json!([block.transactions[1].hash]);
    let all = ask(&chain, "eth_getBlockReceipts", &json!([block.at.hash]));
    assert_eq!(ask(&chain, "eth_getTransactionReceipt", &hash), all[1]);
    let transaction = ask(&chain, "eth_getTransactionByHash", &hash);
    assert_eq!(transaction["transactionIndex"], json!("0x1"));
    assert_eq!(ask(&chain, "eth_getTransactionReceipt", &json!([B256::ZERO])), Value::Null);
}

#[test]
fn log_queries_equal_a_scan() {
    let chain = chain(60);
    let expected = |wanted: &dyn Fn(&crate::Log) -> bool| -> Vec<(u64, usize)> {
        let blocks = (0..=60).filter_map(|number| chain.block(number));
        let found = blocks.flat_map(|block| {
            let logs = block.logs().filter(|placed| wanted(placed.log));
            logs.map(|placed| (block.at.number, placed.log_index)).collect::<Vec<_>>()
        });
        found.collect()
    };
    let places = |filter: Value| -> Vec<(u64, usize)> {
        let logs = ask(&chain, "eth_getLogs", &json!([filter]));
        let logs: Vec<rpc::Log> = serde_json::from_value(logs).expect("logs");
        let place = |log: &rpc::Log| {
            let index = usize::try_from(log.log_index.expect("placed")).expect("small");
            (log.block_number.expect("placed"), index)
        };
        logs.iter().map(place).collect()
    };
    let all = |more: Value| {
        let mut filter = json!({ "fromBlock": "earliest", "toBlock": "latest" });
        let fields = more.as_object().cloned().unwrap_or_default();
        filter.as_object_mut().expect("an object").extend(fields);
        filter
    };
    assert_eq!(places(all(json!({}))), expected(&|_| true));
    let fees = places(all(json!({ "address": FEE_COLLECTOR, "topics": [action::FEES_COLLECTED] })));
    assert!(!fees.is_empty());
    assert_eq!(fees, expected(&|log| log.address == FEE_COLLECTOR));
    let topics = json!([[action::TRANSFER, action::APPROVAL], null, null, []]);
    let nfts = places(all(json!({ "topics": topics })));
    assert!(!nfts.is_empty());
    assert_eq!(nfts, expected(&|log| log.topics.len() == 4 && log.topics[0] == action::TRANSFER));
}

#[test]
fn invalid_filters_are_refused() {
    let chain = chain(10);
    let code = |filter: Value| ask(&chain, "eth_getLogs", &json!([filter]))["code"].clone();
    let zero = B256::ZERO;
    assert_eq!(code(json!({ "blockHash": zero, "fromBlock": "0x1" })), json!(-32_602));
    assert_eq!(code(json!({ "blockHash": zero })), json!(-32_000));
    assert_eq!(code(json!({ "fromBlock": "0x5", "toBlock": "0x4" })), json!(-32_602));
    assert_eq!(code(json!({ "fromBlock": "0x5", "toBlock": "0x40" })), json!(-32_602));
    assert_eq!(code(json!({ "topics": [zero, zero, zero, zero, zero] })), json!(-32_602));
    assert_eq!(code(json!({ "address": "0x12" })), json!(-32_602));
    assert_eq!(code(json!([])), json!(-32_602));
}

#[test]
fn batches_and_invalid_requests_have_answers() {
    let chain = chain(3);
    let parsed =
        |request: &str| -> Value { serde_json::from_str(&answer(&chain, request)).expect("JSON") };
    let batch =
        parsed(r#"[{"id":1,"method":"eth_blockNumber"},{"id":"x","method":"nothing"},{"id":3},4]"#);
    assert_eq!(batch[0]["result"], json!("0x3"));
    assert_eq!((&batch[1]["id"], &batch[1]["error"]["code"]), (&json!("x"), &json!(-32_601)));
    assert_eq!(batch[2]["error"]["code"], json!(-32_600));
    assert_eq!(batch[3]["error"]["code"], json!(-32_600));
    assert_eq!(parsed("[]")["error"]["code"], json!(-32_600));
    assert_eq!(parsed("{")["error"]["code"], json!(-32_700));
    assert_eq!(parsed(&"[".repeat(100_000))["error"]["code"], json!(-32_700));
}

#[test]
fn a_node_fails_by_its_script() {
    let node = SimNode::new(chain(20));
    let request = r#"{"id":1,"method":"eth_blockNumber"}"#;
    node.set_faults(NodeFaults {
        too_many_every: 2,
        fail_every: 3,
        cut_every: 5,
        behind: 4,
        ..NodeFaults::default()
    });
    let whole = Reply::Json(r#"{"id":1,"jsonrpc":"2.0","result":"0x10"}"#.to_owned());
    let replies: Vec<Reply> = (0..5).map(|_| node.answer(request)).collect();
    assert_eq!(replies[..4], [whole, Reply::Status(429), Reply::Status(503), Reply::Status(429)]);
    let Reply::Json(cut) = &replies[4] else { panic!("cut") };
    serde_json::from_str::<Value>(cut).expect_err("half of an answer");
    node.set_faults(NodeFaults { missing: [5].into(), floor: 3, ..NodeFaults::default() });
    assert_eq!(asked(&node, "eth_getBlockByNumber", &json!(["0x5", false])), Value::Null);
    let pruned = asked(&node, "eth_getBlockByNumber", &json!(["0x2", false]));
    assert_eq!(pruned["code"], json!(4_444));
}

#[test]
fn a_node_on_a_fork_shows_its_own_branch() {
    let chain = chain(20);
    let other = chain.fork();
    chain.grow(2);
    other.reorg(2, 4).expect("not final");
    let hash = |chain: &SimChain, tag| {
        ask(chain, "eth_getBlockByNumber", &json!([tag, false]))["hash"].clone()
    };
    assert_eq!(hash(&chain, "0x12"), hash(&other, "0x12"));
    assert_eq!(other.latest().number, chain.latest().number);
    assert_ne!(hash(&chain, "0x13"), hash(&other, "0x13"));
    assert_eq!(
        ask(&chain, "eth_getBlockByHash", &json!([hash(&other, "0x14"), false])),
        Value::Null
    );
}
