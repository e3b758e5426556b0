//! `FtChange`: what the transfers of a block did to one account's holding of one token.
//!
//! Guarantees: the zero address holds nothing; a transfer to oneself counts, and changes nothing. Leaves to others:
//! what the account held before.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use logmill_io::Amount;

use super::tokens::FtTransfer;
use crate::derive::rows::amount;

/// What the transfers of a block did to one account's holding of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtChange {
    /// Whose.
    pub account: Address,
    /// Of which token.
    pub token: Address,
    /// By how much the holding changed.
    pub delta: Amount,
    /// How many transfers took part.
    pub transfers: u32,
    /// How many transactions took part.
    pub transactions: u32,
    /// The position of the last of these transactions.
    pub transaction_index: usize,
    /// The position of the last of these logs.
    pub log_index: usize,
}

/// The changes, by account and token.
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

    /// Transfers come in order, so those of one transaction come together.
    fn add(&mut self, delta: Amount, transfer: &FtTransfer) {
        if self.transfers == 0 || self.transaction_index != transfer.transaction_index {
            self.transactions += 1;
        }
        self.transfers += 1;
        // The transfers of a block do not reach the 320 bits of an amount.
        self.delta = self.delta.saturating_add(delta);
        self.transaction_index = transfer.transaction_index;
        self.log_index = transfer.log_index;
    }
}
