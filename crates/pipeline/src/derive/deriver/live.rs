//! The live derivers: forward (the tip and what has become final near it) and history (what history ingest brings).
//!
//! Guarantees: the tips of all lines change in one transaction, so a reorganization is seen whole or not at all; a
//! block leaves the tip in the transaction that makes it final. Ranges longer than a chunk of history are done in such
//! chunks. Leaves to others: what was stored before the start and is far from the head ([`super::history`]).

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use logmill_io::Fence;
use logmill_work::IntervalSet;
use logmill_work::intervals::From;

use super::super::board::{self, Failing};
use super::super::chunk;
use super::super::line::{Line, TipBlocks};
use super::super::rows::Rows;
use super::super::store::TipPart;
use super::Deriver;
use crate::error::{Error, Result};
use crate::view::View;

/// How often a change of the tip is planned anew because another writes too.
const PLANS_MAX: usize = 8;

/// What the plan of a tip starts from.
struct TipLine {
    line: Line,
    before: TipBlocks,
    done: IntervalSet,
    /// It has failed, and is not to be tried yet.
    waits: bool,
}

impl Deriver {
    pub(super) async fn live(&self, fence: &Fence) -> Result<Infallible> {
        let mut changes = self.chain.changes();
        let head = self.chain.view().await?.finalized().map_or(0, |at| at.number + 1);
        let floor = head.saturating_sub(self.settings.head_backfill);
        // What is stored now, below the floor, is the history deriver's.
        let mut known = self.stored();
        let mut pending = within(&known, &(floor..u64::MAX));
        loop {
            self.apply_replacements(Some(fence)).await?;
            Box::pin(self.align_tip(Some(fence))).await?;
            let stored = self.stored();
            for range in difference(&stored, &known).ranges() {
                pending.insert(&range);
            }
            known = stored;
            if self.live_step(fence, &mut pending).await? {
                continue;
            }
            tokio::select! {
                biased;
                // Lagging is fine: what to do follows from what is stored.
                _ = changes.recv() => {}
                () = self.clock.sleep(self.settings.poll) => {}
            }
        }
    }

    /// Derives one chunk of what is pending, the newest first; false if nothing is.
    async fn live_step(&self, fence: &Fence, pending: &mut IntervalSet) -> Result<bool> {
        let now = self.clock.now();
        // Before the blocks, which may then be newer, never older.
        let replacements = self.chain.index().last_replacement();
        let task = {
            let mut board = self.board();
            let backlog = board.missing_most(pending, now);
            let is_long = backlog > self.settings.history_chunk;
            let chunk =
                if is_long { self.settings.history_chunk } else { self.settings.live_chunk };
            board.take(pending, chunk, From::Above, now, replacements)
        };
        let Some(task) = task else {
            // What fails waits on the board; the history deriver tries it again.
            *pending = IntervalSet::new();
            return Ok(false);
        };
        self.work(Some(fence), task).await?;
        Ok(true)
    }

    /// Makes the tip tables hold what the chain's tip holds: one step of the live deriver, for simulations.
    pub async fn align_tip(&self, fence: Option<&Fence>) -> Result<()> {
        for _ in 0..PLANS_MAX {
            let view = self.chain.view().await?;
            let parts = self.plan_tip(&view).await?;
            if parts.is_empty() {
                return Ok(());
            }
            let after: Vec<(Line, TipBlocks)> =
                parts.iter().map(|part| (part.line.clone(), part.after.clone())).collect();
            match Box::pin(self.tables.commit_tip(fence, parts)).await {
                Ok(()) => {
                    let mut board = self.board();
                    for (line, tip) in after {
                        if let Some(work) = board.work(&line) {
                            work.tip = tip;
                        }
                    }
                    return Ok(());
                }
                Err(Error::Overtaken { .. }) => self.reload().await?,
                Err(error @ Error::Processor { processor, .. }) => {
                    self.tip_failed(processor, &error);
                }
                Err(error) => return Err(error),
            }
        }
        // Next time.
        Ok(())
    }

