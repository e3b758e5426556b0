//! A filter over keys: it never denies one that is in it, and seldom takes in one that is not.
//!
//! Guarantees: with 16 bits a key and eight looks, about one key of two thousand is let through wrongly. Leaves to
//! others: the truth. Keys are hashes already, so no further hashing is done.

use crate::event::Key;

/// Bits for every key.
const BITS_PER_KEY: usize = 16;
/// Bits that are looked at for every key.
const LOOKS: u64 = 8;

/// A Bloom filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// A filter for this many keys.
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
