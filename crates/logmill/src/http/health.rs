//! The listener of its own for load balancers and monitors, which connections of others cannot fill.
//!
//! Guarantees: it serves health, readiness and metrics, and nothing else. Leaves to others: what they say
//! ([`super::operator`]).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;

use super::admission::ConnectionLimits;
use super::{Shared, caught, guard, operator, problem};

/// What is needed to see how a process is.
pub(super) fn router(shared: &Arc<Shared>) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(operator::metrics))
        .route_layer(from_fn_with_state(Arc::clone(shared), guard));
    Router::new()
        .route("/health", get(operator::health))
        .route("/ready", get(operator::ready))
        .route("/ready/{service}", get(operator::service_ready))
        .merge(guarded)
        .fallback(async || problem(StatusCode::NOT_FOUND, "this listener serves health alone"))
        .layer(from_fn(caught::caught))
        .with_state(Arc::clone(shared))
}

/// Few ask for health, and all at once.
pub(super) fn limits() -> ConnectionLimits {
    ConnectionLimits {
        max_connections: 64,
        max_websockets: 0,
        max_waiting_per_address: 16,
        header_timeout: Duration::from_secs(5),
        body_timeout: Duration::from_secs(5),
        trusted_proxies: Vec::new(),
    }
}
