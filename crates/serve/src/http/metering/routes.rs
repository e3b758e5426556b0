//! All metering paths: the declarations of most, and the lists of the modules that declare their own.
//!
//! Guarantees: the router and the OpenAPI document have the same paths. Leaves to others: what a declaration means
//! ([`crate::http::route`]).

use axum::routing::{get, post};

use super::query_params::{
    AGGREGATION_PARAMS, BEHIND_PARAMS, EVENT_PARAMS, LOOKUP_PARAMS, STREAM_PARAMS,
};
use super::{correct, corrections, list, query, send, stream, trend, trigger, webhooks};
use crate::http::Scope;
use crate::http::route::{Answer, JSON, Route, json_answer};

const CLOUD: &str = "application/cloudevents+json";
const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

const CAPTURED: Answer =
    json_answer("201", "Captured", "the event is recorded, now or by an earlier request");
const ALL_CAPTURED: Answer =
    json_answer("201", "BatchCaptured", "all events are recorded, now or by an earlier request");
const SOME_CAPTURED: Answer = json_answer(
    "207",
    "BatchPartly",
    "some contradict recorded events with the same source and id",
);
const INVALID: Answer = json_answer("422", "EventInvalid", "the event is invalid");
const BATCH_INVALID: Answer =
    json_answer("422", "BatchInvalid", "some events are invalid, and none is recorded");
const CONFLICT: Answer =
    json_answer("409", "EventConflict", "another event with the same source and id is recorded");
const TOO_MANY: Answer = json_answer("413", "BatchTooLarge", "the batch or the body is too large");

pub(super) fn all() -> impl Iterator<Item = &'static Route> {
    let more = [query::ROUTES, trend::ROUTES, corrections::ROUTES, webhooks::ROUTES];
    ROUTES.iter().chain(more.into_iter().flatten())
}

