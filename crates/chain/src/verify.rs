//! Checks of a block against its own header.
//!
//! | level | what is checked |
//! |---|---|
//! | `full` | header hash, its fields, transactions and their root, receipts root, bloom, gas, withdrawals, uncles |
//! | `bloom` | as many receipts as transactions, the bloom of the logs, and the header hash as [`verify_for`] says |
//! | `off` | nothing |
//!
//! The source fetches uncle headers, and skips them where a node has no method for them.
//!
//! Guarantees: a block that passes `full` holds exactly the transactions and logs that its hash commits to, plus the
//! state sync of Polygon PoS, which no hash covers. Leaves to others: whether the block is canonical (parent hashes
//! up to an anchor), and asking another node.

pub(crate) mod foreign;

use std::fmt;

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header as EvmHeader};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::map::HashMap;
use alloy_primitives::{B256, Bloom, BloomInput, keccak256};
use alloy_rlp::{BufMut, Decodable, Encodable, Header as RlpHeader};
use alloy_trie::root::{ordered_trie_root, ordered_trie_root_with_encoder};

use crate::block::{Block, Header, Log, Outcome, Receipt, TransactionForm};
use crate::mismatch::Mismatch;
use crate::profile::ChainProfile;
use crate::verify_level::VerifyLevel;

/// `keccak256(prefix ++ block number ++ block hash)` is the hash of a Polygon PoS block's state sync transaction.
const STATE_SYNC_PREFIX: &[u8] = b"matic-bor-receipt-";

/// Checks a block, and records the level in it.
pub fn verify(block: &mut Block, level: VerifyLevel) -> Result<(), Mismatch> {
    block.verified = VerifyLevel::Off;
    match level {
        VerifyLevel::Off => {}
        VerifyLevel::Bloom => check_bloom(block)?,
        VerifyLevel::Full => check_all(block)?,
    }
    block.verified = level;
    Ok(())
}

/// Checks a block by what is known about its chain. Where headers are hashed as on Ethereum, one with only known fields
/// must match its hash in `bloom` too, although that level accepts headers that cannot be hashed.
pub fn verify_for(
    profile: Option<ChainProfile>,
    block: &mut Block,
    level: VerifyLevel,
) -> Result<(), Mismatch> {
    if level != VerifyLevel::Off
        && profile.is_some_and(|profile| profile.has_ethereum_headers())
        && let Header::Foreign(json) = &block.header
        && let lie @ Mismatch::HeaderHash { .. } = foreign::header(json, block.at.hash)
    {
        return Err(lie);
    }
    verify(block, level)
}

fn check_bloom(block: &Block) -> Result<(), Mismatch> {
    check_counts(block)?;
    if let Header::Canonical(bytes) = &block.header {
        check_hash(block, bytes)?;
    }
    // A missing bloom must not count as a match.
    let expected = block.header.bloom().map_err(malformed)?.ok_or(Mismatch::NoBloom)?;
    same_bloom(block, expected, bloom_of(block))
}

fn check_all(block: &Block) -> Result<(), Mismatch> {
    match &block.header {
        Header::Canonical(bytes) => check_hash(block, bytes)?,
        Header::Foreign(json) => return Err(foreign::block(json, block)),
    }
    check_counts(block)?;
    if block.receipts.iter().any(|receipt| receipt.outcome == Outcome::Unknown) {
        return Err(Mismatch::NoReceipts);
    }
    let Some(header) = block.header.decode().map_err(malformed)? else {
        return Err(malformed("a canonical header cannot be decoded"));
    };
    check_fields(block, &header)?;
    check_transactions(block, header.transactions_root)?;
    check_withdrawals(block, header.withdrawals_root)?;
    // The blooms are most of the work, so they are computed once. The block's bloom comes first, to report dropped
    // logs as such.
    let receipts = rooted_receipts(block);
    let blooms = blooms_of(receipts);
    same_bloom(block, header.logs_bloom, joined(&blooms))?;
    let computed = root_with_blooms(receipts, &blooms);
    same("receipts", computed, header.receipts_root)
}

fn check_hash(block: &Block, header: &[u8]) -> Result<(), Mismatch> {
    let computed = keccak256(header);
    if computed != block.at.hash {
        let (claimed, unknown) = (block.at.hash, Vec::new());
        return Err(Mismatch::HeaderHash { computed, claimed, unknown });
    }
    Ok(())
}

fn same_bloom(block: &Block, expected: Bloom, computed: Bloom) -> Result<(), Mismatch> {
    if expected == computed {
        return Ok(());
    }
    let bits = |bloom: Bloom| bloom.iter().map(|byte| byte.count_ones() as usize).sum();
    let both = expected & computed;
    Err(Mismatch::LogsBloom {
        logs: block.log_count(),
        missing: bits(expected ^ both),
        surplus: bits(computed ^ both),
    })
}

