//! Tests of partials: against a naive fold, in any order and split; and of their encoding.

use std::collections::BTreeSet;

use logmill_io::Timestamp;
use proptest::prelude::*;

use super::{AddOutcome, OpResult, OptionalParts, Partial, Position, Sample, Window};
use crate::decimal::Decimal;
use crate::naive::{Naive, value_text};
use crate::period::BUCKET_MS;
use crate::settings::{EventType, Op};

const ALL: OptionalParts = OptionalParts { unique: true, sketch: true, weighted: true };
const UNORDERED: OptionalParts = OptionalParts { unique: true, sketch: true, weighted: false };
const PLAIN: OptionalParts = OptionalParts { unique: false, sketch: false, weighted: false };

/// An event as tests write it.
#[derive(Clone, Debug)]
struct Event {
    at: Position,
    text: String,
    thing: Option<u8>,
}

fn position(time: i64, received: i64, seq: i64) -> Position {
    Position { time: Timestamp(time), received: Timestamp(received), seq }
}

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let event = (0..BUCKET_MS, 0_i64..3, 0_i64..3, value_text(), prop::option::of(0_u8..20));
    let event = event.prop_map(|(time, received, seq, text, thing)| Event {
        at: position(time / 60_000 * 60_000, time + received, seq),
        text,
        thing,
    });
    prop::collection::vec(event, 1..most)
}

fn decimal(text: &str) -> Decimal {
    text.parse().expect("a decimal")
}

fn add(partial: &mut Partial, event: &Event) -> AddOutcome {
    let thing = event.thing.map(|thing| [thing]);
    let sample = Sample {
        at: event.at,
        value: decimal(&event.text),
        unique: thing.as_ref().map(<[u8; 1]>::as_slice),
    };
    partial.add(&sample).expect("fits")
}

fn partial(keeps: OptionalParts, events: &[Event]) -> Partial {
    let mut partial = Partial::new(keeps);
    for event in events {
        assert_eq!(add(&mut partial, event), AddOutcome::Done);
    }
    partial
}

/// Splits events at random places and merges the partials of the pieces.
fn merged(
    keeps: OptionalParts,
    events: &[Event],
    cuts: &[prop::sample::Index],
    order: bool,
) -> Partial {
    let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(events.len() + 1)).collect();
    at.extend([0, events.len()]);
    at.sort_unstable();
    let mut pieces: Vec<_> =
        at.windows(2).map(|cut| partial(keeps, &events[cut[0]..cut[1]])).collect();
    if !order {
        pieces.reverse();
    }
    // As a tree, not only from one end.
    while pieces.len() > 1 {
        pieces = pieces
            .chunks(2)
            .map(|pair| {
                let mut merged = pair[0].clone();
                pair.iter().skip(1).for_each(|other| merged.merge(other).expect("fits"));
                merged
            })
            .collect();
    }
    pieces.remove(0)
}

fn exact(partial: &Partial, op: Op) -> String {
    let result = partial.value(op, 950, None).expect("kept").expect("events");
    assert!(result.exact, "{op:?}");
    result.value.to_string()
}

/// Compares each operation with a naive computation over all events.
fn check_naive(found: &Partial, events: &[Event]) {
    let read = |event: &Event| Naive::read(&event.text);
    let sum = events.iter().map(read).fold(Naive::zero(), |sum, value| sum.plus(&value));
    assert_eq!(exact(found, Op::Sum), sum.to_string());
    let min = events.iter().map(read).min_by(Naive::compare).expect("events");
    let max = events.iter().map(read).max_by(Naive::compare).expect("events");
    assert_eq!(exact(found, Op::Min), min.to_string());
    assert_eq!(exact(found, Op::Max), max.to_string());
    let ordered = |one: &&Event, other: &&Event| {
        one.at.cmp(&other.at).then_with(|| read(one).compare(&read(other)))
    };
    let first = events.iter().min_by(ordered).expect("events");
    let last = events.iter().max_by(ordered).expect("events");
    assert_eq!(exact(found, Op::First), read(first).to_string());
    assert_eq!(exact(found, Op::Last), read(last).to_string());
    assert_eq!(exact(found, Op::Count), events.len().to_string());
    let things: BTreeSet<_> = events.iter().filter_map(|event| event.thing).collect();
    assert_eq!(exact(found, Op::Unique), things.len().to_string());
    let count = u64::try_from(events.len()).expect("small");
    let (_, rest) = sum.divided(count, 36);
    let average = found.value(Op::Avg, 0, None).expect("kept").expect("events");
    assert_eq!(average.exact, rest == 0);
    if average.exact {
        assert_eq!(
            average.value.checked_mul_u64(count).expect("fits").to_string(),
            sum.to_string()
        );
    }
}

