//! The bill document: versioned JSON with exact amounts, the same for every viewer.
//!
//! Addresses, assets and hashes are text, so that one document serves every family of chains; amounts are decimal text
//! in the smallest unit of their asset, because JSON numbers are not exact.
//!
//! Guarantees: a document that parses has no unknown fields. Leaves to others: what the lines say ([`crate::rules`]).

use std::fmt;

use alloy_primitives::{B256, U512};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::proof::Proof;
use crate::signature::DocumentSignature;

pub const FORMAT: &str = "logmill.bill";
/// Version of the fields of a document.
pub const VERSION: u32 = 1;
/// Version of the rules by which lines follow from evidence.
pub const RULES: u32 = 1;
/// Digits of 2^512 - 1.
const AMOUNT_DIGITS_MAX: usize = 155;

/// A document, its proof and its signature: what a bill file contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bill {
    /// A [`BillDocument`], kept as the value that was signed.
    pub document: Value,
    pub proof: Proof,
    pub signature: DocumentSignature,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BillDocument {
    pub format: String,
    pub version: u32,
    pub rules: u32,
    pub identity: Identity,
    pub parties: Vec<Party>,
    pub lines: Vec<Line>,
    pub network_fee: NetworkFee,
    pub totals: Vec<Total>,
}

/// Which transaction it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    pub chain_id: u64,
    pub block_number: u64,
    pub block_hash: B256,
    /// Seconds since 1970.
    pub timestamp: u64,
    pub transaction_index: u64,
    pub transaction_hash: B256,
    pub transaction_type: Option<u8>,
    pub nonce: Option<u64>,
    pub status: Status,
    pub basis: Basis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Success,
    /// Nothing but the fee was paid.
    Reverted,
    /// The receipt does not say: before Byzantium it holds a state root.
    Unknown,
}

/// Why a statement can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// It follows from the proof.
    Proven,
    /// The signer says so.
    Attested,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Party {
    pub role: Role,
    pub address: String,
    pub basis: Basis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Sender,
    Recipient,
    CreatedContract,
    /// Signed a delegation that the transaction carries (EIP-7702).
    Authority,
}

/// One movement of one asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Line {
    pub kind: LineKind,
    /// Identifies the asset: `native`, `erc20:ADDRESS`, `erc721:ADDRESS/ID` or `erc1155:ADDRESS/ID`.
    pub asset: String,
    pub from: String,
    pub to: String,
    pub amount: Amount,
    pub basis: Basis,
    /// Position in the receipt of the log that shows it; absent for the value of the transaction itself.
    pub log: Option<u64>,
    /// Position in the batch of the log.
    pub item: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineKind {
    Transfer,
    Mint,
    Burn,
}

/// What the transaction cost, in the native asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkFee {
    pub payer: Option<String>,
    pub gas_limit: Option<u64>,
    pub gas_used: Option<u64>,
    pub gas_price: Option<Amount>,
    pub parts: Vec<FeePart>,
    /// Absent if a part is unknown.
    pub total: Option<Amount>,
    pub basis: Basis,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FeePart {
    pub kind: FeeKind,
    pub amount: Amount,
    pub basis: Basis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeeKind {
    /// Gas at the base fee of the block; burnt on Ethereum.
    Base,
    /// Gas above the base fee, paid to the block's producer.
    Tip,
    /// All gas, on blocks without a base fee.
    Execution,
    /// Blob gas, burnt on Ethereum.
    Blob,
    /// A rollup's fee for storing the transaction on L1.
    L1Data,
}

/// Everything that moved of one asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Total {
    pub asset: String,
    pub lines: u64,
    pub moved: Amount,
    pub basis: Basis,
}

/// An exact amount, as decimal text without leading zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub U512);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        let is_shortest = text == "0" || !text.starts_with('0');
        let parsed = U512::from_str_radix(&text, 10).ok();
        parsed
            .filter(|_| is_decimal && is_shortest && (1..=AMOUNT_DIGITS_MAX).contains(&text.len()))
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("an amount must be a decimal integer as text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_text_in_one_form() {
        for text in [
            "0",
            "1",
            "115792089237316195423570985008687907853269984665640564039457584007913129639936",
        ] {
            let amount: Amount = serde_json::from_value(text.into()).expect("an amount");
            assert_eq!(serde_json::to_value(amount).expect("text"), text);
        }
        let long = "9".repeat(200);
        for text in ["", "-1", "+1", "01", "00", "1.0", "1e3", "0x1", " 1", "1_0", &long] {
            assert!(serde_json::from_value::<Amount>(text.into()).is_err(), "{text}");
        }
        assert!(serde_json::from_value::<Amount>(1.into()).is_err());
    }
}
