//! Token transfers: what ERC-20, ERC-721, ERC-1155 and wrapped native tokens say in their logs.
//!
//! | log | counts as | if it has |
//! |---|---|---|
//! | `Transfer` | ERC-20 | 3 topics, 32 bytes |
//! | `Transfer` | ERC-721 | 4 topics, no data |
//! | `Transfer` of a collection that is known to be early | ERC-721 | either of these, or 1 topic and 96 bytes |
//! | `TransferSingle`, `TransferBatch` | ERC-1155 | 4 topics; as many values as ids |
//! | `Deposit`, `Withdrawal` of a token that is known to wrap | a mint, a burn | 2 topics, 32 bytes |
//!
//! `Transfer` with nothing indexed is a token's amount as often as an item's id, and nothing in the log tells which:
//! those of unknown contracts are left out. `Deposit` and `Withdrawal` are what vaults and games call their events too;
//! those of unknown contracts are left out. Some wrapping tokens log a `Transfer` from or to the zero address as well:
//! then that one counts, and a `Deposit` or `Withdrawal` of the same transaction, account and amount is left out, one
//! for one. (An account that sends to the zero address just what it withdraws in the same transaction is counted once;
//! it costs that amount.) `ConsecutiveTransfer` of ERC-2309 is left out: a log of little gas could ask for any number
//! of rows. Such an item is known from its first `Transfer` on.
//!
//! Guarantees: each transfer of a log is there once, in order; what does not have the shape of its standard is left
//! out; there are no more transfers than the logs have words. Leaves to others: whether a contract keeps to what its
//! logs say.

use std::collections::HashMap;

use alloy_primitives::map::DefaultHashBuilder;
use alloy_primitives::{Address, B256, U256, b256};
use logmill_chain::{Block, Log};

use super::abi;
use super::balances::{self, FtChange};
use super::known::TokenSettings;

