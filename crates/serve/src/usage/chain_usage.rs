//! Usage of one chain as the meter's relay reads it: derived rows, stored blocks, and replacements.
//!
//! Guarantees: rows are of the requested generation, even if another one serves by then; nothing is read of blocks that
//! this process has not followed yet. Leaves to others: recording and correcting ([`logmill_meter::chains`]), the
//! definition of usage ([`logmill_pipeline::processors::usage`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use finalized_log_index::{LogIndex, ReplacementPosition};
use logmill_io::sql::Row;
use logmill_io::{Timestamp, params};
use logmill_meter::chains::source::{BlockReplacement, SourceState, UsageSource};
use logmill_meter::chains::usage::{BlockHash, LogUsage, RuleVersion, UsageBlock, UsageId};
use logmill_meter::event::{Event, RawEvent, Sender};
use logmill_meter::{Error, Meter, Result};
use logmill_pipeline::Chain;
use logmill_pipeline::derive::{GenerationProgress, Reader};
use logmill_pipeline::ingest::{Progress, ProgressReport};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::usage::{USAGE_EVENTS, UsageWorker};
use logmill_work::{Heights, IntervalSet};
use serde_json::json;

/// Processor that derives the rows.
const PROCESSOR: &str = ProcessorName::Usage.as_str();
/// Maximum distance to the head at which a chain counts as caught up.
const CAUGHT_UP_WITHIN: u64 = 2;
/// Age of a node's last response after which its head is considered stale.
pub(super) const HEAD_STALE_AFTER_MS: u64 = 60_000;
/// Maximum number of replacements read at a time.
const REPLACEMENTS_MAX: usize = 10_000;

/// The blocks whose usage is relayed.
#[derive(Clone, Debug)]
pub struct Blocks {
    pub chain: Chain,
    /// Progress of this process's ingest; `None` if it ingests nothing.
    pub progress: Option<Arc<Progress>>,
    /// Whether another process may follow the chain.
    pub is_shared: bool,
    /// Lowest block expected; the lowest stored one if not set.
    pub lowest: Option<u64>,
    /// Whether the operator declared that no more blocks will ever come.
    pub is_archived: bool,
}

#[derive(Clone, Debug)]
pub struct ChainUsage {
    pub(crate) reader: Reader,
    pub(crate) blocks: Blocks,
    pub(crate) meter: Meter,
    pub(crate) rules: Vec<RuleVersion>,
}

/// Which rows of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowSet {
    Final,
    Tip,
}

/// A usage row with its block.
#[derive(Clone, Debug)]
pub(crate) struct UsageRow {
    pub(crate) height: u64,
    pub(crate) hash: BlockHash,
    pub(crate) usage: LogUsage,
}

impl ChainUsage {
    pub fn new(reader: Reader, blocks: Blocks, meter: Meter, worker: &UsageWorker) -> Self {
        let versions = worker.rule_versions().into_iter();
        let rules = versions.map(|(name, definition)| RuleVersion { name, definition }).collect();
        Self { reader, blocks, meter, rules }
    }

    /// Progress of the serving generation of rows; `None` if there is none.
    pub(crate) async fn standing(&self) -> Result<Option<GenerationProgress>> {
        let standings = self.reader.progress(&[PROCESSOR]).await.map_err(unavailable)?;
        Ok(standings.into_iter().next())
    }

    /// Progress of this process's ingest; `None` if it ingests nothing.
    pub(crate) fn report(&self) -> Option<ProgressReport> {
        self.blocks.progress.as_ref().map(|progress| progress.report())
    }

    /// Lowest block that is to be stored.
    pub(crate) fn lowest(&self) -> Option<u64> {
        let pruned_below = self.blocks.chain.index().pruned_below();
        self.blocks.lowest.map(|lowest| lowest.max(pruned_below))
    }