fn check_counts(block: &Block) -> Result<(), Mismatch> {
    let transactions = block.listed_transactions();
    let lacking = block.node_fields.get().without_receipt.len();
    let receipts = block.receipts.len().saturating_sub(lacking);
    if transactions != receipts {
        return Err(Mismatch::Receipts { transactions, receipts });
    }
    if lacking > 0 {
        let unlisted = block.transactions.get(transactions).map(|of| of.hash).unwrap_or_default();
        let what =
            format!("a receipt belongs to transaction {unlisted}, which is not in the block");
        return Err(Mismatch::Malformed { what });
    }
    Ok(())
}

/// Number of transactions that the header's roots and bloom cover. Before Polygon PoS made its state sync a typed
/// transaction, nodes showed it as a last transaction that none of them covers; its hash identifies it.
fn rooted(block: &Block) -> usize {
    let all = block.transactions.len();
    let mut key = STATE_SYNC_PREFIX.to_vec();
    key.extend_from_slice(&block.at.number.to_be_bytes());
    key.extend_from_slice(block.at.hash.as_slice());
    let state_sync = keccak256(key);
    let is_outside = block.transactions.last().is_some_and(|last| last.hash == state_sync);
    if is_outside { all - 1 } else { all }
}

fn rooted_receipts(block: &Block) -> &[Receipt] {
    block.receipts.get(..rooted(block)).unwrap_or(&block.receipts)
}

fn check_fields(block: &Block, header: &EvmHeader) -> Result<(), Mismatch> {
    let gas_used = rooted_receipts(block).last().map_or(0, |receipt| receipt.cumulative_gas_used);
    let at = &block.at;
    same_field("number", header.number, at.number)?;
    same_field("parent hash", header.parent_hash, at.parent_hash)?;
    same_field("timestamp", header.timestamp, at.timestamp)?;
    same_field("gas used", header.gas_used, gas_used)?;
    if (header.ommers_hash == EMPTY_OMMER_ROOT_HASH) != block.uncles.is_empty() {
        let header = header.ommers_hash.to_string();
        let block = format!("that there are {} uncles", block.uncles.len());
        return Err(Mismatch::Field { field: "hash of the uncles", header, block });
    }
    let root = header.withdrawals_root.map_or_else(|| "none".to_owned(), |root| root.to_string());
    if header.withdrawals_root.is_some() != block.withdrawals.is_some() {
        let block =
            if block.withdrawals.is_some() { "that there are some" } else { "that there are none" };
        let block = block.to_owned();
        return Err(Mismatch::Field { field: "root of the withdrawals", header: root, block });
    }
    Ok(())
}

fn same_field<T: Copy + PartialEq + fmt::Display>(
    field: &'static str,
    header: T,
    block: T,
) -> Result<(), Mismatch> {
    if header != block {
        let (header, block) = (header.to_string(), block.to_string());
        return Err(Mismatch::Field { field, header, block });
    }
    Ok(())
}

fn check_transactions(block: &Block, expected: B256) -> Result<(), Mismatch> {
    let mut canonical = Vec::with_capacity(block.transactions.len());
    let rooted = block.transactions.iter().take(rooted(block));
    for (index, transaction) in rooted.enumerate() {
        let bytes = match &transaction.form {
            TransactionForm::Canonical(bytes) => bytes,
            TransactionForm::Foreign(json) => {
                return Err(foreign::transaction(json, index, transaction.hash));
            }
        };
        let (computed, claimed) = (keccak256(bytes), transaction.hash);
        if computed != claimed {
            return Err(Mismatch::TransactionHash { index, computed, claimed });
        }
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
    joined(&blooms_of(rooted_receipts(block)))
}

fn joined(blooms: &[Bloom]) -> Bloom {
    blooms.iter().fold(Bloom::ZERO, |all, bloom| all | *bloom)
}

/// The bloom of each receipt. Addresses and topics repeat within a block, so each is hashed once.
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

pub fn receipts_root(receipts: &[Receipt]) -> B256 {
    root_with_blooms(receipts, &blooms_of(receipts))
}

fn root_with_blooms(receipts: &[Receipt], blooms: &[Bloom]) -> B256 {
    let pairs: Vec<(&Receipt, &Bloom)> = receipts.iter().zip(blooms).collect();
    ordered_trie_root_with_encoder(&pairs, |(receipt, bloom), out| {
        encode_with_bloom(receipt, bloom, out);
    })
}

/// Encodes a receipt as EIP-2718 bytes, as the receipts root hashes it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Shape, SimChain};

    #[test]
    fn blooms_with_cached_hashes_equal_those_of_each_receipt() {
        let chain = SimChain::new(5, Shape::mainnet());
        chain.grow(2);
        let block = chain.block(2).expect("grown");
        assert!(block.log_count() > 100, "a block with logs that share addresses and topics");
        let alone: Vec<Bloom> = block.receipts.iter().map(Receipt::bloom).collect();
        assert_eq!(blooms_of(&block.receipts), alone);
    }
}
