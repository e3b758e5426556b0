//! Tests of the sketch: values fall into the right bins, quantiles are close.

use proptest::prelude::*;

use super::{Sketch, Wide, bin_of, bounds, is_bin, shortest};
use crate::decimal::Decimal;
use crate::naive::value_text;

fn wide() -> impl Strategy<Value = Wide> {
    (any::<[u64; 8]>(), 0_usize..512)
        .prop_map(|(limbs, shift)| Wide::from_limbs(limbs).wrapping_shr(shift))
}

proptest! {
    #[test]
    fn a_bin_holds_its_values_and_is_narrow(units in wide()) {
        let bin = bin_of(&units);
        prop_assert!(is_bin(bin) && is_bin(-bin));
        let (low, high) = bounds(bin.unsigned_abs()).expect("a bin");
        prop_assert!(low <= units && units <= high);
        prop_assert!((high - low).saturating_mul(Wide::from(128_u64)) <= low);
        prop_assert_eq!(bin_of(&low), bin);
        prop_assert_eq!(bin_of(&high), bin);
    }

    #[test]
    fn bins_are_in_the_order_of_values(one in wide(), other in wide()) {
        prop_assert!(one > other || bin_of(&one) <= bin_of(&other));
    }

    #[test]
    fn every_number_is_that_of_a_bin_or_refused(bin in -70_000_i32..70_000) {
        let expected = bounds(bin.unsigned_abs()).is_some_and(|(low, _)| bin_of(&low) == bin.abs());
        prop_assert_eq!(is_bin(bin), expected);
    }

    #[test]
    fn the_shortest_number_is_inside(low in wide(), width in 0_u64..) {
        let high = low.saturating_add(Wide::from(width));
        let found = shortest(low, high);
        prop_assert!(low <= found && found <= high);
    }

    #[test]
    fn a_quantile_is_within_one_part_in_128(
        values in prop::collection::vec(value_text(), 1..60),
        rank in any::<prop::sample::Index>(),
    ) {
        let mut sorted: Vec<Decimal> = values.iter().map(|text| text.parse().expect("a value")).collect();
        let mut sketch = Sketch::default();
        for value in &sorted {
            sketch.add(value).expect("fits");
        }
        sorted.sort();
        let at = rank.index(sorted.len());
        let exact = sorted[at];
        let found = sketch.at_rank(u64::try_from(at + 1).expect("small")).expect("a value");
        let off = found.checked_sub(exact).expect("fits");
        let off = if off.is_negative() { off.neg() } else { off };
        let size = if exact.is_negative() { exact.neg() } else { exact };
        prop_assert!(off.checked_mul_u64(128).expect("fits") <= size, "{} for {}", found, exact);
    }
}

#[test]
fn numbers_of_few_digits_come_back_as_themselves() {
    for text in
        ["0", "1", "-1", "7", "42", "99", "100", "-250", "0.5", "0.01", "1e18", "1e-36", "1e77"]
    {
        let value: Decimal = text.parse().expect("a value");
        let mut sketch = Sketch::default();
        sketch.add(&value).expect("fits");
        assert_eq!(sketch.at_rank(1), Some(value), "{text}");
        assert_eq!(sketch.at_rank(2), None, "{text}");
    }
}
