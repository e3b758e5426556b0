//! `GET /events/lookup`, `POST /events/cancel`, `POST /events/amend`: find and correct one event.
//!
//! Guarantees: a correction records the caller's key and the reason. Leaves to others: applying it, once
//! ([`logmill_meter::correct`]).

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use logmill_meter::correct::{Change, Correction, CorrectionRecord};
use logmill_meter::requests::KeyedRequest;
use logmill_meter::stored_event::StoredEvent;
use logmill_meter::{Decimal, Error, Meter, Result};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Caller;
use super::creation::{Creation, CreationRequest};
use super::json::{CorrectionJson, EventJson, EventWithCorrections};
use super::list::{json_response, with_meter};
use super::params::{Params, QueryParams, bad_request};
use super::query_params::LOOKUP_PARAMS;
use crate::http::ServerState;

/// Body of a correction request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CorrectionBody {
    /// The caller's own source if missing.
    source: Option<String>,
    id: String,
    reason: String,
    /// Only for an amendment.
    value: Option<Box<RawValue>>,
}

/// One event with its corrections.
pub(super) async fn lookup(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
    params: QueryParams,
) -> Response {
    let request = Params::read(params, LOOKUP_PARAMS).map(|params| {
        let source = params.owned("source").unwrap_or_else(|| caller.source.to_string());
        (source, params.owned("id").unwrap_or_default())
    });
    with_meter(&shared, request, async |meter: &Meter, (source, id): (String, String)| {
        let found = meter.find_event(&source, &id).await?;
        let missing = || Error::NotFound { what: format!("event {id} of source {source}") };
        event_json(meter, found.ok_or_else(missing)?).await
    })
    .await
}

pub(super) async fn cancel(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(|creation| {
        let (body, keyed) = read_body(creation, &["source", "id", "reason"])?;
        Ok((correction(body, &caller, Change::Cancel), keyed))
    });
    with_meter(&shared, request, apply_correction).await
}

/// Changes the value of one event.
pub(super) async fn amend(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(|creation| {
        let (body, keyed) = read_body(creation, &["source", "id", "reason", "value"])?;
        let value = value(body.value.as_deref())?;
        Ok((correction(body, &caller, Change::Amend(value)), keyed))
    });
    with_meter(&shared, request, apply_correction).await
}

async fn apply_correction(
    meter: &Meter,
    (correction, keyed): (Correction, Option<KeyedRequest>),
) -> Result<Response> {
    let corrected = Box::pin(meter.correct_once(&correction, keyed.as_ref())).await?;
    let (event, corrections) = corrected;
    with_corrections(meter, event, corrections).await
}

async fn event_json(meter: &Meter, event: StoredEvent) -> Result<Response> {
    let corrections = meter.corrections(&event).await?;
    with_corrections(meter, event, corrections).await
}

async fn with_corrections(
    meter: &Meter,
    event: StoredEvent,
    corrections: Vec<CorrectionRecord>,
) -> Result<Response> {
    let event = EventJson::of(meter.with_names(event).await?)?;
    let corrections = corrections.into_iter().map(CorrectionJson::from).collect();
    Ok(json_response(HeaderMap::new(), &EventWithCorrections { event, corrections }))
}

fn read_body(
    creation: Creation,
    known: &[&str],
) -> std::result::Result<(CorrectionBody, Option<KeyedRequest>), Response> {
    let (body, keyed) = creation.with_fields::<Option<CorrectionBody>>(known)?;
    let body = body.ok_or_else(|| bad_request("the body must be an object with id and reason"))?;
    Ok((body, keyed))
}

fn correction(body: CorrectionBody, caller: &Caller, change: Change) -> Correction {
    Correction {
        source: body.source.unwrap_or_else(|| caller.source.to_string()),
        id: body.id,
        change,
        reason: body.reason,
        actor: caller.name.to_string(),
    }
}

/// A number, or a string that contains one.
fn value(raw: Option<&RawValue>) -> std::result::Result<Decimal, Response> {
    let Some(raw) = raw else { return Err(bad_request("value is required")) };
    let text = serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
    Decimal::parse(&text).map_err(|error| bad_request(&format!("value: {error}")))
}
