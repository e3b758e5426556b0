//! Randomness: the operating system's, and a seeded generator that replays byte for byte.
//!
//! Guarantees: only this crate draws randomness (enforced by a lint). Leaves to others: what the numbers are
//! for.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub trait Entropy: Send + Sync + fmt::Debug {
    fn fill(&self, bytes: &mut [u8]);

    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A random positive number of 63 bits, practically unique.
    fn mark(&self) -> i64 {
        i64::try_from(self.next_u64() >> 1).unwrap_or(1).max(1)
    }

    /// A random number below `end`; zero if `end` is zero.
    fn below(&self, end: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }
}

#[derive(Debug)]
pub struct OsEntropy;

impl OsEntropy {
    pub fn shared() -> Arc<dyn Entropy> {
        Arc::new(Self)
    }
}

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        #[expect(
            clippy::expect_used,
            reason = "a system without randomness can run nothing safely"
        )]
        getrandom::fill(bytes).expect("the operating system provides randomness");
    }
}

pub struct SeededEntropy {
    seed: u64,
    generator: Mutex<ChaCha8Rng>,
}

impl SeededEntropy {
    pub fn shared(seed: u64) -> Arc<dyn Entropy> {
        Arc::new(Self { seed, generator: Mutex::new(ChaCha8Rng::seed_from_u64(seed)) })
    }
}

impl fmt::Debug for SeededEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SeededEntropy({})", self.seed)
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_produce_equal_streams_and_others_differ() {
        let draw = |seed| {
            let entropy = SeededEntropy::shared(seed);
            (0..4).map(|_| entropy.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_stay_below_their_end_and_reach_all_values() {
        let entropy = SeededEntropy::shared(1);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            let number = usize::try_from(entropy.below(5)).expect("small");
            seen[number] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(entropy.below(0), 0);
    }

    #[test]
    fn marks_are_positive() {
        let entropy = OsEntropy::shared();
        assert!((0..1000).all(|_| entropy.mark() > 0));
    }
}
