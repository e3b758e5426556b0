//! Endpoints for operators and monitoring: `/health`, `/ready`, `/status`, `/ws/status`, `/metrics`.
//!
//! Guarantees: `/health` responds as long as the process runs; `/status` never reports ready what `/ready` does not;
//! nothing here shows a secret. Leaves to others: the definition of ready ([`crate::readiness`]).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::ws::Utf8Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use logmill_pipeline::span::BlockSpan;
use serde_json::{Value, json};

use super::socket::Session;
use super::{ServerState, metering};
use crate::readiness::{Reason, Service, Verdict};
use crate::rpc::ServedChain;
use crate::rpc::subscriptions::SocketAction;

/// Interval of the messages on `/ws/status`.
const STATUS_EVERY: Duration = Duration::from_secs(3);
/// Maximum number of coverage intervals shown.
const INTERVALS_MAX: usize = 1_000;
/// Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn health(State(shared): State<Arc<ServerState>>) -> Response {
    let now = jiff::Timestamp::from_millisecond(shared.clock.now().millis());
    let timestamp = now.map(|now| now.to_string()).unwrap_or_default();
    Json(json!({"status": "ok", "timestamp": timestamp})).into_response()
}

pub(super) async fn ready(State(shared): State<Arc<ServerState>>) -> Response {
    answer(shared.readiness.verdict(None))
}

pub(super) async fn service_ready(
    State(shared): State<Arc<ServerState>>,
    name: Result<Path<String>, PathRejection>,
) -> Response {
    let is_named = |service: &Service| matches!(&name, Ok(Path(name)) if name == service.name());
    match Service::ALL.into_iter().find(is_named) {
        Some(service) => answer(shared.readiness.verdict(Some(service))),
        None => super::problem(
            StatusCode::NOT_FOUND,
            "no such service; the services are rpc, tables and meter",
        ),
    }
}

fn answer(verdict: Verdict) -> Response {
    let status = match verdict.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(verdict)).into_response()
}

pub(super) async fn status(State(shared): State<Arc<ServerState>>) -> Response {
    Json(status_json(&shared).await).into_response()
}

pub(super) struct StatusSession {
    shared: Arc<ServerState>,
    has_sent: bool,
}

impl StatusSession {
    pub(super) fn new(shared: Arc<ServerState>) -> Self {
        Self { shared, has_sent: false }
    }
}

impl Session for StatusSession {
    async fn receive(&mut self, _: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> SocketAction {
        if self.has_sent {
            self.shared.clock.sleep(STATUS_EVERY).await;
        }
        let status = json!({"type": "status", "payload": status_json(&self.shared).await});
        self.has_sent = true;
        SocketAction::Send(vec![status.to_string().into()])
    }
}

async fn status_json(shared: &ServerState) -> Value {
    let mut chains = Vec::new();
    let verdict = shared.readiness.verdict(None);
    for (served, _) in shared.chains.all() {
        chains.push(chain(&served, &verdict).await);
    }
    let services = Service::ALL.map(|service| {
        (service.name().to_owned(), Value::from(shared.readiness.verdict(Some(service)).ready))
    });
    let uptime = shared.clock.monotonic().saturating_sub(shared.started);
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": uptime.as_secs(),
        "ready": verdict.ready,
        "reasons": verdict.reasons,
        "warnings": verdict.warnings,
        "services": serde_json::Map::from_iter(services),
        "chains": chains,
    });
    if let Some(collecting) = &shared.collecting {
        status["collector"] = collecting.status_json().await;
    }
    if let Some(usage) = &shared.metering.usage {
        status["usage_audit"] = metering::audit::status_json(usage).await;
    }
    status
}

async fn chain(served: &ServedChain, verdict: &Verdict) -> Value {
    let chain_id = served.chain.chain_id();
    // A reason without a chain concerns all chains.
    let concerns = |reason: &&Reason| reason.chain_id.is_none_or(|id| id == chain_id);
    let reasons: Vec<&Reason> = verdict.reasons.iter().filter(concerns).collect();
    let covered = served.chain.covered();
    let newest = covered.len().saturating_sub(INTERVALS_MAX);
    let shown = covered[newest..].iter().map(|range| json!(BlockSpan::of(range.start, range.end)));
    let mut status = json!({
        "chain_id": chain_id,
        "ready": reasons.is_empty(),
        "reason": reasons.first().map(|reason| &reason.reason),
        "reasons": reasons,
        "covered": shown.collect::<Value>(),
        "nodes": served.source.as_ref().map(|source| source.nodes()).unwrap_or_default(),
        "ingest": served.status.status_json(),
    });
    match served.chain.view().await {
        Ok(view) => {
            let block = |block: Option<logmill_chain::BlockRef>| {
                block.map(|block| {
                    json!({"number": block.number, "hash": block.hash, "timestamp": block.timestamp})
                })
            };
            status["head"] = json!(block(view.head()));
            status["safe"] = json!(block(view.safe()));
            status["finalized"] = json!(block(view.finalized()));
        }
        Err(error) => {
            let error = crate::one_line::brief(&logmill_io::error_chain(&error));
            tracing::warn!(error, "cannot read the chain");
            status["error"] = json!("the chain cannot be read; the log says why");
        }
    }
    status
}

pub(super) async fn metrics(State(shared): State<Arc<ServerState>>) -> Response {
    let Some(recorder) = &shared.metrics else {
        return super::problem(StatusCode::NOT_FOUND, "metrics are not recorded");
    };
    recorder.run_upkeep();
    ([(CONTENT_TYPE, METRICS_TYPE)], recorder.render()).into_response()
}
