//! Usage of one chain as the meter's relay reads it: derived rows, stored blocks, and what was replaced.
//!
//! Guarantees: rows are of the generation that is asked for, whatever serves by then; nothing is read of blocks that
//! this process has not followed yet. Leaves to others: recording and correcting ([`logmill_meter::chains`]), what is
//! usage ([`logmill_pipeline::processors::usage`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use finalized_log_index::LogIndex;
use logmill_io::sql::Row;
use logmill_io::{Timestamp, params};
use logmill_meter::chains::source::{BlockReplacement, SourceState, UsageSource};
use logmill_meter::chains::usage::{BlockHash, LogUsage, RuleVersion, UsageBlock, UsageId};
use logmill_meter::event::{Event, Incoming, Sender};
use logmill_meter::{Error, Meter, Result};
use logmill_pipeline::Chain;
use logmill_pipeline::derive::{Reader, Standing};
use logmill_pipeline::ingest::{Progress, ProgressReport};
use logmill_pipeline::processors::usage::{USAGE_EVENTS, UsageWorker};
use logmill_work::{Heights, IntervalSet};
use serde_json::json;

/// The processor that makes the rows.
const PROCESSOR: &str = "usage_worker";
/// How far behind the head a chain may be and still be called caught up.
const CAUGHT_UP_WITHIN: u64 = 2;
/// The most replacements that are read at a time.
const REPLACEMENTS_MAX: usize = 10_000;

/// The blocks that usage is of.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) chain: Chain,
    /// How far ingest is; none if no more blocks are to come.
    pub(crate) progress: Option<Arc<Progress>>,
    /// The lowest one that is to come; the lowest that is there if none is named.
    pub(crate) lowest: Option<u64>,
}

/// Usage of one chain.
#[derive(Clone, Debug)]
pub(crate) struct ChainUsage {
    pub(crate) reader: Reader,
    pub(crate) blocks: Blocks,
    pub(crate) meter: Meter,
    pub(crate) rules: Vec<RuleVersion>,
}

/// Which rows of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Final,
    Tip,
}

/// A row of usage, with its place.
#[derive(Clone, Debug)]
pub(crate) struct UsageRow {
    pub(crate) height: u64,
    pub(crate) hash: BlockHash,
    pub(crate) usage: LogUsage,
}

impl ChainUsage {
    pub(crate) fn new(reader: Reader, blocks: Blocks, meter: Meter, worker: &UsageWorker) -> Self {
        let versions = worker.rule_versions().into_iter();
        let rules = versions.map(|(name, definition)| RuleVersion { name, definition }).collect();
        Self { reader, blocks, meter, rules }
    }

    /// How far the serving generation of rows is; none if there is none.
    pub(crate) async fn standing(&self) -> Result<Option<Standing>> {
        let standings = self.reader.standings(&[PROCESSOR]).await.map_err(unavailable)?;
        Ok(standings.into_iter().next())
    }

    /// How far ingest is; none if no more blocks are to come.
    pub(crate) fn report(&self) -> Option<ProgressReport> {
        self.blocks.progress.as_ref().map(|progress| progress.report())
    }

    /// The lowest block that is to be stored.
    pub(crate) fn lowest(&self) -> Option<u64> {
        let pruned_below = self.blocks.chain.index().pruned_below();
        self.blocks.lowest.map(|lowest| lowest.max(pruned_below))
    }

    /// Rows of some blocks, at most so many, in order.
    pub(crate) async fn rows(
        &self,
        generation: u32,
        part: Part,
        range: &Heights,
        limit: Option<usize>,
    ) -> Result<Vec<UsageRow>> {
        let limit = limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
        let text =
            |names: &dyn Fn(&'static logmill_pipeline::derive::Table) -> (String, String)| {
                let (of_final, of_tip) = names(&USAGE_EVENTS);
                let table = if part == Part::Final { of_final } else { of_tip };
                format!(
                    "SELECT block_height, block_hash, event_index, rule, timestamp, event_type,
                     customer, amount, metadata
                 FROM {table} WHERE block_height >= $1 AND block_height < $2
                 ORDER BY block_height, event_index, rule_index{limit}"
                )
            };
        let height = |height: u64| i64::try_from(height).unwrap_or(i64::MAX);
        let params = params![height(range.start), height(range.end)];
        let found = self.reader.query_generation(generation, text, params).await;
        found.map_err(unavailable)?.rows.iter().map(|row| self.row(row)).collect()
    }

    /// A row as the meter takes it: as if it had been sent.
    fn row(&self, row: &Row) -> Result<UsageRow> {
        let hash = BlockHash::try_from(&*row.blob(1)?).map_err(|_| {
            Error::unavailable("the hash of a block of usage does not have 32 bytes")
        })?;
        let (log, rule) = (row.count(2)?, row.text(3)?.to_owned());
        let usage = RowOfUsage {
            time: Timestamp(row.int(4)?.saturating_mul(1_000)),
            event_type: row.text(5)?,
            customer: row.text(6)?,
            amount: row.text(7)?,
            metadata: row.text(8)?,
        };
        let chain = self.reader.chain_id();
        let id = UsageId { chain, hash, log, rule: rule.clone(), revision: 1 };
        let event = usage.event(&self.meter, &id)?;
        Ok(UsageRow { height: row.count(0)?, hash, usage: LogUsage { log, rule, event } })
    }
}

