//! The history deriver: derives every stored block that is not derived, alternately from below (`history_deriver`) and
//! from above (`history_deriver_down`). It is the safety net of the live derivers, and it builds new generations.
//!
//! Guarantees: its next range follows from coverage alone, so no cursor can be wrong. A generation starts to serve once
//! it covers all stored blocks. Leaves to others: new blocks.

use std::convert::Infallible;

use logmill_io::Fence;
use logmill_work::intervals::SearchOrder;

use super::super::backlog::{GenerationWork, Task};
use super::super::generation::GenerationState;
use super::super::store::SwapOutcome;
use super::Deriver;
use crate::error::{Error, Result};

impl Deriver {
    pub(super) async fn history(&self, fence: &Fence) -> Result<Infallible> {
        loop {
            Box::pin(self.history_all(Some(fence))).await?;
            self.finish_generations(Some(fence)).await?;
            self.clock.sleep(self.settings.poll).await;
            self.look_for_room();
            // Another process may have requested a new generation.
            self.reload().await?;
        }
    }

    /// Derives everything that is missing; each chunk is derived while the previous one is being stored.
    pub(super) async fn history_all(&self, fence: Option<&Fence>) -> Result<()> {
        let (mut from, mut other) = (SearchOrder::LowestFirst, SearchOrder::HighestFirst);
        let mut ready = None;
        loop {
            self.apply_replacements(fence).await?;
            let task = self.take_history(from);
            std::mem::swap(&mut from, &mut other);
            if task.is_none() && ready.is_none() {
                return Ok(());
            }
            let deriving = async {
                match task {
                    Some(task) => self.derive_task(task).await.map(Some),
                    None => Ok(None),
                }
            };
            let storing = async {
                let Some(ready) = ready.take() else {
                    return Ok::<_, Error>(());
                };
                self.store(fence, ready).await?;
                self.clock.sleep(self.settings.history_sleep).await;
                Ok(())
            };
            let both = futures::future::join(Box::pin(deriving), Box::pin(storing));
            let (derived, stored) = both.await;
            if let (Err(_), Ok(Some(lost))) = (&stored, &derived) {
                self.give_back(lost);
            }
            stored?;
            ready = derived?;
        }
    }

    fn take_history(&self, from: SearchOrder) -> Option<Task> {
        // Read before the blocks: the blocks may then be newer than this position, never older.
        let replacements = self.chain.index().replacement_position();
        let (stored, now) = (self.stored_blocks(), self.clock.now());
        self.backlog().take(&stored, self.settings.history_chunk, from, now, replacements)
    }

    /// Derives one chunk of missing blocks; returns false if nothing is missing.
    pub async fn history_step(&self, fence: Option<&Fence>, from: SearchOrder) -> Result<bool> {
        self.apply_replacements(fence).await?;
        let Some(task) = self.take_history(from) else {
            return Ok(false);
        };
        self.work(fence, task).await?;
        Ok(true)
    }

    /// Builds the indexes of complete generations and lets them serve.
    pub async fn finish_generations(&self, fence: Option<&Fence>) -> Result<()> {
        let (replacements, stored) =
            (self.chain.index().replacement_position(), self.stored_blocks());
        let complete: Vec<_> = {
            let backlog = self.backlog();
            let is_complete = |work: &&GenerationWork| {
                work.generation.takes_blocks_after(replacements)
                    && work.ranges.undone(&stored).is_empty()
            };
            let complete = backlog.generations.iter().filter(is_complete);
            complete.map(|work| work.generation.clone()).collect()
        };
        for generation in complete {
            self.tables.make_indexes(&generation).await?;
            if generation.state != GenerationState::Building {
                continue;
            }
            let (processor, number) = (generation.processor.name(), generation.number);
            match self.tables.swap(fence, &generation, &stored).await? {
                SwapOutcome::Serves => {
                    self.reload().await?;
                    tracing::info!(
                        processor,
                        generation = number,
                        "now serving the rebuilt tables"
                    );
                }
                SwapOutcome::WouldLose(why) if generation.behind.as_ref() != Some(&why) => {
                    self.reload().await?;
                    tracing::warn!(
                        processor,
                        generation = number,
                        why,
                        "the rebuilt tables cannot replace the serving ones"
                    );
                }
                SwapOutcome::WouldLose(_) | SwapOutcome::Waits => {}
            }
        }
        Ok(())
    }
}
