//! Random draws of the workload: a small generator, skewed ranks, and addresses and hashes derived from numbers.
//!
//! Guarantees: the same seed produces the same draws on every machine, without floating point. Leaves to others: what
//! is drawn, and how often.

use alloy_primitives::{Address, B256};

/// Increment of the counter behind [`Draw`].
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Random number generator (SplitMix64): one addition and one mix per draw.
#[derive(Clone, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed ^ STEP))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Uniformly distributed below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// True with probability `share` / 1 024.
    pub(super) fn chance(&mut self, share: u64) -> bool {
        self.bits() >> 54 < share
    }

    /// Picks one of the choices uniformly.
    pub(super) fn pick<'a, T, const N: usize>(&mut self, choices: &'a [T; N]) -> &'a T {
        const { assert!(N.is_power_of_two() && N <= 1 << 16) };
        let at = usize::from((self.bits() >> 48) as u16);
        &choices[at & (N - 1)]
    }

    /// A rank whose octave follows the weights, uniform within the octave. With equal weights this is Zipf's law.
    /// Rank 0 is the only one in octave 0.
    pub(super) fn rank(&mut self, octaves: &Octaves) -> u64 {
        let bits = self.bits();
        let octave = octaves.0[usize::from((bits >> 56) as u8)];
        let size = 1u64 << octave;
        (size | (bits & (size - 1))) - 1
    }

    /// A random hash, not derivable from a number.
    pub(super) fn hash(&mut self) -> B256 {
        words([self.bits(), self.bits(), self.bits(), self.bits()])
    }
}

/// The octave of a rank for each of 256 equally likely draws.
#[derive(Clone, Debug)]
pub(super) struct Octaves([u8; 256]);

impl Octaves {
    /// Octaves from `first` on, each with `decay` / 256 of the weight of the previous one.
    pub(super) fn new(first: u8, count: u8, decay: u64) -> Self {
        let mut weights = Vec::new();
        let mut weight: u64 = 1 << 32;
        for _ in 0..count.max(1) {
            weights.push(weight);
            weight = weight * decay / 256;
        }
        let total: u64 = weights.iter().sum();
        let mut table = [first; 256];
        let (mut octave, mut reached) = (0, weights[0]);
        for (slot, entry) in (0u64..).zip(&mut table) {
            while slot * total >= reached * 256 && octave + 1 < weights.len() {
                octave += 1;
                reached += weights[octave];
            }
            *entry = first.saturating_add(u8::try_from(octave).unwrap_or(u8::MAX)).min(40);
        }
        Self(table)
    }
}

/// Derives an address from a number.
pub(super) fn address(key: u64) -> Address {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&mix(key).to_le_bytes());
    bytes[8..16].copy_from_slice(&mix(key ^ STEP).to_le_bytes());
    bytes[16..].copy_from_slice(&mix(key.wrapping_add(STEP)).to_le_bytes()[..4]);
    Address::from(bytes)
}

/// Derives a hash from a number.
pub(super) fn hash(key: u64) -> B256 {
    words([mix(key), mix(key ^ STEP), mix(key.wrapping_add(STEP)), mix(!key)])
}

/// Bijective mix of 64 bits.
pub(super) fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

fn words(words: [u64; 4]) -> B256 {
    let mut bytes = [0; 32];
    for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    B256::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_follow_their_weights() {
        let octaves = Octaves::new(2, 3, 128);
        let of = |octave| octaves.0.iter().filter(|entry| **entry == octave).count();
        assert_eq!((of(1), of(5)), (0, 0));
        assert!(of(2).abs_diff(146) <= 1 && of(3).abs_diff(73) <= 1, "{} {}", of(2), of(3));
    }

    #[test]
    fn ranks_stay_in_their_octaves() {
        let mut draw = Draw::new(1);
        let octaves = Octaves::new(0, 4, 256);
        let ranks: Vec<u64> = (0..10_000).map(|_| draw.rank(&octaves)).collect();
        assert_eq!(ranks.iter().min(), Some(&0));
        assert_eq!(ranks.iter().max(), Some(&14));
    }
}
