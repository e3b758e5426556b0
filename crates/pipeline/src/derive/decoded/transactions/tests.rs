//! Compares facts of simulated blocks with a node's answers for the same chain, which independent code produces.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U64, U128, U256};
use logmill_chain::sim::{Fork, Shape, SimChain, rpc};
use logmill_chain::{Header, TransactionForm};
use serde_json::{Value, json};

use super::super::DecodedBlock;
use super::*;

fn ask(chain: &SimChain, method: &str, number: u64) -> Value {
    let params = match method {
        "eth_getBlockByNumber" => json!([format!("{number:#x}"), true]),
        _ => json!([format!("{number:#x}")]),
    };
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let answer: Value = serde_json::from_str(&rpc::answer(chain, &request.to_string()))
        .expect("nodes answer in JSON");
    answer["result"].clone()
}

fn from_json<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn number(value: &Value) -> Option<u64> {
    from_json::<Option<U64>>(value).map(|number| number.to())
}

fn check(decoded: &DecodedTransaction, transaction: &Value, receipt: &Value) {
    assert_eq!(decoded.hash, from_json::<B256>(&receipt["transactionHash"]));
    assert_eq!(Some(decoded.index as u64), number(&receipt["transactionIndex"]));
    assert_eq!(Some(u64::from(decoded.tx_type)), number(&receipt["type"]));
    assert_eq!(decoded.from, from_json(&receipt["from"]));
    assert_eq!(decoded.to, from_json(&receipt["to"]));
    assert_eq!(decoded.gas_used, number(&receipt["gasUsed"]));
    assert_eq!(decoded.success, number(&receipt["status"]).map(|status| status == 1));
    let price: U128 = from_json(&receipt["effectiveGasPrice"]);
    assert_eq!(decoded.effective_gas_price, Some(price.to()));
    assert_eq!(decoded.blob_gas_used, number(&receipt["blobGasUsed"]));
    let created: Option<Address> = from_json(&receipt["contractAddress"]);
    assert_eq!(decoded.created, created.filter(|_| decoded.success != Some(false)));
    assert_eq!(decoded.nonce, number(&transaction["nonce"]));
    assert_eq!(decoded.value, from_json::<U256>(&transaction["value"]));
    assert_eq!(decoded.input, from_json::<Bytes>(&transaction["input"]));
    assert_eq!(decoded.gas_limit, number(&transaction["gas"]));
    let logs = receipt["logs"].as_array().expect("logs");
    assert_eq!(decoded.log_count, logs.len());
    if let Some(first) = logs.first() {
        assert_eq!(Some(decoded.first_log as u64), number(&first["logIndex"]));
    }
}

fn grown(fork: Fork) -> SimChain {
    let chain = SimChain::new(3, Shape { transactions: 12, ..Shape::sparse() }.at(fork));
    chain.grow(40);
    chain
}

fn decoded(chain: &SimChain, number: u64) -> DecodedBlock {
    let block = chain.block(number).expect("a block");
    DecodedBlock::new(chain.settings().chain_id, block).expect("it is read")
}

#[test]
fn facts_equal_the_answers_of_a_node() {
    for fork in [Fork::Homestead, Fork::London, Fork::Prague] {
        let chain = grown(fork);
        let (mut created, mut failed, mut delegated) = (0, 0, 0);
        for at in 1..=40 {
            let (block, receipts) =
                (ask(&chain, "eth_getBlockByNumber", at), ask(&chain, "eth_getBlockReceipts", at));
            let read = decoded(&chain, at);
            assert_eq!(read.header.miner, from_json(&block["miner"]));
            assert_eq!(read.header.base_fee_per_gas, number(&block["baseFeePerGas"]));
            assert_eq!(read.header.gas_used, number(&block["gasUsed"]));
            assert_eq!(read.header.gas_limit, number(&block["gasLimit"]));
            let count = receipts.as_array().map(Vec::len);
            assert_eq!(count, Some(read.transactions.len()));
            for (index, transaction) in read.transactions.iter().enumerate() {
                check(transaction, &block["transactions"][index], &receipts[index]);
                assert!(transaction.is_signed);
                created += usize::from(transaction.created.is_some());
                failed += usize::from(transaction.success == Some(false));
                delegated += transaction.authorities.len();
            }
            check_withdrawals(&read, &block["withdrawals"]);
        }
        assert!(created > 0, "{fork:?}");
        assert_eq!((failed > 0, delegated > 0), (fork >= Fork::London, fork == Fork::Prague));
    }
}

fn check_withdrawals(read: &DecodedBlock, reported: &Value) {
    let expected: Vec<Withdrawal> = reported
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| Withdrawal {
            index: number(&one["index"]).expect("an index"),
            validator_index: number(&one["validatorIndex"]).expect("a validator"),
            address: from_json(&one["address"]),
            amount_gwei: number(&one["amount"]).expect("an amount"),
        })
        .collect();
    assert_eq!(read.withdrawals, expected);
}

