//! Decodes a node's JSON into a [`Block`].
//!
//! Guarantees: a header or transaction is canonical only if its bytes match the hash that the node reported; if it
//! cannot be encoded, the node's JSON is kept. A block needs its place and a list of transactions with hashes;
//! anything else may be missing or unreadable, and the checks reject it ([`crate::verify()`]). Leaves to others:
//! additional fields that the node reports ([`super::compare`]).

use std::collections::BTreeMap;

use alloy_consensus::Header as EvmHeader;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B256, Bytes, U64, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::receipt::{NodeLog, NodeReceipt};
use super::{compare, transaction};
use crate::block::{Block, BlockRef, Header, Log, Outcome, Receipt, Transaction, TransactionForm};
use crate::mismatch::Mismatch;
use crate::node_fields::{KeptFields, key};
use crate::profile::ChainProfile;
use crate::transaction_json::foreign_type;
use crate::verify::foreign;
use crate::verify_level::VerifyLevel;

/// How blocks are read and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadOptions {
    pub(super) verify: VerifyLevel,
    /// What is known about the chain; `None` if its id is not known yet.
    pub(super) profile: Option<ChainProfile>,
    /// Whether the node's answers are compared with the derived values, and differences kept.
    pub(super) compared: bool,
    /// For metrics; `None` if it is not known yet.
    pub(super) chain: Option<u64>,
}

/// Why the parts of a block do not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockDefect {
    /// They contradict each other.
    Mismatch(Mismatch),
    /// They belong to different blocks: the chain changed between two answers.
    Moved,
    /// The node has the block, but not yet all of its parts.
    Late(&'static str),
}

/// Nodes announce a block before its receipts are available, and answer `null` or an empty list meanwhile.
pub(super) const NO_RECEIPTS_YET: &str = "the node has the block, but not yet its receipts";

/// Nodes announce a block before its body is available, and return an empty one meanwhile.
pub(super) const NO_TRANSACTIONS_YET: &str = "the node has the block, but not yet its transactions";

/// The same for the uncle headers.
pub(super) const NO_UNCLES_YET: &str = "the node has the block, but not yet its uncles";

/// `eth_getLogs` leaves out blocks that the node has not indexed yet.
pub(super) const NO_LOGS_YET: &str = "the node has the block, but not yet its logs";

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

pub(super) fn block_ref(json: &RawValue) -> Result<BlockRef, String> {
    let fields: RefFields = serde_json::from_str(json.get())
        .map_err(|error| format!("cannot parse the block: {error}"))?;
    Ok(BlockRef {
        number: fields.number.to(),
        hash: fields.hash,
        parent_hash: fields.parent_hash,
        timestamp: fields.timestamp.to(),
    })
}

/// Decodes a block without its receipts.
pub(super) fn block(json: &RawValue) -> Result<Block, String> {
    let fields: BlockFields<'_> = match serde_json::from_str(json.get()) {
        Ok(fields) => fields,
        Err(error) => lenient(json).ok_or_else(|| format!("cannot parse the block: {error}"))?,
    };
    let at = BlockRef {
        number: fields.number.to(),
        hash: fields.hash,
        parent_hash: fields.parent_hash,
        timestamp: fields.timestamp.to(),
    };
    let mut node_fields = KeptFields::default();
    let mut transactions = Vec::with_capacity(fields.transactions.len());
    for (position, json) in fields.transactions.iter().enumerate() {
        let read = transaction::read(json)?;
        if let Some(from) = transaction::unsigned_sender(json, &read) {
            let text = serde_json::json!({ "from": from }).to_string();
            let kept = key(position).map(|key| (key, Bytes::from(text.into_bytes())));
            node_fields.get_mut().transactions.extend(kept);
        }
        transactions.push(read);
    }
    Ok(Block {
        at,
        header: header(json, at.hash)?,
        uncles: fields.uncles,
        withdrawals: fields.withdrawals.map(|list| Bytes::from(alloy_rlp::encode(&list))),
        size: fields.size.map_or(0, |size| size.to()),
        transactions,
        receipts: Vec::new(),
        verified: VerifyLevel::Off,
        node_fields,
    })
}

/// Decodes the fields of a block that can be read; `None` if its place or its transactions cannot be.
fn lenient(json: &RawValue) -> Option<BlockFields<'_>> {
    let RefFields { hash, number, parent_hash, timestamp } =
        serde_json::from_str(json.get()).ok()?;
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(json.get()).ok()?;
    let text = |name: &str| fields.get(name).map(|value| value.get());
    Some(BlockFields {
        hash,
        number,
        parent_hash,
        timestamp,
        size: text("size").and_then(|text| serde_json::from_str(text).ok()),
        uncles: text("uncles").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        withdrawals: text("withdrawals").and_then(|text| serde_json::from_str(text).ok()),
        transactions: text("transactions").and_then(|text| serde_json::from_str(text).ok())?,
    })
}

