//! What headers and receipts say, whatever form they are kept in.
//!
//! Guarantees: what a part does not say, or says in a way that can not be read, is `None`, never a guess; only bytes
//! that are not in their stored form are an error. Leaves to others: transactions ([`crate::sent`]), and fields that
//! only JSON has.

use alloy_primitives::{Address, U64, U128, U256};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::block::{Block, Header, Outcome, Receipt};
use crate::error::{Error, Result};

/// The fields of a header that more than its rendering needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFacts {
    /// Who made the block.
    pub miner: Option<Address>,
    /// The part of the price of gas that everybody pays.
    pub base_fee_per_gas: Option<u64>,
    /// The gas of all transactions.
    pub gas_used: Option<u64>,
    /// The most gas they could have used.
    pub gas_limit: Option<u64>,
    /// The blob gas above the target, up to this block: what the price of blob gas follows from.
    pub excess_blob_gas: Option<u64>,
}

/// The fields of a node's receipt that do not follow from its block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptFacts {
    /// What it paid for being stored on another chain.
    pub l1_fee: Option<U256>,
    /// The price of blob gas.
    pub blob_gas_price: Option<u128>,
    /// The blob gas that it used.
    pub blob_gas_used: Option<u64>,
}

impl Header {
    /// What it says.
    pub fn facts(&self) -> Result<HeaderFacts> {
        let Self::Foreign(text) = self else {
            let header = self.decode()?.unwrap_or_default();
            return Ok(HeaderFacts {
                miner: Some(header.beneficiary),
                base_fee_per_gas: header.base_fee_per_gas,
                gas_used: Some(header.gas_used),
                gas_limit: Some(header.gas_limit),
                excess_blob_gas: header.excess_blob_gas,
            });
        };
        let fields = object(text, "a header")?;
        Ok(HeaderFacts {
            miner: field(&fields, "miner"),
            base_fee_per_gas: number(&fields, "baseFeePerGas"),
            gas_used: number(&fields, "gasUsed"),
            gas_limit: number(&fields, "gasLimit"),
            excess_blob_gas: number(&fields, "excessBlobGas"),
        })
    }
}

impl Receipt {
    /// What the node told beside what follows from the block.
    pub fn facts(&self) -> Result<ReceiptFacts> {
        let Some(text) = &self.extra else {
            return Ok(ReceiptFacts::default());
        };
        let fields = object(text, "a receipt's extra")?;
        Ok(ReceiptFacts {
            l1_fee: field(&fields, "l1Fee"),
            blob_gas_price: field::<U128>(&fields, "blobGasPrice").map(|price| price.to()),
            blob_gas_used: number(&fields, "blobGasUsed"),
        })
    }
}

impl Block {
    /// The gas that a transaction used; none if its receipt was made of logs alone, or contradicts the one before it.
    pub fn gas_used(&self, position: usize) -> Option<u64> {
        let receipt = self.receipts.get(position)?;
        if receipt.outcome == Outcome::Unknown && receipt.cumulative_gas_used == 0 {
            return None;
        }
        let before = position.checked_sub(1).and_then(|before| self.receipts.get(before));
        let before = before.map_or(0, |before| before.cumulative_gas_used);
        receipt.cumulative_gas_used.checked_sub(before)
    }
}

/// A JSON object of a node's.
pub(crate) fn object(text: &[u8], what: &str) -> Result<Map<String, Value>> {
    serde_json::from_slice(text)
        .map_err(|error| Error::corrupt(format!("{what} that is not JSON: {error}")))
}

/// A field, if it is there and what it should be.
pub(crate) fn field<T: DeserializeOwned>(fields: &Map<String, Value>, name: &str) -> Option<T> {
    T::deserialize(fields.get(name)?).ok()
}

/// A field that is a number, and not larger than such numbers are.
pub(crate) fn number(fields: &Map<String, Value>, name: &str) -> Option<u64> {
    field::<U64>(fields, name).map(|number| number.to())
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Bytes;

    use super::*;

    fn foreign(text: &str) -> Result<HeaderFacts> {
        Header::Foreign(Bytes::copy_from_slice(text.as_bytes())).facts()
    }

    #[test]
    fn a_field_that_can_not_be_read_is_not_known_and_the_others_are() {
        let miner = Address::repeat_byte(7);
        let text = format!(
            r#"{{"miner":"{miner}","baseFeePerGas":"0x1ffffffffffffffff","gasLimit":[],
            "gasUsed":"0x5","gasUsed":"0x6"}}"#
        );
        let expected =
            HeaderFacts { miner: Some(miner), gas_used: Some(6), ..HeaderFacts::default() };
        assert_eq!(foreign(&text).expect("an object"), expected);
        assert_eq!(foreign("{}").expect("an object"), HeaderFacts::default());
        for broken in ["", "[]", "null", "{", "\u{0}"] {
            assert!(foreign(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_receipt_tells_what_its_node_added() {
        let receipt = |extra: Option<&str>| Receipt {
            tx_type: 3,
            outcome: Outcome::Status(true),
            cumulative_gas_used: 0,
            logs: Vec::new(),
            extra: extra.map(|text| Bytes::copy_from_slice(text.as_bytes())),
        };
        let told = receipt(Some(r#"{"blobGasPrice":"0x3","blobGasUsed":"0x20000","l1Fee":"0x9"}"#));
        let expected = ReceiptFacts {
            l1_fee: Some(U256::from(9)),
            blob_gas_price: Some(3),
            blob_gas_used: Some(0x20000),
        };
        assert_eq!(told.facts().expect("JSON"), expected);
        assert_eq!(receipt(None).facts().expect("nothing"), ReceiptFacts::default());
        let odd = receipt(Some(r#"{"l1Fee":"1.5","blobGasPrice":{}}"#));
        assert_eq!(odd.facts().expect("JSON"), ReceiptFacts::default());
        assert!(receipt(Some("[")).facts().is_err());
    }
}
