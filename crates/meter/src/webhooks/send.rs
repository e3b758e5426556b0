//! Sending: one signed request.
//!
//! | header | value |
//! |---|---|
//! | `webhook-id` | the message's id, the same at every attempt |
//! | `webhook-timestamp`, `x-webhook-timestamp` | seconds since 1970 at this attempt |
//! | `webhook-signature` | `v1,<base64>` by every valid secret |
//! | `x-webhook-signature` | `v1=<hex>` by the newest |
//!
//! Guarantees: redirects are not followed; no more of a response is read than is kept; a panic is a failure like
//! any other. Leaves to others: which addresses may be reached
//! ([`GuardedClient`](logmill_io::wire::GuardedClient)).

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use logmill_io::Timestamp;
use logmill_io::wire::Limits;

use super::load::ReadyDelivery;
use super::secret::sign;
use super::verdict::RequestOutcome;
use super::{Webhooks, storable};

const ERROR_BYTES_MAX: usize = 1_000;

/// A request that has ended.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) ready: ReadyDelivery,
    pub(super) at: Timestamp,
    pub(super) took: Duration,
    pub(super) outcome: RequestOutcome,
    pub(super) error: Option<String>,
    pub(super) response: String,
}

pub(super) async fn send(hooks: Webhooks, ready: ReadyDelivery) -> SentRequest {
    let clock = hooks.sql().clock();
    let (at, started) = (clock.now(), clock.monotonic());
    let request = AssertUnwindSafe(post(&hooks, &ready, at)).catch_unwind().await;
    let took = clock.monotonic().saturating_sub(started);
    let (outcome, error, response) = request.unwrap_or_else(|_| {
        (RequestOutcome::Unreachable, Some("the request panicked".to_owned()), String::new())
    });
    SentRequest { ready, at, took, outcome, error, response }
}

async fn post(
    hooks: &Webhooks,
    ready: &ReadyDelivery,
    at: Timestamp,
) -> (RequestOutcome, Option<String>, String) {
    let (target, message, settings) = (&ready.target, &ready.message, &hooks.settings);
    let signed = sign(&target.signers, &message.id, at, &message.body);
    if settings.dry_run {
        return (RequestOutcome::DryRun, None, String::new());
    }
    let headers = [
        ("content-type", "application/json"),
        ("webhook-id", message.id.as_str()),
        ("webhook-timestamp", signed.timestamp.as_str()),
        ("webhook-signature", signed.standard.as_str()),
        ("x-webhook-timestamp", signed.timestamp.as_str()),
        ("x-webhook-signature", signed.plain.as_str()),
    ];
    let limits = Limits { bytes_max: settings.response_bytes_max, timeout: settings.timeout };
    let body = message.body.clone();
    match hooks.client.post_for_status(&target.url, &headers, body, limits).await {
        Ok(fetched) => {
            let status = fetched.status;
            let error = (!(200..300).contains(&status)).then(|| format!("answered {status}"));
            let response = String::from_utf8_lossy(&fetched.body);
            let response = storable(&response, settings.response_bytes_max);
            let outcome = RequestOutcome::Status { status, retry_after: fetched.retry_after };
            (outcome, error, response)
        }
        Err(error) => {
            let slow = matches!(error, logmill_io::Error::TooSlow { .. });
            let outcome = if slow { RequestOutcome::TooSlow } else { RequestOutcome::Unreachable };
            (outcome, Some(storable(&error.chain(), ERROR_BYTES_MAX)), String::new())
        }
    }
}
