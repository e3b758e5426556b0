//! `DeriveBacklog`: the ranges of every generation, from which the derivers of a process take theirs.
//!
//! Each generation has a [`RangeBacklog`]. A range is read and decoded once for all generations that lack it, so it is
//! taken from all of them together. Ranges are interval sets, never their hull: the gap between two announced ranges
//! was not announced.
//!
//! Guarantees: no two derivers of a process take the same blocks of a generation. The backlog is only a hint:
//! [`super::store`] refuses blocks that are already done. Leaves to others: deriving, and retries ([`RangeBacklog`]).

use std::ops::Range;
use std::time::Duration;

use finalized_log_index::ReplacementPosition;
use logmill_io::{Entropy, Timestamp};
use logmill_work::intervals::SearchOrder;
use logmill_work::ranges::{FailingRange, RangeBacklog};
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
    pub(crate) ranges: RangeBacklog,
    pub(crate) tip: TipBlocks,
    /// The tip is not retried before its `retry_at`.
    pub(crate) tip_failing: Option<FailingRange>,
}

/// A range to derive, and the generations that lack all of it.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) range: Range<u64>,
    pub(crate) generations: Vec<Generation>,
}

/// Backoff of a failing block.
const RETRY: Backoff = Backoff::Exponential {
    first: Duration::from_secs(5),
    max: Duration::from_secs(600),
    jitter_percent: 10,
};

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
            true => work.ranges.missing(within, now),
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
                work.ranges.take(&range);
                generations.push(work.generation.clone());
            }
        }
        Some(Task { range, generations })
    }

    /// The lowest block of `stored` that some generation has not derived, and one past the highest.
    pub(crate) fn undone_bounds(&self, stored: &IntervalSet) -> (Option<u64>, Option<u64>) {
        let undone: Vec<IntervalSet> =
            self.generations.iter().map(|work| work.ranges.undone(stored)).collect();
        let lowest = undone.iter().filter_map(|undone| Some(undone.ranges().next()?.start)).min();
        let ends = undone.iter().filter_map(|undone| Some(undone.ranges().next_back()?.end));
        (lowest, ends.max())
    }

    /// The largest number of blocks of `within` that any generation lacks.
    pub(crate) fn missing_most(&self, within: &IntervalSet, now: Timestamp) -> u64 {
        let totals = self.generations.iter().map(|work| work.ranges.missing(within, now).total());
        totals.max().unwrap_or(0)
    }

    /// Returns a range: any deriver may take it again.
    pub(crate) fn give_back(&mut self, task: &Task) {
        for generation in &task.generations {
            if let Some(work) = self.work(generation) {
                work.ranges.give_back(&task.range);
            }
        }
    }

    /// Records that a generation has derived a range.
    pub(crate) fn mark_done(&mut self, generation: &Generation, range: &Range<u64>) {
        if let Some(work) = self.work(generation) {
            work.ranges.cover(range);
            work.tip.0.retain(|(number, _)| !range.contains(number));
        }
    }

    /// Records that a generation failed to derive a range.
    pub(crate) fn record_failure(
        &mut self,
        generation: &Generation,
        range: &Range<u64>,
        error: &str,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) {
        if let Some(work) = self.work(generation) {
            work.ranges.fail(range, error, now, (&RETRY, entropy));
        }
    }

    /// Records that the generations of a processor failed to derive the tip.
    pub(crate) fn record_tip_failure(
        &mut self,
        processor: &str,
        error: &str,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) {
        for work in self.generations.iter_mut().filter(|work| work.generation.is_of(processor)) {
            let before = work.tip_failing.as_ref();
            let failing = FailingRange::after(before, 0..0, error, now, (&RETRY, entropy));
            work.tip_failing = Some(failing);
        }
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
        Self { generation, ranges: RangeBacklog::new(done), tip, tip_failing: None }
    }
}

fn cut(run: Range<u64>, most: u64, from: SearchOrder) -> Range<u64> {
    let most = most.max(1).min(run.end - run.start);
    match from {
        SearchOrder::LowestFirst => run.start..run.start + most,
        SearchOrder::HighestFirst => run.end - most..run.end,
    }
}
