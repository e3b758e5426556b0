//! Interface through which the relay reads the usage of a chain.
//!
//! Guarantees: none of its own; each function states its contract. Leaves to others: implementing it over stored blocks
//! and derived rows.

use async_trait::async_trait;
use logmill_io::Timestamp;
use logmill_work::{Heights, IntervalSet};

use super::usage::{BlockHash, RuleVersion, UsageBlock};
use crate::error::Result;

/// Stored final blocks that were removed, or whose content changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReplacement {
    /// Contiguous, from 1.
    pub seq: u64,
    pub blocks: Heights,
    /// For operators.
    pub reason: String,
}

/// Progress of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    /// The generation of derived usage that serves.
    pub generation: u32,
    /// Final blocks whose usage is derived.
    pub derived: IntervalSet,
    /// The newest replacement that these rows reflect; `None` if the log of replacements does not contain it, because
    /// the stored blocks were restored or stored again.
    pub derived_replacement: Option<u64>,
    /// The newest replacement of stored blocks.
    pub last_replacement: u64,
    /// Final blocks that are stored.
    pub stored: IntervalSet,
    /// Whether blocks above the stored ones, if any, are few and new.
    pub caught_up: bool,
    /// Whether this process has nodes that deliver more blocks.
    pub follows: bool,
    /// Whether an operator has declared that no process will ever add a block.
    pub is_archived: bool,
    /// The lowest block that will ever be stored; `None` if no lowest block is configured.
    pub lowest: Option<u64>,
}

/// Source of a chain's usage.
#[async_trait]
pub trait UsageSource: Send + Sync {
    fn chain_id(&self) -> u64;
    /// The rules that turn its logs into usage.
    fn rules(&self) -> Vec<RuleVersion>;
    /// `None` if nothing is derived yet.
    async fn state(&self) -> Result<Option<SourceState>>;
    /// Reads what other processes have stored since the last call.
    async fn follow(&self) -> Result<()> {
        Ok(())
    }
    /// Replacements after `seq`, lowest first; may return only the first of them.
    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>>;
    /// A number that distinguishes this log of replacements from others of the same length: of the replacement `seq`,
    /// or of the empty log if `seq` is 0. `None` if there is no such replacement; 0 while it is unknown.
    async fn replacement_mark(&self, seq: u64) -> Result<Option<u64>>;
    /// The blocks of a range that have usage, from one generation of derived rows.
    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>>;
    /// `None` if no block is stored there.
    async fn block_hash(&self, height: u64) -> Result<Option<BlockHash>>;
    /// `None` if no block is stored there.
    async fn block_time(&self, height: u64) -> Result<Option<Timestamp>>;
}
