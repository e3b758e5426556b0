//! `TransactionView`: a decoded transaction with its sender, read from either stored form.
//!
//! Guarantees: the sender of a canonical transaction is the one recovered before, or else the signer, or `None` if
//! the signature is invalid. A field of a foreign transaction is `None` if the node omits it or it cannot be parsed.
//! Leaves to others: the outcome.

use alloy_consensus::{Transaction as _, TxEnvelope, Typed2718};
use alloy_eips::eip2718::Decodable2718;
use alloy_eips::eip4844::DATA_GAS_PER_BLOB;
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::{Address, B256, Bytes, U128, U256};
use serde_json::{Map, Value};

use crate::block::{Block, Transaction, TransactionForm};
use crate::error::{Error, Result};
use crate::json_fields;
use crate::sender::Sender;
use crate::signature::strict_signer;

#[derive(Debug)]
pub struct TransactionView {
    /// 0 for a legacy one; `None` if the node does not report it.
    pub tx_type: Option<u8>,
    pub from: Option<Address>,
    /// `None` if it creates a contract.
    pub to: Option<Address>,
    pub creates: bool,
    pub nonce: Option<u64>,
    pub value: U256,
    pub input: Bytes,
    pub gas_limit: Option<u64>,
    /// The price actually paid per gas.
    pub gas_price: Option<u128>,
    pub blob_gas_used: Option<u64>,
    /// Whether `from` was recovered from the signature, rather than reported by a node.
    signed: bool,
    pub(crate) form: DecodedForm,
}

/// The whole decoded transaction.
#[derive(Debug)]
pub(crate) enum DecodedForm {
    /// From EIP-2718 bytes.
    Canonical(Box<TxEnvelope>),
    /// From a node's JSON.
    Foreign(Map<String, Value>),
}

impl TransactionView {
    /// Decodes a transaction of a block with this base fee. Recovers its sender if it is not known yet, which is by
    /// far the most expensive part.
    pub fn read(transaction: &Transaction, base_fee: Option<u64>) -> Result<Self> {
        let wrong =
            |what: String| Error::corrupt(format!("transaction {}: {what}", transaction.hash));
        match &transaction.form {
            TransactionForm::Canonical(bytes) => {
                let envelope = TxEnvelope::decode_2718_exact(bytes);
                let envelope = envelope.map_err(|error| wrong(error.to_string()))?;
                let sender = match transaction.sender {
                    Sender::Unknown => Sender::of(&envelope),
                    recovered => recovered,
                };
                Ok(Self::canonical(envelope, sender.address(), base_fee))
            }
            TransactionForm::Foreign(text) => {
                let fields = json_fields::object(text, "a transaction");
                Ok(Self::foreign(fields.map_err(|error| wrong(error.to_string()))?))
            }
        }
    }

    pub(crate) fn canonical(
        envelope: TxEnvelope,
        from: Option<Address>,
        base_fee: Option<u64>,
    ) -> Self {
        // Without the base fee only the maximum price is known, not the price paid.
        let priced = base_fee.is_some() || !envelope.is_dynamic_fee();
        Self {
            tx_type: Some(envelope.ty()),
            from,
            to: envelope.to(),
            creates: envelope.is_create(),
            nonce: Some(envelope.nonce()),
            value: envelope.value(),
            input: envelope.input().clone(),
            gas_limit: Some(envelope.gas_limit()),
            gas_price: priced.then(|| envelope.effective_gas_price(base_fee)),
            blob_gas_used: envelope.blob_gas_used(),
            signed: from.is_some(),
            form: DecodedForm::Canonical(Box::new(envelope)),
        }
    }

    fn foreign(fields: Map<String, Value>) -> Self {
        let number = |name| json_fields::number(&fields, name);
        let input =
            json_fields::field(&fields, "input").or_else(|| json_fields::field(&fields, "data"));
        Self {
            tx_type: number("type").and_then(|kind| u8::try_from(kind).ok()),
            from: json_fields::field(&fields, "from"),
            to: json_fields::field(&fields, "to"),
            // An address that cannot be parsed does not mean creation.
            creates: fields.get("to").is_none_or(Value::is_null),
            nonce: number("nonce"),
            value: json_fields::field(&fields, "value").unwrap_or_default(),
            input: input.unwrap_or_default(),
            gas_limit: number("gas"),
            gas_price: json_fields::field::<U128>(&fields, "gasPrice").map(|price| price.to()),
            blob_gas_used: blob_gas(&fields),
            signed: false,
            form: DecodedForm::Foreign(fields),
        }
    }

