//! Complaints: log lines about failing endpoints, few enough to be read.
//!
//! Guarantees: the first failure of an endpoint is logged at once, further ones at most once in [`EVERY`] with the
//! number of suppressed lines, and its recovery once. A line names the endpoint by its id and contains neither its
//! address nor a secret. It contains at most [`ERROR_BYTES_MAX`] bytes of the error, with everything that looks like
//! an address removed. Leaves to others: the record of every attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use super::verdict::NextStep;

/// Minimum interval between log lines about one endpoint.
const EVERY: Duration = Duration::from_secs(60);
const ERROR_BYTES_MAX: usize = 300;

/// An attempt, failed or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptInfo<'a> {
    pub(super) endpoint: &'a str,
    pub(super) message: &'a str,
    pub(super) attempt: i64,
    pub(super) status: Option<u16>,
    pub(super) error: Option<&'a str>,
}

/// Log state of the failing endpoints.
#[derive(Debug, Default)]
pub(super) struct Complaints(BTreeMap<i64, Complaint>);

#[derive(Debug)]
struct Complaint {
    /// When the last line was logged, on the monotonic clock.
    logged_at: Duration,
    /// Failures since then that were not logged.
    left_out: u64,
}

impl Complaints {
    /// Notes an attempt; logs it if it failed and a line is due, or if it ended a series of failures.
    pub(super) fn note(
        &mut self,
        endpoint: i64,
        next: &NextStep,
        attempt: &AttemptInfo<'_>,
        now: Duration,
    ) {
        metrics::counter!("logmill_webhook_attempts_total", "outcome" => outcome(next))
            .increment(1);
        if *next == NextStep::Succeeded {
            if self.0.remove(&endpoint).is_some() {
                tracing::info!(endpoint = attempt.endpoint, "webhook endpoint answers again");
            }
            return;
        }
        let left_out = match self.0.get_mut(&endpoint) {
            Some(known) if now.saturating_sub(known.logged_at) < EVERY => {
                known.left_out += 1;
                return;
            }
            Some(known) => known.left_out,
            None => 0,
        };
        self.0.insert(endpoint, Complaint { logged_at: now, left_out: 0 });
        let next_attempt_s = match next {
            NextStep::Again { wait } => Some(wait.as_secs()),
            NextStep::Succeeded | NextStep::Exhausted | NextStep::Gone => None,
        };
        tracing::warn!(
            endpoint = attempt.endpoint,
            message_id = attempt.message,
            status = attempt.status,
            error = attempt.error.map(without_addresses),
            attempt = attempt.attempt,
            next_attempt_s,
            left_out,
            "webhook delivery failed"
        );
    }

    pub(super) fn retain(&mut self, exists: impl Fn(i64) -> bool) {
        self.0.retain(|endpoint, _| exists(*endpoint));
    }
}

fn outcome(next: &NextStep) -> &'static str {
    match next {
        NextStep::Succeeded => "succeeded",
        NextStep::Again { .. } => "failed",
        NextStep::Exhausted => "exhausted",
        NextStep::Gone => "gone",
    }
}

/// The error without the path, query and credentials of any address in it.
fn without_addresses(error: &str) -> String {
    let words = error.split(' ').map(|word| match word.split_once("://") {
        None => word.to_owned(),
        Some((scheme, rest)) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{}", host.trim_end_matches([')', ':', ',']))
        }
    });
    let text = words.collect::<Vec<_>>().join(" ");
    text[..text.floor_char_boundary(ERROR_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_an_error_is_cut_to_its_host() {
        for (error, logged) in [
            ("answered 500", "answered 500"),
            (
                "error for url (https://me:pw@host:1/secret?token=1)",
                "error for url (https://host:1",
            ),
            ("post https://host/x?y: refused", "post https://host refused"),
            ("wss://h#f x", "wss://h x"),
        ] {
            assert_eq!(without_addresses(error), logged);
        }
        assert_eq!(without_addresses(&"ü".repeat(500)).len(), ERROR_BYTES_MAX);
    }

    #[test]
    fn an_endpoint_is_complained_about_once_a_minute_and_once_more_when_it_answers() {
        let mut complaints = Complaints::default();
        let attempt = AttemptInfo {
            endpoint: "ep_1",
            message: "m",
            attempt: 1,
            status: Some(500),
            error: Some("answered 500"),
        };
        let again = NextStep::Again { wait: Duration::from_secs(5) };
        let seen = |complaints: &Complaints| {
            complaints.0.get(&1).map(|known| (known.logged_at.as_secs(), known.left_out))
        };
        for (second, next, expected) in [
            (0, &NextStep::Succeeded, None),
            (1, &again, Some((1, 0))),
            (2, &again, Some((1, 1))),
            (60, &NextStep::Exhausted, Some((1, 2))),
            (61, &again, Some((61, 0))),
            (62, &NextStep::Succeeded, None),
            (63, &again, Some((63, 0))),
        ] {
            complaints.note(1, next, &attempt, Duration::from_secs(second));
            assert_eq!(seen(&complaints), expected, "second {second}");
        }
        complaints.retain(|_| false);
        assert_eq!(seen(&complaints), None);
    }
}
