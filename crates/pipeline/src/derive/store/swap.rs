//! Which generation of a processor serves: a complete one replaces the previous one, unless rows would be lost without
//! an operator's permission.
//!
//! | what would be lost | permitted by |
//! |---|---|
//! | rows of blocks that are no longer stored | `rederive --drop-unstored` |
//! | all rows of a table, because settings changed | `rederive --allow-empty`; or revert the settings |
//!
//! Guarantees: the change is one transaction; the reason why a complete generation does not serve is recorded, and
//! reported with answers of the generation that serves instead. Leaves to others: when a generation is complete.

use std::sync::Arc;

use finalized_log_index::ReplacementPosition;
use logmill_io::sql::Execute;
use logmill_io::{Fence, Tx, params};
use logmill_work::{Coverage, IntervalSet};

use super::generations::{StoredGeneration, chain_param, has_rows, lock, stored_generations};
use super::{Tables, hold};
use crate::derive::generation::{self, Generation, GenerationState};
use crate::derive::processor::Processor;
use crate::derive::schema;
use crate::error::Result;

/// Losses that an operator permits so that a new generation can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// Rows of blocks that are no longer stored.
    pub drops_unstored: bool,
    /// All rows of a table, because settings changed.
    pub allows_empty: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    Serves,
    /// It lacks blocks that can still be derived, or has changed meanwhile.
    Waits,
    /// It is complete, but rows would be lost without permission. The reason is for operators.
    WouldLose(String),
}

impl Tables {
    /// Begins a new generation beside the serving one, unless there is one. It serves once everything is derived, and
    /// only if nothing is lost but what `permit` allows.
    pub async fn rederive(
        &self,
        chain_id: u64,
        processor: &Arc<dyn Processor>,
        permit: Permit,
    ) -> Result<()> {
        let begun = self.sql.write(|tx| async move {
            lock(&tx).await?;
            self.ensure(&tx, chain_id, &**processor).await?;
            let mut stored = stored_generations(&tx, chain_id, Some(processor.name())).await?;
            let is_built =
                |generation: &StoredGeneration| generation.state == GenerationState::Building;
            let is_foreign = |generation: &StoredGeneration| {
                is_built(generation) && !generation.is_made_by(&**processor)
            };
            for generation in stored.extract_if(.., |generation| is_foreign(generation)) {
                self.drop_generation(&tx, chain_id, &generation).await?;
            }
            if !stored.iter().any(is_built) {
                let number =
                    stored.iter().map(|generation| generation.number).max().unwrap_or(0) + 1;
                let (state, nothing) = (GenerationState::Building, ReplacementPosition::default());
                self.create(&tx, chain_id, &**processor, number, state, nothing).await?;
            }
            self.permit_in(&tx, chain_id, processor.name(), permit).await
        });
        begun.await
    }

