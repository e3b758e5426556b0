//! Wraps a call into a signed transaction, of a type that the fork permits.
//!
//! Guarantees: the bytes are canonical (EIP-2718) and recover to the sender. Leaves to others: the call.

use alloy_consensus::transaction::RlpEcdsaEncodableTx;
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy, TxType,
};
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};

use super::action::Call;
use super::actors::Actors;
use super::draw::Draw;
use super::shape::Fork;
use super::sign::{Account, Signers};

const TIP_MAX: u64 = 3_000_000_000;
/// Version byte of a blob's hash.
const BLOB_VERSION: u8 = 1;

/// The fields of a transaction besides its call.
pub(super) struct Envelope {
    pub(super) chain_id: u64,
    pub(super) base_fee: u64,
    pub(super) nonce: u64,
    pub(super) gas: u64,
    pub(super) fork: Fork,
}

/// Signs a transaction; returns its type, number of blobs, and bytes.
pub(super) fn seal(
    envelope: &Envelope,
    call: &Call,
    actors: &Actors,
    sender: &Account,
    draw: &mut Draw,
) -> (TxType, u64, Bytes) {
    let tip = u128::from(1 + draw.below(TIP_MAX));
    let base = u128::from(envelope.base_fee);
    let draft = TransactionDraft {
        envelope,
        call,
        gas_limit: envelope.gas + envelope.gas / 4 * draw.below(3),
        tip,
        // Some offer hardly more than the minimum.
        fee: if draw.chance(300) { base + tip / 2 } else { base * 2 + tip },
    };
    let signers = actors.signers();
    match tx_type(envelope.fork, call, draw) {
        TxType::Legacy => (TxType::Legacy, 0, sign(&draft.legacy(draw), signers, sender)),
        TxType::Eip2930 => (TxType::Eip2930, 0, sign(&draft.eip2930(draw), signers, sender)),
        TxType::Eip4844 => {
            let tx = draft.eip4844(draw);
            let blobs = u64::try_from(tx.blob_versioned_hashes.len()).unwrap_or(0);
            (TxType::Eip4844, blobs, sign(&tx, signers, sender))
        }
        TxType::Eip7702 => {
            let tx = draft.eip7702(actors, draw);
            (TxType::Eip7702, 0, sign(&tx, signers, sender))
        }
        _ => (TxType::Eip1559, 0, sign(&draft.eip1559(draw), signers, sender)),
    }
}

fn tx_type(fork: Fork, call: &Call, draw: &mut Draw) -> TxType {
    let drawn = draw.below(100);
    match fork {
        Fork::Homestead => TxType::Legacy,
        // Transactions with blobs or delegations cannot create a contract.
        Fork::Prague if drawn < 3 && call.to.is_some() => TxType::Eip4844,
        Fork::Prague if drawn < 6 && call.to.is_some() => TxType::Eip7702,
        Fork::London | Fork::Prague => match drawn {
            0..=25 => TxType::Legacy,
            26..=33 => TxType::Eip2930,
            _ => TxType::Eip1559,
        },
    }
}

fn sign<T: SignableTransaction<Signature> + RlpEcdsaEncodableTx>(
    tx: &T,
    signers: &Signers,
    sender: &Account,
) -> Bytes {
    let signature = signers.sign(sender, tx.signature_hash());
    let mut out = Vec::with_capacity(256);
    tx.eip2718_encode(&signature, &mut out);
    out.into()
}

struct TransactionDraft<'a> {
    envelope: &'a Envelope,
    call: &'a Call,
    gas_limit: u64,
    tip: u128,
    fee: u128,
}

impl TransactionDraft<'_> {
    fn legacy(&self, draw: &mut Draw) -> TxLegacy {
        // Before EIP-155 there was no chain id, and some transactions still omit it.
        let bare = self.envelope.fork == Fork::Homestead || draw.chance(50);
        TxLegacy {
            chain_id: (!bare).then_some(self.envelope.chain_id),
            nonce: self.envelope.nonce,
            gas_price: u128::from(self.envelope.base_fee) + self.tip,
            gas_limit: self.gas_limit,
            to: self.to(),
            value: self.call.value,
            input: self.input(),
        }
    }

    fn eip2930(&self, draw: &mut Draw) -> TxEip2930 {
        TxEip2930 {
            chain_id: self.envelope.chain_id,
            nonce: self.envelope.nonce,
            gas_price: u128::from(self.envelope.base_fee) + self.tip,
            gas_limit: self.gas_limit,
            to: self.to(),
            value: self.call.value,
            access_list: self.access_list(draw),
            input: self.input(),
        }
    }

    fn eip1559(&self, draw: &mut Draw) -> TxEip1559 {
        let listed = draw.chance(30);
        TxEip1559 {
            chain_id: self.envelope.chain_id,
            nonce: self.envelope.nonce,
            gas_limit: self.gas_limit,
            max_fee_per_gas: self.fee,
            max_priority_fee_per_gas: self.tip,
            to: self.to(),
            value: self.call.value,
            access_list: if listed { self.access_list(draw) } else { AccessList::default() },
            input: self.input(),
        }
    }

    fn eip4844(&self, draw: &mut Draw) -> TxEip4844 {
        let mut blob = |_| {
            let mut hash: B256 = draw.word();
            hash[0] = BLOB_VERSION;
            hash
        };
        let hashes: Vec<B256> = (0..2).map(&mut blob).collect();
        let count = 1 + usize::from(hashes[0][1] & 1);
        TxEip4844 {
            chain_id: self.envelope.chain_id,
            nonce: self.envelope.nonce,
            gas_limit: self.gas_limit,
            max_fee_per_gas: self.fee,
            max_priority_fee_per_gas: self.tip,
            to: self.call.to.unwrap_or_default(),
            value: self.call.value,
            access_list: AccessList::default(),
            blob_versioned_hashes: hashes.into_iter().take(count).collect(),
            max_fee_per_blob_gas: 10,
            input: self.input(),
        }
    }

    fn eip7702(&self, actors: &Actors, draw: &mut Draw) -> TxEip7702 {
        TxEip7702 {
            chain_id: self.envelope.chain_id,
            nonce: self.envelope.nonce,
            gas_limit: self.gas_limit,
            max_fee_per_gas: self.fee,
            max_priority_fee_per_gas: self.tip,
            to: self.call.to.unwrap_or_default(),
            value: self.call.value,
            access_list: AccessList::default(),
            authorization_list: vec![self.authorization(actors, draw)],
            input: self.input(),
        }
    }

    fn authorization(&self, actors: &Actors, draw: &mut Draw) -> SignedAuthorization {
        let authority = actors.draw_sender(draw);
        let authorization = Authorization {
            chain_id: U256::from(self.envelope.chain_id),
            address: actors.draw_router(draw),
            nonce: self.envelope.nonce,
        };
        let hash = authorization.signature_hash();
        authorization.into_signed(actors.signers().sign(&authority, hash))
    }

    fn access_list(&self, draw: &mut Draw) -> AccessList {
        let address: Address = self.call.to.unwrap_or_default();
        let storage_keys = (0..draw.below(3)).map(|_| draw.word()).collect();
        AccessList(vec![AccessListItem { address, storage_keys }])
    }

    fn to(&self) -> TxKind {
        self.call.to.map_or(TxKind::Create, TxKind::Call)
    }

    fn input(&self) -> Bytes {
        Bytes::copy_from_slice(&self.call.input)
    }
}
