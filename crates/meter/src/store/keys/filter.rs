//! A Bloom filter over keys: no false negatives, few false positives.
//!
//! Guarantees: with 16 bits and eight probes per key, about one key in two thousand is a false positive. Leaves to
//! others: the exact lookup. Keys are already hashes, so they are not hashed again.

use crate::event::Key;

const BITS_PER_KEY: usize = 16;
/// Bits that are probed for every key.
const LOOKS: u64 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// Sized for this many keys.
    pub(super) fn for_keys(keys: usize) -> Self {
        let words = (keys * BITS_PER_KEY).div_ceil(64).max(1);
        Self { words: vec![0; words] }
    }

    pub(super) fn from_words(words: Vec<u64>) -> Option<Self> {
        if words.is_empty() { None } else { Some(Self { words }) }
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn insert(&mut self, key: Key) {
        for bit in self.bits(key) {
            self.words[bit / 64] |= 1 << (bit % 64);
        }
    }

    pub(super) fn may_hold(&self, key: Key) -> bool {
        self.bits(key).all(|bit| self.words[bit / 64] & (1 << (bit % 64)) != 0)
    }

    fn bits(&self, key: Key) -> impl Iterator<Item = usize> + use<> {
        let bits = u128::try_from(self.words.len() * 64).unwrap_or(u128::MAX);
        let (start, step) = (key.hi.cast_unsigned(), key.lo.cast_unsigned() | 1);
        (0..LOOKS).map(move |look| {
            let hash = start.wrapping_add(look.wrapping_mul(step));
            // A number below `bits`, without a division.
            usize::try_from((u128::from(hash) * bits) >> 64).unwrap_or(0)
        })
    }
}
