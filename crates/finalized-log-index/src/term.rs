//! Terms: the values that can be looked up, and the 40-bit fingerprint under which each is filed.
//!
//! An index entry is one 64-bit number: fingerprint in the high bits, local id in the low bits. Building an index
//! means sorting such numbers. Two terms that share a fingerprint cost an unnecessary page read, never a wrong
//! answer: every candidate is compared with the filter itself.
//!
//! | kind | one per | id |
//! |---|---|---|
//! | `addr`, `topic0` … `topic3` | log | the log's |
//! | `tx` | transaction with logs | that of its first log |
//! | `block` | block | that of the first log after the previous block |
//!
//! Guarantees: fingerprints are the same on every machine and in every version of the format. Leaves to others:
//! how entries are stored ([`crate::terms`]).

use std::fmt;

use alloy_primitives::{Address, B256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bits of a local id, which limit the number of logs in a chunk.
pub(crate) const ID_BITS: u32 = 24;
pub(crate) const ID_MAX: u32 = (1 << ID_BITS) - 1;
pub(crate) const FINGERPRINT_BITS: u32 = 64 - ID_BITS;

/// Kind of a term; part of its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Address that emitted a log.
    Address,
    /// Topic of a log at a position from 0 to 3.
    Topic(u8),
    /// Hash of a transaction with logs.
    Transaction,
    /// Hash of a block.
    Block,
}

impl Kind {
    fn seed(self) -> u64 {
        match self {
            Self::Address => 0,
            Self::Topic(position) => 1 + u64::from(position),
            Self::Transaction => 5,
            Self::Block => 6,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => write!(f, "addr"),
            Self::Topic(position) => write!(f, "topic{position}"),
            Self::Transaction => write!(f, "tx"),
            Self::Block => write!(f, "block"),
        }
    }
}

/// 40-bit hash of a kind and a term: the `stream_id` in logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Fingerprint of kind [`Kind::Address`].
    pub fn of_address(address: &Address) -> Self {
        Self::of(Kind::Address, address.as_slice())
    }

    /// Fingerprint of a 32-byte term of any other kind.
    pub fn of_word(kind: Kind, word: &B256) -> Self {
        Self::of(kind, word.as_slice())
    }

    fn of(kind: Kind, bytes: &[u8]) -> Self {
        Self(xxh3_64_with_seed(bytes, kind.seed()) >> ID_BITS)
    }

    /// Always below 2^40.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Packs the fingerprint and an id into an index entry.
    pub(crate) fn entry(self, id: u32) -> u64 {
        debug_assert!(id <= ID_MAX, "the id {id} must be bounded");
        (self.0 << ID_BITS) | u64::from(id)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010x}", self.0)
    }
}

/// Fingerprint part of an index entry.
pub(crate) fn entry_fingerprint(entry: u64) -> u64 {
    entry >> ID_BITS
}

/// Local id part of an index entry.
pub(crate) fn entry_id(entry: u64) -> u32 {
    u32::try_from(entry & u64::from(ID_MAX)).unwrap_or(ID_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_never_change() {
        let word = B256::repeat_byte(7);
        let shown = [
            Fingerprint::of_address(&Address::repeat_byte(7)),
            Fingerprint::of_word(Kind::Topic(0), &word),
            Fingerprint::of_word(Kind::Topic(3), &word),
            Fingerprint::of_word(Kind::Transaction, &word),
            Fingerprint::of_word(Kind::Block, &word),
        ]
        .map(|fingerprint| fingerprint.to_string());
        let expected = ["239f50d16a", "58ccad7c4e", "9c9d1bee42", "de5f45c170", "d9c517a56a"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_entry_holds_fingerprint_and_id() {
        let fingerprint = Fingerprint::of_word(Kind::Topic(1), &B256::repeat_byte(9));
        for id in [0, 1, ID_MAX] {
            let entry = fingerprint.entry(id);
            assert_eq!(entry_fingerprint(entry), fingerprint.number());
            assert_eq!(entry_id(entry), id);
        }
    }
}