#[test]
fn authorities_are_the_signers_of_delegations() {
    let chain = grown(Fork::Prague);
    let accounts: Vec<Address> = (0..16).map(|rank| chain.actors().account(rank)).collect();
    let read: Vec<DecodedBlock> = (1..=40).map(|at| decoded(&chain, at)).collect();
    for transaction in read.iter().flat_map(|block| &block.transactions) {
        assert_eq!(transaction.authorities.len(), usize::from(transaction.tx_type == 4));
        assert!(transaction.authorities.iter().all(|signer| accounts.contains(signer)));
        assert!(transaction.from.is_some_and(|from| accounts.contains(&from)));
    }
    // A delegation for another chain does not count.
    let elsewhere = (1..=40).map(|at| chain.block(at).expect("a block"));
    for block in elsewhere {
        let read = DecodedBlock::new(5, block).expect("it is read");
        assert!(read.transactions.iter().all(|transaction| transaction.authorities.is_empty()));
    }
}

#[test]
fn foreign_parts_yield_the_facts_of_canonical_ones() {
    let chain = grown(Fork::Prague);
    for at in 1..=40 {
        let canonical = decoded(&chain, at);
        let json = ask(&chain, "eth_getBlockByNumber", at);
        let mut block = (*canonical.block).clone();
        let text = |value: &Value| Bytes::from(value.to_string().into_bytes());
        block.header = Header::Foreign(text(&json));
        for (index, transaction) in block.transactions.iter_mut().enumerate() {
            transaction.form = TransactionForm::Foreign(text(&json["transactions"][index]));
        }
        let chain_id = chain.settings().chain_id;
        let mut foreign = DecodedBlock::new(chain_id, Arc::new(block)).expect("it is read");
        assert_eq!(foreign.header, canonical.header);
        for transaction in &mut foreign.transactions {
            assert!(!transaction.is_signed, "a node may say anything");
            transaction.is_signed = true;
        }
        assert_eq!(foreign.transactions, canonical.transactions);
        assert_eq!(foreign.withdrawals, canonical.withdrawals);
    }
}

#[test]
fn a_block_of_logs_alone_has_neither_success_nor_gas() {
    let chain = grown(Fork::Prague);
    let mut block = (*chain.block(7).expect("a block")).clone();
    for receipt in &mut block.receipts {
        (receipt.outcome, receipt.cumulative_gas_used) = (Outcome::Unknown, 0);
    }
    let read = DecodedBlock::new(1_337, Arc::new(block)).expect("it is read");
    let known = decoded(&chain, 7);
    assert!(!read.transactions.is_empty());
    for (transaction, known) in read.transactions.iter().zip(known.transactions) {
        assert_eq!((transaction.success, transaction.gas_used), (None, None));
        assert_eq!((transaction.from, transaction.first_log), (known.from, known.first_log));
        assert_eq!(transaction.effective_gas_price, known.effective_gas_price);
    }
}

#[test]
fn the_blob_gas_price_is_the_nodes_or_follows_from_the_rules() {
    let mut block = (*grown(Fork::Prague).block(7).expect("a block")).clone();
    let price = |chain_id, block: &Block| {
        DecodedBlock::new(chain_id, Arc::new(block.clone())).expect("read").header.blob_gas_price
    };
    assert_eq!(price(1_337, &block), None);
    block.at.timestamp = 1_720_000_000;
    assert_eq!(price(1, &block), Some(1));
    let extra = br#"{"blobGasPrice":"0x5","l1Fee":"0x6"}"#;
    block.receipts[1].extra = Some(Bytes::from_static(extra));
    assert_eq!((price(1, &block), price(1_337, &block)), (Some(5), Some(5)));
    let read = DecodedBlock::new(1, Arc::new(block)).expect("read");
    assert_eq!(read.transactions[0].l1_fee, None);
    assert_eq!(read.transactions[1].l1_fee, Some(U256::from(6)));
}

#[test]
fn a_block_not_in_its_stored_form_is_an_error() {
    let whole = (*grown(Fork::Prague).block(7).expect("a block")).clone();
    let check = |spoil: &dyn Fn(&mut Block)| {
        let mut block = whole.clone();
        spoil(&mut block);
        let error = DecodedBlock::new(1, Arc::new(block)).expect_err("refused");
        assert_eq!(error.kind(), logmill_io::ErrorKind::Corrupt, "{error}");
    };
    check(&|block| drop(block.receipts.pop()));
    check(&|block| drop(block.transactions.pop()));
    check(&|block| block.header = Header::Canonical(Bytes::from_static(&[1])));
    check(&|block| block.header = Header::Foreign(Bytes::from_static(b"[]")));
    check(&|block| block.withdrawals = Some(Bytes::from_static(&[0xc3, 1])));
    check(&|block| block.receipts[0].extra = Some(Bytes::from_static(b"{")));
    check(&|block| {
        block.transactions[0].form = TransactionForm::Canonical(Bytes::from_static(&[2, 0xc0]));
    });
    check(&|block| {
        block.transactions[0].form = TransactionForm::Foreign(Bytes::from_static(b"0"));
    });
}
