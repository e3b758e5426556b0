//! Usage of chains: recorded once it is final, corrected when blocks are replaced, with the time up to which it is
//! complete.
//!
//! - [`usage`]: usage of a block, and its ids; `ledger`: what was recorded of which block.
//! - `plan`: what to record and cancel; `reconcile`: executes a plan in one transaction.
//! - [`relay`]: the protocol, one step at a time, over a [`source`]; `state`: its stored state.
//!
//! Blocks are recorded once they are final, which takes longer than any grace, and a chain that is catching up brings
//! usage of years ago. So the relay of a chain reports up to which time its usage is complete. While replaced blocks
//! are not yet corrected, usage from the first of them on is pending.
//!
//! Guarantees: a period does not become final before the usage of all chains behind its event types is complete up to
//! its end and none of it is pending, or the configured wait has passed. Leaves to others: which logs are usage.

use std::collections::BTreeMap;

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, params};
use logmill_work::IntervalSet;

use crate::Meter;
use crate::error::Result;
use crate::store::chain_state::{self, sql_int};

pub(crate) mod ledger;
mod plan;
pub(crate) mod reconcile;
pub mod relay;
pub mod source;
mod state;
pub mod usage;

pub use crate::store::chain_state::ChainState;
pub(crate) use state::forget_usage;
pub use state::unapplied;

/// Recorded usage of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedCoverage {
    pub state: ChainState,
    /// Blocks that were compared with the ledger, by generation of derived usage.
    pub generations: BTreeMap<u32, IntervalSet>,
    /// Blocks whose usage is recorded, from any generation.
    pub all: IntervalSet,
}

/// One correction of a chain's usage, for all blocks that were replaced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainCorrection {
    pub chain: u64,
    /// Number of the replacement of stored blocks.
    pub seq: u64,
    pub first_block: u64,
    /// Inclusive.
    pub last_block: u64,
    pub reason: String,
    /// Blocks whose usage changed.
    pub blocks: u64,
    /// Cancelled events.
    pub cancelled: u64,
    /// Events recorded in their place.
    pub recorded: u64,
    pub begun: Timestamp,
    /// `None` while it is in progress.
    pub done: Option<Timestamp>,
}

/// Chains whose usage is not corrected yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingCorrections {
    /// For each chain, the time from which its usage may change.
    from: BTreeMap<u64, Timestamp>,
    /// The chains of each event type; an empty list stands for all chains.
    chains: BTreeMap<String, Vec<u64>>,
}

impl PendingCorrections {
    /// Whether figures of these event types up to `end` may still change.
    pub fn concern(&self, event_types: &[String], end: Timestamp) -> bool {
        let chains = event_types.iter().filter_map(|name| self.chains.get(name));
        chains.into_iter().any(|chains| {
            let is_of = |chain: &u64| chains.is_empty() || chains.contains(chain);
            self.from.iter().any(|(chain, from)| is_of(chain) && end > *from)
        })
    }
}

impl Meter {
    /// Records that all usage of a chain before a moment is recorded; time zero means that nothing is complete yet. The
    /// moment only rises, except from `COMPLETE`, because such a chain may be followed again.
    pub async fn chain_is_complete(&self, chain_id: u64, before: Timestamp) -> Result<()> {
        chain_state::store_complete(&self.sql, chain_id, before).await
    }

    pub async fn recorded_coverage(&self, chain: u64) -> Result<RecordedCoverage> {
        let reading = self.sql.reading();
        let state = ChainState::read(&reading, chain).await?;
        let text = "SELECT consumer, version, done FROM coverage
                    WHERE chain_id = $1 AND consumer IN ($2, $3)";
        let params = params![sql_int(chain), state::CONSUMER, state::EARLIER_CONSUMER];
        let mut recorded = RecordedCoverage { state, ..RecordedCoverage::default() };
        for row in &reading.execute(text, params).await?.rows {
            let done = IntervalSet::decode(&row.blob(2)?)?;
            recorded.all.extend(&done);
            if row.text(0)? == state::CONSUMER {
                let generation = u32::try_from(row.count(1)?).unwrap_or(u32::MAX);
                recorded.generations.insert(generation, done);
            }
        }
        Ok(recorded)
    }

    /// The newest corrections of usage of chains, newest first.
    pub async fn chain_corrections(&self, most: u32) -> Result<Vec<ChainCorrection>> {
        let text =
            "SELECT chain, seq, first_block, last_block, reason, blocks, cancelled, recorded,
                        begun_ms, done_ms
                    FROM meter_chain_correction ORDER BY begun_ms DESC, chain, log DESC, seq DESC
                    LIMIT $1";
        let found = self.sql.query(text, params![most]).await?;
        let corrections = found.rows.iter().map(|row| {
            Ok(ChainCorrection {
                chain: row.count(0)?,
                seq: row.count(1)?,
                first_block: row.count(2)?,
                last_block: row.count(3)?,
                reason: row.text(4)?.to_owned(),
                blocks: row.count(5)?,
                cancelled: row.count(6)?,
                recorded: row.count(7)?,
                begun: row.time(8)?,
                done: row.opt_int(9)?.map(Timestamp),
            })
        });
        corrections.collect()
    }

    /// Usage that awaits correction because its blocks were replaced.
    pub async fn pending_corrections(&self) -> Result<PendingCorrections> {
        if self.settings.chain_types.is_empty() {
            return Ok(PendingCorrections::default());
        }
        let pending = chain_state::pending_chains(&self.sql).await?;
        let from: BTreeMap<u64, Timestamp> =
            pending.into_iter().map(|pending| (pending.chain, pending.from)).collect();
        let chains = match from.is_empty() {
            true => BTreeMap::new(),
            false => self.settings.chain_types.clone(),
        };
        Ok(PendingCorrections { from, chains })
    }
}
