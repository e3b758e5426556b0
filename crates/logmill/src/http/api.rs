//! The read API: what is stored and derived of a chain, as JSON, under `/api/v1/{chain}/…`.
//!
//! ```text
//!   path, query ─▶ call (parameters checked) ─▶ handler ─▶ lists and rows of tables ─▶ JSON, with `asOf`
//!                       ▲                                                   │
//!                       └───── once more if the tip changed meanwhile ◀─────┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`endpoint`], [`param`], [`record`] | declarations: of paths, of what they take, of what they give |
//! | [`openapi`] | the document that these make |
//! | [`call`], [`error`] | a request, its answer, and every error |
//! | [`list`], [`position`] | pages, and the cursors between them |
//! | [`data`] | derived tables at one moment, and whether they have all there is |
//! | the others | one resource each |
//!
//! Guarantees: an answer of derived tables is of one branch of the chain; every statement is bounded by a limit in the
//! order of an index; bad input is never an error of ours; time and requests under way are bounded. Leaves to others:
//! whole blocks and logs (JSON-RPC), changing anything. `docs/api.md` tells clients of it.

mod accounts;
mod blocks;
mod call;
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
mod openapi;
mod param;
#[cfg(test)]
pub(super) mod plans;
mod position;
mod record;
mod staking;
mod status;
mod swaps;
mod tokens;
mod transactions;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request as HttpRequest, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::Value;

use super::Shared;
use super::auth::{Refused, Scope};
use call::Call;
use endpoint::Endpoint;
use error::{ApiError, ApiResult};

/// How often a request is worked on while the tip changes under it.
const ATTEMPTS_MAX: usize = 3;

/// Every path.
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
        status::ENDPOINTS,
    ];
    all.into_iter().flatten()
}

/// The routes of the read API.
pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let mut api = Router::new();
    for endpoint in endpoints() {
        let answer = move |state, path, query| answer(state, endpoint, path, query);
        api = api.route(endpoint.path, get(answer));
    }
    let api = api
        .route_layer(from_fn_with_state(Arc::clone(shared), guard))
        .fallback(async || nothing())
        .method_not_allowed_fallback(async || ApiError::no_method());
    Router::new()
        .nest("/api/v1/{chain}", api)
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], document())))
}

/// What a path is answered with that is none.
pub(super) fn nothing() -> Response {
    ApiError::not_found("there is nothing here").into_response()
}

/// What a path is answered with whose handler broke off.
pub(super) fn failed() -> Response {
    ApiError::internal("a handler panicked").into_response()
}

/// The OpenAPI document, as text.
pub(super) fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", openapi::document()));
    &DOCUMENT
}

/// Lets nobody past without the key that is needed.
async fn guard(State(shared): State<Arc<Shared>>, request: HttpRequest, next: Next) -> Response {
    match shared.limits.keys.check(request.headers(), Scope::Read) {
        Ok(_) => next.run(request).await,
        Err(refused) => {
            metrics::counter!("logmill_http_refused_total").increment(1);
            match refused {
                Refused::Unknown => ApiError::unauthorized().into_response(),
                Refused::Forbidden => {
                    ApiError::forbidden("the key does not allow this").into_response()
                }
                Refused::Foreign => ApiError::forbidden(super::FOREIGN).into_response(),
            }
        }
    }
}

type PathParams = Result<Path<BTreeMap<String, String>>, PathRejection>;
type QueryParams = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Answers a request: in time, and once there is room to work on it.
async fn answer(
    State(shared): State<Arc<Shared>>,
    endpoint: &'static Endpoint,
    path: PathParams,
    query: QueryParams,
) -> Response {
    let started = shared.clock.monotonic();
    let answered = async {
        let _room = shared.requests.acquire().await;
        respond(&shared, endpoint, path, query).await
    };
    let answer = tokio::select! {
        biased;
        answer = answered => answer,
        () = shared.clock.sleep(shared.rpc.limits().timeout) => {
            Err(ApiError::unavailable("not in time: too many requests at the moment, or too much asked"))
        }
    };
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
    shared: &Shared,
    endpoint: &'static Endpoint,
    path: PathParams,
    query: QueryParams,
) -> ApiResult<Value> {
    let Path(path) = path.map_err(|_| ApiError::unreadable())?;
    let Query(query) = query.map_err(|_| ApiError::unreadable())?;
    let chain = path.get("chain").and_then(|chain| chain.parse::<u64>().ok());
    let served = chain.and_then(|chain| shared.chains.get(&chain));
    let served = Arc::clone(served.ok_or_else(ApiError::no_chain)?);
    let mut call = Call::read(served, endpoint, &path, query)?;
    for _ in 0..ATTEMPTS_MAX {
        call.look().await?;
        if let Some(json) = attempt(&call).await? {
            return Ok(json);
        }
    }
    Err(ApiError::unavailable("the chain changes faster than this can be read"))
}

/// Answers a call; none if the tip changed meanwhile.
async fn attempt(call: &Call) -> ApiResult<Option<Value>> {
    let endpoint = call.endpoint;
    let mut as_of = match call.some_data() {
        Some(data) if !endpoint.needs.is_empty() => data.as_of(endpoint.needs)?,
        _ => blocks::as_of(&call.served.chain.view().await?),
    };
    let stale = call.some_data().and_then(|data| data.stale(&endpoint.processors()));
    if let Some(reason) = stale {
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
