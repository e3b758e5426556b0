//! The mode of a collector, history or head, which decides how long it waits.
//!
//! ```text
//!   historical ── nothing left, or at most a batch behind ──▶ realtime
//!       ▲                                                        │
//!       └────────────── five batches or more behind ─────────────┘
//! ```
//!
//! Guarantees: pure. Leaves to others: waiting, which happens when there is nothing to do or after a failure, never
//! while there is more to collect.

/// A collector at the head that is this many batches behind returns to history mode.
const FAR_BATCHES: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Behind the head.
    Historical,
    /// At the head.
    Realtime,
}

impl Mode {
    /// The mode after claiming a range that ends `lag` blocks below the newest final block.
    #[must_use]
    pub fn after_claim(self, lag: u64, batch: u64) -> Self {
        match self {
            Self::Historical if lag <= batch => Self::Realtime,
            Self::Realtime if lag >= batch.saturating_mul(FAR_BATCHES) => Self::Historical,
            same => same,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Historical => "historical",
            Self::Realtime => "realtime",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Historical, Realtime};

    #[test]
    fn the_mode_follows_the_lag() {
        for (before, lag, after) in [
            (Historical, 101, Historical),
            (Historical, 100, Realtime),
            (Historical, 0, Realtime),
            (Realtime, 0, Realtime),
            (Realtime, 101, Realtime),
            (Realtime, 499, Realtime),
            (Realtime, 500, Historical),
            (Historical, u64::MAX, Historical),
        ] {
            assert_eq!(before.after_claim(lag, 100), after, "{before:?} {lag}");
        }
    }
}
