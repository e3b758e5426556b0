//! `Sent`: a transaction that was read, with its sender, whatever form it is kept in.
//!
//! Guarantees: the sender of a canonical transaction is the one that was recovered before, else what its signature
//! says, `None` if it says nothing. Of a foreign one that is `None` which the node does not say, or says in a way that
//! can not be read. Leaves to others: how it ended.

use alloy_consensus::{Transaction as _, TxEnvelope, Typed2718};
use alloy_eips::eip2718::Decodable2718;
use alloy_eips::eip4844::DATA_GAS_PER_BLOB;
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::{Address, B256, Bytes, U128, U256};
use serde_json::{Map, Value};

use crate::block::{Transaction, TransactionForm};
use crate::error::{Error, Result};
use crate::facts;
use crate::sender::Sender;
use crate::signature::strict_signer;

/// A transaction that was read, with its sender.
#[derive(Debug)]
pub struct Sent {
    /// Its type, 0 for a legacy one; none if the node does not say.
    pub tx_type: Option<u8>,
    /// Who sent it.
    pub from: Option<Address>,
    /// Whom it calls; none if it creates a contract.
    pub to: Option<Address>,
    /// Whether it creates a contract.
    pub creates: bool,
    /// Its number among those of its sender.
    pub nonce: Option<u64>,
    /// What it sends.
    pub value: U256,
    /// What it says.
    pub input: Bytes,
    /// The most gas that it could have used.
    pub gas_limit: Option<u64>,
    /// What it paid per gas.
    pub gas_price: Option<u128>,
    /// The blob gas that it used.
    pub blob_gas_used: Option<u64>,
    pub(crate) form: SentForm,
}

/// What was read, whole.
#[derive(Debug)]
pub(crate) enum SentForm {
    /// Of EIP-2718 bytes.
    Canonical(Box<TxEnvelope>),
    /// Of a node's JSON.
    Foreign(Map<String, Value>),
}

impl Sent {
    /// Reads a transaction of a block with this base fee, and recovers its sender if nobody has: by far the
    /// most of the work.
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
                let fields = facts::object(text, "a transaction");
                Ok(Self::foreign(fields.map_err(|error| wrong(error.to_string()))?))
            }
        }
    }

    fn canonical(envelope: TxEnvelope, from: Option<Address>, base_fee: Option<u64>) -> Self {
        // Without the base fee there is only what it was ready to pay.
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
            form: SentForm::Canonical(Box::new(envelope)),
        }
    }

    fn foreign(fields: Map<String, Value>) -> Self {
        let number = |name| facts::number(&fields, name);
        let input = facts::field(&fields, "input").or_else(|| facts::field(&fields, "data"));
        Self {
            tx_type: number("type").and_then(|kind| u8::try_from(kind).ok()),
            from: facts::field(&fields, "from"),
            to: facts::field(&fields, "to"),
            // An address that can not be read is no creation.
            creates: fields.get("to").is_none_or(Value::is_null),
            nonce: number("nonce"),
            value: facts::field(&fields, "value").unwrap_or_default(),
            input: input.unwrap_or_default(),
            gas_limit: number("gas"),
            gas_price: facts::field::<U128>(&fields, "gasPrice").map(|price| price.to()),
            blob_gas_used: blob_gas(&fields),
            form: SentForm::Foreign(fields),
        }
    }

    /// Whether its sender is known by a signature, and not by what a node says.
    pub fn is_signed(&self) -> bool {
        self.from.is_some() && matches!(self.form, SentForm::Canonical(_))
    }

    /// The contract that it makes, if it makes one and nothing goes wrong.
    pub fn created(&self) -> Option<Address> {
        Some(self.from?.create(self.nonce?)).filter(|_| self.creates)
    }

    /// Who signed the delegations that it carries (EIP-7702), in order, as far as they are for this chain. Whether one
    /// took effect depends on the state: it is passed over if its nonce is not that of its account.
    pub fn authorities(&self, chain_id: u64) -> Vec<Address> {
        let told: Vec<SignedAuthorization>;
        let list = match &self.form {
            SentForm::Canonical(envelope) => envelope.authorization_list().unwrap_or_default(),
            SentForm::Foreign(fields) => {
                told = facts::field(fields, "authorizationList").unwrap_or_default();
                &told
            }
        };
        let here = |signed: &&SignedAuthorization| {
            signed.chain_id.is_zero() || signed.chain_id == U256::from(chain_id)
        };
        let signer = |signed: &SignedAuthorization| {
            // The chain refuses a high `s` too.
            strict_signer(&signed.signature().ok()?, signed.inner().signature_hash())
        };
        list.iter().filter(here).filter_map(signer).collect()
    }
}

