//! Replaced blocks: how a replacement of stored final blocks changes the generations of a processor.
//!
//! | generation | covers replaced blocks | effect |
//! |---|---|---|
//! | any | no | the replacement counts as applied |
//! | building | yes | it is dropped, and another is begun |
//! | serving | yes | it stays readable, is reported as behind, and another is built beside it |
//!
//! If a generation has applied another replacement log than the index has (the index was rebuilt, or restored from a
//! backup and changed since), everything that the generation covers counts as replaced. The same holds if the log has
//! the applied position, but not the later one that the generation has recorded: it has taken blocks since then.
//!
//! Folded sums are never patched, because the share of a block that no longer exists is unknown.
//!
//! Guarantees: one transaction, under the fence; a generation counts a replacement as applied only if none of its rows
//! come from replaced blocks. Rows derived from blocks read earlier are refused afterwards, because a generation takes
//! rows only under the position that they were planned with. Leaves to others: deriving and serving the new generation
//! ([`crate::derive::deriver`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use finalized_log_index::{Replacement, ReplacementPosition};
use logmill_io::sql::Execute;
use logmill_io::{Fence, Tx, Value, params};
use logmill_work::Coverage;

use super::generations::{StoredGeneration, chain_param, lock, mark_param, stored_generations};
use super::{Tables, hold};
use crate::derive::generation::{self, GenerationState};
use crate::derive::processor::Processor;
use crate::error::Result;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplacementOutcome {
    pub begun: bool,
    /// A new generation is needed, but there is no room for it.
    pub lacks_room: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplacementPage<'a> {
    /// Consecutive replacements, in order.
    pub replaced: &'a [Replacement],
    /// Position after the last of them.
    pub position: ReplacementPosition,
    /// End of the log.
    pub end: ReplacementPosition,
    /// Why a new generation may not be begun; none if it may.
    pub no_room: Option<&'a str>,
}

/// Comparison of the log that a generation has applied with the index's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogVerdict {
    Same,
    /// Taken to be the same, with this mark: the generation has no mark of its own.
    Adopted(ReplacementPosition),
    Other,
}

#[derive(Debug, Default)]
struct GenerationNeeds<'l> {
    has_building: bool,
    dropped: bool,
    /// The serving generation if it is behind, and why.
    behind: Option<(&'l StoredGeneration, String)>,
}

