//! Endpoints, deliveries and attempts as JSON.
//!
//! Guarantees: no secret except in [`CreatedEndpointJson`]. Leaves to others: which ones are shown.

use logmill_io::Timestamp;
use logmill_meter::period::format_time;
use logmill_meter::webhooks::{AttemptView, DeliveryView, Endpoint, EndpointStatus};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointJson {
    id: String,
    url: String,
    description: String,
    events: Vec<String>,
    customers: Vec<String>,
    ordered: bool,
    enabled: bool,
    configured: bool,
    disabled_why: Option<String>,
    failing_since: Option<String>,
    last_error: Option<String>,
    last_error_at: Option<String>,
    created_at: String,
    updated_at: String,
}

/// A created endpoint with its secret; without the secret if an identical endpoint already existed.
#[derive(Serialize)]
pub(super) struct CreatedEndpointJson {
    #[serde(flatten)]
    pub(super) endpoint: EndpointJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
}

/// An endpoint and its state.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointStatusJson {
    #[serde(flatten)]
    endpoint: EndpointJson,
    pending: u64,
    failing: u64,
    waiting: u64,
    exhausted: u64,
    cancelled: u64,
    oldest_at: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeliveryJson {
    message_id: String,
    kind: String,
    customer_id: Option<String>,
    endpoint_id: String,
    state: &'static str,
    round: i64,
    attempts: i64,
    last_status: Option<i64>,
    last_error: Option<String>,
    next_at: Option<String>,
    created_at: String,
    updated_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttemptJson {
    round: i64,
    attempt: i64,
    at: String,
    duration_ms: i64,
    status: Option<i64>,
    error: Option<String>,
    response: String,
    dry_run: bool,
}

fn moment(at: Option<Timestamp>) -> Option<String> {
    at.map(format_time)
}

impl From<Endpoint> for EndpointJson {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            id: endpoint.id,
            url: endpoint.url,
            description: endpoint.description,
            events: endpoint.kinds,
            customers: endpoint.customers,
            ordered: endpoint.ordered,
            enabled: endpoint.enabled,
            configured: endpoint.configured,
            disabled_why: endpoint.disabled_why,
            failing_since: moment(endpoint.failing_since),
            last_error: endpoint.last_error,
            last_error_at: moment(endpoint.last_error_at),
            created_at: format_time(endpoint.created_at),
            updated_at: format_time(endpoint.updated_at),
        }
    }
}

impl From<EndpointStatus> for EndpointStatusJson {
    fn from(status: EndpointStatus) -> Self {
        Self {
            endpoint: status.endpoint.into(),
            pending: status.pending,
            failing: status.failing,
            waiting: status.waiting,
            exhausted: status.exhausted,
            cancelled: status.cancelled,
            oldest_at: moment(status.oldest),
        }
    }
}

impl From<DeliveryView> for DeliveryJson {
    fn from(delivery: DeliveryView) -> Self {
        Self {
            message_id: delivery.message_id,
            kind: delivery.kind,
            customer_id: delivery.customer,
            endpoint_id: delivery.endpoint_id,
            state: delivery.state.name(),
            round: delivery.round,
            attempts: delivery.attempts,
            last_status: delivery.last_status,
            last_error: delivery.last_error,
            next_at: moment(delivery.next_at),
            created_at: format_time(delivery.created_at),
            updated_at: format_time(delivery.updated_at),
        }
    }
}

impl From<AttemptView> for AttemptJson {
    fn from(attempt: AttemptView) -> Self {
        Self {
            round: attempt.round,
            attempt: attempt.attempt,
            at: format_time(attempt.at),
            duration_ms: attempt.duration_ms,
            status: attempt.status,
            error: attempt.error,
            response: attempt.response,
            dry_run: attempt.dry_run,
        }
    }
}
