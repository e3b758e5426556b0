//! Tests of unique counts: exact when few, close when many.

use proptest::prelude::*;

use super::{UNIQUE_EXACT_MAX, Unique, estimate, sigma};

fn of(things: impl IntoIterator<Item = u32>) -> Unique {
    let mut unique = Unique::default();
    things.into_iter().for_each(|thing| unique.add(&thing.to_be_bytes()));
    unique
}

#[test]
fn few_items_are_counted_exactly_up_to_the_limit() {
    let limit = u32::try_from(UNIQUE_EXACT_MAX).expect("small");
    for number in [0, 1, 2, 100, limit - 1, limit] {
        let twice = (0..number).chain(0..number);
        assert_eq!(of(twice).count(), (u64::from(number), true), "{number}");
    }
    assert!(!of(0..=limit).count().1);
}

#[test]
fn many_items_are_counted_within_three_percent() {
    // Each step continues from the previous one; an error of 3 % is 3.7 standard errors.
    let mut unique = Unique::default();
    let mut next = 0_u32;
    for number in [4_097, 5_000, 8_000, 16_000, 30_000, 40_000, 50_000, 80_000, 160_000, 500_000] {
        (next..number).for_each(|thing| unique.add(&thing.to_be_bytes()));
        next = number;
        let (counted, exact) = unique.count();
        let off = counted.abs_diff(u64::from(number)) * 1_000 / u64::from(number);
        assert!(!exact && off <= 30, "{number}: {counted}, off by {off} thousandths");
    }
}

#[test]
fn the_estimate_is_unbiased() {
    // The standard error of the mean of forty estimates is an eighth of 1 %.
    for number in [6_000_u32, 20_000, 45_000] {
        let counted: u64 = (0..40_u32)
            .map(|seed| {
                let mut unique = Unique::default();
                (0..number).for_each(|thing| unique.add_hash(mix(seed, thing)));
                unique.count().0
            })
            .sum();
        let mean = counted / 40;
        let off = mean.abs_diff(u64::from(number)) * 1_000 / u64::from(number);
        assert!(off <= 5, "{number}: {mean}");
    }
}

/// A fast hash for tests.
fn mix(seed: u32, thing: u32) -> u64 {
    let mut word = (u64::from(seed) << 32 | u64::from(thing)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[test]
fn the_estimate_stays_in_bounds_for_any_registers() {
    for register in 0..=super::REGISTER_MAX {
        let mut registers = vec![register; super::REGISTERS];
        let full = estimate(&registers);
        registers[0] = 0;
        assert!(register == 0 || estimate(&registers) <= full, "{register}");
    }
    assert_eq!(estimate(&vec![0; super::REGISTERS]), 0);
    let mut one = vec![0; super::REGISTERS];
    one[7] = 1;
    assert_eq!(estimate(&one), 1);
}

#[test]
fn the_series_of_empty_registers_is_right() {
    // For one half: 1/2 + 1/4 + 2/16 + 4/256 + 8/65536 + ….
    let half = 1_u128 << 63;
    let expected = [(1, 1), (2, 1), (4, 2), (8, 4), (16, 8), (32, 16), (64, 32)]
        .iter()
        .map(|&(power, times)| (1_u128 << (64 - power)) * times)
        .sum::<u128>();
    assert_eq!(sigma(half), expected);
    assert_eq!(sigma(0), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(24)))]

    #[test]
    fn the_state_depends_on_the_union_only(
        one in 0_u32..6_000,
        overlap in 0_u32..3_000,
        more in 0_u32..6_000,
        cut in 0_u32..6_000,
    ) {
        let end = one.saturating_sub(overlap) + more;
        let all = of((0..end.max(one)).rev());
        let (left, right) = (of(0..one), of(one.saturating_sub(overlap)..end.max(one)));
        let third = of(cut.min(one)..one);
        let mut merged = left.clone();
        merged.merge(&right);
        merged.merge(&third);
        prop_assert_eq!(&merged, &all);
        let mut merged = right;
        merged.merge(&third);
        merged.merge(&left);
        prop_assert_eq!(&merged, &all);
    }
}
