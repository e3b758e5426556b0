//! One block of an era1 file: from four entries to a verified block.
//!
//! Only what is needed is decoded: transactions stay encoded, and only receipts are decoded, down to logs whose
//! data refers to the decompressed buffer.
//!
//! Guarantees: a returned block has passed [`VerifyLevel::Full`] and has the uncles of its header; anything else is
//! an error, never a panic. Leaves to others: which block it should be.

use alloy_consensus::Header as EvmHeader;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::{Decodable, Header as RlpHeader};

use super::entry::{self, BODY, HEADER, RECEIPTS, TOTAL_DIFFICULTY};
use super::frame;
use crate::block::{
    Block, BlockRef, Header, Log, Outcome, Receipt, TOPICS_MAX, Topics, Transaction,
};
use crate::body;
use crate::mismatch::Mismatch;
use crate::verify::verify;
use crate::verify_level::VerifyLevel;

/// Maximum decompressed sizes of a block's header, body and receipts.
pub(super) const HEADER_BYTES_MAX: usize = 4 << 10;
const BODY_BYTES_MAX: usize = 32 << 20;
const RECEIPTS_BYTES_MAX: usize = 64 << 20;
/// Maximum numbers of a block's transactions and logs. Gas allows far fewer; without them, each byte of a
/// hostile file could cost a hundred bytes of memory.
const TRANSACTIONS_MAX: usize = 100_000;
const LOGS_MAX: usize = 400_000;

/// A header with its encoded bytes.
pub(super) struct RawHeader {
    pub(super) bytes: Bytes,
    pub(super) hash: B256,
    pub(super) fields: EvmHeader,
}

/// Decodes a block. Only the last block of a file may be followed by other bytes.
pub(super) fn block(mut bytes: &[u8], is_last: bool) -> Result<Block, String> {
    let header = header(entry::take(&mut bytes, HEADER)?)?;
    let body = frame::decompress(entry::take(&mut bytes, BODY)?, BODY_BYTES_MAX)?;
    let receipts = frame::decompress(entry::take(&mut bytes, RECEIPTS)?, RECEIPTS_BYTES_MAX)?;
    total_difficulty(entry::take(&mut bytes, TOTAL_DIFFICULTY)?)?;
    if !bytes.is_empty() && !is_last {
        return Err("unexpected bytes after the end of the block".to_owned());
    }
    let (body, receipts) = (Bytes::from(body), Bytes::from(receipts));
    let parts = split_body(&body, &header)?;
    let mut block = Block {
        at: BlockRef {
            number: header.fields.number,
            hash: header.hash,
            parent_hash: header.fields.parent_hash,
            timestamp: header.fields.timestamp,
        },
        size: body::size(header.bytes.len(), parts.payload_bytes),
        header: Header::Canonical(header.bytes),
        uncles: parts.uncles,
        withdrawals: parts.withdrawals,
        transactions: parts.transactions,
        receipts: split_receipts(&receipts)?,
        verified: VerifyLevel::Off,
        node_fields: crate::KeptFields::default(),
    };
    verify(&mut block, VerifyLevel::Full).map_err(|mismatch| mismatch.to_string())?;
    Ok(block)
}

pub(super) fn header(compressed: &[u8]) -> Result<RawHeader, String> {
    let bytes = Bytes::from(frame::decompress(compressed, HEADER_BYTES_MAX)?);
    let mut rest = &bytes[..];
    let fields =
        EvmHeader::decode(&mut rest).map_err(|error| format!("cannot decode a header: {error}"))?;
    if !rest.is_empty() {
        return Err("unexpected bytes after the end of a header".to_owned());
    }
    Ok(RawHeader { hash: keccak256(&bytes), fields, bytes })
}

/// Decodes a total difficulty, which is not compressed.
pub(super) fn total_difficulty(data: &[u8]) -> Result<U256, String> {
    let bytes: [u8; 32] =
        data.try_into().map_err(|_| "a total difficulty does not have 32 bytes")?;
    Ok(U256::from_le_bytes(bytes))
}

struct BodyParts {
    transactions: Vec<Transaction>,
    uncles: Vec<B256>,
    withdrawals: Option<Bytes>,
    payload_bytes: usize,
}

fn split_body(body: &Bytes, header: &RawHeader) -> Result<BodyParts, String> {
    let mut rest = whole_list(body, "a body")?;
    let payload_bytes = rest.len();
    let mut list = take_list(&mut rest, "transactions")?;
    let mut transactions = Vec::new();
    while !list.is_empty() {
        let raw = take_item(&mut list, "a transaction")?;
        // A typed transaction is wrapped as a string; a legacy one is the list itself.
        let bytes = match raw.first() {
            Some(first) if *first >= 0xc0 => raw,
            _ => unwrap_string(raw, "a transaction")?,
        };
        if transactions.len() >= TRANSACTIONS_MAX {
            return Err(format!("more than {TRANSACTIONS_MAX} transactions"));
        }
        transactions.push(Transaction::canonical(body.slice_ref(bytes)));
    }
    let uncles_list = take_item(&mut rest, "uncles")?;
    let computed = keccak256(uncles_list);
    let expected = header.fields.ommers_hash;
    if computed != expected {
        return Err(Mismatch::Root { what: "uncles", computed, expected }.to_string());
    }
    let mut list = whole_list(uncles_list, "uncles")?;
    let mut uncles = Vec::new();
    while !list.is_empty() {
        uncles.push(keccak256(take_item(&mut list, "an uncle")?));
    }
    let withdrawals = match rest {
        [] => None,
        _ => Some(body.slice_ref(take_item(&mut rest, "withdrawals")?)),
    };
    if !rest.is_empty() {
        return Err("a body has more than three parts".to_owned());
    }
    Ok(BodyParts { transactions, uncles, withdrawals, payload_bytes })
}

