//! HTTP server: JSON-RPC, WebSockets, the read API, metering, and the endpoints for operators.
//!
//! | path | serves | required scope |
//! |---|---|---|
//! | `POST /`, `/rpc`, `/rpc/{chain}` | JSON-RPC | `read` |
//! | the same as WebSocket | JSON-RPC with subscriptions | `read` |
//! | `GET /` | `Api Running`; with `Accept: application/json`, a summary of the API | none |
//! | `/ws`, `/ws/{chain}` | feed of blocks and transactions | `read` |
//! | `/ws/status` | status, every three seconds | `read` |
//! | `/health` | whether the process is up | none |
//! | `/ready`, `/ready/rpc`, `/ready/tables`, `/ready/meter` | whether it may be sent requests, and why not | none |
//! | `/status`, `/metrics` | figures for operators | `read` |
//! | `/fees`, `/fees/summary` | collected fees | `read` |
//! | `/collected`, `/collected/{table}` | other collected events | `read` |
//! | `/api/v1/{chain}/…` | stored and derived data of a chain (`api`) | `read` |
//! | `/usage…`, `/events…`, `/aggregations…`, `/meters…` | usage and aggregates (`metering`) | see there |
//! | `/openapi.json` | the OpenAPI document | none |
//!
//! Guarantees: without keys it serves only this machine; body sizes, concurrent requests, connections and durations are
//! bounded. Leaves to others: the answers ([`crate::rpc`]), and the connection to the ingesters.

mod accept;
mod admission;
mod api;
mod auth;
mod collected;
mod compression;
mod connection;
mod cors;
mod csv;
mod encoding;
mod error_body;
mod event_rows;
mod feed;
mod fees;
mod guard;
mod head_scan;
mod health;
mod metering;
mod openapi;
mod operation;
mod operator;
mod paced_stream;
mod panics;
mod recorder;
mod request_body;
mod route;
mod served_chains;
mod server_routes;
mod socket;
mod unread;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::State as FromState;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use futures::stream::unfold;
use logmill_io::{Clock, Entropy, TaskPanic, Tasks};
use logmill_pipeline::derive::Tables;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

use admission::Admission;
pub use admission::ConnectionLimits;
#[cfg(feature = "record-statements")]
pub use api::plans::take_statements;
pub use auth::{Keys, Scope};
pub use cors::Origins;
pub use metering::Metering;
pub use openapi::document;
pub use recorder::record_metrics;

use crate::error::{Error, Result};
use crate::readiness::Readiness;
use crate::rpc::answers::{Answers, PIECE_BYTES};
use crate::rpc::{self, Rpc, ServedChain};
use error_body::problem;
use feed::Feed;
use guard::authorize;
use request_body::{is_json, read_body};
use served_chains::{PathChain, ServedChains, path_chain};
use socket::{RpcSession, run_session};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections: ConnectionLimits,
    /// Maximum number of requests processed at a time.
    pub max_requests: usize,
    /// Maximum size of a request body and of a WebSocket message.
    pub max_body_bytes: usize,
    /// Minimum size of a response to compress; 0 disables compression.
    pub compress_min_bytes: usize,
    /// Chain of paths that name none. If unset, it is the only chain served.
    pub default_chain: Option<u64>,
    /// API keys. Without any, every client on this machine has access.
    pub keys: Keys,
}

#[async_trait]
pub trait CollectorStatus: Send + Sync + std::fmt::Debug {
    async fn status_json(&self) -> Value;
}

#[derive(Debug)]
pub struct ServerParts {
    /// By chain id.
    pub chains: BTreeMap<u64, ServedChain>,
    /// Chains that become known after the start.
    pub late_chains: Option<mpsc::Receiver<ServedChain>>,
    pub readiness: Arc<Readiness>,
    pub tables: Option<Tables>,
    /// Set if this process serves collected events.
    pub collecting: Option<Arc<dyn CollectorStatus>>,
    pub metering: Metering,
    pub limits: Limits,
    pub rpc: rpc::Limits,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Rendered at `/metrics`; see [`record_metrics`].
    pub metrics: Option<PrometheusHandle>,
}

#[derive(Debug)]
struct ServerState {
    chains: ServedChains,
    readiness: Arc<Readiness>,
    tables: Option<Tables>,
    collecting: Option<Arc<dyn CollectorStatus>>,
    metering: Metering,
    limits: Limits,
    rpc: Arc<Rpc>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    started: Duration,
    requests: Arc<Semaphore>,
    metrics: Option<PrometheusHandle>,
    stop: watch::Receiver<bool>,
}

