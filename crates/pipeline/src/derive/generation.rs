//! `Generation`: one generation of a processor's tables, on one chain.
//!
//! ```text
//!   (none) ──▶ serving          the first generation of a processor serves while it is filled
//!   serving ── new version, or rederive ──▶ serving + building ── all derived ──▶ retired (dropped) + serving
//! ```
//!
//! Every generation has its own tables and coverage, so a new one is built beside the serving one and replaces it in
//! one transaction.
//!
//! Guarantees: none; the records belong to [`super::store`]. Leaves to others: the contents of the tables.

use std::sync::Arc;

use alloy_primitives::B256;
use finalized_log_index::ReplacementPosition;
use logmill_work::Scope;
use serde::{Deserialize, Serialize};

use super::processor::Processor;
use super::schema::{self, physical, tip_of};
use super::table::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GenerationState {
    /// Invisible to readers: it is filled beside the serving one.
    Building,
    /// Visible to readers.
    Serving,
}

impl GenerationState {
    pub(crate) fn stored(self) -> i64 {
        match self {
            Self::Building => 0,
            Self::Serving => 1,
        }
    }

    pub(crate) fn of_stored(stored: i64) -> Option<Self> {
        match stored {
            0 => Some(Self::Building),
            1 => Some(Self::Serving),
            _ => None,
        }
    }
}

/// One generation of a processor's tables.
#[derive(Clone, Debug)]
pub struct Generation {
    pub chain_id: u64,
    pub processor: Arc<dyn Processor>,
    /// A higher one replaces a lower one.
    pub number: u32,
    pub(crate) state: GenerationState,
    /// Position up to which it has applied replacements of stored blocks. Rows are accepted only while it stays the
    /// same.
    pub replacements: ReplacementPosition,
    /// Last recorded end of the replacement log. A generation that is behind takes rows of blocks stored since; if the
    /// log no longer has this position, those blocks do not belong to this index.
    pub seen: ReplacementPosition,
    /// Why it has not applied a later replacement, if known.
    pub behind: Option<String>,
}

impl Generation {
    /// The coverage scope of its rows.
    pub fn scope(&self) -> Scope {
        scope(self.chain_id, self.processor.name(), self.number)
    }

    /// Whether it takes rows of blocks that were read when the replacement log ended at `end`. Blocks read before a
    /// replacement that it has applied may be replaced ones. A generation that is being built waits until it has
    /// applied all replacements; a serving one goes on once it is recorded as behind.
    pub(crate) fn takes_blocks_after(&self, end: ReplacementPosition) -> bool {
        match self.state {
            GenerationState::Building => self.replacements.is_same(end),
            GenerationState::Serving => self.seen.is_same(end),
        }
    }

    /// Why its rows may come from blocks that no longer exist, or why it does not serve although it is complete.
    pub(crate) fn incomplete(&self, end: ReplacementPosition) -> Option<String> {
        let stale = stale(self.replacements, self.seen, end, self.behind.as_deref());
        stale.or_else(|| self.behind.clone().filter(|_| self.state == GenerationState::Building))
    }

    pub fn is_of(&self, processor: &str) -> bool {
        self.processor.name() == processor
    }

    /// The statements that create a table like one of the final tables, under another name.
    pub fn create_statements(&self, table: &Table, name: &str) -> Vec<String> {
        schema::create(table, name).into_iter().take(1).collect()
    }

    /// Name of the database table with the final rows.
    pub fn table(&self, table: &Table) -> String {
        physical(self.chain_id, self.number, table.name)
    }

    /// Name of the database table with the rows of blocks that are not final.
    pub fn tip_table(&self, table: &Table) -> String {
        tip_of(&self.table(table))
    }
}

pub(crate) fn scope(chain_id: u64, processor: &str, number: u32) -> Scope {
    Scope { chain_id, consumer: processor.to_owned(), version: number }
}

/// The blocks whose rows are in the tip tables of a generation: the branch that readers see, lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TipBlocks(pub Vec<(u64, B256)>);

impl TipBlocks {
    pub fn last(&self) -> Option<(u64, B256)> {
        self.0.last().copied()
    }

    pub fn contains(&self, number: u64, hash: B256) -> bool {
        self.0.contains(&(number, hash))
    }
}

/// Why tables that have applied the replacements up to `applied`, and recorded those up to `seen`, may contain rows of
/// blocks that no longer exist, if the log ends at `end`; none if they cannot. `noted` is the deriver's reason.
pub(crate) fn stale(
    applied: ReplacementPosition,
    seen: ReplacementPosition,
    end: ReplacementPosition,
    noted: Option<&str>,
) -> Option<String> {
    if applied.is_same(end) && seen.is_same(end) {
        return None;
    }
    let unnoted = || {
        match applied.seq < end.seq {
        true => {
            format!(
                "stored blocks were replaced (replacement {}), and the tables are not updated yet",
                end.seq
            )
        }
        false => "the stored blocks were restored from a backup or stored again, or were replaced a moment ago, and \
                  the tables are not updated yet"
            .to_owned(),
    }
    };
    Some(noted.map_or_else(unnoted, str::to_owned))
}
