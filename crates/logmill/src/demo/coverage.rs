//! Coverage: two workers share the heights of a pretend chain, from above, and miss none.
//!
//! Guarantees: every height is covered once, though each worker takes what it finds. Leaves to others: real chains.

use std::time::Duration;

use logmill_io::Tasks;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::From;
use logmill_work::{Coverage, Heights, NewJob, Queue, Scope};

use super::check;
use crate::error::{Error, Result};
use crate::output;

const KIND: &str = "demo.range";
const CHAIN: Heights = 0..1_000;
const RANGE_MAX: u64 = 64;
const WORKERS: [&str; 2] = ["a", "b"];
const LEASE: Duration = Duration::from_secs(60);

/// What one worker did.
#[derive(Default)]
struct Done {
    ranges: u64,
    heights: u64,
}

pub(super) async fn show(queue: &Queue) -> Result<String> {
    let mut tasks = Tasks::new();
    for worker in WORKERS {
        let queue = queue.clone();
        tasks.spawn(async move { work(&queue, worker).await });
    }
    let mut all = Done::default();
    while let Some(ended) = tasks.join_next().await {
        let done: Done = ended??;
        all.ranges += done.ranges;
        all.heights += done.heights;
    }
    let coverage = Coverage::read(queue.sql(), &scope()).await?;
    let heights = CHAIN.end - CHAIN.start;
    check(coverage.done.covers(&CHAIN), || format!("covered is {:?}", coverage.done))?;
    check(coverage.claimed.is_empty(), || format!("still claimed is {:?}", coverage.claimed))?;
    check(all.heights == heights, || format!("{} of {heights} heights were covered", all.heights))?;
    output::note(&format!("demo: coverage: {heights} heights in {} ranges", all.ranges));
    Ok(format!(
        "coverage: {heights} heights of a pretend chain, from above, in {} ranges by {} workers, each height once",
        all.ranges,
        WORKERS.len()
    ))
}

fn scope() -> Scope {
    Scope { chain_id: 1, consumer: "demo".to_owned(), version: 1 }
}

/// Claims a range and does it, until none is missing.
async fn work(queue: &Queue, worker: &str) -> Result<Done> {
    let claim = RangeClaim { within: CHAIN, most: RANGE_MAX, from: From::Above };
    let mut done = Done::default();
    while Coverage::claim_next(queue, &scope(), &claim, job).await?.is_some() {
        // Maybe the other one's: a range belongs to its job, not to whoever made it.
        for claim in queue.claim(KIND, 1, LEASE, worker).await? {
            let range = range(&claim.key)?;
            let (scope, range, claim) = (&scope(), &range, &claim);
            let fresh = queue.sql().write(|tx| async move {
                let fresh = Coverage::cover(&tx, scope, range).await?;
                // Range and job end together, or not at all.
                queue.complete_in(&tx, claim).await?;
                Ok(fresh)
            });
            done.heights += fresh.await?.iter().map(|part| part.end - part.start).sum::<u64>();
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
    parse().ok_or_else(|| Error::Demo { what: format!("the range job {key:?}") })
}