fn split_receipts(receipts: &Bytes) -> Result<Vec<Receipt>, String> {
    let mut list = whole_list(receipts, "receipts")?;
    let (mut out, mut logs) = (Vec::new(), 0);
    while !list.is_empty() {
        let raw = take_item(&mut list, "a receipt")?;
        let (tx_type, fields) = match raw.first() {
            Some(first) if *first >= 0xc0 => (0, raw),
            _ => {
                let typed = unwrap_string(raw, "a receipt")?;
                let (tx_type, fields) = typed.split_first().ok_or("an empty receipt")?;
                (*tx_type, fields)
            }
        };
        let receipt = receipt(receipts, tx_type, whole_list(fields, "a receipt")?)?;
        logs += receipt.logs.len();
        if logs > LOGS_MAX || out.len() >= TRANSACTIONS_MAX {
            return Err(format!("more than {TRANSACTIONS_MAX} receipts or {LOGS_MAX} logs"));
        }
        out.push(receipt);
    }
    Ok(out)
}

fn receipt(whole: &Bytes, tx_type: u8, mut rest: &[u8]) -> Result<Receipt, String> {
    let outcome = take_string(&mut rest, "an outcome")?;
    let outcome = match outcome {
        [] => Outcome::Status(false),
        [1] => Outcome::Status(true),
        root => match <[u8; 32]>::try_from(root) {
            Ok(root) => Outcome::StateRoot(root.into()),
            Err(_) => return Err("a receipt has an invalid outcome".to_owned()),
        },
    };
    let cumulative_gas_used = u64::decode(&mut rest)
        .map_err(|error| format!("cannot decode the gas of a receipt: {error}"))?;
    // The bloom follows from the logs, and the receipts root covers it.
    take_string(&mut rest, "a bloom")?;
    let mut list = take_list(&mut rest, "logs")?;
    if !rest.is_empty() {
        return Err("a receipt has more than four fields".to_owned());
    }
    let mut logs = Vec::new();
    while !list.is_empty() {
        if logs.len() >= LOGS_MAX {
            return Err(format!("more than {LOGS_MAX} logs"));
        }
        logs.push(log(whole, &mut list)?);
    }
    Ok(Receipt { tx_type, outcome, cumulative_gas_used, logs, extra: None })
}

fn log(whole: &Bytes, list: &mut &[u8]) -> Result<Log, String> {
    let mut rest = take_list(list, "a log")?;
    let address = Address::try_from(take_string(&mut rest, "an address")?)
        .map_err(|_| "an address does not have 20 bytes")?;
    let mut words = take_list(&mut rest, "topics")?;
    let mut topics = Topics::new();
    while !words.is_empty() {
        let topic = B256::try_from(take_string(&mut words, "a topic")?)
            .map_err(|_| "a topic does not have 32 bytes")?;
        if topics.try_push(topic).is_err() {
            return Err(format!("a log has more than {TOPICS_MAX} topics"));
        }
    }
    let data = take_string(&mut rest, "data")?;
    if !rest.is_empty() {
        return Err("a log has more than three fields".to_owned());
    }
    let data = if data.is_empty() { Bytes::new() } else { whole.slice_ref(data) };
    Ok(Log { address, topics, data })
}

/// The payload of bytes that are exactly one list.
fn whole_list<'a>(mut bytes: &'a [u8], what: &str) -> Result<&'a [u8], String> {
    let payload = take_list(&mut bytes, what)?;
    if !bytes.is_empty() {
        return Err(format!("unexpected bytes after the end of {what}"));
    }
    Ok(payload)
}

fn take_list<'a>(bytes: &mut &'a [u8], what: &str) -> Result<&'a [u8], String> {
    RlpHeader::decode_bytes(bytes, true).map_err(|error| format!("cannot decode {what}: {error}"))
}

fn take_string<'a>(bytes: &mut &'a [u8], what: &str) -> Result<&'a [u8], String> {
    RlpHeader::decode_bytes(bytes, false).map_err(|error| format!("cannot decode {what}: {error}"))
}

/// The payload of bytes that are exactly one string.
fn unwrap_string<'a>(mut bytes: &'a [u8], what: &str) -> Result<&'a [u8], String> {
    let payload = take_string(&mut bytes, what)?;
    if !bytes.is_empty() {
        return Err(format!("unexpected bytes after the end of {what}"));
    }
    Ok(payload)
}

/// Takes the next item, including its head.
fn take_item<'a>(bytes: &mut &'a [u8], what: &str) -> Result<&'a [u8], String> {
    let start = *bytes;
    let head =
        RlpHeader::decode(bytes).map_err(|error| format!("cannot decode {what}: {error}"))?;
    // A single byte has no head.
    let head_bytes = start.len() - bytes.len();
    let length = head_bytes.saturating_add(head.payload_length);
    let (item, rest) =
        start.split_at_checked(length).ok_or_else(|| format!("{what} is cut short"))?;
    *bytes = rest;
    Ok(item)
}
