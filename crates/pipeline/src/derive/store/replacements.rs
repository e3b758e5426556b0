//! Replaced blocks: what happens to the generations of a processor when stored final blocks are replaced.
//!
//! | generation | replaced blocks are among those it covers | what happens |
//! |---|---|---|
//! | any | no | it has applied the replacement |
//! | building | yes | it is dropped, and another is begun |
//! | serving | yes | it stays readable, says that it is behind, and another is built beside it |
//!
//! Folded sums are never patched: there is no telling what of a sum came from a block that no longer exists.
//!
//! Guarantees: one transaction, under the fence; a generation counts a replacement as applied only if none of its rows
//! come from replaced blocks. Rows that were derived from blocks read before are refused afterwards, because a
//! generation takes rows only under the number it was planned with. Leaves to others: deriving and serving the new
//! generation ([`crate::derive::deriver`]).

use std::sync::Arc;

use finalized_log_index::Replacement;
use logmill_io::sql::Execute;
use logmill_io::{Fence, Tx, Value, params};
use logmill_work::Coverage;

use super::lines::{StoredLine, chain_param, lock, stored_lines};
use super::{Stored, Tables, hold};
use crate::derive::line::{self, LineState};
use crate::derive::processor::Processor;
use crate::error::Result;

/// What became of the generations of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacementOutcome {
    /// A new generation was begun.
    pub begun: bool,
    /// A new generation is needed, and there is no room for it.
    pub lacks_room: bool,
}

impl Tables {
    /// Applies replacements, in order, to the generations of a processor. `last` is the number of the last replacement
    /// in all; `no_room` says why a new generation may not be begun.
    pub async fn apply_replacements(
        &self,
        fence: Option<&Fence>,
        chain_id: u64,
        processor: &Arc<dyn Processor>,
        replaced: &[Replacement],
        last: u64,
        no_room: Option<&str>,
    ) -> Result<ReplacementOutcome> {
        let applied = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            lock(&tx).await?;
            self.apply_in_order(&tx, chain_id, &**processor, replaced, last, no_room).await
        });
        Ok(applied.await?)
    }

    async fn apply_in_order(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &dyn Processor,
        replaced: &[Replacement],
        last: u64,
        no_room: Option<&str>,
    ) -> Stored<ReplacementOutcome> {
        let stored = stored_lines(tx, chain_id, Some(processor.name())).await?;
        let Some(newest) = replaced.last().map(|replacement| replacement.seq) else {
            return Ok(ReplacementOutcome::default());
        };
        let mut has_building = false;
        let mut dropped = false;
        let mut behind = None;
        for line in &stored {
            let hit = self.first_hit(tx, chain_id, line, replaced).await?;
            match (hit, line.state) {
                (None, state) => {
                    // A page that does not continue what the line has applied says nothing of what lies between.
                    let continues = line.replacements + 1 >= replaced[0].seq;
                    if line.replacements < newest && continues {
                        self.note_applied(tx, chain_id, line, newest).await?;
                    }
                    has_building |= state == LineState::Building;
                }
                (Some(_), LineState::Building) => {
                    self.drop_line(tx, chain_id, line).await?;
                    dropped = true;
                }
                (Some(hit), LineState::Serving) => behind = Some((line, hit)),
            }
        }
        let is_needed = (dropped || behind.is_some()) && !has_building;
        // What was dropped has made room.
        let lacks_room = is_needed && !dropped && no_room.is_some();
        let begun = is_needed && !lacks_room;
        if begun {
            let generation = stored.iter().map(|line| line.generation).max().unwrap_or(0) + 1;
            let state = LineState::Building;
            self.create(tx, chain_id, processor, generation, state, last).await?;
        }
        if let Some((line, hit)) = behind {
            let why = no_room.filter(|_| lacks_room);
            self.note_behind(tx, chain_id, line, hit, why).await?;
        }
        Ok(ReplacementOutcome { begun, lacks_room })
    }

    /// The first replacement that a generation has not applied and that touches what it covers.
    async fn first_hit<'r>(
        &self,
        tx: &Tx,
        chain_id: u64,
        line: &StoredLine,
        replaced: &'r [Replacement],
    ) -> Stored<Option<&'r Replacement>> {
        let scope = line::scope(chain_id, &line.processor, line.generation);
        let covered = Coverage::read(tx, &scope).await?.done;
        let mut pending = replaced.iter().filter(|one| one.seq > line.replacements);
        Ok(pending.find(|one| !covered.overlap(&one.blocks).is_empty()))
    }

    async fn note_applied(
        &self,
        tx: &Tx,
        chain_id: u64,
        line: &StoredLine,
        seq: u64,
    ) -> Stored<()> {
        let mut params = generation_params(chain_id, line)?;
        params.push(i64::try_from(seq).unwrap_or(i64::MAX).into());
        let text = "UPDATE derive_line SET replacements = $4, behind = NULL
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    async fn note_behind(
        &self,
        tx: &Tx,
        chain_id: u64,
        line: &StoredLine,
        hit: &Replacement,
        no_room: Option<&str>,
    ) -> Stored<()> {
        let mut params = generation_params(chain_id, line)?;
        params.push(behind_text(hit, no_room).into());
        let text = "UPDATE derive_line SET behind = $4
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }
}

fn generation_params(chain_id: u64, line: &StoredLine) -> Stored<Vec<Value>> {
    Ok(params![chain_param(chain_id)?, line.processor.as_str(), line.generation])
}

fn behind_text(hit: &Replacement, no_room: Option<&str>) -> String {
    let (seq, first, last, reason) = (hit.seq, hit.blocks.start, hit.blocks.end - 1, &hit.reason);
    let now = match no_room {
        None => "the tables are being derived again".to_owned(),
        Some(why) => format!("the tables cannot be derived again yet: {why}"),
    };
    format!("blocks {first} to {last} were replaced (replacement {seq}: {reason}); {now}")
}
