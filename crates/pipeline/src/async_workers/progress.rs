//! Progress of an async worker.
//!
//! Guarantees: the checkpoint is the first height that is not done, counted from the lowest ready one: nothing below it
//! is missing, whether a job is known for it or not. When older history arrives below, the checkpoint moves back.
//! Leaves to others: showing it.

use logmill_work::queue::KindCounts;
use logmill_work::{Coverage, IntervalSet, State};
use serde::Serialize;

use crate::span;

/// Maximum number of ranges and gaps shown.
const SHOWN_MAX: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerProgress {
    pub name: &'static str,
    /// First height that is not done, from the lowest ready one; none if no height is ready.
    pub checkpoint: Option<u64>,
    /// The first ranges that are done, half-open, lowest first.
    #[serde(serialize_with = "span::half_open")]
    pub ranges: Vec<(u64, u64)>,
    pub ranges_total: usize,
    /// The first ready ranges that are neither done nor claimed, below the highest that is.
    #[serde(serialize_with = "span::half_open")]
    pub gaps: Vec<(u64, u64)>,
    pub gaps_total: usize,
    /// Number of heights that are ready and not done.
    pub missing: u64,
    /// The gates.
    pub waits_for: &'static [&'static str],
    /// Range jobs.
    pub jobs: JobCounts,
    /// Per-item jobs, if the worker has them.
    pub items: Option<JobCounts>,
}

/// Numbers of jobs that are not done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobCounts {
    pub pending: u64,
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
}

impl JobCounts {
    /// Selects the jobs of a kind from all counts of a queue.
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

impl WorkerProgress {
    /// The progress that follows from ready and covered heights; jobs are not filled in.
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

    fn check(ready: &[(u64, u64)], done: &[(u64, u64)], claimed: &[(u64, u64)]) -> WorkerProgress {
        let set = |ranges: &[(u64, u64)]| -> IntervalSet {
            ranges.iter().map(|(start, end)| *start..*end).collect()
        };
        let coverage = Coverage { done: set(done), claimed: set(claimed) };
        WorkerProgress::of("w", &[], &set(ready), &coverage)
    }

    #[test]
    fn the_checkpoint_does_not_pass_a_missing_range() {
        let found = check(&[(0, 5_000)], &[(0, 1_000), (2_000, 3_000)], &[]);
        assert_eq!((found.checkpoint, found.missing), (Some(1_000), 3_000));
        assert_eq!(found.gaps, [(1_000, 2_000)]);
        // With a job it is no gap, but still not done.
        let found = check(&[(0, 5_000)], &[(0, 1_000), (2_000, 3_000)], &[(1_000, 2_000)]);
        assert_eq!((found.checkpoint, found.gaps_total), (Some(1_000), 0));
    }

    #[test]
    fn the_checkpoint_starts_at_the_lowest_ready_height() {
        assert_eq!(check(&[], &[], &[]).checkpoint, None);
        assert_eq!(check(&[(700, 900)], &[], &[]).checkpoint, Some(700));
        assert_eq!(check(&[(700, 900)], &[(700, 900)], &[]).checkpoint, Some(900));
        assert_eq!(check(&[(500, 900)], &[(700, 900)], &[]).checkpoint, Some(500));
        // Heights that a gate has not done are no gap of this worker, but the checkpoint does not pass them.
        let found = check(&[(0, 10), (20, 30)], &[(0, 10), (20, 30)], &[]);
        assert_eq!((found.checkpoint, found.gaps_total, found.missing), (Some(10), 0, 0));
    }

    #[test]
    fn only_the_first_ranges_and_gaps_are_listed() {
        let done: Vec<(u64, u64)> = (0..100).map(|n| (n * 10, n * 10 + 5)).collect();
        let found = check(&[(0, 1_000)], &done, &[]);
        assert_eq!((found.ranges.len(), found.ranges_total), (SHOWN_MAX, 100));
        assert_eq!((found.gaps.len(), found.gaps_total), (SHOWN_MAX, 99));
    }
}
