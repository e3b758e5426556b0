//! Replaced blocks: the derivers obey every replacement of stored final blocks.
//!
//! Guarantees: no block is read for a generation before the replacements that this process knows of are applied to it;
//! a new generation is begun only where there is room for it. Leaves to others: what happens to generations
//! ([`super::super::store::Tables::apply_replacements`]).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use logmill_io::{Fence, disk, params};

use super::super::line::LineState;
use super::Deriver;
use crate::error::{Error, Result};

/// How often a deriver that lacks room for a new generation looks again.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

impl Deriver {
    /// Applies the replacements that are new since the last call: what they touch is derived again.
    pub async fn apply_replacements(&self, fence: Option<&Fence>) -> Result<()> {
        let last = self.chain.index().last_replacement();
        if !self.has_replacements(last) {
            return Ok(());
        }
        // The live and the history deriver both come here.
        let _one = self.replacing.lock().await;
        if !self.has_replacements(last) {
            return Ok(());
        }
        let no_room = self.no_room().await?;
        let mut lacks_room = false;
        for processor in &self.processors {
            let mut seq = self.lowest_applied(processor.name()).await?;
            while seq < last {
                let replaced = self.chain.index().replacements_after(seq).await?;
                let Some(newest) = replaced.last().map(|one| one.seq) else {
                    break;
                };
                let outcome = self.tables.apply_replacements(
                    fence,
                    self.chain.chain_id(),
                    processor,
                    &replaced,
                    last,
                    no_room.as_deref(),
                );
                let outcome = outcome.await?;
                if outcome.begun {
                    let processor = processor.name();
                    tracing::warn!(processor, replacement = last, "derives replaced blocks again");
                }
                lacks_room |= outcome.lacks_room;
                seq = newest;
            }
        }
        if let Some(why) = no_room.filter(|_| lacks_room) {
            let chain = self.chain.chain_id();
            tracing::error!(chain, why, "no room to derive replaced blocks again");
            *self.room_again.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                Some(self.clock.monotonic() + ROOM_AGAIN);
        }
        self.replacements_seen.store(last, Ordering::SeqCst);
        self.reload().await
    }

    /// Whether replacements are to be applied.
    fn has_replacements(&self, last: u64) -> bool {
        let begun = |work: &super::LineWork| {
            work.line.state == LineState::Building && work.line.replacements < last
        };
        last > self.replacements_seen.load(Ordering::SeqCst) || self.board().lines.iter().any(begun)
    }

    /// Looks for room again, once in a while.
    pub(super) fn look_for_room(&self) {
        let mut again = self.room_again.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if again.take_if(|at| *at <= self.clock.monotonic()).is_some() {
            self.replacements_seen.store(0, Ordering::SeqCst);
        }
    }

    async fn lowest_applied(&self, processor: &str) -> Result<u64> {
        let stored = self.tables.stored(self.chain.chain_id()).await?;
        let of_processor = stored.iter().filter(|line| line.processor == processor);
        Ok(of_processor.map(|line| line.replacements).min().unwrap_or(u64::MAX))
    }

    /// Why there is no room for another generation of the tables; none if there is, or nothing is known about it.
    async fn no_room(&self) -> Result<Option<String>> {
        let Some(folder) = self.settings.database_folder.clone() else {
            return Ok(None);
        };
        let text = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
        let used = self.tables.sql().query(text, params![]).await?.row()?.count(0)?;
        let needed = used.saturating_add(self.settings.disk_reserve_bytes);
        let free = free_bytes(folder).await?;
        Ok((free < needed).then(|| {
            format!(
                "the disk has {free} bytes free, and a second copy of the tables may need {needed}"
            )
        }))
    }
}

async fn free_bytes(folder: Arc<Path>) -> Result<u64> {
    logmill_io::compute(move || disk::free_bytes(&folder)).await.map_err(Error::from)
}
