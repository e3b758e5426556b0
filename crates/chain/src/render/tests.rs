//! Tests rendering on synthetic blocks; the binary's tests replay real ones over HTTP.

use alloy_consensus::{SignableTransaction, TxEnvelope, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use serde_json::{Value, json};

use super::*;
use crate::block::{BlockRef, Log, Outcome, Receipt, Transaction, TransactionForm};
use crate::verify_level::VerifyLevel;

fn sample() -> Block {
    let sign = |nonce, to| {
        let tx = TxLegacy { nonce, gas_price: 7, to, ..TxLegacy::default() };
        let signed = tx.into_signed(Signature::new(U256::ONE, U256::from(6), false));
        Transaction::canonical(TxEnvelope::from(signed).encoded_2718().into())
    };
    let log = |byte| Log {
        address: Address::repeat_byte(byte),
        topics: [B256::repeat_byte(byte)].into_iter().collect(),
        data: Bytes::from(vec![byte; 3]),
    };
    let receipt = |gas, logs: Vec<Log>, extra: Option<&str>| Receipt {
        tx_type: 0,
        outcome: Outcome::Status(true),
        cumulative_gas_used: gas,
        logs,
        extra: extra.map(|text| Bytes::from(text.as_bytes().to_vec())),
    };
    let foreign = json!({
        "hash": B256::repeat_byte(3), "from": Address::repeat_byte(3), "to": Address::repeat_byte(4),
        "nonce": "0x1", "gasPrice": "0x9", "type": "0x7e", "sourceHash": B256::ZERO,
    });
    let header = EvmHeader { number: 5, base_fee_per_gas: Some(2), ..EvmHeader::default() };
    let at = BlockRef {
        number: 5,
        hash: header.hash_slow(),
        parent_hash: header.parent_hash,
        timestamp: 77,
    };
    let mut raw = Vec::new();
    alloy_rlp::Encodable::encode(&header, &mut raw);
    let withdrawal =
        Withdrawal { index: 1, validator_index: 2, amount: 3, ..Withdrawal::default() };
    let mut withdrawals = Vec::new();
    alloy_rlp::encode_list(&[withdrawal], &mut withdrawals);
    Block {
        at,
        header: Header::Canonical(raw.into()),
        uncles: vec![B256::repeat_byte(8)],
        withdrawals: Some(withdrawals.into()),
        size: 600,
        transactions: vec![
            sign(0, TxKind::Create),
            sign(1, TxKind::Call(Address::repeat_byte(1))),
            Transaction::new(
                B256::repeat_byte(3),
                TransactionForm::Foreign(foreign.to_string().into_bytes().into()),
            ),
        ],
        receipts: vec![
            receipt(100, vec![log(1)], None),
            receipt(250, vec![log(2), log(3)], Some(r#"{"l1Fee":"0x5","gasUsed":"0x0","a\"b":1}"#)),
            receipt(300, vec![log(4)], Some(r#"{"effectiveGasPrice":"0x1","depositNonce":"0x2"}"#)),
        ],
        verified: VerifyLevel::Off,
        node_fields: crate::KeptFields::default(),
    }
}

fn rendered(write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Value {
    let mut out = Vec::new();
    write(&mut out).expect("it is rendered");
    serde_json::from_slice(&out)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
}

#[test]
fn a_receipt_has_derived_fields_and_those_that_the_node_adds() {
    let block = sample();
    let receipts = rendered(|out| BlockRenderer::of(&block)?.receipts(out));
    let (first, second, third) = (&receipts[0], &receipts[1], &receipts[2]);
    let sender: Address = serde_json::from_value(first["from"].clone()).expect("an address");
    assert_eq!(first["contractAddress"], json!(sender.create(0)));
    assert_eq!((&first["to"], &first["gasUsed"]), (&Value::Null, &json!("0x64")));
    assert_eq!(second["contractAddress"], Value::Null);
    assert_eq!((&second["gasUsed"], &second["l1Fee"]), (&json!("0x96"), &json!("0x5")));
    assert_eq!(second["logs"][1]["logIndex"], "0x2", "logs are numbered through the block");
    assert_eq!(second["logs"][1]["blockTimestamp"], "0x4d");
    assert_eq!(second["effectiveGasPrice"], "0x7");
    assert_eq!(third["from"], json!(Address::repeat_byte(3)));
    assert_eq!(third["effectiveGasPrice"], "0x9", "what we know can not be replaced");
    assert_eq!((&third["depositNonce"], &third["status"]), (&json!("0x2"), &json!("0x1")));
}

#[test]
fn a_block_has_its_transactions_whole_or_as_hashes() {
    let block = sample();
    let brief = rendered(|out| BlockRenderer::of(&block)?.block(out, false));
    let whole = rendered(|out| BlockRenderer::of(&block)?.block(out, true));
    for shown in [&brief, &whole] {
        assert_eq!(shown["hash"], json!(block.at.hash));
        assert_eq!((&shown["number"], &shown["size"]), (&json!("0x5"), &json!("0x258")));
        assert_eq!(shown["uncles"], json!([B256::repeat_byte(8)]));
        assert_eq!(shown["withdrawals"][0]["amount"], "0x3");
        assert_eq!(shown["baseFeePerGas"], "0x2");
    }
    assert_eq!(brief["transactions"][2], json!(B256::repeat_byte(3)));
    let second = &whole["transactions"][1];
    assert_eq!(second["hash"], json!(block.transactions[1].hash));
    assert_eq!((&second["transactionIndex"], &second["gasPrice"]), (&json!("0x1"), &json!("0x7")));
    assert_eq!(second["blockHash"], json!(block.at.hash));
    assert_eq!(whole["transactions"][2]["sourceHash"], json!(B256::ZERO), "passed on");
}

#[test]
fn a_foreign_header_is_served_with_the_fields_it_lacks() {
    let mut block = sample();
    let text = r#"{"number":"0x5","l1BlockNumber":"0x7","transactions":["0x00"],"uncles":[]}"#;
    block.header = Header::Foreign(text.as_bytes().to_vec().into());
    let shown = rendered(|out| BlockRenderer::of(&block)?.block(out, false));
    assert_eq!((&shown["l1BlockNumber"], &shown["size"]), (&json!("0x7"), &json!("0x258")));
    assert_eq!(shown["uncles"], json!([]), "as the node said");
    assert_eq!(shown["transactions"].as_array().map(Vec::len), Some(3));
    let head = rendered(|out| BlockRenderer::of(&block)?.header(out));
    assert_eq!(head, json!({"number": "0x5", "l1BlockNumber": "0x7", "uncles": []}));
    block.header = Header::Foreign(b"{}".to_vec().into());
    let shown = rendered(|out| BlockRenderer::of(&block)?.block(out, false));
    assert!(shown["withdrawals"].is_array(), "also from nothing: {shown}");
}

#[test]
fn the_price_uses_the_base_fee_of_a_foreign_header_too() {
    let mut block = sample();
    let tx = alloy_consensus::TxEip1559 {
        max_fee_per_gas: 90,
        max_priority_fee_per_gas: 2,
        ..Default::default()
    };
    let signed = tx.into_signed(Signature::new(U256::ONE, U256::from(6), false));
    block.transactions[0] = Transaction::canonical(TxEnvelope::from(signed).encoded_2718().into());
    for (header, expected) in [(r#"{"baseFeePerGas":"0x5"}"#, json!("0x7")), ("{}", Value::Null)] {
        block.header = Header::Foreign(header.as_bytes().to_vec().into());
        let receipts = rendered(|out| BlockRenderer::of(&block)?.receipts(out));
        assert_eq!(receipts[0]["effectiveGasPrice"], expected, "{header}");
    }
}

#[test]
fn damaged_parts_are_errors() {
    let mut block = sample();
    block.transactions[0].form = TransactionForm::Canonical(vec![1, 2, 3].into());
    assert!(BlockRenderer::of(&block).expect("the header").receipts(&mut Vec::new()).is_err());
    let mut block = sample();
    block.receipts[1].extra = Some(b"[".to_vec().into());
    assert!(BlockRenderer::of(&block).expect("the header").receipts(&mut Vec::new()).is_err());
    let mut block = sample();
    block.header = Header::Canonical(vec![1].into());
    assert!(BlockRenderer::of(&block).is_err());
}
