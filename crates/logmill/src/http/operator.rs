//! What operators and their machines ask: `/health`, `/ready`, `/status`, `/ws/status`, `/metrics`.
//!
//! Guarantees: `/health` answers as long as the process does; `/status` never calls ready what `/ready` does not;
//! nothing here shows a secret. Leaves to others: what ready means ([`crate::readiness`]).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::socket::Session;
use super::{Shared, metering};
use crate::readiness::{Reason, Service, Verdict};
use crate::rpc::Served;
use crate::rpc::subscriptions::Next;

/// How often `/ws/status` tells the status.
const STATUS_EVERY: Duration = Duration::from_secs(3);
/// The most intervals of coverage that are shown.
const INTERVALS_MAX: usize = 1_000;
/// The format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let now = jiff::Timestamp::from_millisecond(shared.clock.now().millis());
    let timestamp = now.map(|now| now.to_string()).unwrap_or_default();
    Json(json!({"status": "ok", "timestamp": timestamp})).into_response()
}

pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    answer(shared.readiness.verdict(None))
}

pub(super) async fn service_ready(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Response {
    match Service::ALL.into_iter().find(|service| service.name() == name) {
        Some(service) => answer(shared.readiness.verdict(Some(service))),
        None => super::problem(StatusCode::NOT_FOUND, "the services are rpc, tables and meter"),
    }
}

fn answer(verdict: Verdict) -> Response {
    let status = match verdict.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(verdict)).into_response()
}

pub(super) async fn status(State(shared): State<Arc<Shared>>) -> Response {
    Json(shown(&shared).await).into_response()
}

/// A client of `/ws/status`, which is told the status again and again.
pub(super) struct StatusSession {
    shared: Arc<Shared>,
    told: bool,
}

impl StatusSession {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, told: false }
    }
}

impl Session for StatusSession {
    async fn hear(&mut self, _: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> Next {
        if self.told {
            self.shared.clock.sleep(STATUS_EVERY).await;
        }
        let status = json!({"type": "status", "payload": shown(&self.shared).await});
        self.told = true;
        Next::Send(vec![status.to_string().into()])
    }
}

async fn shown(shared: &Shared) -> Value {
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
        "services": serde_json::Map::from_iter(services),
        "chains": chains,
    });
    if let Some(collecting) = &shared.collecting {
        status["collector"] = collecting.shown().await;
    }
    if let Some(usage) = &shared.metering.usage {
        status["usage_audit"] = metering::audit::shown(usage).await;
    }
    status
}

async fn chain(served: &Served, verdict: &Verdict) -> Value {
    let chain_id = served.chain.chain_id();
    // What is not about one chain is about all of them.
    let concerns = |reason: &&Reason| reason.chain_id.is_none_or(|id| id == chain_id);
    let reasons: Vec<&Reason> = verdict.reasons.iter().filter(concerns).collect();
    let covered = served.chain.covered();
    let newest = covered.len().saturating_sub(INTERVALS_MAX);
    let shown =
        covered[newest..].iter().map(|range| json!({"start": range.start, "end": range.end}));
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
            let error = crate::output::brief(&logmill_io::chain(&error));
            tracing::warn!(error, "a chain can not be read");
            status["error"] = json!("it can not be read; the log says why");
        }
    }
    status
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let Some(recorder) = &shared.metrics else {
        return super::problem(StatusCode::NOT_FOUND, "metrics are not recorded");
    };
    recorder.run_upkeep();
    ([(CONTENT_TYPE, METRICS_TYPE)], recorder.render()).into_response()
}
