//! `accounts_worker`: every address that took part in something: since when, until when, and what it is.
//!
//! | who takes part | `is_contract` | `is_signer` |
//! |---|---|---|
//! | who sent a transaction | | 1 if a signature says so |
//! | who signed a delegation (EIP-7702) | | 1 |
//! | whom a transaction calls | | |
//! | a contract that a transaction created | 1 if the receipt says that it succeeded | |
//! | who wrote a log | 1 | |
//! | who sent or got a token | | |
//! | who got a withdrawal, who made the block | | |
//!
//! Both marks are what is known for sure: 0 means that no block has told yet. Somebody with both is an account with a
//! key that has delegated to code: no contract. So a contract is who has `is_contract = 1` and `is_signer = 0`
//! ([`is_contract`]). The zero address is nobody.
//!
//! It runs in phase two: who sent or got a token is what phase one decoded.
//!
//! Guarantees: the marks only grow, so the order of blocks does not matter. Leaves to others: contracts that other
//! contracts created, as long as they are silent.

use std::collections::BTreeMap;

use alloy_primitives::Address;

use crate::cells;
use crate::derive::table::{Fold, folded, key};
use crate::derive::{DecodedBlock, Kind, Phase, Processor, Rows, Table};
use crate::error::Result;

/// One row an address.
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

/// The processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// How transfers are read, as text.
    pub tokens: String,
}

/// Whether an account with these marks is a contract.
pub fn is_contract(is_contract: bool, is_signer: bool) -> bool {
    is_contract && !is_signer
}

/// What a block tells of an address.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    is_contract: bool,
    is_signer: bool,
}

/// Who takes part in a block.
#[derive(Debug, Default)]
struct Participants(BTreeMap<Address, Seen>);

impl Participants {
    fn see(&mut self, address: Address) -> &mut Seen {
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
        "accounts_worker"
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
    use crate::derive::staged::{Scene, check_keys, log, rows_of, table, who};

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
    fn everybody_who_takes_part_is_there_with_what_is_known_of_them() {
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
        let mut scene = Scene::new(8)
            .with(sent, vec![log(who(3), &[], &[]), log(who(5), &[], &[])])
            .with(created(6, Some(true)), vec![])
            .with(created(7, None), vec![]);
        scene.header.miner = Some(who(8));
        scene.tokens.ft = vec![ft(who(9), Address::ZERO)];
        scene.tokens.nft = vec![nft(Address::ZERO, who(10))];
        scene.withdrawals =
            vec![Withdrawal { index: 0, validator_index: 0, address: who(11), amount_gwei: 0 }];
        let later = DecodedTransaction { to: Some(who(2)), ..Default::default() };
        let later = Scene::new(20).with(later, vec![log(who(2), &[], &[])]);
        // In any order.
        let rows = rows_of(&Accounts::default(), &[later.block(), scene.block()]);
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
