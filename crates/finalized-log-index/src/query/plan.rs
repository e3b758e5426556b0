//! Plans how to search one chunk or section. Pure.
//!
//! The number of matches of each clause (the address, each topic position) is estimated from the counts of its terms
//! and the part of their id bounds that lies in the requested range. The most selective clause goes first. A clause
//! that would exclude hardly any page is not used: every page that is read is compared with the whole filter anyway.
//! If nearly all pages would be read, they are scanned.
//!
//! Guarantees: a plan never changes the answer, only the work. Leaves to others: execution ([`super::execute`]).

use std::ops::Range;

use crate::term::{Fingerprint, Kind};
use crate::terms::Group;

/// With at most this many pages in the range, the index is not used.
const SCAN_PAGES_MAX: usize = 4;
/// With this many candidates per page, nearly every page has one.
const DENSE_PER_PAGE: u64 = 3;
/// With at most this many candidates, further clauses are left to the exact match.
const FEW_CANDIDATES: u64 = 16;

/// One position of a filter, with its alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) kind: Kind,
    pub(crate) terms: Vec<Fingerprint>,
}

impl Clause {
    /// The clauses of a filter, without positions that match anything.
    pub(crate) fn of(filter: &crate::filter::Filter) -> Vec<Self> {
        let mut clauses = Vec::new();
        if !filter.addresses.is_empty() {
            let terms = filter.addresses.iter().map(Fingerprint::of_address);
            clauses.push(Self { kind: Kind::Address, terms: distinct(terms) });
        }
        for (position, topics) in (0_u8..).zip(&filter.topics) {
            if !topics.is_empty() {
                let kind = Kind::Topic(position);
                let terms = topics.iter().map(|topic| Fingerprint::of_word(kind, topic));
                clauses.push(Self { kind, terms: distinct(terms) });
            }
        }
        clauses
    }
}

fn distinct(terms: impl Iterator<Item = Fingerprint>) -> Vec<Fingerprint> {
    let mut terms: Vec<Fingerprint> = terms.collect();
    terms.sort_unstable();
    terms.dedup();
    terms
}

/// How a source is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing can match.
    Nothing,
    /// Read all pages of the range.
    Scan,
    /// Look up these clauses, in this order, and read the pages of the ids that remain.
    Index(Vec<usize>),
}

/// Estimated number of ids that a term has in a range.
pub(crate) fn estimate(group: &Group, ids: &Range<u32>) -> u64 {
    match group {
        Group::Ids(list) => crate::codec::as_u64(list.iter().filter(|id| ids.contains(id)).count()),
        Group::Bitmap(stored) => {
            let low = stored.min.max(ids.start);
            let high = (stored.max + 1).min(ids.end);
            if low >= high {
                return 0;
            }
            let span = u64::from(stored.max - stored.min) + 1;
            (u64::from(stored.count) * u64::from(high - low)).div_ceil(span)
        }
    }
}

/// Chooses a strategy from the estimate of each clause and the number of pages in the range.
pub(crate) fn plan(estimates: &[u64], pages: usize) -> Strategy {
    if pages == 0 || estimates.contains(&0) {
        return Strategy::Nothing;
    }
    let mut order: Vec<usize> = (0..estimates.len()).collect();
    order.sort_by_key(|clause| (estimates[*clause], *clause));
    let Some(best) = order.first().map(|clause| estimates[*clause]) else {
        return Strategy::Scan;
    };
    let dense = crate::codec::as_u64(pages) * DENSE_PER_PAGE;
    if pages <= SCAN_PAGES_MAX || best >= dense {
        return Strategy::Scan;
    }
    let mut used = vec![order[0]];
    if best > FEW_CANDIDATES {
        used.extend(order[1..].iter().filter(|clause| estimates[**clause] < dense));
    }
    Strategy::Index(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::BitmapRef;

    #[test]
    fn the_most_selective_clause_goes_first_and_dense_ones_are_left_out() {
        use Strategy::{Index, Nothing, Scan};
        let check = |estimates: &[u64], pages: usize, expected: Strategy| {
            assert_eq!(plan(estimates, pages), expected, "{estimates:?} over {pages} pages");
        };
        check(&[], 100, Scan);
        check(&[], 0, Nothing);
        check(&[5, 0], 100, Nothing);
        check(&[5], 4, Scan);
        check(&[5], 5, Index(vec![0]));
        check(&[90, 20, 50], 100, Index(vec![1, 2, 0]));
        check(&[90, 2, 50], 100, Index(vec![1]));
        check(&[299, 5_000], 100, Index(vec![0]));
        check(&[300, 5_000], 100, Scan);
        check(&[20, 20], 100, Index(vec![0, 1]));
    }

    #[test]
    fn estimates_follow_counts_and_bounds() {
        let stored = |count, min, max| Group::Bitmap(BitmapRef { count, min, max, bytes: 0..1 });
        assert_eq!(estimate(&stored(100, 0, 999), &(0..1_000)), 100);
        assert_eq!(estimate(&stored(100, 0, 999), &(0..500)), 50);
        assert_eq!(estimate(&stored(100, 500, 999), &(0..500)), 0);
        assert_eq!(estimate(&stored(100, 500, 999), &(999..1_000)), 1);
        assert_eq!(estimate(&Group::Ids(vec![1, 5, 9]), &(2..9)), 1);
    }
}
