//! `POST /aggregations/trigger`, `GET /config`, `GET /ping`.
//!
//! Guarantees: a trigger asks for every period that has usage, those under way included, and never stands in the way of
//! the final aggregate; no secret is in the configuration that is shown. Leaves to others: making aggregates.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use logmill_meter::Meter;
use logmill_meter::due::Which;
use logmill_meter::requests::KeyedRequest;
use serde_json::{Value, json};

use super::Caller;
use super::list::ask;
use super::once::Creation;
use crate::http::{Shared, problem};

/// Has every period aggregated that has usage which no aggregate tells of.
pub(super) async fn trigger(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        creation.expect_no_fields()?;
        Ok(creation.keyed)
    });
    ask(&shared, asked, async |meter: &Meter, keyed: Option<KeyedRequest>| {
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
    let swept = Box::pin(meter.sweep(Which::All)).await?;
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

/// What is metered, without secrets, and as which source the caller sends usage.
pub(super) async fn config(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let mut config = shared.metering.config.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.insert("source".to_owned(), (*caller.source).into());
    }
    Json(config).into_response()
}

/// Whether anybody is there.
pub(super) async fn ping() -> Response {
    Json(json!({"message": "pong"})).into_response()
}
