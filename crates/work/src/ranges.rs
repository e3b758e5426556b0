//! Ranges: every height of a chain is done once, range by range.
//!
//! ```text
//!   missing ──▶ claim ──▶ run ──▶ cover
//! ```
//!
//! | step | by any number of processes | by one process, under a lease |
//! |---|---|---|
//! | missing | [`missing`]: ready, and neither done nor claimed | [`RangeBacklog::missing`] |
//! | claim | a job, created with its claim ([`crate::Coverage::claim_next`]) | [`RangeBacklog::take`] |
//! | run | [`crate::Runner`] | the process itself |
//! | cover | [`crate::Coverage::cover`], with results and the end of the job | the same, then [`RangeBacklog::cover`] |
//! | retry | by the runner; in the end the job is a dead letter | by the backlog, which isolates the failing height |
//!
//! [`drive`] is the loop that claims: it goes on while ranges are missing, then waits for news. A failed step is
//! retried with a [`Backoff`].
//!
//! Guarantees: a range that is neither done nor claimed is found again, because no cursor is kept. Leaves to others:
//! the work in a range, and where coverage is stored if not in [`crate::Coverage`].

mod backlog;

use async_trait::async_trait;
use logmill_io::{Clock, Entropy};

use crate::backoff::Backoff;
use crate::intervals::{Heights, IntervalSet};

pub use backlog::{FailingRange, RangeBacklog};

/// Result of a step of a [`RangeDriver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There may be more to claim.
    Claimed,
    /// Enough ranges are claimed for now.
    Busy,
    /// Nothing is missing.
    CaughtUp,
}

/// Claims the missing ranges of one consumer.
#[async_trait]
pub trait RangeDriver: Send + Sync {
    type Error: Send;

    /// Claims the next missing ranges, if there are any, and does them if no job will.
    async fn claim(&self) -> Result<Step, Self::Error>;

    /// Waits until there may be more to claim, after a step that was `Busy` or `CaughtUp`.
    async fn wait(&self, after: Step);

    /// How long to wait after a failed step; the error itself if no retry can help.
    fn retry(&self, error: Self::Error) -> Result<Backoff, Self::Error>;
}

/// Claims for as long as it is polled; returns an error that no retry can solve.
pub async fn drive<D: RangeDriver>(
    driver: &D,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> D::Error {
    let mut failed = 0;
    loop {
        let error = match driver.claim().await {
            Ok(step) => {
                failed = 0;
                if step != Step::Claimed {
                    driver.wait(step).await;
                }
                continue;
            }
            Err(error) => error,
        };
        match driver.retry(error) {
            Ok(waits) => {
                failed += 1;
                clock.sleep(waits.wait(failed, entropy)).await;
            }
            Err(error) => return error,
        }
    }
}

/// The heights of `ready` that are not in `taken`, lowest first, in ranges that do not cross a multiple of `size`.
pub fn missing(
    ready: &IntervalSet,
    taken: &IntervalSet,
    size: u64,
) -> impl Iterator<Item = Heights> {
    let gaps = ready.ranges().flat_map(|range| taken.gaps(&range));
    gaps.flat_map(move |gap| cut(gap, size.max(1)))
}

fn cut(gap: Heights, size: u64) -> impl Iterator<Item = Heights> {
    let mut start = gap.start;
    std::iter::from_fn(move || {
        let border = (start / size + 1).saturating_mul(size);
        let range = start..border.min(gap.end);
        start = range.end;
        (!range.is_empty()).then_some(range)
    })
}

#[cfg(test)]
mod tests;
