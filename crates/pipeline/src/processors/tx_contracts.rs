//! `tx_contracts_worker`: the contracts that a transaction touched, and what it did, in a word each.
//!
//! | `source` | the contract |
//! |---|---|
//! | `create` | was created by the transaction |
//! | `call` | is whom it calls, if it says something or the contract wrote a log |
//! | `log` | wrote a log in it |
//!
//! A contract has one row a transaction, with the first of these that fits. Who is sent ether without a word and stays
//! silent may be anybody, and is left out. Contracts that others called and that wrote nothing are not told by any
//! block. What the tags mean is in [`tags`].
//!
//! It runs in phase two: token transfers are what phase one decoded.
//!
//! Guarantees: each contract and each tag once a transaction. Leaves to others: what exactly was swapped, moved or
//! staked.

use std::collections::BTreeMap;

use alloy_primitives::Address;

use crate::cells;
use crate::derive::decoded::DecodedTransaction;
use crate::derive::table::{key, once};
use crate::derive::{DecodedBlock, Kind, Phase, Processor, Rows, Table};
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

/// The processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxContracts {
    /// How transfers are read, as text.
    pub tokens: String,
}

impl Processor for TxContracts {
    fn name(&self) -> &'static str {
        "tx_contracts_worker"
    }

    fn version(&self) -> u32 {
        1
    }

    fn parameters(&self) -> String {
        self.tokens.clone()
    }

    fn phase(&self) -> Phase {
        Phase::Two
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&TX_CONTRACTS, &TX_TAGS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for (transaction, tags) in block.transactions.iter().zip(tags::of(block)) {
            for (contract, source) in touched(block, transaction) {
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

fn touched(
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