/// Binds the address. Requests wait in the backlog until [`serve_with_health`] runs.
#[expect(clippy::disallowed_methods, reason = "the one place where the program listens")]
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// Serves until `stop` completes. Health, readiness and metrics are also served on a listener of their own, so that
/// other connections cannot crowd them out.
pub async fn serve_with_health(
    listener: TcpListener,
    health: Option<TcpListener>,
    mut state: ServerParts,
    stop: impl Future<Output = ()> + Send,
) -> Result<()> {
    let address = listener.local_addr();
    let address = address.map_err(Error::Address)?;
    if !address.ip().is_loopback() && state.limits.keys.is_empty() {
        return Err(Error::NoKeys { address });
    }
    let (stopping, stopped) = watch::channel(false);
    let late = state.late_chains.take();
    let shared = Arc::new(ServerState::new(state, late.is_some(), stopped.clone()));
    let feeding = feed_all(Arc::clone(&shared), late);
    let clock = || Arc::clone(&shared.clock);
    let health = async {
        let Some(listener) = health else { return };
        let admission = Admission::new(health::limits(), clock());
        let router = health::router(&shared);
        connection::accept(listener, router, admission, clock(), stopped.clone()).await;
    };
    let admission = Admission::new(shared.limits.connections.clone(), clock());
    let router = router(Arc::clone(&shared));
    let accepting = connection::accept(listener, router, admission, clock(), stopped.clone());
    let accepting = futures::future::join(accepting, health);
    let stop = async {
        stop.await;
        // No receiver means that serving has already ended.
        let _ = stopping.send(true);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = accepting => Ok(()),
        failed = feeding => Err(failed.into()),
        () = stop => Ok(()),
    }
}

/// Runs the feed of every chain, including chains that are found later. Returns the panic of a feed.
async fn feed_all(
    shared: Arc<ServerState>,
    late: Option<mpsc::Receiver<ServedChain>>,
) -> TaskPanic {
    let mut feeds: Tasks<()> = Tasks::new();
    let run = |feeds: &mut Tasks<()>, (served, feed): (Arc<ServedChain>, Feed)| {
        feeds.spawn(async move { feed.run(&served.chain).await });
    };
    shared.chains.all().into_iter().for_each(|chain| run(&mut feeds, chain));
    let mut late = late;
    loop {
        let next = async {
            match &mut late {
                Some(late) => late.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(Err(panicked)) = feeds.join_next(), if !feeds.is_empty() => return panicked,
            found = next => match found {
                Some(served) => {
                    run(&mut feeds, shared.chains.add(served.chain.chain_id(), served));
                    shared.chains.all_known();
                }
                None => late = None,
            },
        }
    }
}

impl ServerState {
    fn new(state: ServerParts, late: bool, stop: watch::Receiver<bool>) -> Self {
        let ServerParts { chains, readiness, tables, collecting, metering, limits, .. } = state;
        let ServerParts { rpc, clock, entropy, metrics, .. } = state;
        Self {
            readiness,
            tables,
            collecting,
            metering,
            chains: ServedChains::new(chains, late),
            rpc: Arc::new(Rpc::new(rpc, Arc::clone(&clock), Arc::clone(&entropy))),
            entropy,
            started: clock.monotonic(),
            requests: Arc::new(Semaphore::new(limits.max_requests)),
            limits,
            clock,
            metrics,
            stop,
        }
    }

    /// The named chain, or the default chain if the path names none.
    fn chain(&self, named: Option<u64>) -> Option<(Arc<ServedChain>, Feed)> {
        let chain = named.or(self.limits.default_chain).or_else(|| self.chains.only())?;
        self.chains.get(chain)
    }
}

fn router(shared: Arc<ServerState>) -> Router {
    Router::new()
        .merge(server_routes::routes(&shared))
        .merge(api::routes(&shared))
        .merge(metering::routes(&shared))
        .fallback(async |uri: Uri| match uri.path().starts_with("/api/") {
            true => api::not_found(),
            false => problem(
                StatusCode::NOT_FOUND,
                "no such path; the API is described at /openapi.json",
            ),
        })
        .method_not_allowed_fallback(async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "this path does not support this method")
        })
        .layer(from_fn_with_state(Arc::clone(&shared), encoding::decompress_request))
        .layer(from_fn(panics::catch_panics))
        .layer(from_fn_with_state(Arc::clone(&shared), compression::compress_response))
        .layer(from_fn_with_state(Arc::clone(&shared), cors::cors))
        .with_state(shared)
}