    /// Rows of a block range in order, at most `limit`.
    pub(crate) async fn rows(
        &self,
        generation: u32,
        part: RowSet,
        range: &Heights,
        limit: Option<usize>,
    ) -> Result<Vec<UsageRow>> {
        let limit = limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
        let text =
            |names: &dyn Fn(&'static logmill_pipeline::derive::Table) -> (String, String)| {
                let (of_final, of_tip) = names(&USAGE_EVENTS);
                let table = if part == RowSet::Final { of_final } else { of_tip };
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

    /// Converts a row to the meter's format, as if a client had sent it.
    fn row(&self, row: &Row) -> Result<UsageRow> {
        let hash = BlockHash::try_from(&*row.blob(1)?).map_err(|_| {
            Error::unavailable("the hash of a block of usage does not have 32 bytes")
        })?;
        let (log, rule) = (row.count(2)?, row.text(3)?.to_owned());
        let usage = DerivedUsage {
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

/// Usage that a rule derives from a log.
pub struct DerivedUsage<'a> {
    pub time: Timestamp,
    pub event_type: &'a str,
    pub customer: &'a str,
    pub amount: &'a str,
    pub metadata: &'a str,
}

impl DerivedUsage<'_> {
    /// The event that is recorded for it.
    pub fn event(&self, meter: &Meter, id: &UsageId) -> Result<Event> {
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
        let raw: RawEvent<'_> = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("usage of a chain: {error}")))?;
        // However old a block is, its usage counts.
        let entropy = &**meter.sql().entropy();
        let sender = Sender { source: "chain", now: self.time, entropy };
        raw.check(meter.settings(), None, &sender)
            .map_err(|errors| Error::invalid(format!("{sent}: {}", errors.join("; "))))
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
        let (applied, seen) = (standing.replacements_applied, standing.replacements_seen);
        let is_at_end =
            |position: ReplacementPosition| position.is_same(index.replacement_position());
        if !is_at_end(applied) || !is_at_end(seen) || end(index) < derived_end {
            // Another process may have written blocks that this one has not read yet.
            self.blocks.chain.follow().await.map_err(unavailable)?;
        }
        // Read first: blocks read after it may be newer, never older.
        let last_replacement = index.last_replacement();
        let has = async |position| {
            index.has_position(position).await.map_err(|error| unavailable(error.into()))
        };
        let is_of_log = has(applied).await? && has(seen).await?;
        let report = self.report();
        // From the current blocks: the progress of ingest may predate their replacement.
        let view = self.blocks.chain.view().await.map_err(unavailable)?;
        let head = view.head().map(|head| head.number);
        Ok(Some(SourceState {
            generation: standing.generation,
            derived: readable(standing.done, end(index)),
            derived_replacement: is_of_log.then_some(applied.seq),
            last_replacement,
            stored: index.coverage().into_iter().collect(),
            caught_up: report.as_ref().is_some_and(|report| is_caught_up(report, head)),
            follows: report.is_some(),
            is_archived: self.blocks.is_archived,
            lowest: self.lowest(),
        }))
    }

    async fn follow(&self) -> Result<()> {
        self.blocks.chain.follow().await.map_err(unavailable)
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

    async fn replacement_mark(&self, seq: u64) -> Result<Option<u64>> {
        let mark = self.blocks.chain.index().replacement_mark(seq).await;
        mark.map_err(|error| unavailable(error.into()))
    }

    async fn usage(&self, generation: u32, range: &Heights) -> Result<Vec<UsageBlock>> {
        let mut blocks: BTreeMap<u64, UsageBlock> = BTreeMap::new();
        for row in self.rows(generation, RowSet::Final, range, None).await? {
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

/// The part of the derived blocks that this process can read, if its index ends at `end`. Blocks that it has not read
/// yet cannot be compared with their recorded usage: they must not be skipped.
fn readable(mut derived: IntervalSet, end: u64) -> IntervalSet {
    derived.remove(&(end..u64::MAX));
    derived
}

/// Whether few blocks are missing between the highest stored one and the head, and the head was seen recently.
fn is_caught_up(report: &ProgressReport, stored: Option<u64>) -> bool {
    let is_recent = report.seen_ms_ago.is_some_and(|ago| ago <= HEAD_STALE_AFTER_MS);
    let is_near = |target: u64| {
        stored.is_some_and(|stored| target.saturating_sub(stored) <= CAUGHT_UP_WITHIN)
    };
    report.stalled.is_none() && is_recent && report.target.is_some_and(is_near)
}

pub(crate) fn heights(ranges: Vec<std::ops::Range<u64>>) -> IntervalSet {
    ranges.into_iter().collect()
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn unavailable(error: logmill_pipeline::Error) -> Error {
    Error::unavailable(format!("usage of a chain: {}", logmill_io::error_chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_up_depends_on_the_stored_blocks_and_on_a_recent_head() {
        let report = |target, ago| ProgressReport {
            // As noted before blocks were discarded.
            head: Some(100),
            behind: Some(0),
            target,
            seen_ms_ago: ago,
            ..ProgressReport::default()
        };
        let seen = report(Some(100), Some(1_000));
        assert!(is_caught_up(&seen, Some(100)));
        assert!(is_caught_up(&seen, Some(98)));
        assert!(!is_caught_up(&seen, Some(97)));
        assert!(!is_caught_up(&seen, None), "nothing is stored any more");
        assert!(!is_caught_up(&report(Some(100), Some(HEAD_STALE_AFTER_MS + 1)), Some(100)));
        assert!(!is_caught_up(&report(Some(100), None), Some(100)));
        assert!(!is_caught_up(&report(None, None), Some(100)));
        let stalled = ProgressReport { stalled: Some("no room".to_owned()), ..seen };
        assert!(!is_caught_up(&stalled, Some(100)));
    }

    #[test]
    fn blocks_that_this_process_has_not_read_are_not_relayed() {
        let set = |ranges: &[(u64, u64)]| -> IntervalSet {
            ranges.iter().map(|(start, end)| *start..*end).collect()
        };
        assert_eq!(readable(set(&[(0, 50), (60, 70)]), 65), set(&[(0, 50), (60, 65)]));
        assert_eq!(readable(set(&[(0, 50), (60, 70)]), 55), set(&[(0, 50)]));
        assert_eq!(readable(set(&[(0, 50)]), 50), set(&[(0, 50)]));
        assert_eq!(readable(set(&[(0, 50)]), 0), set(&[]));
    }
}
