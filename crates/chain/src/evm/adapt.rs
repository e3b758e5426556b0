//! A size that finds out how much a node takes: halved when it was too much, grown slowly while all goes well.
//!
//! Guarantees: pure; never 0, never above its bound. Leaves to others: what is counted.

/// After how many good answers in a row a size grows.
const GOOD_BEFORE_GROWTH: u32 = 10;

/// How many blocks or calls are asked for at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    now: u64,
    max: u64,
    good: u32,
}

impl Size {
    pub(super) fn new(first: u64, max: u64) -> Self {
        let max = max.max(1);
        Self { now: first.clamp(1, max), max, good: 0 }
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// `asked` went well. Less than the size says nothing about more.
    pub(super) fn went_well(&mut self, asked: u64) {
        if asked < self.now {
            return;
        }
        self.good += 1;
        if self.good >= GOOD_BEFORE_GROWTH {
            self.good = 0;
            self.now = (self.now + self.now / 2).max(self.now + 1).min(self.max);
        }
    }

    /// `asked` was too much; `better` is what the node says would do.
    pub(super) fn was_too_much(&mut self, asked: u64, better: Option<u64>) {
        self.good = 0;
        let half = (asked / 2).max(1);
        let next = better.filter(|better| (1..asked).contains(better)).unwrap_or(half);
        // Several answers to the same size may come at once: it is halved for one of them.
        self.now = self.now.min(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_shrinks_at_once_and_grows_slowly() {
        let mut size = Size::new(16, 20);
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
    fn a_suggestion_is_taken_if_it_is_less_and_something_is_always_left() {
        let mut size = Size::new(1000, 1000);
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
        assert_eq!(Size::new(0, 0).now(), 1);
    }
}
