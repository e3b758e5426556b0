//! Whether a collector works through history or waits at the head, and how long it waits.
//!
//! ```text
//!   historical ── nothing left, or at most a batch behind ──▶ realtime
//!       ▲                                                        │
//!       └────────────── five batches or more behind ─────────────┘
//! ```
//!
//! Guarantees: pure. Leaves to others: waiting, which happens when there is nothing to do or after a failure, and never
//! while there is more to collect.

/// Behind by this many batches, a collector at the head is one of history again.
const FAR_BATCHES: u64 = 5;

/// What a collector is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is behind.
    Historical,
    /// It is at the head.
    Realtime,
}

impl Mode {
    /// What it is at after it has claimed a range that ends this many blocks below the newest.
    #[must_use]
    pub fn after_claim(self, lag: u64, batch: u64) -> Self {
        match self {
            Self::Historical if lag <= batch => Self::Realtime,
            Self::Realtime if lag >= batch.saturating_mul(FAR_BATCHES) => Self::Historical,
            same => same,
        }
    }

    /// Its name.
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
