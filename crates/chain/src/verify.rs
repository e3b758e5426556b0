//! The checks of a block against its own header.
//!
//! | level | what is checked |
//! |---|---|
//! | `full` | header hash, its fields, transactions and their root, receipts root, bloom, gas, withdrawals, uncles |
//! | `bloom` | as many receipts as transactions, and the bloom of the logs; the header hash where it can be made |
//! | `off` | nothing |
//!
//! Guarantees: a block that passes `full` holds exactly the transactions and logs that its hash stands for. Leaves
//! to others: whether the block is canonical (parent hashes up to an anchor), and asking another node.

use std::fmt;
use std::str::FromStr;

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header as EvmHeader};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::map::HashMap;
use alloy_primitives::{B256, Bloom, BloomInput, keccak256};
use alloy_rlp::{BufMut, Decodable, Encodable, Header as RlpHeader};
use alloy_trie::root::{ordered_trie_root, ordered_trie_root_with_encoder};
use serde::{Deserialize, Serialize};

use crate::block::{Block, Header, Log, Outcome, Receipt, TransactionForm};

/// How much of a block is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// Nothing.
    Off,
    /// The bloom of its logs.
    Bloom,
    /// Everything that its hash stands for.
    Full,
}

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The header does not have the hash.
    #[error("its header has the hash {computed}")]
    HeaderHash {
        /// The hash that it has.
        computed: B256,
    },
    /// A header that we can not encode, so that its hash can not be checked.
    #[error(
        "its header has fields that we do not know: `verify = \"bloom\"` accepts it unverified"
    )]
    ForeignHeader,
    /// A transaction that we can not encode.
    #[error(
        "transaction {index} is of a kind that we do not know: `verify = \"bloom\"` accepts it unverified"
    )]
    ForeignTransaction {
        /// Its position.
        index: usize,
    },
    /// A field of the header is not what the block says.
    #[error("its {field} is not that of its header")]
    Field {
        /// Which.
        field: &'static str,
    },
    /// A hash of its parts is not what the header says.
    #[error("its {what} make {computed}, but its header says {expected}")]
    Root {
        /// Of what.
        what: &'static str,
        /// What they make.
        computed: B256,
        /// What the header says.
        expected: B256,
    },
    /// Logs are missing, or there are too many.
    #[error("its logs do not make the bloom of its header")]
    LogsBloom,
    /// There are logs, but no receipts to verify them by.
    #[error("its receipts are not known: `verify = \"bloom\"` accepts it by its logs")]
    NoReceipts,
    /// The numbers of transactions and receipts differ.
    #[error("{transactions} transactions and {receipts} receipts")]
    Receipts {
        /// How many transactions.
        transactions: usize,
        /// How many receipts.
        receipts: usize,
    },
    /// Something that can not be read.
    #[error("{what}")]
    Malformed {
        /// What.
        what: String,
    },
}

/// Checks a block, and notes in it what was checked.
pub fn verify(block: &mut Block, level: Verify) -> Result<(), Mismatch> {
    block.verified = Verify::Off;
    match level {
        Verify::Off => {}
        Verify::Bloom => check_bloom(block)?,
        Verify::Full => check_all(block)?,
    }
    block.verified = level;
    Ok(())
}

fn check_bloom(block: &Block) -> Result<(), Mismatch> {
    check_counts(block)?;
    if let Header::Canonical(bytes) = &block.header {
        check_hash(block, bytes)?;
    }
    let bloom = block.header.bloom().map_err(malformed)?;
    match bloom {
        Some(bloom) if bloom == bloom_of(block) => Ok(()),
        Some(_) => Err(Mismatch::LogsBloom),
        // Nothing to compare with is not a comparison that went well.
        None => Err(Mismatch::Field { field: "logs bloom" }),
    }
}