impl Tables {
    /// Applies replacements to the generations of a processor.
    pub(crate) async fn apply_replacements(
        &self,
        fence: Option<&Fence>,
        chain_id: u64,
        processor: &Arc<dyn Processor>,
        page: ReplacementPage<'_>,
    ) -> Result<ReplacementOutcome> {
        let applied = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            lock(&tx).await?;
            self.apply_in_order(&tx, chain_id, &**processor, page).await
        });
        applied.await
    }

    async fn apply_in_order(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &dyn Processor,
        page: ReplacementPage<'_>,
    ) -> Result<ReplacementOutcome> {
        let stored = stored_generations(tx, chain_id, Some(processor.name())).await?;
        let Some(first) = page.replaced.first() else {
            return Ok(ReplacementOutcome::default());
        };
        let mut needs = GenerationNeeds::default();
        for generation in stored.iter().filter(|generation| generation.is_of_log()) {
            let hit = self.first_hit(tx, chain_id, generation, page.replaced).await?;
            match (hit, generation.state) {
                (None, state) => {
                    // A page that does not continue the generation's position says nothing about those in between.
                    let continues = generation.replacements.seq + 1 >= first.seq;
                    if generation.replacements.seq < page.position.seq && continues {
                        self.note_applied(tx, chain_id, generation, page.position).await?;
                    }
                    needs.has_building |= state == GenerationState::Building;
                }
                (Some(_), GenerationState::Building) => {
                    self.drop_generation(tx, chain_id, generation).await?;
                    needs.dropped = true;
                }
                (Some(hit), GenerationState::Serving) => {
                    needs.behind = Some((generation, behind_text(hit)));
                }
            }
        }
        self.begin_needed(tx, chain_id, processor, &stored, needs, page).await
    }

    /// Settles which generations of a processor have applied another replacement log than the index's, as judged by
    /// generation and position. The blocks that they cover are derived again; `page` has no replacements.
    pub(crate) async fn settle_logs(
        &self,
        fence: Option<&Fence>,
        chain_id: u64,
        processor: &Arc<dyn Processor>,
        verdicts: &BTreeMap<u32, (ReplacementPosition, LogVerdict)>,
        page: ReplacementPage<'_>,
    ) -> Result<ReplacementOutcome> {
        let settled = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            lock(&tx).await?;
            let stored = stored_generations(&tx, chain_id, Some(processor.name())).await?;
            let mut needs = GenerationNeeds::default();
            for generation in &stored {
                let judged = verdicts.get(&generation.number);
                // A generation that changed since is judged next time.
                let verdict =
                    judged.filter(|(at, _)| *at == generation.replacements).map(|one| one.1);
                match (verdict.unwrap_or(LogVerdict::Same), generation.state) {
                    (LogVerdict::Adopted(position), state) => {
                        self.store_position(&tx, chain_id, generation, position).await?;
                        needs.has_building |= state == GenerationState::Building;
                    }
                    (LogVerdict::Same, state) => {
                        needs.has_building |= state == GenerationState::Building;
                    }
                    (LogVerdict::Other, state) => {
                        self.leave_log(&tx, chain_id, generation, state, page, &mut needs).await?;
                    }
                }
            }
            self.begin_needed(&tx, chain_id, &**processor, &stored, needs, page).await
        });
        settled.await
    }

    /// Handles a generation that has applied another log.
    async fn leave_log<'l>(
        &self,
        tx: &Tx,
        chain_id: u64,
        generation: &'l StoredGeneration,
        state: GenerationState,
        page: ReplacementPage<'_>,
        needs: &mut GenerationNeeds<'l>,
    ) -> Result<()> {
        let scope = generation::scope(chain_id, &generation.processor, generation.number);
        if Coverage::read(tx, &scope).await?.done.is_empty() {
            // It has no blocks, so none were replaced.
            needs.has_building |= state == GenerationState::Building;
            return self.note_applied(tx, chain_id, generation, page.end).await;
        }
        if state == GenerationState::Building {
            needs.dropped = true;
            return self.drop_generation(tx, chain_id, generation).await;
        }
        self.store_position(tx, chain_id, generation, ReplacementPosition::NOWHERE).await?;
        needs.behind = Some((generation, other_log_text(generation.replacements)));
        Ok(())
    }

    /// Begins a new generation if one is needed and there is room, and records why the serving one is behind.
    async fn begin_needed(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &dyn Processor,
        stored: &[StoredGeneration],
        needs: GenerationNeeds<'_>,
        page: ReplacementPage<'_>,
    ) -> Result<ReplacementOutcome> {
        let GenerationNeeds { has_building, dropped, behind } = needs;
        let is_needed = (dropped || behind.is_some()) && !has_building;
        // The dropped generation has made room.
        let lacks_room = is_needed && !dropped && page.no_room.is_some();
        let begun = is_needed && !lacks_room;
        if begun {
            let number = stored.iter().map(|generation| generation.number).max().unwrap_or(0) + 1;
            let state = GenerationState::Building;
            self.create(tx, chain_id, processor, number, state, page.end).await?;
        }
        if let Some((generation, what)) = behind {
            let now = match page.no_room.filter(|_| lacks_room) {
                None => "the tables are being derived again".to_owned(),
                Some(why) => format!("the tables cannot be derived again yet: {why}"),
            };
            self.note_behind(tx, chain_id, generation, page.end, &format!("{what}; {now}")).await?;
        }
        Ok(ReplacementOutcome { begun, lacks_room })
    }

    /// The first replacement that a generation has not applied and that touches its coverage.
    async fn first_hit<'r>(
        &self,
        tx: &Tx,
        chain_id: u64,
        generation: &StoredGeneration,
        replaced: &'r [Replacement],
    ) -> Result<Option<&'r Replacement>> {
        let scope = generation::scope(chain_id, &generation.processor, generation.number);
        let covered = Coverage::read(tx, &scope).await?.done;
        let mut pending = replaced.iter().filter(|one| one.seq > generation.replacements.seq);
        Ok(pending.find(|one| !covered.overlap(&one.blocks).is_empty()))
    }

    async fn note_applied(
        &self,
        tx: &Tx,
        chain_id: u64,
        generation: &StoredGeneration,
        position: ReplacementPosition,
    ) -> Result<()> {
        self.store_position(tx, chain_id, generation, position).await?;
        let text = "UPDATE derive_line SET behind = NULL
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, stored_generation_params(chain_id, generation)?).await?;
        Ok(())
    }

    async fn store_position(
        &self,
        tx: &Tx,
        chain_id: u64,
        generation: &StoredGeneration,
        position: ReplacementPosition,
    ) -> Result<()> {
        let mut params = stored_generation_params(chain_id, generation)?;
        params.push(i64::try_from(position.seq).unwrap_or(i64::MAX).into());
        params.push(mark_param(position).into());
        let text = "UPDATE derive_line SET replacements = $4, replacement_mark = $5,
                seen_replacement = NULL, seen_mark = NULL
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    async fn note_behind(
        &self,
        tx: &Tx,
        chain_id: u64,
        generation: &StoredGeneration,
        seen: ReplacementPosition,
        why: &str,
    ) -> Result<()> {
        let mut params = stored_generation_params(chain_id, generation)?;
        params.push(why.into());
        params.push(i64::try_from(seen.seq).unwrap_or(i64::MAX).into());
        params.push(mark_param(seen).into());
        let text = "UPDATE derive_line SET behind = $4, seen_replacement = $5, seen_mark = $6
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }
}

impl StoredGeneration {
    /// Whether its position is comparable with the index's log; false after `leave_log`.
    pub(crate) fn is_of_log(&self) -> bool {
        self.replacements != ReplacementPosition::NOWHERE
    }
}

fn stored_generation_params(chain_id: u64, generation: &StoredGeneration) -> Result<Vec<Value>> {
    Ok(params![chain_param(chain_id)?, generation.processor.as_str(), generation.number])
}

fn behind_text(hit: &Replacement) -> String {
    let (seq, first, last, reason) = (hit.seq, hit.blocks.start, hit.blocks.end - 1, &hit.reason);
    format!("blocks {first} to {last} were replaced (replacement {seq}: {reason})")
}

fn other_log_text(applied: ReplacementPosition) -> String {
    let seq = applied.seq;
    format!(
        "the stored blocks are not those that the tables were derived from (the log index was restored from a backup \
         or built again; replacement {seq}, which the tables have applied, is not in it), so all count as replaced"
    )
}
