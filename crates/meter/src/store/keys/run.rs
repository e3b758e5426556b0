//! A run: the keys of a range of events, in one blob or split over several by the first bits of the key.
//!
//! Guarantees: a key is in exactly one part, determined by the key and the number of parts, so that a lookup probes one
//! filter however long the run is. Leaves to others: which runs there are.

use std::sync::Arc;

use logmill_io::BlobStore;

use super::segment::{Record, Segment};
use crate::error::Result;
use crate::event::Key;

#[derive(Debug)]
pub(super) struct Run {
    /// The number of its first event, and one after its last.
    pub(super) first: i64,
    pub(super) end: i64,
    pub(super) parts: Vec<Arc<Segment>>,
}

/// One of several equal shares of the key space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) part: usize,
    pub(super) parts: usize,
}

/// Maps the first half of a key to an unsigned number of the same order.
fn place(hi: i64) -> u64 {
    hi.cast_unsigned() ^ (1 << 63)
}

/// The part that holds a key.
fn part_of(hi: i64, parts: usize) -> usize {
    let parts = u128::try_from(parts).unwrap_or(u128::MAX);
    usize::try_from((u128::from(place(hi)) * parts) >> 64).unwrap_or(usize::MAX)
}

impl Share {
    pub(super) fn holds(self, key: Key) -> bool {
        part_of(key.hi, self.parts) == self.part
    }

    /// The first halves of its lowest and highest possible key.
    fn ends(self) -> (i64, i64) {
        let begin = |part: usize| {
            let (part, parts) = (u128::try_from(part), u128::try_from(self.parts.max(1)));
            (part.unwrap_or(u128::MAX) << 64).div_ceil(parts.unwrap_or(u128::MAX))
        };
        let half = |place: u128| {
            let place = u64::try_from(place).unwrap_or(u64::MAX);
            (place ^ (1 << 63)).cast_signed()
        };
        (half(begin(self.part)), half(begin(self.part + 1).saturating_sub(1)))
    }
}

impl Run {
    pub(super) fn keys(&self) -> u64 {
        self.parts.iter().map(|part| part.keys).sum()
    }

    fn part(&self, key: Key) -> Option<&Segment> {
        self.parts.get(part_of(key.hi, self.parts.len())).map(AsRef::as_ref)
    }

    pub(super) fn may_hold(&self, key: Key) -> bool {
        self.part(key).is_some_and(|part| part.may_hold(key))
    }

    pub(super) async fn find(&self, blobs: &dyn BlobStore, key: Key) -> Result<Option<Record>> {
        match self.part(key) {
            Some(part) => part.find(blobs, key).await,
            None => Ok(None),
        }
    }

    /// The records in a share of the key space.
    pub(super) async fn read(&self, blobs: &dyn BlobStore, share: Share) -> Result<Vec<Record>> {
        let (first, last) = share.ends();
        let mut records = Vec::new();
        for part in part_of(first, self.parts.len())..=part_of(last, self.parts.len()) {
            if let Some(part) = self.parts.get(part) {
                records.extend(part.read(blobs, first, last).await?);
            }
        }
        records.retain(|record| share.holds(record.key));
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_one_share_between_its_ends() {
        for parts in [1, 2, 3, 7, 64, 1_000] {
            let shares: Vec<Share> = (0..parts).map(|part| Share { part, parts }).collect();
            assert_eq!(shares[0].ends().0, i64::MIN, "{parts}");
            assert_eq!(shares[parts - 1].ends().1, i64::MAX, "{parts}");
            for pair in shares.windows(2) {
                assert_eq!(pair[0].ends().1.checked_add(1), Some(pair[1].ends().0), "{parts}");
            }
            for share in &shares {
                for hi in [share.ends().0, share.ends().1] {
                    let holding = shares.iter().filter(|share| share.holds(Key { hi, lo: 5 }));
                    assert_eq!(holding.count(), 1, "{hi} of {parts}");
                    assert!(share.holds(Key { hi, lo: 5 }), "{hi} of {parts}");
                }
            }
        }
    }
}
