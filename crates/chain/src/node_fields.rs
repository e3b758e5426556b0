//! `NodeFields`: values that a node reported about a block and that do not follow from the block.
//!
//! On chains that do not follow Ethereum's rules alone, a receipt may have a different price than its transaction
//! offered, a header may have fields that are not hashed, and a transaction may have a sender but no signature. Such
//! values are kept as reported, beside the hashed data, and served instead of the derived ones.
//!
//! Guarantees: fields that follow from the block are never kept; number and size of kept fields are bounded. Leaves
//! to others: comparing an answer with the derived values (`evm::compare`), and receipt fields, which are in
//! [`crate::Receipt::extra`].

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Result;
use crate::json_fields;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFields {
    /// Fields of the block, as a JSON object.
    pub block: Option<Bytes>,
    /// Fields of transactions, each a JSON object, by position.
    pub transactions: BTreeMap<u32, Bytes>,
    /// Fields of logs, each a JSON object, by position in the block.
    pub logs: BTreeMap<u32, Bytes>,
    /// The `logIndex` of each log, strictly increasing; empty if each equals the log's position.
    pub log_indexes: Vec<u32>,
    /// Positions of transactions without a receipt.
    pub without_receipt: BTreeSet<u32>,
    /// Number of trailing transactions that the block does not list: the node returned only their receipts.
    pub receipts_alone: u32,
}

const NOTHING: &NodeFields = &NodeFields {
    block: None,
    transactions: BTreeMap::new(),
    logs: BTreeMap::new(),
    log_indexes: Vec::new(),
    without_receipt: BTreeSet::new(),
    receipts_alone: 0,
};

/// The [`NodeFields`] of a block, if the node's answer was compared with the derived values. Equality looks only at
/// the fields: a comparison that found no difference equals no comparison.
#[derive(Clone, Debug, Default)]
pub struct KeptFields(Option<Box<NodeFields>>);

impl KeptFields {
    /// The result of a comparison.
    pub fn compared(fields: NodeFields) -> Self {
        Self(Some(Box::new(fields)))
    }

    /// Whether the node's answer was compared. Blocks of chains with Ethereum's rules are not compared, nor were
    /// blocks stored before node fields existed.
    pub fn is_compared(&self) -> bool {
        self.0.is_some()
    }

    /// Empty if nothing was compared.
    pub fn get(&self) -> &NodeFields {
        self.0.as_deref().unwrap_or(NOTHING)
    }

    /// Marks the block as compared.
    pub fn get_mut(&mut self) -> &mut NodeFields {
        self.0.get_or_insert_default()
    }
}

impl PartialEq for KeptFields {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for KeptFields {}

impl NodeFields {
    pub(crate) fn of_block(&self) -> Result<Map<String, Value>> {
        read(self.block.as_ref())
    }

    pub(crate) fn of_transaction(&self, position: usize) -> Result<Map<String, Value>> {
        read(key(position).and_then(|key| self.transactions.get(&key)))
    }

    pub(crate) fn of_log(&self, position: usize) -> Result<Map<String, Value>> {
        read(key(position).and_then(|key| self.logs.get(&key)))
    }
}

pub(crate) fn key(position: usize) -> Option<u32> {
    u32::try_from(position).ok()
}

fn read(text: Option<&Bytes>) -> Result<Map<String, Value>> {
    text.map_or_else(|| Ok(Map::new()), |text| json_fields::object(text, "a node's fields"))
}
