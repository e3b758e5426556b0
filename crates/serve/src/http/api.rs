//! The read API: stored and derived data of a chain as JSON, under `/api/v1/{chain}/…`.
//!
//! ```text
//!   path, query ─▶ call (parameters checked) ─▶ handler ─▶ lists and rows of tables ─▶ JSON, with `asOf`
//!                       ▲                                                   │
//!                       └───── once more if the tip changed meanwhile ◀─────┘
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`endpoint`], [`param`], [`record`] | declarations of paths, their parameters and their responses |
//! | [`openapi`] | the document generated from them |
//! | [`endpoint::call`], [`error`] | a request, its response, and every error |
//! | [`list`], [`position`] | pages, and the cursors between them |
//! | [`data`] | derived tables at one moment, and whether they are complete |
//! | the others | one resource each |
//!
//! Guarantees: an answer from derived tables reflects one branch of the chain; every statement has a limit and follows
//! the order of an index; bad input never causes a server error; duration and concurrency are bounded. Leaves to
//! others: whole blocks and logs (JSON-RPC), and all changes. `docs/api.md` describes it for clients.

mod accounts;
mod blocks;
mod collections;
mod contracts;
mod data;
mod endpoint;
mod error;
mod fees;
mod holdings;
mod item_metadata;
mod items;
mod list;
mod nfts;
pub(super) mod openapi;
mod param;
#[cfg(feature = "record-statements")]
pub(super) mod plans;
mod position;
mod reconciliation;
mod record;
mod staking;
mod status;
mod swaps;
mod tokens;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::Value;

use super::ServerState;
use super::auth::Scope;
use super::guard::{Guarded, guard};
use endpoint::{Call, Endpoint};
use error::{ApiError, ApiResult};

/// Maximum number of attempts for a request while the tip changes.
const ATTEMPTS_MAX: usize = 3;

fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    let all = [
        blocks::ENDPOINTS,
        transactions::ENDPOINTS,
        accounts::ENDPOINTS,
        holdings::ENDPOINTS,
        nfts::ENDPOINTS,
        tokens::ENDPOINTS,
        collections::ENDPOINTS,
        items::ENDPOINTS,
        swaps::ENDPOINTS,
        contracts::ENDPOINTS,
        staking::ENDPOINTS,
        fees::ENDPOINTS,
        reconciliation::ENDPOINTS,
        status::ENDPOINTS,
    ];
    all.into_iter().flatten()
}

pub(super) fn routes(shared: &Arc<ServerState>) -> Router<Arc<ServerState>> {
    let mut api = Router::new();
    for endpoint in endpoints() {
        let answer = move |state, path, query| answer(state, endpoint, path, query);
        api = api.route(endpoint.path, get(answer));
    }
    let guarded = Guarded { shared: Arc::clone(shared), scope: Scope::Read, is_coded: true };
    let api = api
        .route_layer(from_fn_with_state(guarded, guard))
        .fallback(async || not_found())
        .method_not_allowed_fallback(async || ApiError::no_method());
    Router::new().nest("/api/v1/{chain}", api)
}

/// The response for an unknown path.
pub(super) fn not_found() -> Response {
    ApiError::not_found("no such path; the API is described at /openapi.json").into_response()
}

/// The response after a handler panicked.
pub(super) fn internal_error() -> Response {
    ApiError::internal("request handler panicked").into_response()
}

type PathParams = Result<Path<BTreeMap<String, String>>, PathRejection>;
type QueryParams = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Answers a request within the time limit, once a request slot is free.
async fn answer(
    State(shared): State<Arc<ServerState>>,
    endpoint: &'static Endpoint,
    path: PathParams,
    query: QueryParams,
) -> Response {
    let started = shared.clock.monotonic();
    let answer = shared.within_limits(respond(&shared, endpoint, path, query)).await;
    let answer = answer.unwrap_or_else(|| {
        let why = "timed out: too many requests at the moment, or the request is too expensive";
        Err(ApiError::unavailable(why))
    });
    let took = shared.clock.monotonic().saturating_sub(started);
    let outcome = answer.as_ref().err().map_or("ok", ApiError::code);
    metrics::counter!("logmill_api_requests_total", "endpoint" => endpoint.id, "outcome" => outcome)
        .increment(1);
    metrics::histogram!("logmill_api_request_seconds", "endpoint" => endpoint.id).record(took);
    match answer {
        Ok(json) => Json(json).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn respond(
    shared: &ServerState,
    endpoint: &'static Endpoint,
    path: PathParams,
    query: QueryParams,
) -> ApiResult<Value> {
    let Path(path) = path.map_err(|_| ApiError::unreadable())?;
    let Query(query) = query.map_err(|_| ApiError::unreadable())?;
    let chain = path.get("chain").and_then(|chain| chain.parse::<u64>().ok());
    let served = chain.and_then(|chain| shared.chains.get(chain));
    let (served, _) = served.ok_or_else(|| match shared.chains.is_awaited() {
        true => ApiError::unavailable(
            "the chain id is not known yet: no node has answered since the start; retry later",
        ),
        false => ApiError::no_chain(),
    })?;
    let mut call = Call::read(served, endpoint, &path, query)?;
    for _ in 0..ATTEMPTS_MAX {
        call.load_data().await?;
        if let Some(json) = attempt(&call).await? {
            return Ok(json);
        }
    }
    Err(ApiError::unavailable("the chain changed repeatedly while it was read: retry"))
}

/// Answers a call; `None` if the tip changed meanwhile.
async fn attempt(call: &Call) -> ApiResult<Option<Value>> {
    let endpoint = call.endpoint;
    let mut as_of = match call.some_data() {
        Some(data) if !endpoint.needs.is_empty() => data.as_of(endpoint.needs)?,
        _ => blocks::as_of(&call.served.chain.view().await?),
    };
    let incomplete = call.some_data().and_then(|data| data.incomplete(&endpoint.processors()));
    if let Some(reason) = incomplete {
        as_of["complete"] = false.into();
        as_of["reason"] = reason.into();
    }
    let reply = (endpoint.run)(call).await;
    if let Some(data) = call.some_data()
        && !data.is_current(&endpoint.processors()).await?
    {
        return Ok(None);
    }
    Ok(Some(reply?.json(as_of)))
}
