//! A block with everything in it, and its place in the chain.
//!
//! Parts are kept in the form that the chain hashes ([`Header::Canonical`], [`TransactionForm::Canonical`]), so that
//! roots and proofs can be computed from stored data. On chains whose encoding we do not know, the node's JSON is
//! kept instead; such parts are never verified.
//!
//! Guarantees: none beyond the types; [`crate::verify()`] does the checks. Leaves to others: JSON.

use alloy_consensus::Header as EvmHeader;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bloom, BloomInput, Bytes, keccak256};
use alloy_rlp::Decodable;
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::json_fields;
use crate::node_fields::{KeptFields, key};
use crate::sender::Sender;
use crate::verify_level::VerifyLevel;

pub const TOPICS_MAX: usize = 4;

pub type Topics = ArrayVec<B256, TOPICS_MAX>;

/// The place of a block in its chain: all that is needed to follow a chain of any family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockRef {
    /// Block height.
    pub number: u64,
    pub hash: B256,
    pub parent_hash: B256,
    /// Seconds since 1970.
    pub timestamp: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub at: BlockRef,
    pub header: Header,
    /// Hashes of the uncle headers.
    pub uncles: Vec<B256>,
    /// RLP list; `None` before Shanghai.
    pub withdrawals: Option<Bytes>,
    /// Bytes of the whole encoded block.
    pub size: u64,
    pub transactions: Vec<Transaction>,
    /// One per transaction; its outcome is [`Outcome::Unknown`] where the node has none ([`Block::lacks_receipt`]).
    pub receipts: Vec<Receipt>,
    /// The checks that it passed.
    pub verified: VerifyLevel,
    /// Values that its node reported and that do not follow from the rest. Stored separately ([`crate::stored`]).
    #[serde(skip)]
    pub node_fields: KeptFields,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Header {
    /// RLP; its hash is the block hash.
    Canonical(Bytes),
    /// The node's JSON, without the transactions.
    Foreign(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    pub hash: B256,
    pub form: TransactionForm,
    /// Known only if it was recovered before. Stored separately ([`crate::stored`]).
    #[serde(skip)]
    pub sender: Sender,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionForm {
    /// EIP-2718 bytes, whose hash is the transaction hash. The sender follows from the signature.
    Canonical(Bytes),
    /// The node's JSON.
    Foreign(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The transaction type, 0 for a legacy one.
    pub tx_type: u8,
    pub outcome: Outcome,
    /// Gas used in the block up to and including this transaction.
    pub cumulative_gas_used: u64,
    pub logs: Vec<Log>,
    /// Fields of the node's receipt that do not follow from the block, as a JSON object: `l1Fee` and the like, and on
    /// chains without Ethereum's rules any field whose value differs from the derived one ([`crate::node_fields`]).
    pub extra: Option<Bytes>,
}

/// Result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Whether it succeeded.
    Status(bool),
    /// The state root after it, which receipts before Byzantium hold instead.
    StateRoot(B256),
    /// The node returned logs but no receipts. Such a block is verified by its bloom at most.
    Unknown,
}

/// A log, without its place in the chain.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Log {
    /// The contract that emitted it.
    pub address: Address,
    pub topics: Topics,
    pub data: Bytes,
}

#[derive(Clone, Copy, Debug)]
pub struct PlacedLog<'a> {
    pub log: &'a Log,
    pub transaction_index: usize,
    pub transaction_hash: B256,
    /// Position in the block, used for ids and rows. The `logIndex` to serve is [`Block::log_index`].
    pub log_index: usize,
}

