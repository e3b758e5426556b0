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
//! Guarantees: every value has a cell. Leaves to others: decoding ([`crate::derive::decoded::event`]), and names.

use alloy_dyn_abi::{DynSolType, DynSolValue};
use alloy_primitives::{I256, hex};
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
