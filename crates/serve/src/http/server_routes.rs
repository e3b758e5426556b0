//! The paths outside the read API and metering: JSON-RPC, feeds, health, status, metrics, fees, collected events.
//!
//! Guarantees: the router and the document have the same paths. Leaves to others: their behaviour, explained in
//! `docs/rpc.md`, `docs/readiness.md` and `docs/collect.md`.

mod schemas;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde_json::{Map, Value, json};

use super::guard::{Guarded, guard};
use super::operation::{Operation, parameter, path_names, query_parameter, reference, responses};
use super::route::{Answer, JSON, Param, Route, bodiless, integer, json_answer, param};
use super::{ServerState, collected, fees, operator};

const TEXT: &str = "text/plain";
const CSV: &str = "text/csv";

const REFUSED: [Answer; 2] = [
    json_answer("401", "PlainError", "an API key is required"),
    json_answer("403", "PlainError", "the key does not have the required scope"),
];

const FEE_CHAIN: Param =
    param("chainId", "chain id; defaults to the only chain that has fees, else to 137");
const FEE_CHAIN_BEFORE: Param = param(
    "integrator",
    "an older name of `chainId`: a chain id, not an integrator. In `/api/v1/{chain}/fees` the parameter of this \
     name is an integrator's address, which is `integratorAddress` here",
);
const INTEGRATOR: Param = param("integratorAddress", "only fees of this integrator");
const INTEGRATOR_BEFORE: Param = param("eventIntegrator", "an older name of `integratorAddress`");
const TOKEN: Param = param("token", "only fees in this token");
const FROM_BLOCK: Param = integer("fromBlock", "the first block");
const TO_BLOCK: Param = integer("toBlock", "the last block, inclusive");
const FROM_TIME: Param =
    param("fromTime", "start of the time range, inclusive: seconds since 1970 or a date");
const TO_TIME: Param =
    param("toTime", "end of the time range, exclusive: seconds since 1970 or a date");
const PAGE: Param = integer("page", "page number, from 1");
const LIMIT: Param =
    integer("limit", "maximum number of entries, default 20; values outside 1 to 100 are clamped");
const CURSOR: Param = param(
    "cursor",
    "`nextCursor` of the previous page, instead of `page`; empty for the first page",
);
const FORMAT: Param = param(
    "format",
    "`csv` or `json`; without it CSV if `Accept` names `text/csv`, else JSON. CSV allows a `limit` of up to 10000 and \
     returns the header `x-next-cursor` instead of `nextCursor`",
);

const FEE_PARAMS: &[Param] = &[
    PAGE,
    LIMIT,
    CURSOR,
    FEE_CHAIN,
    FEE_CHAIN_BEFORE,
    INTEGRATOR,
    INTEGRATOR_BEFORE,
    TOKEN,
    FROM_BLOCK,
    TO_BLOCK,
    FROM_TIME,
    TO_TIME,
    FORMAT,
];

const SUM_PARAMS: &[Param] = &[
    param("period", "`day`, `month` or `all`"),
    FEE_CHAIN,
    FEE_CHAIN_BEFORE,
    INTEGRATOR,
    INTEGRATOR_BEFORE,
    TOKEN,
    FROM_BLOCK,
    TO_BLOCK,
    FROM_TIME,
    TO_TIME,
    FORMAT,
];

const COLLECTED_PARAMS: &[Param] = &[
    param("chainId", "chain id; required if the event is collected from several chains"),
    FROM_BLOCK,
    TO_BLOCK,
    FROM_TIME,
    TO_TIME,
    param(
        "contract",
        "only events of this contract; every other address column is a parameter too",
    ),
    PAGE,
    LIMIT,
    CURSOR,
    FORMAT,
];