impl Block {
    /// Numbers the logs by position, because some nodes number them wrongly.
    pub fn logs(&self) -> impl Iterator<Item = PlacedLog<'_>> {
        let with_hash = self.receipts.iter().zip(&self.transactions).enumerate();
        let logs = with_hash.flat_map(|(transaction_index, (receipt, transaction))| {
            receipt.logs.iter().map(move |log| (transaction_index, transaction.hash, log))
        });
        logs.enumerate().map(|(log_index, (transaction_index, transaction_hash, log))| PlacedLog {
            log,
            transaction_index,
            transaction_hash,
            log_index,
        })
    }

    /// `None` before Shanghai.
    pub fn decode_withdrawals(&self) -> Result<Option<Vec<Withdrawal>>> {
        let Some(bytes) = &self.withdrawals else {
            return Ok(None);
        };
        let decoded = Vec::<Withdrawal>::decode(&mut &bytes[..]);
        decoded
            .map(Some)
            .map_err(|error| Error::corrupt(format!("cannot decode the withdrawals: {error}")))
    }

    pub fn log_count(&self) -> usize {
        self.receipts.iter().map(|receipt| receipt.logs.len()).sum()
    }

    /// The `logIndex` of the log at a position: the node's if it is kept, else the position.
    pub fn log_index(&self, position: usize) -> u32 {
        let kept = self.node_fields.get().log_indexes.get(position).copied();
        kept.or_else(|| key(position)).unwrap_or(u32::MAX)
    }

    /// Whether the node returned no receipt for a transaction.
    pub fn lacks_receipt(&self, position: usize) -> bool {
        key(position).is_some_and(|key| self.node_fields.get().without_receipt.contains(&key))
    }

    /// Number of transactions that the block lists; only the receipts of any others are known.
    pub fn listed_transactions(&self) -> usize {
        let alone = usize::try_from(self.node_fields.get().receipts_alone).unwrap_or(usize::MAX);
        self.transactions.len().saturating_sub(alone)
    }

    /// Recovers the senders of all its transactions, replacing any that are set.
    pub fn recover_senders(&mut self) {
        for transaction in &mut self.transactions {
            transaction.sender = transaction.recover_sender();
        }
    }
}

impl Header {
    /// Returns `None` for a foreign header.
    pub fn decode(&self) -> Result<Option<EvmHeader>> {
        let Self::Canonical(bytes) = self else {
            return Ok(None);
        };
        let mut rest = &bytes[..];
        match EvmHeader::decode(&mut rest) {
            Ok(header) if rest.is_empty() => Ok(Some(header)),
            Ok(_) => Err(Error::corrupt("a header has bytes after its end")),
            Err(error) => Err(Error::corrupt(format!("cannot decode a header: {error}"))),
        }
    }

    /// The logs bloom; `None` if a foreign header has none, or one that cannot be parsed.
    pub fn bloom(&self) -> Result<Option<Bloom>> {
        match self {
            Self::Canonical(_) => Ok(self.decode()?.map(|header| header.logs_bloom)),
            Self::Foreign(json) => {
                let fields = json_fields::object(json, "a header")?;
                Ok(json_fields::field(&fields, "logsBloom"))
            }
        }
    }
}

impl Transaction {
    /// A transaction whose sender has not been recovered.
    pub fn new(hash: B256, form: TransactionForm) -> Self {
        Self { hash, form, sender: Sender::Unknown }
    }

    /// From EIP-2718 bytes.
    pub fn canonical(bytes: Bytes) -> Self {
        Self::new(keccak256(&bytes), TransactionForm::Canonical(bytes))
    }

    /// Recovers the signer. Returns `Unknown` for a foreign transaction and for one that cannot be decoded.
    pub fn recover_sender(&self) -> Sender {
        match &self.form {
            TransactionForm::Canonical(bytes) => Sender::recover(bytes),
            TransactionForm::Foreign(_) => Sender::Unknown,
        }
    }
}

impl Receipt {
    pub fn bloom(&self) -> Bloom {
        let mut bloom = Bloom::ZERO;
        self.logs.iter().for_each(|log| log.accrue(&mut bloom));
        bloom
    }
}

impl Log {
    pub fn accrue(&self, bloom: &mut Bloom) {
        bloom.accrue(BloomInput::Raw(self.address.as_slice()));
        self.topics.iter().for_each(|topic| bloom.accrue(BloomInput::Raw(topic.as_slice())));
    }
}