fn check_all(block: &Block) -> Result<(), Mismatch> {
    let Header::Canonical(bytes) = &block.header else {
        return Err(Mismatch::ForeignHeader);
    };
    check_hash(block, bytes)?;
    check_counts(block)?;
    if block.receipts.iter().any(|receipt| receipt.outcome == Outcome::Unknown) {
        return Err(Mismatch::NoReceipts);
    }
    let header = block.header.decode().map_err(malformed)?.ok_or(Mismatch::ForeignHeader)?;
    check_fields(block, &header)?;
    check_transactions(block, header.transactions_root)?;
    check_withdrawals(block, header.withdrawals_root)?;
    // The blooms are most of the work, so they are made once. The block's is the first to tell of a dropped log.
    let blooms = blooms_of(&block.receipts);
    if header.logs_bloom != blooms.iter().fold(Bloom::ZERO, |all, bloom| all | *bloom) {
        return Err(Mismatch::LogsBloom);
    }
    let computed = root_with_blooms(&block.receipts, &blooms);
    same("receipts", computed, header.receipts_root)
}

fn check_hash(block: &Block, header: &[u8]) -> Result<(), Mismatch> {
    let computed = keccak256(header);
    if computed != block.at.hash {
        return Err(Mismatch::HeaderHash { computed });
    }
    Ok(())
}

fn check_counts(block: &Block) -> Result<(), Mismatch> {
    let (transactions, receipts) = (block.transactions.len(), block.receipts.len());
    if transactions != receipts {
        return Err(Mismatch::Receipts { transactions, receipts });
    }
    Ok(())
}

fn check_fields(block: &Block, header: &EvmHeader) -> Result<(), Mismatch> {
    let gas_used = block.receipts.last().map_or(0, |receipt| receipt.cumulative_gas_used);
    let fields = [
        ("number", header.number == block.at.number),
        ("parent hash", header.parent_hash == block.at.parent_hash),
        ("timestamp", header.timestamp == block.at.timestamp),
        ("gas used", header.gas_used == gas_used),
        ("uncles", (header.ommers_hash == EMPTY_OMMER_ROOT_HASH) == block.uncles.is_empty()),
        ("withdrawals", header.withdrawals_root.is_some() == block.withdrawals.is_some()),
    ];
    match fields.into_iter().find(|(_, same)| !same) {
        Some((field, _)) => Err(Mismatch::Field { field }),
        None => Ok(()),
    }
}

fn check_transactions(block: &Block, expected: B256) -> Result<(), Mismatch> {
    let mut canonical = Vec::with_capacity(block.transactions.len());
    for (index, transaction) in block.transactions.iter().enumerate() {
        let TransactionForm::Canonical(bytes) = &transaction.form else {
            return Err(Mismatch::ForeignTransaction { index });
        };
        let computed = keccak256(bytes);
        same("bytes of a transaction", computed, transaction.hash)?;
        canonical.push(bytes);
    }
    let computed = ordered_trie_root_with_encoder(&canonical, |bytes, out| out.put_slice(bytes));
    same("transactions", computed, expected)
}

fn check_withdrawals(block: &Block, expected: Option<B256>) -> Result<(), Mismatch> {
    let (Some(bytes), Some(expected)) = (&block.withdrawals, expected) else {
        return Ok(());
    };
    let decoded = Vec::<Withdrawal>::decode(&mut &bytes[..]).map_err(malformed)?;
    same("withdrawals", ordered_trie_root(&decoded), expected)
}

fn same(what: &'static str, computed: B256, expected: B256) -> Result<(), Mismatch> {
    if computed != expected {
        return Err(Mismatch::Root { what, computed, expected });
    }
    Ok(())
}

fn malformed(error: impl fmt::Display) -> Mismatch {
    Mismatch::Malformed { what: error.to_string() }
}

fn bloom_of(block: &Block) -> Bloom {
    blooms_of(&block.receipts).iter().fold(Bloom::ZERO, |all, bloom| all | *bloom)
}

