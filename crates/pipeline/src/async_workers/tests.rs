//! Tests of range planning.

#![allow(clippy::single_range_in_vec_init, reason = "one range is what is often ready")]

use proptest::prelude::*;

use super::*;

fn set(ranges: &[Heights]) -> IntervalSet {
    ranges.iter().cloned().collect()
}

#[test]
fn no_async_worker_is_a_processor_of_blocks() {
    let workers = [contract_code::NAME, nft_items::NAME, reconcile::NAME, token_metadata::NAME];
    let processors = crate::processors::all(&crate::processors::Settings::of_chain(1));
    let both: Vec<_> = processors.iter().filter(|one| workers.contains(&one.name())).collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn ranges_end_at_multiples_of_their_size() {
    let check = |ready: &[Heights], taken: &[Heights], most: usize, expected: &[Heights]| {
        assert_eq!(next_ranges(&set(ready), &set(taken), 1_000, most), expected);
    };
    check(&[0..3_000], &[], 5, &[0..1_000, 1_000..2_000, 2_000..3_000]);
    check(&[0..3_000], &[], 2, &[0..1_000, 1_000..2_000]);
    check(&[0..3_000], &[], 0, &[]);
    // A range that a gate has done in part is not waited for.
    check(&[0..2_100], &[0..1_000], 5, &[1_000..2_000, 2_000..2_100]);
    check(&[700..2_100], &[], 5, &[700..1_000, 1_000..2_000, 2_000..2_100]);
    // A range that is neither done nor claimed comes first, however far others are.
    check(&[0..9_000], &[0..1_000, 2_000..9_000], 5, &[1_000..2_000]);
    check(&[0..10, 5_000..5_010], &[0..10], 5, &[5_000..5_010]);
    check(&[], &[], 5, &[]);
}

proptest! {
    #[test]
    fn every_ready_range_is_planned_once_and_in_order(
        ready in prop::collection::vec((0..400_u64, 1..90_u64), 0..6),
        taken in prop::collection::vec((0..400_u64, 1..90_u64), 0..6),
        size in 1..60_u64,
        most in 1..4_usize,
    ) {
        let set = |pairs: &[(u64, u64)]| -> IntervalSet {
            pairs.iter().map(|(start, length)| *start..start + length).collect()
        };
        let (ready, mut taken) = (set(&ready), set(&taken));
        let gaps = ready.ranges().flat_map(|range| taken.gaps(&range));
        let missing: u64 = gaps.map(|gap| gap.end - gap.start).sum();
        let mut given = 0;
        loop {
            let next = next_ranges(&ready, &taken, size, most);
            prop_assert!(next.len() <= most && next.is_sorted_by_key(|range| range.start));
            for range in &next {
                prop_assert!(!range.is_empty() && ready.covers(range));
                prop_assert_eq!(range.start / size, (range.end - 1) / size);
                prop_assert_eq!(taken.insert(range), vec![range.clone()]);
                given += range.end - range.start;
            }
            if next.is_empty() {
                break;
            }
        }
        prop_assert_eq!(given, missing);
    }
}
