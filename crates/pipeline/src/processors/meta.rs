//! `meta_worker`: the addresses in each transaction and their roles, and the deployed contracts.
//!
//! | bit of `roles` | name | address |
//! |---|---|---|
//! | 1 | `PAYER` | sender of the transaction |
//! | 2 | `RECEIVER` | its recipient, also if it failed |
//! | 4 | `CREATED` | the contract that it created |
//! | 8, 16 | `FT_SENDER`, `FT_RECEIVER` | sender, recipient of a fungible token in it |
//! | 32, 64 | `NFT_SENDER`, `NFT_RECEIVER` | sender, recipient of a unique token in it |
//! | 128 | `AUTHORIZER` | signer of a delegation that it carries (EIP-7702) |
//!
//! | `account_stats` | meaning |
//! |---|---|
//! | `tx_count` | transactions in which the address has any role: its rows in `address_transactions` |
//! | `sent_count` | transactions that it sent |
//! | `total_gas_used` | gas of the transactions that it sent, as far as receipts report it |
//! | `last_updated_block` | the highest block with one of its transactions |
//!
//! The zero address is left out. Contracts are in [`contracts`].
//!
//! Guarantees: one row per address and transaction. Leaves to others: everything else about an address
//! (`accounts_worker`).

use std::collections::BTreeMap;

use alloy_primitives::{Address, U256};

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::table::{Fold, folded, key, once};
use crate::derive::{DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

pub mod contracts;

pub use contracts::{CONTRACT_VERSIONS, SMART_CONTRACTS};

pub(crate) const PAYER: u8 = 1;
pub(crate) const RECEIVER: u8 = 2;
pub(crate) const CREATED: u8 = 4;
pub(crate) const FT_SENDER: u8 = 8;
pub(crate) const FT_RECEIVER: u8 = 16;
pub(crate) const NFT_SENDER: u8 = 32;
pub(crate) const NFT_RECEIVER: u8 = 64;
pub(crate) const AUTHORIZER: u8 = 128;

const ROLE_NAMES: [(u8, &str); 8] = [
    (PAYER, "PAYER"),
    (RECEIVER, "RECEIVER"),
    (CREATED, "CREATED"),
    (FT_SENDER, "FT_SENDER"),
    (FT_RECEIVER, "FT_RECEIVER"),
    (NFT_SENDER, "NFT_SENDER"),
    (NFT_RECEIVER, "NFT_RECEIVER"),
    (AUTHORIZER, "AUTHORIZER"),
];

/// The names of the roles in a bit set, as stored in `roles` of `address_transactions`.
pub fn role_names(roles: i64) -> Vec<&'static str> {
    let has = |(bit, _): &&(u8, &str)| roles & i64::from(*bit) != 0;
    ROLE_NAMES.iter().filter(has).map(|(_, name)| *name).collect()
}

/// Addresses in each transaction.
pub static ADDRESS_TRANSACTIONS: Table = Table {
    name: "address_transactions",
    columns: &[
        key("address", Kind::Address),
        key("block_height", Kind::Int),
        key("tx_index", Kind::Int),
        once("roles", Kind::Int),
    ],
    indexes: &[],
};

/// Transaction counts per address.
pub static ACCOUNT_STATS: Table = Table {
    name: "account_stats",
    columns: &[
        key("address", Kind::Address),
        folded("tx_count", Kind::Int, Fold::Sum),
        folded("sent_count", Kind::Int, Fold::Sum),
        // An amount, because values reported by nodes must not overflow the sum.
        folded("total_gas_used", Kind::Amount, Fold::Sum),
        folded("last_updated_block", Kind::Int, Fold::Max),
    ],
    indexes: &[],
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

/// What a block adds to the counts of an address.
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    transactions: u64,
    sent: u64,
    gas_used: U256,
}

impl Processor for Meta {
    fn name(&self) -> &'static str {
        super::ProcessorName::Meta.as_str()
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
        const { &[&ADDRESS_TRANSACTIONS, &ACCOUNT_STATS, &SMART_CONTRACTS, &CONTRACT_VERSIONS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        let mut stats: BTreeMap<Address, Stats> = BTreeMap::new();
        for (transaction, roles) in block.transactions.iter().zip(roles(block)) {
            for (address, roles) in roles {
                let cells = cells![address, block.number(), transaction.index, roles];
                rows.push(&ADDRESS_TRANSACTIONS, transaction.index, cells)?;
                let stats = stats.entry(address).or_default();
                stats.transactions += 1;
                if roles & PAYER != 0 {
                    stats.sent += 1;
                    stats.gas_used += U256::from(transaction.gas_used.unwrap_or(0));
                }
            }
        }
        for (address, stats) in stats {
            let cells =
                cells![address, stats.transactions, stats.sent, stats.gas_used, block.number()];
            rows.push(&ACCOUNT_STATS, 0, cells)?;
        }
        contracts::process(block, rows)
    }
}

/// The addresses and their roles in each transaction of a block.
fn roles(block: &DecodedBlock) -> Vec<BTreeMap<Address, u8>> {
    let mut all: Vec<BTreeMap<Address, u8>> = vec![BTreeMap::new(); block.transactions.len()];
    let mut add = |transaction: usize, address: Address, role: u8| {
        if let Some(roles) = all.get_mut(transaction).filter(|_| !address.is_zero()) {
            *roles.entry(address).or_default() |= role;
        }
    };
    for transaction in &block.transactions {
        let known =
            [(transaction.from, PAYER), (transaction.to, RECEIVER), (transaction.created, CREATED)];
        for (address, role) in known {
            address.into_iter().for_each(|address| add(transaction.index, address, role));
        }
        for authority in &transaction.authorities {
            add(transaction.index, *authority, AUTHORIZER);
        }
    }
    for transfer in &block.tokens.ft {
        add(transfer.transaction_index, transfer.from, FT_SENDER);
        add(transfer.transaction_index, transfer.to, FT_RECEIVER);
    }
    for transfer in &block.tokens.nft {
        add(transfer.transaction_index, transfer.from, NFT_SENDER);
        add(transfer.transaction_index, transfer.to, NFT_RECEIVER);
    }
    all
}

#[cfg(test)]
mod tests;
