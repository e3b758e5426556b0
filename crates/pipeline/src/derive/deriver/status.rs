//! How far every checkpoint is, for operators.
//!
//! Guarantees: one row per name of the seed's checkpoint map that this process has, with the ranges behind it.
//! Leaves to others: the ingesters' and the async workers' rows.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::super::line::LineState;
use super::super::processor::Phase;
use super::super::read::stale;
use super::Deriver;

/// How the derivers of a chain are.
#[derive(Clone, Debug, Serialize)]
pub struct DeriveStatus {
    /// Whether this process derives; if not, another may.
    pub leads: bool,
    /// Every checkpoint.
    pub checkpoints: Vec<CheckpointStatus>,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

/// How far a checkpoint is.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointStatus {
    /// Its name.
    pub name: String,
    /// The generation of its tables, if it has any.
    pub generation: Option<u32>,
    /// `serving` or `building`.
    pub state: &'static str,
    /// In which round of a chunk it runs.
    pub phase: Option<u8>,
    /// The final blocks that it has, as half-open ranges, lowest first; the first and last few if there are many.
    pub ranges: Vec<(u64, u64)>,
    /// How many ranges there are.
    pub ranges_total: usize,
    /// The highest block of the tip that it has.
    pub tip: Option<u64>,
    /// How many stored final blocks it has not derived.
    pub missing: u64,
    /// Whom it waits for.
    pub waits_for: Vec<&'static str>,
    /// Blocks that it could not derive.
    pub failing: Vec<FailingStatus>,
    /// The last replacement of stored blocks that it has applied.
    pub replacements_applied: u64,
    /// Why rows of blocks that no longer exist may be in its tables; none if none are.
    pub incomplete: Option<String>,
}

/// Blocks that could not be derived.
#[derive(Clone, Debug, Serialize)]
pub struct FailingStatus {
    /// The first of them.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// What went wrong.
    pub error: String,
}

/// Ranges that are shown from either end.
const RANGES_SHOWN: usize = 8;

impl Deriver {
    /// How far everything is.
    pub fn status(&self) -> DeriveStatus {
        let replacements = self.chain.index().last_replacement();
        let (stored, board) = (self.stored(), self.board());
        let mut checkpoints = Vec::new();
        let (mut lowest, mut highest) = (None, None);
        for work in &board.lines {
            let undone = work.undone(&stored);
            let first = undone.ranges().next().map(|range| range.start);
            let last = undone.ranges().next_back().map(|range| range.end);
            lowest = [lowest, first].into_iter().flatten().min();
            highest = [highest, last].into_iter().flatten().max();
            let ranges: Vec<(u64, u64)> = work.done.ranges().map(|r| (r.start, r.end)).collect();
            let failing = work.failing.iter().chain(&work.tip_failing);
            let failing = failing.map(|failing| FailingStatus {
                start: failing.range.start,
                end: failing.range.end,
                attempts: failing.attempts,
                error: failing.error.clone(),
            });
            let mut failing: Vec<FailingStatus> = failing.collect();
            failing.sort_by_key(|failing| failing.start);
            failing.truncate(RANGES_SHOWN);
            checkpoints.push(CheckpointStatus {
                name: work.line.processor.name().to_owned(),
                generation: Some(work.line.generation),
                state: match work.line.state {
                    LineState::Building => "building",
                    LineState::Serving => "serving",
                },
                phase: Some(if work.line.processor.phase() == Phase::One { 1 } else { 2 }),
                ranges_total: ranges.len(),
                ranges: shown(ranges),
                tip: work.tip.last().map(|(number, _)| number),
                missing: undone.total(),
                waits_for: match work.line.processor.phase() {
                    Phase::One => Vec::new(),
                    Phase::Two => vec!["token_worker"],
                },
                failing,
                replacements_applied: work.line.replacements,
                incomplete: stale(
                    work.line.replacements,
                    replacements,
                    work.line.behind.as_deref(),
                ),
            });
        }
        let bounds = stored.ranges().fold(None, |bounds: Option<(u64, u64)>, range| {
            Some((bounds.map_or(range.start, |bounds| bounds.0), range.end))
        });
        if let Some((start, end)) = bounds {
            let up = start..lowest.unwrap_or(end);
            let down = highest.unwrap_or(start)..end;
            checkpoints.push(cursor("history_deriver", up));
            checkpoints.push(cursor("history_deriver_down", down));
        }
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        DeriveStatus { leads: self.leads.load(Ordering::SeqCst), checkpoints, last_error }
    }
}

/// What the history deriver has passed, from one side.
fn cursor(name: &str, passed: std::ops::Range<u64>) -> CheckpointStatus {
    let ranges: Vec<(u64, u64)> =
        if passed.is_empty() { Vec::new() } else { vec![(passed.start, passed.end)] };
    CheckpointStatus {
        name: name.to_owned(),
        generation: None,
        state: "serving",
        phase: None,
        ranges_total: ranges.len(),
        ranges,
        tip: None,
        missing: 0,
        waits_for: vec!["main_ingester", "history_ingester"],
        failing: Vec::new(),
        replacements_applied: 0,
        incomplete: None,
    }
}

fn shown(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    if ranges.len() <= 2 * RANGES_SHOWN {
        return ranges;
    }
    let last = &ranges[ranges.len() - RANGES_SHOWN..];
    [&ranges[..RANGES_SHOWN], last].concat()
}
