//! Arrivals: when nodes first reported each head, and how long after that its block became readable here.
//!
//! The metric `logmill_block_lag_seconds` counts each block that appeared after the start once: from the moment when a
//! node first reported a head at or above it, in a notification or an answer, until the commit that makes the block
//! readable. A head without a notification is first known when a node is asked, so without notifications the poll
//! interval is not part of the measurement. Blocks that replace others are not counted.
//!
//! Guarantees: bounded memory; a head that was announced but never confirmed by an answer is not measured. Leaves to
//! others: asking nodes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of remembered heads. A block that is further behind is measured from a later head.
const HEADS_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The first head seen: blocks up to it existed before the start and are not measured.
    first: Option<u64>,
    /// Heads in ascending order, each with the time of its first report.
    heads: VecDeque<(u64, Duration)>,
    /// Announced heads that no answer has confirmed yet.
    announced: VecDeque<(u64, Duration)>,
}

impl Arrivals {
    /// Records notifications of heads, each with its age at `now`.
    pub(super) fn record_announcements(&self, heads: Vec<(u64, Duration)>, now: Duration) {
        let mut state = self.state();
        let heads = heads.into_iter().map(|(number, age)| (number, now.saturating_sub(age)));
        state.announced.extend(heads);
        let over = state.announced.len().saturating_sub(HEADS_MAX);
        state.announced.drain(..over);
    }

    /// Records a node's answer at `now` that `head` is the newest block.
    pub(super) fn record_head(&self, head: u64, now: Duration) {
        let mut state = self.state();
        let all = std::mem::take(&mut state.announced);
        let (confirmed, open): (Vec<_>, Vec<_>) = all.into_iter().partition(|at| at.0 <= head);
        state.announced = open.into();
        state.first.get_or_insert(head);
        for (number, at) in confirmed.into_iter().chain([(head, now)]) {
            if state.heads.back().is_none_or(|last| last.0 < number) {
                state.heads.push_back((number, at));
            }
        }
        let over = state.heads.len().saturating_sub(HEADS_MAX);
        state.heads.drain(..over);
    }

    /// Time since a node first reported a block; none if the block existed before the start.
    pub(super) fn age(&self, number: u64, now: Duration) -> Option<Duration> {
        let state = self.state();
        if state.first.is_none_or(|first| number <= first) {
            return None;
        }
        let report = state.heads.iter().find(|(head, _)| *head >= number);
        report.map(|(_, at)| now.saturating_sub(*at))
    }

    /// Records the lag of blocks that are readable from `now` on.
    pub(super) fn record_readable(
        &self,
        chain: u64,
        numbers: impl Iterator<Item = u64>,
        now: Duration,
    ) {
        for number in numbers {
            if let Some(lag) = self.age(number, now) {
                metrics::histogram!("logmill_block_lag_seconds", "chain" => chain.to_string())
                    .record(lag);
            }
        }
    }

    /// Forgets heads above a block that a reorganization replaced: other blocks of these heights arrive later.
    pub(super) fn forget_above(&self, number: u64) {
        self.state().heads.retain(|(head, _)| *head <= number);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_block_is_measured_from_its_first_report() {
        let arrivals = Arrivals::default();
        arrivals.record_head(10, ms(1_000));
        assert_eq!(arrivals.age(10, ms(1_001)), None, "it existed before the start");
        arrivals.record_announcements(vec![(11, ms(500)), (12, ms(20))], ms(2_000));
        arrivals.record_head(12, ms(2_010));
        arrivals.record_announcements(vec![(12, ms(1))], ms(2_500));
        arrivals.record_head(12, ms(2_500));
        assert_eq!(arrivals.age(11, ms(2_600)), Some(ms(1_100)));
        assert_eq!(arrivals.age(12, ms(2_600)), Some(ms(620)));
        assert_eq!(arrivals.age(13, ms(2_600)), None, "no node has reported it");
    }

    #[test]
    fn an_announced_head_counts_once_an_answer_confirms_it() {
        let arrivals = Arrivals::default();
        arrivals.record_head(10, ms(0));
        arrivals.record_announcements(vec![(11, ms(10)), (1_000_000, ms(10))], ms(100));
        arrivals.record_head(10, ms(100));
        assert_eq!(arrivals.age(11, ms(100)), None);
        arrivals.record_head(11, ms(200));
        assert_eq!(arrivals.age(11, ms(200)), Some(ms(110)));
        arrivals.forget_above(10);
        arrivals.record_head(11, ms(900));
        assert_eq!(arrivals.age(11, ms(901)), Some(ms(1)), "another block of the same number");
    }
}
