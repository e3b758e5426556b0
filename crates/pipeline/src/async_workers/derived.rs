//! Typed access to the rows of derived tables that async workers read.
//!
//! Guarantees: a stored value of the wrong form is an error. Leaves to others: the queries ([`Reader`]).
//!
//! [`Reader`]: crate::derive::Reader

use alloy_primitives::{Address, U256};
use logmill_io::Amount;
use logmill_io::sql::Row;

use crate::error::{Error, Result};

pub(crate) fn address(row: &Row, column: usize) -> Result<Address> {
    let bytes = row.blob(column)?;
    Address::try_from(&bytes[..]).map_err(|_| Error::corrupt("a stored address"))
}

/// A column that holds a `uint256` of the chain.
pub(crate) fn number(row: &Row, column: usize) -> Result<U256> {
    of_amount(row.amount(column)?).ok_or_else(|| Error::corrupt("a stored number of the chain"))
}

/// Converts an amount; none if it is negative or too large.
pub(crate) fn of_amount(amount: Amount) -> Option<U256> {
    U256::from_str_radix(&amount.to_string(), 10).ok()
}
