//! The history deriver: everything that is stored and not derived, from below (`history_deriver`) and from above
//! (`history_deriver_down`) in turns. It is the safety net under the live derivers, and what builds new generations.
//!
//! Guarantees: what it derives next follows from coverage alone, so there is no cursor that could be wrong. A generation
//! serves when it has all that is stored. Leaves to others: new blocks.

use std::convert::Infallible;

use logmill_io::Fence;
use logmill_work::intervals::From;

use super::super::line::LineState;
use super::Deriver;
use crate::error::Result;

impl Deriver {
    pub(super) async fn history(&self, fence: &Fence) -> Result<Infallible> {
        let (mut from, mut other) = (From::Below, From::Above);
        loop {
            if self.history_step(Some(fence), from).await? {
                std::mem::swap(&mut from, &mut other);
                self.clock.sleep(self.settings.history_sleep).await;
                continue;
            }
            self.finish_lines(Some(fence)).await?;
            self.clock.sleep(self.settings.poll).await;
            // Another process may have asked for a new generation.
            self.reload().await?;
        }
    }

    /// Derives one chunk of what is missing, one step of the history deriver; false if nothing is.
    pub async fn history_step(&self, fence: Option<&Fence>, from: From) -> Result<bool> {
        let stored = self.stored();
        let task = self.board().take(&stored, self.settings.history_chunk, from, self.clock.now());
        let Some(task) = task else {
            return Ok(false);
        };
        self.work(fence, &task).await?;
        Ok(true)
    }

    /// Makes what is complete serve, and its indexes.
    pub async fn finish_lines(&self, fence: Option<&Fence>) -> Result<()> {
        let stored = self.stored();
        let complete: Vec<_> = {
            let board = self.board();
            let complete = board.lines.iter().filter(|work| work.undone(&stored).is_empty());
            complete.map(|work| work.line.clone()).collect()
        };
        for line in complete {
            self.tables.make_indexes(&line).await?;
            if line.state == LineState::Building && self.tables.swap(fence, &line).await? {
                let (processor, generation) = (line.processor.name(), line.generation);
                tracing::info!(processor, generation, "serves what was derived anew");
                self.reload().await?;
            }
        }
        Ok(())
    }
}