/// Areas in value times seconds, computed over all events in order.
fn naive_area(events: &[Event], window: &Window) -> String {
    let mut area = Naive::zero();
    let mut holds = window.opening.map(|opening| Naive::read(&opening.to_string()));
    let mut since = window.start;
    for (time, value) in events
        .iter()
        .map(|event| (event.at.time, Some(Naive::read(&event.text))))
        .chain([(window.end, None)])
    {
        let passed = u64::try_from(time.millis() - since.millis()).expect("ordered");
        if let Some(held) = &holds {
            area = area.plus(&held.times(passed));
        }
        (holds, since) = (value.or(holds), time);
    }
    area.divided(1_000, 40).0.to_string()
}

proptest! {
    #[test]
    fn any_order_and_split_equal_a_naive_fold(
        (events, shuffled) in events(40).prop_flat_map(|events| {
            (Just(events.clone()), Just(events).prop_shuffle())
        }),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        order in any::<bool>(),
    ) {
        let whole = partial(UNORDERED, &events);
        check_naive(&whole, &events);
        prop_assert_eq!(&partial(UNORDERED, &shuffled), &whole);
        prop_assert_eq!(&merged(UNORDERED, &shuffled, &cuts, order), &whole);
    }

    #[test]
    fn time_weighted_values_in_order_equal_a_naive_fold(
        mut events in events(30),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        opening in prop::option::of(value_text()),
        before in 0_i64..1_000_000,
        after in 0_i64..1_000_000,
    ) {
        events.sort_by_key(|event| (event.at, decimal(&event.text)));
        let whole = partial(ALL, &events);
        prop_assert_eq!(&merged(ALL, &events, &cuts, true), &whole);
        check_naive(&whole, &events);
        let window = Window {
            start: Timestamp(events[0].at.time.millis() - before),
            end: Timestamp(events[events.len() - 1].at.time.millis() + after),
            opening: opening.map(|text| decimal(&text)),
        };
        let area = whole.value(Op::TimeWeighted, 0, Some(window)).expect("kept").expect("events");
        prop_assert_eq!(area.value.to_string(), naive_area(&events, &window));
        prop_assert!(area.exact);
    }

    #[test]
    fn an_event_out_of_order_changes_nothing(
        mut events in events(20),
        at in any::<prop::sample::Index>(),
    ) {
        events.sort_by_key(|event| (event.at, decimal(&event.text)));
        let late = events.remove(at.index(events.len()));
        prop_assume!(events.last().is_some_and(|last| late.at < last.at));
        let before = partial(ALL, &events);
        let mut after = before.clone();
        prop_assert_eq!(add(&mut after, &late), AddOutcome::OutOfOrder);
        prop_assert_eq!(after, before);
    }

    #[test]
    fn a_quantile_is_the_nearest_rank_within_one_part_in_128(
        events in events(60),
        quantile_milli in 1_u16..=1_000,
    ) {
        let found = partial(UNORDERED, &events);
        let mut sorted: Vec<_> = events.iter().map(|event| decimal(&event.text)).collect();
        sorted.sort();
        let rank = (sorted.len() * usize::from(quantile_milli)).div_ceil(1_000);
        let expected = sorted[rank - 1];
        let result = found.value(Op::Percentile, quantile_milli, None).expect("kept").expect("events");
        prop_assert!(!result.exact || result.value == expected);
        prop_assert!(sorted[0] <= result.value && result.value <= sorted[sorted.len() - 1]);
        let size = |value: Decimal| if value.is_negative() { value.neg() } else { value };
        let off = size(result.value.checked_sub(expected).expect("fits"));
        prop_assert!(off.checked_mul_u64(128).expect("fits") <= size(expected));
    }

    #[test]
    fn an_encoded_partial_decodes_to_itself(mut events in events(40), flags in any::<[bool; 3]>()) {
        events.sort_by_key(|event| (event.at, decimal(&event.text)));
        let keeps = OptionalParts { unique: flags[0], sketch: flags[1], weighted: flags[2] };
        let stored = partial(keeps, &events);
        let bytes = stored.encode();
        let head = &bytes[..bytes.len().min(super::HEAD_BYTES)];
        prop_assert_eq!(Partial::count_of_head(head).expect("a number"), stored.count());
        prop_assert_eq!(Partial::decode(&bytes).expect("what was encoded"), stored);
    }

    #[test]
    fn changed_bytes_are_refused_or_have_no_other_form(
        mut events in events(6),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        events.sort_by_key(|event| (event.at, decimal(&event.text)));
        let mut bytes = partial(ALL, &events).encode();
        prop_assert!(Partial::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = Partial::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(
        flags in 0_u8..32,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = [&[1, flags][..], &bytes].concat();
        if let Ok(read) = Partial::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }
}

#[test]
fn the_vectors_of_the_seed_are_met() {
    let tens = ["10", "20", "30", "40", "50", "60", "70", "80", "90", "100"];
    let hundreds = ["100", "200", "300", "400", "500", "600", "700", "800", "900", "1000"];
    let halves = ["10.5", "20.5", "30.5", "40.5", "50.5", "60.5", "70.5", "80.5", "90.5", "100.5"];
    let mixed = ["-10", "20", "-5", "15", "-8", "12", "-3", "9", "-7", "17"];
    for (op, values, expected) in [
        (Op::Sum, &tens[..], "550"),
        (Op::Max, &["1000", "5000", "3000", "6000", "2000"], "6000"),
        (Op::Avg, &hundreds, "550"),
        (Op::Min, &["50", "5", "25", "10"], "5"),
        (Op::Count, &tens, "10"),
        (Op::First, &["111", "222", "333"], "111"),
        (Op::Last, &["111", "555", "999"], "999"),
        (Op::Sum, &mixed, "40"),
        (Op::Avg, &halves, "55.5"),
        (Op::Sum, &["42"], "42"),
        (Op::Avg, &["42"], "42"),
        (Op::Min, &["42"], "42"),
        (Op::Count, &["42"], "1"),
        (Op::Max, &["0", "0", "100", "0"], "100"),
        (Op::Min, &["3", "-5", "0", "7"], "-5"),
    ] {
        // One batch has one time, so only the position in it decides first and last.
        let events: Vec<_> = (0..)
            .zip(values)
            .map(|(seq, text)| Event {
                at: position(0, 0, seq),
                text: (*text).to_owned(),
                thing: None,
            })
            .collect();
        assert_eq!(exact(&partial(PLAIN, &events), op), expected, "{op:?} {values:?}");
    }
}

#[test]
fn without_events_there_is_no_result_not_even_a_count() {
    let empty = Partial::new(ALL);
    let window = Window { start: Timestamp(0), end: Timestamp(2_000), opening: None };
    for op in [
        Op::Sum,
        Op::Avg,
        Op::Min,
        Op::Max,
        Op::Count,
        Op::First,
        Op::Last,
        Op::Unique,
        Op::Percentile,
        Op::TimeWeighted,
    ] {
        assert_eq!(empty.value(op, 500, Some(window)).expect("kept"), None, "{op:?}");
    }
    assert!(empty.is_empty() && empty.count() == 0 && empty.first().is_none());
    assert_eq!(Partial::decode(&empty.encode()).expect("empty"), empty);
    // But a held value keeps holding.
    let window = Window { opening: Some(decimal("1.5")), ..window };
    let held = empty.value(Op::TimeWeighted, 0, Some(window)).expect("kept");
    assert_eq!(held, Some(OpResult::exact(decimal("3"))));
}

#[test]
fn time_weighted_values_hold_until_the_next_and_to_the_end() {
    let events = [
        Event { at: position(10_000, 0, 0), text: "2".to_owned(), thing: None },
        Event { at: position(40_000, 0, 1), text: "5".to_owned(), thing: None },
        Event { at: position(50_000, 0, 2), text: "-1".to_owned(), thing: None },
    ];
    let found = partial(OptionalParts { weighted: true, ..PLAIN }, &events);
    let check = |start: i64, end: i64, opening: Option<&str>, expected: &str| {
        let window =
            Window { start: Timestamp(start), end: Timestamp(end), opening: opening.map(decimal) };
        let result = found.value(Op::TimeWeighted, 0, Some(window)).expect("fits").expect("events");
        assert_eq!(result.value.to_string(), expected, "{window:?}");
    };
    check(0, 60_000, None, "100");
    check(0, 60_000, Some("3"), "130");
    check(10_000, 50_000, Some("3"), "110");
    check(10_000, 50_001, Some("3"), "109.999");
    for (start, end) in [(10_001, 60_000), (0, 49_999)] {
        let window = Window { start: Timestamp(start), end: Timestamp(end), opening: None };
        assert!(found.value(Op::TimeWeighted, 0, Some(window)).is_err(), "{start} {end}");
    }
    assert!(found.value(Op::TimeWeighted, 0, None).is_err());
}

#[test]
fn partials_of_time_weighted_values_do_not_overlap() {
    let event = |time: i64| Event { at: position(time, 0, 0), text: "1".to_owned(), thing: None };
    let early = partial(ALL, &[event(0), event(20)]);
    let late = partial(ALL, &[event(10), event(30)]);
    for (first, second) in [(&early, &late), (&late, &early)] {
        let mut merged = first.clone();
        assert!(merged.merge(second).is_err());
        assert_eq!(&merged, first);
    }
    let mut other = Partial::new(PLAIN);
    assert!(other.merge(&early).is_err());
}

#[test]
fn an_overflow_is_an_error_and_changes_nothing() {
    let max = Decimal::from_units(&[0xff; 32], false, 0).expect("256 bits");
    let sample =
        |time: i64, value: Decimal| Sample { at: position(time, 0, 0), value, unique: None };
    // Doubles until 512 bits are full.
    let mut partial = Partial::new(OptionalParts { weighted: false, ..ALL });
    assert_eq!(partial.add(&sample(0, max)).expect("fits"), AddOutcome::Done);
    let mut doublings = 0;
    loop {
        let before = partial.clone();
        if partial.merge(&before).is_err() {
            assert_eq!(partial, before);
            break;
        }
        doublings += 1;
    }
    // The 64-bit count overflows before the sum does.
    assert_eq!(doublings, 63);
    let fine = decimal("1e-37");
    let before = partial.clone();
    assert!(partial.add(&sample(1, fine)).is_err());
    assert_eq!(partial, before);
    let mut weighted = Partial::new(ALL);
    assert_eq!(weighted.add(&sample(i64::MIN, max)).expect("fits"), AddOutcome::Done);
    let before = weighted.clone();
    assert!(weighted.add(&sample(i64::MAX, max)).is_err());
    assert_eq!(weighted, before);
}

#[test]
fn stored_bytes_stay_readable() {
    let events = [
        Event { at: position(1_000, 1_005, 0), text: "2.5".to_owned(), thing: None },
        Event { at: position(2_000, 1_999, 1), text: "-300".to_owned(), thing: None },
    ];
    let expected = [
        "01 0d",
        "02",
        "81 02 0b9f 80 02 012c 01 01 19",
        "d00f 0a 00 01 01 19",
        "a01f 01 02 80 02 012c",
        "02 c18102 01 a2f503 01",
        "00 02 09c4",
    ];
    let found = partial(OptionalParts { unique: false, ..ALL }, &events).encode();
    let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, expected.concat().replace(' ', ""));
}

#[test]
fn a_plain_partial_is_small() {
    let time = 1_768_291_200_000;
    let events: Vec<_> = (0..900)
        .map(|seq| Event {
            at: position(time + seq * 1_000, time + seq * 1_000 + 250, seq),
            text: format!("{}.25", seq * 7_919),
            thing: None,
        })
        .collect();
    let bytes = partial(PLAIN, &events).encode();
    assert!(bytes.len() < 80, "{} bytes", bytes.len());
}

#[test]
fn many_unique_items_fit_a_few_kilobytes_and_round_trip() {
    let mut many = Partial::new(OptionalParts { unique: true, ..PLAIN });
    for thing in 0..5_000_u32 {
        let thing = thing.to_be_bytes();
        let sample = Sample { at: position(0, 0, 0), value: Decimal::ZERO, unique: Some(&thing) };
        assert_eq!(many.add(&sample).expect("fits"), AddOutcome::Done);
    }
    let bytes = many.encode();
    assert!(bytes.len() < 12_500, "{} bytes", bytes.len());
    assert_eq!(Partial::decode(&bytes).expect("what was encoded"), many);
    let result = many.value(Op::Unique, 0, None).expect("kept").expect("events");
    assert!(!result.exact);
}

#[test]
fn an_operation_that_is_not_kept_is_refused() {
    let mut plain = Partial::new(OptionalParts::from(&EventType::new(Op::Sum)));
    assert_eq!(plain.keeps(), PLAIN);
    let sample = Sample { at: position(0, 0, 0), value: decimal("1"), unique: Some(b"x") };
    assert_eq!(plain.add(&sample).expect("fits"), AddOutcome::Done);
    for op in [Op::Unique, Op::Percentile, Op::TimeWeighted] {
        assert!(plain.value(op, 500, None).is_err(), "{op:?}");
        assert_ne!(OptionalParts::from(&EventType::new(op)), PLAIN, "{op:?}");
    }
    let mut sketch = Partial::new(ALL);
    assert_eq!(sketch.add(&sample).expect("fits"), AddOutcome::Done);
    for quantile_milli in [0, 1_001] {
        assert!(sketch.value(Op::Percentile, quantile_milli, None).is_err());
    }
}
