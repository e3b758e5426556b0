//! Tests of which ranges are missing, and of the loop that claims them.

#![allow(clippy::single_range_in_vec_init, reason = "one range is what is often ready")]

use std::sync::Mutex;
use std::time::Duration;

use logmill_io::{SeededEntropy, SimClock, Timestamp};
use proptest::prelude::*;

use super::*;

fn set(ranges: &[Heights]) -> IntervalSet {
    ranges.iter().cloned().collect()
}

fn first(ready: &IntervalSet, taken: &IntervalSet, size: u64, most: usize) -> Vec<Heights> {
    missing(ready, taken, size).take(most).collect()
}

#[test]
fn ranges_end_at_multiples_of_their_size() {
    let check = |ready: &[Heights], taken: &[Heights], most: usize, expected: &[Heights]| {
        assert_eq!(first(&set(ready), &set(taken), 1_000, most), expected);
    };
    check(&[0..3_000], &[], 5, &[0..1_000, 1_000..2_000, 2_000..3_000]);
    check(&[0..3_000], &[], 2, &[0..1_000, 1_000..2_000]);
    check(&[0..3_000], &[], 0, &[]);
    // A range that is ready in part is not waited for.
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
            let next = first(&ready, &taken, size, most);
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

/// A driver whose steps are given, and that notes when it runs and waits.
struct Scripted {
    steps: Mutex<Vec<Result<Step, &'static str>>>,
    clock: std::sync::Arc<SimClock>,
    seen: Mutex<Vec<(u64, &'static str)>>,
}

impl Scripted {
    fn note(&self, what: &'static str) {
        self.seen.lock().expect("no panic").push((self.clock.monotonic().as_secs(), what));
    }
}

#[async_trait]
impl RangeDriver for Scripted {
    type Error = &'static str;

    async fn claim(&self) -> Result<Step, &'static str> {
        self.note("claim");
        self.steps.lock().expect("no panic").remove(0)
    }

    async fn wait(&self, after: Step) {
        self.note(if after == Step::Busy { "busy" } else { "caught up" });
        self.clock.sleep(Duration::from_secs(100)).await;
    }

    fn retry(&self, error: &'static str) -> Result<Backoff, &'static str> {
        let waits = Backoff::Linear { step: Duration::from_secs(1) };
        if error == "fatal" { Err(error) } else { Ok(waits) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_goes_on_while_it_claims_waits_when_idle_and_backs_off_after_failures() {
    let (clock, entropy) = (SimClock::at(Timestamp(0)), SeededEntropy::shared(1));
    let steps = vec![
        Ok(Step::Claimed),
        Err("down"),
        Err("down"),
        Ok(Step::Busy),
        Err("down"),
        Ok(Step::CaughtUp),
        Err("fatal"),
    ];
    let seen = Mutex::default();
    let driver = Scripted { steps: Mutex::new(steps), clock: clock.clone(), seen };
    assert_eq!(drive(&driver, &*clock, &*entropy).await, "fatal");
    let expected = [
        (0, "claim"),
        (0, "claim"),
        (1, "claim"),
        (3, "claim"),
        (3, "busy"),
        (103, "claim"),
        // A success in between: the backoff begins again.
        (104, "claim"),
        (104, "caught up"),
        (204, "claim"),
    ];
    assert_eq!(*driver.seen.lock().expect("no panic"), expected);
}
