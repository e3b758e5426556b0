//! The webhook paths of the HTTP API.
//!
//! Guarantees: each is declared once, for the router and the document. Leaves to others: answering.

use axum::routing::{delete, get, patch, post};

use crate::http::Scope;
use crate::http::metering::query_params::{CURSOR, LIMIT};
use crate::http::route::{Answer, JSON, Param, Route, bodiless, json_answer, param};

pub(super) const DELIVERY_PARAMS: &[Param] = &[
    param("endpointId", "endpoint; all endpoints by default"),
    param("state", "state: pending, waiting, succeeded, exhausted or cancelled"),
    LIMIT,
    CURSOR,
];

const KEY_USED: Answer = json_answer(
    "409",
    "MeterError",
    "the key was used for another request, or an identical endpoint has another secret",
);
const DECLARED: Answer =
    json_answer("409", "MeterError", "the endpoint is declared by the configuration");
const NO_SUCH_KIND: Answer =
    json_answer("422", "MeterError", "`events` names a kind of message that does not exist");

/// Template of the other routes.
const BASE: Route = Route {
    id: "listEndpoints",
    path: "/webhooks/endpoints",
    scope: Some(Scope::Admin),
    summary: "All endpoints with the counts of their deliveries.",
    answers: &[json_answer("200", "EndpointStatuses", "all endpoints")],
    handler: || get(super::list_endpoints),
    ..Route::GET
};

pub(in crate::http::metering) const ROUTES: &[Route] = &[
    BASE,
    Route {
        id: "createEndpoint",
        method: "post",
        summary: "Creates an endpoint. The response contains its secret, which is not returned \
                    again.",
        bodies: &[(JSON, "NewEndpoint")],
        answers: &[
            json_answer(
                "201",
                "MadeEndpoint",
                "the endpoint is created, now or by the same request earlier",
            ),
            json_answer(
                "200",
                "Endpoint",
                "an identical endpoint exists; its secret is not returned",
            ),
            KEY_USED,
            NO_SUCH_KIND,
        ],
        handler: || post(super::create),
        ..BASE
    },
    Route {
        id: "getEndpoint",
        path: "/webhooks/endpoints/{id}",
        summary: "One endpoint.",
        answers: &[json_answer("200", "Endpoint", "the endpoint")],
        handler: || get(super::read_endpoint),
        ..BASE
    },
    Route {
        id: "updateEndpoint",
        method: "patch",
        path: "/webhooks/endpoints/{id}",
        summary: "Changes an endpoint; disables or enables it.",
        bodies: &[(JSON, "EndpointChange")],
        answers: &[
            json_answer("200", "Endpoint", "the endpoint as it is now"),
            DECLARED,
            NO_SUCH_KIND,
        ],
        handler: || patch(super::update),
        ..BASE
    },
    Route {
        id: "deleteEndpoint",
        method: "delete",
        path: "/webhooks/endpoints/{id}",
        summary: "Removes an endpoint and its secrets.",
        answers: &[bodiless("204", "the endpoint is removed"), DECLARED],
        handler: || delete(super::delete),
        ..BASE
    },
    Route {
        id: "testEndpoint",
        method: "post",
        path: "/webhooks/endpoints/{id}/test",
        summary: "Sends a message of the kind webhook.test to an endpoint.",
        answers: &[
            json_answer("202", "Tested", "the message is being sent"),
            json_answer(
                "409",
                "MeterError",
                "the endpoint is disabled, or the key was used for another request",
            ),
        ],
        handler: || post(super::test),
        ..BASE
    },
    Route {
        id: "rotateSecret",
        method: "post",
        path: "/webhooks/endpoints/{id}/rotate",
        summary: "Replaces the secret of an endpoint; the old secret also signs during an overlap.",
        bodies: &[(JSON, "Rotation")],
        answers: &[
            json_answer("200", "Rotated", "the new secret, which is not returned again"),
            json_answer(
                "409",
                "MeterError",
                "the endpoint is declared by the configuration, or the key was used for another request",
            ),
        ],
        handler: || post(super::rotate),
        ..BASE
    },
    Route {
        id: "replayMessages",
        method: "post",
        path: "/webhooks/endpoints/{id}/replay",
        summary: "Sends one message to an endpoint again, or all messages that failed since a time.",
        bodies: &[(JSON, "Replay")],
        answers: &[
            json_answer("202", "Replayed", "the messages are being sent"),
            json_answer(
                "409",
                "MeterError",
                "the endpoint is disabled, or the key was used for another request",
            ),
        ],
        handler: || post(super::replay),
        ..BASE
    },
    Route {
        id: "retryMessages",
        method: "post",
        path: "/webhooks/endpoints/{id}/retry",
        summary: "Sends all messages that wait for their next attempt to an endpoint now, and \
                    ends a pause that it requested.",
        answers: &[
            json_answer("202", "Replayed", "the messages are being sent"),
            json_answer(
                "409",
                "MeterError",
                "the endpoint is disabled, or the key was used for another request",
            ),
        ],
        handler: || post(super::retry),
        ..BASE
    },
    Route {
        id: "listDeliveries",
        path: "/webhooks/deliveries",
        summary: "Deliveries and their state, newest first.",
        params: DELIVERY_PARAMS,
        answers: &[json_answer("200", "Deliveries", "a page")],
        handler: || get(super::deliveries),
        ..BASE
    },
    Route {
        id: "listAttempts",
        path: "/webhooks/deliveries/{messageId}/{endpointId}/attempts",
        summary: "Every attempt to deliver a message to an endpoint.",
        answers: &[json_answer("200", "Attempts", "all attempts, oldest first")],
        handler: || get(super::attempts),
        ..BASE
    },
];
