//! Typed fields of the JSON objects that nodes return.
//!
//! Guarantees: a field that is missing or cannot be parsed is `None`, never a guess. Leaves to others: what the fields
//! mean.

use alloy_primitives::U64;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Parses a JSON object that a node returned.
pub(crate) fn object(text: &[u8], what: &str) -> Result<Map<String, Value>> {
    serde_json::from_slice(text)
        .map_err(|error| Error::corrupt(format!("{what} is not a JSON object: {error}")))
}

/// Returns a field if it is present and valid.
pub(crate) fn field<T: DeserializeOwned>(fields: &Map<String, Value>, name: &str) -> Option<T> {
    T::deserialize(fields.get(name)?).ok()
}

/// Returns a hex number field if it is present, valid and fits.
pub(crate) fn number(fields: &Map<String, Value>, name: &str) -> Option<u64> {
    field::<U64>(fields, name).map(|number| number.to())
}
