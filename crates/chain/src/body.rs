//! A block's body in RLP: its transactions, its uncles and its withdrawals, as the network and era1 files have them.
//!
//! Guarantees: what [`encode`] makes is the body whose roots the header has, and [`size`] counts a whole block as nodes
//! do. Leaves to others: reading bodies (`era1`), and the uncles' headers, of which a block keeps the hashes alone.

use alloy_rlp::{BufMut, Encodable, Header as RlpHeader};

use crate::block::{Block, Header, TransactionForm};
use crate::error::{Error, Result};

/// An empty list in RLP.
const EMPTY_LIST: u8 = 0xc0;
/// From here on the first byte of a transaction is that of a list, and the transaction a legacy one.
const LIST_FROM: u8 = 0xc0;

/// The body of a block that has no uncles.
pub fn encode(block: &Block) -> Result<Vec<u8>> {
    if !block.uncles.is_empty() {
        let what = format!("block {} has uncles, whose headers are not kept", block.at.number);
        return Err(Error::Invalid { what });
    }
    let payload = payload(block)?;
    let mut out = Vec::with_capacity(payload.len() + 9);
    RlpHeader { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend_from_slice(&payload);
    Ok(out)
}

/// How many bytes a block has whose header and body have this many; the body's without the head of its list.
pub fn size(header: usize, body_payload: usize) -> u64 {
    let whole = RlpHeader { list: true, payload_length: header.saturating_add(body_payload) };
    u64::try_from(whole.length_with_payload()).unwrap_or(u64::MAX)
}

/// The size of a block without uncles.
pub fn size_of(block: &Block) -> Result<u64> {
    let Header::Canonical(header) = &block.header else {
        return Err(Error::Invalid { what: "a header in JSON has no canonical size".to_owned() });
    };
    Ok(size(header.len(), payload(block)?.len()))
}

fn payload(block: &Block) -> Result<Vec<u8>> {
    let mut transactions = Vec::new();
    for (index, transaction) in block.transactions.iter().enumerate() {
        let TransactionForm::Canonical(bytes) = &transaction.form else {
            let what = format!("transaction {index} of block {} is JSON", block.at.number);
            return Err(Error::Invalid { what });
        };
        // Typed ones are wrapped as strings.
        match bytes.first() {
            Some(first) if *first >= LIST_FROM => transactions.extend_from_slice(bytes),
            _ => bytes.encode(&mut transactions),
        }
    }
    let mut out = Vec::with_capacity(transactions.len() + 16);
    RlpHeader { list: true, payload_length: transactions.len() }.encode(&mut out);
    out.extend_from_slice(&transactions);
    out.put_u8(EMPTY_LIST);
    out.extend_from_slice(block.withdrawals.as_ref().map_or(&[], |bytes| &bytes[..]));
    Ok(out)
}
