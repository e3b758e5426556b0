//! What is told of a collector: to people at the terminal, to `/status`, and to a check.
//!
//! Guarantees: a range that nobody could collect is told again and again until somebody has seen to it; a status is
//! read from the database, so that any process can tell it. Leaves to others: redriving.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use logmill_work::{Coverage, Scope, State as JobState};
use serde::Serialize;

use super::place::Place;
use super::scan::RangeJob;
use super::{Collector, Head, kind};
use crate::derive::{Line, Tables};
use crate::error::Result;

/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// How long jobs that are done are kept, for people who look; coverage says what is done.
const DONE_KEPT: Duration = Duration::from_secs(600);
/// The most ranges of a list.
const RANGES_MAX: usize = 100;

/// What a process has done.
#[derive(Debug, Default)]
pub(super) struct Counts {
    blocks: AtomicU64,
    events: AtomicU64,
    failures: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Counts {
    pub(super) fn scanned(&self, blocks: u64, events: usize) {
        let events = u64::try_from(events).unwrap_or(u64::MAX);
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.events.fetch_add(events, Ordering::Relaxed);
        metrics::counter!("logmill_collect_blocks_total").increment(blocks);
        metrics::counter!("logmill_collect_events_total").increment(events);
    }

    pub(super) fn failed(&self, error: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("logmill_collect_failures_total").increment(1);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_owned());
    }
}

/// A range that nobody could collect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Its first block.
    pub first: u64,
    /// Its last block.
    pub last: u64,
    /// How often it was tried.
    pub attempts: i64,
    /// What went wrong last.
    pub error: Option<String>,
}

/// How far collecting is, as the database tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Of which chain.
    pub chain_id: u64,
    /// Whose coverage: the name of the processor.
    pub consumer: String,
    /// Where collecting began.
    pub start: u64,
    /// The lowest block from there on that is not collected.
    pub cursor: u64,
    /// The newest blocks that are collected, as first and last of every range, lowest first.
    pub covered: Vec<(u64, u64)>,
    /// How many blocks are collected.
    pub blocks: u64,
    /// Jobs that wait.
    pub pending: u64,
    /// Jobs that are done right now.
    pub running: u64,
    /// Jobs that were tried as often as they may be.
    pub dead: u64,
    /// The first of them.
    pub missing: Vec<Missing>,
}

impl Status {
    /// The status of the newest generation of a consumer; none if it has none.
    pub async fn find(tables: &Tables, chain_id: u64, consumer: &str) -> Result<Option<Self>> {
        let stored = tables.stored(chain_id).await?;
        let newest = stored.iter().filter(|line| line.processor == consumer);
        let Some(line) = newest.max_by_key(|line| line.generation) else {
            return Ok(None);
        };
        let version = line.generation;
        let scope = Scope { chain_id, consumer: consumer.to_owned(), version };
        Ok(Some(Self::read(tables, &scope).await?))
    }

    /// The status of what is collected under a scope.
    pub async fn read(tables: &Tables, scope: &Scope) -> Result<Self> {
        let kind = kind(scope.chain_id, &scope.consumer);
        let place = Place::new(tables.sql().clone(), scope.chain_id, &scope.consumer);
        let start = place.get_start().await?.unwrap_or(0);
        let covered = Coverage::read(tables.sql(), scope).await?.done;
        let queue = tables.queue();
        let counts = queue.counts().await?;
        let count = |state: JobState| {
            let found = counts.iter().find(|count| count.kind == kind && count.state == state);
            found.map_or(0, |count| count.jobs)
        };
        let dead = queue.list(&kind, JobState::Dead, None, RANGES_MAX).await?;
        let missing = dead.into_iter().filter_map(|job| {
            let range: RangeJob = serde_json::from_str(&job.payload).ok()?;
            let last = range.end.saturating_sub(1);
            Some(Missing { first: range.start, last, attempts: job.attempts, error: job.error })
        });
        let ranges: Vec<(u64, u64)> =
            covered.ranges().rev().take(RANGES_MAX).map(|r| (r.start, r.end - 1)).collect();
        Ok(Self {
            chain_id: scope.chain_id,
            consumer: scope.consumer.clone(),
            start,
            cursor: covered.watermark_up(start),
            covered: ranges.into_iter().rev().collect(),
            blocks: covered.total(),
            pending: count(JobState::Pending),
            running: count(JobState::Running),
            dead: count(JobState::Dead),
            missing: missing.collect(),
        })
    }
}

