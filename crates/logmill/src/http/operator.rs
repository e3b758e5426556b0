//! What operators and their machines ask: `/health`, `/ready`, `/status`, `/ws/status`, `/metrics`.
//!
//! Guarantees: `/health` answers as long as the process does; `/ready` only when every chain is caught up; nothing here
//! shows a secret. Leaves to others: what being caught up means ([`crate::rpc::Progress`]).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::Utf8Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::socket::Session;
use super::{Shared, metering};
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
    let mut reasons = Vec::new();
    for (chain, served) in &shared.chains {
        let why = match served.progress.behind() {
            None => served.chain.view().await.err().map(|_| "it can not be read".to_owned()),
            why => why,
        };
        if let Some(why) = why {
            reasons.push(json!({"chain_id": chain, "reason": why}));
        }
    }
    if let Some(collecting) = &shared.collecting
        && let Some(why) = collecting.behind().await
    {
        reasons.push(json!({"collector": true, "reason": why}));
    }
    let (status, ready) = match reasons.is_empty() {
        true => (StatusCode::OK, true),
        false => (StatusCode::SERVICE_UNAVAILABLE, false),
    };
    (status, Json(json!({"ready": ready, "reasons": reasons}))).into_response()
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
    for served in shared.chains.values() {
        chains.push(chain(served).await);
    }
    let uptime = shared.clock.monotonic().saturating_sub(shared.started);
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": uptime.as_secs(),
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

async fn chain(served: &Served) -> Value {
    let covered = served.chain.covered();
    let newest = covered.len().saturating_sub(INTERVALS_MAX);
    let shown =
        covered[newest..].iter().map(|range| json!({"start": range.start, "end": range.end}));
    let behind = served.progress.behind();
    let mut status = json!({
        "chain_id": served.chain.chain_id(),
        "ready": behind.is_none(),
        "reason": behind,
        "covered": shown.collect::<Value>(),
        "nodes": served.source.as_ref().map(|source| source.nodes()).unwrap_or_default(),
        "ingest": served.progress.shown(),
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