type Upgrade = std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn root_get(
    FromState(shared): FromState<Arc<ServerState>>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Response {
    match upgrade {
        Err(_) if accept::prefers_json(&headers) => Json(openapi::about()).into_response(),
        Err(_) => "Api Running".into_response(),
        Ok(upgrade) => match authorize(&shared, &headers, Scope::Read) {
            Err(rejection) => rejection.plain(Scope::Read).into_response(),
            Ok(_) => upgrade_to_rpc(&shared, None, upgrade),
        },
    }
}

async fn root_post(
    FromState(shared): FromState<Arc<ServerState>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(shared, None, &headers, body).await
}

async fn openapi_get() -> Response {
    ([(CONTENT_TYPE, "application/json")], document()).into_response()
}

async fn rpc_get(
    FromState(shared): FromState<Arc<ServerState>>,
    chain: PathChain,
    upgrade: Upgrade,
) -> Response {
    match (upgrade, path_chain(chain)) {
        (Err(_), _) => problem(StatusCode::METHOD_NOT_ALLOWED, "JSON-RPC requests must use POST"),
        (Ok(_), Err(wrong)) => wrong,
        (Ok(upgrade), Ok(chain)) => upgrade_to_rpc(&shared, chain, upgrade),
    }
}

async fn rpc_post(
    FromState(shared): FromState<Arc<ServerState>>,
    chain: PathChain,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match path_chain(chain) {
        Ok(chain) => answer(shared, chain, &headers, body).await,
        Err(wrong) => wrong,
    }
}

async fn feed_get(
    FromState(shared): FromState<Arc<ServerState>>,
    chain: PathChain,
    upgrade: Upgrade,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            return problem(
                rejection.status(),
                "this path is a WebSocket: send an upgrade request",
            );
        }
    };
    let chain = match path_chain(chain) {
        Ok(chain) => chain,
        Err(wrong) => return wrong,
    };
    let Some((_, feed)) = shared.chain(chain) else {
        return shared.chains.not_found();
    };
    let (session, clock, stop) = (feed.session(), Arc::clone(&shared.clock), shared.stop.clone());
    let upgrade = limited(upgrade, &shared);
    upgrade.on_upgrade(move |socket| run_session(socket, session, clock, stop))
}

async fn status_get(FromState(shared): FromState<Arc<ServerState>>, upgrade: Upgrade) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => limited(upgrade, &shared),
        Err(rejection) => {
            return problem(
                rejection.status(),
                "this path is a WebSocket: send an upgrade request",
            );
        }
    };
    let (clock, stop) = (Arc::clone(&shared.clock), shared.stop.clone());
    let session = operator::StatusSession::new(shared);
    upgrade.on_upgrade(move |socket| run_session(socket, session, clock, stop))
}

fn upgrade_to_rpc(shared: &ServerState, chain: Option<u64>, upgrade: WebSocketUpgrade) -> Response {
    let Some((served, _)) = shared.chain(chain) else {
        return shared.chains.not_found();
    };
    let (rpc, requests) = (Arc::clone(&shared.rpc), Arc::clone(&shared.requests));
    let session = RpcSession::new(rpc, served, requests);
    let (clock, stop) = (Arc::clone(&shared.clock), shared.stop.clone());
    let upgrade = limited(upgrade, shared);
    upgrade.on_upgrade(move |socket| run_session(socket, session, clock, stop))
}

fn limited(upgrade: WebSocketUpgrade, shared: &ServerState) -> WebSocketUpgrade {
    let bytes = shared.limits.max_body_bytes;
    upgrade.protocols([auth::PROTOCOL]).max_message_size(bytes).max_frame_size(bytes)
}

/// Answers a JSON-RPC request: at once if the answer is short, else as a stream.
async fn answer(
    shared: Arc<ServerState>,
    chain: Option<u64>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let Some((served, _)) = shared.chain(chain) else {
        return shared.chains.not_found_by_rpc();
    };
    if !is_json(headers) {
        let why = "the Content-Type of JSON-RPC must be application/json";
        return problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    let rpc = &shared.rpc;
    let body = match read_body(&shared, body).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let bytes_max = rpc.limits().max_response_bytes;
    let json = [(CONTENT_TYPE, "application/json")];
    let mut answers = match rpc.answers(&served, &shared.requests, &body, bytes_max).await {
        Ok(answers) => answers,
        Err(error) => {
            return (StatusCode::SERVICE_UNAVAILABLE, json, error.answer()).into_response();
        }
    };
    let Some(first) = answers.next(None).await else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let body = match first.len() < PIECE_BYTES {
        true => Body::from(first),
        false => streamed(first, answers),
    };
    (json, body).into_response()
}

fn streamed(first: Bytes, answers: Answers) -> Body {
    type Step = std::result::Result<Bytes, std::convert::Infallible>;
    let pieces = unfold((Some(first), answers), |(first, mut answers)| async move {
        let piece = match first {
            Some(first) => first,
            None => answers.next(None).await?,
        };
        Some((Step::Ok(piece), (None, answers)))
    });
    Body::from_stream(pieces)
}