/// What a rule says of a log.
pub(crate) struct RowOfUsage<'a> {
    pub(crate) time: Timestamp,
    pub(crate) event_type: &'a str,
    pub(crate) customer: &'a str,
    pub(crate) amount: &'a str,
    pub(crate) metadata: &'a str,
}

impl RowOfUsage<'_> {
    /// The event that is recorded for it.
    pub(crate) fn event(&self, meter: &Meter, id: &UsageId) -> Result<Event> {
        let metadata: serde_json::Value = serde_json::from_str(self.metadata)
            .map_err(|error| Error::invalid(format!("metadata of usage: {error}")))?;
        let sent = json!({
            "eventType": self.event_type,
            "customerId": self.customer,
            "value": self.amount,
            "metadata": metadata,
            "id": id.to_string(),
            "source": UsageId::source(id.chain),
            "timestamp": self.time.millis().to_string(),
        });
        let text = sent.to_string();
        let incoming: Incoming<'_> = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("usage of a chain: {error}")))?;
        // However old a block is, its usage counts.
        let entropy = &**meter.sql().entropy();
        let sender = Sender { source: "chain", now: self.time, entropy };
        incoming
            .check(meter.settings(), None, &sender)
            .map_err(|wrongs| Error::invalid(format!("{sent}: {}", wrongs.join("; "))))
    }
}

#[async_trait]
impl UsageSource for ChainUsage {
    fn chain_id(&self) -> u64 {
        self.reader.chain_id()
    }

    fn rules(&self) -> Vec<RuleVersion> {
        self.rules.clone()
    }

    async fn state(&self) -> Result<Option<SourceState>> {
        let Some(standing) = self.standing().await? else { return Ok(None) };
        let index = self.blocks.chain.index();
        let end = |index: &LogIndex| index.coverage().last().map_or(0, |range| range.end);
        let derived_end = standing.done.ranges().next_back().map_or(0, |range| range.end);
        if index.last_replacement() < standing.replacements_applied || end(index) < derived_end {
            // Another process has written what this one has not read yet.
            self.blocks.chain.follow().await.map_err(unavailable)?;
        }
        // First: what is read of blocks after it may be newer, never older.
        let last_replacement = index.last_replacement();
        if last_replacement < standing.replacements_applied {
            return Err(Error::unavailable("the derived tables are ahead of the stored blocks"));
        }
        let report = self.report();
        // Blocks that this process has not read yet cannot be compared with what is recorded of them.
        let mut derived = standing.done;
        derived.remove(&(end(index)..u64::MAX));
        Ok(Some(SourceState {
            generation: standing.generation,
            derived,
            derived_replacement: standing.replacements_applied,
            last_replacement,
            stored: index.coverage().into_iter().collect(),
            caught_up: report.as_ref().is_some_and(is_caught_up),
            follows: report.is_some(),
            lowest: self.lowest(),
        }))
    }

    async fn replacements_after(&self, seq: u64) -> Result<Vec<BlockReplacement>> {
        let index = self.blocks.chain.index();
        let mut all: Vec<BlockReplacement> = Vec::new();
        loop {
            let after = all.last().map_or(seq, |last| last.seq);
            let page = index.replacements_after(after).await;
            let page = page.map_err(|error| unavailable(error.into()))?;
            if page.is_empty() || all.len() >= REPLACEMENTS_MAX {
                return Ok(all);
            }
            all.extend(page.into_iter().map(|one| BlockReplacement {
                seq: one.seq,
                blocks: one.blocks,
                reason: one.reason,
            }));
        }
    }

    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>> {
        let mut blocks: BTreeMap<u64, UsageBlock> = BTreeMap::new();
        for row in self.rows(generation, Part::Final, range, None).await? {
            let UsageRow { height, hash, usage } = row;
            let block = blocks.entry(height);
            block
                .or_insert_with(|| UsageBlock { height, hash, usage: Vec::new() })
                .usage
                .push(usage);
        }
        Ok(blocks.into_values().collect())
    }

    async fn block_hash(&self, height: u64) -> Result<Option<BlockHash>> {
        let view = self.blocks.chain.view().await.map_err(unavailable)?;
        let block = view.block_ref(height).await.map_err(unavailable)?;
        Ok(block.map(|block| block.hash.0))
    }

    async fn block_time(&self, height: u64) -> Result<Option<Timestamp>> {
        let view = self.blocks.chain.view().await.map_err(unavailable)?;
        let block = view.block_ref(height).await.map_err(unavailable)?;
        let millis =
            |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
        Ok(block.map(|block| Timestamp(millis(block.timestamp))))
    }
}

/// Whether the blocks that are missing up to the head are few.
fn is_caught_up(report: &ProgressReport) -> bool {
    report.stalled.is_none() && report.behind.is_some_and(|behind| behind <= CAUGHT_UP_WITHIN)
}

/// The heights of some ranges.
pub(crate) fn heights(ranges: Vec<std::ops::Range<u64>>) -> IntervalSet {
    ranges.into_iter().collect()
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn unavailable(error: logmill_pipeline::Error) -> Error {
    Error::unavailable(format!("usage of a chain: {}", logmill_io::chain(&error)))
}
