//! Collects a range: fetches logs from a node, decodes them to rows, and writes rows, coverage and the end of the job
//! in one transaction.
//!
//! Guarantees: a block counts once, whichever worker scans it and however often: covered blocks are not requested, and
//! blocks that another worker covers meanwhile are not written. The job ends with the last of its blocks, or not at
//! all; a worker whose lease was taken over ends nothing. Leaves to others: claiming, heartbeats and attempts
//! ([`logmill_work::Runner`]).

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use logmill_io::ErrorKind;
use logmill_work::{Backoff, Failure, Handler, Outcome, Retry, RunningJob};
use serde::{Deserialize, Serialize};

use super::event::position;
use super::retry::with_retry;
use super::{ATTEMPTS_MAX, Collector, FAILURE_WAIT_MAX};
use crate::derive::store::PreparedRows;
use crate::derive::{Generation, Rows};
use crate::error::{Error, Result};

/// Maximum number of blocks per request and transaction; longer ranges are split.
const PIECE_BLOCKS: u64 = 1_000;
/// How often a range is planned again because another worker has written some of it.
const PLANS_MAX: usize = 4;

/// Payload of a job.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangeJob {
    /// Generation of the tables to fill.
    pub(super) generation: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Debug)]
pub(super) struct Scanner(pub(super) Arc<Collector>);

#[async_trait]
impl Handler for Scanner {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let job: RangeJob = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        let outcome = self.0.collect(&running, &job).await;
        let outcome = outcome.map_err(|error| self.0.failure(&running, &job, &error));
        // Wakes the planner, which claims the next range if there is room.
        self.0.ended.notify_one();
        outcome
    }
}

impl Collector {
    /// Collects the missing blocks of a range, and completes its job.
    pub(super) async fn collect(&self, running: &RunningJob, job: &RangeJob) -> Result<Outcome> {
        for _ in 0..PLANS_MAX {
            let Some(generation) = self.generation(job.generation).await? else {
                // The tables were replaced: missing blocks of the new ones have jobs of their own.
                return Ok(Outcome::Done);
            };
            match self.collect_into(running, &generation, job.start..job.end).await {
                Err(error) if is_overtaken(&error) => self.reload().await?,
                outcome => return outcome,
            }
        }
        Err(Error::Overtaken { processor: self.event.name() })
    }

    async fn collect_into(
        &self,
        running: &RunningJob,
        generation: &Generation,
        range: Range<u64>,
    ) -> Result<Outcome> {
        let sql = self.tables.sql();
        let covered =
            with_retry(sql, "read the coverage", || self.tables.covered(generation)).await?;
        let pieces: Vec<Range<u64>> = covered.gaps(&range).into_iter().flat_map(pieces).collect();
        let Some((last, before)) = pieces.split_last() else {
            return Ok(Outcome::Done);
        };
        for piece in before {
            let rows = self.scan(generation, piece.clone()).await?;
            self.store(generation, piece, &rows, None).await?;
        }
        let rows = self.scan(generation, last.clone()).await?;
        self.store(generation, last, &rows, Some(running)).await?;
        Ok(Outcome::Completed)
    }

    /// Fetches a range and prepares its rows for the database.
    pub(super) async fn scan(
        &self,
        generation: &Generation,
        range: Range<u64>,
    ) -> Result<PreparedRows> {
        let anchor = self.anchor(range.end).await?;
        let logs = self.source.logs(&self.event.filter(), range.clone(), anchor).await?;
        let event = Arc::clone(&self.event);
        let rows = logmill_io::compute(move || {
            let mut rows = Rows::new(event.tables());
            for found in &logs {
                rows.at_block(found.block);
                event.process_log(&position(found), &found.log, &mut rows)?;
            }
            rows.fold()?;
            Ok::<_, Error>(rows)
        });
        let rows = rows.await?;
        self.counts.scanned(range.end - range.start, rows.len());
        let prepare = || self.tables.prepare(generation, rows.clone());
        with_retry(self.tables.sql(), "assign address numbers", prepare).await
    }

    /// Writes rows, their coverage and, with the last piece, the end of the job, in one transaction.
    pub(super) async fn store(
        &self,
        generation: &Generation,
        range: &Range<u64>,
        rows: &PreparedRows,
        job: Option<&RunningJob>,
    ) -> Result<()> {
        let sql = self.tables.sql();
        let write = || async {
            let written = sql.write(|tx| async move {
                let fresh = self.tables.cover_in(&tx, generation, range).await?;
                if fresh == [range.clone()] {
                    self.tables.apply_in(&tx, rows).await?;
                } else if !(fresh.is_empty() && job.is_some()) {
                    // Another worker has covered a part: the rows cover more than the missing blocks.
                    let what = format!("the coverage of {}", generation.processor.name());
                    return Err(logmill_io::Error::Conflict { what }.into());
                }
                if let Some(job) = job {
                    job.queue.complete_in(&tx, &job.claim).await?;
                }
                Ok(())
            });
            written.await
        };
        with_retry(sql, "store collected rows", write).await
    }

    fn failure(&self, running: &RunningJob, job: &RangeJob, error: &Error) -> Failure {
        let text = logmill_io::error_chain(error);
        let (attempt, first, last) = (running.claim.attempt, job.start, job.end.saturating_sub(1));
        if attempt < i64::from(ATTEMPTS_MAX) {
            tracing::warn!(first, last, attempt, error = text, "cannot collect a range, retrying");
        } else {
            tracing::error!(
                first,
                last,
                attempt,
                error = text,
                "gave up on a range: redrive its job to collect it"
            );
        }
        self.counts.failed(&text);
        let waits = Backoff::Exponential {
            first: self.poll(),
            max: FAILURE_WAIT_MAX.max(self.poll()),
            jitter_percent: 10,
        };
        let wait = waits.wait(attempt, &**self.tables.sql().entropy());
        Failure { error: text, retry: Retry::After(wait) }
    }
}

/// Whether another worker has covered blocks of the range first, or the tables were replaced.
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
