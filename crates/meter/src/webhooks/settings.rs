//! Settings of webhooks: times, limits, and the dry run.
//!
//! Guarantees: every setting has a default, and settings that pass [`WebhookSettings::check`] are usable. Leaves to
//! others: the configuration file.

use std::time::Duration;

use logmill_io::wire::GuardedSettings;
use logmill_io::wire::guarded::AllowedTarget;
use logmill_work::Backoff;

use super::endpoint_queues::{Class, POSTPONE_MAX};
use crate::error::{Error, Result};

/// Maximum time during which an old and a new secret both sign.
pub(super) const OVERLAP_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// How much later than planned a job may run.
const SLACK: Duration = Duration::from_secs(MINUTE);

/// Delays after each failed attempt, as in Standard Webhooks. Ten attempts in all, over three days.
const WAITS_S: [u64; 9] =
    [5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// Maximum time until an endpoint has answered. Standard Webhooks asks for 15 to 30 seconds; the sooner a stalled
    /// endpoint frees its slots, the better.
    pub timeout: Duration,
    /// Delays after the first failed attempt, the second …; a delivery that fails after the last of them is
    /// exhausted.
    pub waits: Vec<Duration>,
    /// Maximum deviation from a delay, in percent.
    pub jitter_percent: u32,
    /// Minimum delay after a response that signals overload (429, 502, 504), and after a timeout.
    pub throttle: Duration,
    /// Upper bound for `Retry-After`.
    pub retry_after_max: Duration,
    /// An endpoint that has failed this long without a success is disabled.
    pub disable_after: Duration,
    /// Default overlap after rotation, during which both secrets sign.
    pub overlap: Duration,
    /// Concurrent first attempts.
    pub first_slots: usize,
    /// Concurrent first attempts of endpoints that are too slow for their traffic, and replays.
    pub overflow_slots: usize,
    /// Concurrent further attempts, and attempts on failing endpoints.
    pub retry_slots: usize,
    /// Concurrent requests to one endpoint.
    pub endpoint_slots: usize,
    /// Bytes of a response body that are kept.
    pub response_bytes_max: usize,
    /// Signs and records, and sends nothing.
    pub dry_run: bool,
    /// How long a process keeps a claimed delivery without a heartbeat.
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
    pub fn check(&self) -> Result<()> {
        let slots = [self.first_slots, self.overflow_slots, self.retry_slots, self.endpoint_slots];
        if slots.contains(&0) {
            return Err(Error::invalid("webhooks need at least one slot of every kind"));
        }
        if self.timeout.is_zero() || self.lease < self.timeout {
            return Err(Error::invalid(
                "the lease of a delivery must be at least its timeout, and the timeout more than zero",
            ));
        }
        if self.jitter_percent > 100 || self.overlap > OVERLAP_MAX {
            return Err(Error::invalid(
                "jitter must be at most 100 percent, and the overlap at most 7 days",
            ));
        }
        Ok(())
    }

    /// Limits of the HTTP client: any port, no redirects, and non-public addresses only if `allowed`.
    pub fn guard(&self, allowed: Vec<AllowedTarget>) -> GuardedSettings {
        GuardedSettings {
            ports: Vec::new(),
            redirects_max: 0,
            allowed,
            allowed_setting: Some("meter.delivery.allowed"),
            idle_per_host_max: self.endpoint_slots,
        }
    }

    /// Upper bound of the delay of an attempt of this class, unless the clock was ahead when it was scheduled. For
    /// retries this is twice the longest delay between two attempts.
    pub(super) fn wait_max(&self, class: Class) -> Duration {
        let pause = self.retry_after_max.max(self.throttle);
        let postpone = pause + POSTPONE_MAX + SLACK;
        match class {
            // They are due at once: a delayed attempt has another class.
            Class::First => SLACK,
            Class::Overflow => postpone,
            Class::Retry => {
                let longest = self.waits.iter().max().copied().unwrap_or_default();
                let twice = (longest + self.retry_after_max + self.throttle).saturating_mul(2);
                twice.max(postpone)
            }
        }
    }

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
    fn scheduled_waits_are_not_taken_for_late() {
        let minute = Duration::from_secs(MINUTE);
        let tiny = WebhookSettings { waits: vec![], ..WebhookSettings::default() };
        let tiny = WebhookSettings { retry_after_max: Duration::ZERO, throttle: minute, ..tiny };
        for settings in [WebhookSettings::default(), tiny] {
            assert!(settings.wait_max(Class::First) <= minute);
            let pause = settings.retry_after_max.max(settings.throttle);
            for class in [Class::Overflow, Class::Retry] {
                assert!(settings.wait_max(class) > pause + POSTPONE_MAX, "{class:?}");
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