/// The bloom of each receipt. An address or topic is hashed once for all of them, as many come more than once in a
/// block.
fn blooms_of(receipts: &[Receipt]) -> Vec<Bloom> {
    let mut hashes: HashMap<&[u8], B256> = HashMap::default();
    let mut blooms = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        let mut bloom = Bloom::ZERO;
        for log in &receipt.logs {
            let topics = log.topics.iter().map(|topic| topic.as_slice());
            for value in std::iter::once(log.address.as_slice()).chain(topics) {
                let hash = *hashes.entry(value).or_insert_with(|| keccak256(value));
                bloom.accrue(BloomInput::Hash(hash));
            }
        }
        blooms.push(bloom);
    }
    blooms
}

/// The root of a block's receipts.
pub fn receipts_root(receipts: &[Receipt]) -> B256 {
    root_with_blooms(receipts, &blooms_of(receipts))
}

fn root_with_blooms(receipts: &[Receipt], blooms: &[Bloom]) -> B256 {
    let pairs: Vec<(&Receipt, &Bloom)> = receipts.iter().zip(blooms).collect();
    ordered_trie_root_with_encoder(&pairs, |(receipt, bloom), out| {
        encode_with_bloom(receipt, bloom, out);
    })
}

/// A receipt as the receipts root has it: EIP-2718 bytes.
pub fn encode_receipt(receipt: &Receipt, out: &mut dyn BufMut) {
    encode_with_bloom(receipt, &receipt.bloom(), out);
}

fn encode_with_bloom(receipt: &Receipt, bloom: &Bloom, out: &mut dyn BufMut) {
    if receipt.tx_type != 0 {
        out.put_u8(receipt.tx_type);
    }
    let logs = logs_length(&receipt.logs);
    let logs_header = RlpHeader { list: true, payload_length: logs };
    let outcome_length = match &receipt.outcome {
        Outcome::Status(status) => status.length(),
        Outcome::StateRoot(root) => root.length(),
        Outcome::Unknown => 1,
    };
    let payload_length = outcome_length
        + receipt.cumulative_gas_used.length()
        + bloom.length()
        + logs_header.length_with_payload();
    RlpHeader { list: true, payload_length }.encode(out);
    match &receipt.outcome {
        Outcome::Status(status) => status.encode(out),
        Outcome::StateRoot(root) => root.encode(out),
        Outcome::Unknown => false.encode(out),
    }
    receipt.cumulative_gas_used.encode(out);
    bloom.encode(out);
    logs_header.encode(out);
    receipt.logs.iter().for_each(|log| encode_log(log, out));
}

fn logs_length(logs: &[Log]) -> usize {
    let lengths = logs.iter().map(|log| {
        let payload_length = log_payload_length(log);
        RlpHeader { list: true, payload_length }.length_with_payload()
    });
    lengths.sum()
}

fn log_payload_length(log: &Log) -> usize {
    log.address.length() + alloy_rlp::list_length::<_, B256>(&log.topics) + log.data.length()
}

fn encode_log(log: &Log, out: &mut dyn BufMut) {
    RlpHeader { list: true, payload_length: log_payload_length(log) }.encode(out);
    log.address.encode(out);
    alloy_rlp::encode_list::<_, B256>(&log.topics, out);
    log.data.encode(out);
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Bloom => "bloom",
            Self::Full => "full",
        })
    }
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(Self::Off),
            "bloom" => Ok(Self::Bloom),
            "full" => Ok(Self::Full),
            _ => Err(format!("{name:?} is not one of full, bloom, off")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Shape, SimChain};

    #[test]
    fn blooms_of_hashes_that_are_remembered_are_those_of_each_receipt_alone() {
        let chain = SimChain::new(5, Shape::mainnet());
        chain.grow(2);
        let block = chain.block(2).expect("grown");
        assert!(block.log_count() > 100, "a block with logs that share addresses and topics");
        let alone: Vec<Bloom> = block.receipts.iter().map(Receipt::bloom).collect();
        assert_eq!(blooms_of(&block.receipts), alone);
    }
}
