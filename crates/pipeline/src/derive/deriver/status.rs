//! Progress of every checkpoint, for operators.
//!
//! Guarantees: one row for each name of the seed's checkpoint map that this process has, with its ranges. The rows of
//! the ingesters and of the history deriver are also stored, for SQL clients. Leaves to others: the async workers'
//! rows.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use logmill_io::Fence;
use logmill_work::IntervalSet;
use serde::Serialize;

use super::super::generation::GenerationState;
use super::super::processor::Phase;
use super::super::store::checkpoints::Checkpoint;
use super::Deriver;
use crate::error::Result;
use crate::span;

#[derive(Clone, Debug, Serialize)]
pub struct DeriveStatus {
    /// Whether this process derives; if not, another one may.
    pub leads: bool,
    pub checkpoints: Vec<CheckpointStatus>,
    pub last_error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CheckpointStatus {
    pub name: String,
    /// Generation of its tables, if it has tables.
    pub generation: Option<u32>,
    /// `serving` or `building`.
    pub state: &'static str,
    /// [`Phase`] in which its processor runs, as a number.
    pub phase: Option<u8>,
    /// Derived final blocks as half-open ranges, lowest first; only the first and last few if there are many.
    #[serde(serialize_with = "span::half_open")]
    pub ranges: Vec<(u64, u64)>,
    /// Number of ranges, including those left out of `ranges`.
    pub ranges_total: usize,
    /// Highest derived block of the tip.
    pub tip: Option<u64>,
    /// Number of stored final blocks that are not derived.
    pub missing: u64,
    /// Checkpoints that it waits for.
    pub waits_for: Vec<&'static str>,
    /// Ranges whose derivation failed.
    pub failing: Vec<FailingStatus>,
    /// Number of the last replacement of stored blocks that it has applied.
    pub replacements_applied: u64,
    /// Why its tables may contain rows of blocks that no longer exist, or why it does not serve although all stored
    /// blocks are derived; none if neither applies.
    pub incomplete: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FailingStatus {
    #[serde(rename = "from")]
    pub start: u64,
    /// Exclusive; serialized as the last block.
    #[serde(rename = "to", serialize_with = "span::last")]
    pub end: u64,
    pub attempts: u32,
    pub error: String,
}

/// Number of ranges shown from each end.
const RANGES_SHOWN: usize = 8;

impl Deriver {
    pub fn status(&self) -> DeriveStatus {
        let replacements = self.chain.index().replacement_position();
        let (stored, backlog) = (self.stored_blocks(), self.backlog());
        let mut checkpoints = Vec::new();
        let (lowest, highest) = backlog.undone_bounds(&stored);
        for work in &backlog.generations {
            let undone = work.ranges.undone(&stored);
            let ranges: Vec<(u64, u64)> =
                work.ranges.done.ranges().map(|r| (r.start, r.end)).collect();
            let failing = work.ranges.failing().iter().chain(&work.tip_failing);
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
                name: work.generation.processor.name().to_owned(),
                generation: Some(work.generation.number),
                state: match work.generation.state {
                    GenerationState::Building => "building",
                    GenerationState::Serving => "serving",
                },
                phase: Some(if work.generation.processor.phase() == Phase::One { 1 } else { 2 }),
                ranges_total: ranges.len(),
                ranges: shorten(ranges),
                tip: work.tip.last().map(|(number, _)| number),
                missing: undone.total(),
                waits_for: match work.generation.processor.phase() {
                    Phase::One => Vec::new(),
                    Phase::Two => vec!["token_worker"],
                },
                failing,
                replacements_applied: work.generation.replacements.seq,
                incomplete: work.generation.incomplete(replacements),
            });
        }
        if let Some([up, down]) = cursors(&stored, lowest, highest) {
            checkpoints.push(cursor("history_deriver", up));
            checkpoints.push(cursor("history_deriver_down", down));
        }
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        DeriveStatus { leads: self.leads.load(Ordering::SeqCst), checkpoints, last_error }
    }
}

impl Deriver {
    /// Stores the checkpoints of the ingesters and of the history deriver whenever they change.
    pub(super) async fn note_checkpoints(&self, fence: &Fence) -> Result<Infallible> {
        loop {
            self.put_checkpoints(Some(fence)).await?;
            self.clock.sleep(self.settings.poll).await;
        }
    }

    pub(super) async fn put_checkpoints(&self, fence: Option<&Fence>) -> Result<()> {
        let newest = self.chain.view().await?.covered().pop().filter(|range| !range.is_empty());
        let low = newest.as_ref().map(|range| range.start);
        let high = newest.map(|range| range.end - 1);
        let mut checkpoints = vec![
            Checkpoint { name: "main_ingester", from: low, last: high },
            Checkpoint { name: "history_ingester", from: high, last: low },
        ];
        let stored = self.stored_blocks();
        let (lowest, highest) = self.backlog().undone_bounds(&stored);
        if let Some([up, down]) = cursors(&stored, lowest, highest) {
            let last = up.end.checked_sub(1).filter(|_| !up.is_empty());
            let from = Some(up.start);
            checkpoints.push(Checkpoint { name: "history_deriver", from, last });
            let last = Some(down.start).filter(|_| !down.is_empty());
            let from = down.end.checked_sub(1);
            checkpoints.push(Checkpoint { name: "history_deriver_down", from, last });
        }
        self.tables.put_checkpoints(fence, self.chain.chain_id(), &checkpoints).await
    }
}

/// The ranges that the history deriver has passed from below and from above, if any block is stored.
fn cursors(
    stored: &IntervalSet,
    lowest: Option<u64>,
    highest: Option<u64>,
) -> Option<[Range<u64>; 2]> {
    let (start, end) = (stored.ranges().next()?.start, stored.ranges().next_back()?.end);
    Some([start..lowest.unwrap_or(end), highest.unwrap_or(start)..end])
}

fn cursor(name: &str, passed: Range<u64>) -> CheckpointStatus {
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

fn shorten(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    if ranges.len() <= 2 * RANGES_SHOWN {
        return ranges;
    }
    let last = &ranges[ranges.len() - RANGES_SHOWN..];
    [&ranges[..RANGES_SHOWN], last].concat()
}
