//! Metering over HTTP: receives usage, serves aggregates and live values.
//!
//! | module | content |
//! |---|---|
//! | [`routes`] | declarations of paths, their scopes, parameters and responses |
//! | [`openapi`] | their part of the OpenAPI document |
//! | [`batch`] | parses and checks JSON of one or many events |
//! | [`send`] | `POST /usage…`: recording |
//! | [`query_params`], [`params`], [`json`] | parameters and cursors; events and aggregates as JSON |
//! | [`list`] | `GET /events…`, `GET /aggregations…` |
//! | [`correct`] | cancelling and amending one event |
//! | [`corrections`] | `GET /corrections`: usage of replaced blocks |
//! | [`creation`] | requests with an `Idempotency-Key`, and their bodies |
//! | [`query`] | `GET /meters/query` |
//! | [`trend`] | `GET /meters/trend` |
//! | [`trigger`] | `POST /aggregations/trigger`, and the small routes |
//! | [`webhooks`] | `/webhooks/…`: endpoints and deliveries |
//! | [`audit`] | the audit of stored usage in `/status` |
//! | [`stream`] | the WebSocket of live values |
//!
//! Guarantees: bodies, batches, pages, time and concurrent requests are bounded; every error of the meter becomes a
//! status here ([`failed`]), with a body `{"error": …}`; 201 is returned only for recorded usage. Leaves to others:
//! metering ([`logmill_meter`]). `docs/metering.md` describes it for clients.

pub(super) mod audit;
mod batch;
mod correct;
mod corrections;
mod creation;
mod json;
mod list;
pub(super) mod openapi;
mod params;
mod query;
mod query_params;
mod routes;
mod send;
mod stream;
mod trend;
mod trigger;
mod webhooks;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request as HttpRequest, State as FromState};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use logmill_io::ErrorKind;
use serde_json::Value;

use params::Params;

use super::guard::authorize;
use super::route::Route;
use super::{ServerState, problem};
use crate::one_line::brief;
use crate::usage::Usage;

/// Source of events that name none, if no keys are configured.
const LOCAL: &str = "local";
/// Seconds after which a client should retry a temporary failure.
const RETRY: [(HeaderName, &str); 1] = [(RETRY_AFTER, "1")];

#[derive(Clone, Debug, Default)]
pub struct Metering {
    /// `None` if no event types are configured.
    pub usage: Option<Usage>,
    /// The metering configuration, without secrets.
    pub config: Value,
}

#[derive(Clone, Debug)]
struct Caller {
    /// Name of the key.
    name: Arc<str>,
    /// Source of events that are sent without one.
    source: Arc<str>,
}

pub(super) fn routes(shared: &Arc<ServerState>) -> Router<Arc<ServerState>> {
    let mut all = Router::new();
    for route in routes::all() {
        let one = Router::new().route(route.path, (route.handler)());
        let state = (Arc::clone(shared), route);
        all = all.merge(one.route_layer(from_fn_with_state(state, guard)));
    }
    all
}

/// Rejects requests without a key of the required scope or with unknown parameters, and attaches the caller.
async fn guard(
    FromState((shared, route)): FromState<(Arc<ServerState>, &'static Route)>,
    mut request: HttpRequest,
    next: Next,
) -> Response {
    let Some(scope) = route.scope else { return next.run(request).await };
    let name = match authorize(&shared, request.headers(), scope) {
        Ok(name) => name.unwrap_or(LOCAL),
        Err(rejection) => return rejection.plain(scope).into_response(),
    };
    if let Err(wrong) = Params::read(Query::try_from_uri(request.uri()), route.params) {
        return wrong;
    }
    let sources = shared.metering.usage.as_ref().map(|usage| &usage.sources);
    let source = sources.and_then(|sources| sources.of(name)).unwrap_or_else(|| name.into());
    request.extensions_mut().insert(Caller { name: name.into(), source });
    next.run(request).await
}

/// The meter; an error response if no event types are configured.
fn usage(shared: &ServerState) -> Result<&Usage, Response> {
    shared.metering.usage.as_ref().ok_or_else(|| {
        problem(StatusCode::SERVICE_UNAVAILABLE, "Service misconfigured: no event types available")
    })
}

/// Processes a request once a request slot is free, within the time limit of all requests.
async fn respond(shared: &ServerState, work: impl Future<Output = Response>) -> Response {
    let answer = shared.within_limits(work).await;
    answer.unwrap_or_else(|| busy("timed out: the request may or may not have been executed"))
}

/// The one place where errors of the meter become statuses.
fn failed(error: &logmill_meter::Error) -> Response {
    let said = || brief(&error.to_string());
    match error.kind() {
        ErrorKind::Invalid => problem(StatusCode::BAD_REQUEST, &said()),
        ErrorKind::NotFound => problem(StatusCode::NOT_FOUND, &said()),
        ErrorKind::Conflict => problem(StatusCode::CONFLICT, &said()),
        kind => {
            tracing::warn!(error = brief(&error.chain()), "a request about usage failed");
            match kind {
                ErrorKind::Transient => busy("temporarily unavailable: try again"),
                ErrorKind::Corrupt => problem(StatusCode::INTERNAL_SERVER_ERROR, &damaged(error)),
                _ => problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"),
            }
        }
    }
}

/// The error text for damaged stored usage.
fn damaged(error: &logmill_meter::Error) -> String {
    match error {
        logmill_meter::Error::DamagedEvent { .. } | logmill_meter::Error::DamagedName { .. } => {
            error.to_string()
        }
        _ => "stored usage is damaged: the log says where; see docs/runbooks/damaged-usage.md"
            .to_owned(),
    }
}

/// A temporary failure.
fn busy(why: &str) -> Response {
    (RETRY, problem(StatusCode::SERVICE_UNAVAILABLE, why)).into_response()
}
