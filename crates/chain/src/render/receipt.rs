//! A receipt as JSON. What follows from the block is worked out: gas, price, sender, contract, numbers of logs.
//!
//! Guarantees: fields of the node's that do not follow from the block are passed on and can not take the place of
//! those that do. Leaves to others: the price of blob gas, which depends on the chain's rules; it is passed on where
//! the node has told it.

use super::json::{Object, bytes, list, quantity};
use super::log::{LogFields, log};
use super::{Render, write_value};
use crate::block::{Block, Outcome, Receipt};
use crate::error::{Error, Result};
use crate::facts;
use crate::sent::Sent;

impl Render<'_> {
    /// Writes a receipt of the block.
    pub fn receipt(&self, out: &mut Vec<u8>, position: usize, sent: &Sent) -> Result<()> {
        let block = self.block;
        let receipt = block.receipts.get(position);
        let receipt = receipt.ok_or_else(|| Error::corrupt("a missing receipt"))?;
        let transaction = block.transactions.get(position);
        let hash = transaction.map(|transaction| transaction.hash).unwrap_or_default();
        let mut fields = Object::open(out);
        bytes(fields.field("transactionHash"), hash.as_slice());
        quantity(fields.field("transactionIndex"), number(position));
        bytes(fields.field("blockHash"), block.at.hash.as_slice());
        quantity(fields.field("blockNumber"), block.at.number);
        let created = sent.created();
        for (name, address) in [("from", sent.from), ("to", sent.to), ("contractAddress", created)]
        {
            let out = fields.field(name);
            match address {
                Some(address) => bytes(out, address.as_slice()),
                None => out.extend_from_slice(b"null"),
            }
        }
        quantity(fields.field("type"), receipt.tx_type);
        match receipt.outcome {
            Outcome::Status(success) => quantity(fields.field("status"), u8::from(success)),
            Outcome::StateRoot(root) => bytes(fields.field("root"), root.as_slice()),
            Outcome::Unknown => {}
        }
        quantity(fields.field("cumulativeGasUsed"), receipt.cumulative_gas_used);
        quantity(fields.field("gasUsed"), block.gas_used(position).unwrap_or(0));
        if let Some(price) = sent.gas_price {
            quantity(fields.field("effectiveGasPrice"), price);
        }
        if let Some(gas) = sent.blob_gas_used {
            quantity(fields.field("blobGasUsed"), gas);
        }
        bytes(fields.field("logsBloom"), receipt.bloom().as_slice());
        logs(fields.field("logs"), block, position, receipt);
        extra(&mut fields, receipt, sent)?;
        fields.close();
        Ok(())
    }
}

fn logs(out: &mut Vec<u8>, block: &Block, position: usize, receipt: &Receipt) {
    let before: usize = block.receipts.iter().take(position).map(|other| other.logs.len()).sum();
    let hash = block.transactions.get(position).map(|transaction| transaction.hash);
    let hash = hash.unwrap_or_default();
    let mut index = before;
    list(out, &receipt.logs, |out, written| {
        let fields = LogFields {
            address: &written.address,
            topics: &written.topics,
            data: &written.data,
            block_number: block.at.number,
            block_hash: &block.at.hash,
            block_timestamp: block.at.timestamp,
            transaction_hash: &hash,
            transaction_index: number(position),
            log_index: number(index),
            removed: false,
        };
        log(out, &fields);
        index += 1;
    });
}

/// What the node's receipt has beside what we know.
fn extra(fields: &mut Object<'_>, receipt: &Receipt, sent: &Sent) -> Result<()> {
    let Some(text) = &receipt.extra else {
        return Ok(());
    };
    for (name, value) in &facts::object(text, "a receipt's extra")? {
        let is_ours = match name.as_str() {
            "transactionHash" | "transactionIndex" | "blockHash" | "blockNumber" | "from"
            | "to" | "contractAddress" | "type" | "cumulativeGasUsed" | "gasUsed" | "logsBloom"
            | "logs" => true,
            "status" | "root" => receipt.outcome != Outcome::Unknown,
            "effectiveGasPrice" => sent.gas_price.is_some(),
            "blobGasUsed" => sent.blob_gas_used.is_some(),
            // A name with signs that JSON escapes is no field of any node.
            name => name.bytes().any(|sign| sign < b' ' || sign == b'"' || sign == b'\\'),
        };
        if !is_ours {
            write_value(fields.field(name), value)?;
        }
    }
    Ok(())
}

fn number(position: usize) -> u64 {
    u64::try_from(position).unwrap_or(u64::MAX)
}
