//! HTTP: JSON-RPC, WebSockets, and what operators ask.
//!
//! | path | what | needs |
//! |---|---|---|
//! | `POST /`, `/rpc`, `/rpc/{chain}` | JSON-RPC | `read` |
//! | the same as WebSocket | JSON-RPC with subscriptions | `read` |
//! | `GET /` | `Api Running` | nothing |
//! | `/ws`, `/ws/{chain}` | the feed of blocks and transactions | `read` |
//! | `/ws/status` | the status, every three seconds | `read` |
//! | `/health` | whether the process is up | nothing |
//! | `/ready`, `/ready/rpc`, `/ready/tables`, `/ready/meter` | whether it may be sent requests, and why not | nothing |
//! | `/status`, `/metrics` | figures for operators | `read` |
//! | `/fees`, `/fees/summary` | collected fees | `read` |
//! | `/api/v1/{chain}/…` | what is stored and derived of a chain ([`api`]) | `read` |
//! | `/usage…`, `/events…`, `/aggregations…`, `/meters…` | usage, and what follows from it ([`metering`]) | see there |
//! | `/openapi.json` | what of that there is | nothing |
//!
//! Guarantees: without keys nothing is served beyond this machine; bodies, requests under way, connections and time are
//! bounded. Leaves to others: what is answered ([`crate::rpc`]), and being wired to what ingests.

mod admission;
mod api;
mod auth;
mod caught;
mod connection;
mod encoding;
mod feed;
mod fees;
mod health;
mod metering;
mod operator;
mod served;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Request as HttpRequest, State as FromState};
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::stream::unfold;
use logmill_io::{Clock, Entropy, Panicked, Tasks};
use logmill_pipeline::derive::Tables;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

use admission::Admission;
pub(crate) use admission::ConnectionLimits;
pub(crate) use auth::{Keys, Scope};
pub(crate) use metering::Metering;

use crate::error::{Error, Result};
use crate::readiness::Readiness;
use crate::rpc::answer::{Answers, PIECE_BYTES};
use crate::rpc::{self, Rpc, Served};
use auth::Refused;
use feed::Feed;
use served::ServedChains;
use socket::{RpcSession, talk};

/// How much is served at a time, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How many connections there may be, and how long they may keep us waiting.
    pub(crate) connections: ConnectionLimits,
    /// The most requests that are worked on.
    pub(crate) max_requests: usize,
    /// The largest body, and the largest message of a WebSocket.
    pub(crate) max_body_bytes: usize,
    /// The chain of paths that name none; the only one if this does not say.
    pub(crate) default_chain: Option<u64>,
    /// Who may ask; everybody on this machine if there are none.
    pub(crate) keys: Keys,
}

/// What is told of a collector.
#[async_trait]
pub(crate) trait Collecting: Send + Sync + std::fmt::Debug {
    /// Figures for operators.
    async fn shown(&self) -> Value;
}

/// Everything that serving needs.
#[derive(Debug)]
pub(crate) struct State {
    /// The chains, by their ids.
    pub(crate) chains: BTreeMap<u64, Served>,
    /// Chains that are found later.
    pub(crate) late_chains: Option<mpsc::Receiver<Served>>,
    /// Whether this process may be sent requests.
    pub(crate) readiness: Arc<Readiness>,
    /// Derived and collected tables, if there are any.
    pub(crate) tables: Option<Tables>,
    /// What collects, if this process serves what is collected.
    pub(crate) collecting: Option<Arc<dyn Collecting>>,
    /// Usage, if any is metered.
    pub(crate) metering: Metering,
    pub(crate) limits: Limits,
    pub(crate) rpc: rpc::Limits,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// What `/metrics` shows; see [`record_metrics`].
    pub(crate) metrics: Option<PrometheusHandle>,
}

