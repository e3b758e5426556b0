//! Limits the requests per second.
//!
//! Guarantees: pure; never more than the rate allows over any time, except for one burst of a second's worth. Leaves
//! to others: waiting.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Pace {
    per_second: Option<u32>,
    /// When the rate has caught up with all requests so far.
    paid_at: Duration,
}

impl Pace {
    pub(super) fn new(per_second: Option<u32>) -> Self {
        Self { per_second: per_second.filter(|rate| *rate > 0), paid_at: Duration::ZERO }
    }

    /// Counts `requests` at `now`, and returns how long to wait before sending them.
    pub(super) fn take(&mut self, now: Duration, requests: usize) -> Duration {
        let Some(rate) = self.per_second else {
            return Duration::ZERO;
        };
        let burst = Duration::from_secs(1);
        let each = burst / rate;
        let cost = each.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        self.paid_at = self.paid_at.max(now).saturating_add(cost);
        self.paid_at.saturating_sub(now.saturating_add(burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut pace = Pace::new(Some(10));
        let now = Duration::from_secs(100);
        let waits: Vec<u128> = (0..4).map(|_| pace.take(now, 5).as_millis()).collect();
        assert_eq!(waits, [0, 0, 500, 1000]);
        assert_eq!(pace.take(now + Duration::from_secs(10), 10), Duration::ZERO);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        for rate in [None, Some(0)] {
            let mut pace = Pace::new(rate);
            assert_eq!(pace.take(Duration::ZERO, usize::MAX), Duration::ZERO);
        }
    }
}
