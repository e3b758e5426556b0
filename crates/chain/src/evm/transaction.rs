//! Encodes a node's JSON of a transaction as EIP-2718 bytes.
//!
//! Guarantees: a transaction is canonical only if its bytes match its hash. Leaves to others: senders, which follow
//! from signatures.

use alloy_consensus::{Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_eips::eip2930::AccessList;
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U64, U128, U256, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::compare;
use crate::block::{Transaction, TransactionForm};
use crate::sender::Sender;
use crate::verify::foreign;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    #[serde(default, rename = "type")]
    kind: Option<U64>,
    #[serde(default)]
    chain_id: Option<U64>,
    nonce: U64,
    #[serde(default)]
    gas_price: Option<U128>,
    #[serde(default)]
    max_fee_per_gas: Option<U128>,
    #[serde(default)]
    max_priority_fee_per_gas: Option<U128>,
    #[serde(default)]
    max_fee_per_blob_gas: Option<U128>,
    gas: U64,
    #[serde(default)]
    to: Option<Address>,
    value: U256,
    #[serde(alias = "data")]
    input: Bytes,
    #[serde(default)]
    access_list: Option<AccessList>,
    #[serde(default)]
    blob_versioned_hashes: Option<Vec<B256>>,
    #[serde(default)]
    authorization_list: Option<Vec<SignedAuthorization>>,
    #[serde(default)]
    v: Option<U64>,
    #[serde(default)]
    y_parity: Option<U64>,
    r: U256,
    s: U256,
}

#[derive(Deserialize)]
struct HashField {
    hash: B256,
}

/// Decodes a transaction: canonical if possible, else as the node's JSON.
pub(super) fn read(json: &RawValue) -> Result<Transaction, String> {
    let HashField { hash } = serde_json::from_str(json.get())
        .map_err(|error| format!("cannot parse a transaction: {error}"))?;
    let form = match encode(json.get().as_bytes()) {
        Ok(bytes) if keccak256(&bytes) == hash => TransactionForm::Canonical(Bytes::from(bytes)),
        _ => {
            let text = json.get().as_bytes();
            let bounded = compare::bounded(text, foreign::TRANSACTION_FIELDS);
            TransactionForm::Foreign(bounded.unwrap_or_else(|| Bytes::copy_from_slice(text)))
        }
    };
    Ok(Transaction::new(hash, form))
}

/// The sender that the node reported, if a canonical transaction has no valid signature or that of another account.
pub(super) fn unsigned_sender(json: &RawValue, transaction: &Transaction) -> Option<Address> {
    #[derive(Deserialize)]
    struct SenderField {
        from: Address,
    }
    let is_canonical = matches!(transaction.form, TransactionForm::Canonical(_));
    if !is_canonical || !is_unsigned(json.get().as_bytes()) {
        return None;
    }
    let SenderField { from } = serde_json::from_str(json.get()).ok()?;
    (Sender::recover(transaction).address() != Some(from)).then_some(from)
}

/// Whether a transaction in JSON has an `r` and an `s` that cannot be a signature. Development nodes make them up for
/// impersonated accounts.
pub(crate) fn is_unsigned(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct SignatureFields {
        r: U256,
        s: U256,
    }
    let numbers: Option<SignatureFields> = serde_json::from_slice(json).ok();
    numbers.is_some_and(|SignatureFields { r, s }| !compare::may_be_signature(r, s))
}

/// The EIP-2718 bytes of a transaction in JSON, whatever its hash; the error names what it lacks.
pub(crate) fn encode(json: &[u8]) -> Result<Vec<u8>, String> {
    let fields: Fields = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let kind = fields.kind.map_or(0, |kind| kind.to::<u64>());
    fields
        .encode()
        .ok_or_else(|| format!("it lacks a field or a signature that type {kind} requires"))
}

/// Whether transactions of this type can be encoded.
pub(crate) fn is_known_type(kind: u8) -> bool {
    kind <= 4
}

/// The type of a transaction in JSON; 0 if it has none, 255 if it does not fit into a byte.
pub(crate) fn foreign_type(json: &[u8]) -> u8 {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(default, rename = "type")]
        kind: Option<U64>,
    }
    let kind: Option<Kind> = serde_json::from_slice(json).ok();
    let kind = kind.and_then(|kind| kind.kind);
    kind.map_or(0, |kind| u8::try_from(kind.to::<u64>()).unwrap_or(u8::MAX))
}

impl Fields {
    fn encode(self) -> Option<Vec<u8>> {
        match self.kind.map_or(0, |kind| kind.to::<u64>()) {
            0 => self.legacy(),
            1 => self.eip2930(),
            2 => self.eip1559(),
            3 => self.eip4844(),
            4 => self.eip7702(),
            _ => None,
        }
    }

    fn legacy(self) -> Option<Vec<u8>> {
        let v: u64 = self.v?.to();
        // The chain id comes from `v` alone: nodes add a `chainId` to transactions that have none.
        let (chain_id, parity) = match v {
            27 | 28 => (None, v == 28),
            35.. => (Some((v - 35) / 2), (v - 35) % 2 == 1),
            _ => return None,
        };
        let signature = Signature::new(self.r, self.s, parity);
        let transaction = TxLegacy {
            chain_id,
            nonce: self.nonce.to(),
            gas_price: self.gas_price?.to(),
            gas_limit: self.gas.to(),
            to: kind(self.to),
            value: self.value,
            input: self.input,
        };
        Some(Signed::new_unchecked(transaction, signature, B256::ZERO).encoded_2718())
    }

