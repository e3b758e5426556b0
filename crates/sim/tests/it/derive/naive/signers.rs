//! Who signed a transaction, and the delegations (EIP-7702) that it carries.
//!
//! Guarantees: the hash of a delegation is computed here. The hash of a transaction is left to `alloy`, the curve
//! to `libsecp256k1`.

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_primitives::{Address, B256, U256, keccak256, uint};
use alloy_rlp::{Encodable, Header};
use secp256k1::ecdsa::{RecoverableSignature, RecoveryId};
use secp256k1::{Message, SECP256K1};

/// First byte of the hashed data of a delegation.
const DELEGATION: u8 = 5;
/// Half of the curve's order: a delegation with a higher `s` does not count.
const HALF_ORDER: U256 =
    uint!(0x7fffffff_ffffffff_ffffffff_ffffffff_5d576e73_57a4501d_dfe92f46_681b20a0_U256);

pub(super) fn sender(envelope: &TxEnvelope) -> Option<Address> {
    let signature = envelope.signature();
    signer(signature.r(), signature.s(), signature.v(), envelope.signature_hash())
}

/// The signers of the delegations for this chain or for all chains, in order.
pub(super) fn authorities(envelope: &TxEnvelope, chain_id: u64) -> Vec<Address> {
    let mut all = Vec::new();
    for one in envelope.authorization_list().unwrap_or_default() {
        let is_here = one.chain_id == U256::ZERO || one.chain_id == U256::from(chain_id);
        if !is_here || one.s() > HALF_ORDER || one.y_parity() > 1 {
            continue;
        }
        let mut fields = Vec::new();
        one.chain_id.encode(&mut fields);
        one.address.encode(&mut fields);
        one.nonce.encode(&mut fields);
        let mut hashed = vec![DELEGATION];
        Header { list: true, payload_length: fields.len() }.encode(&mut hashed);
        hashed.extend(fields);
        all.extend(signer(one.r(), one.s(), one.y_parity() == 1, keccak256(hashed)));
    }
    all
}

fn signer(r: U256, s: U256, is_odd: bool, hash: B256) -> Option<Address> {
    let compact = [r.to_be_bytes::<32>(), s.to_be_bytes::<32>()].concat();
    let parity = if is_odd { RecoveryId::One } else { RecoveryId::Zero };
    let signature = RecoverableSignature::from_compact(&compact, parity).ok()?;
    let key = SECP256K1.recover_ecdsa(Message::from_digest(hash.0), &signature).ok()?;
    let hash = keccak256(&key.serialize_uncompressed()[1..]);
    Some(Address::from_slice(&hash[12..]))
}
