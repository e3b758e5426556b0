//! `DeriveBacklog`: which ranges of every generation are done, taken or failing. The derivers of a process take their
//! ranges from it.
//!
//! Ranges are interval sets, never their hull: the gap between two announced ranges was not announced.
//!
//! Guarantees: no two derivers of a process take the same blocks of a generation; a failing range is halved until the
//! failing block is alone, and that block is retried with backoff; everything else goes on. The backlog is only a hint:
//! [`super::store`] refuses blocks that are already done. Leaves to others: deriving.

use std::ops::Range;
use std::time::Duration;

use finalized_log_index::ReplacementPosition;
use logmill_io::Timestamp;
use logmill_work::intervals::SearchOrder;
use logmill_work::{Backoff, IntervalSet};

use super::generation::{Generation, TipBlocks};

#[derive(Debug, Default)]
pub(crate) struct DeriveBacklog {
    pub(crate) generations: Vec<GenerationWork>,
}

/// Work of one generation.
#[derive(Debug)]
pub(crate) struct GenerationWork {
    pub(crate) generation: Generation,
    pub(crate) done: IntervalSet,
    pub(crate) tip: TipBlocks,
    taken: IntervalSet,
    pub(crate) failing: Vec<FailingRange>,
    /// The tip is not retried before its `retry_at`.
    pub(crate) tip_failing: Option<FailingRange>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailingRange {
    pub(crate) range: Range<u64>,
    pub(crate) attempts: u32,
    pub(crate) retry_at: Timestamp,
    pub(crate) error: String,
}

/// A range to derive, and the generations that lack all of it.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) range: Range<u64>,
    pub(crate) generations: Vec<Generation>,
}

/// Backoff of a failing block: five seconds, doubling, up to ten minutes.
pub(crate) fn retry() -> Backoff {
    let (first, max) = (Duration::from_secs(5), Duration::from_secs(600));
    Backoff::Exponential { first, max, jitter_percent: 10 }
}

impl DeriveBacklog {
    /// Takes the next range of `within` that a generation lacks, with all generations that lack all of it.
    /// `replacements` is the end of the replacement log, read before the blocks.
    pub(crate) fn take(
        &mut self,
        within: &IntervalSet,
        most: u64,
        from: SearchOrder,
        now: Timestamp,
        replacements: ReplacementPosition,
    ) -> Option<Task> {
        let missing = |work: &GenerationWork| match work.generation.takes_blocks_after(replacements)
        {
            true => work.missing(within, now),
            false => IntervalSet::new(),
        };
        let missing: Vec<IntervalSet> = self.generations.iter().map(missing).collect();
        let ends = missing.iter().filter_map(|missing| {
            let mut ranges = missing.ranges();
            let run = match from {
                SearchOrder::LowestFirst => ranges.next(),
                SearchOrder::HighestFirst => ranges.next_back(),
            }?;
            Some(cut(run, most, from))
        });
        let range = match from {
            SearchOrder::LowestFirst => ends.min_by_key(|range| range.start),
            SearchOrder::HighestFirst => ends.max_by_key(|range| range.end),
        }?;
        let mut generations = Vec::new();
        for (work, missing) in self.generations.iter_mut().zip(&missing) {
            if missing.covers(&range) {
                work.taken.insert(&range);
                generations.push(work.generation.clone());
            }
        }
        Some(Task { range, generations })
    }

    /// The lowest block of `stored` that some generation has not derived, and one past the highest.
    pub(crate) fn undone_bounds(&self, stored: &IntervalSet) -> (Option<u64>, Option<u64>) {
        let undone: Vec<IntervalSet> =
            self.generations.iter().map(|work| work.undone(stored)).collect();
        let lowest = undone.iter().filter_map(|undone| Some(undone.ranges().next()?.start)).min();
        let ends = undone.iter().filter_map(|undone| Some(undone.ranges().next_back()?.end));
        (lowest, ends.max())
    }