/// Template of the paths of JSON-RPC. The same path is a WebSocket, which the document does not describe.
const CALL: Route = Route {
    id: "callRpc",
    method: "post",
    path: "/rpc",
    summary: "The same.",
    bodies: &[(JSON, "RpcCall")],
    answers: &[
        json_answer("200", "RpcAnswer", "the answer, or a JSON-RPC error"),
        bodiless("204", "the request had only notifications, which have no answer"),
        json_answer(
            "400",
            "PlainError",
            "the body was not received completely, or is not encoded as its Content-Encoding says",
        ),
        json_answer("404", "PlainError", "this chain is not served here"),
        json_answer("408", "PlainError", "the body was not received in time"),
        json_answer("413", "PlainError", "the body is too large"),
        json_answer("415", "PlainError", "the body is not JSON, or its compression is not gzip"),
        json_answer(
            "503",
            "RpcAnswer",
            "temporarily unavailable: too many requests, or the chain id is not known yet",
        ),
    ],
    handler: || get(super::rpc_get).post(super::rpc_post),
    ..Route::GET
};

const ROUTES: &[Route] = &[
    Route {
        path: "/",
        id: "describe",
        summary: "Confirms that the server runs; with `Accept: application/json`, a summary of the API.",
        answers: &[json_answer("200", "About", "summary of the API; as text, `Api Running`")],
        scope: None,
        handler: || get(super::root_get),
        ..Route::GET
    },
    Route {
        path: "/health",
        id: "health",
        summary: "Whether the process is up.",
        answers: &[json_answer("200", "Health", "the process is up")],
        scope: None,
        handler: || get(operator::health),
        ..Route::GET
    },
    Route {
        path: "/ready",
        id: "ready",
        summary: "Whether the server is ready for requests, and if not, why.",
        answers: &[
            json_answer("200", "Readiness", "all services are ready"),
            json_answer("503", "Readiness", "a service is not ready"),
        ],
        scope: None,
        handler: || get(operator::ready),
        ..Route::GET
    },
    Route {
        path: "/ready/{service}",
        id: "readyService",
        summary: "The same for one service: `rpc`, `tables` or `meter`.",
        answers: &[
            json_answer("200", "Readiness", "the service is ready"),
            json_answer("404", "PlainError", "no such service"),
            json_answer("503", "Readiness", "the service is not ready"),
        ],
        scope: None,
        handler: || get(operator::service_ready),
        ..Route::GET
    },
    Route {
        id: "serverStatus",
        path: "/status",
        summary: "Status of chains, tables and services, for operators.",
        answers: &[json_answer("200", "ServerStatus", "the status")],
        handler: || get(operator::status),
        ..Route::GET
    },
    Route {
        path: "/metrics",
        id: "metrics",
        summary: "Metrics in the Prometheus text format.",
        answers: &[
            other("200", TEXT, "the metrics"),
            json_answer("404", "PlainError", "metrics are not recorded here"),
        ],
        handler: || get(operator::metrics),
        ..Route::GET
    },
    Route {
        path: "/openapi.json",
        id: "openapi",
        summary: "This document.",
        answers: &[json_answer("200", "", "the document")],
        scope: None,
        handler: || get(super::openapi_get),
        ..Route::GET
    },
    Route {
        path: "/ws",
        id: "feed",
        summary: "A WebSocket with new blocks and transactions.",
        answers: FEED,
        handler: || get(super::feed_get),
        ..Route::GET
    },
    Route {
        path: "/ws/{chain}",
        id: "feedOfChain",
        summary: "A WebSocket with new blocks and transactions of a chain.",
        answers: FEED,
        handler: || get(super::feed_get),
        ..Route::GET
    },
    Route {
        path: "/ws/status",
        id: "feedOfStatus",
        summary: "A WebSocket with the status, every three seconds.",
        answers: FEED,
        handler: || get(super::status_get),
        ..Route::GET
    },
    Route {
        path: "/fees",
        id: "collectedFees",
        summary: "Collected fees, newest first, in pages.",
        params: FEE_PARAMS,
        answers: FEES,
        handler: || get(fees::page),
        ..Route::GET
    },
    Route {
        path: "/fees/summary",
        id: "feeSums",
        summary: "Sums of collected fees by integrator and token.",
        params: SUM_PARAMS,
        answers: SUMS,
        handler: || get(fees::summary),
        ..Route::GET
    },
    Route {
        path: "/collected",
        id: "collectedTables",
        summary: "The tables of collected events, with their columns.",
        answers: &[
            json_answer("200", "CollectedTables", "the tables"),
            json_answer("404", "PlainError", "no events are collected here"),
            json_answer("500", "PlainError", "the tables cannot be read"),
            json_answer("503", "PlainError", "the answer took too long"),
        ],
        handler: || get(collected::list),
        ..Route::GET
    },
    Route {
        path: "/collected/{table}",
        id: "collectedEvents",
        summary: "The rows of a collected event, newest first, in pages.",
        params: COLLECTED_PARAMS,
        answers: EVENTS,
        handler: || get(collected::page),
        ..Route::GET
    },
    Route {
        id: "call",
        path: "/",
        summary: "JSON-RPC of the only chain, or of `server.default_chain`; see `docs/rpc.md`.",
        handler: || post(super::root_post),
        ..CALL
    },
    CALL,
    Route { id: "callChain", path: "/rpc/{chain}", summary: "JSON-RPC of a chain.", ..CALL },
];