/// What handlers share.
#[derive(Debug)]
struct Shared {
    chains: ServedChains,
    readiness: Arc<Readiness>,
    tables: Option<Tables>,
    collecting: Option<Arc<dyn Collecting>>,
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

/// Listens where it is told to; requests wait until [`serve`].
#[expect(clippy::disallowed_methods, reason = "the one place where the program listens")]
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// Records metrics from here on, once for the process.
pub(crate) fn record_metrics() -> Result<PrometheusHandle> {
    let recorder = PrometheusBuilder::new().install_recorder();
    recorder.map_err(|error| Error::Internal { what: format!("record metrics: {error}") })
}

/// Serves until `stop` completes.
pub(crate) async fn serve(
    listener: TcpListener,
    state: State,
    stop: impl Future<Output = ()> + Send,
) -> Result<()> {
    serve_with_health(listener, None, state, stop).await
}

/// Serves until `stop` completes; what load balancers and monitors ask, on a listener of its own too, which connections
/// of others cannot fill.
pub(crate) async fn serve_with_health(
    listener: TcpListener,
    health: Option<TcpListener>,
    mut state: State,
    stop: impl Future<Output = ()> + Send,
) -> Result<()> {
    let address = listener.local_addr();
    let address =
        address.map_err(|source| Error::System { doing: "read the address served", source })?;
    if !address.ip().is_loopback() && state.limits.keys.is_empty() {
        return Err(Error::NoKeys { address });
    }
    let (stopping, stopped) = watch::channel(false);
    let late = state.late_chains.take();
    let shared = Arc::new(Shared::new(state, stopped.clone()));
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
        // Nobody listening means that it has ended.
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

/// Runs the feed of every chain, also of those that come later; gives the panic of one.
async fn feed_all(shared: Arc<Shared>, late: Option<mpsc::Receiver<Served>>) -> Panicked {
    let mut feeds: Tasks<()> = Tasks::new();
    let run = |feeds: &mut Tasks<()>, (served, feed): (Arc<Served>, Feed)| {
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
                Some(served) => run(&mut feeds, shared.chains.add(served.chain.chain_id(), served)),
                None => late = None,
            },
        }
    }
}

