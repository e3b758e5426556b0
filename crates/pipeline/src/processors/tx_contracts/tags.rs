//! Tags: words for what a transaction did.
//!
//! | tag | condition |
//! |---|---|
//! | `FAILED` | its receipt reports failure |
//! | `DEPLOY` | it created a contract (and is not known to have failed) |
//! | `BLOB` | it has type 3, or used blob gas |
//! | `SET_CODE` | it has type 4: it carries delegations, which hold even if it fails |
//! | `TRANSFER` | it only sends ether: a value, no input, no log, and it is not known to have failed |
//! | `FT_TRANSFER` | a fungible token went from one holder to another |
//! | `NFT_TRANSFER` | a unique token went from one holder to another |
//! | `NFT` | a unique token was moved, minted or burnt |
//! | `WRAP`, `UNWRAP` | ether was wrapped (a mint by a log `Deposit`) or unwrapped (a burn by a log `Withdrawal`) |
//! | `MINT`, `BURN` | a token's supply grew or shrank in another way |
//! | `APPROVAL` | a log is `Approval` or `ApprovalForAll`, but not for the zero address, which revokes an approval |
//! | `FEE` | a log has the topic and number of topics of `FeesCollected` or `FeesForwarded`, from any contract |
//! | `STAKING` | a log is a deposit of stake, from the chain's deposit contract |
//! | `SWAP`, `LIQUIDITY`, `MARKETPLACE` | a log is one of the events listed in `events.rs`, from any contract |
//!
//! Guarantees: a rule depends only on the transaction, its logs and its token transfers. Leaves to others: whether a
//! contract is what it seems to be; any contract may write any log.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, b256};
use logmill_chain::Log;

use super::events;
use crate::derive::DecodedBlock;
use crate::derive::decoded::{DecodedTransaction, TransferKind, abi};
use crate::processors::fees::{FEES_COLLECTED, FEES_FORWARDED};
use crate::processors::staking;

/// Topic of `Approval(address,address,uint256)`.
pub(crate) const APPROVAL: B256 =
    b256!("0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925");
/// Topic of `ApprovalForAll(address,address,bool)`.
pub(crate) const APPROVAL_FOR_ALL: B256 =
    b256!("0x17307eab39ab6107e8899845ad3d59bd9653f200f220920489ca2b5937696c31");
/// Topic of `Deposit(address,uint256)`.
pub(crate) const WRAPPED: B256 =
    b256!("0xe1fffcc4923d04b559f4d29a8bfc6cda04eb5b0d3c460751c2402c5c5cc9109c");
/// Topic of `Withdrawal(address,uint256)`.
pub(crate) const UNWRAPPED: B256 =
    b256!("0x7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65");

/// EIP-2718 types that have a tag.
const BLOB_TYPE: u8 = 3;
const SET_CODE_TYPE: u8 = 4;

pub(crate) type Tags = BTreeSet<&'static str>;

/// The tags of each transaction of a block.
pub(crate) fn of(block: &DecodedBlock) -> Vec<Tags> {
    let mut all: Vec<Tags> = block.transactions.iter().map(of_transaction).collect();
    let mut add = |transaction: usize, tag: &'static str| {
        all.get_mut(transaction).map(|tags| tags.insert(tag));
    };
    let mut topics: Vec<Option<B256>> = Vec::with_capacity(block.block.log_count());
    for placed in block.block.logs() {
        topics.push(placed.log.topics.first().copied());
        for tag in of_log(block.chain_id, placed.log).into_iter().flatten() {
            add(placed.transaction_index, tag);
        }
    }
    for transfer in &block.tokens.ft {
        let topic = topics.get(transfer.log_index).copied().flatten();
        let tag = match (transfer.kind, topic) {
            (TransferKind::Transfer, _) => "FT_TRANSFER",
            (TransferKind::Mint, Some(WRAPPED)) => "WRAP",
            (TransferKind::Burn, Some(UNWRAPPED)) => "UNWRAP",
            (TransferKind::Mint, _) => "MINT",
            (TransferKind::Burn, _) => "BURN",
        };
        add(transfer.transaction_index, tag);
    }
    for transfer in &block.tokens.nft {
        let tag = match transfer.kind {
            TransferKind::Transfer => "NFT_TRANSFER",
            TransferKind::Mint => "MINT",
            TransferKind::Burn => "BURN",
        };
        add(transfer.transaction_index, tag);
        add(transfer.transaction_index, "NFT");
    }
    all
}

fn of_transaction(transaction: &DecodedTransaction) -> Tags {
    let failed = transaction.success == Some(false);
    let plain = transaction.to.is_some()
        && !transaction.value.is_zero()
        && transaction.input.is_empty()
        && transaction.log_count == 0;
    let rules = [
        ("FAILED", failed),
        ("DEPLOY", transaction.created.is_some()),
        ("BLOB", transaction.tx_type == BLOB_TYPE || transaction.blob_gas_used > Some(0)),
        ("SET_CODE", transaction.tx_type == SET_CODE_TYPE),
        ("TRANSFER", plain && !failed),
    ];
    rules.into_iter().filter(|(_, holds)| *holds).map(|(tag, _)| tag).collect()
}

/// Tags from a log alone: by its event, and by its contract.
fn of_log(chain_id: u64, log: &Log) -> [Option<&'static str>; 2] {
    let topics = &log.topics[..];
    let by_event = match topics {
        [APPROVAL, _, spender] | [APPROVAL, _, spender, _] | [APPROVAL_FOR_ALL, _, spender] => {
            abi::address(spender).filter(|spender| *spender != Address::ZERO).map(|_| "APPROVAL")
        }
        [FEES_COLLECTED, _, _] | [FEES_FORWARDED, _] => Some("FEE"),
        _ => events::tag(log),
    };
    [by_event, staking::deposit(chain_id, log).map(|_| "STAKING")]
}
