//! `DecodedBlock`: a block read once, for all processors.
//!
//! Guarantees: what a block does not tell is `None`, never a guess; a log that is not what its topic says is left out
//! of what is decoded from it, and is no error. Leaves to others: what the facts mean to a table.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use logmill_chain::{Block, BlockRef};

use super::processor::Reads;
use crate::error::Result;

pub mod abi;
mod balances;
mod known;
pub(crate) mod tokens;
mod transactions;

pub use balances::FtChange;
pub use known::TokenSettings;
pub use tokens::{FtTransfer, NftStandard, NftTransfer, Tokens, TransferKind};

/// A block, decoded.
#[derive(Debug)]
pub struct DecodedBlock {
    /// Which chain.
    pub chain_id: u64,
    /// The block itself.
    pub block: Arc<Block>,
    /// What its header says.
    pub header: HeaderFacts,
    /// Its transactions with what their receipts say, in order.
    pub transactions: Vec<DecodedTransaction>,
    /// Its withdrawals.
    pub withdrawals: Vec<Withdrawal>,
    /// The token transfers of its logs: what phase two works on.
    pub tokens: Tokens,
}

/// What a header says, as far as tables need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFacts {
    /// Who made the block.
    pub miner: Option<Address>,
    /// The fee that is burnt, per gas.
    pub base_fee_per_gas: Option<u64>,
    /// The price of blob gas.
    pub blob_gas_price: Option<u128>,
    /// The gas of all transactions.
    pub gas_used: Option<u64>,
    /// The most gas they could have used.
    pub gas_limit: Option<u64>,
}

/// A transaction with what its receipt says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedTransaction {
    /// Its hash.
    pub hash: B256,
    /// Its position in the block.
    pub index: usize,
    /// Its type, 0 for a legacy one.
    pub tx_type: u8,
    /// Who sent it.
    pub from: Option<Address>,
    /// Whether that is known by a signature: then the sender has a key. Some chains have transactions of contracts.
    pub is_signed: bool,
    /// Whom it calls; none if it creates a contract.
    pub to: Option<Address>,
    /// The contract that it created; none if it failed. Where the receipt does not tell, it may have failed.
    pub created: Option<Address>,
    /// Who signed the delegations that it carries (EIP-7702), in order, whether they took effect or not.
    pub authorities: Vec<Address>,
    /// Its number among those of its sender.
    pub nonce: Option<u64>,
    /// What it sends.
    pub value: U256,
    /// What it says.
    pub input: Bytes,
    /// Whether it succeeded, if the receipt says so.
    pub success: Option<bool>,
    /// The most gas that it could have used.
    pub gas_limit: Option<u64>,
    /// The gas that it used.
    pub gas_used: Option<u64>,
    /// What it paid per gas.
    pub effective_gas_price: Option<u128>,
    /// The blob gas that it used.
    pub blob_gas_used: Option<u64>,
    /// What it paid for being stored on another chain.
    pub l1_fee: Option<U256>,
    /// The position of its first log in the block.
    pub first_log: usize,
    /// How many logs it has.
    pub log_count: usize,
}

impl DecodedTransaction {
    /// The first four bytes of what it says: which function it calls.
    pub fn selector(&self) -> Option<[u8; 4]> {
        self.to?;
        self.input.get(..4)?.try_into().ok()
    }
}

/// Ether that the consensus layer gave to an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// Its number since the first of all.
    pub index: u64,
    /// The validator whose it was.
    pub validator_index: u64,
    /// Who got it.
    pub address: Address,
    /// How much, in Gwei.
    pub amount_gwei: u64,
}

impl DecodedBlock {
    /// Reads a block, with the tokens that are known.
    pub fn new(chain_id: u64, block: Arc<Block>) -> Result<Self> {
        Self::with(chain_id, block, TokenSettings::known(), Reads::Everything)
    }

    /// Reads a block, as far as it is looked at.
    pub fn with(
        chain_id: u64,
        block: Arc<Block>,
        tokens: &TokenSettings,
        reads: Reads,
    ) -> Result<Self> {
        let (header, transactions) = match reads {
            Reads::Logs => Default::default(),
            Reads::Everything => transactions::facts(chain_id, &block)?,
        };
        let withdrawals = match reads {
            Reads::Logs => Vec::new(),
            Reads::Everything => transactions::withdrawals(&block)?,
        };
        let tokens = Tokens::of(&block, tokens);
        Ok(Self { chain_id, block, header, transactions, withdrawals, tokens })
    }

    /// Its place in the chain.
    pub fn at(&self) -> BlockRef {
        self.block.at
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.block.at.number
    }

    /// Its time, in seconds since 1970.
    pub fn timestamp(&self) -> u64 {
        self.block.at.timestamp
    }
}
