//! `staking_worker`: stake deposited through the deposit contract, and withdrawals.
//!
//! ```text
//! DepositEvent(bytes pubkey, bytes withdrawal_credentials, bytes amount, bytes signature, bytes index)
//! ```
//!
//! | `staking_events` | for a deposit (`source` 0) | for a withdrawal (`source` 1) |
//! |---|---|---|
//! | `event_index` | index of its log in the block | index among the block's withdrawals |
//! | `tx_index` | its transaction's | null: it has none |
//! | `event_type` | `DEPOSIT` | `WITHDRAWAL` |
//! | `node_id` | the validator's public key | null: not in the block |
//! | `validator_index` | null: not in the block | the validator's number |
//! | `address` | sender of the transaction | recipient |
//! | `amount` | in wei; the event has it in Gwei, little-endian | in wei; the block has it in Gwei |
//! | `withdrawal_credentials` | destination of its withdrawal | null |
//! | `sequence` | its number among all deposits | its number among all withdrawals |
//!
//! Swept rewards and returned stake are both withdrawals; a block does not distinguish them.
//!
//! Guarantees: a deposit counts only if the chain's deposit contract logged it, in the layout that EIP-6110 requires.
//! Leaves to others: which number a public key has, and whether a deposit became a validator; only the consensus layer
//! knows.

use alloy_primitives::{Address, B256, U256, address, b256};
use bytes::Bytes;
use logmill_chain::Log;

