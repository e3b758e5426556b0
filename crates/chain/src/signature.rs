//! Creates ECDSA signatures and recovers their signers.
//!
//! Uses libsecp256k1 directly, because the EVM crates' own support pulled in two versions of it.
//!
//! Guarantees: the address follows from signature and message alone. Leaves to others: which messages are signed.

use alloy_primitives::{Address, B256, Signature, U256, keccak256, uint};
use secp256k1::ecdsa::{RecoverableSignature, RecoveryId};
use secp256k1::{Message, SECP256K1, SecretKey};

/// Half the order of the curve. Of a signature's two forms, chains accept the one whose `s` is at most this.
const HALF_ORDER: U256 =
    uint!(0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0_U256);

pub(crate) fn signer(signature: &Signature, message: B256) -> Option<Address> {
    let mut compact = [0; 64];
    compact[..32].copy_from_slice(&signature.r().to_be_bytes::<32>());
    compact[32..].copy_from_slice(&signature.s().to_be_bytes::<32>());
    let parity = if signature.v() { RecoveryId::One } else { RecoveryId::Zero };
    let signature = RecoverableSignature::from_compact(&compact, parity).ok()?;
    let key = SECP256K1.recover_ecdsa(Message::from_digest(message.0), &signature).ok()?;
    // The first byte only marks the key as uncompressed.
    let hash = keccak256(&key.serialize_uncompressed()[1..]);
    Some(Address::from_slice(&hash[12..]))
}

/// Like [`signer`], but rejects a high `s`.
pub(crate) fn strict_signer(signature: &Signature, message: B256) -> Option<Address> {
    if signature.s() > HALF_ORDER { None } else { signer(signature, message) }
}

/// Returns `None` if `key` is not a valid secret key.
pub(crate) fn sign(key: B256, message: B256) -> Option<Signature> {
    let key = SecretKey::from_byte_array(key.0).ok()?;
    let made = SECP256K1.sign_ecdsa_recoverable(Message::from_digest(message.0), &key);
    let (parity, compact) = made.serialize_compact();
    let (r, s) = compact.split_at(32);
    let odd = parity != RecoveryId::Zero;
    Some(Signature::new(U256::try_from_be_slice(r)?, U256::try_from_be_slice(s)?, odd))
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{address, b256};

    use super::*;

    /// The first transaction of the example in EIP-155.
    #[test]
    fn the_example_of_eip_155_is_signed_and_recovered() {
        let key = b256!("4646464646464646464646464646464646464646464646464646464646464646");
        let hash = b256!("daf5a779ae972f972197303d7b574746c7ef83eadac0f2791ad23db92e4c8e53");
        let signature = sign(key, hash).expect("a key");
        let r = uint!(0x28ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276_U256);
        let s = uint!(0x67cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83_U256);
        assert_eq!((signature.r(), signature.s(), signature.v()), (r, s, false));
        let owner = address!("9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f");
        assert_eq!(signer(&signature, hash), Some(owner));
        assert_eq!(strict_signer(&signature, hash), Some(owner));
    }

    #[test]
    fn a_signature_with_a_high_s_recovers_the_same_account_and_is_not_strict() {
        let order = (HALF_ORDER << 1) + U256::ONE;
        let (key, message) = (B256::repeat_byte(7), B256::repeat_byte(9));
        let signature = sign(key, message).expect("a key");
        let other = Signature::new(signature.r(), order - signature.s(), !signature.v());
        assert_eq!(signer(&other, message), signer(&signature, message));
        assert_eq!(strict_signer(&other, message), None);
    }

    #[test]
    fn invalid_signatures_and_keys_are_rejected() {
        let message = B256::repeat_byte(9);
        for (r, s) in [(U256::ZERO, U256::ONE), (U256::ONE, U256::ZERO), (U256::MAX, U256::MAX)] {
            assert_eq!(signer(&Signature::new(r, s, false), message), None);
        }
        assert_eq!(sign(B256::ZERO, message), None);
    }
}
