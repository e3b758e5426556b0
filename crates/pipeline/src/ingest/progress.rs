//! Progress of ingest: figures that both ingesters write and the status shows.
//!
//! Guarantees: reading blocks only for the moment of a mutex. Leaves to others: how it is shown.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logmill_io::Clock;
use serde::Serialize;
use tokio::sync::watch;

use crate::sighting::{Sighting, UncomparedBlocks};

const RATE_WINDOW: Duration = Duration::from_secs(30);
/// The store is near the head if at most this many blocks are missing.
const NEAR_BLOCKS: u64 = 4;
/// Maximum number of samples of a rate.
const RATE_SAMPLES: usize = 512;

#[derive(Debug)]
pub struct Progress {
    clock: Arc<dyn Clock>,
    /// Label of the metrics.
    chain: Arc<str>,
    state: Mutex<State>,
    /// Number of looks at the chain that have begun.
    looks: AtomicU64,
    /// When the last one began, in milliseconds of the monotonic clock.
    look_ms: AtomicU64,
    /// The last look after which everything that the nodes had was stored.
    caught_up: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It follows what another process writes, or waits for the writer lease.
    #[default]
    Follower,
    /// It holds the writer lease and asks the nodes.
    Writer,
}

#[derive(Debug, Default)]
struct State {
    role: Role,
    head: Option<u64>,
    target: Option<u64>,
    /// When this process learned of the target, on the monotonic clock, and how old the report was then: a sighting of
    /// another process may be older than this one's clock.
    seen_at: Option<(Duration, Duration)>,
    /// Highest block that the writing process had stored when the target was reported.
    writer_head: Option<u64>,
    /// Number of damaged blocks that the writing process has reported.
    damaged: u64,
    uncompared: Option<UncomparedBlocks>,
    stalled: Option<String>,
    last_error: Option<String>,
    forward_error: Option<String>,
    lost_final: Option<u64>,
    reorgs: u64,
    deepest_reorg: u64,
    forward: Rate,
    history: Rate,
    history_missing: Option<u64>,
    history_floor: u64,
}

/// Recent throughput: samples of (time, blocks, logs), and totals.
#[derive(Debug, Default)]
struct Rate {
    samples: VecDeque<(Duration, u64, u64)>,
    blocks: u64,
    logs: u64,
}

/// Progress of ingest, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgressReport {
    pub role: Role,
    /// Highest stored block.
    pub head: Option<u64>,
    /// Highest block of the chain that a node reported.
    pub target: Option<u64>,
    /// Milliseconds since a node last reported that block, to this process or to the one that writes.
    pub seen_ms_ago: Option<u64>,
    /// Highest block that the writing process, if it is another one, had stored when `target` was reported. The two
    /// figures are of one moment, while `head` may be newer.
    #[serde(skip)]
    pub writer_head: Option<u64>,
    /// Number of blocks missing between `head` and `target`.
    pub behind: Option<u64>,
    /// Number of stored blocks that the audit of the writing process has found damaged.
    pub damaged: u64,
    /// Final blocks stored without node fields, as far as the writing process knows. It fetches them again in the
    /// background.
    pub uncompared: Option<UncomparedBlocks>,
    /// Why no more blocks can be stored for now, if so.
    pub stalled: Option<String>,
    pub last_error: Option<String>,
    /// The last error at the head, unless blocks were stored there since.
    #[serde(skip)]
    pub forward_error: Option<String>,
    /// The highest final block, if no node has it any more.
    #[serde(skip)]
    pub lost_final: Option<u64>,
    /// Number of reorganizations.
    pub reorgs: u64,
    /// Depth of the deepest one.
    pub deepest_reorg: u64,
    /// Blocks stored at the head since the start.
    pub forward_blocks: u64,
    pub forward_logs: u64,
    /// Recent rate at the head.
    pub forward_blocks_per_second: u64,
    /// Blocks of history fetched since the start.
    pub history_blocks: u64,
    pub history_logs: u64,
    /// Recent rate of history.
    pub history_blocks_per_second: u64,
    /// Recent rate of logs of history.
    pub history_logs_per_second: u64,
    pub history_missing: Option<u64>,
    /// Lowest block of history that the nodes have and the settings ask for.
    pub history_floor: u64,
    /// Time to complete history at the recent rate.
    pub history_eta_seconds: Option<u64>,
}

impl Rate {
    fn add(&mut self, now: Duration, blocks: u64, logs: u64) {
        self.blocks += blocks;
        self.logs += logs;
        self.samples.push_back((now, blocks, logs));
        while self.samples.len() > RATE_SAMPLES {
            self.samples.pop_front();
        }
    }