    /// Lets a generation that covers all stored blocks serve and drops the previous one, unless rows would be lost
    /// without permission. If blocks were replaced, the previous one may cover blocks above the stored ones that no
    /// longer exist; losing those is fine.
    pub async fn swap(
        &self,
        fence: Option<&Fence>,
        new: &Generation,
        stored_blocks: &IntervalSet,
    ) -> Result<SwapOutcome> {
        let swapped = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            lock(&tx).await?;
            let name = new.processor.name();
            let stored = stored_generations(&tx, new.chain_id, Some(name)).await?;
            let of_state = |state| stored.iter().find(|one: &&StoredGeneration| one.state == state);
            let building = of_state(GenerationState::Building);
            let is_same = |generation: &StoredGeneration| {
                generation.number == new.number && generation.replacements == new.replacements
            };
            let Some(building) = building.filter(|generation| is_same(generation)) else {
                return Ok(SwapOutcome::Waits);
            };
            if let Some(old) = of_state(GenerationState::Serving) {
                match self.cost(&tx, new, building, old, stored_blocks).await? {
                    SwapCost::None => {}
                    SwapCost::NotYet => return Ok(SwapOutcome::Waits),
                    SwapCost::Unstored(why) => {
                        self.note_waits(&tx, new, old, &why).await?;
                        return Ok(SwapOutcome::WouldLose(why));
                    }
                    SwapCost::Empty(why) => {
                        self.note_empties(&tx, new, &why).await?;
                        return Ok(SwapOutcome::WouldLose(why));
                    }
                }
                self.drop_generation(&tx, new.chain_id, old).await?;
            }
            let text = "UPDATE derive_line
                SET state = 1, behind = NULL, drops_unstored = 0, allows_empty = 0, empties = NULL, cleared = NULL
                WHERE chain_id = $1 AND processor = $2 AND generation = $3";
            let chain = chain_param(new.chain_id)?;
            tx.execute(text, params![chain, name, new.number]).await?;
            self.make_views(&tx, &*new.processor).await?;
            Ok(SwapOutcome::Serves)
        });
        swapped.await
    }

    async fn cost(
        &self,
        tx: &Tx,
        new: &Generation,
        building: &StoredGeneration,
        old: &StoredGeneration,
        stored_blocks: &IntervalSet,
    ) -> Result<SwapCost> {
        let name = new.processor.name();
        let covered = Coverage::read(tx, &new.scope()).await?.done;
        let scope = generation::scope(new.chain_id, name, old.number);
        let before = Coverage::read(tx, &scope).await?.done;
        let lost = LostBlocks::of(&before, &covered, stored_blocks);
        if lost.stored || (lost.above && !is_behind(old, new.replacements)) {
            return Ok(SwapCost::NotYet);
        }
        if !lost.unstored.is_empty() && !building.drops_unstored {
            return Ok(SwapCost::Unstored(unstored_text(&lost.unstored, name)));
        }
        if building.allows_empty || building.parameters == old.parameters {
            return Ok(SwapCost::None);
        }
        let emptied = find_emptied(tx, new, old).await?;
        Ok(match emptied.is_empty() {
            true => SwapCost::None,
            false => SwapCost::Empty(empty_text(&emptied, &*new.processor)),
        })
    }

    /// Permits losses to the generation of a processor that is being built, and clears the reason why it did not serve.
    pub(super) async fn permit_in(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &str,
        permit: Permit,
    ) -> Result<()> {
        if permit == Permit::default() {
            return Ok(());
        }
        let set =
            [(permit.drops_unstored, "drops_unstored"), (permit.allows_empty, "allows_empty")];
        for (_, column) in set.iter().filter(|(is_set, _)| *is_set) {
            let text = format!(
                "UPDATE derive_line SET {column} = 1, behind = NULL, empties = NULL
                WHERE chain_id = $1 AND processor = $2 AND state = 0"
            );
            tx.execute(&text, params![chain_param(chain_id)?, processor]).await?;
        }
        Ok(())
    }

    /// Permits losses to the generation of a processor that is being built, if there is one.
    pub async fn permit(&self, chain_id: u64, processor: &str, permit: Permit) -> Result<()> {
        let permitted = self.sql.write(|tx| async move {
            lock(&tx).await?;
            self.permit_in(&tx, chain_id, processor, permit).await
        });
        permitted.await
    }

    /// Records why a complete generation does not serve; also on the serving one, if that is behind.
    async fn note_waits(
        &self,
        tx: &Tx,
        new: &Generation,
        old: &StoredGeneration,
        why: &str,
    ) -> Result<()> {
        let text = "UPDATE derive_line SET behind = $4
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        let both = [new.number, old.number];
        let noted = if is_behind(old, new.replacements) { 2 } else { 1 };
        for number in both.into_iter().take(noted) {
            let (chain, name) = (chain_param(new.chain_id)?, new.processor.name());
            tx.execute(text, params![chain, name, number, why]).await?;
        }
        Ok(())
    }

    /// Records that a complete generation does not serve because it would leave a table empty.
    async fn note_empties(&self, tx: &Tx, new: &Generation, why: &str) -> Result<()> {
        let text = "UPDATE derive_line SET behind = $4, empties = $4
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        let (chain, name) = (chain_param(new.chain_id)?, new.processor.name());
        tx.execute(text, params![chain, name, new.number, why]).await?;
        Ok(())
    }
}

