//! Sets of local log ids: small ones as sorted lists, large ones as bitmaps.
//!
//! Guarantees: set semantics. Intersecting a small set with a large one looks up each id and builds no new bitmap.
//! Leaves to others: where the ids come from.

use std::ops::Range;
use std::sync::Arc;

use roaring::RoaringBitmap;

/// Up to this many ids are kept as a list.
const FEW_MAX: usize = 4_096;

#[derive(Clone, Debug)]
pub(crate) enum Ids {
    /// Ascending.
    Few(Vec<u32>),
    /// Shared with the cache.
    Many(Arc<RoaringBitmap>),
}

impl Ids {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Few(ids) => crate::codec::as_u64(ids.len()),
            Self::Many(bitmap) => bitmap.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn union(mut sets: Vec<Self>) -> Self {
        if sets.len() == 1 {
            return sets.remove(0);
        }
        let total: u64 = sets.iter().map(Self::len).sum();
        if total <= crate::codec::as_u64(FEW_MAX) {
            let mut ids: Vec<u32> = sets.iter().flat_map(Self::to_vec).collect();
            ids.sort_unstable();
            ids.dedup();
            return Self::Few(ids);
        }
        let mut all = RoaringBitmap::new();
        for set in sets {
            match set {
                Self::Few(ids) => all.extend(ids),
                Self::Many(bitmap) => all |= &*bitmap,
            }
        }
        Self::Many(Arc::new(all))
    }

    pub(crate) fn clip(self, range: &Range<u32>) -> Self {
        match self {
            Self::Few(mut ids) => {
                ids.retain(|id| range.contains(id));
                Self::Few(ids)
            }
            Self::Many(bitmap) => {
                let inside = bitmap.range_cardinality(range.clone());
                if inside == bitmap.len() {
                    return Self::Many(bitmap);
                }
                if inside <= crate::codec::as_u64(FEW_MAX) {
                    return Self::Few(bitmap.range(range.clone()).collect());
                }
                let mut clipped = (*bitmap).clone();
                clipped.remove_range(..range.start);
                clipped.remove_range(range.end..);
                Self::Many(Arc::new(clipped))
            }
        }
    }

    pub(crate) fn intersect(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Few(mut ids), Self::Many(bitmap)) => {
                ids.retain(|id| bitmap.contains(*id));
                Self::Few(ids)
            }
            (Self::Many(bitmap), Self::Few(ids)) => {
                Self::Few(ids.iter().copied().filter(|id| bitmap.contains(*id)).collect())
            }
            (Self::Few(mut ids), Self::Few(others)) => {
                ids.retain(|id| others.binary_search(id).is_ok());
                Self::Few(ids)
            }
            (Self::Many(one), Self::Many(other)) => Self::Many(Arc::new(&*one & &**other)),
        }
    }

    /// Ascending.
    pub(crate) fn to_vec(&self) -> Vec<u32> {
        match self {
            Self::Few(ids) => ids.clone(),
            Self::Many(bitmap) => bitmap.iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Vec<BTreeSet<u32>>> {
        prop::collection::vec(prop::collection::btree_set(0_u32..300, 0..200), 1..5)
    }

    fn ids(set: &BTreeSet<u32>, many: bool) -> Ids {
        if many {
            Ids::Many(Arc::new(set.iter().collect()))
        } else {
            Ids::Few(set.iter().copied().collect())
        }
    }

    proptest! {
        #[test]
        fn ids_behave_like_sets(
            sets in sets(),
            many: [bool; 5],
            start in 0_u32..300,
            length in 0_u32..300,
        ) {
            let all = sets.iter().zip(many).map(|(set, many)| ids(set, many)).collect();
            let union: BTreeSet<u32> = sets.iter().flatten().copied().collect();
            prop_assert_eq!(Ids::union(all).to_vec(), union.iter().copied().collect::<Vec<_>>());
            let first = ids(&sets[0], many[0]);
            let last = &sets[sets.len() - 1];
            let both: Vec<u32> = sets[0].intersection(last).copied().collect();
            prop_assert_eq!(first.clone().intersect(&ids(last, many[4])).to_vec(), both);
            let inside = sets[0].range(start..start + length).copied().collect::<Vec<_>>();
            prop_assert_eq!(first.clip(&(start..start + length)).to_vec(), inside);
        }
    }
}
