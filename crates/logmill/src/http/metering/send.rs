//! `POST /usage/{eventType}`, `/usagebatch`, `/usage` and `/events`: usage comes in.
//!
//! | path | `application/json` | `application/cloudevents+json` | `application/cloudevents-batch+json` |
//! |---|---|---|---|
//! | `/usage/{eventType}` | one event | no | no |
//! | `/usage`, `/events` | one event with `eventType` | one event | many |
//! | `/usagebatch` | many | no | many |
//!
//! Guarantees: 201 means that all events are on disk, each of them once; of a batch with one invalid event nothing is
//! recorded (422); events that contradict recorded ones are not recorded and are named (409, in batches 207). A
//! repeated request with ids is answered as the first was. Leaves to others: what an event must be
//! ([`logmill_meter::event`]).

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use logmill_io::ErrorKind;
use logmill_meter::event::Wrongs;
use logmill_meter::record::{Arrived, Outcome};
use logmill_meter::requests::KeyedRequest;
use serde_json::{Value, json};

use super::ask::wrong;
use super::batch::{self, Checks, Form, NoBatch, NoEvent};
use super::{Caller, RETRY, answered, failed, once, usage};
use crate::http::{Shared, problem, read_body};
use crate::meter::Usage;
use crate::output;

/// Larger bodies are read where they hold up no other request.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// How much is said of what is wrong with a batch.
const WRONGS_BYTES_MAX: usize = 1 << 20;

const CLOUD: &str = "application/cloudevents+json";
const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

/// What a body is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Plain,
    Cloud,
    CloudBatch,
}

impl Said {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let Some(said) = headers.get(CONTENT_TYPE) else { return Some(Self::Plain) };
        let said = said.to_str().ok()?.split(';').next().unwrap_or_default().trim();
        let known = [
            ("application/json", Self::Plain),
            (CLOUD, Self::Cloud),
            (CLOUD_BATCH, Self::CloudBatch),
        ];
        known.into_iter().find(|(name, _)| said.eq_ignore_ascii_case(name)).map(|(_, said)| said)
    }
}

/// One event whose type is in the path.
pub(super) async fn of_type(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Ok(Path(event_type)) = path else {
        return problem(StatusCode::BAD_REQUEST, "the event type is to be text in UTF-8");
    };
    match Said::of(&headers) {
        Some(Said::Plain) => {
            single(&shared, &caller, &headers, body, (Form::Plain, Some(&event_type))).await
        }
        _ => unsupported("one event as application/json; CloudEvents are sent to /usage"),
    }
}

/// Events as the content type says.
pub(super) async fn any(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match Said::of(&headers) {
        Some(Said::Plain) => single(&shared, &caller, &headers, body, (Form::Plain, None)).await,
        Some(Said::Cloud) => single(&shared, &caller, &headers, body, (Form::Cloud, None)).await,
        Some(Said::CloudBatch) => many(&shared, &caller, &headers, body, Form::Cloud).await,
        None => unsupported(&format!("events as application/json, {CLOUD} or {CLOUD_BATCH}")),
    }
}

/// Many events.
pub(super) async fn batch(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match Said::of(&headers) {
        Some(Said::Plain) => many(&shared, &caller, &headers, body, Form::Plain).await,
        Some(Said::CloudBatch) => many(&shared, &caller, &headers, body, Form::Cloud).await,
        _ => unsupported(&format!("an array of events as application/json or {CLOUD_BATCH}")),
    }
}

fn unsupported(expected: &str) -> Response {
    problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, &format!("expected {expected}"))
}

async fn single(
    shared: &Shared,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    (form, event_type): (Form, Option<&str>),
) -> Response {
    let (usage, key, body) = match received(shared, headers, body).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let work = async {
        let checks = checks(shared, usage, caller, key.as_deref());
        let arrived = match batch::one(&body, form, event_type, &checks) {
            Ok(arrived) => arrived,
            Err(NoEvent::NotJson(why)) => return problem(StatusCode::BAD_REQUEST, &why),
            Err(NoEvent::Wrong(details)) => return invalid(&details),
        };
        match out_of_time(usage, std::slice::from_ref(&arrived)).await {
            Ok(wrongs) if wrongs.is_empty() => {
                match usage.sources.mark_used(&caller.name, &usage.meter).await {
                    Ok(()) => record_one(usage, arrived).await,
                    Err(error) => failed(&error),
                }
            }
            Ok(wrongs) => invalid(&wrongs.into_iter().flat_map(|(_, wrongs)| wrongs).collect()),
            Err(error) => failed(&error),
        }
    };
    answered(shared, work).await
}

