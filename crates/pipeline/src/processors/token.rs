//! `token_worker`: all token transfers, and the catalogues of tokens and collections.
//!
//! Guarantees: one row per transfer; the catalogues count exactly those rows. Leaves to others: what counts as a
//! transfer ([`crate::derive::decoded::Tokens`]), balances, names and decimals.

use std::collections::BTreeMap;

use alloy_primitives::{Address, U256};
use logmill_io::Amount;

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::decoded::TransferKind;
use crate::derive::rows::amount;
use crate::derive::table::{folded, key, once};
use crate::derive::{BlockParts, DecodedBlock, Fold, Kind, Processor, Rows, Table};
use crate::error::Result;

/// Transfers of fungible tokens. The kind is 0 for a transfer, 1 for a mint, 2 for a burn.
pub static FT_TRANSFERS: Table = Table {
    name: "ft_transfers",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("token_contract_address", Kind::Address),
        once("from_address", Kind::Address),
        once("to_address", Kind::Address),
        once("amount", Kind::Amount),
        once("kind", Kind::Int),
        once("timestamp", Kind::Int),
    ],
    indexes: &[&["token_contract_address", "block_height", "event_index"]],
};

/// Transfers of unique and semi-fungible tokens, one row per item of a batch. The standard is 721 or 1155.
pub static NFT_TRANSFERS: Table = Table {
    name: "nft_transfers",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        key("batch_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("contract_address", Kind::Address),
        once("token_id", Kind::Amount),
        once("from_address", Kind::Address),
        once("to_address", Kind::Address),
        once("quantity", Kind::Amount),
        once("standard", Kind::Int),
        once("kind", Kind::Int),
        once("timestamp", Kind::Int),
    ],
    indexes: &[
        &["contract_address", "token_id", "block_height"],
        &["contract_address", "block_height", "event_index", "batch_index"],
    ],
};

pub static FT_TOKENS: Table = Table {
    name: "ft_tokens",
    columns: &[
        key("contract_address", Kind::Address),
        folded("first_seen_height", Kind::Int, Fold::Min),
        folded("last_seen_height", Kind::Int, Fold::Max),
        folded("transfer_count", Kind::Int, Fold::Sum),
        folded("minted", Kind::Amount, Fold::Sum),
        folded("burned", Kind::Amount, Fold::Sum),
    ],
    indexes: &[],
};

/// A collection that uses both standards counts as 1155.
pub static NFT_COLLECTIONS: Table = Table {
    name: "nft_collections",
    columns: &[
        key("contract_address", Kind::Address),
        folded("standard", Kind::Int, Fold::Max),
        folded("first_seen_height", Kind::Int, Fold::Min),
        folded("last_seen_height", Kind::Int, Fold::Max),
        folded("transfer_count", Kind::Int, Fold::Sum),
        folded("minted", Kind::Amount, Fold::Sum),
        folded("burned", Kind::Amount, Fold::Sum),
    ],
    indexes: &[],
};

#[derive(Clone, Debug, Default)]
pub struct Token {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

impl Processor for Token {
    fn name(&self) -> &'static str {
        super::ProcessorName::Token.as_str()
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

