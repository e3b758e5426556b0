//! Whether a node may be asked now.
//!
//! Guarantees: pure; a node that fails rests longer each time, one that returns false blocks much longer, and one
//! that answers is healthy again. While no other node can be asked, none rests longer than [`LAST_NODE_REST_MAX`]
//! from its last error. Leaves to others: what counts as a failure, and which nodes there are.

use std::time::Duration;

use logmill_io::Entropy;
use logmill_work::Backoff;

/// After failures.
const FAILURE: Backoff = Backoff::Exponential {
    first: Duration::from_millis(500),
    max: Duration::from_secs(60),
    jitter_percent: 20,
};

/// After false blocks.
const LIE: Backoff = Backoff::Exponential {
    first: Duration::from_secs(10),
    max: Duration::from_secs(3600),
    jitter_percent: 20,
};

/// Maximum rest of a node while no other can be asked: a failed request a minute costs less than standing still.
const LAST_NODE_REST_MAX: Duration = Duration::from_secs(60);
/// Longer `Retry-After` waits are cut to this.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    failed_in_a_row: i64,
    lies: u64,
    resting_since: Duration,
    resting_until: Duration,
}

impl Health {
    /// Remaining rest; `None` if it can be asked.
    pub(super) fn rest(&self, now: Duration) -> Option<Duration> {
        self.resting_until.checked_sub(now).filter(|rest| !rest.is_zero())
    }

    /// Remaining rest while no other node can be asked; `None` if it can be asked.
    pub(super) fn rest_as_last(&self, now: Duration) -> Option<Duration> {
        let until = self.resting_since.saturating_add(LAST_NODE_REST_MAX).min(self.resting_until);
        until.checked_sub(now).filter(|rest| !rest.is_zero())
    }

    pub(super) fn lies(&self) -> u64 {
        self.lies
    }

    pub(super) fn answered(&mut self) {
        self.failed_in_a_row = 0;
    }

    /// Records a failure, with the wait that the node requested, if any.
    pub(super) fn failed(
        &mut self,
        now: Duration,
        retry_after: Option<Duration>,
        entropy: &dyn Entropy,
    ) {
        let asked_for = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        if self.rest_as_last(now).is_some() {
            // Concurrent requests fail together: that is one failure.
            if !asked_for.is_zero() {
                self.rest_for(now, asked_for);
            }
            return;
        }
        self.failed_in_a_row += 1;
        let rest = FAILURE.wait(self.failed_in_a_row, entropy).max(asked_for);
        self.rest_for(now, rest);
    }

    pub(super) fn lied(&mut self, now: Duration, entropy: &dyn Entropy) {
        self.lies = self.lies.saturating_add(1);
        let lies = i64::try_from(self.lies).unwrap_or(i64::MAX);
        self.rest_for(now, LIE.wait(lies, entropy));
    }

    pub(super) fn rest_for(&mut self, now: Duration, rest: Duration) {
        self.resting_since = now;
        self.resting_until = self.resting_until.max(now.saturating_add(rest));
    }
}

#[cfg(test)]
mod tests {
    use logmill_io::SeededEntropy;

    use super::*;

    #[test]
    fn each_failure_rests_longer_and_an_answer_resets_the_rest() {
        let entropy = SeededEntropy::shared(3);
        let mut health = Health::default();
        let now = Duration::from_secs(1000);
        assert_eq!(health.rest(now), None);
        health.failed(now, None, &*entropy);
        let first = health.rest(now).expect("it rests");
        assert!((400..=600).contains(&first.as_millis()), "{first:?}");
        health.failed(now + first, None, &*entropy);
        let second = health.rest(now + first).expect("it rests");
        assert!((800..=1200).contains(&second.as_millis()), "{second:?}");
        health.answered();
        let later = now + Duration::from_secs(100);
        assert_eq!(health.rest(later), None);
        health.failed(later, None, &*entropy);
        assert!(health.rest(later).expect("it rests") <= Duration::from_millis(600));
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let entropy = SeededEntropy::shared(3);
        let mut health = Health::default();
        for _ in 0..8 {
            health.failed(Duration::ZERO, None, &*entropy);
        }
        assert!(health.rest(Duration::ZERO).expect("it rests") <= Duration::from_millis(600));
    }

    #[test]
    fn a_node_is_left_alone_as_long_as_it_asks_for() {
        let mut health = Health::default();
        let asked = Duration::from_secs(90);
        health.failed(Duration::ZERO, Some(asked), &*SeededEntropy::shared(1));
        assert_eq!(health.rest(Duration::ZERO), Some(asked));
    }

    #[test]
    fn the_last_node_rests_at_most_a_minute() {
        let minute = Some(Duration::from_secs(60));
        let (day, entropy) = (Duration::from_secs(86_400), SeededEntropy::shared(1));
        let mut throttled = Health::default();
        throttled.failed(Duration::ZERO, Some(day), &*entropy);
        assert_eq!(throttled.rest(Duration::ZERO), Some(RETRY_AFTER_MAX));
        assert_eq!(throttled.rest_as_last(Duration::ZERO), minute);
        let later = Duration::from_secs(61);
        assert_eq!(throttled.rest_as_last(later), None);
        // It was asked again, and requests the same wait.
        throttled.failed(later, Some(day), &*entropy);
        assert_eq!(throttled.rest_as_last(later), minute);
        let mut liar = Health::default();
        for _ in 0..9 {
            liar.lied(later, &*entropy);
        }
        assert!(liar.rest(later).expect("it rests") > 10 * Duration::from_secs(60));
        assert_eq!(liar.rest_as_last(later), minute);
        let mut failing = Health::default();
        failing.failed(later, None, &*entropy);
        assert_eq!(failing.rest_as_last(later), failing.rest(later), "a short rest stays short");
    }

    #[test]
    fn lies_are_remembered() {
        let entropy = SeededEntropy::shared(1);
        let mut health = Health::default();
        for _ in 0..5 {
            health.lied(Duration::ZERO, &*entropy);
            health.answered();
        }
        assert_eq!(health.lies(), 5);
        assert!(health.rest(Duration::ZERO).expect("it rests") > Duration::from_secs(120));
    }
}