    fn eip2930(self) -> Option<Vec<u8>> {
        let signature = self.signature()?;
        let transaction = TxEip2930 {
            chain_id: self.chain_id?.to(),
            nonce: self.nonce.to(),
            gas_price: self.gas_price?.to(),
            gas_limit: self.gas.to(),
            to: kind(self.to),
            value: self.value,
            access_list: self.access_list.unwrap_or_default(),
            input: self.input,
        };
        Some(Signed::new_unchecked(transaction, signature, B256::ZERO).encoded_2718())
    }

    fn eip1559(self) -> Option<Vec<u8>> {
        let signature = self.signature()?;
        let transaction = TxEip1559 {
            chain_id: self.chain_id?.to(),
            nonce: self.nonce.to(),
            gas_limit: self.gas.to(),
            max_fee_per_gas: self.max_fee_per_gas?.to(),
            max_priority_fee_per_gas: self.max_priority_fee_per_gas?.to(),
            to: kind(self.to),
            value: self.value,
            access_list: self.access_list.unwrap_or_default(),
            input: self.input,
        };
        Some(Signed::new_unchecked(transaction, signature, B256::ZERO).encoded_2718())
    }

    fn eip4844(self) -> Option<Vec<u8>> {
        let signature = self.signature()?;
        let transaction = TxEip4844 {
            chain_id: self.chain_id?.to(),
            nonce: self.nonce.to(),
            gas_limit: self.gas.to(),
            max_fee_per_gas: self.max_fee_per_gas?.to(),
            max_priority_fee_per_gas: self.max_priority_fee_per_gas?.to(),
            to: self.to?,
            value: self.value,
            access_list: self.access_list.unwrap_or_default(),
            blob_versioned_hashes: self.blob_versioned_hashes?,
            max_fee_per_blob_gas: self.max_fee_per_blob_gas?.to(),
            input: self.input,
        };
        Some(Signed::new_unchecked(transaction, signature, B256::ZERO).encoded_2718())
    }

    fn eip7702(self) -> Option<Vec<u8>> {
        let signature = self.signature()?;
        let transaction = TxEip7702 {
            chain_id: self.chain_id?.to(),
            nonce: self.nonce.to(),
            gas_limit: self.gas.to(),
            max_fee_per_gas: self.max_fee_per_gas?.to(),
            max_priority_fee_per_gas: self.max_priority_fee_per_gas?.to(),
            to: self.to?,
            value: self.value,
            access_list: self.access_list.unwrap_or_default(),
            authorization_list: self.authorization_list?,
            input: self.input,
        };
        Some(Signed::new_unchecked(transaction, signature, B256::ZERO).encoded_2718())
    }

    /// The signature of a typed transaction, with `yParity`, which older nodes call `v`.
    fn signature(&self) -> Option<Signature> {
        let parity: u64 = self.y_parity.or(self.v)?.to();
        (parity <= 1).then(|| Signature::new(self.r, self.s, parity == 1))
    }
}

fn kind(to: Option<Address>) -> TxKind {
    to.map_or(TxKind::Create, TxKind::Call)
}

#[cfg(test)]
mod tests {
    use alloy_consensus::SignableTransaction;
    use serde_json::{Value, json};

    use super::*;

    /// A legacy transaction with this `r` and `s`, which the node reports as sent by `from`.
    fn sent(r: U256, s: U256, from: &Value) -> (Box<RawValue>, Transaction) {
        let to = TxKind::Call(Address::repeat_byte(9));
        let legacy = TxLegacy { gas_price: 7, gas_limit: 21_000, to, ..TxLegacy::default() };
        let bytes = legacy.into_signed(Signature::new(r, s, false)).encoded_2718();
        let text = json!({
            "hash": keccak256(&bytes), "type": "0x0", "nonce": "0x0", "gasPrice": "0x7", "gas": "0x5208",
            "to": Address::repeat_byte(9), "value": "0x0", "input": "0x", "v": "0x1b", "r": r, "s": s, "from": from,
        });
        let json = RawValue::from_string(text.to_string()).expect("JSON");
        let read = read(&json).expect("a transaction");
        assert!(matches!(read.form, TransactionForm::Canonical(_)));
        (json, read)
    }

    #[test]
    fn a_reported_sender_is_used_only_if_there_is_no_signature() {
        let account = Address::repeat_byte(0xaa);
        let large = |number: u64| U256::from(number) << 200;
        let check = |r: U256, s: U256, from: Value, expected: Option<Address>| {
            let (json, read) = sent(r, s, &from);
            assert_eq!(unsigned_sender(&json, &read), expected, "{r} {s}");
        };
        for number in [U256::ZERO, U256::ONE, large(5)] {
            check(number, number, json!(account), Some(account));
        }
        check(U256::ONE, large(5), json!(account), Some(account));
        check(U256::ZERO, U256::ZERO, Value::Null, None);
        // The signer is the sender, whatever the node reports.
        check(large(5), large(6), json!(account), None);
        // A foreign transaction keeps the node's JSON whole.
        let (json, read) = sent(U256::ZERO, U256::ZERO, &json!(account));
        let text = Bytes::copy_from_slice(json.get().as_bytes());
        let foreign = Transaction::new(read.hash, TransactionForm::Foreign(text));
        assert_eq!(unsigned_sender(&json, &foreign), None);
    }

    #[test]
    fn a_reported_sender_that_the_signature_recovers_to_is_not_kept() {
        // Small numbers may form a signature that recovers, made without a key.
        let (r, s) = (U256::ONE, U256::from(6));
        let (_, read) = sent(r, s, &Value::Null);
        let signer = Sender::recover(&read).address().expect("it recovers");
        let (json, read) = sent(r, s, &json!(signer));
        assert_eq!(unsigned_sender(&json, &read), None);
        let other = Address::repeat_byte(1);
        let (json, read) = sent(r, s, &json!(other));
        assert_eq!(unsigned_sender(&json, &read), Some(other));
    }
}
