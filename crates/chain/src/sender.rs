//! `Sender`: the sender of a transaction, which may be stored with it.
//!
//! Recovering a signer costs more than all other decoding of a transaction, so it is done once and kept.
//!
//! Guarantees: [`Sender::recover`] uses only the signature, never what a node reports. Leaves to others: the senders
//! of foreign transactions ([`crate::TransactionView`]), and whether senders are stored.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::block::{Block, Transaction, TransactionForm};
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
    /// Recovers the signer. Returns `Unknown` for a foreign transaction and for one that cannot be decoded.
    pub fn recover(transaction: &Transaction) -> Self {
        let TransactionForm::Canonical(bytes) = &transaction.form else {
            return Self::Unknown;
        };
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

impl Block {
    /// Recovers the senders of all its transactions, replacing any that are set.
    pub fn recover_senders(&mut self) {
        for transaction in &mut self.transactions {
            transaction.sender = Sender::recover(transaction);
        }
    }
}
