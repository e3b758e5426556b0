//! A transaction as JSON, with its place in the chain and its sender.
//!
//! Guarantees: the sender of a canonical transaction is what its signature says. Leaves to others: receipts, and
//! reading ([`Sent`]).

use alloy_consensus::transaction::Recovered;

use super::{Render, write_value};
use crate::error::{Error, Result};
use crate::sent::{Sent, SentForm};

impl Render<'_> {
    /// A transaction of the block, decoded, with the sender that its signature tells.
    pub fn sent(&self, position: usize) -> Result<Sent> {
        let transaction = self.block.transactions.get(position);
        let transaction = transaction.ok_or_else(|| Error::corrupt("a missing transaction"))?;
        let sent = Sent::read(transaction, self.base_fee)?;
        match (&sent.form, sent.from) {
            (SentForm::Canonical(_), None) => {
                Err(Error::corrupt(format!("transaction {} is not signed", transaction.hash)))
            }
            _ => Ok(sent),
        }
    }

    /// Writes a transaction of the block.
    pub fn transaction(&self, out: &mut Vec<u8>, position: usize, sent: &Sent) -> Result<()> {
        match &sent.form {
            SentForm::Foreign(fields) => write_value(out, fields),
            SentForm::Canonical(envelope) => {
                let at = &self.block.at;
                let from = sent.from.unwrap_or_default();
                let inner = Recovered::new_unchecked(envelope.as_ref().clone(), from);
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
