//! Renders blocks as JSON, with the types of `alloy`.
//!
//! Guarantees: the JSON has the form of real nodes' JSON and shows the block as it is, true or false. Leaves to
//! others: which block.

use alloy_consensus::transaction::Recovered;
use alloy_consensus::{
    Eip658Value, Receipt as EvmReceipt, ReceiptEnvelope, ReceiptWithBloom, Transaction, TxEnvelope,
};
use alloy_eips::eip2718::Decodable2718;
use alloy_eips::eip4895::{Withdrawal, Withdrawals};
use alloy_primitives::{Address, LogData, TxKind, U256};
use alloy_rlp::Decodable;
use alloy_rpc_types_eth as rpc;
use serde_json::Value;

use crate::block::{Block, Outcome, PlacedLog, Receipt, TransactionForm};
use crate::sender::Sender;

/// Renders a block with its transactions, or with their hashes.
pub(super) fn block(block: &Block, full: bool) -> Result<Value, String> {
    let fields = block.header.decode().map_err(|error| error.to_string())?;
    let mut inner = fields.ok_or("the header is JSON")?;
    // From the block, which may contain a lie that the header's bytes do not.
    inner.parent_hash = block.at.parent_hash;
    inner.timestamp = block.at.timestamp;
    inner.number = block.at.number;
    let transactions = if full {
        rpc::BlockTransactions::Full(decoded(block)?)
    } else {
        let hashes = block.transactions.iter().map(|transaction| transaction.hash);
        rpc::BlockTransactions::Hashes(hashes.collect())
    };
    let withdrawals = match &block.withdrawals {
        Some(bytes) => {
            let list = Vec::<Withdrawal>::decode(&mut &bytes[..]);
            Some(Withdrawals::new(list.map_err(|error| error.to_string())?))
        }
        None => None,
    };
    let size = Some(U256::from(block.size));
    let header = rpc::Header { hash: block.at.hash, inner, total_difficulty: None, size };
    let uncles = block.uncles.clone();
    json(&rpc::Block { header, uncles, transactions, withdrawals })
}

pub(super) fn transactions(block: &Block) -> Result<Value, String> {
    json(&decoded(block)?)
}

pub(super) fn receipts(block: &Block) -> Result<Value, String> {
    let transactions = decoded(block)?;
    let logs: Vec<PlacedLog<'_>> = block.logs().collect();
    let mut gas_before = 0;
    let mut receipts = Vec::new();
    for (index, (receipt, transaction)) in block.receipts.iter().zip(&transactions).enumerate() {
        let own = logs.iter().filter(|placed| placed.transaction_index == index);
        let own = own.map(|placed| log(block, placed)).collect();
        receipts.push(one_receipt(block, transaction, receipt, own, gas_before)?);
        gas_before = receipt.cumulative_gas_used;
    }
    json(&receipts)
}

/// Renders a log with its position.
pub(super) fn log(block: &Block, placed: &PlacedLog<'_>) -> rpc::Log {
    let topics = placed.log.topics.to_vec();
    rpc::Log {
        inner: alloy_primitives::Log {
            address: placed.log.address,
            data: LogData::new_unchecked(topics, placed.log.data.clone()),
        },
        block_hash: Some(block.at.hash),
        block_number: Some(block.at.number),
        block_timestamp: Some(block.at.timestamp),
        transaction_hash: Some(placed.transaction_hash),
        transaction_index: u64::try_from(placed.transaction_index).ok(),
        log_index: u64::try_from(placed.log_index).ok(),
        removed: false,
    }
}

fn decoded(block: &Block) -> Result<Vec<rpc::Transaction>, String> {
    let header = block.header.decode().map_err(|error| error.to_string())?;
    let base_fee = header.and_then(|header| header.base_fee_per_gas);
    let mut transactions = Vec::new();
    for (index, transaction) in block.transactions.iter().enumerate() {
        let TransactionForm::Canonical(bytes) = &transaction.form else {
            return Err("a transaction is JSON".to_owned());
        };
        let envelope = TxEnvelope::decode_2718_exact(bytes).map_err(|error| error.to_string())?;
        let signer = Sender::of(&envelope).address();
        let signer = signer.ok_or_else(|| "a transaction has an invalid signature".to_owned())?;
        transactions.push(rpc::Transaction {
            effective_gas_price: Some(envelope.effective_gas_price(base_fee)),
            inner: Recovered::new_unchecked(envelope, signer),
            block_hash: Some(block.at.hash),
            block_number: Some(block.at.number),
            transaction_index: u64::try_from(index).ok(),
            block_timestamp: Some(block.at.timestamp),
        });
    }
    Ok(transactions)
}

fn one_receipt(
    block: &Block,
    transaction: &rpc::Transaction,
    receipt: &Receipt,
    logs: Vec<rpc::Log>,
    gas_before: u64,
) -> Result<rpc::TransactionReceipt, String> {
    let status = match receipt.outcome {
        Outcome::Status(status) => Eip658Value::Eip658(status),
        Outcome::StateRoot(root) => Eip658Value::PostState(root),
        Outcome::Unknown => return Err("a receipt has no outcome".to_owned()),
    };
    let cumulative_gas_used = receipt.cumulative_gas_used;
    let fields = EvmReceipt { status, cumulative_gas_used, logs };
    let with_bloom = ReceiptWithBloom { receipt: fields, logs_bloom: receipt.bloom() };
    let inner = match receipt.tx_type {
        0 => ReceiptEnvelope::Legacy(with_bloom),
        1 => ReceiptEnvelope::Eip2930(with_bloom),
        2 => ReceiptEnvelope::Eip1559(with_bloom),
        3 => ReceiptEnvelope::Eip4844(with_bloom),
        4 => ReceiptEnvelope::Eip7702(with_bloom),
        other => return Err(format!("a receipt has the unknown type {other}")),
    };
    let envelope = transaction.inner.inner();
    let from = transaction.inner.signer();
    let contract = match envelope.kind() {
        TxKind::Create => Some(created(from, envelope)),
        TxKind::Call(_) => None,
    };
    Ok(rpc::TransactionReceipt {
        inner,
        transaction_hash: *envelope.tx_hash(),
        transaction_index: transaction.transaction_index,
        block_hash: Some(block.at.hash),
        block_number: Some(block.at.number),
        gas_used: cumulative_gas_used.saturating_sub(gas_before),
        effective_gas_price: transaction.effective_gas_price.unwrap_or(0),
        blob_gas_used: envelope.blob_gas_used(),
        blob_gas_price: envelope.blob_gas_used().map(|_| 1),
        from,
        to: envelope.to(),
        contract_address: contract,
    })
}

fn created(from: Address, envelope: &TxEnvelope) -> Address {
    from.create(envelope.nonce())
}

fn json(value: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}