    /// The largest number of blocks of `within` that any generation lacks.
    pub(crate) fn missing_most(&self, within: &IntervalSet, now: Timestamp) -> u64 {
        let totals = self.generations.iter().map(|work| work.missing(within, now).total());
        totals.max().unwrap_or(0)
    }

    /// Returns a range: any deriver may take it again.
    pub(crate) fn give_back(&mut self, task: &Task) {
        for generation in &task.generations {
            if let Some(work) = self.work(generation) {
                work.taken.remove(&task.range);
            }
        }
    }

    /// Records that a generation has derived a range.
    pub(crate) fn mark_done(&mut self, generation: &Generation, range: &Range<u64>) {
        if let Some(work) = self.work(generation) {
            work.done.insert(range);
            work.tip.0.retain(|(number, _)| !range.contains(number));
            work.failing.retain(|failing| !overlaps(&failing.range, range));
        }
    }

    /// Records that a generation failed to derive a range: halves it, or schedules the retry of a single block.
    pub(crate) fn record_failure(
        &mut self,
        generation: &Generation,
        range: &Range<u64>,
        error: &str,
        now: Timestamp,
        wait: impl Fn(u32) -> Duration,
    ) {
        let Some(work) = self.work(generation) else {
            return;
        };
        let before = work.failing.iter().find(|failing| failing.range == *range);
        let attempts = before.map_or(0, |failing| failing.attempts) + 1;
        work.failing.retain(|failing| !overlaps(&failing.range, range));
        let error = error.to_owned();
        if range.end - range.start > 1 {
            let middle = range.start + (range.end - range.start) / 2;
            for range in [range.start..middle, middle..range.end] {
                let error = error.clone();
                work.failing.push(FailingRange { range, attempts: 0, retry_at: now, error });
            }
            return;
        }
        let retry_at = now.after(wait(attempts));
        work.failing.push(FailingRange { range: range.clone(), attempts, retry_at, error });
    }

    pub(crate) fn work(&mut self, generation: &Generation) -> Option<&mut GenerationWork> {
        self.generations.iter_mut().find(|work| is_same(&work.generation, generation))
    }
}

pub(crate) fn is_same(a: &Generation, b: &Generation) -> bool {
    a.processor.name() == b.processor.name() && a.number == b.number
}

impl GenerationWork {
    pub(crate) fn new(generation: Generation, done: IntervalSet, tip: TipBlocks) -> Self {
        let taken = IntervalSet::new();
        Self { generation, done, tip, taken, failing: Vec::new(), tip_failing: None }
    }

    /// The blocks of `within` that may be derived now. The halves of a failed range are returned one at a time.
    pub(crate) fn missing(&self, within: &IntervalSet, now: Timestamp) -> IntervalSet {
        let mut missing = self.undone(within);
        for range in self.taken.ranges() {
            missing.remove(&range);
        }
        let Some(first) = self
            .failing
            .iter()
            .find(|failing| failing.retry_at <= now && missing.covers(&failing.range))
        else {
            for failing in &self.failing {
                missing.remove(&failing.range);
            }
            return missing;
        };
        // Alone, because otherwise the halves would be joined again.
        std::iter::once(first.range.clone()).collect()
    }

    /// The blocks of `within` that are not derived.
    pub(crate) fn undone(&self, within: &IntervalSet) -> IntervalSet {
        let mut undone = IntervalSet::new();
        for range in within.ranges() {
            for gap in self.done.gaps(&range) {
                undone.insert(&gap);
            }
        }
        undone
    }
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn cut(run: Range<u64>, most: u64, from: SearchOrder) -> Range<u64> {
    let most = most.max(1).min(run.end - run.start);
    match from {
        SearchOrder::LowestFirst => run.start..run.start + most,
        SearchOrder::HighestFirst => run.end - most..run.end,
    }
}
