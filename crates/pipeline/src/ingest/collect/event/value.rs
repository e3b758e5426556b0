//! Values of an event as cells of a row.
//!
//! | Solidity | column |
//! |---|---|
//! | `address` | address |
//! | `uintN`, `intN` | amount |
//! | `bool` | 0 or 1 |
//! | `bytesN`, `bytes`, `function`; any indexed type that a topic holds as a hash | bytes |
//! | `string` | text |
//! | arrays, tuples | JSON: numbers as text, bytes in hex |
//!
//! Guarantees: a log that a Solidity compiler would not have encoded that way is ignored. Leaves to others: names.

use alloy_dyn_abi::{DecodedEvent, DynSolEvent, DynSolType, DynSolValue};
use alloy_primitives::{B256, I256, hex};
use logmill_chain::Log;
use logmill_io::Amount;
use serde_json::{Value, json};

use crate::derive::rows::amount;
use crate::derive::{Cell, Kind};

/// The kind of column for a type.
pub(super) fn kind(ty: &DynSolType, indexed: bool) -> Kind {
    match ty {
        DynSolType::Address => Kind::Address,
        DynSolType::Uint(_) | DynSolType::Int(_) => Kind::Amount,
        DynSolType::Bool => Kind::Int,
        DynSolType::FixedBytes(_) | DynSolType::Bytes | DynSolType::Function => Kind::Bytes,
        // For these types a topic holds only the hash.
        _ if indexed => Kind::Bytes,
        _ => Kind::Text,
    }
}

/// The values of a log; none if it is not encoded as the event.
pub(super) fn decode(event: &DynSolEvent, log: &Log) -> Option<DecodedEvent> {
    let decoded = event.decode_log_parts(log.topics.iter().copied(), &log.data).ok()?;
    let topics = log.topics.iter().skip(1).zip(&decoded.indexed);
    let whole =
        topics.zip(event.indexed()).all(|((topic, value), ty)| is_word_of(value, ty, topic));
    let body = DynSolValue::Tuple(decoded.body.clone());
    // Static values have only one encoding; comparing it catches what the decoder ignores.
    let exact = body.is_dynamic() || body.abi_encode_sequence().is_some_and(|b| log.data == b);
    let fitting = decoded.indexed.iter().chain(&decoded.body).all(fits);
    (whole && exact && fitting).then_some(decoded)
}

/// Whether a value fits its type: the decoder takes the whole word.
fn fits(value: &DynSolValue) -> bool {
    match value {
        DynSolValue::Uint(number, bits) => number.bit_len() <= *bits,
        DynSolValue::Int(number, bits) => usize::try_from(number.bits()).is_ok_and(|n| n <= *bits),
        DynSolValue::FixedBytes(word, size) => word.iter().skip(*size).all(|byte| *byte == 0),
        DynSolValue::Array(parts) | DynSolValue::FixedArray(parts) | DynSolValue::Tuple(parts) => {
            parts.iter().all(fits)
        }
        _ => true,
    }
}

/// Whether a topic is the encoded value; for types that are hashed, any topic is accepted.
fn is_word_of(value: &DynSolValue, ty: &DynSolType, topic: &B256) -> bool {
    match ty {
        DynSolType::Bytes
        | DynSolType::String
        | DynSolType::Array(_)
        | DynSolType::FixedArray(..)
        | DynSolType::Tuple(_) => true,
        _ => value.as_word() == Some(*topic),
    }
}

pub(super) fn cell(value: DynSolValue) -> Cell {
    match value {
        DynSolValue::Address(address) => address.into(),
        DynSolValue::Uint(number, _) => number.into(),
        DynSolValue::Int(number, _) => signed(number).into(),
        DynSolValue::Bool(truth) => truth.into(),
        DynSolValue::FixedBytes(word, size) => Cell::Bytes(word[..size.min(32)].to_vec().into()),
        DynSolValue::Function(function) => Cell::Bytes(function.as_slice().to_vec().into()),
        DynSolValue::Bytes(bytes) => Cell::Bytes(bytes.into()),
        DynSolValue::String(text) => Cell::Text(storable(&text)),
        other => Cell::Text(storable(&json(&other).to_string())),
    }
}

/// NUL cannot be stored in text columns.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn signed(number: I256) -> Amount {
    let size = amount(number.unsigned_abs());
    if number.is_negative() { -size } else { size }
}

fn json(value: &DynSolValue) -> Value {
    match value {
        DynSolValue::Address(address) => json!(address),
        DynSolValue::Uint(number, _) => json!(number.to_string()),
        DynSolValue::Int(number, _) => json!(number.to_string()),
        DynSolValue::Bool(truth) => json!(truth),
        DynSolValue::FixedBytes(word, size) => json!(hex::encode_prefixed(&word[..*size.min(&32)])),
        DynSolValue::Function(function) => json!(hex::encode_prefixed(function)),
        DynSolValue::Bytes(bytes) => json!(hex::encode_prefixed(bytes)),
        DynSolValue::String(text) => json!(text),
        DynSolValue::Array(parts) | DynSolValue::FixedArray(parts) | DynSolValue::Tuple(parts) => {
            parts.iter().map(json).collect()
        }
    }
}
