//! Status of a collector, for the log, `/status` and readiness.
//!
//! Guarantees: a range that could not be collected is reported again and again until an operator redrives it. The
//! status is read from the database, so any process can report it. Leaves to others: redriving.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use logmill_work::{Coverage, Scope, State as JobState};
use serde::Serialize;

use super::records::CollectorRecords;
use super::scan::RangeJob;
use super::{Collector, Head, kind};
use crate::derive::{Generation, GenerationState, Tables};
use crate::error::Result;
use crate::span;

/// How often progress is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// How often a worker publishes its progress.
const PUBLISH_EVERY: Duration = Duration::from_secs(2);
/// How long completed jobs are kept for inspection; coverage records what is done.
const DONE_KEPT: Duration = Duration::from_secs(600);
/// Maximum number of ranges in a list.
const RANGES_MAX: usize = 100;

/// Counters of this process.
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

/// A range whose job is a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingRange {
    #[serde(rename = "from")]
    pub first: u64,
    /// Inclusive.
    #[serde(rename = "to")]
    pub last: u64,
    pub attempts: i64,
    pub error: Option<String>,
}

/// Progress of collecting, as stored in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectStatus {
    pub chain_id: u64,
    /// Name of the processor whose coverage is shown.
    pub consumer: String,
    pub start: u64,
    /// Lowest block from the start on that is not collected.
    pub cursor: u64,
    /// The newest collected ranges, as inclusive pairs, lowest first.
    #[serde(serialize_with = "span::inclusive")]
    pub covered: Vec<(u64, u64)>,
    /// Number of collected blocks.
    pub blocks: u64,
    pub pending: u64,
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// The first dead letters.
    pub missing: Vec<MissingRange>,
}

/// What was collected for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundStatus {
    Nothing,
    /// With other parameters only: those of the newest generation.
    OtherParameters(String),
    Collected(CollectStatus),
}

impl CollectStatus {
    /// The status of the newest generation of a consumer, if it has one.
    pub async fn find(tables: &Tables, chain_id: u64, consumer: &str) -> Result<Option<Self>> {
        let stored = tables.stored_generations(chain_id).await?;
        let newest = stored.iter().filter(|generation| generation.processor == consumer);
        let Some(generation) = newest.max_by_key(|generation| generation.number) else {
            return Ok(None);
        };
        let version = generation.number;
        let scope = Scope { chain_id, consumer: consumer.to_owned(), version };
        Ok(Some(Self::read(tables, &scope).await?))
    }

    /// Like [`CollectStatus::find`], of the newest generation with these parameters.
    pub async fn find_with(
        tables: &Tables,
        chain_id: u64,
        consumer: &str,
        parameters: &str,
    ) -> Result<FoundStatus> {
        let mut stored = tables.stored_generations(chain_id).await?;
        stored.retain(|generation| generation.processor == consumer);
        stored.sort_by_key(|generation| generation.number);
        let made = stored.iter().rev().find(|generation| generation.parameters == parameters);
        match (made, stored.last()) {
            (Some(generation), _) => {
                let version = generation.number;
                let scope = Scope { chain_id, consumer: consumer.to_owned(), version };
                Ok(FoundStatus::Collected(Self::read(tables, &scope).await?))
            }
            (None, Some(newest)) => Ok(FoundStatus::OtherParameters(newest.parameters.clone())),
            (None, None) => Ok(FoundStatus::Nothing),
        }
    }

