//! Queries: from a filter and a snapshot to ordered logs.
//!
//! ```text
//!   snapshot ──▶ chunks and sections of the range, lowest first
//!                   └──▶ each: terms → plan → ids → pages → exact match
//! ```
//!
//! The index only finds candidates; a log is in the answer only if [`Filter::matches`] accepts it.
//!
//! Guarantees: the answer is what a scan of all logs of the covered range would find, ordered by block and log index.
//! A range that is not covered is an error, unless the filter asks only for the covered part. A missing or damaged
//! chunk is an error, never a shorter answer. Leaves to others: blocks above the head, and JSON-RPC wording.

mod execute;
mod explain;
mod ids;
mod plan;
mod source;

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use futures::Stream;
use futures::stream::try_unfold;

pub use explain::{ExplainedClause, ExplainedSource, Explanation};
pub use plan::Strategy;

pub(crate) use execute::sources;
pub(crate) use source::{OpenSource, Source};

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::filter::{Blocks, Filter};
use crate::index::LogIndex;
use crate::query::execute::Execution;
use crate::settings::BroadPolicy;
use crate::state::{SharedIndex, Snapshot};
use crate::types::{BlockRange, Log};

/// Answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPage {
    /// Ordered by block and log index.
    pub logs: Vec<Log>,
    /// If the limit was reached, the block from which to continue.
    pub next: Option<u64>,
    /// Blocks that were searched: the requested ones, or the covered part of them.
    pub looked_at: Vec<BlockRange>,
}

/// A query that passed validation, with its blocks and deadline.
#[derive(Debug)]
pub(crate) struct AcceptedQuery {
    pub(crate) ranges: Vec<BlockRange>,
    pub(crate) deadline: Duration,
    pub(crate) scan_only: bool,
}

impl LogIndex {
    /// Returns all matching logs, up to the limit. The page ends at the end of a block; `next` tells where to
    /// continue.
    pub async fn query_finalized(&self, filter: &Filter) -> Result<LogPage> {
        let (page, _) = self.run(filter).await?;
        Ok(page)
    }

    async fn run(&self, filter: &Filter) -> Result<(LogPage, Explanation)> {
        let started = self.shared.stores.clock.monotonic();
        let mut execution = self.shared.begin(filter).await?;
        let mut collected = PageCollector::new(filter.max_results);
        'all: while let Some(logs) = execution.next().await? {
            for log in logs {
                if collected.push(log) {
                    break 'all;
                }
            }
        }
        let looked_at = execution.looked_at();
        let took = self.shared.stores.clock.monotonic().saturating_sub(started);
        self.shared.metrics.queried(took);
        tracing::debug!(
            query_id = execution.query_id,
            results = collected.logs.len(),
            took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            "answered a query"
        );
        let mut explanation = execution.explain();
        explanation.results = as_u64(collected.logs.len());
        explanation.took = took;
        Ok((LogPage { logs: collected.logs, next: collected.next, looked_at }, explanation))
    }

    /// Runs a query and returns the plan of each chunk and the work done.
    pub async fn explain(&self, filter: &Filter) -> Result<Explanation> {
        let (_, explanation) = self.run(filter).await?;
        Ok(explanation)
    }

    /// Returns the matching logs as an ordered stream of batches; the limit of the filter is ignored.
    pub fn query_stream(&self, filter: Filter) -> impl Stream<Item = Result<Vec<Log>>> + use<> {
        let shared = Arc::clone(&self.shared);
        try_unfold((shared, filter, None), |(shared, filter, running)| async move {
            let mut execution: Execution = match running {
                Some(execution) => execution,
                None => shared.begin(&filter).await?,
            };
            let batch = execution.next().await?;
            Ok(batch.map(|logs| (logs, (shared, filter, Some(execution)))))
        })
    }
}

impl SharedIndex {
    /// Validates a query and takes its snapshot.
    async fn begin(self: &Arc<Self>, filter: &Filter) -> Result<Execution> {
        filter.validate()?;
        let actual = filter.or_terms_max();
        let max = self.settings.max_or_terms;
        let too_broad = actual > max;
        if too_broad && self.settings.broad_policy == BroadPolicy::Error {
            return Err(Error::QueryTooBroad { actual, max });
        }
        let deadline = self.stores.clock.monotonic() + self.settings.query_deadline;
        let mut snapshot = self.readable()?;
        let ranges = match &filter.blocks {
            Blocks::Hash(hash) => {
                let range;
                (range, snapshot) = self.block_range(hash).await?;
                vec![range]
            }
            Blocks::Range(range) => vec![required(&snapshot, *range.start(), *range.end())?],
            Blocks::Covered(range) => clipped(&snapshot, *range.start(), *range.end()),
        };
        let accepted = AcceptedQuery { ranges, deadline, scan_only: too_broad };
        Ok(Execution::new(Arc::clone(self), &snapshot, filter, accepted))
    }

