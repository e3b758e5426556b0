//! Replaced blocks: the derivers apply every replacement of stored final blocks.
//!
//! Guarantees: no block is read for a generation before the replacements known to this process are applied to it; a new
//! generation is begun only if there is room for it. Leaves to others: the changes to generations
//! ([`super::super::store::Tables::apply_replacements`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use finalized_log_index::ReplacementPosition;
use logmill_io::{Fence, disk, params};

use super::super::generation::GenerationState;
use super::super::store::{LogVerdict, ReplacementOutcome, ReplacementPage};
use super::Deriver;
use crate::error::{Error, Result};

/// Interval at which a deriver without room for a new generation checks again.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

/// How the generations of a processor compare with the index's log, by generation.
type Verdicts = BTreeMap<u32, (ReplacementPosition, LogVerdict)>;

impl Deriver {
    /// Applies the replacements since the last call: the blocks they touch are derived again. If the tables have
    /// applied another replacement log than the index has, everything is derived again.
    pub async fn apply_replacements(&self, fence: Option<&Fence>) -> Result<()> {
        if !self.has_replacements(self.chain.index().replacement_position()) {
            return Ok(());
        }
        // The live and the history deriver both call this.
        let _one = self.replacing.lock().await;
        if !self.has_replacements(self.chain.index().replacement_position()) {
            return Ok(());
        }
        let no_room = self.no_room().await?;
        let mut lacks_room = false;
        let verdicts = self.judge_logs().await?;
        // Read after the verdicts, which may have caught up with the writes of another process.
        let end = self.chain.index().replacement_position();
        for processor in &self.processors {
            let name = processor.name();
            let nothing =
                ReplacementPage { replaced: &[], position: end, end, no_room: no_room.as_deref() };
            if let Some(verdicts) = verdicts.get(name) {
                let settled = self.tables.settle_logs(
                    fence,
                    self.chain.chain_id(),
                    processor,
                    verdicts,
                    nothing,
                );
                lacks_room |= log_outcome(name, settled.await?, end);
            }
            let mut seq = self.lowest_applied(name).await?;
            while seq < end.seq {
                let replaced = self.chain.index().replacements_after(seq).await?;
                let Some(newest) = replaced.last().map(|one| one.seq) else {
                    break;
                };
                let mark = self.chain.index().replacement_mark(newest).await?.unwrap_or(0);
                let position = ReplacementPosition { seq: newest, mark };
                let page = ReplacementPage { replaced: &replaced, position, ..nothing };
                let chain_id = self.chain.chain_id();
                let outcome = self.tables.apply_replacements(fence, chain_id, processor, page);
                lacks_room |= log_outcome(name, outcome.await?, end);
                seq = newest;
            }
        }
        if let Some(why) = no_room.filter(|_| lacks_room) {
            let chain = self.chain.chain_id();
            tracing::error!(chain, why, "not enough disk space to derive replaced blocks again");
            *self.room_again.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(self.clock.monotonic() + ROOM_AGAIN);
        }
        self.set_replacements_seen(Some(end));
        self.reload().await
    }

    /// Compares the replacement log that each generation has applied with the index's log. Returns the verdicts by
    /// processor and generation, with the position judged, without processors that have nothing to settle.
    async fn judge_logs(&self) -> Result<BTreeMap<String, Verdicts>> {
        let judged = self.verdicts().await?;
        if !judged.values().flat_map(BTreeMap::values).any(|one| one.1 == LogVerdict::Other) {
            return Ok(judged);
        }
        // Another process may have written and derived blocks that this one has not read yet.
        self.chain.follow().await?;
        self.verdicts().await
    }

    async fn verdicts(&self) -> Result<BTreeMap<String, Verdicts>> {
        let (index, mut all) = (self.chain.index(), BTreeMap::<String, Verdicts>::new());
        let end = index.replacement_position();
        for generation in self.tables.stored_generations(self.chain.chain_id()).await? {
            let (at, seen) = (generation.replacements, generation.seen);
            let verdict = match index.replacement_mark(at.seq).await? {
                Some(mark) if at.mark == 0 => {
                    LogVerdict::Adopted(ReplacementPosition { mark, ..at })
                }
                Some(_) if index.has_position(at).await? && index.has_position(seen).await? => {
                    LogVerdict::Same
                }
                _ => LogVerdict::Other,
            };
            if verdict == LogVerdict::Same || (at.mark == 0 && end.mark == 0 && at.seq <= end.seq) {
                continue;
            }
            let of_processor = all.entry(generation.processor.clone()).or_default();
            of_processor.insert(generation.number, (at, verdict));
        }
        Ok(all)
    }

    /// Whether replacements must be applied, or a generation does not know which log it has applied.
    fn has_replacements(&self, end: ReplacementPosition) -> bool {
        let is_unsettled = |work: &super::GenerationWork| {
            let at = work.generation.replacements;
            let is_unmarked = at.mark == 0 && end.mark != 0;
            is_unmarked || (work.generation.state == GenerationState::Building && !at.is_same(end))
        };
        let seen = *self.replacements_seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen != Some(end) || self.backlog().generations.iter().any(is_unsettled)
    }

    pub(super) fn set_replacements_seen(&self, seen: Option<ReplacementPosition>) {
        *self.replacements_seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Checks for room again once [`ROOM_AGAIN`] has passed.
    pub(super) fn look_for_room(&self) {
        let mut again = self.room_again.lock().unwrap_or_else(PoisonError::into_inner);
        if again.take_if(|at| *at <= self.clock.monotonic()).is_some() {
            self.set_replacements_seen(None);
        }
    }

    async fn lowest_applied(&self, processor: &str) -> Result<u64> {
        let stored = self.tables.stored_generations(self.chain.chain_id()).await?;
        let of_processor = stored
            .iter()
            .filter(|generation| generation.processor == processor && generation.is_of_log());
        Ok(of_processor.map(|generation| generation.replacements.seq).min().unwrap_or(u64::MAX))
    }

    /// Why there is no room for another generation of the tables; none if there is room or that is unknown.
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
                "the disk has {free} bytes free, but a second copy of the tables may need {needed}"
            )
        }))
    }
}

async fn free_bytes(folder: Arc<Path>) -> Result<u64> {
    logmill_io::compute(move || disk::free_bytes(&folder)).await.map_err(Error::from)
}

/// Logs that a generation was begun; returns whether one lacks room.
fn log_outcome(processor: &str, outcome: ReplacementOutcome, end: ReplacementPosition) -> bool {
    if outcome.begun {
        tracing::warn!(processor, replacement = end.seq, "deriving replaced blocks again");
    }
    outcome.lacks_room
}
