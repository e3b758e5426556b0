//! `Route`: the declaration of a metering path: its scope, parameters, responses and handler.
//!
//! Guarantees: routes, parameter checks and the OpenAPI document come from the same declaration. Leaves to others: the
//! schemas ([`super::openapi`]).

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use super::{correct, corrections, list, query, send, stream, trend, trigger, webhooks};
use crate::http::{Scope, ServerState};

pub(super) struct Route {
    /// Operation id in the document.
    pub(super) id: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// Required scope; `None` if no key is needed.
    pub(super) scope: Option<Scope>,
    /// One-line description.
    pub(super) summary: &'static str,
    pub(super) params: &'static [Param],
    /// Request bodies: media type and schema.
    pub(super) bodies: &'static [(&'static str, &'static str)],
    /// Successful responses: status, schema, condition.
    pub(super) answers: &'static [(&'static str, &'static str, &'static str)],
    /// Error responses with their own bodies: status, schema, condition.
    pub(super) failures: &'static [(&'static str, &'static str, &'static str)],
    pub(super) handler: fn() -> MethodRouter<Arc<ServerState>>,
}

/// A query parameter.
pub(super) struct Param {
    /// A name that ends with a dot is a prefix and stands for all names that begin with it.
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) is_repeated: bool,
    pub(super) about: &'static str,
}

impl Param {
    /// Whether a query name refers to this parameter.
    pub(super) fn is_meant(&self, name: &str) -> bool {
        match self.name.ends_with('.') {
            true => name.len() > self.name.len() && name.starts_with(self.name),
            false => name == self.name,
        }
    }
}

pub(super) const fn param(name: &'static str, about: &'static str) -> Param {
    Param { name, is_required: false, is_repeated: false, about }
}

pub(super) const fn required(name: &'static str, about: &'static str) -> Param {
    Param { name, is_required: true, is_repeated: false, about }
}

/// A parameter that may occur several times.
pub(super) const fn repeated(name: &'static str, about: &'static str) -> Param {
    Param { name, is_required: false, is_repeated: true, about }
}

const CUSTOMER: Param = param("customerId", "customer; all customers by default");
const TYPE: Param = param("eventType", "event type; all types by default");
pub(super) const FROM: Param =
    param("from", "start of the time range: RFC 3339, or milliseconds since 1970");
pub(super) const TO: Param = param("to", "end of the time range, exclusive");
pub(super) const LIMIT: Param =
    param("limit", "maximum number of entries of the page: clamped to 1 to 1000, 100 by default");
pub(super) const CURSOR: Param = param("cursor", "`x-next-cursor` of the previous page");

pub(super) const NO_PARAMS: &[Param] = &[];
pub(super) const EVENT_PARAMS: &[Param] = &[CUSTOMER, TYPE, FROM, TO, LIMIT, CURSOR];
pub(super) const AGGREGATION_PARAMS: &[Param] = &[
    CUSTOMER,
    param("period", "kind of period, such as daily; all kinds by default"),
    FROM,
    TO,
    LIMIT,
    CURSOR,
];
pub(super) const BEHIND_PARAMS: &[Param] = &[LIMIT, CURSOR];
pub(super) const LOOKUP_PARAMS: &[Param] = &[
    param("source", "source of the event; by default that of the caller's key"),
    required("id", "id of the event"),
];
pub(super) const STREAM_PARAMS: &[Param] = &[required("customerId", "customer"), TYPE];

pub(super) const JSON: &str = "application/json";
const CLOUD: &str = "application/cloudevents+json";
const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

const CAPTURED: (&str, &str, &str) =
    ("201", "Captured", "the event is recorded, now or by an earlier request");
const ALL_CAPTURED: (&str, &str, &str) =
    ("201", "BatchCaptured", "all events are recorded, now or by an earlier request");
const SOME_CAPTURED: (&str, &str, &str) =
    ("207", "BatchPartly", "some contradict recorded events with the same source and id");
const INVALID: (&str, &str, &str) = ("422", "EventInvalid", "the event is invalid");
const BATCH_INVALID: (&str, &str, &str) =
    ("422", "BatchInvalid", "some events are invalid, and none is recorded");
const CONFLICT: (&str, &str, &str) =
    ("409", "EventConflict", "another event with the same source and id is recorded");
