//! A naive implementation of every operation: over a list of events, in whole numbers.
//!
//! Guarantees: shares no code with the meter; reads every event for every question. Leaves to others: the questions.

use std::collections::{BTreeMap, BTreeSet};

pub(super) const OPS: [&str; 10] =
    ["sum", "avg", "min", "max", "count", "first", "last", "unique", "percentile", "time_weighted"];

/// Decimal places in which values are compared: hundredths times thousandths of a second.
pub(super) const PLACES: usize = 5;
/// Averages may have infinitely many digits and are compared in this many.
const AVERAGE_PLACES: usize = 20;
/// The relative error of a percentile is less than one part in this many.
const SKETCH_PART: i128 = 128;

#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) customer: &'static str,
    pub(super) region: &'static str,
    pub(super) user: u64,
    /// Value in hundredths.
    pub(super) cents: i64,
    pub(super) time_ms: i64,
}

/// Half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) start_ms: i64,
    pub(super) end_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Exactly(i128),
    Average {
        sum: i128,
        count: i128,
    },
    /// Subject to the relative error of the sketch.
    About(i128),
}

impl Expected {
    /// Compares it with an answer.
    #[track_caller]
    pub(super) fn check(&self, answered: &str, exact: bool, what: &str) {
        match *self {
            Self::Exactly(value) => {
                assert_eq!((scaled(answered, PLACES), exact), (value, true), "{what}: {answered}");
            }
            Self::About(value) => {
                let off = (scaled(answered, PLACES) - value).abs() * SKETCH_PART;
                assert!(off <= value.abs() && !exact, "{what}: {answered} for {value}");
            }
            Self::Average { sum, count } => {
                let more = 10_i128.pow(u32::try_from(AVERAGE_PLACES - PLACES).expect("few"));
                let off = scaled(answered, AVERAGE_PLACES) * count - sum * more;
                assert!(off.abs() <= count, "{what}: {answered} for {sum} by {count}");
                assert_eq!(exact, ends(sum, count), "{what}: {answered} for {sum} by {count}");
            }
        }
    }
}

/// Whether a quotient has a finite decimal form.
fn ends(sum: i128, count: i128) -> bool {
    let (mut rest, mut factor) = (count, sum.abs());
    while factor != 0 {
        (rest, factor) = (factor, rest % factor);
    }
    let mut left = count / rest;
    for prime in [2, 5] {
        while left % prime == 0 {
            left /= prime;
        }
    }
    left == 1
}

/// A number as an integer with this many decimal places; further digits are cut off.
pub(super) fn scaled(text: &str, places: usize) -> i128 {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction: String = format!("{fraction:0<places$}").chars().take(places).collect();
    let number: i128 = format!("{whole}{fraction}").parse().expect("digits");
    sign * number
}

/// The result of an operation over the events of a span, and the number of events in it. `all` holds the selected
/// events of any time, in the order in which they were sent.
pub(super) fn fold(
    op: &str,
    quantile_milli: usize,
    all: &[&Sent],
    span: Span,
) -> (Option<Expected>, usize) {
    let mut events: Vec<&Sent> = all
        .iter()
        .copied()
        .filter(|sent| (span.start_ms..span.end_ms).contains(&sent.time_ms))
        .collect();
    // A stable sort: events of the same time stay in the order in which they were sent.
    events.sort_by_key(|sent| sent.time_ms);
    let count = events.len();
    if op == "time_weighted" {
        return (weighted(all, span), count);
    }
    let cents: Vec<i128> = events.iter().map(|sent| i128::from(sent.cents) * 1_000).collect();
    let (Some(first), Some(last)) = (cents.first(), cents.last()) else { return (None, 0) };
    let whole = |number: usize| i128::try_from(number).expect("few") * 100_000;
    let mut sorted = cents.clone();
    sorted.sort_unstable();
    let exactly = Expected::Exactly;
    let expected = match op {
        "sum" => exactly(cents.iter().sum()),
        "avg" => Expected::Average { sum: cents.iter().sum(), count: whole(count) / 100_000 },
        "min" => exactly(sorted[0]),
        "max" => exactly(sorted[count - 1]),
        "count" => exactly(whole(count)),
        "first" => exactly(*first),
        "last" => exactly(*last),
        "unique" => {
            let users: BTreeSet<u64> = events.iter().map(|sent| sent.user).collect();
            exactly(whole(users.len()))
        }
        _ => {
            let rank = (count * quantile_milli).div_ceil(1_000);
            let value = sorted[rank - 1];
            // The sketch knows the smallest and the largest value exactly.
            let is_end = rank == 1 || rank == count || sorted[0] == sorted[count - 1];
            if is_end { exactly(value) } else { Expected::About(value) }
        }
    };
    (Some(expected), count)
}

/// Each value times the seconds for which it held, separately for each customer and region.
fn weighted(all: &[&Sent], span: Span) -> Option<Expected> {
    let mut series: BTreeMap<(&str, &str), Vec<&Sent>> = BTreeMap::new();
    for sent in all.iter().filter(|sent| sent.time_ms < span.end_ms) {
        series.entry((sent.customer, sent.region)).or_default().push(sent);
    }
    let mut area: Option<i128> = None;
    for mut events in series.into_values() {
        events.sort_by_key(|sent| sent.time_ms);
        let ends = events.iter().skip(1).map(|next| next.time_ms).chain([span.end_ms]);
        for (sent, end_ms) in events.iter().zip(ends) {
            let held_ms = (end_ms - sent.time_ms.max(span.start_ms)).max(0);
            *area.get_or_insert(0) += i128::from(sent.cents) * i128::from(held_ms);
        }
    }
    area.map(Expected::Exactly)
}