    fn reads(&self) -> BlockParts {
        BlockParts::Logs
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&FT_TRANSFERS, &NFT_TRANSFERS, &FT_TOKENS, &NFT_COLLECTIONS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        fungible(block, rows)?;
        unique(block, rows)
    }
}

/// Transfers of one contract in a block.
#[derive(Default)]
struct TransferCounts {
    standard: i64,
    transfers: u32,
    minted: Amount,
    burned: Amount,
    log_index: usize,
}

impl TransferCounts {
    fn count(&mut self, kind: TransferKind, quantity: U256, log_index: usize) {
        self.transfers += 1;
        self.log_index = log_index;
        // The transfers of a block cannot exceed the 320 bits of an amount.
        match kind {
            TransferKind::Transfer => {}
            TransferKind::Mint => self.minted = self.minted.saturating_add(amount(quantity)),
            TransferKind::Burn => self.burned = self.burned.saturating_add(amount(quantity)),
        }
    }
}

fn fungible(block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
    let height = block.number();
    let mut tokens: BTreeMap<Address, TransferCounts> = BTreeMap::new();
    for transfer in &block.tokens.ft {
        let cells = cells![
            height,
            transfer.log_index,
            transfer.transaction_index,
            transfer.token,
            transfer.from,
            transfer.to,
            transfer.amount,
            transfer.kind.number(),
            block.timestamp(),
        ];
        rows.push(&FT_TRANSFERS, transfer.log_index, cells)?;
        let seen = tokens.entry(transfer.token).or_default();
        seen.count(transfer.kind, transfer.amount, transfer.log_index);
    }
    for (token, seen) in tokens {
        let cells = cells![token, height, height, seen.transfers, seen.minted, seen.burned];
        rows.push(&FT_TOKENS, seen.log_index, cells)?;
    }
    Ok(())
}

fn unique(block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
    let height = block.number();
    let mut collections: BTreeMap<Address, TransferCounts> = BTreeMap::new();
    for transfer in &block.tokens.nft {
        let standard = transfer.standard.number();
        let cells = cells![
            height,
            transfer.log_index,
            transfer.batch_index,
            transfer.transaction_index,
            transfer.collection,
            transfer.token_id,
            transfer.from,
            transfer.to,
            transfer.quantity,
            standard,
            transfer.kind.number(),
            block.timestamp(),
        ];
        rows.push(&NFT_TRANSFERS, transfer.log_index, cells)?;
        let seen = collections.entry(transfer.collection).or_default();
        seen.standard = seen.standard.max(standard);
        seen.count(transfer.kind, transfer.quantity, transfer.log_index);
    }
    for (collection, seen) in collections {
        let TransferCounts { standard, transfers, minted, burned, log_index } = seen;
        let cells = cells![collection, standard, height, height, transfers, minted, burned];
        rows.push(&NFT_COLLECTIONS, log_index, cells)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::derive::Cell;
    use crate::derive::block_builder::{
        BlockBuilder, account, erc20, erc721, erc1155, rows, table,
    };

    const ZERO: Address = Address::ZERO;

    #[test]
    fn every_transfer_is_a_row() {
        let (a, b, token, items) = (account(1), account(2), account(3), account(4));
        let block = BlockBuilder::new(7)
            .time(86_400)
            .transaction([])
            .transaction([
                erc20(token, ZERO, a, U256::MAX),
                erc1155(items, a, ZERO, &[(5, 1), (6, 2)]),
                erc721(account(5), a, b, U256::from(9)),
            ])
            .decoded();
        let rows = rows(&Token::default(), [&block]);
        let found = table(&rows, &FT_TRANSFERS);
        let mint = cells![7_u64, 0_u64, 1_u64, token, ZERO, a, U256::MAX, 1_i64, 86_400_u64];
        assert_eq!(found, [mint]);
        let burnt = |batch: u64, id: u64, quantity: u64| {
            let (id, quantity) = (U256::from(id), U256::from(quantity));
            let mut row = cells![7_u64, 1_u64, batch, 1_u64, items, id, a, ZERO, quantity];
            row.extend(cells![1155_i64, 2_i64, 86_400_u64]);
            row
        };
        let mut moved = cells![7_u64, 2_u64, 0_u64, 1_u64, account(5), U256::from(9), a, b];
        moved.extend(cells![U256::ONE, 721_i64, 0_i64, 86_400_u64]);
        assert_eq!(table(&rows, &NFT_TRANSFERS), [burnt(0, 5, 1), burnt(1, 6, 2), moved]);
    }

    #[test]
    fn the_catalogues_count_the_transfers() {
        let (a, b, token, items) = (account(1), account(2), account(3), account(4));
        let blocks = [
            BlockBuilder::new(9).transaction([
                erc20(token, a, ZERO, U256::from(4)),
                erc1155(items, ZERO, b, &[(5, 3), (6, 2)]),
            ]),
            BlockBuilder::new(7).transaction([
                erc20(token, ZERO, a, U256::MAX),
                erc20(token, ZERO, a, U256::MAX),
                erc20(token, a, b, U256::ONE),
                erc721(items, a, ZERO, U256::ONE),
            ]),
        ]
        .map(BlockBuilder::decoded);
        let rows = rows(&Token::default(), &blocks);
        let twice = amount(U256::MAX).saturating_add(amount(U256::MAX));
        let four = U256::from(4);
        assert_eq!(table(&rows, &FT_TOKENS), [cells![token, 7_u64, 9_u64, 4_u64, twice, four]]);
        let five = U256::from(5);
        let expected = cells![items, 1155_i64, 7_u64, 9_u64, 3_u64, five, U256::ONE];
        assert_eq!(table(&rows, &NFT_COLLECTIONS), [expected]);
        assert_eq!(Cell::from(4_u32), Cell::from(4_u64));
    }
}