fn invalid(details: &Wrongs) -> Response {
    let body = json!({"error": "Validation failed", "details": details});
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}

/// What is wrong with the times of events. One that was recorded in time is answered as it was then.
async fn out_of_time(
    usage: &Usage,
    events: &[Arrived],
) -> logmill_meter::Result<Vec<(usize, Wrongs)>> {
    let wrongs = usage.meter.out_of_time(events).await?;
    Ok(wrongs.into_iter().map(|(index, why)| (index, vec![why])).collect())
}

async fn record_one(usage: &Usage, arrived: Arrived) -> Response {
    let event = &arrived.event;
    let mut said = json!({
        "eventType": event.event_type,
        "customerId": event.customer,
        "id": event.id,
    });
    let outcomes = match usage.record(vec![arrived]).await {
        Ok(outcomes) => outcomes,
        Err(error) => return failed(&error),
    };
    count(&outcomes);
    if outcomes.contains(&Outcome::Conflict) {
        said["error"] = "an event with this source and id, and other content, is recorded".into();
        return (StatusCode::CONFLICT, Json(said)).into_response();
    }
    said["message"] = "Event captured".into();
    (StatusCode::CREATED, Json(said)).into_response()
}

async fn many(
    shared: &Arc<Shared>,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    form: Form,
) -> Response {
    let (usage, key, body) = match received(shared, headers, body).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let work = async {
        let read = if body.len() <= INLINE_BYTES_MAX {
            batch::many(&body, form, &checks(shared, usage, caller, key.as_deref()))
        } else {
            let (shared, usage, caller) = (Arc::clone(shared), usage.clone(), caller.clone());
            let read =
                move || batch::many(&body, form, &checks(&shared, &usage, &caller, key.as_deref()));
            logmill_io::compute(read).await
        };
        match read {
            Ok(events) => match out_of_time(usage, &events).await {
                Ok(wrongs) if wrongs.is_empty() => {
                    match usage.sources.mark_used(&caller.name, &usage.meter).await {
                        Ok(()) => record_many(usage, events).await,
                        Err(error) => failed(&error),
                    }
                }
                Ok(wrongs) => {
                    let no_batch = NoBatch::Wrong { wrongs, received: events.len() };
                    refused(no_batch, usage.meter.settings().batch_max)
                }
                Err(error) => failed(&error),
            },
            Err(no_batch) => refused(no_batch, usage.meter.settings().batch_max),
        }
    };
    answered(shared, work).await
}

async fn record_many(usage: &Usage, events: Vec<Arrived>) -> Response {
    let count_all = events.len();
    let ids = match ids(&events) {
        Ok(ids) => ids,
        Err(error) => return failed(&logmill_meter::Error::invalid(error.to_string())),
    };
    let outcomes = match usage.record(events).await {
        Ok(outcomes) => outcomes,
        Err(error) => return none_stored(&error, count_all),
    };
    count(&outcomes);
    let is_conflict = |outcome: &&Outcome| **outcome == Outcome::Conflict;
    let failed_count = outcomes.iter().filter(is_conflict).count();
    if failed_count == 0 {
        // Written by hand, as the ids are JSON already.
        let body =
            format!("{{\"message\":\"Events captured\",\"count\":{count_all},\"ids\":{ids}}}");
        let json = [(CONTENT_TYPE, "application/json")];
        return (StatusCode::CREATED, json, body).into_response();
    }
    let ids: Vec<String> = serde_json::from_str(&ids).unwrap_or_default();
    let conflicts = outcomes.iter().zip(&ids).enumerate();
    let conflicts = conflicts.filter(|(_, (outcome, _))| is_conflict(outcome));
    let conflicts = conflicts.map(|(index, (_, id))| json!({"index": index, "id": id}));
    let body = json!({
        "message": "Some events contradict recorded ones with the same source and id",
        "successCount": count_all - failed_count,
        "failedCount": failed_count,
        "conflicts": conflicts.collect::<Vec<_>>(),
        "ids": ids,
    });
    (StatusCode::MULTI_STATUS, Json(body)).into_response()
}

