//! The paths of webhooks.
//!
//! Guarantees: each is declared once, for the router and the document. Leaves to others: answering.

use axum::routing::{delete, get, patch, post};

use crate::http::Scope;
use crate::http::metering::route::{CURSOR, JSON, LIMIT, NO_PARAMS, Param, Route, param};

pub(super) const DELIVERY_PARAMS: &[Param] = &[
    param("endpointId", "of which endpoint; of all if it is not given"),
    param("state", "pending, waiting, succeeded, exhausted or cancelled"),
    LIMIT,
    CURSOR,
];

const KEY_USED: (&str, &str, &str) = (
    "409",
    "MeterError",
    "the key was used for another request, or an endpoint just like it has another secret",
);
const DECLARED: (&str, &str, &str) =
    ("409", "MeterError", "the endpoint is declared by the configuration");

/// What most of these have in common.
const BASE: Route = Route {
    id: "listEndpoints",
    method: "get",
    path: "/webhooks/endpoints",
    scope: Some(Scope::Admin),
    summary: "All endpoints, and how they stand.",
    params: NO_PARAMS,
    bodies: &[],
    answers: &[("200", "EndpointStatuses", "all of them")],
    failures: &[],
    handler: || get(super::list_endpoints),
};

/// Every path of webhooks.
pub(in crate::http::metering) const ROUTES: &[Route] = &[
    BASE,
    Route {
        id: "createEndpoint",
        method: "post",
        summary: "Makes an endpoint. Its secret is in the answer, and never shown again.",
        bodies: &[(JSON, "NewEndpoint")],
        answers: &[
            ("201", "MadeEndpoint", "it is made, or was by the same request before"),
            ("200", "Endpoint", "there is one just like it, whose secret is not shown again"),
        ],
        failures: &[KEY_USED],
        handler: || post(super::create),
        ..BASE
    },
    Route {
        id: "getEndpoint",
        path: "/webhooks/endpoints/{id}",
        summary: "One endpoint.",
        answers: &[("200", "Endpoint", "the endpoint")],
        handler: || get(super::read_endpoint),
        ..BASE
    },
    Route {
        id: "updateEndpoint",
        method: "patch",
        path: "/webhooks/endpoints/{id}",
        summary: "Changes an endpoint; disables or enables it.",
        bodies: &[(JSON, "EndpointChange")],
        answers: &[("200", "Endpoint", "the endpoint as it is now")],
        failures: &[DECLARED],
        handler: || patch(super::update),
        ..BASE
    },
    Route {
        id: "deleteEndpoint",
        method: "delete",
        path: "/webhooks/endpoints/{id}",
        summary: "Removes an endpoint and its secrets.",
        answers: &[("204", "", "it is gone")],
        failures: &[DECLARED],
        handler: || delete(super::delete),
        ..BASE
    },
    Route {
        id: "testEndpoint",
        method: "post",
        path: "/webhooks/endpoints/{id}/test",
        summary: "Sends an endpoint a message of the kind webhook.test.",
        answers: &[("202", "Tested", "it is under way")],
        failures: &[(
            "409",
            "MeterError",
            "the endpoint is disabled, or the key was used for another request",
        )],
        handler: || post(super::test),
        ..BASE
    },
    Route {
        id: "rotateSecret",
        method: "post",
        path: "/webhooks/endpoints/{id}/rotate",
        summary: "Gives an endpoint a new secret; the old one signs along for a while.",
        bodies: &[(JSON, "Rotation")],
        answers: &[("200", "Rotated", "the new secret, which is never shown again")],
        failures: &[(
            "409",
            "MeterError",
            "the endpoint is declared by the configuration, or the key was used for another request",
        )],
        handler: || post(super::rotate),
        ..BASE
    },
    Route {
        id: "replayMessages",
        method: "post",
        path: "/webhooks/endpoints/{id}/replay",
        summary: "Sends an endpoint one message again, or all that failed since a moment.",
        bodies: &[(JSON, "Replay")],
        answers: &[("202", "Replayed", "they are under way")],
        failures: &[(
            "409",
            "MeterError",
            "the endpoint is disabled, or the key was used for another request",
        )],
        handler: || post(super::replay),
        ..BASE
    },
    Route {
        id: "retryMessages",
        method: "post",
        path: "/webhooks/endpoints/{id}/retry",
        summary: "Sends an endpoint all messages now that wait for their next attempt, and ends a pause it asked for.",
        answers: &[("202", "Replayed", "they are under way")],
        failures: &[(
            "409",
            "MeterError",
            "the endpoint is disabled, or the key was used for another request",
        )],
        handler: || post(super::retry),
        ..BASE
    },
    Route {
        id: "listDeliveries",
        path: "/webhooks/deliveries",
        summary: "What was sent, and what became of it, the newest first.",
        params: DELIVERY_PARAMS,
        answers: &[("200", "Deliveries", "a page")],
        handler: || get(super::deliveries),
        ..BASE
    },
    Route {
        id: "listAttempts",
        path: "/webhooks/deliveries/{messageId}/{endpointId}/attempts",
        summary: "Every attempt to deliver a message to an endpoint.",
        answers: &[("200", "Attempts", "all of them, oldest first")],
        handler: || get(super::attempts),
        ..BASE
    },
];