fn blob_gas(fields: &Map<String, Value>) -> Option<u64> {
    let hashes: Vec<B256> = facts::field(fields, "blobVersionedHashes")?;
    let blobs = u64::try_from(hashes.len()).ok().filter(|blobs| *blobs > 0)?;
    blobs.checked_mul(DATA_GAS_PER_BLOB)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn foreign(fields: &Value) -> Result<Sent> {
        let text = fields.to_string().into_bytes();
        let form = TransactionForm::Foreign(text.into());
        Sent::read(&Transaction::new(B256::ZERO, form), Some(7))
    }

    #[test]
    fn a_foreign_transaction_says_what_its_node_said() {
        let (from, to) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let deposit = json!({
            "type": "0x7e", "from": from, "to": to, "value": "0x5", "input": "0xd0e30db0", "gas": "0xf4240",
            "nonce": "0x3", "gasPrice": "0x0", "sourceHash": B256::ZERO, "isSystemTx": false,
        });
        let sent = foreign(&deposit).expect("an object");
        assert_eq!((sent.tx_type, sent.from, sent.to), (Some(0x7e), Some(from), Some(to)));
        assert_eq!((sent.value, sent.input.len(), sent.nonce), (U256::from(5), 4, Some(3)));
        assert_eq!((sent.gas_limit, sent.gas_price), (Some(1_000_000), Some(0)));
        assert_eq!((sent.creates, sent.is_signed(), sent.created()), (false, false, None));
    }

    #[test]
    fn only_a_transaction_to_nobody_creates() {
        let from = Address::repeat_byte(1);
        let check = |fields: Value, creates: bool, created: Option<Address>| {
            let sent = foreign(&fields).expect("an object");
            assert_eq!((sent.creates, sent.created(), sent.to), (creates, created, None));
        };
        check(json!({"from": from, "nonce": "0x0", "to": null}), true, Some(from.create(0)));
        check(json!({"from": from, "nonce": "0x0"}), true, Some(from.create(0)));
        check(json!({"from": from}), true, None);
        check(json!({"nonce": "0x0"}), true, None);
        check(json!({"from": from, "nonce": "0x0", "to": "nobody"}), false, None);
        assert!(foreign(&json!([])).is_err());
    }

    #[test]
    fn numbers_that_are_no_signature_give_no_sender() {
        use alloy_consensus::{SignableTransaction, TxLegacy};
        use alloy_eips::eip2718::Encodable2718;
        use alloy_primitives::Signature;
        let signed = TxLegacy::default().into_signed(Signature::new(U256::ZERO, U256::ZERO, false));
        let made = Transaction::canonical(TxEnvelope::from(signed).encoded_2718().into());
        let sent = Sent::read(&made, None).expect("it is read");
        assert_eq!((sent.from, sent.is_signed(), sent.created()), (None, false, None));
        assert!(sent.creates);
        assert_eq!(Sender::recover(&made), Sender::Nobody);
    }

    #[test]
    fn a_sender_that_was_recovered_is_taken_and_no_other_is_recovered() {
        use crate::sim::{Shape, SimChain};
        let chain = SimChain::new(1, Shape::sparse());
        chain.grow(20);
        let blocks = (1..=20).filter_map(|number| chain.block(number));
        let mut block = blocks.map(|block| (*block).clone()).find(|it| !it.transactions.is_empty());
        let block = block.as_mut().expect("most blocks have transactions");
        let from = |transaction: &Transaction| Sent::read(transaction, Some(7)).expect("read").from;
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
        // What was wrong is put right.
        block.recover_senders();
        assert_eq!(block.transactions[0].sender.address(), said[0]);
    }

    #[test]
    fn of_a_foreign_transaction_no_sender_is_recovered_nor_taken() {
        let from = Address::repeat_byte(1);
        let text = json!({"from": from}).to_string().into_bytes();
        let form = TransactionForm::Foreign(text.into());
        let mut transaction = Transaction::new(B256::ZERO, form);
        assert_eq!(Sender::recover(&transaction), Sender::Unknown);
        transaction.sender = Sender::Signer(Address::repeat_byte(2));
        assert_eq!(Sent::read(&transaction, None).expect("an object").from, Some(from));
        assert_eq!(Sender::recover(&Transaction::canonical(Bytes::new())), Sender::Unknown);
    }

    #[test]
    fn without_a_base_fee_there_is_no_price_of_what_depends_on_it() {
        use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
        use alloy_eips::eip2718::Encodable2718;
        use alloy_primitives::Signature;
        let signature = Signature::new(U256::ONE, U256::from(6), false);
        let read = |envelope: TxEnvelope, base_fee| {
            let sent = Transaction::canonical(envelope.encoded_2718().into());
            Sent::read(&sent, base_fee).expect("it is read").gas_price
        };
        let legacy = TxLegacy { gas_price: 7, ..TxLegacy::default() };
        assert_eq!(read(legacy.into_signed(signature).into(), None), Some(7));
        let fees =
            TxEip1559 { max_fee_per_gas: 9, max_priority_fee_per_gas: 2, ..TxEip1559::default() };
        assert_eq!(read(fees.clone().into_signed(signature).into(), None), None);
        assert_eq!(read(fees.into_signed(signature).into(), Some(5)), Some(7));
    }
}
