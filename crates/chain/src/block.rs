//! A block: its place in the chain, and everything that it holds.
//!
//! Parts are kept as the chain hashes them ([`Header::Canonical`], [`TransactionForm::Canonical`]), so that roots can
//! be computed and proofs made from what is stored. Chains whose blocks we can not encode keep what their node said,
//! as JSON; such parts are never verified.
//!
//! Guarantees: none beyond the types; [`crate::verify()`] checks. Leaves to others: JSON.

use alloy_consensus::Header as EvmHeader;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bloom, BloomInput, Bytes, keccak256};
use alloy_rlp::Decodable;
use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sender::Sender;
use crate::verify::Verify;

/// The most topics of a log.
pub const TOPICS_MAX: usize = 4;

/// The topics of a log.
pub type Topics = ArrayVec<B256, TOPICS_MAX>;

/// The place of a block in its chain: all that following a chain needs, whatever its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockRef {
    /// Its number, or height.
    pub number: u64,
    /// Its hash, or id.
    pub hash: B256,
    /// The hash of the block before it.
    pub parent_hash: B256,
    /// Seconds since 1970.
    pub timestamp: u64,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Its place.
    pub at: BlockRef,
    /// Its header.
    pub header: Header,
    /// The hashes of its uncles.
    pub uncles: Vec<B256>,
    /// Its withdrawals as an RLP list; none before Shanghai.
    pub withdrawals: Option<Bytes>,
    /// How many bytes it has, encoded whole.
    pub size: u64,
    /// Its transactions, in order.
    pub transactions: Vec<Transaction>,
    /// Their receipts, one each.
    pub receipts: Vec<Receipt>,
    /// What was checked of it.
    pub verified: Verify,
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Header {
    /// In RLP; its hash is the block's.
    Canonical(Bytes),
    /// As a node gave it, in JSON without the transactions.
    Foreign(Bytes),
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Its hash.
    pub hash: B256,
    /// The transaction itself.
    pub form: TransactionForm,
    /// Who sent it, if somebody has recovered it. Stored apart ([`crate::stored`]).
    #[serde(skip)]
    pub sender: Sender,
}

/// How a transaction is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionForm {
    /// As EIP-2718 bytes, whose hash is the transaction's. Its sender follows from the signature.
    Canonical(Bytes),
    /// As a node gave it, in JSON.
    Foreign(Bytes),
}

/// A receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The type of its transaction, 0 for a legacy one.
    pub tx_type: u8,
    /// How the transaction ended.
    pub outcome: Outcome,
    /// The gas that the block used up to and with it.
    pub cumulative_gas_used: u64,
    /// Its logs, in order.
    pub logs: Vec<Log>,
    /// Fields of the node's receipt that do not follow from the block, as a JSON object: `l1Fee` and the like.
    pub extra: Option<Bytes>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Whether it succeeded.
    Status(bool),
    /// The state after it, as receipts before Byzantium say instead.
    StateRoot(B256),
    /// Not known: the node gave logs and no receipts. Such a block is verified by its bloom at most.
    Unknown,
}

/// A log, without its place.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Log {
    /// The contract that wrote it.
    pub address: Address,
    /// Its topics.
    pub topics: Topics,
    /// Its data.
    pub data: Bytes,
}

/// A log with its place in its block.
#[derive(Clone, Copy, Debug)]
pub struct PlacedLog<'a> {
    /// The log.
    pub log: &'a Log,
    /// The position of its transaction.
    pub transaction_index: usize,
    /// The hash of its transaction.
    pub transaction_hash: B256,
    /// Its own position in the block.
    pub log_index: usize,
}

impl Block {
    /// Its logs, numbered by us: nodes are known to number them wrongly.
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

    /// Its withdrawals; none before Shanghai.
    pub fn decode_withdrawals(&self) -> Result<Option<Vec<Withdrawal>>> {
        let Some(bytes) = &self.withdrawals else {
            return Ok(None);
        };
        let decoded = Vec::<Withdrawal>::decode(&mut &bytes[..]);
        decoded.map(Some).map_err(|error| Error::corrupt(format!("withdrawals: {error}")))
    }

    /// How many logs it has.
    pub fn log_count(&self) -> usize {
        self.receipts.iter().map(|receipt| receipt.logs.len()).sum()
    }
}

impl Header {
    /// The header's fields; none of a foreign one.
    pub fn decode(&self) -> Result<Option<EvmHeader>> {
        let Self::Canonical(bytes) = self else {
            return Ok(None);
        };
        let mut rest = &bytes[..];
        match EvmHeader::decode(&mut rest) {
            Ok(header) if rest.is_empty() => Ok(Some(header)),
            Ok(_) => Err(Error::corrupt("a header with bytes after its end")),
            Err(error) => Err(Error::corrupt(format!("a header that is not RLP: {error}"))),
        }
    }

    /// The logs bloom of the header.
    pub fn bloom(&self) -> Result<Option<Bloom>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            logs_bloom: Option<Bloom>,
        }
        match self {
            Self::Canonical(_) => Ok(self.decode()?.map(|header| header.logs_bloom)),
            Self::Foreign(json) => match serde_json::from_slice::<Fields>(json) {
                Ok(fields) => Ok(fields.logs_bloom),
                Err(error) => Err(Error::corrupt(format!("a header that is not JSON: {error}"))),
            },
        }
    }
}

impl Transaction {
    /// A transaction whose sender nobody has recovered yet.
    pub fn new(hash: B256, form: TransactionForm) -> Self {
        Self { hash, form, sender: Sender::Unknown }
    }

    /// A transaction of EIP-2718 bytes.
    pub fn canonical(bytes: Bytes) -> Self {
        Self::new(keccak256(&bytes), TransactionForm::Canonical(bytes))
    }
}

impl Receipt {
    /// The bloom of its logs.
    pub fn bloom(&self) -> Bloom {
        let mut bloom = Bloom::ZERO;
        self.logs.iter().for_each(|log| log.accrue(&mut bloom));
        bloom
    }
}

impl Log {
    /// Adds its address and topics to a bloom.
    pub fn accrue(&self, bloom: &mut Bloom) {
        bloom.accrue(BloomInput::Raw(self.address.as_slice()));
        self.topics.iter().for_each(|topic| bloom.accrue(BloomInput::Raw(topic.as_slice())));
    }
}
