//! Usage of chains: recorded once it is final, corrected when blocks are replaced, with the time up to which it is
//! complete.
//!
//! - [`usage`]: usage of a block, and its ids; `ledger`: what was recorded of which block.
//! - `plan`: what to record and cancel; [`reconcile`]: executes a plan in one transaction.
//! - [`relay`]: the protocol, one step at a time, over a [`source`]; `state`: its stored state.
//!
//! Blocks are recorded once they are final, which takes longer than any grace, and a chain that is catching up brings
//! usage of years ago. So the relay of a chain reports up to which time its usage is complete. While replaced blocks
//! are not yet corrected, usage from the first of them on is pending.
//!
//! Guarantees: a period does not become final before the usage of all chains behind its event types is complete up to
//! its end and none of it is pending, or the configured wait has passed. Leaves to others: which logs are usage.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, millis, params};
use logmill_work::IntervalSet;

use crate::error::Result;
use crate::meter::Meter;

pub(crate) mod ledger;
mod plan;
pub mod reconcile;
pub mod relay;
pub mod source;
mod state;
pub mod usage;

pub use ledger::ChainState;
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
    /// Completeness of a chain to which no blocks will ever be added.
    pub const COMPLETE: Timestamp = Timestamp(i64::MAX);

    /// Records that all usage of a chain before a moment is recorded; time zero means that nothing is complete yet. The
    /// moment only rises, except from [`Meter::COMPLETE`], because such a chain may be followed again.
    pub async fn chain_is_complete(&self, chain_id: u64, before: Timestamp) -> Result<()> {
        let chain = i64::try_from(chain_id).unwrap_or(i64::MAX);
        let text = "INSERT INTO meter_chain (chain, complete_ms) VALUES ($1, $2)
                    ON CONFLICT (chain) DO UPDATE SET complete_ms = excluded.complete_ms
                        WHERE meter_chain.complete_ms < excluded.complete_ms
                           OR meter_chain.complete_ms = $3";
        let complete = Self::COMPLETE;
        let write =
            |tx: Tx| async move { tx.execute(text, params![chain, before, complete]).await };
        self.sql.write(write).await?;
        Ok(())
    }

    pub async fn recorded_coverage(&self, chain: u64) -> Result<RecordedCoverage> {
        let reading = self.sql.reading();
        let state = ChainState::read(&reading, chain).await?;
        let text = "SELECT consumer, version, done FROM coverage
                    WHERE chain_id = $1 AND consumer IN ($2, $3)";
        let params = params![ledger::sql_int(chain), relay::CONSUMER, relay::EARLIER_CONSUMER];
        let mut recorded = RecordedCoverage { state, ..RecordedCoverage::default() };
        for row in &reading.execute(text, params).await?.rows {
            let done = IntervalSet::decode(&row.blob(2)?)?;
            recorded.all.extend(&done);
            if row.text(0)? == relay::CONSUMER {
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

    /// A period with usage of these types is final if it ended before this moment.
    pub(crate) async fn final_before(&self, types: &[String]) -> Result<Timestamp> {
        let ended = self.finished_before();
        let sources = self.chains_of(types);
        if sources.is_empty() {
            return Ok(ended);
        }
        let text = "SELECT chain, complete_ms FROM meter_chain";
        let mut complete = ended;
        for row in &self.sql.query(text, params![]).await?.rows {
            let chain = u64::try_from(row.int(0)?).unwrap_or(u64::MAX);
            if sources.iter().any(|chains| chains.is_empty() || chains.contains(&chain)) {
                complete = complete.min(Timestamp(row.int(1)?));
            }
        }
        let waited = self.waited_before().unwrap_or(Timestamp(i64::MIN));
        let corrected = self.corrected_before(&sources).await?;
        Ok(ended.min(complete.max(waited)).min(corrected))
    }

    /// The moment before which no usage of these chains awaits a correction. A correction that is pending for longer
    /// than `chain_wait` no longer counts.
    async fn corrected_before(&self, sources: &[&Vec<u64>]) -> Result<Timestamp> {
        let text = "SELECT chain, pending_ms, pending_since_ms FROM meter_chain_state
                    WHERE pending_ms IS NOT NULL";
        let mut corrected = Timestamp(i64::MAX);
        for row in &self.sql.query(text, params![]).await?.rows {
            let chain = row.count(0)?;
            let since = Timestamp(row.opt_int(2)?.unwrap_or(i64::MAX));
            let is_of = sources.iter().any(|chains| chains.is_empty() || chains.contains(&chain));
            if is_of && self.waited_before().is_none_or(|waited| since > waited) {
                corrected = corrected.min(row.time(1)?);
            }
        }
        Ok(corrected)
    }

    /// Usage that awaits correction because its blocks were replaced.
    pub async fn pending_corrections(&self) -> Result<PendingCorrections> {
        if self.settings.chain_types.is_empty() {
            return Ok(PendingCorrections::default());
        }
        let text = "SELECT chain, pending_ms FROM meter_chain_state WHERE pending_ms IS NOT NULL";
        let found = self.sql.query(text, params![]).await?;
        let from = found.rows.iter().map(|row| Ok((row.count(0)?, row.time(1)?)));
        let from: BTreeMap<u64, Timestamp> = from.collect::<Result<_>>()?;
        let chains = match from.is_empty() {
            true => BTreeMap::new(),
            false => self.settings.chain_types.clone(),
        };
        Ok(PendingCorrections { from, chains })
    }

    /// Periods that ended before this moment have waited long enough for chains; `None` if the wait is unbounded.
    fn waited_before(&self) -> Option<Timestamp> {
        let now = self.clock().now().millis();
        self.settings.chain_wait.map(|wait| Timestamp(now.saturating_sub(millis(wait))))
    }

    /// The chains of each of these types; types that come from no chain are left out.
    fn chains_of(&self, types: &[String]) -> Vec<&Vec<u64>> {
        let sources = &self.settings.chain_types;
        types.iter().filter_map(|name| sources.get(name)).collect()
    }

    /// Like [`Meter::final_before`], for all types that the customer has usage of.
    pub(crate) async fn final_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(self.finished_before());
        }
        self.final_before(&self.types_of(customer).await?).await
    }

    /// The moment before which no usage of a customer awaits a correction.
    pub(crate) async fn corrected_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(Timestamp(i64::MAX));
        }
        let types = self.types_of(customer).await?;
        self.corrected_before(&self.chains_of(&types)).await
    }

    async fn types_of(&self, customer: i64) -> Result<Vec<String>> {
        let series = self.series_of(customer).await?;
        let types: BTreeSet<String> =
            series.into_iter().map(|(_, event_type)| event_type).collect();
        Ok(types.into_iter().collect())
    }
}
