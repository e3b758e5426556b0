//! How far an async worker is.
//!
//! Guarantees: the checkpoint is the first height that is not done, counted from the lowest that may be: nothing
//! below it is missing, whether a job is known for it or not. When older history arrives below, it goes back, because
//! then something below it is missing. Leaves to others: showing it.

use logmill_work::queue::KindCounts;
use logmill_work::{Coverage, IntervalSet, State};
use serde::Serialize;

/// The most ranges and gaps that are shown.
const SHOWN_MAX: usize = 16;

/// How far a worker is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its name.
    pub name: &'static str,
    /// The first height that is not done, from the lowest that may be; none if none may be.
    pub checkpoint: Option<u64>,
    /// What is done, as half-open ranges, lowest first; the first of them.
    pub ranges: Vec<(u64, u64)>,
    /// How many ranges there are.
    pub ranges_total: usize,
    /// What lies between things that are done or claimed, and is neither; the first of it.
    pub gaps: Vec<(u64, u64)>,
    /// How many gaps there are.
    pub gaps_total: usize,
    /// How many heights may be done and are not.
    pub missing: u64,
    /// Whom it waits for.
    pub waits_for: &'static [&'static str],
    /// The jobs of its ranges.
    pub jobs: Jobs,
    /// The jobs of single items, of a worker that has them.
    pub items: Option<Jobs>,
}

/// How many jobs there are that are not done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Jobs {
    /// Those that wait.
    pub pending: u64,
    /// Those that run.
    pub running: u64,
    /// Those that failed as often as they may.
    pub dead: u64,
}

impl Jobs {
    /// The jobs of a kind, out of all counts of a queue.
    pub fn of(kind: &str, counts: &[KindCounts]) -> Self {
        let jobs = |state| {
            let of_state = counts.iter().find(|count| count.kind == kind && count.state == state);
            of_state.map_or(0, |count| count.jobs)
        };
        Self {
            pending: jobs(State::Pending),
            running: jobs(State::Running),
            dead: jobs(State::Dead),
        }
    }
}

impl Standing {
    /// The part that follows from the heights that may be done, and those that are; jobs are not counted yet.
    pub fn of(
        name: &'static str,
        waits_for: &'static [&'static str],
        ready: &IntervalSet,
        coverage: &Coverage,
    ) -> Self {
        let done = &coverage.done;
        let lowest = [ready, done].into_iter().filter_map(|set| Some(set.ranges().next()?.start));
        let missing = ready.ranges().flat_map(|range| done.gaps(&range));
        let mut taken = done.clone();
        taken.extend(&coverage.claimed);
        let top = taken.ranges().next_back().map_or(0, |range| range.end);
        let below = ready.overlap(&(0..top));
        let gaps: Vec<_> = below.iter().flat_map(|range| taken.gaps(range)).collect();
        let shown = |ranges: &mut dyn Iterator<Item = logmill_work::Heights>| {
            ranges.take(SHOWN_MAX).map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        Self {
            name,
            checkpoint: lowest.min().map(|lowest| done.watermark_up(lowest)),
            ranges: shown(&mut done.ranges()),
            ranges_total: done.len(),
            gaps_total: gaps.len(),
            gaps: shown(&mut gaps.into_iter()),
            missing: missing.map(|range| range.end - range.start).sum(),
            waits_for,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ready: &[(u64, u64)], done: &[(u64, u64)], claimed: &[(u64, u64)]) -> Standing {
        let set = |ranges: &[(u64, u64)]| -> IntervalSet {
            ranges.iter().map(|(start, end)| *start..*end).collect()
        };
        let coverage = Coverage { done: set(done), claimed: set(claimed) };
        Standing::of("w", &[], &set(ready), &coverage)
    }

    #[test]
    fn a_range_that_has_no_row_at_all_is_not_jumped_over() {
        let found = check(&[(0, 5_000)], &[(0, 1_000), (2_000, 3_000)], &[]);
        assert_eq!((found.checkpoint, found.missing), (Some(1_000), 3_000));
        assert_eq!(found.gaps, [(1_000, 2_000)]);
        // A job for it makes it no gap, and does not make it done.
        let found = check(&[(0, 5_000)], &[(0, 1_000), (2_000, 3_000)], &[(1_000, 2_000)]);
        assert_eq!((found.checkpoint, found.gaps_total), (Some(1_000), 0));
    }

    #[test]
    fn the_checkpoint_is_counted_from_the_lowest_height_that_may_be_done() {
        assert_eq!(check(&[], &[], &[]).checkpoint, None);
        assert_eq!(check(&[(700, 900)], &[], &[]).checkpoint, Some(700));
        assert_eq!(check(&[(700, 900)], &[(700, 900)], &[]).checkpoint, Some(900));
        assert_eq!(check(&[(500, 900)], &[(700, 900)], &[]).checkpoint, Some(500));
        // A gate that has not done a height is no gap of ours, but nothing passes it.
        let found = check(&[(0, 10), (20, 30)], &[(0, 10), (20, 30)], &[]);
        assert_eq!((found.checkpoint, found.gaps_total, found.missing), (Some(10), 0, 0));
    }

    #[test]
    fn only_the_first_of_many_are_shown() {
        let done: Vec<(u64, u64)> = (0..100).map(|n| (n * 10, n * 10 + 5)).collect();
        let found = check(&[(0, 1_000)], &done, &[]);
        assert_eq!((found.ranges.len(), found.ranges_total), (SHOWN_MAX, 100));
        assert_eq!((found.gaps.len(), found.gaps_total), (SHOWN_MAX, 99));
    }
}
