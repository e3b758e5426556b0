//! The history deriver: everything that is stored and not derived, from below (`history_deriver`) and from above
//! (`history_deriver_down`) in turns. It is the safety net under the live derivers, and what builds new generations.
//!
//! Guarantees: what it derives next follows from coverage alone, so there is no cursor that could be wrong. A
//! generation serves when it has all that is stored. Leaves to others: new blocks.

use std::convert::Infallible;

use logmill_io::Fence;
use logmill_work::intervals::From;

use super::super::board::{LineWork, Task};
use super::super::line::LineState;
use super::Deriver;
use crate::error::{Error, Result};

impl Deriver {
    pub(super) async fn history(&self, fence: &Fence) -> Result<Infallible> {
        loop {
            Box::pin(self.history_all(Some(fence))).await?;
            self.finish_lines(Some(fence)).await?;
            self.clock.sleep(self.settings.poll).await;
            self.look_for_room();
            // Another process may have asked for a new generation.
            self.reload().await?;
        }
    }

    /// Derives all that is missing: each chunk while the one before it is stored.
    pub(super) async fn history_all(&self, fence: Option<&Fence>) -> Result<()> {
        let (mut from, mut other) = (From::Below, From::Above);
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
                    Some(task) => self.derived(task).await.map(Some),
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

    fn take_history(&self, from: From) -> Option<Task> {
        // Before the blocks, which may then be newer, never older.
        let replacements = self.chain.index().last_replacement();
        let (stored, now) = (self.stored(), self.clock.now());
        self.board().take(&stored, self.settings.history_chunk, from, now, replacements)
    }

    /// Derives one chunk of what is missing, one step of the history deriver; false if nothing is.
    pub async fn history_step(&self, fence: Option<&Fence>, from: From) -> Result<bool> {
        self.apply_replacements(fence).await?;
        let Some(task) = self.take_history(from) else {
            return Ok(false);
        };
        self.work(fence, task).await?;
        Ok(true)
    }

    /// Makes what is complete serve, and its indexes.
    pub async fn finish_lines(&self, fence: Option<&Fence>) -> Result<()> {
        let (replacements, stored) = (self.chain.index().last_replacement(), self.stored());
        let complete: Vec<_> = {
            let board = self.board();
            let is_complete = |work: &&LineWork| {
                work.line.takes_blocks_after(replacements) && work.undone(&stored).is_empty()
            };
            let complete = board.lines.iter().filter(is_complete);
            complete.map(|work| work.line.clone()).collect()
        };
        for line in complete {
            self.tables.make_indexes(&line).await?;
            if line.state == LineState::Building && self.tables.swap(fence, &line, &stored).await? {
                let (processor, generation) = (line.processor.name(), line.generation);
                tracing::info!(processor, generation, "serves what was derived anew");
                self.reload().await?;
            }
        }
        Ok(())
    }
}
