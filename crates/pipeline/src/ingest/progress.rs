//! How far ingest is: numbers that both ingesters write and status shows.
//!
//! Guarantees: reading waits for nobody. Leaves to others: how it is shown.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logmill_io::Clock;
use serde::Serialize;

/// How long a rate looks back.
const RATE_WINDOW: Duration = Duration::from_secs(30);
/// The most samples of a rate.
const RATE_SAMPLES: usize = 512;

/// How far ingest is.
#[derive(Debug)]
pub struct Progress {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    head: Option<u64>,
    target: Option<u64>,
    /// When a node last reported the target, on the monotonic clock.
    seen_at: Option<Duration>,
    stalled: Option<String>,
    last_error: Option<String>,
    reorgs: u64,
    deepest_reorg: u64,
    forward: Rate,
    history: Rate,
    history_missing: Option<u64>,
    history_floor: u64,
}

/// What was done of late.
#[derive(Debug, Default)]
struct Rate {
    samples: VecDeque<(Duration, u64, u64)>,
    blocks: u64,
    logs: u64,
}

/// How far ingest is, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgressReport {
    /// The highest block that is stored.
    pub head: Option<u64>,
    /// The highest block of the chain.
    pub target: Option<u64>,
    /// How long ago a node last reported that block, in milliseconds.
    pub seen_ms_ago: Option<u64>,
    /// How many blocks are missing between them.
    pub behind: Option<u64>,
    /// Why nothing more can be stored for now, if so.
    pub stalled: Option<String>,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
    /// How often the chain changed.
    pub reorgs: u64,
    /// How deep it changed at most.
    pub deepest_reorg: u64,
    /// Blocks that came at the head since the start.
    pub forward_blocks: u64,
    /// Their logs.
    pub forward_logs: u64,
    /// Blocks a second of late, at the head.
    pub forward_blocks_per_second: u64,
    /// Blocks of history that came since the start.
    pub history_blocks: u64,
    /// Their logs.
    pub history_logs: u64,
    /// Blocks of history a second of late.
    pub history_blocks_per_second: u64,
    /// Logs of history a second of late.
    pub history_logs_per_second: u64,
    /// Blocks of history that are still missing.
    pub history_missing: Option<u64>,
    /// Below which block there is no history to be had, or none is wanted.
    pub history_floor: u64,
    /// How long the rest of history takes at this rate, in seconds.
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

    /// Blocks and logs a second of late.
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
    /// Nothing has happened yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn at(&self, head: Option<u64>, target: u64) {
        let now = self.clock.monotonic();
        self.change(|state| {
            state.seen_at = Some(now);
            state.head = head.or(state.head);
            state.target = Some(target);
        });
    }

    pub(crate) fn stalled(&self, why: Option<String>) {
        self.change(|state| state.stalled = why);
    }

    pub(crate) fn failed(&self, error: String) {
        self.change(|state| state.last_error = Some(error));
    }

    pub(crate) fn reorganized(&self, depth: u64) {
        metrics::counter!("logmill_reorgs_total").increment(1);
        self.change(|state| {
            state.reorgs += 1;
            state.deepest_reorg = state.deepest_reorg.max(depth);
        });
    }

    pub(crate) fn forward(&self, blocks: u64, logs: u64) {
        metrics::counter!("logmill_forward_blocks_total").increment(blocks);
        let now = self.clock.monotonic();
        self.change(|state| state.forward.add(now, blocks, logs));
    }

    pub(crate) fn history(&self, blocks: u64, logs: u64) {
        metrics::counter!("logmill_history_blocks_total").increment(blocks);
        let now = self.clock.monotonic();
        self.change(|state| state.history.add(now, blocks, logs));
    }

    pub(crate) fn history_left(&self, missing: u64, floor: u64) {
        self.change(|state| {
            state.history_missing = Some(missing);
            state.history_floor = floor;
        });
    }

    /// How far it is now.
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
        ProgressReport {
            head: state.head,
            target: state.target,
            seen_ms_ago: state
                .seen_at
                .map(|at| u64::try_from(now.saturating_sub(at).as_millis()).unwrap_or(u64::MAX)),
            behind: state.target.map(behind),
            stalled: state.stalled.clone(),
            last_error: state.last_error.clone(),
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
