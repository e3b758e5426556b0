//! A receipt as JSON, with the fields that follow from the block: gas, price, sender, contract, log indexes.
//!
//! Guarantees: fields of the node's receipt that do not follow from the block are passed on. They replace derived
//! fields only where the node's answer was compared ([`crate::node_fields`]), which is not done on chains with
//! Ethereum's rules. Leaves to others: the blob gas price, which depends on the chain's rules; it is passed on where
//! the node reported it.

use serde_json::{Map, Value};

use super::json::{Object, bytes, quantity};
use super::log::{LogFields, log};
use super::{BlockRenderer, write_value};
use crate::block::{Block, Outcome, Receipt};
use crate::error::{Error, Result};
use crate::json_fields;
use crate::transaction_view::TransactionView;

impl BlockRenderer<'_> {
    /// Writes a receipt of the block; `null` if the node returned none.
    pub fn receipt(
        &self,
        out: &mut Vec<u8>,
        position: usize,
        view: &TransactionView,
    ) -> Result<()> {
        let block = self.block;
        let receipt = block.receipts.get(position);
        let receipt = receipt.ok_or_else(|| Error::corrupt("a receipt is missing"))?;
        if block.lacks_receipt(position) {
            out.extend_from_slice(b"null");
            return Ok(());
        }
        let extra = extra(block, receipt, view)?;
        let mut fields = Fields { object: Object::open(out), extra: &extra };
        fields.position(block, position);
        fields.parties(block, position, view);
        fields.outcome(receipt);
        fields.put("cumulativeGasUsed", |out| quantity(out, receipt.cumulative_gas_used));
        let gas_used = block.gas_used(position).unwrap_or(0);
        fields.put("gasUsed", |out| quantity(out, gas_used));
        if let Some(price) = view.gas_price {
            fields.put("effectiveGasPrice", |out| quantity(out, price));
        }
        if let Some(gas) = view.blob_gas_used {
            fields.put("blobGasUsed", |out| quantity(out, gas));
        }
        fields.put("logsBloom", |out| bytes(out, receipt.bloom().as_slice()));
        logs(fields.object.field("logs"), block, position, receipt)?;
        for (name, value) in &extra {
            write_value(fields.object.field(name), value)?;
        }
        fields.object.close();
        Ok(())
    }
}

/// A receipt being written. The fields of `extra` come last, and replace derived ones of the same name.
struct Fields<'o, 'e> {
    object: Object<'o>,
    extra: &'e Map<String, Value>,
}

impl Fields<'_, '_> {
    fn put(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.extra.contains_key(name) {
            write(self.object.field(name));
        }
    }

    fn position(&mut self, block: &Block, position: usize) {
        let transaction = block.transactions.get(position);
        let hash = transaction.map(|transaction| transaction.hash).unwrap_or_default();
        self.put("transactionHash", |out| bytes(out, hash.as_slice()));
        self.put("transactionIndex", |out| quantity(out, number(position)));
        self.put("blockHash", |out| bytes(out, block.at.hash.as_slice()));
        self.put("blockNumber", |out| quantity(out, block.at.number));
    }

    fn parties(&mut self, block: &Block, position: usize, view: &TransactionView) {
        let created = block.created_contract(position, view);
        for (name, address) in [("from", view.from), ("to", view.to), ("contractAddress", created)]
        {
            self.put(name, |out| match address {
                Some(address) => bytes(out, address.as_slice()),
                None => out.extend_from_slice(b"null"),
            });
        }
    }

    fn outcome(&mut self, receipt: &Receipt) {
        self.put("type", |out| quantity(out, receipt.tx_type));
        match receipt.outcome {
            Outcome::Status(success) => self.put("status", |out| quantity(out, u8::from(success))),
            Outcome::StateRoot(root) => self.put("root", |out| bytes(out, root.as_slice())),
            Outcome::Unknown => {}
        }
    }
}

fn logs(out: &mut Vec<u8>, block: &Block, position: usize, receipt: &Receipt) -> Result<()> {
    let before: usize = block.receipts.iter().take(position).map(|other| other.logs.len()).sum();
    let hash = block.transactions.get(position).map(|transaction| transaction.hash);
    let hash = hash.unwrap_or_default();
    out.push(b'[');
    for (offset, written) in receipt.logs.iter().enumerate() {
        if offset > 0 {
            out.push(b',');
        }
        let fields = LogFields {
            address: &written.address,
            topics: &written.topics,
            data: &written.data,
            block_number: block.at.number,
            block_hash: &block.at.hash,
            block_timestamp: block.at.timestamp,
            transaction_hash: &hash,
            transaction_index: number(position),
            log_index: block.log_index(before + offset).into(),
            removed: false,
        };
        let kept = block.node_fields.get().of_log(before + offset)?;
        if kept.is_empty() {
            log(out, &fields);
            continue;
        }
        let mut text = Vec::new();
        log(&mut text, &fields);
        let mut merged = json_fields::object(&text, "a log")?;
        merged.extend(kept);
        write_value(out, &merged)?;
    }
    out.push(b']');
    Ok(())
}

/// The node's fields that add to or replace derived ones.
fn extra(block: &Block, receipt: &Receipt, view: &TransactionView) -> Result<Map<String, Value>> {
    let Some(text) = &receipt.extra else {
        return Ok(Map::new());
    };
    let mut fields = json_fields::object(text, "a receipt's extra")?;
    fields.retain(|name, _| {
        let is_ours = match name.as_str() {
            "logs" => true,
            // No node uses a field name with characters that JSON escapes.
            name if name.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') => true,
            _ if block.node_fields.is_compared() => false,
            "transactionHash" | "transactionIndex" | "blockHash" | "blockNumber" | "from"
            | "to" | "contractAddress" | "type" | "cumulativeGasUsed" | "gasUsed" | "logsBloom" => {
                true
            }
            "status" | "root" => receipt.outcome != Outcome::Unknown,
            "effectiveGasPrice" => view.gas_price.is_some(),
            "blobGasUsed" => view.blob_gas_used.is_some(),
            _ => false,
        };
        !is_ours
    });
    Ok(fields)
}

fn number(position: usize) -> u64 {
    u64::try_from(position).unwrap_or(u64::MAX)
}
