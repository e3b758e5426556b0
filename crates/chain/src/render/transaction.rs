//! A transaction as JSON, with its place in the chain and its sender.
//!
//! Guarantees: the sender of a canonical transaction is its signer, or the sender that the node reported if it is not
//! signed; `null` if neither is known. Leaves to others: receipts, and decoding ([`TransactionView`]).

use alloy_consensus::transaction::Recovered;
use serde_json::Value;

use super::{BlockRenderer, to_object, write_value};
use crate::error::Result;
use crate::node_fields::key;
use crate::transaction_view::{DecodedForm, TransactionView};

impl BlockRenderer<'_> {
    /// Decodes a transaction of the block, with its sender.
    pub fn transaction_view(&self, position: usize) -> Result<TransactionView> {
        TransactionView::of_block(self.block, position, self.base_fee)
    }

    pub fn transaction(
        &self,
        out: &mut Vec<u8>,
        position: usize,
        view: &TransactionView,
    ) -> Result<()> {
        let envelope = match &view.form {
            DecodedForm::Foreign(fields) => return write_value(out, fields),
            DecodedForm::Canonical(envelope) => envelope,
        };
        let at = &self.block.at;
        let transaction = alloy_rpc_types_eth::Transaction {
            inner: Recovered::new_unchecked(
                envelope.as_ref().clone(),
                view.from.unwrap_or_default(),
            ),
            block_hash: Some(at.hash),
            block_number: Some(at.number),
            transaction_index: u64::try_from(position).ok(),
            effective_gas_price: view.gas_price,
            block_timestamp: Some(at.timestamp),
        };
        let kept = self.block.node_fields.get();
        let is_kept = key(position).is_some_and(|key| kept.transactions.contains_key(&key));
        if view.from.is_some() && !is_kept {
            return write_value(out, &transaction);
        }
        let mut fields = to_object(&transaction)?;
        if view.from.is_none() {
            fields.insert("from".to_owned(), Value::Null);
        }
        fields.extend(kept.of_transaction(position)?);
        write_value(out, &fields)
    }
}