fn header(json: &RawValue, hash: B256) -> Result<Header, String> {
    if let Some(bytes) = header_bytes(json)
        && keccak256(&bytes) == hash
    {
        return Ok(Header::Canonical(bytes));
    }
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(json.get())
        .map_err(|error| format!("cannot parse the header: {error}"))?;
    fields.remove("transactions");
    let kept =
        serde_json::to_vec(&fields).map_err(|error| format!("cannot write the header: {error}"))?;
    let bounded = compare::bounded(&kept, foreign::HEADER_FIELDS);
    Ok(Header::Foreign(bounded.unwrap_or_else(|| Bytes::from(kept))))
}

/// Encodes the header of a block or an uncle in RLP; `None` if it lacks a field or has one that cannot be parsed.
pub(super) fn header_bytes(json: &RawValue) -> Option<Bytes> {
    let header: EvmHeader = serde_json::from_str(json.get()).ok()?;
    Some(Bytes::from(alloy_rlp::encode(&header)))
}

/// Adds a block's receipts: one for each transaction, or as many as there are if nothing is checked.
pub(super) fn add_receipts(
    block: &mut Block,
    receipts: Vec<NodeReceipt>,
    options: ReadOptions,
) -> Result<(), BlockDefect> {
    let hash = block.at.hash;
    if receipts.iter().any(|receipt| receipt.block_hash.is_some_and(|of| of != hash)) {
        return Err(BlockDefect::Moved);
    }
    if !block.transactions.is_empty() && receipts.is_empty() && something_ran(block) {
        return Err(BlockDefect::Late(NO_RECEIPTS_YET));
    }
    if options.verify != VerifyLevel::Off {
        check_order(block, &receipts).map_err(BlockDefect::Mismatch)?;
    }
    let mut slots = ReceiptSlots::new(block.transactions.len());
    for receipt in receipts {
        slots.insert(block, receipt);
    }
    let reported = slots.put_into(block);
    if reported.iter().all(Option::is_none) {
        return Ok(());
    }
    compare::keep_receipt_fields(block, reported, options.chain)
        .map_err(|error| BlockDefect::Mismatch(Mismatch::Malformed { what: error.to_string() }))
}

/// Rejects receipts that are not those of the transactions, one each and in order.
fn check_order(block: &Block, receipts: &[NodeReceipt]) -> Result<(), Mismatch> {
    let (transactions, got) = (block.transactions.len(), receipts.len());
    if transactions != got {
        return Err(Mismatch::Receipts { transactions, receipts: got });
    }
    for (index, (receipt, transaction)) in receipts.iter().zip(&block.transactions).enumerate() {
        if let Some(of) = receipt.transaction_hash.filter(|of| *of != transaction.hash) {
            let expected = transaction.hash;
            let what = format!("receipt {index} belongs to transaction {of}, not {expected}");
            return Err(Mismatch::Malformed { what });
        }
    }
    Ok(())
}

/// Whether the header shows that transactions were executed. If it does not tell, they were.
pub(super) fn something_ran(block: &Block) -> bool {
    let gas_used = block.header.facts().ok().and_then(|facts| facts.gas_used);
    let bloom = block.header.bloom().ok().flatten();
    gas_used != Some(0) || bloom.is_some_and(|bloom| !bloom.is_zero())
}

/// Receipts at the positions of their transactions.
struct ReceiptSlots {
    slots: Vec<Option<NodeReceipt>>,
    /// Receipts of transactions that the block does not list.
    alone: Vec<NodeReceipt>,
    /// All slots below this are filled.
    filled: usize,
    /// The positions of each hash, last first; built when receipts turn out not to be in order.
    by_hash: Option<BTreeMap<B256, Vec<usize>>>,
}

impl ReceiptSlots {
    fn new(transactions: usize) -> Self {
        let slots = std::iter::repeat_with(|| None).take(transactions).collect();
        Self { slots, alone: Vec::new(), filled: 0, by_hash: None }
    }

    /// Puts a receipt at its transaction's position, which is nearly always the first free slot. A hash may occur
    /// twice. A receipt without a hash belongs to the first transaction without a receipt.
    fn insert(&mut self, block: &Block, receipt: NodeReceipt) {
        let slot = self.slot_for(block, receipt.transaction_hash);
        match slot.and_then(|at| self.slots.get_mut(at)) {
            Some(slot) => *slot = Some(receipt),
            None => self.alone.push(receipt),
        }
        while matches!(self.slots.get(self.filled), Some(Some(_))) {
            self.filled += 1;
        }
    }

    fn slot_for(&mut self, block: &Block, hash: Option<B256>) -> Option<usize> {
        let first_free = block.transactions.get(self.filled)?;
        let Some(hash) = hash.filter(|hash| *hash != first_free.hash) else {
            return Some(self.filled);
        };
        let by_hash = self.by_hash.get_or_insert_with(|| {
            let mut by_hash: BTreeMap<B256, Vec<usize>> = BTreeMap::new();
            for (at, transaction) in block.transactions.iter().enumerate().rev() {
                by_hash.entry(transaction.hash).or_default().push(at);
            }
            by_hash
        });
        let positions = by_hash.get_mut(&hash)?;
        while let Some(at) = positions.pop() {
            if matches!(self.slots.get(at), Some(None)) {
                return Some(at);
            }
        }
        None
    }

