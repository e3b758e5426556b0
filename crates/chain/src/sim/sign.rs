//! Signatures for simulated transactions: real ones, that recover to their sender, and quickly made.
//!
//! A signature is `s = (z + r·d) / k` for a message `z`, a key `d` and a nonce `k` with the point `r`. What is slow is
//! the point. A handful of points is taken from signatures that the library made, and serves for all others. That
//! gives the keys away to anybody who looks, which is why nothing but a simulation may do it.
//!
//! Guarantees: every signature is valid, in the lower half of `s`, and the same for the same message and key.
//! Leaves to others: which keys sign what.

use alloy_primitives::{Address, B256, Signature, U256, uint};

use super::draw;
use crate::signature::{sign, strict_signer};

/// The order of the group: what exponents are counted modulo.
const ORDER: U256 = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);
/// How many points serve all signatures of a chain.
const POINTS: u64 = 8;
/// The kinds of names: keys, and messages that nobody sees.
const KEYS: u64 = 0x5161;
const MESSAGES: u64 = 0x5162;

/// Who can sign on a chain.
#[derive(Clone, Debug)]
pub(super) struct Signers {
    accounts: Vec<Account>,
    points: Vec<Point>,
}

/// Somebody with a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    /// Their address.
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
    /// The accounts of a seed.
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

    /// The account of a rank; the ranks begin anew after the last.
    pub(super) fn account(&self, rank: u64) -> Account {
        let count = u64::try_from(self.accounts.len()).unwrap_or(1).max(1);
        let at = usize::try_from(rank % count).unwrap_or(0);
        self.accounts.get(at).copied().unwrap_or(Account { address: Address::ZERO, key: U256::ONE })
    }

    /// The signature of a message by an account.
    pub(super) fn sign(&self, account: &Account, message: B256) -> Signature {
        let z = U256::from_be_bytes(message.0) % ORDER;
        let at = usize::from(message[31]) % self.points.len().max(1);
        // There are always points: the library refuses only keys that are zero or beyond the order.
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
    /// The point behind a signature that the library makes.
    fn new(seed: u64, number: u64) -> Option<Self> {
        let message = draw::word(seed, MESSAGES, number ^ u64::MAX);
        let secret = key(seed, number);
        let signature = sign(B256::from(secret), message)?;
        // k = (z + r·d) / s. Where the library took the other half of `s`, this is the opposite nonce, whose point
        // has the parity that the library noted.
        let z = U256::from_be_bytes(message.0) % ORDER;
        let sum = z.add_mod(signature.r().mul_mod(secret, ORDER), ORDER);
        let nonce = sum.mul_mod(signature.s().inv_mod(ORDER)?, ORDER);
        Some(Self { inverse: nonce.inv_mod(ORDER)?, r: signature.r(), odd: signature.v() })
    }
}

/// A key: never zero, and below the order as its highest bit is not set.
fn key(seed: u64, number: u64) -> U256 {
    (U256::from_be_bytes(draw::word(seed, KEYS, number).0) >> 1) | U256::ONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_signatures_recover_to_their_account_and_the_address_is_that_of_the_library() {
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
