//! A block's body in RLP: its transactions, uncles and withdrawals, as the network and era1 files encode them.
//!
//! Guarantees: [`encode`] returns the body that matches the roots in the header, and [`size`] counts a whole block as
//! nodes do. Leaves to others: decoding bodies (`era1`), and uncle headers, since a block keeps only their hashes.

use alloy_primitives::{Bytes, keccak256};
use alloy_rlp::{Encodable, Header as RlpHeader};

use crate::block::{Block, Header, TransactionForm};
use crate::error::{Error, Result};

/// First byte of an RLP list, and so of a legacy transaction. Typed transactions begin with a lower byte.
const LIST_FROM: u8 = 0xc0;

/// Fails if the block has uncles, because their headers are not kept.
pub fn encode(block: &Block) -> Result<Vec<u8>> {
    if !block.uncles.is_empty() {
        let what = format!("block {} has uncles, whose headers are not kept", block.at.number);
        return Err(Error::Invalid { what });
    }
    let payload = payload(block, &[])?;
    let mut out = Vec::with_capacity(payload.len() + 9);
    RlpHeader { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend_from_slice(&payload);
    Ok(out)
}

/// Encodes a whole block as the network does. `uncles` are the uncle headers in RLP, in order.
pub fn whole(block: &Block, uncles: &[Bytes]) -> Result<Vec<u8>> {
    let number = block.at.number;
    let Header::Canonical(header) = &block.header else {
        let what = format!("the header of block {number} is kept as JSON, which has no RLP");
        return Err(Error::Invalid { what });
    };
    if !uncles.iter().map(keccak256).eq(block.uncles.iter().copied()) {
        return Err(Error::Invalid {
            what: format!("the uncle headers do not match block {number}"),
        });
    }
    let body = payload(block, uncles)?;
    let mut out = Vec::with_capacity(header.len() + body.len() + 9);
    RlpHeader { list: true, payload_length: header.len() + body.len() }.encode(&mut out);
    out.extend_from_slice(header);
    out.extend_from_slice(&body);
    Ok(out)
}

/// Size of a whole block in bytes. `body_payload` excludes the body's list header.
pub fn size(header: usize, body_payload: usize) -> u64 {
    let whole = RlpHeader { list: true, payload_length: header.saturating_add(body_payload) };
    u64::try_from(whole.length_with_payload()).unwrap_or(u64::MAX)
}

/// Size in bytes of a block without uncles.
pub fn size_of(block: &Block) -> Result<u64> {
    let Header::Canonical(header) = &block.header else {
        return Err(Error::Invalid { what: "a header in JSON has no canonical size".to_owned() });
    };
    Ok(size(header.len(), payload(block, &[])?.len()))
}

fn payload(block: &Block, uncles: &[Bytes]) -> Result<Vec<u8>> {
    let mut transactions = Vec::new();
    for (index, transaction) in block.transactions.iter().enumerate() {
        let TransactionForm::Canonical(bytes) = &transaction.form else {
            let what = format!("transaction {index} of block {} is kept as JSON", block.at.number);
            return Err(Error::Invalid { what });
        };
        // Typed transactions are wrapped as byte strings.
        match bytes.first() {
            Some(first) if *first >= LIST_FROM => transactions.extend_from_slice(bytes),
            _ => bytes.encode(&mut transactions),
        }
    }
    let mut out = Vec::with_capacity(transactions.len() + 16);
    RlpHeader { list: true, payload_length: transactions.len() }.encode(&mut out);
    out.extend_from_slice(&transactions);
    let uncles_length = uncles.iter().map(|header| header.len()).sum();
    RlpHeader { list: true, payload_length: uncles_length }.encode(&mut out);
    uncles.iter().for_each(|header| out.extend_from_slice(header));
    out.extend_from_slice(block.withdrawals.as_ref().map_or(&[], |bytes| &bytes[..]));
    Ok(out)
}