use crate::cells;
use crate::derive::decoded::abi;
use crate::derive::table::{Fold, folded, key, once};
use crate::derive::{Cell, DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

pub(crate) const DEPOSIT_EVENT: B256 =
    b256!("0x649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5");

/// Values of `source` for a deposit and a withdrawal.
const SOURCE_LOG: u8 = 0;
const SOURCE_WITHDRAWAL: u8 = 1;
const WEI_PER_GWEI: u64 = 1_000_000_000;

/// Length of a deposit's data. Each part below: index of the head word with its offset, that offset, and its length.
const DEPOSIT_BYTES: usize = 576;
const PUBKEY: [usize; 3] = [0, 160, 48];
const CREDENTIALS: [usize; 3] = [1, 256, 32];
const AMOUNT: [usize; 3] = [2, 320, 8];
const SIGNATURE: [usize; 3] = [3, 384, 96];
const INDEX: [usize; 3] = [4, 512, 8];

/// Deposits and withdrawals, one row each.
pub static STAKING_EVENTS: Table = Table {
    name: "staking_events",
    columns: &[
        key("block_height", Kind::Int),
        key("source", Kind::Int),
        key("event_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("event_type", Kind::Text),
        once("node_id", Kind::Bytes),
        once("validator_index", Kind::Int),
        once("address", Kind::Address),
        once("amount", Kind::Amount),
        once("withdrawal_credentials", Kind::Bytes),
        once("sequence", Kind::Int),
        once("timestamp", Kind::Int),
    ],
    indexes: &[&["address", "block_height"]],
};

/// Deposits, summed by public key.
pub static STAKING_NODES: Table = Table {
    name: "staking_nodes",
    columns: &[
        key("node_id", Kind::Bytes),
        folded("withdrawal_credentials", Kind::Bytes, Fold::First),
        folded("deposited", Kind::Amount, Fold::Sum),
        folded("first_seen_height", Kind::Int, Fold::Min),
        folded("deposit_count", Kind::Int, Fold::Sum),
    ],
    indexes: &[],
};

/// Withdrawals, summed by validator number.
pub static STAKING_VALIDATORS: Table = Table {
    name: "staking_validators",
    columns: &[
        key("validator_index", Kind::Int),
        folded("withdrawn", Kind::Amount, Fold::Sum),
        folded("address", Kind::Address, Fold::Last),
        folded("last_height", Kind::Int, Fold::Max),
        folded("withdrawal_count", Kind::Int, Fold::Sum),
    ],
    indexes: &[],
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Staking;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deposit {
    pub node_id: Bytes,
    pub withdrawal_credentials: Bytes,
    pub amount_gwei: u64,
    /// Number among all deposits of the chain.
    pub sequence: u64,
}

/// The deposit contract of a chain, if known.
pub(crate) fn deposit_contract(chain_id: u64) -> Option<Address> {
    match chain_id {
        // Ethereum, and Hoodi.
        1 | 560_048 => Some(address!("0x00000000219ab540356cbb839cbe05303d7705fa")),
        // Sepolia.
        11_155_111 => Some(address!("0x7f02c3e3c98b133055b8b348b2ac625669ed295d")),
        // Holesky.
        17_000 => Some(address!("0x4242424242424242424242424242424242424242")),
        _ => None,
    }
}

/// Decodes a deposit; none if the log is not one.
pub(crate) fn deposit(chain_id: u64, log: &Log) -> Option<Deposit> {
    if log.topics[..] != [DEPOSIT_EVENT] || deposit_contract(chain_id) != Some(log.address) {
        return None;
    }
    let data = Some(&log.data).filter(|data| data.len() == DEPOSIT_BYTES)?;
    part(data, SIGNATURE)?;
    let number = |place| Some(u64::from_le_bytes(part(data, place)?.try_into().ok()?));
    Some(Deposit {
        node_id: Bytes::copy_from_slice(part(data, PUBKEY)?),
        withdrawal_credentials: Bytes::copy_from_slice(part(data, CREDENTIALS)?),
        amount_gwei: number(AMOUNT)?,
        sequence: number(INDEX)?,
    })
}

/// A part of a deposit's data, if its offset and length are as required.
fn part(data: &[u8], [head, offset, length]: [usize; 3]) -> Option<&[u8]> {
    let tail = data.get(offset..)?;
    let is_right = abi::size(data, head)? == offset && abi::size(tail, 0)? == length;
    tail.get(32..)?.get(..length).filter(|_| is_right)
}

impl Processor for Staking {
    fn name(&self) -> &'static str {
        super::ProcessorName::Staking.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&STAKING_EVENTS, &STAKING_NODES, &STAKING_VALIDATORS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        deposits(block, rows)?;
        withdrawals(block, rows)
    }
}

fn deposits(block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
    for placed in block.block.logs() {
        let Some(deposit) = deposit(block.chain_id, placed.log) else {
            continue;
        };
        let transaction = block.transactions.get(placed.transaction_index);
        let amount = wei(deposit.amount_gwei);
        let event = cells![
            block.number(),
            SOURCE_LOG,
            placed.log_index,
            placed.transaction_index,
            "DEPOSIT",
            deposit.node_id.clone(),
            Cell::Null,
            transaction.and_then(|transaction| transaction.from),
            amount,
            deposit.withdrawal_credentials.clone(),
            deposit.sequence,
            block.timestamp(),
        ];
        rows.push(&STAKING_EVENTS, placed.log_index, event)?;
        let credentials = deposit.withdrawal_credentials;
        let node = cells![deposit.node_id, credentials, amount, block.number(), 1u8];
        rows.push(&STAKING_NODES, placed.log_index, node)?;
    }
    Ok(())
}

fn withdrawals(block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
    for (position, withdrawal) in block.withdrawals.iter().enumerate() {
        let (validator, amount) = (withdrawal.validator_index, wei(withdrawal.amount_gwei));
        let event = cells![
            block.number(),
            SOURCE_WITHDRAWAL,
            position,
            Cell::Null,
            "WITHDRAWAL",
            Cell::Null,
            validator,
            withdrawal.address,
            amount,
            Cell::Null,
            withdrawal.index,
            block.timestamp(),
        ];
        rows.push(&STAKING_EVENTS, position, event)?;
        let validator = cells![validator, amount, withdrawal.address, block.number(), 1u8];
        rows.push(&STAKING_VALIDATORS, position, validator)?;
    }
    Ok(())
}

fn wei(gwei: u64) -> U256 {
    U256::from(gwei) * U256::from(WEI_PER_GWEI)
}

#[cfg(test)]
pub(crate) mod tests;
