//! `tx_contracts_worker`: the contracts touched by a transaction, and tags for what it did.
//!
//! | `source` | the contract |
//! |---|---|
//! | `create` | was created by the transaction |
//! | `call` | is the recipient, and the transaction has input or the contract wrote a log |
//! | `log` | wrote a log in it |
//!
//! A contract has one row per transaction, with the first of these that applies. A recipient of ether without input
//! that writes no log may be any account, and is left out. Contracts that were called by others and wrote no log do not
//! appear in blocks. [`tags`] defines the tags.
//!
//! Guarantees: each contract and each tag once per transaction. Leaves to others: what exactly was swapped, moved or
//! staked.

use std::collections::BTreeMap;

use alloy_primitives::Address;

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::decoded::DecodedTransaction;
use crate::derive::table::{key, once};
use crate::derive::{DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

mod events;
pub mod tags;

/// One row per transaction and contract.
pub static TX_CONTRACTS: Table = Table {
    name: "tx_contracts",
    columns: &[
        key("block_height", Kind::Int),
        key("tx_index", Kind::Int),
        key("contract", Kind::Address),
        once("source", Kind::Text),
    ],
    indexes: &[],
};

/// One row per transaction and tag.
pub static TX_TAGS: Table = Table {
    name: "tx_tags",
    columns: &[key("block_height", Kind::Int), key("tx_index", Kind::Int), key("tag", Kind::Text)],
    indexes: &[],
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TxContracts {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

impl Processor for TxContracts {
    fn name(&self) -> &'static str {
        super::ProcessorName::TxContracts.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn parameters(&self) -> String {
        self.tokens.clone()
    }

    fn parameter_settings(&self) -> &'static str {
        TOKEN_SETTINGS
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&TX_CONTRACTS, &TX_TAGS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for (transaction, tags) in block.transactions.iter().zip(tags::of(block)) {
            for (contract, source) in touched_contracts(block, transaction) {
                let cells = cells![block.number(), transaction.index, contract, source];
                rows.push(&TX_CONTRACTS, transaction.index, cells)?;
            }
            for tag in tags {
                let cells = cells![block.number(), transaction.index, tag];
                rows.push(&TX_TAGS, transaction.index, cells)?;
            }
        }
        Ok(())
    }
}

fn touched_contracts(
    block: &DecodedBlock,
    transaction: &DecodedTransaction,
) -> BTreeMap<Address, &'static str> {
    let mut touched = BTreeMap::new();
    let receipt = block.block.receipts.get(transaction.index);
    for log in receipt.map_or(&[][..], |receipt| &receipt.logs) {
        touched.insert(log.address, "log");
    }
    if let Some(to) = transaction.to
        && (!transaction.input.is_empty() || touched.contains_key(&to))
    {
        touched.insert(to, "call");
    }
    if let Some(created) = transaction.created {
        touched.insert(created, "create");
    }
    touched
}

#[cfg(test)]
mod tests;