    /// The block with this hash, and the snapshot in which it was found.
    async fn block_range(&self, hash: &B256) -> Result<(BlockRange, Arc<Snapshot>)> {
        let mut tries = 0;
        let (found, snapshot) = loop {
            let snapshot = self.readable()?;
            match self.find_block(&snapshot, hash).await {
                Err(error) => self.retry_or_note_damage(&snapshot, error, None, &mut tries).await?,
                Ok(found) => break (found, snapshot),
            }
        };
        let block = found.ok_or(Error::BlockNotFound { hash: *hash })?;
        Ok((block.number..block.number + 1, snapshot))
    }
}

/// The whole range, which must be covered.
fn required(snapshot: &Snapshot, from: u64, to: u64) -> Result<BlockRange> {
    let wanted = from..to.saturating_add(1);
    let inside = |range: &BlockRange| range.start <= wanted.start && wanted.end <= range.end;
    if snapshot.coverage.iter().any(inside) && to < u64::MAX {
        return Ok(wanted);
    }
    if from < snapshot.list.floor {
        return Err(Error::Pruned { floor: snapshot.list.floor });
    }
    Err(Error::NotCovered { wanted, covered: snapshot.coverage.clone() })
}

/// The covered parts of a range.
fn clipped(snapshot: &Snapshot, from: u64, to: u64) -> Vec<BlockRange> {
    let end = to.saturating_add(1);
    let parts = snapshot.coverage.iter().map(|range| range.start.max(from)..range.end.min(end));
    parts.filter(|part| part.start < part.end).collect()
}

/// Collects logs up to a limit, in whole blocks.
struct PageCollector {
    logs: Vec<Log>,
    max: usize,
    /// Position of the first log of the last block.
    block_start: usize,
    next: Option<u64>,
}

impl PageCollector {
    fn new(max: Option<usize>) -> Self {
        Self { logs: Vec::new(), max: max.unwrap_or(usize::MAX), block_start: 0, next: None }
    }

    /// Adds a log; returns true when the page is complete.
    fn push(&mut self, log: Log) -> bool {
        let block = log.block_number;
        if self.logs.last().is_some_and(|last| last.block_number != block) {
            if self.logs.len() >= self.max {
                self.next = Some(block);
                return true;
            }
            self.block_start = self.logs.len();
        }
        self.logs.push(log);
        if self.logs.len() > self.max && self.block_start > 0 {
            self.logs.truncate(self.block_start);
            self.next = Some(block);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::BlockLog;

    fn page(blocks: &[u64], max: usize) -> (Vec<u64>, Option<u64>) {
        let mut collected = PageCollector::new(Some(max));
        for block in blocks {
            let log = Log {
                block_number: *block,
                block_hash: B256::ZERO,
                block_timestamp: 0,
                log: BlockLog::default(),
            };
            if collected.push(log) {
                break;
            }
        }
        (collected.logs.iter().map(|log| log.block_number).collect(), collected.next)
    }

    #[test]
    fn a_page_ends_with_a_whole_block_and_never_splits_one() {
        assert_eq!(page(&[1, 1, 2, 2, 3], 9), (vec![1, 1, 2, 2, 3], None));
        assert_eq!(page(&[1, 1, 2, 2, 3], 5), (vec![1, 1, 2, 2, 3], None));
        assert_eq!(page(&[1, 1, 2, 2, 3], 4), (vec![1, 1, 2, 2], Some(3)));
        assert_eq!(page(&[1, 1, 2, 2, 3], 3), (vec![1, 1], Some(2)));
        assert_eq!(page(&[1, 1, 1, 2], 1), (vec![1, 1, 1], Some(2)));
        assert_eq!(page(&[1, 1, 1], 1), (vec![1, 1, 1], None));
        assert_eq!(page(&[], 1), (vec![], None));
    }
}