    pub async fn read(tables: &Tables, scope: &Scope) -> Result<Self> {
        let kind = kind(scope.chain_id, &scope.consumer);
        let records = CollectorRecords::new(tables.sql().clone(), scope.chain_id, &scope.consumer);
        let start = records.get_start().await?.unwrap_or(0);
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
            Some(MissingRange {
                first: range.start,
                last,
                attempts: job.attempts,
                error: job.error,
            })
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

/// Time since a worker last scanned blocks or saw the head; none if none ever has.
pub async fn progress_age(
    tables: &Tables,
    chain_id: u64,
    consumer: &str,
) -> Result<Option<Duration>> {
    CollectorRecords::new(tables.sql().clone(), chain_id, consumer).progress_age().await
}

/// Status of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectReport {
    /// None if the database does not answer.
    pub collected: Option<CollectStatus>,
    /// `historical` or `realtime`.
    pub mode: &'static str,
    /// Newest final block seen.
    pub finalized: Option<u64>,
    /// Newest block seen.
    pub latest: Option<u64>,
    /// Milliseconds since a node reported the two.
    pub seen_ms_ago: Option<u64>,
    /// Number of final blocks that are not collected.
    pub lag: Option<u64>,
    /// Blocks scanned by this process.
    pub scanned_blocks: u64,
    /// Events found in them.
    pub found_events: u64,
    pub failures: u64,
    pub last_error: Option<String>,
    /// Why no new ranges are collected, if so.
    pub halted: Option<String>,
    /// Why a complete generation does not serve yet, if so.
    pub incomplete: Option<String>,
}

impl Collector {
    pub async fn report(&self) -> CollectReport {
        let collected = match self.generations().first() {
            Some(generation) => CollectStatus::read(&self.tables, &generation.scope()).await.ok(),
            None => None,
        };
        let (mode, head, halted) = {
            let state = self.state();
            (state.mode.name(), state.head, state.halted.clone())
        };
        let lag = collected.as_ref().zip(head).map(|(status, head)| {
            head.finalized.number.saturating_add(1).saturating_sub(status.cursor)
        });
        let mut generations = self.generations().into_iter();
        let incomplete =
            generations.find(|generation| generation.state == GenerationState::Building);
        let now = self.tables.sql().clock().monotonic();
        let ago = |head: Head| u64::try_from(now.saturating_sub(head.at).as_millis()).ok();
        let counts = &self.counts;
        CollectReport {
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
            incomplete: incomplete.and_then(|generation| generation.behind),
        }
    }

    /// The generation that readers see, or will see.
    pub fn serving(&self) -> Option<Generation> {
        self.generations().into_iter().next()
    }

    /// Publishes when this process last scanned blocks or saw the head, for processes that only serve.
    pub(super) async fn publish_progress(&self) {
        let clock = self.tables.sql().clock();
        let (mut scanned, mut published) = (0, None);
        loop {
            clock.sleep(PUBLISH_EVERY).await;
            let blocks = self.counts.blocks.load(Ordering::Relaxed);
            let now = clock.monotonic();
            let got_on = match blocks == scanned {
                // The head is not requested while there is enough to do.
                false => Some(now),
                true => self.state().head.map(|head| head.at),
            };
            scanned = blocks;
            let Some(at) = got_on.filter(|at| published.is_none_or(|before| before < *at)) else {
                continue;
            };
            match self.records.put_progress(now.saturating_sub(at)).await {
                Ok(()) => published = Some(at),
                Err(error) => {
                    let error = logmill_io::error_chain(&error);
                    tracing::debug!(error, "cannot publish the progress of the collector");
                }
            }
        }
    }

    /// Logs progress whenever it has changed, and missing ranges every time.
    pub(super) async fn watch(&self) {
        let clock = self.tables.sql().clock();
        let mut before = None;
        loop {
            clock.sleep(LOG_EVERY).await;
            let purged = self.tables.queue().purge(&self.kind(), JobState::Done, DONE_KEPT).await;
            if let Err(error) = purged {
                tracing::debug!(error = error.chain(), "cannot purge completed jobs");
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
                    "collector progress"
                );
            }
            if let Some(MissingRange { first, last, attempts, error }) = status.missing.first() {
                let ranges = status.dead;
                tracing::warn!(
                    ranges,
                    first,
                    last,
                    attempts,
                    error,
                    "ranges are missing: all attempts to collect them failed; retry them with --redrive"
                );
            }
        }
    }
}

fn gauge(figure: u64) -> f64 {
    u32::try_from(figure).unwrap_or(u32::MAX).into()
}