const FEED: &[Answer] = &[
    bodiless("101", "the connection is now a WebSocket"),
    other("400", TEXT, "the request is not a WebSocket upgrade"),
];

const FEES: &[Answer] = &[
    json_answer("200", "CollectedFees", "the fees"),
    other("200", CSV, "the fees"),
    FEES_400,
    FEES_404,
    ROWS_500,
    ROWS_503,
];

const SUMS: &[Answer] = &[
    json_answer("200", "FeeSums", "the sums"),
    other("200", CSV, "the sums"),
    FEES_400,
    FEES_404,
    ROWS_500,
    ROWS_503,
];

const EVENTS: &[Answer] = &[
    json_answer("200", "CollectedEvents", "the rows"),
    other("200", CSV, "the rows"),
    FEES_400,
    json_answer("404", "PlainError", "no event is collected into this table"),
    ROWS_500,
    ROWS_503,
];

const FEES_400: Answer =
    json_answer("400", "PlainError", "a parameter is invalid, or the answer would be too large");
const FEES_404: Answer = json_answer("404", "PlainError", "no fees are collected or derived here");
const ROWS_500: Answer = json_answer("500", "PlainError", "the tables cannot be read");
const ROWS_503: Answer = json_answer("503", "PlainError", "the answer took too long");

/// A response in a format other than JSON.
const fn other(status: &'static str, media: &'static str, about: &'static str) -> Answer {
    Answer { status, media, schema: "", about }
}

pub(super) fn routes(shared: &Arc<ServerState>) -> Router<Arc<ServerState>> {
    let mut all = Router::new();
    for route in ROUTES {
        let mut one = Router::new().route(route.path, (route.handler)());
        if let Some(scope) = route.scope {
            let guarded = Guarded { shared: Arc::clone(shared), scope, is_coded: false };
            one = one.route_layer(from_fn_with_state(guarded, guard));
        }
        all = all.merge(one);
    }
    all
}

/// Path items by path.
pub(super) fn paths() -> Map<String, Value> {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    paths
}

/// The schemas that these paths refer to.
pub(super) fn schemas() -> Map<String, Value> {
    schemas::all()
}

fn operation(route: &Route) -> Value {
    let refused = if route.scope.is_some() { &REFUSED[..] } else { &[] };
    let body = route.bodies.first().map(|(media, schema)| {
        json!({"required": true, "content": {*media: {"schema": reference(schema)}}})
    });
    Operation {
        id: route.id,
        summary: route.summary,
        description: None,
        tag: Some("server"),
        parameters: in_path(route.path).chain(route.params.iter().map(query_parameter)).collect(),
        body,
        responses: responses(route.answers.iter().chain(refused)),
        is_open: route.scope.is_none(),
    }
    .json()
}

fn in_path(path: &str) -> impl Iterator<Item = Value> {
    path_names(path).map(|name| match name {
        "chain" => json!({"$ref": "#/components/parameters/chain"}),
        "table" => {
            let about = "name of the table, as listed by `/collected`";
            parameter(("path", name), true, about, &json!({"type": "string"}))
        }
        name => {
            let schema = json!({"type": "string", "enum": ["rpc", "tables", "meter"]});
            parameter(("path", name), true, "the service", &schema)
        }
    })
}
