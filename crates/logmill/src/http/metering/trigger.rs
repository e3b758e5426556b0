//! `POST /aggregations/trigger`, `GET /config`, `GET /ping`.
//!
//! Guarantees: a trigger asks for every period that has usage, those under way included, and never stands in the way of
//! the final aggregate; no secret is in the configuration that is shown. Leaves to others: making aggregates.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use logmill_meter::Meter;
use logmill_meter::due::Which;
use serde_json::json;

use super::list::ask;
use crate::http::{Shared, problem};

/// Has every period aggregated that has usage which no aggregate tells of.
pub(super) async fn trigger(State(shared): State<Arc<Shared>>) -> Response {
    ask(&shared, Ok(()), async |meter: &Meter, ()| {
        let periods = meter.settings().periods.len();
        if periods == 0 {
            let why = "Service misconfigured: no periods available";
            return Ok(problem(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        let swept = Box::pin(meter.sweep(Which::All)).await?;
        if swept.jobs() == 0 {
            let body = json!({"message": "No events to aggregate", "jobsQueued": 0});
            return Ok(Json(body).into_response());
        }
        let body = json!({
            "message": "Aggregation jobs queued",
            "jobsCreated": swept.jobs_created,
            "jobsUpdated": swept.jobs_updated,
            "jobsQueued": swept.jobs(),
            "customersFound": swept.customers,
            "periodsConfigured": periods,
            "eventsScanned": swept.events,
        });
        Ok((StatusCode::ACCEPTED, Json(body)).into_response())
    })
    .await
}

/// What is metered, without secrets.
pub(super) async fn config(State(shared): State<Arc<Shared>>) -> Response {
    Json(&shared.metering.config).into_response()
}

/// Whether anybody is there.
pub(super) async fn ping() -> Response {
    Json(json!({"message": "pong"})).into_response()
}
