//! `accounts_worker`: every address that took part in a block: first and last block, and what kind of account it is.
//!
//! | participant | `is_contract` | `is_signer` |
//! |---|---|---|
//! | sender of a transaction | | 1 if recovered from a signature |
//! | signer of a delegation (EIP-7702) | | 1 |
//! | recipient of a transaction | | |
//! | contract created by a transaction | 1 if the receipt reports success | |
//! | contract that wrote a log | 1 | |
//! | sender or recipient of a token | | |
//! | recipient of a withdrawal, block producer | | |
//!
//! A mark of 1 is certain; 0 means that no block has shown it yet. An address with both marks is an account with a key
//! that has delegated to code, not a contract. So a contract has `is_contract = 1` and `is_signer = 0`
//! ([`is_contract`]). The zero address is left out.
//!
//! Guarantees: the marks only grow, so the order of blocks does not matter. Leaves to others: contracts created by
//! other contracts, until they write a log.

use std::collections::BTreeMap;

use alloy_primitives::Address;

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::table::{Fold, folded, key};
use crate::derive::{DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

/// One row per address.
pub static ACCOUNTS: Table = Table {
    name: "accounts",
    columns: &[
        key("address", Kind::Address),
        folded("first_seen_height", Kind::Int, Fold::Min),
        folded("last_seen_height", Kind::Int, Fold::Max),
        folded("is_contract", Kind::Int, Fold::Max),
        folded("is_signer", Kind::Int, Fold::Max),
    ],
    indexes: &[],
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accounts {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

/// Whether an address with these marks is a contract.
pub fn is_contract(is_contract: bool, is_signer: bool) -> bool {
    is_contract && !is_signer
}

/// What a block shows about an address.
#[derive(Clone, Copy, Debug, Default)]
struct AccountMarks {
    is_contract: bool,
    is_signer: bool,
}

#[derive(Debug, Default)]
struct Participants(BTreeMap<Address, AccountMarks>);

impl Participants {
    fn see(&mut self, address: Address) -> &mut AccountMarks {
        self.0.entry(address).or_default()
    }

    fn of(block: &DecodedBlock) -> Self {
        let mut all = Self::default();
        all.of_transactions(block);
        for placed in block.block.logs() {
            all.see(placed.log.address).is_contract = true;
        }
        let tokens = &block.tokens;
        let ft = tokens.ft.iter().flat_map(|transfer| [transfer.from, transfer.to]);
        let nft = tokens.nft.iter().flat_map(|transfer| [transfer.from, transfer.to]);
        let paid = block.withdrawals.iter().map(|withdrawal| withdrawal.address);
        for address in ft.chain(nft).chain(paid).chain(block.header.miner) {
            all.see(address);
        }
        all.0.remove(&Address::ZERO);
        all
    }

    fn of_transactions(&mut self, block: &DecodedBlock) {
        for transaction in &block.transactions {
            if let Some(from) = transaction.from {
                self.see(from).is_signer |= transaction.is_signed;
            }
            if let Some(to) = transaction.to {
                self.see(to);
            }
            if let Some(created) = transaction.created {
                self.see(created).is_contract |= transaction.success == Some(true);
            }
            for authority in &transaction.authorities {
                self.see(*authority).is_signer = true;
            }
        }
    }
}

impl Processor for Accounts {
    fn name(&self) -> &'static str {
        super::ProcessorName::Accounts.as_str()
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
        const { &[&ACCOUNTS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        let number = block.number();
        for (address, seen) in Participants::of(block).0 {
            let cells = cells![address, number, number, seen.is_contract, seen.is_signer];
            rows.push(&ACCOUNTS, 0, cells)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;
    use crate::derive::decoded::{
        DecodedTransaction, FtTransfer, NftStandard, NftTransfer, TransferKind, Withdrawal,
    };
    use crate::derive::decoded_block_builder::{
        DecodedBlockBuilder, check_keys, log, rows_of, table, who,
    };

    fn ft(from: Address, to: Address) -> FtTransfer {
        let (token, amount, kind) = (who(0xf0), U256::ONE, TransferKind::Transfer);
        FtTransfer { token, from, to, amount, kind, transaction_index: 0, log_index: 0 }
    }

    fn nft(from: Address, to: Address) -> NftTransfer {
        NftTransfer {
            collection: who(0xf1),
            token_id: U256::ONE,
            from,
            to,
            quantity: U256::ONE,
            standard: NftStandard::Erc721,
            kind: TransferKind::Mint,
            transaction_index: 0,
            log_index: 0,
            batch_index: 0,
        }
    }

    #[test]
    fn every_participant_has_a_row_with_its_marks() {
        let sent = DecodedTransaction {
            from: Some(who(1)),
            is_signed: true,
            to: Some(who(2)),
            authorities: vec![who(3)],
            ..Default::default()
        };
        let created = |address, success| DecodedTransaction {
            from: Some(who(4)),
            created: Some(who(address)),
            success,
            ..Default::default()
        };
        let mut builder = DecodedBlockBuilder::new(8)
            .with(sent, vec![log(who(3), &[], &[]), log(who(5), &[], &[])])
            .with(created(6, Some(true)), vec![])
            .with(created(7, None), vec![]);
        builder.header.miner = Some(who(8));
        builder.tokens.ft = vec![ft(who(9), Address::ZERO)];
        builder.tokens.nft = vec![nft(Address::ZERO, who(10))];
        builder.withdrawals =
            vec![Withdrawal { index: 0, validator_index: 0, address: who(11), amount_gwei: 0 }];
        let later = DecodedTransaction { to: Some(who(2)), ..Default::default() };
        let later = DecodedBlockBuilder::new(20).with(later, vec![log(who(2), &[], &[])]);
        // The order of blocks does not matter.
        let rows = rows_of(&Accounts::default(), &[later.block(), builder.block()]);
        check_keys(&rows);
        let row = |byte, last: u64, is_contract: u8, is_signer: u8| {
            cells![who(byte), 8u64, last, is_contract, is_signer]
        };
        let expected = vec![
            row(1, 8, 0, 1),
            row(2, 20, 1, 0),
            row(3, 8, 1, 1),
            row(4, 8, 0, 0),
            row(5, 8, 1, 0),
            row(6, 8, 1, 0),
            row(7, 8, 0, 0),
            row(8, 8, 0, 0),
            row(9, 8, 0, 0),
            row(10, 8, 0, 0),
            row(11, 8, 0, 0),
        ];
        assert_eq!(table(&rows, &ACCOUNTS), expected);
        assert!(is_contract(true, false) && !is_contract(true, true) && !is_contract(false, false));
    }
}