const ROUTES: &[Route] = &[
    Route {
        id: "sendUsage",
        method: "post",
        path: "/usage/{eventType}",
        scope: Some(Scope::Usage),
        summary: "Records one usage event.",
        bodies: &[(JSON, "UsageEvent")],
        answers: &[CAPTURED, INVALID, CONFLICT],
        handler: || post(send::of_type),
        ..Route::GET
    },
    Route {
        id: "sendEvents",
        method: "post",
        path: "/usage",
        scope: Some(Scope::Usage),
        summary: "Records one event with its type in the body, a CloudEvent, or a batch of CloudEvents.",
        bodies: &[(JSON, "TypedEvent"), (CLOUD, "CloudEvent"), (CLOUD_BATCH, "CloudEvents")],
        answers: &[CAPTURED, SOME_CAPTURED, INVALID, CONFLICT, TOO_MANY],
        handler: || post(send::any),
        ..Route::GET
    },
    Route {
        id: "sendUsageBatch",
        method: "post",
        path: "/usagebatch",
        scope: Some(Scope::Usage),
        summary: "Records many usage events, which all get the same time of arrival.",
        bodies: &[(JSON, "TypedEvents"), (CLOUD_BATCH, "CloudEvents")],
        answers: &[ALL_CAPTURED, SOME_CAPTURED, BATCH_INVALID, TOO_MANY],
        handler: || post(send::batch),
        ..Route::GET
    },
    Route {
        id: "listEvents",
        path: "/events",
        summary: "Events, newest first: those of one customer ordered by their time, those of \
                    all customers by arrival.",
        params: EVENT_PARAMS,
        answers: &[json_answer("200", "Events", "a page")],
        handler: || get(list::events),
        ..Route::GET
    },
    Route {
        id: "sendCloudEvents",
        method: "post",
        path: "/events",
        scope: Some(Scope::Usage),
        summary: "The same as POST /usage.",
        bodies: &[(JSON, "TypedEvent"), (CLOUD, "CloudEvent"), (CLOUD_BATCH, "CloudEvents")],
        answers: &[CAPTURED, SOME_CAPTURED, INVALID, CONFLICT, TOO_MANY],
        handler: || post(send::any),
        ..Route::GET
    },
    Route {
        id: "lookupEvent",
        path: "/events/lookup",
        summary: "One event with its corrections.",
        params: LOOKUP_PARAMS,
        answers: &[json_answer("200", "EventWithCorrections", "the event")],
        handler: || get(correct::lookup),
        ..Route::GET
    },
    Route {
        id: "cancelEvent",
        method: "post",
        path: "/events/cancel",
        scope: Some(Scope::Admin),
        summary: "Cancels one event: it no longer counts, and the aggregates that include it \
                    are corrected.",
        bodies: &[(JSON, "Cancellation")],
        answers: &[
            json_answer("200", "EventWithCorrections", "the event as it is now"),
            json_answer(
                "409",
                "MeterError",
                "the event already is as requested, or the key was used for another request",
            ),
        ],
        handler: || post(correct::cancel),
        ..Route::GET
    },
    Route {
        id: "amendEvent",
        method: "post",
        path: "/events/amend",
        scope: Some(Scope::Admin),
        summary: "Changes the value of one event; the aggregates that include it are corrected.",
        bodies: &[(JSON, "Amendment")],
        answers: &[
            json_answer("200", "EventWithCorrections", "the event as it is now"),
            json_answer(
                "409",
                "MeterError",
                "the event already is as requested, or the key was used for another request",
            ),
        ],
        handler: || post(correct::amend),
        ..Route::GET
    },
    Route {
        id: "triggerAggregation",
        method: "post",
        path: "/aggregations/trigger",
        scope: Some(Scope::Usage),
        summary: "Aggregates all periods that have new usage, including those in progress.",
        answers: &[
            json_answer("202", "Triggered", "jobs are queued"),
            json_answer("200", "NothingToDo", "there is nothing to aggregate"),
            json_answer("409", "MeterError", "the key was used for another request"),
        ],
        handler: || post(trigger::trigger),
        ..Route::GET
    },
    Route {
        id: "listAggregations",
        path: "/aggregations",
        summary: "Aggregates, newest period first.",
        params: AGGREGATION_PARAMS,
        answers: &[
            json_answer("200", "Aggregations", "a page"),
            json_answer("422", "MeterError", "no such period"),
        ],
        handler: || get(list::aggregations),
        ..Route::GET
    },
    Route {
        id: "getAggregation",
        path: "/aggregations/{id}",
        summary: "One aggregate with all its revisions.",
        answers: &[json_answer("200", "AggregationWithRevisions", "the aggregate")],
        handler: || get(list::aggregation),
        ..Route::GET
    },
    Route {
        id: "listAggregationEvents",
        path: "/aggregations/{id}/events",
        summary: "The events behind an aggregate, archived ones included.",
        params: BEHIND_PARAMS,
        answers: &[json_answer("200", "Events", "a page")],
        handler: || get(list::behind),
        ..Route::GET
    },
    Route {
        id: "streamMeters",
        path: "/meters/stream",
        summary: "A WebSocket: the figures of a customer in the periods in progress, at once \
                    and whenever they change.",
        params: STREAM_PARAMS,
        answers: &[json_answer("101", "LiveMeters", "text messages of this schema follow")],
        handler: || get(stream::stream),
        ..Route::GET
    },
    Route {
        id: "getMeterConfig",
        path: "/config",
        summary: "The metering configuration without secrets, and the source under which the \
                    caller sends usage.",
        answers: &[json_answer("200", "MeterConfig", "the configuration")],
        handler: || get(trigger::config),
        ..Route::GET
    },
    Route {
        id: "ping",
        path: "/ping",
        scope: None,
        summary: "Whether the server responds.",
        answers: &[json_answer("200", "Pong", "the server responds")],
        handler: || get(trigger::ping),
        ..Route::GET
    },
];
