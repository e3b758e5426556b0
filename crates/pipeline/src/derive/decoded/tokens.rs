//! Token transfers in the logs of ERC-20, ERC-721, ERC-1155 and wrapped native tokens.
//!
//! | log | counts as | if it has |
//! |---|---|---|
//! | `Transfer` | ERC-20 | 3 topics, 32 bytes |
//! | `Transfer` | ERC-721 | 4 topics, no data |
//! | `Transfer` of a known early collection | ERC-721 | either of these, or 1 topic and 96 bytes |
//! | `TransferSingle`, `TransferBatch` | ERC-1155 | 4 topics; as many values as ids |
//! | `Deposit`, `Withdrawal` of a known wrapped native token | a mint, a burn | 2 topics, 32 bytes |
//!
//! The number in a `Transfer` without indexed arguments may be an amount or an item's id, and the log does not tell
//! which: such logs of unknown contracts are skipped. Vaults and games also have events named `Deposit` and
//! `Withdrawal`; those of unknown contracts are skipped. Some wrapped tokens also log a `Transfer` from or to the zero
//! address: then that one counts, and a `Deposit` or `Withdrawal` of the same transaction, account and amount is
//! skipped, one for one. (If an account sends to the zero address exactly what it withdraws in the same transaction,
//! only one of the two counts, and its balance is off by that amount.) `ConsecutiveTransfer` of ERC-2309 is skipped,
//! because a log of little gas could demand any number of rows. Such an item is known from its first `Transfer` on.
//!
//! Guarantees: each transfer of a log occurs once, in order; a log without the shape of its standard is skipped; there
//! are no more transfers than words in the logs. Leaves to others: whether a contract does what its logs claim.

use std::collections::HashMap;

use alloy_primitives::map::DefaultHashBuilder;
use alloy_primitives::{Address, B256, U256, b256};
use logmill_chain::{Block, Log};

use super::abi;
use super::known::TokenSettings;

mod balances;

pub use balances::FtChange;

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Transfers of fungible tokens, in order.
    pub ft: Vec<FtTransfer>,
    /// Transfers of unique and semi-fungible tokens, in order.
    pub nft: Vec<NftTransfer>,
    /// Net effect of `ft`, by account and token.
    pub ft_changes: Vec<FtChange>,
}

/// Effect of a transfer on the supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// None.
    Transfer,
    /// From the zero address, or a deposit of the native asset.
    Mint,
    /// To the zero address, or a withdrawal of the native asset.
    Burn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtTransfer {
    pub token: Address,
    /// The zero address for a mint.
    pub from: Address,
    /// The zero address for a burn.
    pub to: Address,
    /// In the smallest unit.
    pub amount: U256,
    pub kind: TransferKind,
    pub transaction_index: usize,
    /// Index in the block.
    pub log_index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftStandard {
    /// Each item has one owner.
    Erc721,
    /// Items have quantities.
    Erc1155,
}

/// A transfer of a unique or semi-fungible token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftTransfer {
    pub collection: Address,
    pub token_id: U256,
    /// The zero address for a mint.
    pub from: Address,
    /// The zero address for a burn.
    pub to: Address,
    /// Always 1 for ERC-721.
    pub quantity: U256,
    pub standard: NftStandard,
    pub kind: TransferKind,
    pub transaction_index: usize,
    /// Index in the block.
    pub log_index: usize,
    /// Index in the batch of its log, from 0.
    pub batch_index: usize,
}

impl TransferKind {
    fn between(from: Address, to: Address) -> Self {
        match (from.is_zero(), to.is_zero()) {
            (true, false) => Self::Mint,
            (false, true) => Self::Burn,
            _ => Self::Transfer,
        }
    }

    /// As stored in tables: 0, 1 for a mint, 2 for a burn.
    pub fn number(self) -> i64 {
        match self {
            Self::Transfer => 0,
            Self::Mint => 1,
            Self::Burn => 2,
        }
    }
}

impl NftStandard {
    /// As stored in tables: 721 or 1155.
    pub fn number(self) -> i64 {
        match self {
            Self::Erc721 => 721,
            Self::Erc1155 => 1155,
        }
    }
}

impl Tokens {
    pub fn of(block: &Block, settings: &TokenSettings) -> Self {
        let mut tokens = Self::default();
        let mut wraps = Vec::new();
        for placed in block.logs() {
            let log = placed.log;
            let at = LogIndexes { transaction: placed.transaction_index, log: placed.log_index };
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

    fn transfer(&mut self, at: LogIndexes, log: &Log, settings: &TokenSettings) {
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

    /// Adds deposits and withdrawals, except those that a `Transfer` already reports.
    fn add_wraps(&mut self, wraps: Vec<FtTransfer>) {
        if wraps.is_empty() {
            return;
        }
        let same = |transfer: &FtTransfer| {
            let FtTransfer { transaction_index, token, from, to, amount, .. } = *transfer;
            (transaction_index, token, from, to, amount)
        };
        let mut reported: HashMap<_, usize, DefaultHashBuilder> = HashMap::default();
        for transfer in self.ft.iter().filter(|it| it.kind != TransferKind::Transfer) {
            *reported.entry(same(transfer)).or_default() += 1;
        }
        for wrap in wraps {
            match reported.get_mut(&same(&wrap)) {
                Some(count) if *count > 0 => *count -= 1,
                _ => self.ft.push(wrap),
            }
        }
        self.ft.sort_by_key(|transfer| transfer.log_index);
    }
}

#[derive(Clone, Copy)]
struct LogIndexes {
    transaction: usize,
    log: usize,
}

/// `words` are from, to and amount.
fn fungible(at: LogIndexes, token: Address, words: [B256; 3]) -> Option<FtTransfer> {
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

/// `words` are from, to and id.
fn unique(at: LogIndexes, collection: Address, words: [B256; 3]) -> Option<NftTransfer> {
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

/// The arguments are from, to and id, of which the first ones may be indexed. A log with one indexed argument is
/// skipped, because it does not tell which one that is.
fn early(at: LogIndexes, log: &Log) -> Option<NftTransfer> {
    if log.topics.len() == 2 {
        return None;
    }
    let mut bytes = log.topics.get(1..)?.concat();
    bytes.extend_from_slice(&log.data);
    unique(at, log.address, abi::words(&bytes)?)
}

fn single(at: LogIndexes, log: &Log) -> Option<NftTransfer> {
    let [id, quantity] = abi::words(&log.data)?;
    semi_fungible(at, log, 0, id, quantity)
}

fn batch(at: LogIndexes, log: &Log) -> Option<Vec<NftTransfer>> {
    let (ids, quantities) = (abi::array(&log.data, 0, 1)?, abi::array(&log.data, 1, 1)?);
    if ids.len() != quantities.len() {
        return None;
    }
    let items = ids.into_iter().zip(quantities).enumerate();
    items.map(|(index, (id, quantity))| semi_fungible(at, log, index, id, quantity)).collect()
}

/// The topics are the event, operator, from and to.
fn semi_fungible(
    at: LogIndexes,
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

fn wrap(at: LogIndexes, log: &Log, deposit: bool) -> Option<FtTransfer> {
    let [_, account] = log.topics[..] else {
        return None;
    };
    let [amount] = abi::words(&log.data)?;
    let parties = if deposit { [B256::ZERO, account] } else { [account, B256::ZERO] };
    fungible(at, log.address, [parties[0], parties[1], amount])
}

#[cfg(test)]
mod tests;
