//! `Route`: a path of metering, declared: who may use it, what it takes and gives, and who answers.
//!
//! Guarantees: routes, checks of parameters and the OpenAPI document come from the same declaration. Leaves to others:
//! what the schemas look like ([`super::openapi`]).

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use super::{correct, corrections, list, query, send, stream, trigger, webhooks};
use crate::http::{Scope, Shared};

/// A path of metering.
pub(super) struct Route {
    /// Its name in the document.
    pub(super) id: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// What a key must allow; none if nobody needs one.
    pub(super) scope: Option<Scope>,
    /// What it does, in a line.
    pub(super) summary: &'static str,
    pub(super) params: &'static [Param],
    /// The schemas of bodies, with their media types.
    pub(super) bodies: &'static [(&'static str, &'static str)],
    /// The answers that are not errors: status, schema, when.
    pub(super) answers: &'static [(&'static str, &'static str, &'static str)],
    /// The statuses of errors with bodies of their own, and their schemas.
    pub(super) failures: &'static [(&'static str, &'static str, &'static str)],
    pub(super) handler: fn() -> MethodRouter<Arc<Shared>>,
}

/// A parameter of a query.
pub(super) struct Param {
    /// Its name; one that ends with a dot stands for all that begin so.
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) is_repeated: bool,
    pub(super) about: &'static str,
}

impl Param {
    /// Whether a name of a query is this parameter's.
    pub(super) fn is_meant(&self, name: &str) -> bool {
        match self.name.ends_with('.') {
            true => name.len() > self.name.len() && name.starts_with(self.name),
            false => name == self.name,
        }
    }
}

/// A parameter that may be left out.
pub(super) const fn param(name: &'static str, about: &'static str) -> Param {
    Param { name, is_required: false, is_repeated: false, about }
}

/// A parameter that must be there.
pub(super) const fn required(name: &'static str, about: &'static str) -> Param {
    Param { name, is_required: true, is_repeated: false, about }
}

/// A parameter that may be given several times.
pub(super) const fn repeated(name: &'static str, about: &'static str) -> Param {
    Param { name, is_required: false, is_repeated: true, about }
}

const CUSTOMER: Param = param("customerId", "whose usage; everybody's if it is not given");
const TYPE: Param = param("eventType", "which event type; every one if it is not given");
pub(super) const FROM: Param =
    param("from", "from this moment on: RFC 3339, or milliseconds since 1970");
pub(super) const TO: Param = param("to", "until this moment, which is not included");
pub(super) const LIMIT: Param =
    param("limit", "the most entries of the page: 1 to 1000, 100 if it is not given");
pub(super) const CURSOR: Param = param("cursor", "`x-next-cursor` of the page before");

pub(super) const NO_PARAMS: &[Param] = &[];
pub(super) const EVENT_PARAMS: &[Param] = &[CUSTOMER, TYPE, FROM, TO, LIMIT, CURSOR];
pub(super) const AGGREGATION_PARAMS: &[Param] = &[
    CUSTOMER,
    param("period", "which kind of period, such as daily; every one if it is not given"),
    FROM,
    TO,
    LIMIT,
    CURSOR,
];
pub(super) const BEHIND_PARAMS: &[Param] = &[LIMIT, CURSOR];
pub(super) const LOOKUP_PARAMS: &[Param] = &[
    param("source", "who sent it; the source of the caller's own key if it is not given"),
    required("id", "which event of that source"),
];
pub(super) const STREAM_PARAMS: &[Param] = &[required("customerId", "whose usage"), TYPE];

pub(super) const JSON: &str = "application/json";
const CLOUD: &str = "application/cloudevents+json";
const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

const CAPTURED: (&str, &str, &str) = ("201", "Captured", "it is recorded, or was before");
const ALL_CAPTURED: (&str, &str, &str) =
    ("201", "BatchCaptured", "all are recorded, or were before");
const SOME_CAPTURED: (&str, &str, &str) =
    ("207", "BatchPartly", "some contradict recorded events with the same source and id");
const INVALID: (&str, &str, &str) = ("422", "EventInvalid", "the event is wrong");
const BATCH_INVALID: (&str, &str, &str) =
    ("422", "BatchInvalid", "some events are wrong, and none is recorded");
const CONFLICT: (&str, &str, &str) =
    ("409", "EventConflict", "another event with the same source and id is recorded");
const TOO_MANY: (&str, &str, &str) = ("413", "BatchTooLarge", "the batch or the body is too large");

/// Every path of metering.
pub(super) fn all() -> impl Iterator<Item = &'static Route> {
    let more = [query::ROUTES, corrections::ROUTES, webhooks::ROUTES];
    ROUTES.iter().chain(more.into_iter().flatten())
}

/// Usage, aggregates, corrections.
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
        summary: "Records many usage events, all of which came at one moment.",
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
        summary: "Events, the newest first: of one customer by when they happened, of all by when they came.",
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
        summary: "One event, with what was done to it.",
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
        summary: "Takes one event back: it counts no more, and the aggregates it was in are corrected.",
        params: NO_PARAMS,
        bodies: &[(JSON, "Cancellation")],
        answers: &[("200", "EventWithCorrections", "the event as it is now")],
        failures: &[(
            "409",
            "MeterError",
            "it is like that already, or the key was used for another request",
        )],
        handler: || post(correct::cancel),
    },
    Route {
        id: "amendEvent",
        method: "post",
        path: "/events/amend",
        scope: Some(Scope::Admin),
        summary: "Gives one event another value; the aggregates it was in are corrected.",
        params: NO_PARAMS,
        bodies: &[(JSON, "Amendment")],
        answers: &[("200", "EventWithCorrections", "the event as it is now")],
        failures: &[(
            "409",
            "MeterError",
            "it is like that already, or the key was used for another request",
        )],
        handler: || post(correct::amend),
    },
    Route {
        id: "triggerAggregation",
        method: "post",
        path: "/aggregations/trigger",
        scope: Some(Scope::Usage),
        summary: "Has all periods aggregated that have new usage, those under way too.",
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
        summary: "Aggregates, the newest period first.",
        params: AGGREGATION_PARAMS,
        bodies: &[],
        answers: &[("200", "Aggregations", "a page")],
        failures: &[],
        handler: || get(list::aggregations),
    },
    Route {
        id: "getAggregation",
        method: "get",
        path: "/aggregations/{id}",
        scope: Some(Scope::Read),
        summary: "One aggregate, with all that it ever said.",
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
        summary: "A WebSocket: what the periods under way say of a customer, now and whenever it changes.",
        params: STREAM_PARAMS,
        bodies: &[],
        answers: &[("101", "", "messages of the schema LiveMeters follow")],
        failures: &[],
        handler: || get(stream::stream),
    },
    Route {
        id: "getMeterConfig",
        method: "get",
        path: "/config",
        scope: Some(Scope::Read),
        summary: "What is metered, without secrets, and as which source the caller sends usage.",
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
        summary: "Whether anybody is there.",
        params: NO_PARAMS,
        bodies: &[],
        answers: &[("200", "Pong", "yes")],
        failures: &[],
        handler: || get(trigger::ping),
    },
];