const TOO_MANY: (&str, &str, &str) = ("413", "BatchTooLarge", "the batch or the body is too large");

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
        params: NO_PARAMS,
        bodies: &[(JSON, "UsageEvent")],
        answers: &[CAPTURED],
        failures: &[INVALID, CONFLICT],
        handler: || post(send::of_type),
    },
    Route {
        id: "sendEvents",
        method: "post",
        path: "/usage",
        scope: Some(Scope::Usage),
        summary: "Records one event with its type in the body, a CloudEvent, or a batch of CloudEvents.",
        params: NO_PARAMS,
        bodies: &[(JSON, "TypedEvent"), (CLOUD, "CloudEvent"), (CLOUD_BATCH, "CloudEvents")],
        answers: &[CAPTURED, SOME_CAPTURED],
        failures: &[INVALID, CONFLICT, TOO_MANY],
        handler: || post(send::any),
    },
    Route {
        id: "sendUsageBatch",
        method: "post",
        path: "/usagebatch",
        scope: Some(Scope::Usage),
        summary: "Records many usage events, which all get the same time of arrival.",
        params: NO_PARAMS,
        bodies: &[(JSON, "TypedEvents"), (CLOUD_BATCH, "CloudEvents")],
        answers: &[ALL_CAPTURED, SOME_CAPTURED],
        failures: &[BATCH_INVALID, TOO_MANY],
        handler: || post(send::batch),
    },
    Route {
        id: "listEvents",
        method: "get",
        path: "/events",
        scope: Some(Scope::Read),
        summary: "Events, newest first: those of one customer ordered by their time, those of \
                    all customers by arrival.",
        params: EVENT_PARAMS,
        bodies: &[],
        answers: &[("200", "Events", "a page")],
        failures: &[],
        handler: || get(list::events),
    },
    Route {
        id: "sendCloudEvents",
        method: "post",
        path: "/events",
        scope: Some(Scope::Usage),
        summary: "The same as POST /usage.",
        params: NO_PARAMS,
        bodies: &[(JSON, "TypedEvent"), (CLOUD, "CloudEvent"), (CLOUD_BATCH, "CloudEvents")],
        answers: &[CAPTURED, SOME_CAPTURED],
        failures: &[INVALID, CONFLICT, TOO_MANY],
        handler: || post(send::any),
    },
    Route {
        id: "lookupEvent",
        method: "get",
        path: "/events/lookup",
        scope: Some(Scope::Read),
        summary: "One event with its corrections.",
        params: LOOKUP_PARAMS,
        bodies: &[],
        answers: &[("200", "EventWithCorrections", "the event")],
        failures: &[],
        handler: || get(correct::lookup),
    },
    Route {
        id: "cancelEvent",
        method: "post",
        path: "/events/cancel",
        scope: Some(Scope::Admin),
        summary: "Cancels one event: it no longer counts, and the aggregates that include it \
                    are corrected.",
        params: NO_PARAMS,
        bodies: &[(JSON, "Cancellation")],
        answers: &[("200", "EventWithCorrections", "the event as it is now")],
        failures: &[(
            "409",
            "MeterError",
            "the event already is as requested, or the key was used for another request",
        )],
        handler: || post(correct::cancel),
    },
    Route {
        id: "amendEvent",
        method: "post",
        path: "/events/amend",
        scope: Some(Scope::Admin),
        summary: "Changes the value of one event; the aggregates that include it are corrected.",
        params: NO_PARAMS,
        bodies: &[(JSON, "Amendment")],
        answers: &[("200", "EventWithCorrections", "the event as it is now")],
        failures: &[(
            "409",
            "MeterError",
            "the event already is as requested, or the key was used for another request",
        )],
        handler: || post(correct::amend),
    },
    Route {
        id: "triggerAggregation",
        method: "post",
        path: "/aggregations/trigger",
        scope: Some(Scope::Usage),
        summary: "Aggregates all periods that have new usage, including those in progress.",
        params: NO_PARAMS,
        bodies: &[],
        answers: &[
            ("202", "Triggered", "jobs are queued"),
            ("200", "NothingToDo", "there is nothing to aggregate"),
        ],
        failures: &[("409", "MeterError", "the key was used for another request")],
        handler: || post(trigger::trigger),
    },
    Route {
        id: "listAggregations",
        method: "get",
        path: "/aggregations",
        scope: Some(Scope::Read),
        summary: "Aggregates, newest period first.",
        params: AGGREGATION_PARAMS,
        bodies: &[],
        answers: &[("200", "Aggregations", "a page")],
        failures: &[("422", "MeterError", "no such period")],
        handler: || get(list::aggregations),
    },
    Route {
        id: "getAggregation",
        method: "get",
        path: "/aggregations/{id}",
        scope: Some(Scope::Read),
        summary: "One aggregate with all its revisions.",
        params: NO_PARAMS,
        bodies: &[],
        answers: &[("200", "AggregationWithRevisions", "the aggregate")],
        failures: &[],
        handler: || get(list::aggregation),
    },
    Route {
        id: "listAggregationEvents",
        method: "get",
        path: "/aggregations/{id}/events",
        scope: Some(Scope::Read),
        summary: "The events behind an aggregate, archived ones included.",
        params: BEHIND_PARAMS,
        bodies: &[],
        answers: &[("200", "Events", "a page")],
        failures: &[],
        handler: || get(list::behind),
    },
    Route {
        id: "streamMeters",
        method: "get",
        path: "/meters/stream",
        scope: Some(Scope::Read),
        summary: "A WebSocket: the figures of a customer in the periods in progress, at once \
                    and whenever they change.",
        params: STREAM_PARAMS,
        bodies: &[],
        answers: &[("101", "LiveMeters", "text messages of this schema follow")],
        failures: &[],
        handler: || get(stream::stream),
    },
    Route {
        id: "getMeterConfig",
        method: "get",
        path: "/config",
        scope: Some(Scope::Read),
        summary: "The metering configuration without secrets, and the source under which the \
                    caller sends usage.",
        params: NO_PARAMS,
        bodies: &[],
        answers: &[("200", "MeterConfig", "the configuration")],
        failures: &[],
        handler: || get(trigger::config),
    },
    Route {
        id: "ping",
        method: "get",
        path: "/ping",
        scope: None,
        summary: "Whether the server responds.",
        params: NO_PARAMS,
        bodies: &[],
        answers: &[("200", "Pong", "the server responds")],
        failures: &[],
        handler: || get(trigger::ping),
    },
];
