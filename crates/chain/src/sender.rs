//! `Sender`: who sent a transaction, as it may be kept beside it.
//!
//! Recovering a signer costs more than all else that reading a transaction does, so it is worth doing once.
//!
//! Guarantees: [`Sender::recover`] goes by the signature alone, never by what a node says. Leaves to others: what is
//! known of foreign transactions ([`crate::Sent`]), and whether senders are kept.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::Address;
use serde::{Deserialize, Serialize};

use crate::block::{Block, Transaction, TransactionForm};
use crate::signature;

/// Who sent a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sender {
    /// Nobody has recovered it, or there is no signature to recover it from.
    #[default]
    Unknown,
    /// Its signature is of nobody.
    Nobody,
    /// Its signature is of this account.
    Signer(Address),
}

impl Sender {
    /// What the signature of a transaction says. Of a foreign one, and of one that can not be read, nothing is known.
    pub fn recover(transaction: &Transaction) -> Self {
        let TransactionForm::Canonical(bytes) = &transaction.form else {
            return Self::Unknown;
        };
        let envelope = TxEnvelope::decode_2718_exact(bytes);
        envelope.map_or(Self::Unknown, |envelope| Self::of(&envelope))
    }

    pub(crate) fn of(envelope: &TxEnvelope) -> Self {
        // Unchecked: before Homestead a signature could have a high `s`. Some chains have transactions of their own
        // making, with numbers that are no signature.
        let signer = signature::signer(envelope.signature(), envelope.signature_hash());
        signer.map_or(Self::Nobody, Self::Signer)
    }

    /// The account, if there is one.
    pub fn address(self) -> Option<Address> {
        match self {
            Self::Signer(address) => Some(address),
            Self::Unknown | Self::Nobody => None,
        }
    }
}

impl Block {
    /// Recovers the senders of all its transactions, whatever was said of them before.
    pub fn recover_senders(&mut self) {
        for transaction in &mut self.transactions {
            transaction.sender = Sender::recover(transaction);
        }
    }
}