/// `Transfer(address,address,uint256)`.
pub(crate) const TRANSFER: B256 =
    b256!("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
/// `TransferSingle(address,address,address,uint256,uint256)`.
pub(crate) const TRANSFER_SINGLE: B256 =
    b256!("0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62");
/// `TransferBatch(address,address,address,uint256[],uint256[])`.
pub(crate) const TRANSFER_BATCH: B256 =
    b256!("0x4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb");
/// `Deposit(address,uint256)`.
pub(crate) const DEPOSIT: B256 =
    b256!("0xe1fffcc4923d04b559f4d29a8bfc6cda04eb5b0d3c460751c2402c5c5cc9109c");
/// `Withdrawal(address,uint256)`.
pub(crate) const WITHDRAWAL: B256 =
    b256!("0x7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65");

/// The token transfers of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of fungible tokens, in order.
    pub ft: Vec<FtTransfer>,
    /// Of unique and semi-fungible ones, in order.
    pub nft: Vec<NftTransfer>,
    /// What the transfers of fungible tokens did, by account and token.
    pub ft_changes: Vec<FtChange>,
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

impl TransferKind {
    /// What a transfer between these does.
    fn between(from: Address, to: Address) -> Self {
        match (from.is_zero(), to.is_zero()) {
            (true, false) => Self::Mint,
            (false, true) => Self::Burn,
            _ => Self::Transfer,
        }
    }

    /// As tables say it: 0, 1 for a mint, 2 for a burn.
    pub fn number(self) -> i64 {
        match self {
            Self::Transfer => 0,
            Self::Mint => 1,
            Self::Burn => 2,
        }
    }
}

impl NftStandard {
    /// As tables say it: 721 or 1155.
    pub fn number(self) -> i64 {
        match self {
            Self::Erc721 => 721,
            Self::Erc1155 => 1155,
        }
    }
}

impl Tokens {
    /// The transfers of a block's logs.
    pub fn of(block: &Block, settings: &TokenSettings) -> Self {
        let mut tokens = Self::default();
        let mut wraps = Vec::new();
        for placed in block.logs() {
            let log = placed.log;
            let at = Place { transaction: placed.transaction_index, log: placed.log_index };
            match log.topics.first() {
                Some(&TRANSFER) => tokens.transfer(at, log, settings),
                Some(&TRANSFER_SINGLE) => tokens.nft.extend(single(at, log)),
                Some(&TRANSFER_BATCH) => tokens.nft.extend(batch(at, log).unwrap_or_default()),
                Some(topic @ (&DEPOSIT | &WITHDRAWAL))
                    if settings.wrapped_native.contains(&log.address) =>
                {
                    wraps.extend(wrap(at, log, *topic == DEPOSIT));
                }
                _ => {}
            }
        }
        tokens.add_wraps(wraps);
        tokens.ft_changes = balances::changes(&tokens.ft);
        tokens
    }

    fn transfer(&mut self, at: Place, log: &Log, settings: &TokenSettings) {
        if settings.early_nfts.contains(&log.address) {
            self.nft.extend(early(at, log));
            return;
        }
        match log.topics[..] {
            [_, from, to] => {
                let Some([amount]) = abi::words(&log.data) else { return };
                self.ft.extend(fungible(at, log.address, [from, to, amount]));
            }
            [_, from, to, id] if log.data.is_empty() => {
                self.nft.extend(unique(at, log.address, [from, to, id]));
            }
            _ => {}
        }
    }

    /// Adds deposits and withdrawals, except for those that a transfer says already.
    fn add_wraps(&mut self, wraps: Vec<FtTransfer>) {
        if wraps.is_empty() {
            return;
        }
        let same = |transfer: &FtTransfer| {
            let FtTransfer { transaction_index, token, from, to, amount, .. } = *transfer;
            (transaction_index, token, from, to, amount)
        };
        let mut said: HashMap<_, usize, DefaultHashBuilder> = HashMap::default();
        for transfer in self.ft.iter().filter(|it| it.kind != TransferKind::Transfer) {
            *said.entry(same(transfer)).or_default() += 1;
        }
        for wrap in wraps {
            match said.get_mut(&same(&wrap)) {
                Some(count) if *count > 0 => *count -= 1,
                _ => self.ft.push(wrap),
            }
        }
        self.ft.sort_by_key(|transfer| transfer.log_index);
    }
}

#[derive(Clone, Copy)]
struct Place {
    transaction: usize,
    log: usize,
}

/// From, to and amount.
fn fungible(at: Place, token: Address, words: [B256; 3]) -> Option<FtTransfer> {
    let (from, to) = (abi::address(&words[0])?, abi::address(&words[1])?);
    Some(FtTransfer {
        token,
        from,
        to,
        amount: words[2].into(),
        kind: TransferKind::between(from, to),
        transaction_index: at.transaction,
        log_index: at.log,
    })
}

/// From, to and id.
fn unique(at: Place, collection: Address, words: [B256; 3]) -> Option<NftTransfer> {
    let (from, to) = (abi::address(&words[0])?, abi::address(&words[1])?);
    Some(NftTransfer {
        collection,
        token_id: words[2].into(),
        from,
        to,
        quantity: U256::ONE,
        standard: NftStandard::Erc721,
        kind: TransferKind::between(from, to),
        transaction_index: at.transaction,
        log_index: at.log,
        batch_index: 0,
    })
}

/// From, to and id, of which any number of the first may be indexed, as long as it is not one: which one is not said.
fn early(at: Place, log: &Log) -> Option<NftTransfer> {
    if log.topics.len() == 2 {
        return None;
    }
    let mut bytes = log.topics.get(1..)?.concat();
    bytes.extend_from_slice(&log.data);
    unique(at, log.address, abi::words(&bytes)?)
}

fn single(at: Place, log: &Log) -> Option<NftTransfer> {
    let [id, quantity] = abi::words(&log.data)?;
    semi_fungible(at, log, 0, id, quantity)
}

fn batch(at: Place, log: &Log) -> Option<Vec<NftTransfer>> {
    let (ids, quantities) = (abi::array(&log.data, 0, 1)?, abi::array(&log.data, 1, 1)?);
    if ids.len() != quantities.len() {
        return None;
    }
    let items = ids.into_iter().zip(quantities).enumerate();
    items.map(|(index, (id, quantity))| semi_fungible(at, log, index, id, quantity)).collect()
}

/// The topics are the event, who did it, from and to.
fn semi_fungible(
    at: Place,
    log: &Log,
    batch_index: usize,
    id: B256,
    quantity: B256,
) -> Option<NftTransfer> {
    let [_, operator, from, to] = log.topics[..] else {
        return None;
    };
    abi::address(&operator)?;
    let of_log = unique(at, log.address, [from, to, id])?;
    let (quantity, standard) = (quantity.into(), NftStandard::Erc1155);
    Some(NftTransfer { quantity, standard, batch_index, ..of_log })
}

fn wrap(at: Place, log: &Log, deposit: bool) -> Option<FtTransfer> {
    let [_, account] = log.topics[..] else {
        return None;
    };
    let [amount] = abi::words(&log.data)?;
    let parties = if deposit { [B256::ZERO, account] } else { [account, B256::ZERO] };
    fungible(at, log.address, [parties[0], parties[1], amount])
}

#[cfg(test)]
mod tests;
