//! Sending: one request, signed.
//!
//! | header | value |
//! |---|---|
//! | `webhook-id` | the message's id, the same at every attempt |
//! | `webhook-timestamp`, `x-webhook-timestamp` | seconds since 1970 at this attempt |
//! | `webhook-signature` | `v1,<base64>` by every valid secret |
//! | `x-webhook-signature` | `v1=<hex>` by the newest |
//!
//! Guarantees: redirects are not followed; of an answer no more is read than is kept; a panic is a failure like any
//! other. Leaves to others: which addresses may be reached ([`GuardedClient`](logmill_io::wire::GuardedClient)).

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use logmill_io::Timestamp;
use logmill_io::wire::Limits;

use super::load::Held;
use super::secret::sign;
use super::verdict::Answered;
use super::{Webhooks, storable};

/// The longest error that is kept.
const ERROR_BYTES_MAX: usize = 1_000;

/// A request that is over.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) held: Held,
    pub(super) at: Timestamp,
    pub(super) took: Duration,
    pub(super) answered: Answered,
    pub(super) error: Option<String>,
    pub(super) response: String,
}

/// Sends one delivery.
pub(super) async fn send(hooks: Webhooks, held: Held) -> Sent {
    let clock = hooks.sql().clock();
    let (at, started) = (clock.now(), clock.monotonic());
    let request = AssertUnwindSafe(post(&hooks, &held, at)).catch_unwind().await;
    let took = clock.monotonic().saturating_sub(started);
    let (answered, error, response) = request.unwrap_or_else(|_| {
        (Answered::Unreachable, Some("the request panicked".to_owned()), String::new())
    });
    Sent { held, at, took, answered, error, response }
}

async fn post(hooks: &Webhooks, held: &Held, at: Timestamp) -> (Answered, Option<String>, String) {
    let (target, message, settings) = (&held.target, &held.message, &hooks.settings);
    let signed = sign(&target.signers, &message.id, at, &message.body);
    if settings.dry_run {
        return (Answered::DryRun, None, String::new());
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
            let answered = Answered::Status { status, retry_after: fetched.retry_after };
            (answered, error, response)
        }
        Err(error) => {
            let slow = matches!(error, logmill_io::Error::TooSlow { .. });
            let answered = if slow { Answered::TooSlow } else { Answered::Unreachable };
            (answered, Some(storable(&error.chain(), ERROR_BYTES_MAX)), String::new())
        }
    }
}
