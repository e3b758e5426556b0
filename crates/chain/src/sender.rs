//! `Sender`: the sender of a transaction, which may be stored with it.
//!
//! Recovering a signer costs more than all other decoding of a transaction, so it is done once and kept.
//!
//! Guarantees: a signer follows from the signature only, never from what a node reports. Leaves to others: the senders
//! of foreign transactions ([`crate::TransactionView`]), and whether senders are stored.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::signature;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sender {
    /// Not recovered yet, or there is no signature to recover it from.
    #[default]
    Unknown,
    /// The signature is invalid.
    Nobody,
    Signer(Address),
}

impl Sender {
    /// Recovers the signer from EIP-2718 bytes. Returns `Unknown` if they cannot be decoded.
    pub(crate) fn recover(bytes: &[u8]) -> Self {
        let envelope = TxEnvelope::decode_2718_exact(bytes);
        envelope.map_or(Self::Unknown, |envelope| Self::of(&envelope))
    }

    pub(crate) fn of(envelope: &TxEnvelope) -> Self {
        // A high `s` is accepted, since it was valid before Homestead. Some chains have system transactions whose `r`
        // and `s` are not a signature.
        let signer = signature::signer(envelope.signature(), envelope.signature_hash());
        signer.map_or(Self::Nobody, Self::Signer)
    }

    pub fn address(self) -> Option<Address> {
        match self {
            Self::Signer(address) => Some(address),
            Self::Unknown | Self::Nobody => None,
        }
    }
}
