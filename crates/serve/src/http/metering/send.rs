//! `POST /usage/{eventType}`, `/usagebatch`, `/usage` and `/events`: receive usage.
//!
//! | path | `application/json` | `application/cloudevents+json` | `application/cloudevents-batch+json` |
//! |---|---|---|---|
//! | `/usage/{eventType}` | one event | no | no |
//! | `/usage`, `/events` | one event with `eventType` | one event | many |
//! | `/usagebatch` | many | no | many |
//!
//! Guarantees: 201 means that all events are on disk, each of them once; a batch with an invalid event is rejected as a
//! whole (422); events that conflict with recorded ones are not recorded and are named (409, in batches 207). A
//! repeated request with ids gets the same response as the first. Leaves to others: the rules for events
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
use logmill_meter::event::ValidationErrors;
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::requests::KeyedRequest;
use serde_json::{Value, json};

use super::batch::{self, BatchRejection, Checks, EventFormat, EventRejection};
use super::params::bad_request;
use super::{Caller, RETRY, creation, failed, respond, usage};
use crate::http::{ServerState, problem, read_body};
use crate::one_line::brief;
use crate::usage::Usage;

/// Larger bodies are parsed on another thread, so that they do not delay other requests.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// Maximum size of the errors reported for a batch.
const ERRORS_BYTES_MAX: usize = 1 << 20;

const CLOUD: &str = "application/cloudevents+json";
const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

/// Content type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentKind {
    Plain,
    Cloud,
    CloudBatch,
}

impl ContentKind {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let Some(value) = headers.get(CONTENT_TYPE) else { return Some(Self::Plain) };
        let media_type = value.to_str().ok()?.split(';').next().unwrap_or_default().trim();
        let known = [
            ("application/json", Self::Plain),
            (CLOUD, Self::Cloud),
            (CLOUD_BATCH, Self::CloudBatch),
        ];
        known
            .into_iter()
            .find(|(name, _)| media_type.eq_ignore_ascii_case(name))
            .map(|(_, kind)| kind)
    }
}

/// One event, whose type is in the path.
pub(super) async fn of_type(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Ok(Path(event_type)) = path else {
        return problem(StatusCode::BAD_REQUEST, "the event type must be percent-encoded UTF-8");
    };
    match ContentKind::of(&headers) {
        Some(ContentKind::Plain) => {
            single(&shared, &caller, &headers, body, (EventFormat::Plain, Some(&event_type))).await
        }
        _ => unsupported("one event as application/json; CloudEvents are sent to /usage"),
    }
}

/// One or many events, depending on the content type.
pub(super) async fn any(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match ContentKind::of(&headers) {
        Some(ContentKind::Plain) => {
            single(&shared, &caller, &headers, body, (EventFormat::Plain, None)).await
        }
        Some(ContentKind::Cloud) => {
            single(&shared, &caller, &headers, body, (EventFormat::Cloud, None)).await
        }
        Some(ContentKind::CloudBatch) => {
            many(&shared, &caller, &headers, body, EventFormat::Cloud).await
        }
        None => unsupported(&format!("events as application/json, {CLOUD} or {CLOUD_BATCH}")),
    }
}

pub(super) async fn batch(
    State(shared): State<Arc<ServerState>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match ContentKind::of(&headers) {
        Some(ContentKind::Plain) => {
            many(&shared, &caller, &headers, body, EventFormat::Plain).await
        }
        Some(ContentKind::CloudBatch) => {
            many(&shared, &caller, &headers, body, EventFormat::Cloud).await
        }
        _ => unsupported(&format!("an array of events as application/json or {CLOUD_BATCH}")),
    }
}

fn unsupported(expected: &str) -> Response {
    problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, &format!("expected {expected}"))
}

async fn single(
    shared: &ServerState,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    (form, event_type): (EventFormat, Option<&str>),
) -> Response {
    let (usage, key, body) = match receive(shared, headers, body).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let work = async {
        let checks = checks(shared, usage, caller, key.as_deref());
        let received = match batch::one(&body, form, event_type, &checks) {
            Ok(received) => received,
            Err(EventRejection::NotJson(why)) => return problem(StatusCode::BAD_REQUEST, &why),
            Err(EventRejection::Invalid(details)) => return invalid(&details),
        };
        match out_of_time(usage, std::slice::from_ref(&received)).await {
            Ok(errors) if errors.is_empty() => {
                match usage.sources.mark_used(&caller.name, &usage.meter).await {
                    Ok(()) => record_one(usage, received).await,
                    Err(error) => failed(&error),
                }
            }
            Ok(errors) => invalid(&errors.into_iter().flat_map(|(_, errors)| errors).collect()),
            Err(error) => failed(&error),
        }
    };
    respond(shared, work).await
}

