//! A transaction as JSON, with its place in the chain and its sender.
//!
//! Guarantees: the sender is what the signature says. Leaves to others: receipts.

use alloy_consensus::transaction::{Recovered, SignerRecoverable};
use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, U256};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Render, write_value};
use crate::block::TransactionForm;
use crate::error::{Error, Result};

/// A decoded transaction with its sender.
#[derive(Debug)]
pub struct Sent {
    pub(super) from: Address,
    pub(super) to: Option<Address>,
    pub(super) nonce: Option<u64>,
    pub(super) gas_price: Option<u128>,
    pub(super) blob_gas_used: Option<u64>,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Canonical(Box<TxEnvelope>),
    Foreign(Map<String, Value>),
}

/// The fields of a foreign transaction that receipts and messages need.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ForeignFields {
    from: Address,
    to: Option<Address>,
    nonce: Option<U256>,
    gas_price: Option<U256>,
}

impl Sent {
    /// Who sent it.
    pub fn from(&self) -> Address {
        self.from
    }

    /// The contract that it makes, if it makes one.
    pub(super) fn created(&self) -> Option<Address> {
        match (self.to, self.nonce) {
            (None, Some(nonce)) => Some(self.from.create(nonce)),
            _ => None,
        }
    }
}

impl Render<'_> {
    /// A transaction of the block, decoded, with the sender that its signature tells.
    pub fn sent(&self, position: usize) -> Result<Sent> {
        let transaction = self.block.transactions.get(position);
        let transaction = transaction.ok_or_else(|| Error::corrupt("a missing transaction"))?;
        let wrong =
            |what: String| Error::corrupt(format!("transaction {}: {what}", transaction.hash));
        match &transaction.form {
            TransactionForm::Canonical(text) => {
                let sent = TxEnvelope::decode_2718_exact(text);
                let sent = sent.map_err(|error| wrong(error.to_string()))?;
                // Unchecked: before Homestead a signature could have a high `s`.
                let from = sent.recover_signer_unchecked();
                let from = from.map_err(|error| wrong(error.to_string()))?;
                Ok(Sent {
                    from,
                    to: sent.to(),
                    nonce: Some(sent.nonce()),
                    gas_price: Some(sent.effective_gas_price(self.base_fee())),
                    blob_gas_used: sent.blob_gas_used(),
                    form: Form::Canonical(Box::new(sent)),
                })
            }
            TransactionForm::Foreign(text) => {
                let parse = |error: serde_json::Error| wrong(error.to_string());
                let known: ForeignFields = serde_json::from_slice(text).map_err(parse)?;
                Ok(Sent {
                    from: known.from,
                    to: known.to,
                    nonce: known.nonce.and_then(|nonce| nonce.try_into().ok()),
                    gas_price: known.gas_price.and_then(|price| price.try_into().ok()),
                    blob_gas_used: None,
                    form: Form::Foreign(serde_json::from_slice(text).map_err(parse)?),
                })
            }
        }
    }

    /// Writes a transaction of the block.
    pub fn transaction(&self, out: &mut Vec<u8>, position: usize, sent: &Sent) -> Result<()> {
        match &sent.form {
            Form::Foreign(fields) => write_value(out, fields),
            Form::Canonical(envelope) => {
                let at = &self.block.at;
                let inner = Recovered::new_unchecked(envelope.as_ref().clone(), sent.from);
                write_value(
                    out,
                    &alloy_rpc_types_eth::Transaction {
                        inner,
                        block_hash: Some(at.hash),
                        block_number: Some(at.number),
                        transaction_index: u64::try_from(position).ok(),
                        effective_gas_price: sent.gas_price,
                        block_timestamp: Some(at.timestamp),
                    },
                )
            }
        }
    }
}
