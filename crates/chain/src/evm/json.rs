//! A node's JSON as a [`Block`].
//!
//! Guarantees: a header or a transaction is called canonical only if its bytes have the hash that the node gave it;
//! what can not be encoded so is kept as the node said it. The node's own numbers of logs are not used. Leaves to
//! others: the checks of a block ([`crate::verify()`]).

use std::collections::BTreeMap;

use alloy_consensus::Header as EvmHeader;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B256, Bytes, U64, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::receipt::{NodeLog, NodeReceipt};
use super::transaction;
use crate::block::{Block, BlockRef, Header, Log, Outcome, Receipt, Transaction, TransactionForm};
use crate::verify::{Mismatch, Verify};

/// What is wrong with the parts of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// They contradict each other.
    Mismatch(Mismatch),
    /// They are of different blocks: the chain changed between two answers.
    Moved,
    /// The node has the block, and not yet what belongs to it.
    Late(&'static str),
}

/// Nodes announce a block before its receipts can be read, and answer `null` or an empty list meanwhile.
pub(super) const NO_RECEIPTS_YET: &str = "the node has the block and not yet its receipts";

/// `eth_getLogs` leaves out blocks that the node has not indexed yet.
pub(super) const NO_LOGS_YET: &str = "the node has the block and not yet its logs";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockFields<'a> {
    hash: B256,
    number: U64,
    parent_hash: B256,
    timestamp: U64,
    #[serde(default)]
    size: Option<U64>,
    #[serde(default)]
    uncles: Vec<B256>,
    #[serde(default)]
    withdrawals: Option<Vec<Withdrawal>>,
    #[serde(borrow)]
    transactions: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefFields {
    hash: B256,
    number: U64,
    parent_hash: B256,
    timestamp: U64,
}

/// The place of a block.
pub(super) fn block_ref(json: &RawValue) -> Result<BlockRef, String> {
    let fields: RefFields =
        serde_json::from_str(json.get()).map_err(|error| format!("no block: {error}"))?;
    Ok(BlockRef {
        number: fields.number.to(),
        hash: fields.hash,
        parent_hash: fields.parent_hash,
        timestamp: fields.timestamp.to(),
    })
}

/// A block without its receipts.
pub(super) fn block(json: &RawValue) -> Result<Block, String> {
    let fields: BlockFields<'_> =
        serde_json::from_str(json.get()).map_err(|error| format!("no block: {error}"))?;
    let at = BlockRef {
        number: fields.number.to(),
        hash: fields.hash,
        parent_hash: fields.parent_hash,
        timestamp: fields.timestamp.to(),
    };
    let transactions: Result<Vec<Transaction>, String> =
        fields.transactions.iter().map(|json| transaction::read(json)).collect();
    Ok(Block {
        at,
        header: header(json, at.hash)?,
        uncles: fields.uncles,
        withdrawals: fields.withdrawals.map(|list| Bytes::from(alloy_rlp::encode(&list))),
        size: fields.size.map_or(0, |size| size.to()),
        transactions: transactions?,
        receipts: Vec::new(),
        verified: Verify::Off,
    })
}

fn header(json: &RawValue, hash: B256) -> Result<Header, String> {
    if let Some(bytes) = header_bytes(json)
        && keccak256(&bytes) == hash
    {
        return Ok(Header::Canonical(bytes));
    }
    let mut fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(json.get()).map_err(|error| format!("no header: {error}"))?;
    fields.remove("transactions");
    let kept = serde_json::to_vec(&fields).map_err(|error| format!("no header: {error}"))?;
    Ok(Header::Foreign(Bytes::from(kept)))
}

/// The header of a block or an uncle in RLP, if its fields are those that we know.
pub(super) fn header_bytes(json: &RawValue) -> Option<Bytes> {
    let header: EvmHeader = serde_json::from_str(json.get()).ok()?;
    Some(Bytes::from(alloy_rlp::encode(&header)))
}

/// Adds its receipts to a block.
pub(super) fn add_receipts(block: &mut Block, receipts: Vec<NodeReceipt>) -> Result<(), Flaw> {
    let hash = block.at.hash;
    if receipts.iter().any(|receipt| receipt.block_hash.is_some_and(|of| of != hash)) {
        return Err(Flaw::Moved);
    }
    let (expected, got) = (block.transactions.len(), receipts.len());
    if expected > 0 && got == 0 {
        return Err(Flaw::Late(NO_RECEIPTS_YET));
    }
    if expected != got {
        return Err(Flaw::Mismatch(Mismatch::Receipts { transactions: expected, receipts: got }));
    }
    for (index, (receipt, transaction)) in receipts.iter().zip(&block.transactions).enumerate() {
        if receipt.transaction_hash != transaction.hash {
            let (of, expected) = (receipt.transaction_hash, transaction.hash);
            let what = format!("receipt {index} is of transaction {of}, not {expected}");
            return Err(Flaw::Mismatch(Mismatch::Malformed { what }));
        }
    }
    block.receipts = receipts.into_iter().map(|receipt| receipt.receipt).collect();
    Ok(())
}

/// Makes receipts of logs alone, for nodes that give nothing else. The logs must be in the order of the node.
pub(super) fn add_logs(block: &mut Block, logs: Vec<NodeLog>) -> Result<(), Flaw> {
    let types = block.transactions.iter().map(transaction_type);
    let mut receipts: Vec<Receipt> = types
        .map(|tx_type| Receipt {
            tx_type,
            outcome: Outcome::Unknown,
            cumulative_gas_used: 0,
            logs: Vec::new(),
            extra: None,
        })
        .collect();
    let indexed = block.transactions.iter().enumerate();
    let by_hash: BTreeMap<B256, usize> = indexed.map(|(at, tx)| (tx.hash, at)).collect();
    for log in logs {
        if log.block_hash != block.at.hash {
            return Err(Flaw::Moved);
        }
        let receipt = by_hash.get(&log.transaction_hash).and_then(|at| receipts.get_mut(*at));
        let Some(receipt) = receipt else {
            let of = log.transaction_hash;
            let what = format!("a log is of transaction {of}, which is not in the block");
            return Err(Flaw::Mismatch(Mismatch::Malformed { what }));
        };
        receipt.logs.push(Log { address: log.address, topics: log.topics, data: log.data });
    }
    block.receipts = receipts;
    Ok(())
}

fn transaction_type(transaction: &Transaction) -> u8 {
    match &transaction.form {
        // The first byte of a legacy transaction is that of a list.
        TransactionForm::Canonical(bytes) => {
            bytes.first().filter(|byte| **byte < 0x80).map_or(0, |byte| *byte)
        }
        TransactionForm::Foreign(json) => transaction::foreign_type(json),
    }
}
