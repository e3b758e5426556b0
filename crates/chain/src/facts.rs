//! Typed fields of headers and receipts, read from either stored form.
//!
//! Guarantees: a field that is missing or cannot be parsed is `None`, never a guess; only bytes that are not in their
//! stored form are an error. Leaves to others: transactions ([`crate::transaction_view`]), and fields
//! that only JSON has.

use alloy_primitives::{Address, U128, U256};

use crate::block::{Block, Header, Outcome, Receipt};
use crate::error::Result;
use crate::json_fields::{field, number, object};
use crate::transaction_view::TransactionView;

/// The header fields that are needed beyond rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFacts {
    pub miner: Option<Address>,
    pub base_fee_per_gas: Option<u64>,
    /// Total of all transactions.
    pub gas_used: Option<u64>,
    pub gas_limit: Option<u64>,
    /// Blob gas above the target, accumulated up to this block; determines the blob gas price.
    pub excess_blob_gas: Option<u64>,
    /// Total of all transactions.
    pub blob_gas_used: Option<u64>,
}

/// Fields of a node's receipt that do not follow from its block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptFacts {
    /// Fee for storing the transaction on L1.
    pub l1_fee: Option<U256>,
    pub blob_gas_price: Option<u128>,
    pub blob_gas_used: Option<u64>,
}

/// Fields of a node's receipt that on chains with Ethereum's rules follow from the block, but where the node reported
/// a different value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReportedFacts {
    effective_gas_price: Option<u128>,
    gas_used: Option<u64>,
    /// `Some(None)` if the node reported that no contract was created.
    contract: Option<Option<Address>>,
}

impl Header {
    pub fn facts(&self) -> Result<HeaderFacts> {
        let Self::Foreign(text) = self else {
            let header = self.decode()?.unwrap_or_default();
            return Ok(HeaderFacts {
                miner: Some(header.beneficiary),
                base_fee_per_gas: header.base_fee_per_gas,
                gas_used: Some(header.gas_used),
                gas_limit: Some(header.gas_limit),
                excess_blob_gas: header.excess_blob_gas,
                blob_gas_used: header.blob_gas_used,
            });
        };
        let fields = object(text, "a header")?;
        Ok(HeaderFacts {
            miner: field(&fields, "miner"),
            base_fee_per_gas: number(&fields, "baseFeePerGas"),
            gas_used: number(&fields, "gasUsed"),
            gas_limit: number(&fields, "gasLimit"),
            excess_blob_gas: number(&fields, "excessBlobGas"),
            blob_gas_used: number(&fields, "blobGasUsed"),
        })
    }
}

impl Header {
    /// Whether the header has the hash of a block access list (EIP-7928).
    pub fn has_access_list(&self) -> Result<bool> {
        match self {
            Self::Canonical(_) => {
                Ok(self.decode()?.is_some_and(|header| header.block_access_list_hash.is_some()))
            }
            Self::Foreign(text) => {
                let hash = object(text, "a header")?.remove("blockAccessListHash");
                Ok(hash.is_some_and(|hash| !hash.is_null()))
            }
        }
    }
}

impl Receipt {
    /// Reads the fields that the node reported in addition to those that follow from the block.
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
    /// Gas used by a transaction: the node's value if one is kept, else derived. `None` if its receipt was built from
    /// logs alone, or contradicts the one before it.
    pub fn gas_used(&self, position: usize) -> Option<u64> {
        let receipt = self.receipts.get(position)?;
        if self.lacks_receipt(position) {
            return None;
        }
        if let Some(reported) = self.reported(position).gas_used {
            return Some(reported);
        }
        if receipt.outcome == Outcome::Unknown && receipt.cumulative_gas_used == 0 {
            return None;
        }
        let before = position.checked_sub(1).and_then(|before| self.receipts.get(before));
        let before = before.map_or(0, |before| before.cumulative_gas_used);
        receipt.cumulative_gas_used.checked_sub(before)
    }

    /// Price paid per gas: the node's value if one is kept, else derived.
    pub fn effective_gas_price(&self, position: usize, view: &TransactionView) -> Option<u128> {
        if self.lacks_receipt(position) {
            return None;
        }
        self.reported(position).effective_gas_price.or(view.gas_price)
    }

    /// The price that the node reported, if it is kept because it does not follow from the block.
    pub fn reported_gas_price(&self, position: usize) -> Option<u128> {
        self.reported(position).effective_gas_price
    }

    /// Address of the contract that a transaction creates if it succeeds: the node's value if one is kept, else
    /// derived.
    pub fn created_contract(&self, position: usize, view: &TransactionView) -> Option<Address> {
        self.reported(position).contract.unwrap_or_else(|| view.created())
    }

    fn reported(&self, position: usize) -> ReportedFacts {
        let extra = self.receipts.get(position).and_then(|receipt| receipt.extra.as_ref());
        let Some(text) = extra.filter(|_| self.node_fields.is_compared()) else {
            return ReportedFacts::default();
        };
        let Ok(fields) = object(text, "a receipt's extra") else {
            return ReportedFacts::default();
        };
        let price = field::<U128>(&fields, "effectiveGasPrice");
        ReportedFacts {
            effective_gas_price: price.map(|price| price.to()),
            gas_used: number(&fields, "gasUsed"),
            contract: field::<Option<Address>>(&fields, "contractAddress"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Bytes;

    use super::*;

    fn foreign(text: &str) -> Result<HeaderFacts> {
        Header::Foreign(Bytes::copy_from_slice(text.as_bytes())).facts()
    }

    #[test]
    fn an_unreadable_field_is_none_and_the_others_are_read() {
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
    fn receipt_facts_are_the_fields_that_the_node_added() {
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
