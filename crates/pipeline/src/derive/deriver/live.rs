//! The live derivers: forward (the tip, and blocks near it that became final) and history (blocks that history ingest
//! stores).
//!
//! Guarantees: the tips of all generations change in one transaction, so readers see a reorganization completely or not
//! at all; a block leaves the tip in the transaction that makes it final. A backlog longer than a history chunk is
//! derived in history chunks. Leaves to others: blocks stored before the start and far from the head
//! ([`super::history`]).

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use logmill_io::Fence;
use logmill_work::IntervalSet;
use logmill_work::intervals::SearchOrder;

use super::super::backlog::GenerationWork;
use super::super::chunk;
use super::super::generation::{Generation, TipBlocks};
use super::super::rows::Rows;
use super::super::store::TipChange;
use super::Deriver;
use crate::chain::View;
use crate::error::{Error, Result};

/// Maximum number of plans for one change of the tip, if other writers keep overtaking it.
const PLANS_MAX: usize = 8;

/// State of a generation from which its tip change is planned.
struct TipState {
    generation: Generation,
    before: TipBlocks,
    done: IntervalSet,
    /// Its last attempt failed, and the retry is not due.
    waits: bool,
}

impl Deriver {
    pub(super) async fn live(&self, fence: &Fence) -> Result<Infallible> {
        // Forward ingest announces blocks; history ingest announces none and is visible only as coverage.
        let mut changes = self.chain.changes();
        let mut coverage = self.chain.index().coverage_changes();
        let head = self.chain.view().await?.finalized().map_or(0, |at| at.number + 1);
        let floor = head.saturating_sub(self.settings.head_backfill);
        // Blocks that are already stored below the floor belong to the history deriver.
        let mut known = self.stored_blocks();
        let mut pending = within(&known, &(floor..u64::MAX));
        loop {
            self.apply_replacements(Some(fence)).await?;
            Box::pin(self.align_tip(Some(fence))).await?;
            let stored = self.stored_blocks();
            for range in difference(&stored, &known).ranges() {
                pending.insert(&range);
            }
            known = stored;
            if self.live_step(fence, &mut pending).await? {
                continue;
            }
            tokio::select! {
                biased;
                // Lagging is harmless: the work follows from the stored blocks.
                _ = changes.recv() => {}
                _ = coverage.changed() => {}
                () = self.clock.sleep(self.settings.poll) => {}
            }
        }
    }

    /// Derives one chunk of the pending blocks, newest first; returns false if there is none.
    async fn live_step(&self, fence: &Fence, pending: &mut IntervalSet) -> Result<bool> {
        let now = self.clock.now();
        // Read before the blocks: the blocks may then be newer than this position, never older.
        let replacements = self.chain.index().replacement_position();
        let task = {
            let mut backlog = self.backlog();
            let missing = backlog.missing_most(pending, now);
            let is_long = missing > self.settings.history_chunk;
            let chunk =
                if is_long { self.settings.history_chunk } else { self.settings.live_chunk };
            backlog.take(pending, chunk, SearchOrder::HighestFirst, now, replacements)
        };
        let Some(task) = task else {
            // Failed ranges stay in the backlog; the history deriver retries them.
            *pending = IntervalSet::new();
            return Ok(false);
        };
        self.work(Some(fence), task).await?;
        Ok(true)
    }

    /// Makes the tip tables match the chain's tip: one step of the live deriver, public for simulations.
    pub async fn align_tip(&self, fence: Option<&Fence>) -> Result<()> {
        for _ in 0..PLANS_MAX {
            let view = self.chain.view().await?;
            let parts = self.plan_tip(&view).await?;
            if parts.is_empty() {
                return Ok(());
            }
            let after: Vec<(Generation, TipBlocks)> =
                parts.iter().map(|part| (part.generation.clone(), part.after.clone())).collect();
            match Box::pin(self.tables.commit_tip(fence, parts)).await {
                Ok(()) => {
                    let mut backlog = self.backlog();
                    for (generation, tip) in after {
                        if let Some(work) = backlog.work(&generation) {
                            work.tip = tip;
                        }
                    }
                    return Ok(());
                }
                Err(Error::Overtaken { .. }) => self.reload().await?,
                Err(error @ Error::Processor { processor, .. }) => {
                    self.record_tip_failure(processor, &error);
                }
                Err(error) => return Err(error),
            }
        }
        // Still overtaken: the next call tries again.
        Ok(())
    }

    /// The changes after which every generation's tip matches the chain's.
    async fn plan_tip(&self, view: &View) -> Result<Vec<TipChange>> {
        let states = self.tip_states();
        let mut fresh = self.tip_rows(view, &states).await?;
        let mut parts = Vec::new();
        for (number, TipState { generation, before, done, waits }) in states.into_iter().enumerate()
        {
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
                            self.record_tip_failure(generation.processor.name(), &error);
                            break;
                        }
                        _ => break,
                    }
                }
                after.0.push(at);
            }
            if after != before {
                parts.push(TipChange { generation, before, added, after });
            }
        }
        Ok(parts)
    }

    fn tip_states(&self) -> Vec<TipState> {
        let now = self.clock.now();
        let state = |work: &GenerationWork| TipState {
            generation: work.generation.clone(),
            before: work.tip.clone(),
            done: work.ranges.done.clone(),
            waits: work.tip_failing.as_ref().is_some_and(|failing| !failing.is_due(now)),
        };
        self.backlog().generations.iter().map(state).collect()
    }

    /// The rows of every tip block that some generation lacks, per block and generation.
    async fn tip_rows(
        &self,
        view: &View,
        states: &[TipState],
    ) -> Result<Vec<Vec<Option<Result<Rows>>>>> {
        let mut all = Vec::new();
        for block in view.tip_blocks() {
            let (number, hash) = (block.at.number, block.at.hash);
            let lacks = |state: &TipState| {
                !state.before.contains(number, hash) && !state.done.contains(number)
            };
            if !states.iter().any(lacks) {
                all.push(Vec::new());
                continue;
            }
            let (chain_id, blocks) = (self.chain.chain_id(), [Arc::clone(block)]);
            let generations: Vec<Generation> =
                states.iter().map(|state| state.generation.clone()).collect();
            let tokens = Arc::clone(&self.settings.tokens);
            let rows = logmill_io::compute(move || {
                chunk::process(chain_id, &blocks, &generations, &tokens)
            });
            all.push(rows.await?.into_iter().map(Some).collect());
        }
        Ok(all)
    }

    /// The blocks of a tip that became final and are not yet derived as final blocks.
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

    fn record_tip_failure(&self, processor: &str, error: &Error) {
        let error = logmill_io::error_chain(error);
        tracing::warn!(processor, error, "cannot derive the tip, retrying");
        self.backlog().record_tip_failure(processor, &error, self.clock.now(), &*self.entropy);
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
