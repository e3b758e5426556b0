//! Blocks as the JSON that Ethereum clients expect: field names and formats of geth and reth.
//!
//! | module | what |
//! |---|---|
//! | `json` | quantities, bytes and objects, written into a buffer |
//! | [`log`] | a log; the hot path, so without an allocation per log |
//! | `transaction` | a transaction with its place in the chain and its sender |
//! | `receipt` | a receipt, with the fields that follow from the block |
//!
//! Parts that are kept as a node's JSON (`Foreign`) are served as they are, plus the fields that they lack.
//!
//! Guarantees: the output is valid JSON, whatever a node put into foreign parts. Leaves to others: choosing the
//! block, and the response envelope.

mod json;
mod log;
mod receipt;
#[cfg(test)]
mod tests;
mod transaction;

use alloy_consensus::Header as EvmHeader;
use alloy_primitives::{B256, U256};
use serde_json::{Map, Value};

use crate::block::{Block, Header};
use crate::error::{Error, Result};
use crate::json_fields;

pub use json::{bytes, quantity};
pub use log::{LogFields, log, log_bytes_max};

/// Renders one block; decodes its header once.
#[derive(Debug)]
pub struct BlockRenderer<'b> {
    block: &'b Block,
    header: Option<EvmHeader>,
    base_fee: Option<u64>,
}

impl<'b> BlockRenderer<'b> {
    pub fn of(block: &'b Block) -> Result<Self> {
        let header = block.header.decode()?;
        let base_fee = match &header {
            Some(header) => header.base_fee_per_gas,
            None => block.header.facts()?.base_fee_per_gas,
        };
        Ok(Self { block, header, base_fee })
    }

    pub(crate) fn base_fee(&self) -> Option<u64> {
        self.base_fee
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
                let kept = self.block.node_fields.get();
                if kept.block.is_none() {
                    return write_value(out, &header);
                }
                let mut fields = to_object(&header)?;
                fields.extend(kept.of_block()?);
                write_value(out, &fields)
            }
            (None, Header::Foreign(text)) => write_value(out, &foreign(text)?),
            (None, Header::Canonical(_)) => {
                Err(Error::corrupt("a canonical header was not decoded"))
            }
        }
    }

    /// The block, with whole transactions or only their hashes.
    pub fn block(&self, out: &mut Vec<u8>, whole_transactions: bool) -> Result<()> {
        let start = out.len();
        self.header(out)?;
        let known = match &self.block.header {
            Header::Foreign(text) => foreign(text)?,
            Header::Canonical(_) => self.block.node_fields.get().of_block()?,
        };
        // Removes the closing brace, to add the fields that a header does not have.
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
        let listed = self.block.transactions.iter().take(self.block.listed_transactions());
        for (position, transaction) in listed.enumerate() {
            if position > 0 {
                out.push(b',');
            }
            match whole_transactions {
                true => self.transaction(out, position, &self.transaction_view(position)?)?,
                false => bytes(out, transaction.hash.as_slice()),
            }
        }
        out.push(b']');
        more.close();
        Ok(())
    }

    /// All receipts of the block, as a list; transactions without a receipt are left out.
    pub fn receipts(&self, out: &mut Vec<u8>) -> Result<()> {
        out.push(b'[');
        let known = (0..self.block.receipts.len()).filter(|at| !self.block.lacks_receipt(*at));
        for (written, position) in known.enumerate() {
            if written > 0 {
                out.push(b',');
            }
            self.receipt(out, position, &self.transaction_view(position)?)?;
        }
        out.push(b']');
        Ok(())
    }
}

/// An uncle from its RLP header, as nodes show it: a block without transactions or uncles.
pub fn uncle(out: &mut Vec<u8>, header: &[u8], hash: B256) -> Result<()> {
    // A block is the header and two empty lists.
    let size = crate::body::size(header.len(), 2);
    let header = Header::Canonical(header.to_vec().into()).decode()?.unwrap_or_default();
    let size = Some(U256::from(size));
    let start = out.len();
    let header = alloy_rpc_types_eth::Header { hash, inner: header, total_difficulty: None, size };
    write_value(out, &header)?;
    out.pop();
    let mut more = json::Object::reopened(out, start);
    more.field("uncles").extend_from_slice(b"[]");
    more.close();
    Ok(())
}

fn to_object(value: &impl serde::Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Error::corrupt("a part of a block is not a JSON object")),
        Err(error) => Err(Error::corrupt(format!("cannot write a value as JSON: {error}"))),
    }
}

/// Parses a foreign header. Drops its transactions, which are kept separately.
fn foreign(text: &[u8]) -> Result<Map<String, Value>> {
    let mut fields = json_fields::object(text, "a header")?;
    fields.remove("transactions");
    Ok(fields)
}

fn write_value(out: &mut Vec<u8>, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(out, value)
        .map_err(|error| Error::corrupt(format!("cannot write a value as JSON: {error}")))
}
