//! A request size that adapts to what a node accepts: halved when it was too large, grown slowly while requests
//! succeed.
//!
//! Guarantees: pure; never 0, never above its bound, and not back to a refused size before many successes. Leaves to
//! others: what is counted.

/// Successes in a row before a size grows.
const GOOD_BEFORE_GROWTH: u32 = 10;

/// Successes in a row, at the largest size not known to be refused, before a refused size is tried again: the limits
/// of nodes rarely change, but a refusal may have been an accident.
const GOOD_BEFORE_RETRY: u32 = 200;

/// Number of blocks or calls per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestSize {
    now: u64,
    max: u64,
    good: u32,
    /// The smallest size that was refused.
    refused: Option<u64>,
}

impl RequestSize {
    pub(super) fn new(first: u64, max: u64) -> Self {
        let max = max.max(1);
        Self { now: first.clamp(1, max), max, good: 0, refused: None }
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// A request for `asked` succeeded. One smaller than the current size proves nothing about larger ones.
    pub(super) fn went_well(&mut self, asked: u64) {
        if asked < self.now {
            return;
        }
        self.good += 1;
        let max = self.refused.map_or(self.max, |refused| self.max.min(refused - 1).max(1));
        if self.now >= max && self.good >= GOOD_BEFORE_RETRY {
            self.refused = None;
        }
        if self.good >= GOOD_BEFORE_GROWTH && self.now < max {
            self.good = 0;
            self.now = (self.now + self.now / 2).max(self.now + 1).min(max);
        }
    }

    /// `asked` was refused and the smaller `taken` was accepted; remembers the refused size.
    pub(super) fn was_refused(&mut self, asked: u64, taken: u64) {
        self.good = 0;
        let asked = asked.max(2);
        self.refused = Some(self.refused.map_or(asked, |refused| refused.min(asked)));
        self.now = self.now.min(taken.max(1));
    }

    /// `asked` was too large; `better` is the size that the node suggested.
    pub(super) fn was_too_much(&mut self, asked: u64, better: Option<u64>) {
        self.good = 0;
        let half = (asked / 2).max(1);
        let next = better.filter(|better| (1..asked).contains(better)).unwrap_or(half);
        // Several requests of the same size may fail at once: the size is halved only once for them.
        self.now = self.now.min(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_shrinks_at_once_and_grows_slowly() {
        let mut size = RequestSize::new(16, 20);
        size.was_too_much(16, None);
        size.was_too_much(16, None);
        assert_eq!(size.now(), 8);
        for _ in 0..9 {
            size.went_well(8);
        }
        size.went_well(3);
        assert_eq!(size.now(), 8);
        size.went_well(8);
        assert_eq!(size.now(), 12);
        for _ in 0..40 {
            size.went_well(size.now());
        }
        assert_eq!(size.now(), 20);
    }

    #[test]
    fn a_refused_size_is_not_tried_again_before_long() {
        let mut size = RequestSize::new(100, 100);
        size.was_refused(6, 3);
        let mut largest = 0;
        for _ in 0..200 {
            size.went_well(size.now());
            largest = largest.max(size.now());
        }
        assert_eq!(largest, 5, "the largest that was not refused");
        size.was_refused(4, 2);
        assert_eq!(size.now(), 2);
        for _ in 0..1_000 {
            size.went_well(size.now());
        }
        assert!(size.now() > 4, "a limit that is gone is noticed");
    }

    #[test]
    fn a_smaller_suggestion_is_used_and_the_size_is_never_zero() {
        let mut size = RequestSize::new(1000, 1000);
        size.was_too_much(1000, Some(50));
        assert_eq!(size.now(), 50);
        size.was_too_much(50, Some(80));
        assert_eq!(size.now(), 25);
        size.was_too_much(25, Some(0));
        assert_eq!(size.now(), 12);
        size.was_too_much(1, None);
        assert_eq!(size.now(), 1);
        for _ in 0..10 {
            size.went_well(1);
        }
        assert_eq!(size.now(), 2);
        assert_eq!(RequestSize::new(0, 0).now(), 1);
    }
}
