//! Decodes a node's JSON of a transaction.
//!
//! Guarantees: a transaction is canonical only if its bytes match its hash. Leaves to others: the encoding
//! ([`crate::transaction_json`]).

use alloy_primitives::{Address, B256, Bytes, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::compare;
use crate::block::{Transaction, TransactionForm};
use crate::transaction_json::{encode, is_unsigned};
use crate::verify::foreign;

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
    (transaction.recover_sender().address() != Some(from)).then_some(from)
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{SignableTransaction, TxLegacy};
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{Signature, TxKind, U256};
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
        let signer = read.recover_sender().address().expect("it recovers");
        let (json, read) = sent(r, s, &json!(signer));
        assert_eq!(unsigned_sender(&json, &read), None);
        let other = Address::repeat_byte(1);
        let (json, read) = sent(r, s, &json!(other));
        assert_eq!(unsigned_sender(&json, &read), Some(other));
    }
}