    /// Like [`TransactionView::read`] for the transaction at a position of a block, but uses the sender that the node
    /// reported if the transaction is not signed.
    pub fn of_block(block: &Block, position: usize, base_fee: Option<u64>) -> Result<Self> {
        let transaction = block.transactions.get(position);
        let transaction = transaction.ok_or_else(|| Error::corrupt("a transaction is missing"))?;
        let mut view = Self::read(transaction, base_fee)?;
        let kept = block.node_fields.get().of_transaction(position)?;
        if let Some(from) = json_fields::field(&kept, "from") {
            (view.from, view.signed) = (Some(from), false);
        }
        Ok(view)
    }

    /// Whether its sender was recovered from a signature, rather than reported by a node.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// The address of the contract it creates, if it creates one and succeeds.
    pub fn created(&self) -> Option<Address> {
        Some(self.from?.create(self.nonce?)).filter(|_| self.creates)
    }

    /// The signers of its delegations for this chain (EIP-7702), in order. Whether a delegation took effect depends
    /// on the state: the chain skips it if its nonce does not match the account.
    pub fn authorities(&self, chain_id: u64) -> Vec<Address> {
        let told: Vec<SignedAuthorization>;
        let list = match &self.form {
            DecodedForm::Canonical(envelope) => envelope.authorization_list().unwrap_or_default(),
            DecodedForm::Foreign(fields) => {
                told = json_fields::field(fields, "authorizationList").unwrap_or_default();
                &told
            }
        };
        let here = |signed: &&SignedAuthorization| {
            signed.chain_id.is_zero() || signed.chain_id == U256::from(chain_id)
        };
        let signer = |signed: &SignedAuthorization| {
            // The chain rejects a high `s` too.
            strict_signer(&signed.signature().ok()?, signed.inner().signature_hash())
        };
        list.iter().filter(here).filter_map(signer).collect()
    }
}