/// The body of a request, its `Idempotency-Key`, and what it is for.
async fn received<'a>(
    shared: &'a Shared,
    headers: &HeaderMap,
    body: Body,
) -> Result<(&'a Usage, Option<String>, Bytes), Response> {
    let usage = usage(shared)?;
    let body = read_body(shared, body).await?;
    let key = once::key(headers)?.map(str::to_owned);
    if let Some(key) = &key {
        let keyed = KeyedRequest::new("", key, "", &[]);
        keyed.map_err(|error| wrong(&error.to_string()))?;
    }
    Ok((usage, key, body))
}

fn checks<'a>(
    shared: &'a Shared,
    usage: &'a Usage,
    caller: &'a Caller,
    key: Option<&'a str>,
) -> Checks<'a> {
    Checks {
        settings: usage.meter.settings(),
        source: &caller.source,
        entropy: &*shared.entropy,
        now: shared.clock.now(),
        key,
    }
}

/// The ids of events as a JSON array.
fn ids(events: &[Arrived]) -> serde_json::Result<String> {
    let mut ids = Vec::with_capacity(events.len() * 40);
    let mut before = b'[';
    for arrived in events {
        ids.push(before);
        serde_json::to_writer(&mut ids, &arrived.event.id)?;
        before = b',';
    }
    ids.push(b']');
    Ok(String::from_utf8(ids).unwrap_or_default())
}

/// Why a batch was not even tried.
fn refused(no_batch: NoBatch, max: usize) -> Response {
    match no_batch {
        NoBatch::NotJson(why) => problem(StatusCode::BAD_REQUEST, &why),
        NoBatch::Empty => problem(StatusCode::BAD_REQUEST, "Events array cannot be empty"),
        NoBatch::TooMany { received } => {
            let error = format!("Batch too large: at most {max} events are taken at a time");
            let body = json!({"error": error, "received": received, "maxAllowed": max});
            (StatusCode::PAYLOAD_TOO_LARGE, Json(body)).into_response()
        }
        NoBatch::Wrong { wrongs, received } => {
            let invalid = wrongs.len();
            let mut bytes_left = WRONGS_BYTES_MAX;
            let told = wrongs.into_iter().map_while(|(index, errors)| {
                let bytes = errors.iter().map(String::len).sum();
                bytes_left = bytes_left.checked_sub(bytes)?;
                Some(json!({"index": index, "errors": errors}))
            });
            let told: Vec<Value> = told.collect();
            let body = json!({
                "error": "Validation failed for some events",
                "validationErrors": told,
                "validCount": received - invalid,
                "invalidCount": invalid,
            });
            (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
        }
    }
}

/// A batch that could not be recorded is not recorded at all.
fn none_stored(error: &logmill_meter::Error, count: usize) -> Response {
    tracing::warn!(error = output::brief(&error.chain()), "a batch of usage was not recorded");
    let body = Json(json!({"error": "Failed to store all events", "failedCount": count}));
    let status = match error.kind() {
        ErrorKind::Transient => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    match error.kind() {
        ErrorKind::Transient => (status, RETRY, body).into_response(),
        _ => (status, body).into_response(),
    }
}

fn count(outcomes: &[Outcome]) {
    let of = |wanted: Outcome| {
        let found = outcomes.iter().filter(|outcome| **outcome == wanted).count();
        u64::try_from(found).unwrap_or(u64::MAX)
    };
    for (name, outcome) in [
        ("stored", Outcome::Stored),
        ("repeated", Outcome::Repeated),
        ("conflict", Outcome::Conflict),
    ] {
        metrics::counter!("logmill_usage_events_total", "outcome" => name).increment(of(outcome));
    }
}
