//! The separate listener for load balancers and monitors, which other connections cannot fill.
//!
//! Guarantees: it serves health, readiness and metrics, and nothing else. Leaves to others: their content
//! ([`super::operator`]).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;

use super::admission::ConnectionLimits;
use super::guard::{Guarded, guard};
use super::{Scope, ServerState, operator, panics, problem};

pub(super) fn router(shared: &Arc<ServerState>) -> Router {
    let guarded = Guarded { shared: Arc::clone(shared), scope: Scope::Read, is_coded: false };
    let guarded = Router::new()
        .route("/metrics", get(operator::metrics))
        .route_layer(from_fn_with_state(guarded, guard));
    Router::new()
        .route("/health", get(operator::health))
        .route("/ready", get(operator::ready))
        .route("/ready/{service}", get(operator::service_ready))
        .merge(guarded)
        .fallback(async || problem(StatusCode::NOT_FOUND, "this listener serves health alone"))
        .layer(from_fn(panics::catch_panics))
        .with_state(Arc::clone(shared))
}

/// Health checks come from few clients, which may connect all at once.
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
