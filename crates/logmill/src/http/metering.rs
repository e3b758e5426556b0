//! Metering over HTTP: usage comes in, aggregates and live figures go out.
//!
//! | module | what |
//! |---|---|
//! | [`route`] | declarations: of paths, who may use them, what they take and give |
//! | [`openapi`] | what these add to the OpenAPI document |
//! | [`batch`] | JSON of events, single and many, read and checked |
//! | [`send`] | `POST /usage…`: recording |
//! | [`ask`], [`show`] | parameters and cursors; events and aggregates as JSON |
//! | [`list`] | `GET /events…`, `GET /aggregations…` |
//! | [`correct`] | cancelling and amending one event |
//! | [`corrections`] | `GET /corrections`: usage of replaced blocks |
//! | [`once`] | requests with an `Idempotency-Key`, and bodies |
//! | [`query`] | `GET /meters/query` |
//! | [`trigger`] | `POST /aggregations/trigger`, and the small ones |
//! | [`webhooks`] | `/webhooks/…`: endpoints and deliveries |
//! | [`audit`] | what `/status` says of stored usage |
//! | [`stream`] | the WebSocket of live values |
//!
//! Guarantees: bodies, batches, pages, time and requests under way are bounded; every error of the meter becomes a
//! status here ([`failed`]), with a body `{"error": …}`; nothing that was not recorded is answered with 201. Leaves
//! to others: metering ([`logmill_meter`]). `docs/metering.md` tells clients of it.

mod ask;
pub(super) mod audit;
mod batch;
mod correct;
mod corrections;
mod list;
mod once;
pub(super) mod openapi;
mod query;
mod route;
mod send;
mod show;
mod stream;
mod trigger;
mod webhooks;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request as HttpRequest, State as FromState};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use logmill_io::ErrorKind;
use serde_json::Value;

use ask::Params;
use route::Route;

use super::{Scope, Shared, problem, refusal};
use crate::meter::Usage;
use crate::output;

/// The source of events that name none, where there are no keys.
const LOCAL: &str = "local";
/// After how many seconds it is worth trying again what can not be done now.
const RETRY: [(HeaderName, &str); 1] = [(RETRY_AFTER, "1")];

/// Metering as it is served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metering {
    /// None if no event types are configured.
    pub(crate) usage: Option<Usage>,
    /// What is configured, without secrets.
    pub(crate) config: Value,
}

/// Who asks.
#[derive(Clone, Debug)]
struct Caller {
    /// The name of the key.
    name: Arc<str>,
    /// The source of events that it sends without one.
    source: Arc<str>,
}

/// The routes of metering.
pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let mut all = Router::new();
    for route in route::all() {
        let one = Router::new().route(route.path, (route.handler)());
        let state = (Arc::clone(shared), route);
        all = all.merge(one.route_layer(from_fn_with_state(state, guard)));
    }
    all
}

/// Lets nobody past without the key that is needed, or with parameters that there are not; tells who it is.
async fn guard(
    FromState((shared, route)): FromState<(Arc<Shared>, &'static Route)>,
    mut request: HttpRequest,
    next: Next,
) -> Response {
    let Some(scope) = route.scope else { return next.run(request).await };
    if let Some(refusal) = refusal(&shared, request.headers(), scope) {
        return refusal;
    }
    if let Err(wrong) = Params::read(Query::try_from_uri(request.uri()), route.params) {
        return wrong;
    }
    let caller = caller(&shared, request.headers(), scope);
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn caller(shared: &Shared, headers: &HeaderMap, scope: Scope) -> Caller {
    let name = shared.limits.keys.check(headers, scope).ok().flatten().unwrap_or(LOCAL);
    let sources = shared.metering.usage.as_ref().map(|usage| &usage.sources);
    let source = sources.and_then(|sources| sources.of(name));
    Caller { name: name.into(), source: source.unwrap_or_else(|| name.into()) }
}

/// Usage, if any is metered.
fn usage(shared: &Shared) -> Result<&Usage, Response> {
    shared.metering.usage.as_ref().ok_or_else(|| {
        problem(StatusCode::SERVICE_UNAVAILABLE, "Service misconfigured: no event types available")
    })
}

/// Works on a request once there is room for it, and within the time that any request has.
async fn answered(shared: &Shared, work: impl Future<Output = Response>) -> Response {
    let work = async {
        // The semaphore is never closed.
        let _room = shared.requests.acquire().await;
        work.await
    };
    tokio::select! {
        biased;
        answer = work => answer,
        () = shared.clock.sleep(shared.rpc.limits().timeout) => {
            busy("not in time: it may or may not have been done")
        }
    }
}

/// The one place where errors of the meter become statuses.
fn failed(error: &logmill_meter::Error) -> Response {
    let said = || output::brief(&error.to_string());
    match error.kind() {
        ErrorKind::Invalid => problem(StatusCode::BAD_REQUEST, &said()),
        ErrorKind::NotFound => problem(StatusCode::NOT_FOUND, &said()),
        ErrorKind::Conflict => problem(StatusCode::CONFLICT, &said()),
        kind => {
            tracing::warn!(error = output::brief(&error.chain()), "a request about usage failed");
            match kind {
                ErrorKind::Transient => busy("not at the moment: try again"),
                ErrorKind::Corrupt => problem(StatusCode::INTERNAL_SERVER_ERROR, &damaged(error)),
                _ => problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"),
            }
        }
    }
}

/// What is said of stored usage that is not what was written.
fn damaged(error: &logmill_meter::Error) -> String {
    match error {
        logmill_meter::Error::DamagedEvent { .. } => error.to_string(),
        _ => "stored usage is damaged: the log says where; see docs/runbooks/damaged-usage.md"
            .to_owned(),
    }
}

/// Not now, but perhaps in a moment.
fn busy(why: &str) -> Response {
    (RETRY, problem(StatusCode::SERVICE_UNAVAILABLE, why)).into_response()
}
