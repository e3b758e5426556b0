//! Fast signatures for simulated transactions: they are valid and recover to their sender.
//!
//! A signature is `s = (z + r·d) / k` for a message `z`, a key `d` and a nonce `k` with the point `r`.
//! Computing the point is the slow part. So a handful of points is taken from signatures made by the library,
//! and reused for all others. This reveals the keys to any observer, so only a simulation may do it.
//!
//! Guarantees: every signature is valid, has a low `s`, and is the same for the same message and key. Leaves to
//! others: which keys sign what.

use alloy_primitives::{Address, B256, Signature, U256, uint};

use super::draw;
use crate::signature::{sign, strict_signer};

/// The order of the group; exponents are computed modulo this.
const ORDER: U256 = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);
/// Number of points that serve all signatures of a chain.
const POINTS: u64 = 8;
/// Kinds of words: keys, and internal messages.
const KEYS: u64 = 0x5161;
const MESSAGES: u64 = 0x5162;

/// The accounts of a chain.
#[derive(Clone, Debug)]
pub(super) struct Signers {
    accounts: Vec<Account>,
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) address: Address,
    key: U256,
}

/// A nonce whose point is known.
#[derive(Clone, Copy, Debug)]
struct Point {
    inverse: U256,
    r: U256,
    odd: bool,
}

impl Signers {
    /// Creates the accounts of a seed.
    pub(super) fn new(seed: u64, count: u32) -> Self {
        let points = (0..POINTS).filter_map(|number| Point::new(seed, number)).collect();
        let mut signers = Self { accounts: Vec::new(), points };
        for number in 0..u64::from(count.max(1)) {
            let mut account = Account { address: Address::ZERO, key: key(seed, number) };
            // The address is what a signature recovers to.
            let message = draw::word(seed, MESSAGES, number);
            let signature = signers.sign(&account, message);
            account.address = strict_signer(&signature, message).unwrap_or_default();
            signers.accounts.push(account);
        }
        signers
    }

    /// The account with this rank; ranks wrap around after the last account.
    pub(super) fn account(&self, rank: u64) -> Account {
        let count = u64::try_from(self.accounts.len()).unwrap_or(1).max(1);
        let at = usize::try_from(rank % count).unwrap_or(0);
        self.accounts.get(at).copied().unwrap_or(Account { address: Address::ZERO, key: U256::ONE })
    }

    pub(super) fn sign(&self, account: &Account, message: B256) -> Signature {
        let z = U256::from_be_bytes(message.0) % ORDER;
        let at = usize::from(message[31]) % self.points.len().max(1);
        // There are always points: the library refuses only keys that are zero or above the order.
        let Some(point) = self.points.get(at) else {
            return Signature::new(U256::ONE, U256::ONE, false);
        };
        let s = z.add_mod(point.r.mul_mod(account.key, ORDER), ORDER);
        let s = s.mul_mod(point.inverse, ORDER);
        if s > ORDER >> 1 {
            return Signature::new(point.r, ORDER - s, !point.odd);
        }
        Signature::new(point.r, s, point.odd)
    }
}

impl Point {
    /// Computes the point of a signature made by the library.
    fn new(seed: u64, number: u64) -> Option<Self> {
        let message = draw::word(seed, MESSAGES, number ^ u64::MAX);
        let secret = key(seed, number);
        let signature = sign(B256::from(secret), message)?;
        // k = (z + r·d) / s. If the library negated `s`, this is the negated nonce, whose point has the parity
        // that the library recorded.
        let z = U256::from_be_bytes(message.0) % ORDER;
        let sum = z.add_mod(signature.r().mul_mod(secret, ORDER), ORDER);
        let nonce = sum.mul_mod(signature.s().inv_mod(ORDER)?, ORDER);
        Some(Self { inverse: nonce.inv_mod(ORDER)?, r: signature.r(), odd: signature.v() })
    }
}

/// Derives a key: never zero, and below the order because its highest bit is not set.
fn key(seed: u64, number: u64) -> U256 {
    (U256::from_be_bytes(draw::word(seed, KEYS, number).0) >> 1) | U256::ONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_signatures_recover_to_the_same_address_as_those_of_the_library() {
        let signers = Signers::new(7, 3);
        for number in 0..200u64 {
            let account = signers.account(number);
            let message = draw::word(1, 2, number);
            let signature = signers.sign(&account, message);
            assert_eq!(strict_signer(&signature, message).expect("valid"), account.address);
            let slow = sign(B256::from(account.key), message).expect("valid");
            assert_eq!(strict_signer(&slow, message).expect("valid"), account.address);
        }
        assert_ne!(signers.account(0).address, signers.account(1).address);
    }
}