    /// The changes that make the tip of every line that of the chain.
    async fn plan_tip(&self, view: &View) -> Result<Vec<TipPart>> {
        let lines = self.tip_lines();
        let mut fresh = self.tip_rows(view, &lines).await?;
        let mut parts = Vec::new();
        for (number, TipLine { line, before, done, waits }) in lines.into_iter().enumerate() {
            let mut after = self.final_of(view, &before, &done).await?;
            let mut added = Vec::new();
            for (block, rows) in view.tip_blocks().iter().zip(&mut fresh) {
                let at = (block.at.number, block.at.hash);
                if done.contains(block.at.number) {
                    continue;
                }
                if !before.contains(at.0, at.1) {
                    match rows.get_mut(number).and_then(Option::take) {
                        Some(Ok(rows)) if !waits => added.push((block.at, rows)),
                        Some(Err(error)) => {
                            self.tip_failed(line.processor.name(), &error);
                            break;
                        }
                        _ => break,
                    }
                }
                after.0.push(at);
            }
            if after != before {
                parts.push(TipPart { line, before, added, after });
            }
        }
        Ok(parts)
    }

    fn tip_lines(&self) -> Vec<TipLine> {
        let now = self.clock.now();
        let line = |work: &board::LineWork| TipLine {
            line: work.line.clone(),
            before: work.tip.clone(),
            done: work.done.clone(),
            waits: work.tip_failing.as_ref().is_some_and(|failing| failing.retry_at > now),
        };
        self.board().lines.iter().map(line).collect()
    }

    /// The rows of every block of the tip that some line does not have yet, for every line.
    async fn tip_rows(
        &self,
        view: &View,
        lines: &[TipLine],
    ) -> Result<Vec<Vec<Option<Result<Rows>>>>> {
        let mut all = Vec::new();
        for block in view.tip_blocks() {
            let (number, hash) = (block.at.number, block.at.hash);
            let lacks =
                |line: &TipLine| !line.before.contains(number, hash) && !line.done.contains(number);
            if !lines.iter().any(lacks) {
                all.push(Vec::new());
                continue;
            }
            let (chain_id, blocks) = (self.chain.chain_id(), [Arc::clone(block)]);
            let lines: Vec<Line> = lines.iter().map(|line| line.line.clone()).collect();
            let tokens = Arc::clone(&self.settings.tokens);
            let rows =
                logmill_io::compute(move || chunk::process(chain_id, &blocks, &lines, &tokens));
            all.push(rows.await?.into_iter().map(Some).collect());
        }
        Ok(all)
    }

    /// The blocks of a tip that have become final and wait to be derived as such.
    async fn final_of(
        &self,
        view: &View,
        tip: &TipBlocks,
        done: &IntervalSet,
    ) -> Result<TipBlocks> {
        let finalized = view.finalized().map_or(0, |at| at.number + 1);
        let mut kept = TipBlocks::default();
        for (number, hash) in tip.0.iter().filter(|(number, _)| *number < finalized) {
            let stored = view.block_ref(*number).await?;
            if stored.is_some_and(|at| at.hash == *hash) && !done.contains(*number) {
                kept.0.push((*number, *hash));
            }
        }
        Ok(kept)
    }

    fn tip_failed(&self, processor: &str, error: &Error) {
        let error = logmill_io::chain(error);
        tracing::warn!(processor, error, "derive the tip");
        let (now, mut board) = (self.clock.now(), self.board());
        for work in &mut board.lines {
            if work.line.processor.name() == processor {
                let attempts = work.tip_failing.as_ref().map_or(0, |failing| failing.attempts) + 1;
                let retry_at = now.after(board::retry().wait(attempts.into(), &*self.entropy));
                let (range, error) = (0..0, error.clone());
                work.tip_failing = Some(Failing { range, attempts, retry_at, error });
            }
        }
    }
}

fn within(set: &IntervalSet, range: &Range<u64>) -> IntervalSet {
    set.overlap(range).into_iter().collect()
}

fn difference(all: &IntervalSet, known: &IntervalSet) -> IntervalSet {
    let mut rest = all.clone();
    for range in known.ranges() {
        rest.remove(&range);
    }
    rest
}
