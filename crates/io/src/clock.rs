//! Time: wall clock, monotonic clock and sleep; real and simulated.
//!
//! Guarantees: only this crate reads a clock (enforced by a lint). A simulated clock follows tokio's paused
//! time, so a test that waits an hour takes no time. Leaves to others: calendars and time zones. Lease times
//! come from the store that keeps the lease, see [`crate::MetaStore::now`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;

/// Milliseconds since 1970, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub fn millis(self) -> i64 {
        self.0
    }

    /// The time `wait` later; saturates.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(millis(wait)))
    }

    /// The duration since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// A duration in whole milliseconds, as stored.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub trait Clock: Send + Sync + fmt::Debug {
    /// The wall clock. It may jump in both directions.
    fn now(&self) -> Timestamp;
    /// Time since a fixed start. It never goes back.
    fn monotonic(&self) -> Duration;
    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()>;
}

#[derive(Debug)]
pub struct SystemClock {
    started: tokio::time::Instant,
}

impl SystemClock {
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { started: tokio::time::Instant::now() })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(millis(since))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(wait))
    }
}

/// A clock for tests: starts at a given time, follows tokio's (usually paused) time, and can make its wall
/// clock jump.
#[derive(Debug)]
pub struct SimClock {
    start: Timestamp,
    origin: tokio::time::Instant,
    jumped_ms: AtomicI64,
}

impl SimClock {
    pub fn at(start: Timestamp) -> Arc<Self> {
        Arc::new(Self { start, origin: tokio::time::Instant::now(), jumped_ms: AtomicI64::new(0) })
    }

    /// Moves the wall clock by `by_ms`, back or forward; the monotonic clock stays.
    pub fn jump(&self, by_ms: i64) {
        self.jumped_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let passed = millis(self.origin.elapsed());
        Timestamp(self.start.0 + passed + self.jumped_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_simulated_hour_takes_no_time_and_is_seen_by_both_clocks() {
        let clock = SimClock::at(Timestamp(1_000));
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now(), Timestamp(3_601_000));
        assert_eq!(clock.monotonic(), Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_moves_the_wall_clock_alone() {
        let clock = SimClock::at(Timestamp(5_000));
        clock.jump(-4_000);
        assert_eq!(clock.now(), Timestamp(1_000));
        assert_eq!(clock.monotonic(), Duration::ZERO);
    }

    #[test]
    fn timestamps_far_apart_do_not_overflow() {
        assert_eq!(Timestamp(i64::MAX).after(Duration::from_secs(1)), Timestamp(i64::MAX));
        assert_eq!(Timestamp(1).since(Timestamp(5)), Duration::ZERO);
        assert_eq!(Timestamp(5).since(Timestamp(1)), Duration::from_millis(4));
    }
}
