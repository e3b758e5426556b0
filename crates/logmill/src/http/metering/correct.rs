//! `GET /events/lookup`, `POST /events/cancel`, `POST /events/amend`: one event, found and corrected.
//!
//! Guarantees: a correction names who made it, the caller's key, and why. Leaves to others: making it, once
//! ([`logmill_meter::correct`]).

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use logmill_meter::correct::{Change, Correction};
use logmill_meter::stored::StoredEvent;
use logmill_meter::{Decimal, Error, Meter, Result};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Caller;
use super::ask::{Asked, Params, wrong};
use super::list::{answer, ask};
use super::route::LOOKUP_PARAMS;
use super::show::{EventWithCorrections, ShownCorrection, ShownEvent};
use crate::http::{Shared, read_body};

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
        let source = params.owned("source").unwrap_or_else(|| caller.name().to_owned());
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
    body: Body,
) -> Response {
    let asks = read(&shared, body).await.and_then(|asks| match asks.value {
        Some(_) => Err(wrong("value: an event that is cancelled has none")),
        None => Ok(correction(asks, &caller, Change::Cancel)),
    });
    ask(&shared, asks, made).await
}

/// Gives one event another value.
pub(super) async fn amend(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    let asks = read(&shared, body).await.and_then(|asks| {
        let value = value(asks.value.as_deref())?;
        Ok(correction(asks, &caller, Change::Amend(value)))
    });
    ask(&shared, asks, made).await
}

async fn made(meter: &Meter, correction: Correction) -> Result<Response> {
    let event = Box::pin(meter.correct(&correction)).await?;
    shown(meter, event).await
}

async fn shown(meter: &Meter, event: StoredEvent) -> Result<Response> {
    let corrections = meter.corrections(&event).await?;
    let event = ShownEvent::of(meter.named(event).await?)?;
    let corrections = corrections.into_iter().map(ShownCorrection::from).collect();
    Ok(answer(HeaderMap::new(), &EventWithCorrections { event, corrections }))
}

async fn read(shared: &Shared, body: Body) -> std::result::Result<Asks, Response> {
    let body = read_body(shared, body).await?;
    serde_json::from_slice(&body).map_err(|error| wrong(&format!("the body: {error}")))
}

fn correction(asks: Asks, caller: &Caller, change: Change) -> Correction {
    Correction {
        source: asks.source.unwrap_or_else(|| caller.name().to_owned()),
        id: asks.id,
        change,
        reason: asks.reason,
        actor: caller.name().to_owned(),
    }
}

/// A number, or the text of one.
fn value(raw: Option<&RawValue>) -> std::result::Result<Decimal, Response> {
    let Some(raw) = raw else { return Err(wrong("value is required")) };
    let text = serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
    Decimal::parse(&text).map_err(|error| wrong(&format!("value: {error}")))
}
