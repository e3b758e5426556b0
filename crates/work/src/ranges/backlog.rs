//! `RangeBacklog`: which heights of one consumer are done, taken or failing, in the process that holds its lease.
//!
//! ```text
//!   missing ──▶ taken ──▶ done
//!      ▲          │
//!      │          └── failed ──▶ halves, each alone ──▶ one height, retried with backoff
//!      └── given back
//! ```
//!
//! Guarantees: no height is taken twice at a time; a failing range is halved until the failing height is alone, and
//! that height is retried with backoff; everything else goes on. The backlog is only a hint: the transaction that
//! covers a range refuses heights that are already done. Leaves to others: doing and storing a range.

use logmill_io::{Entropy, Timestamp};

use crate::backoff::Backoff;
use crate::intervals::{Heights, IntervalSet};

#[derive(Clone, Debug, Default)]
pub struct RangeBacklog {
    pub done: IntervalSet,
    taken: IntervalSet,
    failing: Vec<FailingRange>,
}

/// A range whose last attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingRange {
    pub range: Heights,
    /// Failed attempts of exactly this range.
    pub attempts: u32,
    pub retry_at: Timestamp,
    pub error: String,
}

impl FailingRange {
    /// The state after another failed attempt; `before` is the state after the previous one.
    pub fn after(
        before: Option<&Self>,
        range: Heights,
        error: &str,
        now: Timestamp,
        (waits, entropy): (&Backoff, &dyn Entropy),
    ) -> Self {
        let attempts = before.map_or(0, |before| before.attempts) + 1;
        let retry_at = now.after(waits.wait(attempts.into(), entropy));
        Self { range, attempts, retry_at, error: error.to_owned() }
    }

    pub fn is_due(&self, now: Timestamp) -> bool {
        self.retry_at <= now
    }
}

impl RangeBacklog {
    pub fn new(done: IntervalSet) -> Self {
        Self { done, ..Self::default() }
    }

    pub fn failing(&self) -> &[FailingRange] {
        &self.failing
    }

    /// The heights of `within` that are not done.
    pub fn undone(&self, within: &IntervalSet) -> IntervalSet {
        within.ranges().flat_map(|range| self.done.gaps(&range)).collect()
    }

    /// The heights of `within` that may be taken now. The halves of a failed range are returned one at a time.
    pub fn missing(&self, within: &IntervalSet, now: Timestamp) -> IntervalSet {
        let mut missing = self.undone(within);
        for range in self.taken.ranges() {
            missing.remove(&range);
        }
        let due = |failing: &&FailingRange| failing.is_due(now) && missing.covers(&failing.range);
        if let Some(first) = self.failing.iter().find(due) {
            // Alone, because otherwise the halves would be joined again.
            return std::iter::once(first.range.clone()).collect();
        }
        for failing in &self.failing {
            missing.remove(&failing.range);
        }
        missing
    }

    pub fn take(&mut self, range: &Heights) {
        self.taken.insert(range);
    }

    /// Returns a taken range: it may be taken again, unless it is done.
    pub fn give_back(&mut self, range: &Heights) {
        self.taken.remove(range);
    }

    /// Records that a range is done.
    pub fn cover(&mut self, range: &Heights) {
        self.done.insert(range);
        self.forget_failing(range);
    }

    /// Records that a range failed: halves it, or schedules the retry of a single height.
    pub fn fail(
        &mut self,
        range: &Heights,
        error: &str,
        now: Timestamp,
        retry: (&Backoff, &dyn Entropy),
    ) {
        if range.end - range.start > 1 {
            self.forget_failing(range);
            let middle = range.start + (range.end - range.start) / 2;
            for range in [range.start..middle, middle..range.end] {
                let error = error.to_owned();
                self.failing.push(FailingRange { range, attempts: 0, retry_at: now, error });
            }
            return;
        }
        let before = self.failing.iter().find(|failing| failing.range == *range);
        let failing = FailingRange::after(before, range.clone(), error, now, retry);
        self.forget_failing(range);
        self.failing.push(failing);
    }

    fn forget_failing(&mut self, range: &Heights) {
        let overlaps = |other: &Heights| other.start < range.end && range.start < other.end;
        self.failing.retain(|failing| !overlaps(&failing.range));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use logmill_io::SeededEntropy;

    use super::*;

    const WAITS: Backoff = Backoff::Linear { step: Duration::from_secs(5) };

    fn set(start: u64, end: u64) -> IntervalSet {
        std::iter::once(start..end).collect()
    }

    #[test]
    fn a_failing_height_is_isolated_and_retried_later_while_the_others_go_on() {
        let (all, entropy) = (set(0, 8), SeededEntropy::shared(1));
        let (mut backlog, mut now) = (RangeBacklog::default(), Timestamp(0));
        let mut attempts = Vec::new();
        // Whatever contains height 5 fails.
        while let Some(range) = backlog.missing(&all, now).ranges().next() {
            attempts.push((range.start, range.end));
            backlog.take(&range);
            assert!(backlog.missing(&set(range.start, range.end), now).is_empty(), "it is taken");
            match range.contains(&5) {
                true => backlog.fail(&range, "bad", now, (&WAITS, &*entropy)),
                false => backlog.cover(&range),
            }
            backlog.give_back(&range);
        }
        assert_eq!(attempts, [(0, 8), (0, 4), (4, 8), (4, 6), (6, 8), (4, 5), (5, 6)]);
        assert_eq!(backlog.undone(&all), set(5, 6));
        let failing = |backlog: &RangeBacklog| {
            backlog.failing().iter().map(|one| (one.attempts, one.retry_at.0)).collect::<Vec<_>>()
        };
        assert_eq!(failing(&backlog), [(1, 5_000)]);
        now = Timestamp(5_000);
        assert_eq!(backlog.missing(&all, now), set(5, 6));
        backlog.fail(&(5..6), "bad", now, (&WAITS, &*entropy));
        assert_eq!(failing(&backlog), [(2, 15_000)]);
        backlog.cover(&(5..6));
        assert!(backlog.failing().is_empty() && backlog.undone(&all).is_empty());
    }
}
