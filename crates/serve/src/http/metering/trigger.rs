//! `POST /aggregations/trigger`, `GET /config`, `GET /ping`.
//!
//! Guarantees: a trigger requests aggregates for every period with usage, including current ones, and never prevents
//! the final aggregate; the configuration shown contains no secret. Leaves to others: computing aggregates.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use logmill_meter::Meter;
use logmill_meter::due::SweepScope;
use logmill_meter::requests::KeyedRequest;
use serde_json::{Value, json};

use super::Caller;
use super::creation::{Creation, CreationRequest};
use super::list::with_meter;
use crate::http::{ServerState, problem};

/// Requests aggregates for every period with usage that no aggregate includes yet.
pub(super) async fn trigger(
    State(shared): State<Arc<ServerState>>,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(Creation::without_fields);
    with_meter(&shared, request, async |meter: &Meter, keyed: Option<KeyedRequest>| {
        if meter.settings().periods.is_empty() {
            let why = "Service misconfigured: no periods available";
            return Ok(problem(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        let body = Box::pin(meter.once(keyed.as_ref(), sweep(meter))).await?;
        let status = match body["jobsQueued"] == 0 {
            true => StatusCode::OK,
            false => StatusCode::ACCEPTED,
        };
        Ok((status, Json(body)).into_response())
    })
    .await
}

async fn sweep(meter: &Meter) -> logmill_meter::Result<Value> {
    let swept = Box::pin(meter.sweep(SweepScope::All)).await?;
    if swept.jobs() == 0 {
        return Ok(json!({"message": "No events to aggregate", "jobsQueued": 0}));
    }
    Ok(json!({
        "message": "Aggregation jobs queued",
        "jobsCreated": swept.jobs_created,
        "jobsUpdated": swept.jobs_updated,
        "jobsQueued": swept.jobs(),
        "customersFound": swept.customers,
        "periodsConfigured": meter.settings().periods.len(),
        "eventsScanned": swept.events,
    }))
}

/// The metering configuration without secrets, and the caller's source.
pub(super) async fn config(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let mut config = shared.metering.config.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.insert("source".to_owned(), (*caller.source).into());
    }
    Json(config).into_response()
}

pub(super) async fn ping() -> Response {
    Json(json!({"message": "pong"})).into_response()
}