    /// Puts the receipts into the block, and returns the reported JSON of each. A missing receipt is replaced by one
    /// of unknown outcome; a transaction that the block does not list is built from its receipt.
    fn put_into(self, block: &mut Block) -> Vec<Option<Map<String, Value>>> {
        let mut reported = Vec::with_capacity(self.slots.len() + self.alone.len());
        let mut cumulative_gas_used = 0;
        for (position, slot) in self.slots.into_iter().enumerate() {
            let Some(given) = slot else {
                let tx_type = block.transactions.get(position).map_or(0, transaction_type);
                block.receipts.push(Receipt { cumulative_gas_used, ..unknown_receipt(tx_type) });
                block.node_fields.get_mut().without_receipt.extend(key(position));
                reported.push(None);
                continue;
            };
            cumulative_gas_used = given.receipt.cumulative_gas_used;
            block.receipts.push(given.receipt);
            reported.push(given.reported);
        }
        for given in self.alone {
            let hash = given.transaction_hash.unwrap_or_default();
            let text = unlisted(hash, given.reported.as_ref());
            block.transactions.push(Transaction::new(hash, TransactionForm::Foreign(text)));
            block.receipts.push(given.receipt);
            block.node_fields.get_mut().receipts_alone += 1;
            reported.push(given.reported);
        }
        reported
    }
}

/// JSON of a transaction that the block does not list, from the fields that its receipt shares with it.
fn unlisted(hash: B256, receipt: Option<&Map<String, Value>>) -> Bytes {
    const SHARED: [&str; 6] =
        ["blockHash", "blockNumber", "from", "to", "transactionIndex", "type"];
    let shared = |name: &str| Some((name.to_owned(), receipt?.get(name)?.clone()));
    let mut fields: Map<String, Value> = SHARED.into_iter().filter_map(shared).collect();
    fields.insert("hash".to_owned(), Value::String(hash.to_string()));
    Bytes::from(Value::Object(fields).to_string().into_bytes())
}

/// Builds receipts from logs, for nodes that return nothing else. The logs must be in the node's order. If nothing is
/// checked, they may belong to transactions that the block does not list.
pub(super) fn add_logs(
    block: &mut Block,
    logs: Vec<NodeLog>,
    options: ReadOptions,
) -> Result<(), BlockDefect> {
    let mut receipts: Vec<Receipt> =
        block.transactions.iter().map(|sent| unknown_receipt(transaction_type(sent))).collect();
    let mut indexes: Vec<Vec<Option<u64>>> = vec![Vec::new(); receipts.len()];
    let indexed = block.transactions.iter().enumerate();
    let mut by_hash: BTreeMap<B256, usize> = indexed.map(|(at, tx)| (tx.hash, at)).collect();
    for log in logs {
        if log.block_hash != block.at.hash {
            return Err(BlockDefect::Moved);
        }
        let of = log.transaction_hash.unwrap_or_default();
        if options.verify != VerifyLevel::Off && !by_hash.contains_key(&of) {
            let what = format!("a log belongs to transaction {of}, which is not in the block");
            return Err(BlockDefect::Mismatch(Mismatch::Malformed { what }));
        }
        let at = *by_hash.entry(of).or_insert_with(|| {
            block
                .transactions
                .push(Transaction::new(of, TransactionForm::Foreign(unlisted(of, None))));
            block.node_fields.get_mut().receipts_alone += 1;
            receipts.push(unknown_receipt(0));
            indexes.push(Vec::new());
            receipts.len() - 1
        });
        if let (Some(receipt), Some(indexes)) = (receipts.get_mut(at), indexes.get_mut(at)) {
            receipt.logs.push(Log { address: log.address, topics: log.topics, data: log.data });
            indexes.push(log.log_index.map(|index| index.to()));
        }
    }
    block.receipts = receipts;
    if options.compared {
        compare::keep_log_indexes(block, &indexes.concat(), options.chain);
    }
    Ok(())
}

fn unknown_receipt(tx_type: u8) -> Receipt {
    let (outcome, logs) = (Outcome::Unknown, Vec::new());
    Receipt { tx_type, outcome, cumulative_gas_used: 0, logs, extra: None }
}

fn transaction_type(transaction: &Transaction) -> u8 {
    match &transaction.form {
        // A legacy transaction begins with the first byte of an RLP list.
        TransactionForm::Canonical(bytes) => {
            bytes.first().filter(|byte| **byte < 0x80).map_or(0, |byte| *byte)
        }
        TransactionForm::Foreign(json) => foreign_type(json),
    }
}
