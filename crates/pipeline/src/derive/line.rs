//! `Line`: one generation of a processor's tables, on one chain.
//!
//! ```text
//!   (none) ──▶ serving          the first generation of a processor serves while it is filled
//!   serving ── new version, or rederive ──▶ serving + building ── all derived ──▶ retired (dropped) + serving
//! ```
//!
//! Every generation has tables and coverage of its own, so a new one is built beside the one that serves and
//! takes its place in one transaction.
//!
//! Guarantees: none; the records are [`super::store`]'s. Leaves to others: what is in the tables.

use std::sync::Arc;

use alloy_primitives::B256;
use logmill_work::Scope;
use serde::{Deserialize, Serialize};

use super::processor::Processor;
use super::table::Table;

/// Whether readers see a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineState {
    /// Not yet: it is filled beside the one that serves.
    Building,
    /// They do.
    Serving,
}

impl LineState {
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
pub struct Line {
    /// Of which chain.
    pub chain_id: u64,
    /// The processor that fills it.
    pub processor: Arc<dyn Processor>,
    /// Its number; later ones replace earlier ones.
    pub generation: u32,
    /// Whether readers see it.
    pub state: LineState,
    /// The last replacement of stored blocks that it has applied. It takes rows only for as long as this holds.
    pub replacements: u64,
    /// Why it has not applied a later one, if that is known.
    pub behind: Option<String>,
}

impl Line {
    /// Whose coverage its rows have.
    pub fn scope(&self) -> Scope {
        scope(self.chain_id, self.processor.name(), self.generation)
    }

    /// Whether it takes rows of blocks that were read after replacement `seq`. Blocks that were read before a
    /// replacement which it has applied may be dead ones. A generation that is built waits until it has applied all; one
    /// that serves goes on, as it says that it is behind.
    pub(crate) fn takes_blocks_after(&self, seq: u64) -> bool {
        match self.state {
            LineState::Building => self.replacements == seq,
            LineState::Serving => self.replacements <= seq,
        }
    }

    /// Whether a processor of this name fills it.
    pub fn is_of(&self, processor: &str) -> bool {
        self.processor.name() == processor
    }

    /// The statements that make a table like one of the final tables, under another name.
    pub fn create_statements(&self, table: &Table, name: &str) -> Vec<String> {
        super::schema::create(table, name).into_iter().take(1).collect()
    }

    /// Where the final rows of a table are.
    pub fn table(&self, table: &Table) -> String {
        physical(self.chain_id, self.generation, table.name)
    }

    /// Where the rows of blocks that are not final yet are.
    pub fn tip_table(&self, table: &Table) -> String {
        tip_of(&self.table(table))
    }
}

pub(crate) fn scope(chain_id: u64, processor: &str, generation: u32) -> Scope {
    Scope { chain_id, consumer: processor.to_owned(), version: generation }
}

/// The name of the table that holds a generation's final rows.
pub(crate) fn physical(chain_id: u64, generation: u32, table: &str) -> String {
    format!("c{chain_id}_g{generation}_{table}")
}

/// The name of the table that holds the rows of blocks that are not final.
pub(crate) fn tip_of(physical: &str) -> String {
    format!("{physical}_tip")
}

/// The blocks whose rows are in the tip tables of a line: the branch that its readers see, lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TipBlocks(pub Vec<(u64, B256)>);

impl TipBlocks {
    /// The highest.
    pub fn last(&self) -> Option<(u64, B256)> {
        self.0.last().copied()
    }

    /// Whether it has this block.
    pub fn contains(&self, number: u64, hash: B256) -> bool {
        self.0.contains(&(number, hash))
    }
}
