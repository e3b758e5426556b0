//! `GET /events/lookup`, `POST /events/cancel`, `POST /events/amend`: one event, found and corrected.
//!
//! Guarantees: a correction names who made it, the caller's key, and why. Leaves to others: making it, once
//! ([`logmill_meter::correct`]).

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use logmill_meter::correct::{Change, Corrected, Correction};
use logmill_meter::requests::KeyedRequest;
use logmill_meter::stored::StoredEvent;
use logmill_meter::{Decimal, Error, Meter, Result};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Caller;
use super::ask::{Asked, Params, wrong};
use super::list::{answer, ask};
use super::once::Creation;
use super::route::LOOKUP_PARAMS;
use super::show::{EventWithCorrections, ShownCorrection, ShownEvent};
use crate::http::Shared;

/// A correction as it is sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asks {
    /// The caller's own if it is not said.
    source: Option<String>,
    id: String,
    reason: String,
    /// Of an amendment.
    value: Option<Box<RawValue>>,
}

/// One event with what was done to it.
pub(super) async fn lookup(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    asked: Asked,
) -> Response {
    let question = Params::read(asked, LOOKUP_PARAMS).map(|params| {
        let source = params.owned("source").unwrap_or_else(|| caller.source.to_string());
        (source, params.owned("id").unwrap_or_default())
    });
    ask(&shared, question, async |meter: &Meter, (source, id): (String, String)| {
        let found = meter.find_event(&source, &id).await?;
        let missing = || Error::NotFound { what: format!("event {id} of source {source}") };
        shown(meter, found.ok_or_else(missing)?).await
    })
    .await
}

/// Takes one event back.
pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        let asks = read_asks(&creation, &["source", "id", "reason"])?;
        Ok((correction(asks, &caller, Change::Cancel), creation.keyed))
    });
    ask(&shared, asked, made).await
}

/// Gives one event another value.
pub(super) async fn amend(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        let asks = read_asks(&creation, &["source", "id", "reason", "value"])?;
        let value = value(asks.value.as_deref())?;
        Ok((correction(asks, &caller, Change::Amend(value)), creation.keyed))
    });
    ask(&shared, asked, made).await
}

async fn made(
    meter: &Meter,
    (correction, keyed): (Correction, Option<KeyedRequest>),
) -> Result<Response> {
    let corrected = Box::pin(meter.correct_once(&correction, keyed.as_ref())).await?;
    let (event, corrections) = corrected;
    with_corrections(meter, event, corrections).await
}

async fn shown(meter: &Meter, event: StoredEvent) -> Result<Response> {
    let corrections = meter.corrections(&event).await?;
    with_corrections(meter, event, corrections).await
}

async fn with_corrections(
    meter: &Meter,
    event: StoredEvent,
    corrections: Vec<Corrected>,
) -> Result<Response> {
    let event = ShownEvent::of(meter.named(event).await?)?;
    let corrections = corrections.into_iter().map(ShownCorrection::from).collect();
    Ok(answer(HeaderMap::new(), &EventWithCorrections { event, corrections }))
}

fn read_asks(creation: &Creation, known: &[&str]) -> std::result::Result<Asks, Response> {
    let asks = creation.fields::<Option<Asks>>(known)?;
    asks.ok_or_else(|| wrong("the body must be an object with id and reason"))
}

fn correction(asks: Asks, caller: &Caller, change: Change) -> Correction {
    Correction {
        source: asks.source.unwrap_or_else(|| caller.source.to_string()),
        id: asks.id,
        change,
        reason: asks.reason,
        actor: caller.name.to_string(),
    }
}

/// A number, or the text of one.
fn value(raw: Option<&RawValue>) -> std::result::Result<Decimal, Response> {
    let Some(raw) = raw else { return Err(wrong("value is required")) };
    let text = serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
    Decimal::parse(&text).map_err(|error| wrong(&format!("value: {error}")))
}
