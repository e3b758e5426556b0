//! Usage of chains: recorded once it is final, corrected when blocks are replaced, and until when it is known.
//!
//! - [`usage`]: usage of a block, and its ids; `ledger`: what was recorded of which block.
//! - `plan`: what to record and to cancel; [`reconcile`]: doing it, in one transaction.
//! - [`relay`]: the protocol, one step at a time, over a [`source`]; `state`: what it notes.
//!
//! Blocks are recorded once they are final, which takes longer than any grace, and a chain that is being caught up with
//! brings usage of years ago. So whoever records usage of a chain says until when he has all of it. While blocks that
//! were replaced are not corrected yet, usage from the first of them on is pending.
//!
//! Guarantees: a period is not called final before usage of the chains that its types come from is complete up to its
//! end and none of it is pending, or was waited for as long as is configured. Leaves to others: what is usage of which
//! chain.

use std::collections::BTreeMap;

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, millis, params};
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

/// What is recorded of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainRecorded {
    /// Which replacements are applied.
    pub state: ChainState,
    /// Blocks that were compared with the ledger, by generation of derived usage.
    pub generations: BTreeMap<u32, IntervalSet>,
    /// Blocks whose usage is recorded, whichever generation it came from.
    pub all: IntervalSet,
}

/// One correction of a chain's usage, of all blocks that were replaced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainCorrection {
    /// The chain.
    pub chain: u64,
    /// The replacement of stored blocks.
    pub seq: u64,
    /// The first replaced block.
    pub first_block: u64,
    /// The last replaced block.
    pub last_block: u64,
    /// Why.
    pub reason: String,
    /// Blocks whose usage changed.
    pub blocks: u64,
    /// Events that were cancelled.
    pub cancelled: u64,
    /// Events that were recorded in their place.
    pub recorded: u64,
    /// When it began.
    pub begun: Timestamp,
    /// When it was complete; none if it is under way.
    pub done: Option<Timestamp>,
}

impl Meter {
    /// Says that all usage of a chain before a moment is recorded. Nothing yet is said with the beginning of time.
    pub async fn chain_is_complete(&self, chain_id: u64, before: Timestamp) -> Result<()> {
        let chain = i64::try_from(chain_id).unwrap_or(i64::MAX);
        let text = "INSERT INTO meter_chain (chain, complete_ms) VALUES ($1, $2)
                    ON CONFLICT (chain) DO UPDATE SET complete_ms = excluded.complete_ms
                        WHERE meter_chain.complete_ms < excluded.complete_ms";
        self.sql.write(|tx| async move { tx.execute(text, params![chain, before]).await }).await?;
        Ok(())
    }

    /// What is recorded of a chain.
    pub async fn chain_recorded(&self, chain: u64) -> Result<ChainRecorded> {
        let reading = self.sql.reading();
        let state = ChainState::read(&reading, chain).await?;
        let text = "SELECT consumer, version, done FROM coverage
                    WHERE chain_id = $1 AND consumer IN ($2, $3)";
        let params = params![ledger::stored(chain), relay::CONSUMER, relay::EARLIER_CONSUMER];
        let mut recorded = ChainRecorded { state, ..ChainRecorded::default() };
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
                    FROM meter_chain_correction ORDER BY begun_ms DESC, chain, seq DESC LIMIT $1";
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

    /// The moment before which a period with usage of these types must have ended to be final.
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

    /// The moment before which no usage of these chains is about to be corrected. A correction that takes longer than
    /// chains are waited for is not waited for any more.
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

    /// What ended before this has been waited for long enough; none if there is no bound.
    fn waited_before(&self) -> Option<Timestamp> {
        let now = self.clock().now().millis();
        self.settings.chain_wait.map(|wait| Timestamp(now.saturating_sub(millis(wait))))
    }

    /// The chains that each of these types comes from; those that come from none are left out.
    fn chains_of(&self, types: &[String]) -> Vec<&Vec<u64>> {
        let sources = &self.settings.chain_types;
        types.iter().filter_map(|name| sources.get(name)).collect()
    }

    /// The same as [`Meter::final_before`] for a customer: for all types that he has usage of.
    pub(crate) async fn final_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(self.finished_before());
        }
        self.final_before(&self.types_of(customer).await?).await
    }

    /// The moment before which no usage of a customer is about to be corrected.
    pub(crate) async fn corrected_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(Timestamp(i64::MAX));
        }
        let types = self.types_of(customer).await?;
        self.corrected_before(&self.chains_of(&types)).await
    }

    async fn types_of(&self, customer: i64) -> Result<Vec<String>> {
        let text = "SELECT DISTINCT event_type FROM meter_series WHERE customer = $1";
        let found = self.sql.query(text, params![customer]).await?;
        let types: logmill_io::Result<Vec<String>> =
            found.rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect();
        Ok(types?)
    }
}