    /// Recent blocks and logs per second.
    fn per_second(&self, now: Duration) -> (u64, u64) {
        let since = now.saturating_sub(RATE_WINDOW);
        let recent = self.samples.iter().filter(|(at, _, _)| *at >= since);
        let mut first = None;
        let (mut blocks, mut logs) = (0, 0);
        for (at, more_blocks, more_logs) in recent {
            first.get_or_insert(*at);
            blocks += more_blocks;
            logs += more_logs;
        }
        let span = first.map_or(RATE_WINDOW, |first| now.saturating_sub(first));
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1_000);
        (blocks * 1_000 / ms, logs * 1_000 / ms)
    }
}

impl Progress {
    pub fn new(clock: Arc<dyn Clock>, chain_id: u64) -> Self {
        let (looks, look_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        let (state, caught_up) = (Mutex::default(), watch::Sender::new(0));
        Self { clock, chain: chain_id.to_string().into(), state, looks, look_ms, caught_up }
    }

    /// Records that a look at the chain begins; returns its number.
    pub(crate) fn begin_look(&self) -> u64 {
        self.look_ms.store(self.now_ms(), Ordering::SeqCst);
        self.looks.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn end_look(&self, look: u64, is_caught_up: bool) {
        if is_caught_up {
            self.caught_up.send_replace(look);
        }
    }

    /// Completes once everything that the nodes had at the time of the call is stored; at once if this process does not
    /// write.
    pub fn next_look(&self) -> impl Future<Output = ()> + Send + use<> {
        let (begun, mut caught_up) =
            (self.looks.load(Ordering::SeqCst), self.caught_up.subscribe());
        let is_writer = self.role() == Role::Writer;
        async move {
            if is_writer {
                // If the sender is gone, nothing more is stored.
                let _ = caught_up.wait_for(|look| *look > begun).await;
            }
        }
    }

    /// If a look at the chain began at most this long ago, returns a future that completes once everything that the
    /// nodes had then is stored.
    pub fn look_under_way(
        &self,
        since: Duration,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let begun = self.looks.load(Ordering::SeqCst);
        if *self.caught_up.borrow() >= begun || !self.is_near() {
            return None;
        }
        let age_ms = self.now_ms().saturating_sub(self.look_ms.load(Ordering::SeqCst));
        let mut caught_up = self.caught_up.subscribe();
        (u128::from(age_ms) <= since.as_millis()).then_some(async move {
            // If the sender is gone, nothing more is stored.
            let _ = caught_up.wait_for(|look| *look >= begun).await;
        })
    }

    /// Whether the writer's store reaches nearly up to the head.
    fn is_near(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let near = |(head, target): (u64, u64)| head.saturating_add(NEAR_BLOCKS) >= target;
        state.role == Role::Writer && state.head.zip(state.target).is_some_and(near)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    fn role(&self) -> Role {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).role
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn set_role(&self, role: Role) {
        self.change(|state| state.role = role);
    }

    /// Records that a node has just reported the chain's head.
    pub(crate) fn record_target(&self, target: u64) {
        let now = self.clock.monotonic();
        self.change(|state| {
            state.target = Some(target);
            state.seen_at = Some((now, Duration::ZERO));
        });
    }

    /// Records the highest stored block; none if no block is left.
    pub(crate) fn set_head(&self, head: Option<u64>) {
        self.change(|state| state.head = head);
    }

    /// Takes over what another process has stored and seen; discards what this process saw itself.
    pub fn take_over(&self, head: Option<u64>, sighting: Option<&Sighting>) {
        let now = self.clock.monotonic();
        self.change(|state| {
            state.head = head;
            state.target = sighting.map(|seen| seen.head);
            state.writer_head = sighting.and_then(|seen| seen.stored);
            state.seen_at = sighting.map(|seen| (now, seen.age));
            state.damaged = sighting.map_or(0, |seen| seen.damaged);
            state.uncompared = sighting.and_then(|seen| seen.uncompared.clone());
            (state.forward_error, state.lost_final) = (None, None);
        });
    }

    pub(crate) fn set_uncompared(&self, found: Option<UncomparedBlocks>) {
        self.change(|state| state.uncompared = found);
    }

    /// The last reported head, the time of the report on the monotonic clock, and the highest stored block.
    pub(crate) fn last_report(&self) -> Option<(u64, Duration, Option<u64>)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (target, (at, age)) = state.target.zip(state.seen_at)?;
        Some((target, at.saturating_sub(age), state.head))
    }

    /// Records why no more blocks can be stored, if so. Returns true if that changed.
    pub(crate) fn set_stalled(&self, why: Option<String>) -> bool {
        let mut is_news = false;
        self.change(|state| {
            is_news = state.stalled != why;
            state.stalled = why;
        });
        is_news
    }

    /// Records the last error of a request to the nodes or of storing blocks.
    pub fn set_last_error(&self, error: String) {
        self.change(|state| state.last_error = Some(error));
    }

    /// Records an error that keeps blocks at the head from being stored.
    pub(crate) fn set_forward_error(&self, error: String) {
        self.set_last_error(error.clone());
        self.change(|state| state.forward_error = Some(error));
    }

    /// Records the highest final block if no node has it any more. Returns true if that changed.
    pub(crate) fn set_lost_final(&self, number: Option<u64>) -> bool {
        let mut is_news = false;
        self.change(|state| {
            is_news = state.lost_final != number;
            state.lost_final = number;
        });
        is_news
    }

    fn count(&self, name: &'static str, by: u64) {
        metrics::counter!(name, "chain" => Arc::clone(&self.chain)).increment(by);
    }

    pub(crate) fn count_reorg(&self, depth: u64) {
        self.count("logmill_reorgs_total", 1);
        self.change(|state| {
            state.reorgs += 1;
            state.deepest_reorg = state.deepest_reorg.max(depth);
        });
    }

    pub(crate) fn count_forward(&self, blocks: u64, logs: u64) {
        self.count("logmill_forward_blocks_total", blocks);
        let now = self.clock.monotonic();
        self.change(|state| {
            state.forward.add(now, blocks, logs);
            state.forward_error = None;
        });
    }

    pub(crate) fn count_history(&self, blocks: u64, logs: u64) {
        self.count("logmill_history_blocks_total", blocks);
        let now = self.clock.monotonic();
        self.change(|state| state.history.add(now, blocks, logs));
    }

    pub(crate) fn set_history_left(&self, missing: u64, floor: u64) {
        self.change(|state| {
            state.history_missing = Some(missing);
            state.history_floor = floor;
        });
    }

    pub fn report(&self) -> ProgressReport {
        let now = self.clock.monotonic();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (forward_rate, _) = state.forward.per_second(now);
        let (history_rate, history_logs_rate) = state.history.per_second(now);
        let behind = |target: u64| match state.head {
            Some(head) => target.saturating_sub(head),
            None => target.saturating_add(1),
        };
        let eta = |missing: u64| missing.checked_div(history_rate);
        let ago = |(at, age): (Duration, Duration)| {
            let ago = now.saturating_sub(at).saturating_add(age);
            u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)
        };
        ProgressReport {
            role: state.role,
            seen_ms_ago: state.seen_at.map(ago),
            damaged: state.damaged,
            uncompared: state.uncompared.clone(),
            head: state.head,
            target: state.target,
            writer_head: state.writer_head,
            behind: state.target.map(behind),
            stalled: state.stalled.clone(),
            last_error: state.last_error.clone(),
            forward_error: state.forward_error.clone(),
            lost_final: state.lost_final,
            reorgs: state.reorgs,
            deepest_reorg: state.deepest_reorg,
            forward_blocks: state.forward.blocks,
            forward_logs: state.forward.logs,
            forward_blocks_per_second: forward_rate,
            history_blocks: state.history.blocks,
            history_logs: state.history.logs,
            history_blocks_per_second: history_rate,
            history_logs_per_second: history_logs_rate,
            history_missing: state.history_missing,
            history_floor: state.history_floor,
            history_eta_seconds: state.history_missing.and_then(eta),
        }
    }
}

#[cfg(test)]
mod tests {
    use logmill_io::{SimClock, Timestamp};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sighting_may_be_older_than_the_process_that_reads_it() {
        let clock = SimClock::at(Timestamp(0));
        let progress = Progress::new(clock.clone(), 1_337);
        clock.sleep(Duration::from_secs(1)).await;
        let (age, owner) = (Duration::from_secs(25), "killed".to_owned());
        let (stored, uncompared) = (Some(9), None);
        let sighting = Sighting { head: 9, stored, age, owner, damaged: 0, uncompared };
        progress.take_over(Some(9), Some(&sighting));
        clock.sleep(Duration::from_secs(2)).await;
        assert_eq!(progress.report().seen_ms_ago, Some(27_000));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_at_the_head_applies_until_blocks_are_stored() {
        let progress = Progress::new(SimClock::at(Timestamp(0)), 1_337);
        progress.set_forward_error("a false block".to_owned());
        assert_eq!(progress.report().forward_error.as_deref(), Some("a false block"));
        progress.count_forward(1, 0);
        let report = progress.report();
        assert_eq!(report.forward_error, None);
        assert_eq!(report.last_error.as_deref(), Some("a false block"), "it stays in the status");
    }
}