fn blob_gas(fields: &Map<String, Value>) -> Option<u64> {
    let hashes: Vec<B256> = json_fields::field(fields, "blobVersionedHashes")?;
    let blobs = u64::try_from(hashes.len()).ok().filter(|blobs| *blobs > 0)?;
    blobs.checked_mul(DATA_GAS_PER_BLOB)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn foreign(fields: &Value) -> Result<TransactionView> {
        let text = fields.to_string().into_bytes();
        let form = TransactionForm::Foreign(text.into());
        TransactionView::read(&Transaction::new(B256::ZERO, form), Some(7))
    }

    #[test]
    fn a_foreign_transaction_has_the_fields_that_its_node_reported() {
        let (from, to) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let deposit = json!({
            "type": "0x7e", "from": from, "to": to, "value": "0x5", "input": "0xd0e30db0", "gas": "0xf4240",
            "nonce": "0x3", "gasPrice": "0x0", "sourceHash": B256::ZERO, "isSystemTx": false,
        });
        let view = foreign(&deposit).expect("an object");
        assert_eq!((view.tx_type, view.from, view.to), (Some(0x7e), Some(from), Some(to)));
        assert_eq!((view.value, view.input.len(), view.nonce), (U256::from(5), 4, Some(3)));
        assert_eq!((view.gas_limit, view.gas_price), (Some(1_000_000), Some(0)));
        assert_eq!((view.creates, view.is_signed(), view.created()), (false, false, None));
    }

    #[test]
    fn only_a_transaction_without_a_recipient_creates_a_contract() {
        let from = Address::repeat_byte(1);
        let check = |fields: Value, creates: bool, created: Option<Address>| {
            let view = foreign(&fields).expect("an object");
            assert_eq!((view.creates, view.created(), view.to), (creates, created, None));
        };
        check(json!({"from": from, "nonce": "0x0", "to": null}), true, Some(from.create(0)));
        check(json!({"from": from, "nonce": "0x0"}), true, Some(from.create(0)));
        check(json!({"from": from}), true, None);
        check(json!({"nonce": "0x0"}), true, None);
        check(json!({"from": from, "nonce": "0x0", "to": "nobody"}), false, None);
        assert!(foreign(&json!([])).is_err());
    }

    #[test]
    fn an_invalid_signature_yields_no_sender() {
        use alloy_consensus::{SignableTransaction, TxLegacy};
        use alloy_eips::eip2718::Encodable2718;
        use alloy_primitives::Signature;
        let signed = TxLegacy::default().into_signed(Signature::new(U256::ZERO, U256::ZERO, false));
        let made = Transaction::canonical(TxEnvelope::from(signed).encoded_2718().into());
        let view = TransactionView::read(&made, None).expect("it is read");
        assert_eq!((view.from, view.is_signed(), view.created()), (None, false, None));
        assert!(view.creates);
        assert_eq!(made.recover_sender(), Sender::Nobody);
    }

    #[test]
    fn a_recovered_sender_is_used_and_not_recovered_again() {
        use crate::sim::{Shape, SimChain};
        let chain = SimChain::new(1, Shape::sparse());
        chain.grow(20);
        let blocks = (1..=20).filter_map(|number| chain.block(number));
        let mut block = blocks.map(|block| (*block).clone()).find(|it| !it.transactions.is_empty());
        let block = block.as_mut().expect("most blocks have transactions");
        let from = |transaction: &Transaction| {
            TransactionView::read(transaction, Some(7)).expect("read").from
        };
        let said: Vec<Option<Address>> = block.transactions.iter().map(from).collect();
        assert!(said.iter().all(Option::is_some));
        block.recover_senders();
        let kept = block.transactions.iter().map(|transaction| transaction.sender.address());
        assert_eq!(kept.collect::<Vec<_>>(), said);
        let other = Address::repeat_byte(7);
        for (sender, expected) in [
            (block.transactions[0].sender, said[0]),
            (Sender::Unknown, said[0]),
            (Sender::Nobody, None),
            (Sender::Signer(other), Some(other)),
        ] {
            block.transactions[0].sender = sender;
            assert_eq!(from(&block.transactions[0]), expected, "{sender:?}");
        }
        // A wrong sender is corrected.
        block.recover_senders();
        assert_eq!(block.transactions[0].sender.address(), said[0]);
    }

    #[test]
    fn a_foreign_transaction_uses_only_the_reported_sender() {
        let from = Address::repeat_byte(1);
        let text = json!({"from": from}).to_string().into_bytes();
        let form = TransactionForm::Foreign(text.into());
        let mut transaction = Transaction::new(B256::ZERO, form);
        assert_eq!(transaction.recover_sender(), Sender::Unknown);
        transaction.sender = Sender::Signer(Address::repeat_byte(2));
        assert_eq!(TransactionView::read(&transaction, None).expect("an object").from, Some(from));
        assert_eq!(Transaction::canonical(Bytes::new()).recover_sender(), Sender::Unknown);
    }

    #[test]
    fn without_a_base_fee_the_price_of_a_dynamic_fee_transaction_is_unknown() {
        use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
        use alloy_eips::eip2718::Encodable2718;
        use alloy_primitives::Signature;
        let signature = Signature::new(U256::ONE, U256::from(6), false);
        let read = |envelope: TxEnvelope, base_fee| {
            let view = Transaction::canonical(envelope.encoded_2718().into());
            TransactionView::read(&view, base_fee).expect("it is read").gas_price
        };
        let legacy = TxLegacy { gas_price: 7, ..TxLegacy::default() };
        assert_eq!(read(legacy.into_signed(signature).into(), None), Some(7));
        let fees =
            TxEip1559 { max_fee_per_gas: 9, max_priority_fee_per_gas: 2, ..TxEip1559::default() };
        assert_eq!(read(fees.clone().into_signed(signature).into(), None), None);
        assert_eq!(read(fees.into_signed(signature).into(), Some(5)), Some(7));
    }
}