impl Shared {
    fn new(state: State, stop: watch::Receiver<bool>) -> Self {
        let State { chains, readiness, tables, collecting, metering, limits, .. } = state;
        let State { rpc, clock, entropy, metrics, .. } = state;
        Self {
            readiness,
            tables,
            collecting,
            metering,
            chains: ServedChains::new(chains),
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

    /// The chain that a path names, or the one that is meant without a name.
    fn chain(&self, named: Option<u64>) -> Option<(Arc<Served>, Feed)> {
        let chain = named.or(self.limits.default_chain).or_else(|| self.chains.only())?;
        self.chains.get(chain)
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let guarded = Router::new()
        .route("/rpc", get(rpc_get).post(rpc_post))
        .route("/rpc/{chain}", get(rpc_get).post(rpc_post))
        .route("/ws", get(feed_get))
        .route("/ws/status", get(status_get))
        .route("/ws/{chain}", get(feed_get))
        .route("/status", get(operator::status))
        .route("/metrics", get(operator::metrics))
        .route("/fees", get(fees::page))
        .route("/fees/summary", get(fees::summary))
        .route_layer(from_fn_with_state(Arc::clone(&shared), guard));
    Router::new()
        .route("/", get(root_get).post(root_post))
        .route("/health", get(operator::health))
        .route("/ready", get(operator::ready))
        .route("/ready/{service}", get(operator::service_ready))
        .merge(guarded)
        .merge(api::routes(&shared))
        .merge(metering::routes(&shared))
        .fallback(async |uri: Uri| match uri.path().starts_with("/api/") {
            true => api::nothing(),
            false => problem(StatusCode::NOT_FOUND, "there is nothing here"),
        })
        .method_not_allowed_fallback(async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "this path is not used with this method")
        })
        .layer(from_fn_with_state(Arc::clone(&shared), encoding::decompressed))
        .layer(from_fn(caught::caught))
        .with_state(shared)
}

/// What pages of other sites are told where there are no keys.
const FOREIGN: &str = "without keys only this machine is served: ask for localhost or 127.0.0.1, from no page \
    of another site, or set server.keys";

/// Lets nobody past without the key that is needed.
async fn guard(
    FromState(shared): FromState<Arc<Shared>>,
    request: HttpRequest,
    next: Next,
) -> Response {
    match refusal(&shared, request.headers(), Scope::Read) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

fn refusal(shared: &Shared, headers: &HeaderMap, scope: Scope) -> Option<Response> {
    let refused = shared.limits.keys.check(headers, scope).err()?;
    metrics::counter!("logmill_http_refused_total").increment(1);
    Some(match refused {
        Refused::Unknown => {
            let why = "a key is needed, as `Authorization: Bearer …` or `x-apikey`";
            ([(WWW_AUTHENTICATE, "Bearer")], problem(StatusCode::UNAUTHORIZED, why)).into_response()
        }
        Refused::Forbidden => {
            let why = format!("the key does not allow this: it needs the scope {}", scope.name());
            problem(StatusCode::FORBIDDEN, &why)
        }
        Refused::Foreign => problem(StatusCode::FORBIDDEN, FOREIGN),
    })
}

/// An answer that is not JSON-RPC's.
fn problem(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

type Upgrade = std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn root_get(
    FromState(shared): FromState<Arc<Shared>>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Response {
    match upgrade {
        Err(_) => "Api Running".into_response(),
        Ok(upgrade) => match refusal(&shared, &headers, Scope::Read) {
            Some(refusal) => refusal,
            None => converse(&shared, None, upgrade),
        },
    }
}

async fn root_post(
    FromState(shared): FromState<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match refusal(&shared, &headers, Scope::Read) {
        Some(refusal) => refusal,
        None => answer(shared, None, &headers, body).await,
    }
}

async fn rpc_get(
    FromState(shared): FromState<Arc<Shared>>,
    chain: Option<Path<u64>>,
    upgrade: Upgrade,
) -> Response {
    match upgrade {
        Err(_) => problem(StatusCode::METHOD_NOT_ALLOWED, "JSON-RPC is sent with POST"),
        Ok(upgrade) => converse(&shared, chain.map(|Path(chain)| chain), upgrade),
    }
}

async fn rpc_post(
    FromState(shared): FromState<Arc<Shared>>,
    chain: Option<Path<u64>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(shared, chain.map(|Path(chain)| chain), &headers, body).await
}

async fn feed_get(
    FromState(shared): FromState<Arc<Shared>>,
    chain: Option<Path<u64>>,
    upgrade: Upgrade,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return problem(rejection.status(), "this is a WebSocket"),
    };
    let Some((_, feed)) = shared.chain(chain.map(|Path(chain)| chain)) else {
        return no_chain();
    };
    let (session, clock, stop) = (feed.session(), Arc::clone(&shared.clock), shared.stop.clone());
    let upgrade = limited(upgrade, &shared);
    upgrade.on_upgrade(move |socket| talk(socket, session, clock, stop))
}

async fn status_get(FromState(shared): FromState<Arc<Shared>>, upgrade: Upgrade) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => limited(upgrade, &shared),
        Err(rejection) => return problem(rejection.status(), "this is a WebSocket"),
    };
    let (clock, stop) = (Arc::clone(&shared.clock), shared.stop.clone());
    let session = operator::StatusSession::new(shared);
    upgrade.on_upgrade(move |socket| talk(socket, session, clock, stop))
}

fn converse(shared: &Shared, chain: Option<u64>, upgrade: WebSocketUpgrade) -> Response {
    let Some((served, _)) = shared.chain(chain) else {
        return no_chain();
    };
    let (rpc, requests) = (Arc::clone(&shared.rpc), Arc::clone(&shared.requests));
    let session = RpcSession::new(rpc, served, requests);
    let (clock, stop) = (Arc::clone(&shared.clock), shared.stop.clone());
    let upgrade = limited(upgrade, shared);
    upgrade.on_upgrade(move |socket| talk(socket, session, clock, stop))
}

fn limited(upgrade: WebSocketUpgrade, shared: &Shared) -> WebSocketUpgrade {
    let bytes = shared.limits.max_body_bytes;
    upgrade.max_message_size(bytes).max_frame_size(bytes)
}

fn no_chain() -> Response {
    problem(StatusCode::NOT_FOUND, "this chain is not served, or none is said where there are many")
}

/// Answers a request of JSON-RPC: at once if that is short, in pieces if not.
async fn answer(
    shared: Arc<Shared>,
    chain: Option<u64>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let Some((served, _)) = shared.chain(chain) else {
        return no_chain();
    };
    if !is_json(headers) {
        let why = "the content type of JSON-RPC is application/json";
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

/// The whole body of a request, if it is not too large and comes in time.
async fn read_body(shared: &Shared, body: Body) -> std::result::Result<Bytes, Response> {
    let max = shared.limits.max_body_bytes;
    // Before there is room for it: those who send slowly must not take the room of others.
    let body = tokio::select! {
        biased;
        body = axum::body::to_bytes(body, max) => body,
        () = shared.clock.sleep(shared.rpc.limits().timeout) => {
            let why = "the body did not come in time";
            return Err(problem(StatusCode::REQUEST_TIMEOUT, why));
        }
    };
    body.map_err(|error| encoding::unreadable(&error, max))
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

/// As geth has it, and leniently where nothing is said.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(said) = headers.get(CONTENT_TYPE) else {
        return true;
    };
    let said = said.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    let known = ["application/json", "application/json-rpc", "application/jsonrequest"];
    known.iter().any(|known| said.trim().eq_ignore_ascii_case(known))
}
