//! Compares the interval set with a bitmap.

use proptest::prelude::*;

use super::*;

const SPAN: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Insert(Heights),
    Remove(Heights),
}

fn heights() -> impl Strategy<Value = Heights> {
    (0..SPAN, 0..20_u64).prop_map(|(start, length)| start..(start + length).min(SPAN))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => heights().prop_map(Step::Insert),
        1 => heights().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..40)
}

/// The set as a bitmap, to compare with the model.
fn bits(set: &IntervalSet) -> Vec<bool> {
    (0..SPAN).map(|height| set.contains(height)).collect()
}

fn runs(wanted: impl Fn(u64) -> bool, within: &Heights) -> Vec<Heights> {
    let mut runs: Vec<Heights> = Vec::new();
    for height in within.clone().filter(|height| wanted(*height)) {
        match runs.last_mut() {
            Some(run) if run.end == height => run.end += 1,
            _ => runs.push(height..height + 1),
        }
    }
    runs
}

fn build(steps: &[Step]) -> (IntervalSet, Vec<bool>) {
    let mut set = IntervalSet::new();
    let mut model = vec![false; usize::try_from(SPAN).expect("small")];
    let paint = |model: &mut Vec<bool>, range: &Heights, value| {
        for height in range.clone() {
            model[usize::try_from(height).expect("small")] = value;
        }
    };
    for step in steps {
        match step {
            Step::Insert(range) => {
                let missing = set.insert(range);
                let expected =
                    runs(|height| !model[usize::try_from(height).expect("small")], range);
                assert_eq!(missing, expected, "the parts that the insert reports as missing");
                paint(&mut model, range, true);
            }
            Step::Remove(range) => {
                set.remove(range);
                paint(&mut model, range, false);
            }
        }
    }
    (set, model)
}

proptest! {
    #[test]
    fn an_interval_set_equals_a_bitmap(
        steps in steps(),
        within in heights(),
        at in 0..SPAN,
        most in 0..9_u64,
    ) {
        let (set, model) = build(&steps);
        let has = |height: u64| model[usize::try_from(height).expect("small")];
        prop_assert_eq!(bits(&set), model.clone());
        prop_assert_eq!(set.ranges().collect::<Vec<_>>(), runs(has, &(0..SPAN)));
        prop_assert_eq!(set.total(), model.iter().filter(|bit| **bit).count() as u64);
        prop_assert_eq!(set.gaps(&within), runs(|height| !has(height), &within));
        prop_assert_eq!(set.overlap(&within), runs(has, &within));
        prop_assert_eq!(set.covers(&within), within.clone().all(has));
        let up = (at..SPAN).find(|height| !has(*height)).unwrap_or(SPAN);
        prop_assert_eq!(set.watermark_up(at), up);
        let down = (0..at).rev().find(|height| !has(*height)).map_or(0, |height| height + 1);
        prop_assert_eq!(set.watermark_down(at), down);
        let gaps = set.gaps(&within);
        let below = gaps.first().filter(|_| most > 0);
        let below = below.map(|gap| gap.start..gap.end.min(gap.start + most));
        prop_assert_eq!(set.next_missing(&within, most, SearchOrder::LowestFirst), below);
        let above = gaps.last().filter(|_| most > 0);
        let above = above.map(|gap| gap.start.max(gap.end.saturating_sub(most))..gap.end);
        prop_assert_eq!(set.next_missing(&within, most, SearchOrder::HighestFirst), above);
    }

    #[test]
    fn a_round_trip_returns_the_same_set(steps in steps()) {
        let (set, _) = build(&steps);
        prop_assert_eq!(IntervalSet::decode(&set.encode()).expect("just encoded"), set);
    }

    #[test]
    fn a_flipped_bit_or_a_cut_is_noticed(steps in steps(), bit in any::<prop::sample::Index>()) {
        let mut bytes = build(&steps).0.encode();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(IntervalSet::decode(&bytes).is_err());
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes.truncate(bit / 8);
        prop_assert!(IntervalSet::decode(&bytes).is_err());
    }

    #[test]
    fn decoding_returns_a_set_or_an_error(body in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut bytes = body;
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        if let Ok(set) = IntervalSet::decode(&bytes) {
            // LEB128 can encode a number in several ways; we write the shortest.
            prop_assert_eq!(IntervalSet::decode(&set.encode()).expect("valid"), set);
        }
    }
}

#[test]
fn the_lowest_and_highest_heights_work() {
    let mut set = IntervalSet::new();
    set.insert(&(u64::MAX - 2..u64::MAX));
    set.insert(&(0..1));
    assert_eq!(set.watermark_up(u64::MAX - 2), u64::MAX);
    assert_eq!(set.watermark_down(0), 0);
    assert_eq!(set.gaps(&(0..u64::MAX)), vec![1..u64::MAX - 2]);
    assert_eq!(IntervalSet::decode(&set.encode()).expect("valid"), set);
}
