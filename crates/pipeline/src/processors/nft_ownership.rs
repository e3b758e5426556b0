//! `nft_ownership_worker`: the owner of each ERC-721 item, and the quantity of each ERC-1155 item per owner.
//!
//! A burn keeps its row, owned by the zero address: without it, an older transfer that is derived later would restore
//! the item.
//!
//! Guarantees: an owner is the recipient of the last transfer in the covered blocks, a quantity the sum of incoming and
//! outgoing transfers in them. Leaves to others: whether these reach back to the collection's creation.

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::decoded::{NftStandard, NftTransfer};
use crate::derive::rows::amount;
use crate::derive::table::{folded, key};
use crate::derive::{BlockParts, DecodedBlock, Fold, Kind, Phase, Processor, Rows, Table};
use crate::error::Result;

/// Owners of ERC-721 items; the zero address owns burnt ones.
pub static NFT_OWNERSHIP: Table = Table {
    name: "nft_ownership",
    columns: &[
        key("contract_address", Kind::Address),
        key("nft_id", Kind::Amount),
        folded("owner", Kind::Address, Fold::Last),
        folded("last_height", Kind::Int, Fold::Max),
        folded("transfer_count", Kind::Int, Fold::Sum),
    ],
    indexes: &[&["owner", "contract_address", "nft_id"]],
};

/// Quantities of ERC-1155 items, by owner.
pub static NFT_BALANCES: Table = Table {
    name: "nft_balances",
    columns: &[
        key("contract_address", Kind::Address),
        key("nft_id", Kind::Amount),
        key("owner", Kind::Address),
        folded("quantity", Kind::Amount, Fold::Sum),
        folded("last_height", Kind::Int, Fold::Max),
    ],
    indexes: &[&["owner", "contract_address", "nft_id"]],
};

#[derive(Clone, Debug, Default)]
pub struct NftOwnership {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

impl Processor for NftOwnership {
    fn name(&self) -> &'static str {
        super::ProcessorName::NftOwnership.as_str()
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

    fn phase(&self) -> Phase {
        Phase::Two
    }

    fn reads(&self) -> BlockParts {
        BlockParts::Logs
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&NFT_OWNERSHIP, &NFT_BALANCES] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for transfer in &block.tokens.nft {
            match transfer.standard {
                NftStandard::Erc721 => owner(block.number(), transfer, rows)?,
                NftStandard::Erc1155 => quantities(block.number(), transfer, rows)?,
            }
        }
        Ok(())
    }
}

fn owner(height: u64, transfer: &NftTransfer, rows: &mut Rows) -> Result<()> {
    let cells = cells![transfer.collection, transfer.token_id, transfer.to, height, 1_u32];
    rows.push(&NFT_OWNERSHIP, transfer.log_index, cells)
}

fn quantities(height: u64, transfer: &NftTransfer, rows: &mut Rows) -> Result<()> {
    let moved = amount(transfer.quantity);
    let parties = [(transfer.from, -moved), (transfer.to, moved)];
    for (party, delta) in parties.into_iter().filter(|(party, _)| !party.is_zero()) {
        let cells = cells![transfer.collection, transfer.token_id, party, delta, height];
        rows.push(&NFT_BALANCES, transfer.log_index, cells)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Address, U256};
    use logmill_io::Amount;

    use super::*;
    use crate::derive::block_builder::{BlockBuilder, account, erc721, erc1155, rows, table};

    const ZERO: Address = Address::ZERO;

    #[test]
    fn the_last_transfer_decides_the_owner_and_a_burn_keeps_its_row() {
        let (a, b, items) = (account(1), account(2), account(3));
        let (kept, burnt) = (U256::from(7), U256::MAX);
        // The newest block comes first, as when history is derived backwards.
        let blocks = [
            BlockBuilder::new(9).transaction([
                erc721(items, b, ZERO, burnt),
                erc721(items, a, b, kept),
                erc721(items, b, a, kept),
            ]),
            BlockBuilder::new(4)
                .transaction([erc721(items, ZERO, b, burnt), erc721(items, ZERO, a, kept)]),
        ]
        .map(BlockBuilder::decoded);
        let rows = rows(&NftOwnership::default(), &blocks);
        let mut found = table(&rows, &NFT_OWNERSHIP);
        found.sort_by_key(|row| row[4] == 2_u64.into());
        let expected =
            [cells![items, kept, a, 9_u64, 3_u64], cells![items, burnt, ZERO, 9_u64, 2_u64]];
        assert_eq!(found, expected);
        assert!(table(&rows, &NFT_BALANCES).is_empty());
    }

    #[test]
    fn quantities_add_up_and_a_transfer_to_oneself_adds_nothing() {
        let (a, b, items) = (account(1), account(2), account(3));
        let blocks = [
            BlockBuilder::new(4).transaction([
                erc1155(items, ZERO, a, &[(5, 10), (5, 20), (6, 1)]),
                erc1155(items, a, a, &[(5, 7)]),
            ]),
            BlockBuilder::new(5).transaction([
                erc1155(items, a, b, &[(5, 12)]),
                erc1155(items, b, ZERO, &[(5, 2)]),
            ]),
        ]
        .map(BlockBuilder::decoded);
        let rows = rows(&NftOwnership::default(), &blocks);
        let row = |id: u64, owner, quantity: i64, last: u64| {
            cells![items, U256::from(id), owner, Amount::from(quantity), last]
        };
        let expected = [row(5, a, 18, 5), row(5, b, 10, 5), row(6, a, 1, 4)];
        assert_eq!(table(&rows, &NFT_BALANCES), expected);
        assert!(table(&rows, &NFT_OWNERSHIP).is_empty());
    }
}
