//! Values of the rows that async workers read of derived tables.
//!
//! Guarantees: what is stored otherwise than it should be is an error. Leaves to others: what to read ([`Reader`]).
//!
//! [`Reader`]: crate::derive::Reader

use alloy_primitives::{Address, U256};
use logmill_io::Amount;
use logmill_io::sql::Row;

use crate::error::{Error, Result};

/// An address of a row.
pub(crate) fn address(row: &Row, column: usize) -> Result<Address> {
    let bytes = row.blob(column)?;
    Address::try_from(&bytes[..]).map_err(|_| Error::corrupt("a stored address"))
}

/// A number of the chain, as a row has it.
pub(crate) fn number(row: &Row, column: usize) -> Result<U256> {
    of_amount(row.amount(column)?).ok_or_else(|| Error::corrupt("a stored number of the chain"))
}

/// The number of an amount; none if it is negative or too large.
pub(crate) fn of_amount(amount: Amount) -> Option<U256> {
    U256::from_str_radix(&amount.to_string(), 10).ok()
}
