//! A range, collected: logs from a node, rows of them, and rows, coverage and the end of the job in one transaction.
//!
//! Guarantees: a block counts once, whoever scanned it and however often: what is covered already is not asked for,
//! and what another covers meanwhile is not written. The job ends with the last of its blocks, or not at all; a
//! worker whose lease was taken over ends nothing. Leaves to others: claiming, heartbeats and attempts
//! ([`logmill_work::Runner`]).

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use logmill_io::ErrorKind;
use logmill_work::{Backoff, Failure, Handler, Outcome, Retry, Running};
use serde::{Deserialize, Serialize};

use super::event::place;
use super::plan::ATTEMPTS_MAX;
use super::retry::with_retry;
use super::{Collector, FAILURE_WAIT_MAX};
use crate::derive::store::Prepared;
use crate::derive::{Line, Rows};
use crate::error::{Error, Result};

/// The most blocks of one question and one transaction; longer ranges are done in such pieces.
const PIECE_BLOCKS: u64 = 1_000;
/// How often a range is planned anew because another has written some of it.
const PLANS_MAX: usize = 4;

/// What a job needs.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangeJob {
    /// The generation whose tables are filled.
    pub(super) generation: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Runs the jobs of a collector.
#[derive(Debug)]
pub(super) struct Scanner(pub(super) Arc<Collector>);

#[async_trait]
impl Handler for Scanner {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let job: RangeJob = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload: {error}")))?;
        let outcome = self.0.collect(&running, &job).await;
        let outcome = outcome.map_err(|error| self.0.failure(&running, &job, &error));
        // Who plans sees that there is room, or that there is none.
        self.0.ended.notify_one();
        outcome
    }
}

impl Collector {
    /// Collects what is missing of a range, and completes its job.
    pub(super) async fn collect(&self, running: &Running, job: &RangeJob) -> Result<Outcome> {
        for _ in 0..PLANS_MAX {
            let Some(line) = self.line(job.generation).await? else {
                // Its tables were replaced: whatever is missing in the new ones has jobs of its own.
                return Ok(Outcome::Done);
            };
            match self.collect_into(running, &line, job.start..job.end).await {
                Err(error) if is_overtaken(&error) => self.reload().await?,
                outcome => return outcome,
            }
        }
        Err(Error::Overtaken { processor: self.event.name() })
    }

    async fn collect_into(
        &self,
        running: &Running,
        line: &Line,
        range: Range<u64>,
    ) -> Result<Outcome> {
        let sql = self.tables.sql();
        let covered = with_retry(sql, "read the coverage", || self.tables.covered(line)).await?;
        let pieces: Vec<Range<u64>> = covered.gaps(&range).into_iter().flat_map(pieces).collect();
        let Some((last, before)) = pieces.split_last() else {
            return Ok(Outcome::Done);
        };
        for piece in before {
            let rows = self.scan(line, piece.clone()).await?;
            self.store(line, piece, &rows, None).await?;
        }
        let rows = self.scan(line, last.clone()).await?;
        self.store(line, last, &rows, Some(running)).await?;
        Ok(Outcome::Completed)
    }

    /// The rows of a range, as the database takes them.
    pub(super) async fn scan(&self, line: &Line, range: Range<u64>) -> Result<Prepared> {
        let anchor = self.anchor(range.end).await?;
        let logs = self.source.logs(&self.event.filter(), range.clone(), anchor).await?;
        let event = Arc::clone(&self.event);
        let rows = logmill_io::compute(move || {
            let mut rows = Rows::new(event.tables());
            for found in &logs {
                rows.at_block(found.block);
                event.process_log(&place(found), &found.log, &mut rows)?;
            }
            rows.fold()?;
            Ok::<_, Error>(rows)
        });
        let rows = rows.await?;
        self.counts.scanned(range.end - range.start, rows.len());
        let prepare = || self.tables.prepare(line, rows.clone());
        with_retry(self.tables.sql(), "give addresses their numbers", prepare).await
    }

    /// Rows, the coverage that speaks for them and, with the last of them, the end of the job: together or not at all.
    pub(super) async fn store(
        &self,
        line: &Line,
        range: &Range<u64>,
        rows: &Prepared,
        job: Option<&Running>,
    ) -> Result<()> {
        let sql = self.tables.sql();
        let write = || async {
            let written = sql.write(|tx| async move {
                let fresh = self.tables.cover_in(&tx, line, range).await?;
                if fresh == [range.clone()] {
                    self.tables.apply_in(&tx, rows).await?;
                } else if !(fresh.is_empty() && job.is_some()) {
                    // Some of it is another's: the rows are for more than what is missing.
                    let what = format!("what {} has collected", line.processor.name());
                    return Err(logmill_io::Error::Conflict { what });
                }
                if let Some(job) = job {
                    job.queue.complete_in(&tx, &job.claim).await?;
                }
                Ok(())
            });
            Ok(written.await?)
        };
        with_retry(sql, "store what was collected", write).await
    }

    fn failure(&self, running: &Running, job: &RangeJob, error: &Error) -> Failure {
        let said = logmill_io::chain(error);
        let (attempt, first, last) = (running.claim.attempt, job.start, job.end.saturating_sub(1));
        if attempt < i64::from(ATTEMPTS_MAX) {
            tracing::warn!(first, last, attempt, error = said, "a range was not collected");
        } else {
            tracing::error!(first, last, attempt, error = said, "a range is given up, and missing");
        }
        self.counts.failed(&said);
        let waits = Backoff::Exponential {
            first: self.poll(),
            max: FAILURE_WAIT_MAX.max(self.poll()),
            jitter_percent: 10,
        };
        let wait = waits.wait(attempt, &**self.tables.sql().entropy());
        Failure { error: said, retry: Retry::After(wait) }
    }
}

/// Whether another has written what was to be written, or has replaced the tables.
fn is_overtaken(error: &Error) -> bool {
    match error {
        Error::Overtaken { .. } => true,
        Error::Store(error) => error.kind() == ErrorKind::Conflict || error.is_missing_table(),
        _ => false,
    }
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let end = range.end.min(start.saturating_add(PIECE_BLOCKS));
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_sum_of_its_pieces() {
        let cut = |range: Range<u64>| pieces(range).collect::<Vec<_>>();
        assert_eq!(cut(5..1_006), [5..1_005, 1_005..1_006]);
        assert_eq!(cut(5..2_006), [5..1_005, 1_005..2_005, 2_005..2_006]);
        assert_eq!(cut(7..7), []);
    }
}
