//! Blocks as the JSON that Ethereum clients know: the field names and forms of geth and reth.
//!
//! | module | what |
//! |---|---|
//! | `json` | quantities, bytes and objects, written into a buffer |
//! | [`log`] | a log; the hot path, so without an allocation for each |
//! | `transaction` | a transaction with its place and its sender |
//! | `receipt` | a receipt, with what follows from the block worked out |
//!
//! Parts that are kept as a node gave them (`Foreign`) are passed on with what they lack.
//!
//! Guarantees: what is rendered is JSON, whatever a node has put into foreign parts. Leaves to others: which block, and
//! the envelope of an answer.

mod json;
mod log;
mod receipt;
#[cfg(test)]
mod tests;
mod transaction;

use alloy_consensus::Header as EvmHeader;
use alloy_primitives::U256;
use serde_json::{Map, Value};

use crate::block::{Block, Header};
use crate::error::{Error, Result};
use crate::facts;

pub use json::{bytes, quantity};
pub use log::{LogFields, log, log_bytes_max};

/// A block that is being rendered: its header is decoded once.
#[derive(Debug)]
pub struct Render<'b> {
    block: &'b Block,
    header: Option<EvmHeader>,
    base_fee: Option<u64>,
}

impl<'b> Render<'b> {
    /// Of this block.
    pub fn of(block: &'b Block) -> Result<Self> {
        let header = block.header.decode()?;
        let base_fee = match &header {
            Some(header) => header.base_fee_per_gas,
            None => block.header.facts()?.base_fee_per_gas,
        };
        Ok(Self { block, header, base_fee })
    }

    /// The header alone, as `newHeads` sends it.
    pub fn header(&self, out: &mut Vec<u8>) -> Result<()> {
        match (&self.header, &self.block.header) {
            (Some(header), _) => {
                let header = alloy_rpc_types_eth::Header {
                    hash: self.block.at.hash,
                    inner: header,
                    total_difficulty: None,
                    size: Some(U256::from(self.block.size)),
                };
                write_value(out, &header)
            }
            (None, Header::Foreign(text)) => write_value(out, &foreign(text)?),
            (None, Header::Canonical(_)) => Err(Error::corrupt("a header that is not decoded")),
        }
    }

    /// The block, with its transactions whole or as hashes.
    pub fn block(&self, out: &mut Vec<u8>, whole_transactions: bool) -> Result<()> {
        let start = out.len();
        self.header(out)?;
        let known = match &self.block.header {
            Header::Foreign(text) => foreign(text)?,
            Header::Canonical(_) => Map::new(),
        };
        // The object is open again: what a header does not have follows.
        out.pop();
        let mut more = json::Object::reopened(out, start);
        if !known.contains_key("uncles") {
            let out = more.field("uncles");
            json::list(out, &self.block.uncles, |out, hash| bytes(out, hash.as_slice()));
        }
        if let Some(withdrawals) = self.block.decode_withdrawals()?
            && !known.contains_key("withdrawals")
        {
            write_value(more.field("withdrawals"), &withdrawals)?;
        }
        if !known.contains_key("size") && self.header.is_none() {
            quantity(more.field("size"), self.block.size);
        }
        let out = more.field("transactions");
        out.push(b'[');
        for (position, transaction) in self.block.transactions.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            match whole_transactions {
                true => self.transaction(out, position, &self.sent(position)?)?,
                false => bytes(out, transaction.hash.as_slice()),
            }
        }
        out.push(b']');
        more.close();
        Ok(())
    }

    /// All receipts of the block, as a list.
    pub fn receipts(&self, out: &mut Vec<u8>) -> Result<()> {
        out.push(b'[');
        for position in 0..self.block.receipts.len() {
            if position > 0 {
                out.push(b',');
            }
            self.receipt(out, position, &self.sent(position)?)?;
        }
        out.push(b']');
        Ok(())
    }
}

/// What a node gave, without the transactions, which are kept apart.
fn foreign(text: &[u8]) -> Result<Map<String, Value>> {
    let mut fields = facts::object(text, "a header")?;
    fields.remove("transactions");
    Ok(fields)
}

fn write_value(out: &mut Vec<u8>, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(out, value)
        .map_err(|error| Error::corrupt(format!("what can not be written as JSON: {error}")))
}
