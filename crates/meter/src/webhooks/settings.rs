//! Settings of webhooks: times, limits, and whether anything is sent at all.
//!
//! Guarantees: every number has a default, and settings that pass [`WebhookSettings::check`] can be worked with.
//! Leaves to others: where they are written down.

use std::time::Duration;

use logmill_io::wire::GuardedSettings;
use logmill_io::wire::guarded::Allowed;
use logmill_work::Backoff;

use super::lanes::{Class, PUT_OFF_MAX};
use crate::error::{Error, Result};

/// The longest overlap of two secrets.
pub const OVERLAP_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// By how much a job may be later than it was meant to be.
const SLACK: Duration = Duration::from_secs(MINUTE);

/// The waits after each failed attempt: those of Standard Webhooks. Ten attempts in all, over three days.
const WAITS_S: [u64; 9] =
    [5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR];

/// How webhooks are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// The longest until an endpoint has answered. Standard Webhooks asks for 15 to 30 seconds; the shorter a stalled
    /// endpoint holds its slots, the better.
    pub timeout: Duration,
    /// How long to wait after the first failed attempt, the second …; after the last of them a delivery is exhausted.
    pub waits: Vec<Duration>,
    /// How far a wait may be from its middle, in percent.
    pub jitter_percent: u32,
    /// The shortest wait after an answer that says that it is too much (429, 502, 504), and after none in time.
    pub throttle: Duration,
    /// The longest that an endpoint may ask for by `Retry-After`.
    pub retry_after_max: Duration,
    /// An endpoint that has failed for so long without one success is disabled.
    pub disable_after: Duration,
    /// How long an old secret signs along, if a rotation does not say.
    pub overlap: Duration,
    /// How many first attempts are under way at a time.
    pub first_slots: usize,
    /// How many first attempts of endpoints that are too slow for what they get are under way at a time; replays too.
    pub overflow_slots: usize,
    /// How many further attempts, and attempts on failing endpoints, are under way at a time.
    pub retry_slots: usize,
    /// How many requests to one endpoint are under way at a time.
    pub endpoint_slots: usize,
    /// How much of an answer's body is kept.
    pub response_bytes_max: usize,
    /// Signs and records, and sends nothing.
    pub dry_run: bool,
    /// How long a delivery that is under way belongs to its process without a sign of life.
    pub lease: Duration,
    /// How long messages, settled deliveries and their attempts are kept.
    pub retention: Duration,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(15),
            waits: WAITS_S.map(Duration::from_secs).to_vec(),
            jitter_percent: 20,
            throttle: Duration::from_secs(MINUTE),
            retry_after_max: Duration::from_secs(HOUR),
            disable_after: Duration::from_secs(120 * HOUR),
            overlap: Duration::from_secs(24 * HOUR),
            first_slots: 256,
            overflow_slots: 64,
            retry_slots: 64,
            endpoint_slots: 16,
            response_bytes_max: 20_000,
            dry_run: false,
            lease: Duration::from_secs(MINUTE),
            retention: Duration::from_secs(30 * 24 * HOUR),
        }
    }
}

impl WebhookSettings {
    /// Refuses settings that could not work.
    pub fn check(&self) -> Result<()> {
        let slots = [self.first_slots, self.overflow_slots, self.retry_slots, self.endpoint_slots];
        if slots.contains(&0) {
            return Err(Error::invalid("webhooks need at least one slot of every kind"));
        }
        if self.timeout.is_zero() || self.lease < self.timeout {
            return Err(Error::invalid(
                "the lease of a delivery is at least its timeout, not zero",
            ));
        }
        if self.jitter_percent > 100 || self.overlap > OVERLAP_MAX {
            return Err(Error::invalid("jitter is at most 100 percent, an overlap at most 7 days"));
        }
        Ok(())
    }

    /// What a client for webhooks may do: any port, no redirects, and what is not public only as given.
    pub fn guard(&self, allowed: Vec<Allowed>) -> GuardedSettings {
        GuardedSettings {
            ports: Vec::new(),
            redirects_max: 0,
            allowed,
            idle_per_host_max: self.endpoint_slots,
        }
    }

    /// No attempt of a class is later than this from now, unless a clock was ahead when it was put off. For retries
    /// this is twice the longest wait between two attempts.
    pub(super) fn wait_max(&self, class: Class) -> Duration {
        let pause = self.retry_after_max.max(self.throttle);
        let put_off = pause + PUT_OFF_MAX + SLACK;
        match class {
            // They are due at once: whatever has to wait is of another class.
            Class::First => SLACK,
            Class::Overflow => put_off,
            Class::Retry => {
                let longest = self.waits.iter().max().copied().unwrap_or_default();
                let twice = (longest + self.retry_after_max + self.throttle).saturating_mul(2);
                twice.max(put_off)
            }
        }
    }

    /// The rule for waiting.
    pub(super) fn backoff(&self) -> Backoff {
        Backoff::Table { waits: self.waits.clone(), jitter_percent: self.jitter_percent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_standard_webhooks() {
        let settings = WebhookSettings::default();
        settings.check().expect("the defaults work");
        let all: u64 = settings.waits.iter().map(Duration::as_secs).sum();
        assert_eq!((settings.waits.len() + 1, all), (10, 75 * HOUR + 35 * MINUTE + 5));
    }

    #[test]
    fn nothing_that_waits_as_it_should_is_taken_for_late() {
        let minute = Duration::from_secs(MINUTE);
        let tiny = WebhookSettings { waits: vec![], ..WebhookSettings::default() };
        let tiny = WebhookSettings { retry_after_max: Duration::ZERO, throttle: minute, ..tiny };
        for settings in [WebhookSettings::default(), tiny] {
            assert!(settings.wait_max(Class::First) <= minute);
            let pause = settings.retry_after_max.max(settings.throttle);
            for class in [Class::Overflow, Class::Retry] {
                assert!(settings.wait_max(class) > pause + PUT_OFF_MAX, "{class:?}");
            }
        }
        let default = WebhookSettings::default();
        assert!(default.wait_max(Class::Overflow) < Duration::from_secs(2 * HOUR));
        assert!(default.wait_max(Class::Retry) > Duration::from_secs(24 * HOUR) * 12 / 10);
    }

    #[test]
    fn settings_that_could_not_work_are_refused() {
        let fine = WebhookSettings::default;
        for wrong in [
            WebhookSettings { first_slots: 0, ..fine() },
            WebhookSettings { endpoint_slots: 0, ..fine() },
            WebhookSettings { timeout: Duration::ZERO, ..fine() },
            WebhookSettings { lease: Duration::from_secs(1), ..fine() },
            WebhookSettings { jitter_percent: 101, ..fine() },
            WebhookSettings { overlap: OVERLAP_MAX + Duration::from_secs(1), ..fine() },
        ] {
            wrong.check().expect_err("it is refused");
        }
    }
}
