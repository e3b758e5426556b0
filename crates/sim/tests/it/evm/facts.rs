//! Decoded fields of real blocks, compared with receipts that were obtained by executing them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Arc;

use futures::TryStreamExt;
use logmill_chain::era1::{Era1, Era1Settings};
use logmill_chain::{Address, B256, BlockSource, Bytes, U256, VerifyLevel};
use logmill_pipeline::derive::DecodedBlock;
use logmill_pipeline::derive::decoded::DecodedTransaction;
use logmill_sim::{skip, test_data};
use serde_json::Value;

use super::RecordedNode;
use super::recorded::source;

/// The chain of the execution API's tests.
const CHAIN: u64 = 0xc_72dd_9d5e_883e;

/// A JSON value; `None` if it is null or missing.
fn told<T: FromStr<Err: Debug>>(value: &Value) -> Option<T> {
    value.as_str().map(|text| text.parse().expect("it can be read"))
}

fn number(value: &Value) -> Option<u128> {
    value
        .as_str()
        .map(|text| u128::from_str_radix(text.trim_start_matches("0x"), 16).expect("a quantity"))
}

fn check_receipt(decoded: &DecodedTransaction, receipt: &Value) {
    let at = decoded.hash;
    assert_eq!(Some(decoded.hash), told::<B256>(&receipt["transactionHash"]));
    assert_eq!(Some(decoded.index as u128), number(&receipt["transactionIndex"]), "{at}");
    assert_eq!(Some(u128::from(decoded.tx_type)), number(&receipt["type"]), "{at}");
    assert_eq!(decoded.from, told(&receipt["from"]), "{at}");
    assert_eq!(decoded.to, told(&receipt["to"]), "{at}");
    assert_eq!(decoded.gas_used.map(u128::from), number(&receipt["gasUsed"]), "{at}");
    assert_eq!(decoded.effective_gas_price, number(&receipt["effectiveGasPrice"]), "{at}");
    assert_eq!(decoded.success, number(&receipt["status"]).map(|status| status == 1), "{at}");
    let created: Option<Address> = told(&receipt["contractAddress"]);
    assert_eq!(decoded.created, created.filter(|_| decoded.success != Some(false)), "{at}");
    assert_eq!(decoded.blob_gas_used.map(u128::from), number(&receipt["blobGasUsed"]), "{at}");
    let logs = receipt["logs"].as_array().expect("logs");
    assert_eq!(decoded.log_count, logs.len(), "{at}");
    if let Some(first) = logs.first() {
        assert_eq!(Some(decoded.first_log as u128), number(&first["logIndex"]), "{at}");
    }
}

fn check_transaction(decoded: &DecodedTransaction, transaction: &Value) {
    assert_eq!(decoded.nonce.map(u128::from), number(&transaction["nonce"]));
    assert_eq!(Some(decoded.value), told::<U256>(&transaction["value"]));
    assert_eq!(Some(&decoded.input), told::<Bytes>(&transaction["input"]).as_ref());
    assert_eq!(decoded.gas_limit.map(u128::from), number(&transaction["gas"]));
    let delegations = transaction["authorizationList"].as_array().map_or(0, Vec::len);
    assert_eq!(decoded.authorities.len(), delegations);
    assert!(decoded.is_signed);
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_every_recorded_block_are_those_of_its_receipts() {
    let Some(node) = RecordedNode::read() else {
        return skip("no recorded chain data");
    };
    let node = Arc::new(node);
    let blocks = source(&node, VerifyLevel::Full).blocks(1..55).await.expect("blocks");
    assert_eq!(blocks.len(), 54);
    let (mut types, mut created, mut failed) = (BTreeSet::new(), 0, 0);
    for block in blocks {
        let at = block.at.number;
        let decoded = DecodedBlock::new(CHAIN, Arc::new(block)).expect("it is read");
        let (receipts, json) = (&node.receipts[&at], &node.blocks[&at]);
        assert_eq!(receipts.as_array().map(Vec::len), Some(decoded.transactions.len()));
        for (index, transaction) in decoded.transactions.iter().enumerate() {
            let receipt = &receipts[index];
            check_receipt(transaction, receipt);
            check_transaction(transaction, &json["transactions"][index]);
            if transaction.blob_gas_used.is_some() {
                assert_eq!(decoded.header.blob_gas_price, number(&receipt["blobGasPrice"]));
            }
            types.insert(transaction.tx_type);
            created += usize::from(transaction.created.is_some());
            failed += usize::from(transaction.success == Some(false));
        }
        assert_eq!(decoded.header.miner, told(&json["miner"]));
        assert_eq!(decoded.header.gas_used.map(u128::from), number(&json["gasUsed"]));
        let base_fee = decoded.header.base_fee_per_gas.map(u128::from);
        assert_eq!(base_fee, number(&json["baseFeePerGas"]));
        let withdrawals = json["withdrawals"].as_array().map_or(0, Vec::len);
        assert_eq!(decoded.withdrawals.len(), withdrawals);
    }
    assert_eq!(types.into_iter().collect::<Vec<u8>>(), [0, 1, 2, 3, 4]);
    assert!(created > 20 && failed > 0, "{created} {failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gas_of_published_transactions_adds_up_to_their_blocks() {
    let Some(data) = test_data() else {
        return skip("no recorded chain data");
    };
    let settings = Era1Settings {
        network: Some("sepolia".to_owned()),
        ..Era1Settings::new(data.join("era1"), 11_155_111)
    };
    let era1 = Era1::open_folder(settings).await.expect("the files are listed");
    let range = era1.ranges()[0].clone();
    let blocks: Vec<_> = era1.blocks(range).try_collect().await.expect("all verify");
    let mut transactions = 0;
    for block in blocks {
        let decoded = DecodedBlock::new(11_155_111, Arc::new(block)).expect("it is read");
        let gas: Option<u64> = decoded.transactions.iter().map(|sent| sent.gas_used).sum();
        assert_eq!(decoded.header.gas_used, gas);
        assert!(decoded.transactions.iter().all(|sent| sent.is_signed));
        transactions += decoded.transactions.len();
    }
    assert_eq!(transactions, 93);
}