/// What would be lost by a swap.
enum SwapCost {
    /// Nothing, or only what is permitted.
    None,
    /// Blocks that can still be derived.
    NotYet,
    /// Rows of blocks that are no longer stored; the reason for operators.
    Unstored(String),
    /// All rows of a table; the reason for operators.
    Empty(String),
}

fn is_behind(old: &StoredGeneration, new: ReplacementPosition) -> bool {
    !old.replacements.is_same(new)
}

/// Tables that have rows in the serving generation and none in the new one.
async fn find_emptied(tx: &Tx, new: &Generation, old: &StoredGeneration) -> Result<Vec<String>> {
    let cleared: Vec<&str> = old.cleared.as_deref().unwrap_or_default().split(',').collect();
    let mut emptied = Vec::new();
    for name in old.table_names() {
        let Some(table) = new.processor.tables().iter().find(|table| table.name == name) else {
            continue;
        };
        let before = schema::physical(new.chain_id, old.number, &name);
        let had_rows = cleared.contains(&name.as_str()) || has_rows(tx, &before).await?;
        let has_rows =
            has_rows(tx, &new.table(table)).await? || has_rows(tx, &new.tip_table(table)).await?;
        if had_rows && !has_rows {
            emptied.push(name);
        }
    }
    Ok(emptied)
}

/// Blocks that the serving generation covers and a new one does not.
struct LostBlocks {
    /// Some of them are stored.
    stored: bool,
    /// Some of them are above all stored blocks.
    above: bool,
    /// Those below the end of the stored blocks that are not stored: pruned, or not fetched again yet. If nothing is
    /// stored, all of them: an empty index says nothing about the blocks of the chain.
    unstored: IntervalSet,
}

impl LostBlocks {
    fn of(before: &IntervalSet, covered: &IntervalSet, stored: &IntervalSet) -> Self {
        let end = stored.ranges().next_back().map_or(u64::MAX, |range| range.end);
        let lost: IntervalSet = before.ranges().flat_map(|range| covered.gaps(&range)).collect();
        let below = lost.overlap(&(0..end));
        Self {
            stored: lost.ranges().any(|range| !stored.overlap(&range).is_empty()),
            above: !lost.overlap(&(end..u64::MAX)).is_empty(),
            unstored: below.iter().flat_map(|range| stored.gaps(range)).collect(),
        }
    }
}

fn unstored_text(lost: &IntervalSet, processor: &str) -> String {
    let first = lost.ranges().next().map_or(0, |range| range.start);
    let last = lost.ranges().next_back().map_or(0, |range| range.end.saturating_sub(1));
    format!(
        "the tables hold rows of {} blocks between {first} and {last} that are no longer stored (pruned, or not \
         fetched again yet) and cannot be derived again; the rebuilt tables wait for these blocks. \
         To serve them without these blocks, run `logmill rederive {processor} --drop-unstored`",
        lost.total()
    )
}

fn empty_text(emptied: &[String], processor: &dyn Processor) -> String {
    let (name, emptied) = (processor.name(), emptied.join(" and "));
    format!(
        "the settings of {name} ({}) have changed, and with the new ones {emptied} would lose all rows. The tables \
         still serve what was derived with the previous settings, and take no new blocks. Revert the settings, or run \
         `logmill rederive {name} --allow-empty` (for a collector: `logmill collect --allow-empty`) to serve the \
         new tables",
        processor.parameter_settings()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> IntervalSet {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn rows_are_lost_where_no_stored_block_can_bring_them_back() {
        let before = set(&[(0, 100)]);
        let check = |covered: &[(u64, u64)], stored: &[(u64, u64)]| {
            let lost = LostBlocks::of(&before, &set(covered), &set(stored));
            (lost.stored, lost.above, lost.unstored.total())
        };
        assert_eq!(check(&[(0, 100)], &[(0, 100)]), (false, false, 0));
        assert_eq!(check(&[(0, 60)], &[(0, 100)]), (true, false, 0), "still to be derived");
        assert_eq!(check(&[(0, 60)], &[(0, 60)]), (false, true, 0), "the chain ends earlier");
        assert_eq!(check(&[(40, 100)], &[(40, 100)]), (false, false, 40), "pruned");
        assert_eq!(check(&[], &[]), (false, false, 100), "an empty index brings nothing back");
    }
}
