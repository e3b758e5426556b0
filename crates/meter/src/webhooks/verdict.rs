//! Verdicts: what a response means, and when to try again.
//!
//! Guarantees: pure; jitter is an argument. Only 2xx is success: a redirect is a failure like any other. Leaves to
//! others: sending and recording.

use std::time::Duration;

use logmill_io::Entropy;

use super::settings::WebhookSettings;

/// Result of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    Status {
        status: u16,
        retry_after: Option<Duration>,
    },
    /// There was no response in time.
    TooSlow,
    /// There was no response.
    Unreachable,
    /// Nothing was sent.
    DryRun,
}

/// What happens next to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Nothing: it was received.
    Succeeded,
    Again {
        wait: Duration,
    },
    /// Nothing: no attempt is left.
    Exhausted,
    /// Nothing: the endpoint refuses all further messages.
    Gone,
}

/// What happens next to the delivery, and how long the whole endpoint is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) next: NextStep,
    pub(super) pause: Option<Duration>,
}

/// Judges the response to the attempt with this number, from 1.
pub(super) fn judge(
    outcome: &RequestOutcome,
    attempt: i64,
    settings: &WebhookSettings,
    entropy: &dyn Entropy,
) -> Verdict {
    let (least, pause) = match outcome {
        RequestOutcome::DryRun | RequestOutcome::Status { status: 200..=299, .. } => {
            return Verdict { next: NextStep::Succeeded, pause: None };
        }
        RequestOutcome::Status { status: 410, .. } => {
            return Verdict { next: NextStep::Gone, pause: None };
        }
        RequestOutcome::Status { status, retry_after } => {
            let asked = retry_after.map(|asked| asked.min(settings.retry_after_max));
            let too_much = matches!(status, 429 | 502 | 504);
            let pause = asked.or_else(|| too_much.then_some(settings.throttle));
            (pause.unwrap_or_default(), pause)
        }
        // One slow request says little about the others.
        RequestOutcome::TooSlow => (settings.throttle, None),
        RequestOutcome::Unreachable => (Duration::ZERO, None),
    };
    let last = i64::try_from(settings.waits.len()).unwrap_or(i64::MAX);
    let next = if attempt > last {
        NextStep::Exhausted
    } else {
        let wait = settings.backoff().wait(attempt, entropy);
        NextStep::Again { wait: wait.max(least) }
    };
    Verdict { next, pause }
}

#[cfg(test)]
mod tests {
    use logmill_io::SeededEntropy;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn check(outcome: &RequestOutcome, attempt: i64) -> Verdict {
        let settings = WebhookSettings { jitter_percent: 0, ..WebhookSettings::default() };
        judge(outcome, attempt, &settings, &*SeededEntropy::shared(1))
    }

    fn status(status: u16, retry_after_s: Option<u64>) -> RequestOutcome {
        RequestOutcome::Status { status, retry_after: retry_after_s.map(Duration::from_secs) }
    }

    #[test]
    fn only_2xx_is_success_and_410_is_the_end() {
        for fine in
            [status(200, None), status(204, None), status(299, Some(9)), RequestOutcome::DryRun]
        {
            assert_eq!(check(&fine, 1), Verdict { next: NextStep::Succeeded, pause: None });
        }
        assert_eq!(check(&status(410, None), 1).next, NextStep::Gone);
        for wrong in [100, 199, 300, 301, 302, 304, 307, 308, 400, 401, 404, 409, 500, 503, 999] {
            let wanted = Verdict { next: NextStep::Again { wait: 5 * SECOND }, pause: None };
            assert_eq!(check(&status(wrong, None), 1), wanted, "{wrong}");
        }
    }

    #[test]
    fn an_overload_response_pauses_the_endpoint() {
        let minute = 60 * SECOND;
        let again = NextStep::Again { wait: minute };
        for much in [429, 502, 504] {
            let wanted = Verdict { next: again.clone(), pause: Some(minute) };
            assert_eq!(check(&status(much, None), 1), wanted, "{much}");
        }
        assert_eq!(check(&RequestOutcome::TooSlow, 1), Verdict { next: again, pause: None });
        // Here the schedule has the longer delay.
        let later = check(&status(429, None), 2);
        assert_eq!(later.next, NextStep::Again { wait: 300 * SECOND });
    }

    #[test]
    fn retry_after_is_honoured_between_the_schedule_and_its_limit() {
        for (asked_s, attempt, wait_s, pause_s) in
            [(20, 1, 20, 20), (1, 1, 5, 1), (20, 2, 300, 20), (1_000_000, 1, 3_600, 3_600)]
        {
            let verdict = check(&status(503, Some(asked_s)), attempt);
            let wanted = Verdict {
                next: NextStep::Again { wait: wait_s * SECOND },
                pause: Some(Duration::from_secs(pause_s)),
            };
            assert_eq!(verdict, wanted, "{asked_s} s after attempt {attempt}");
        }
    }

    #[test]
    fn the_tenth_failure_is_the_last() {
        let waits: Vec<u64> = (1..=9)
            .map(|attempt| match check(&RequestOutcome::Unreachable, attempt).next {
                NextStep::Again { wait } => wait.as_secs(),
                other => panic!("{other:?} after attempt {attempt}"),
            })
            .collect();
        assert_eq!(waits, [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400]);
        assert_eq!(check(&RequestOutcome::Unreachable, 10).next, NextStep::Exhausted);
        assert_eq!(check(&RequestOutcome::Unreachable, 11).next, NextStep::Exhausted);
    }

    #[test]
    fn waits_have_a_jitter_of_a_fifth() {
        let (settings, entropy) = (WebhookSettings::default(), SeededEntropy::shared(3));
        let drawn = (0..300).map(|_| {
            let verdict = judge(&RequestOutcome::Unreachable, 2, &settings, &*entropy);
            let NextStep::Again { wait } = verdict.next else { panic!("an attempt is left") };
            wait.as_secs()
        });
        let drawn: Vec<u64> = drawn.collect();
        assert!(drawn.iter().all(|wait| (240..=360).contains(wait)), "{drawn:?}");
        assert!(drawn.iter().any(|wait| *wait < 270) && drawn.iter().any(|wait| *wait > 330));
    }
}
