//! `DecodedBlock`: a block decoded once, for all processors.
//!
//! Guarantees: facts that a block does not contain are `None`, never a guess; a log that does not have the shape of its
//! topic's event is skipped and is no error. Leaves to others: what the facts mean to a table.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use logmill_chain::{Block, BlockRef};

use crate::error::Result;

pub(crate) mod abi;
pub(crate) mod event;
mod known;
pub(crate) mod tokens;
mod transactions;

pub use known::TokenSettings;
pub use tokens::{FtChange, FtTransfer, NftStandard, NftTransfer, Tokens, TransferKind};

/// The parts of a block that a processor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockParts {
    /// Logs and token transfers; transactions are not decoded.
    Logs,
    /// Everything. The senders cost most, because they are recovered from signatures.
    Everything,
}

#[derive(Debug)]
pub struct DecodedBlock {
    pub chain_id: u64,
    pub block: Arc<Block>,
    pub header: HeaderFacts,
    /// In block order, with facts from their receipts.
    pub transactions: Vec<DecodedTransaction>,
    pub withdrawals: Vec<Withdrawal>,
    /// Token transfers in the logs: the input of phase two.
    pub tokens: Tokens,
}

/// Header facts that tables need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFacts {
    pub miner: Option<Address>,
    /// Burnt fee per gas.
    pub base_fee_per_gas: Option<u64>,
    pub blob_gas_price: Option<u128>,
    pub gas_used: Option<u64>,
    pub gas_limit: Option<u64>,
}

/// A transaction with facts from its receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedTransaction {
    pub hash: B256,
    /// Index in the block.
    pub index: usize,
    /// EIP-2718 type; 0 for a legacy transaction.
    pub tx_type: u8,
    pub from: Option<Address>,
    /// Whether `from` is recovered from a signature, so that the sender has a key. Some chains have transactions sent
    /// by contracts.
    pub is_signed: bool,
    /// None if it creates a contract.
    pub to: Option<Address>,
    /// The created contract; none if the transaction failed. If the receipt has no status, it may have failed.
    pub created: Option<Address>,
    /// Signers of the delegations that it carries (EIP-7702), in order, whether they took effect or not.
    pub authorities: Vec<Address>,
    pub nonce: Option<u64>,
    pub value: U256,
    pub input: Bytes,
    /// None if the receipt has no status.
    pub success: Option<bool>,
    pub gas_limit: Option<u64>,
    pub gas_used: Option<u64>,
    pub effective_gas_price: Option<u128>,
    pub blob_gas_used: Option<u64>,
    /// Fee for data stored on another chain.
    pub l1_fee: Option<U256>,
    /// Index of its first log in the block.
    pub first_log: usize,
    pub log_count: usize,
}

impl DecodedTransaction {
    /// The first four bytes of a call's input; none if it creates a contract or the input is shorter.
    pub fn selector(&self) -> Option<[u8; 4]> {
        self.to?;
        self.input.get(..4)?.try_into().ok()
    }
}

/// Ether that the consensus layer paid to an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// Number among all withdrawals of the chain.
    pub index: u64,
    pub validator_index: u64,
    pub address: Address,
    pub amount_gwei: u64,
}

impl DecodedBlock {
    /// Decodes a block with the default token settings.
    pub fn new(chain_id: u64, block: Arc<Block>) -> Result<Self> {
        Self::with(chain_id, block, TokenSettings::known(), BlockParts::Everything)
    }

    /// Decodes the parts of a block that `reads` names.
    pub fn with(
        chain_id: u64,
        block: Arc<Block>,
        tokens: &TokenSettings,
        reads: BlockParts,
    ) -> Result<Self> {
        let (header, transactions) = match reads {
            BlockParts::Logs => Default::default(),
            BlockParts::Everything => transactions::facts(chain_id, &block)?,
        };
        let withdrawals = match reads {
            BlockParts::Logs => Vec::new(),
            BlockParts::Everything => transactions::withdrawals(&block)?,
        };
        let tokens = Tokens::of(&block, tokens);
        Ok(Self { chain_id, block, header, transactions, withdrawals, tokens })
    }

    pub fn at(&self) -> BlockRef {
        self.block.at
    }

    pub fn number(&self) -> u64 {
        self.block.at.number
    }

    /// In seconds since 1970.
    pub fn timestamp(&self) -> u64 {
        self.block.at.timestamp
    }
}
