//! `Board`: what of every line is done, taken, or failing: where the derivers of a process find their next range.
//!
//! Ranges are interval sets, never a hull over them: what lies between two ranges that were told of is not theirs.
//!
//! Guarantees: no two derivers of a process take the same blocks of a line; a range that fails is cut in halves until
//! the block that fails is alone, which is tried again later, ever more rarely; everything else goes on. What the board
//! says is a hint: [`super::store`] refuses what is done already. Leaves to others: deriving.

use std::ops::Range;
use std::time::Duration;

use logmill_io::Timestamp;
use logmill_work::intervals::From;
use logmill_work::{Backoff, IntervalSet};

use super::line::{Line, TipBlocks};

/// What the board knows of all lines.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(crate) lines: Vec<LineWork>,
}

/// What the board knows of a line.
#[derive(Debug)]
pub(crate) struct LineWork {
    pub(crate) line: Line,
    pub(crate) done: IntervalSet,
    pub(crate) tip: TipBlocks,
    taken: IntervalSet,
    pub(crate) failing: Vec<Failing>,
    /// The tip is not tried before.
    pub(crate) tip_failing: Option<Failing>,
}

/// A range that a line could not derive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failing {
    pub(crate) range: Range<u64>,
    pub(crate) attempts: u32,
    pub(crate) retry_at: Timestamp,
    pub(crate) error: String,
}

/// A range to derive, and the lines that miss all of it.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) range: Range<u64>,
    pub(crate) lines: Vec<Line>,
}

/// How a failing block is tried again: five seconds, doubling, up to ten minutes.
pub(crate) fn retry() -> Backoff {
    let (first, max) = (Duration::from_secs(5), Duration::from_secs(600));
    Backoff::Exponential { first, max, jitter_percent: 10 }
}

impl Board {
    /// Takes the next range of `within` that a line misses, with all lines that miss all of it. `replacements` is the
    /// number of the last replacement that the blocks will be read after.
    pub(crate) fn take(
        &mut self,
        within: &IntervalSet,
        most: u64,
        from: From,
        now: Timestamp,
        replacements: u64,
    ) -> Option<Task> {
        let missing = |work: &LineWork| match work.line.takes_blocks_after(replacements) {
            true => work.missing(within, now),
            false => IntervalSet::new(),
        };
        let missing: Vec<IntervalSet> = self.lines.iter().map(missing).collect();
        let ends = missing.iter().filter_map(|missing| {
            let mut ranges = missing.ranges();
            let run = match from {
                From::Below => ranges.next(),
                From::Above => ranges.next_back(),
            }?;
            Some(cut(run, most, from))
        });
        let range = match from {
            From::Below => ends.min_by_key(|range| range.start),
            From::Above => ends.max_by_key(|range| range.end),
        }?;
        let mut lines = Vec::new();
        for (work, missing) in self.lines.iter_mut().zip(&missing) {
            if missing.covers(&range) {
                work.taken.insert(&range);
                lines.push(work.line.clone());
            }
        }
        Some(Task { range, lines })
    }

    /// How many blocks of `within` the line misses that misses most.
    pub(crate) fn missing_most(&self, within: &IntervalSet, now: Timestamp) -> u64 {
        let totals = self.lines.iter().map(|line| line.missing(within, now).total());
        totals.max().unwrap_or(0)
    }

    /// Gives a range back: it is nobody's again.
    pub(crate) fn give_back(&mut self, task: &Task) {
        for line in &task.lines {
            if let Some(work) = self.work(line) {
                work.taken.remove(&task.range);
            }
        }
    }

    /// What a line has derived.
    pub(crate) fn done(&mut self, line: &Line, range: &Range<u64>) {
        if let Some(work) = self.work(line) {
            work.done.insert(range);
            work.tip.0.retain(|(number, _)| !range.contains(number));
            work.failing.retain(|failing| !overlaps(&failing.range, range));
        }
    }

    /// What a line could not derive.
    pub(crate) fn failed(
        &mut self,
        line: &Line,
        range: &Range<u64>,
        error: &str,
        now: Timestamp,
        wait: impl Fn(u32) -> Duration,
    ) {
        let Some(work) = self.work(line) else {
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
                work.failing.push(Failing { range, attempts: 0, retry_at: now, error });
            }
            return;
        }
        let retry_at = now.after(wait(attempts));
        work.failing.push(Failing { range: range.clone(), attempts, retry_at, error });
    }

    pub(crate) fn work(&mut self, line: &Line) -> Option<&mut LineWork> {
        self.lines.iter_mut().find(|work| is_same(&work.line, line))
    }
}

pub(crate) fn is_same(a: &Line, b: &Line) -> bool {
    a.processor.name() == b.processor.name() && a.generation == b.generation
}

impl LineWork {
    pub(crate) fn new(line: Line, done: IntervalSet, tip: TipBlocks) -> Self {
        let taken = IntervalSet::new();
        Self { line, done, tip, taken, failing: Vec::new(), tip_failing: None }
    }

    /// What of `within` it has not derived and may now: halves of a failed range apart from each other.
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
        // One at a time and by itself, or the halves would be joined again.
        std::iter::once(first.range.clone()).collect()
    }

    /// What of `within` it has not derived.
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

fn cut(run: Range<u64>, most: u64, from: From) -> Range<u64> {
    let most = most.max(1).min(run.end - run.start);
    match from {
        From::Below => run.start..run.start + most,
        From::Above => run.end - most..run.end,
    }
}