/// What a process tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What the database says; none if it does not answer.
    pub collected: Option<Status>,
    /// `historical` or `realtime`.
    pub mode: &'static str,
    /// The newest final block that it has seen.
    pub finalized: Option<u64>,
    /// The newest block that it has seen.
    pub latest: Option<u64>,
    /// How long ago a node reported them, in milliseconds.
    pub seen_ms_ago: Option<u64>,
    /// Final blocks that are not collected.
    pub lag: Option<u64>,
    /// Blocks that this process has scanned.
    pub scanned_blocks: u64,
    /// Events that it has found in them.
    pub found_events: u64,
    /// What went wrong, how often.
    pub failures: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Why nothing new is collected, if nothing is.
    pub halted: Option<String>,
}

impl Collector {
    /// What this process tells of itself.
    pub async fn report(&self) -> Report {
        let collected = match self.lines().first() {
            Some(line) => Status::read(&self.tables, &line.scope()).await.ok(),
            None => None,
        };
        let (mode, head, halted) = {
            let state = self.state();
            (state.mode.name(), state.head, state.halted.clone())
        };
        let lag = collected.as_ref().zip(head).map(|(status, head)| {
            head.finalized.number.saturating_add(1).saturating_sub(status.cursor)
        });
        let now = self.tables.sql().clock().monotonic();
        let ago = |head: Head| u64::try_from(now.saturating_sub(head.at).as_millis()).ok();
        let counts = &self.counts;
        Report {
            seen_ms_ago: head.and_then(ago),
            collected,
            mode,
            finalized: head.map(|head| head.finalized.number),
            latest: head.map(|head| head.latest),
            lag,
            scanned_blocks: counts.blocks.load(Ordering::Relaxed),
            found_events: counts.events.load(Ordering::Relaxed),
            failures: counts.failures.load(Ordering::Relaxed),
            last_error: counts.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            halted,
        }
    }

    /// The generation that readers see, or will.
    pub fn serving(&self) -> Option<Line> {
        self.lines().into_iter().next()
    }

    /// Tells the person at the terminal how far it is, whenever that has changed, and what is missing, always.
    pub(super) async fn watch(&self) {
        let clock = self.tables.sql().clock();
        let mut before = None;
        loop {
            clock.sleep(TOLD_EVERY).await;
            let purged = self.tables.queue().purge(&self.kind(), JobState::Done, DONE_KEPT).await;
            if let Err(error) = purged {
                tracing::debug!(error = error.chain(), "jobs that are done stay for now");
            }
            let report = self.report().await;
            let Some(status) = &report.collected else { continue };
            metrics::gauge!("logmill_collect_dead_ranges").set(gauge(status.dead));
            metrics::gauge!("logmill_collect_lag_blocks").set(gauge(report.lag.unwrap_or(0)));
            let seen = (status.cursor, status.dead);
            if before.replace(seen) != Some(seen) {
                tracing::info!(
                    chain = self.chain_id,
                    cursor = status.cursor,
                    finalized = report.finalized,
                    lag = report.lag,
                    mode = report.mode,
                    events = report.found_events,
                    "progress"
                );
            }
            if let Some(Missing { first, last, attempts, error }) = status.missing.first() {
                let ranges = status.dead;
                tracing::warn!(
                    ranges,
                    first,
                    last,
                    attempts,
                    error,
                    "ranges are missing that nobody could collect; redrive them"
                );
            }
        }
    }
}

/// A figure for a gauge, which is a float by its nature.
fn gauge(figure: u64) -> f64 {
    u32::try_from(figure).unwrap_or(u32::MAX).into()
}
