//! Coverage: two workers share the heights of a simulated chain, from the top, and miss none.
//!
//! Guarantees: every height is covered once, although each worker takes any range it finds. Leaves to others: real
//! chains.

use std::time::Duration;

use logmill_io::Tasks;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::SearchOrder;
use logmill_work::{Coverage, Heights, NewJob, Queue, Scope};

use super::check;
use crate::error::{Error, Result};
use crate::output;

const KIND: &str = "demo.range";
const CHAIN: Heights = 0..1_000;
const RANGE_MAX: u64 = 64;
const WORKERS: [&str; 2] = ["a", "b"];
const LEASE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct WorkerTotals {
    ranges: u64,
    heights: u64,
}

pub(super) async fn show(queue: &Queue) -> Result<String> {
    let mut tasks = Tasks::new();
    for worker in WORKERS {
        let queue = queue.clone();
        tasks.spawn(async move { work(&queue, worker).await });
    }
    let mut all = WorkerTotals::default();
    while let Some(ended) = tasks.join_next().await {
        let done: WorkerTotals = ended??;
        all.ranges += done.ranges;
        all.heights += done.heights;
    }
    let coverage = Coverage::read(queue.sql(), &scope()).await?;
    let heights = CHAIN.end - CHAIN.start;
    check(coverage.done.covers(&CHAIN), || format!("the coverage is {:?}", coverage.done))?;
    check(coverage.claimed.is_empty(), || format!("{:?} is still claimed", coverage.claimed))?;
    check(all.heights == heights, || format!("{} of {heights} heights were covered", all.heights))?;
    output::note(&format!("demo: coverage: {heights} heights in {} ranges", all.ranges));
    Ok(format!(
        "coverage: {heights} heights of a simulated chain, from the top, in {} ranges by {} workers, each height once",
        all.ranges,
        WORKERS.len()
    ))
}

fn scope() -> Scope {
    Scope { chain_id: 1, consumer: "demo".to_owned(), version: 1 }
}

/// Claims and processes ranges until none is missing.
async fn work(queue: &Queue, worker: &str) -> Result<WorkerTotals> {
    let claim = RangeClaim { within: CHAIN, most: RANGE_MAX, order: SearchOrder::HighestFirst };
    let mut done = WorkerTotals::default();
    while Coverage::claim_next(queue, &scope(), &claim, job).await?.is_some() {
        // May be a range that the other worker created: any worker may claim its job.
        for claim in queue.claim(KIND, 1, LEASE, worker).await? {
            let range = range(&claim.key)?;
            let (scope, range, claim) = (&scope(), &range, &claim);
            let covered = queue.sql().write(|tx| async move {
                let covered = Coverage::cover(&tx, scope, range).await?;
                // Range and job are completed together, or not at all.
                queue.complete_in(&tx, claim).await?;
                Ok::<_, logmill_work::Error>(covered)
            });
            done.heights += covered.await?.iter().map(|part| part.end - part.start).sum::<u64>();
            done.ranges += 1;
        }
    }
    Ok(done)
}

fn job(range: &Heights) -> NewJob {
    NewJob::new(KIND, format!("1/demo/1/{}-{}", range.start, range.end), "{}")
}

fn range(key: &str) -> Result<Heights> {
    let parse = || {
        let (start, end) = key.rsplit('/').next()?.split_once('-')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    parse().ok_or_else(|| Error::Demo { what: format!("invalid key of a range job: {key:?}") })
}
