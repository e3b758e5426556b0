//! Where the usage of a chain is read, and what its reader must know of the chain.
//!
//! Guarantees: none of its own; each function says what it promises. Leaves to others: implementing it over stored
//! blocks and derived rows.

use async_trait::async_trait;
use logmill_io::Timestamp;
use logmill_work::{Heights, IntervalSet};

use super::usage::{BlockHash, RuleVersion, UsageBlock};
use crate::error::Result;

/// Stored final blocks that were removed, or whose content changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReplacement {
    /// Number of the replacement, contiguous from 1.
    pub seq: u64,
    /// The blocks.
    pub blocks: Heights,
    /// Why, for people.
    pub reason: String,
}

/// How far a chain is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    /// The generation of derived usage that serves.
    pub generation: u32,
    /// Final blocks whose usage is derived.
    pub derived: IntervalSet,
    /// The newest replacement that these rows reflect.
    pub derived_replacement: u64,
    /// The newest replacement of stored blocks.
    pub last_replacement: u64,
    /// Final blocks that are stored.
    pub stored: IntervalSet,
    /// Whether blocks above the stored ones, if there are any, are few and new.
    pub caught_up: bool,
    /// Whether more blocks are to come.
    pub follows: bool,
    /// The lowest block that will ever be stored; the lowest that is derived if none is named.
    pub lowest: Option<u64>,
}

/// Where the usage of a chain is read.
#[async_trait]
pub trait UsageSource: Send + Sync {
    /// The chain.
    fn chain_id(&self) -> u64;
    /// The rules that make usage of its logs.
    fn rules(&self) -> Vec<RuleVersion>;
    /// How far it is; none if nothing is derived yet.
    async fn state(&self) -> Result<Option<SourceState>>;
    /// Replacements after one, lowest first; perhaps only the first of them.
    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>>;
    /// The blocks of a range that have usage, as a generation of derived rows has it.
    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>>;
    /// The hash of a stored block.
    async fn block_hash(&self, height: u64) -> Result<Option<BlockHash>>;
    /// The time of a stored block.
    async fn block_time(&self, height: u64) -> Result<Option<Timestamp>>;
}
