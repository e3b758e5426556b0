//! Random draws for the simulated chain: a small generator, skewed ranks, and words derived from numbers.
//!
//! Guarantees: a seed produces the same sequence on every machine; no floats. Leaves to others: what is drawn.

use alloy_primitives::{Address, B256, U256};

/// The increment of the counter behind [`Draw`].
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    /// The sequence of these parts.
    pub(super) fn of(parts: &[u64]) -> Self {
        Self(parts.iter().fold(STEP, |state, part| mix(state ^ mix(part.wrapping_add(STEP)))))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A uniformly distributed number below `end`; zero if `end` is zero.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// True in `share` of 1 024 draws.
    pub(super) fn chance(&mut self, share: u64) -> bool {
        self.bits() >> 54 < share
    }

    /// A rank below `end`, approximately by Zipf's law: each octave of ranks is equally likely.
    pub(super) fn rank(&mut self, end: u32) -> u64 {
        let octaves = u64::from(u32::BITS - end.leading_zeros()).max(1);
        let size = 1u64 << self.below(octaves);
        (size + self.below(size) - 1).min(u64::from(end.max(1)) - 1)
    }

    /// A number with this mean, between half and two and a half times of it; small ones are more likely.
    pub(super) fn around(&mut self, mean: u32) -> usize {
        let mean = u64::from(mean);
        // Twice the cube of a draw is a half on average.
        let cube = self.below(1 << 10).pow(3);
        // Adding a draw before halving and shifting rounds randomly, so that small means are exact too.
        let half = (mean + self.below(2)) / 2;
        let rest = (mean * cube + self.below(1 << 29)) >> 29;
        usize::try_from(half + rest).unwrap_or(0)
    }

    /// A random word.
    pub(super) fn word(&mut self) -> B256 {
        words([self.bits(), self.bits(), self.bits(), self.bits()])
    }

    /// An amount of up to 11 bytes; one in four is a multiple of a power of ten.
    pub(super) fn amount(&mut self) -> U256 {
        let bits = self.bits();
        let value = (u128::from(self.bits()) << 24) >> (8 * (bits & 7));
        if bits & 0x300 == 0 {
            let unit = 10u128.pow(u32::try_from(bits >> 12 & 15).unwrap_or(0));
            return U256::from(value / unit * unit);
        }
        U256::from(value | 1)
    }
}

/// The address derived from a kind and a number.
pub(super) fn address(seed: u64, kind: u64, number: u64) -> Address {
    Address::from_slice(&word(seed, kind, number)[12..])
}

/// The word derived from a kind and a number.
pub(super) fn word(seed: u64, kind: u64, number: u64) -> B256 {
    Draw::of(&[seed, kind, number]).word()
}

fn words(words: [u64; 4]) -> B256 {
    let mut bytes = [0; 32];
    for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    B256::from(bytes)
}

fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_skewed_and_stay_below_their_end() {
        let mut draw = Draw::of(&[1]);
        let ranks: Vec<u64> = (0..10_000).map(|_| draw.rank(100)).collect();
        assert!(ranks.iter().all(|rank| *rank < 100));
        let first = ranks.iter().filter(|rank| **rank == 0).count();
        let last = ranks.iter().filter(|rank| **rank == 60).count();
        assert!(first > 1_000 && last < 100 && last > 0, "{first} {last}");
        assert_eq!(draw.rank(0), 0);
        assert_eq!(draw.rank(1), 0);
    }

    #[test]
    fn numbers_around_a_mean_have_that_mean() {
        let mut draw = Draw::of(&[2]);
        for mean in [1u32, 3, 10, 335] {
            let sum: usize = (0..20_000).map(|_| draw.around(mean)).sum();
            let expected = usize::try_from(mean).expect("small") * 20_000;
            assert!(sum.abs_diff(expected) * 20 < expected, "{mean}: {sum}");
        }
        assert_eq!(draw.around(0), 0);
    }
}
