//! `FtChange`: how the transfers of a block changed one account's holding of one token.
//!
//! Guarantees: the zero address holds nothing; a transfer to oneself counts, but changes no balance. Leaves to others:
//! the balance before the block.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use logmill_io::Amount;

use super::FtTransfer;
use crate::derive::rows::amount;

/// Change of one account's holding of one token by the transfers of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtChange {
    pub account: Address,
    pub token: Address,
    pub delta: Amount,
    pub transfers: u32,
    pub transactions: u32,
    /// Index of the last transaction that took part.
    pub transaction_index: usize,
    /// Index of the last log that took part.
    pub log_index: usize,
}

/// The changes, sorted by account and token.
pub(super) fn changes(transfers: &[FtTransfer]) -> Vec<FtChange> {
    let mut changes: BTreeMap<(Address, Address), FtChange> = BTreeMap::new();
    for transfer in transfers {
        let moved = amount(transfer.amount);
        let parties = if transfer.from == transfer.to {
            [(transfer.from, Amount::ZERO), (Address::ZERO, Amount::ZERO)]
        } else {
            [(transfer.from, -moved), (transfer.to, moved)]
        };
        for (account, delta) in parties.into_iter().filter(|(account, _)| !account.is_zero()) {
            let change = changes
                .entry((account, transfer.token))
                .or_insert_with(|| FtChange::none(account, transfer));
            change.add(delta, transfer);
        }
    }
    changes.into_values().collect()
}

impl FtChange {
    fn none(account: Address, first: &FtTransfer) -> Self {
        Self {
            account,
            token: first.token,
            delta: Amount::ZERO,
            transfers: 0,
            transactions: 0,
            transaction_index: first.transaction_index,
            log_index: first.log_index,
        }
    }

    /// Transfers must come in order, so that those of one transaction are adjacent.
    fn add(&mut self, delta: Amount, transfer: &FtTransfer) {
        if self.transfers == 0 || self.transaction_index != transfer.transaction_index {
            self.transactions += 1;
        }
        self.transfers += 1;
        // The transfers of a block cannot exceed the 320 bits of an amount.
        self.delta = self.delta.saturating_add(delta);
        self.transaction_index = transfer.transaction_index;
        self.log_index = transfer.log_index;
    }
}
