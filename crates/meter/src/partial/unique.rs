//! Number of unique items: exact while there are few, estimated when there are many.
//!
//! Up to [`UNIQUE_EXACT_MAX`] items are kept as a set of 64-bit hashes, in which the probability of a collision is
//! below 10^-12. Beyond that, the same hashes fill a HyperLogLog of 2^14 registers with a standard error of 0.81 %. The
//! estimator is Ertl's (2017), which needs no tables and no switch between methods, in fixed-point integers.
//!
//! Guarantees: the state depends only on the union of all items; whether the count is exact is known; the estimate is
//! the same on every machine. Leaves to others: what the items are.

use std::collections::BTreeSet;

/// Up to this many unique items are counted exactly.
pub(crate) const UNIQUE_EXACT_MAX: usize = 4_096;

/// Bits of a hash that select a register.
const INDEX_BITS: u32 = 14;
pub(super) const REGISTERS: usize = 1 << INDEX_BITS;
/// The largest value of a register: all bits that do not select it are zero.
pub(super) const REGISTER_MAX: u8 = 64 - 14 + 1;
/// Binary places of the fixed-point numbers.
const PLACES: u32 = 64;
/// 1 / (2 ln 2) in fixed point.
const ALPHA: u128 = 0xB8AA_3B29_5C17_F0BC;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unique {
    /// The hashes of all items.
    Few(BTreeSet<u64>),
    /// For each register, the position of the first set bit in any hash that selected it.
    Many(Box<[u8]>),
}

impl Default for Unique {
    fn default() -> Self {
        Self::Few(BTreeSet::new())
    }
}

impl Unique {
    pub(super) fn add(&mut self, thing: &[u8]) {
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(thing).as_bytes();
        self.add_hash(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
    }

    fn add_hash(&mut self, hash: u64) {
        match self {
            Self::Few(hashes) => {
                hashes.insert(hash);
                self.spill();
            }
            Self::Many(registers) => raise(registers, hash),
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Few(hashes), Self::Few(others)) => {
                hashes.extend(others);
                self.spill();
            }
            (Self::Few(hashes), Self::Many(registers)) => {
                let mut registers = registers.clone();
                hashes.iter().for_each(|&hash| raise(&mut registers, hash));
                *self = Self::Many(registers);
            }
            (Self::Many(registers), Self::Few(others)) => {
                others.iter().for_each(|&hash| raise(registers, hash));
            }
            (Self::Many(registers), Self::Many(others)) => {
                let pairs = registers.iter_mut().zip(others.iter());
                pairs.for_each(|(register, &other)| *register = other.max(*register));
            }
        }
    }

    /// Converts the set to registers once it is too large.
    fn spill(&mut self) {
        let Self::Few(hashes) = self else { return };
        if hashes.len() > UNIQUE_EXACT_MAX {
            let mut registers = vec![0; REGISTERS].into_boxed_slice();
            hashes.iter().for_each(|&hash| raise(&mut registers, hash));
            *self = Self::Many(registers);
        }
    }

    /// Approximate memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Few(hashes) => hashes.len() * 2 * size_of::<u64>(),
            Self::Many(registers) => registers.len(),
        }
    }

    /// The count, and whether it is exact.
    pub(super) fn count(&self) -> (u64, bool) {
        match self {
            Self::Few(hashes) => (u64::try_from(hashes.len()).unwrap_or(u64::MAX), true),
            Self::Many(registers) => (estimate(registers), false),
        }
    }
}

/// Adds one hash to its register.
fn raise(registers: &mut [u8], hash: u64) {
    let index = usize::try_from(hash >> (u64::BITS - INDEX_BITS)).unwrap_or(0);
    // The bit below the others ends the count if they are all zero.
    let rest = (hash << INDEX_BITS) | (1 << (INDEX_BITS - 1));
    let rank = u8::try_from(rest.leading_zeros() + 1).unwrap_or(REGISTER_MAX);
    if let Some(register) = registers.get_mut(index) {
        *register = rank.max(*register);
    }
}

/// The estimated number of different hashes in the registers.
fn estimate(registers: &[u8]) -> u64 {
    let mut registers_at = [0_u128; REGISTER_MAX as usize + 1];
    for &register in registers {
        if let Some(number) = registers_at.get_mut(usize::from(register)) {
            *number += 1;
        }
    }
    let all = 1_u128 << INDEX_BITS;
    let [empty, filled @ ..] = registers_at;
    if empty >= all {
        return 0;
    }
    // The harmonic sum of the filled registers, and the contribution of the empty ones.
    let shares = (1_u32..).zip(filled).map(|(rank, number)| number << (PLACES - rank));
    let sum: u128 = shares.sum::<u128>() + all * sigma((empty << PLACES) >> INDEX_BITS);
    let counted = (ALPHA * all * all + sum / 2) / sum;
    u64::try_from(counted).unwrap_or(u64::MAX)
}

/// x + x^2 + 2 x^4 + 4 x^8 + … in fixed point, for x below one. As x is at most 1 - 2^-14, the terms vanish after about
/// twenty, and the sum is below 2^15.
fn sigma(x: u128) -> u128 {
    let (mut power, mut sum, mut doublings) = (x, x, 0_u32);
    loop {
        power = (power * power) >> PLACES;
        let term = power << doublings;
        if term == 0 {
            return sum;
        }
        sum += term;
        doublings += 1;
    }
}

#[cfg(test)]
mod tests;