fn invalid(details: &ValidationErrors) -> Response {
    let body = json!({"error": "Validation failed", "details": details});
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}

/// Errors about the times of events. An event that was recorded in time gets its original response.
async fn out_of_time(
    usage: &Usage,
    events: &[ReceivedEvent],
) -> logmill_meter::Result<Vec<(usize, ValidationErrors)>> {
    let errors = usage.meter.out_of_time(events).await?;
    Ok(errors.into_iter().map(|(index, why)| (index, vec![why])).collect())
}

async fn record_one(usage: &Usage, received: ReceivedEvent) -> Response {
    let event = &received.event;
    let mut body = json!({
        "eventType": event.event_type,
        "customerId": event.customer,
        "id": event.id,
    });
    let outcomes = match usage.record(vec![received]).await {
        Ok(outcomes) => outcomes,
        Err(error) => return failed(&error),
    };
    count(&outcomes);
    if outcomes.contains(&Outcome::Conflict) {
        body["error"] =
            "an event with this source and id but other content is already recorded".into();
        return (StatusCode::CONFLICT, Json(body)).into_response();
    }
    body["message"] = "Event captured".into();
    (StatusCode::CREATED, Json(body)).into_response()
}

async fn many(
    shared: &Arc<ServerState>,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    form: EventFormat,
) -> Response {
    let (usage, key, body) = match receive(shared, headers, body).await {
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
                Ok(errors) if errors.is_empty() => {
                    match usage.sources.mark_used(&caller.name, &usage.meter).await {
                        Ok(()) => record_many(usage, events).await,
                        Err(error) => failed(&error),
                    }
                }
                Ok(errors) => {
                    let rejection = BatchRejection::Invalid { errors, received: events.len() };
                    refused(rejection, usage.meter.settings().batch_max)
                }
                Err(error) => failed(&error),
            },
            Err(rejection) => refused(rejection, usage.meter.settings().batch_max),
        }
    };
    respond(shared, work).await
}

async fn record_many(usage: &Usage, events: Vec<ReceivedEvent>) -> Response {
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
        // Written by hand, because the ids are JSON already.
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

/// The body of a request, its `Idempotency-Key`, and the meter.
async fn receive<'a>(
    shared: &'a ServerState,
    headers: &HeaderMap,
    body: Body,
) -> Result<(&'a Usage, Option<String>, Bytes), Response> {
    let usage = usage(shared)?;
    let body = read_body(shared, body).await?;
    let key = creation::key(headers)?.map(str::to_owned);
    if let Some(key) = &key {
        let keyed = KeyedRequest::new("", key, "", &[]);
        keyed.map_err(|error| bad_request(&error.to_string()))?;
    }
    Ok((usage, key, body))
}

fn checks<'a>(
    shared: &'a ServerState,
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

fn ids(events: &[ReceivedEvent]) -> serde_json::Result<String> {
    let mut ids = Vec::with_capacity(events.len() * 40);
    let mut before = b'[';
    for received in events {
        ids.push(before);
        serde_json::to_writer(&mut ids, &received.event.id)?;
        before = b',';
    }
    ids.push(b']');
    Ok(String::from_utf8(ids).unwrap_or_default())
}

/// The response for a batch that was rejected before recording.
fn refused(rejection: BatchRejection, max: usize) -> Response {
    match rejection {
        BatchRejection::NotJson(why) => problem(StatusCode::BAD_REQUEST, &why),
        BatchRejection::Empty => problem(StatusCode::BAD_REQUEST, "Events array cannot be empty"),
        BatchRejection::TooMany { received } => {
            let error = format!("Batch too large: at most {max} events are taken at a time");
            let body = json!({"error": error, "received": received, "maxAllowed": max});
            (StatusCode::PAYLOAD_TOO_LARGE, Json(body)).into_response()
        }
        BatchRejection::Invalid { errors, received } => {
            let invalid = errors.len();
            let mut bytes_left = ERRORS_BYTES_MAX;
            let reported = errors.into_iter().map_while(|(index, errors)| {
                let bytes = errors.iter().map(String::len).sum();
                bytes_left = bytes_left.checked_sub(bytes)?;
                Some(json!({"index": index, "errors": errors}))
            });
            let reported: Vec<Value> = reported.collect();
            let body = json!({
                "error": "Validation failed for some events",
                "validationErrors": reported,
                "validCount": received - invalid,
                "invalidCount": invalid,
            });
            (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
        }
    }
}

/// The response for a batch that could not be recorded; none of its events were.
fn none_stored(error: &logmill_meter::Error, count: usize) -> Response {
    tracing::warn!(error = brief(&error.chain()), "a batch of usage was not recorded");
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
