//! Encodes a node's JSON of a transaction as EIP-2718 bytes.
//!
//! Guarantees: the bytes follow from the fields alone. Leaves to others: comparing them with the hash that the node
//! reported, and senders, which follow from signatures.

use alloy_consensus::{Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_eips::eip2930::AccessList;
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U64, U128, U256};
use serde::Deserialize;

/// An `r` or `s` with fewer bits is made up: one real value in 2^95 is that small.
const SIGNATURE_BITS_MIN: usize = 161;

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

/// Whether a transaction in JSON has an `r` and an `s` that cannot be a signature. Development nodes make them up for
/// impersonated accounts.
pub(crate) fn is_unsigned(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct SignatureFields {
        r: U256,
        s: U256,
    }
    let numbers: Option<SignatureFields> = serde_json::from_slice(json).ok();
    numbers.is_some_and(|SignatureFields { r, s }| !may_be_signature(r, s))
}

/// Whether two numbers look like a signature. Nodes fill in small numbers where there is none.
pub(crate) fn may_be_signature(r: U256, s: U256) -> bool {
    r.bit_len() >= SIGNATURE_BITS_MIN && s.bit_len() >= SIGNATURE_BITS_MIN && r != s
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
