//! The paths outside the read API and metering: JSON-RPC, feeds, health, status, metrics, fees.
//!
//! Guarantees: a test compares these paths with the routes. Leaves to others: their behaviour, explained in
//! `docs/rpc.md`, `docs/readiness.md` and `docs/collect.md`.

use serde_json::{Map, Value, json};

use super::rows::{fee, fee_sum, list, object};

/// A GET path.
struct GetRoute {
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// Query parameters: name, type, description.
    params: &'static [(&'static str, &'static str, &'static str)],
    /// Responses: status, media type, schema, description. A feed has no media type.
    answers: &'static [(&'static str, &'static str, &'static str, &'static str)],
    is_open: bool,
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const CSV: &str = "text/csv";

const REFUSED: [(&str, &str, &str, &str); 2] = [
    ("401", JSON, "PlainError", "an API key is required"),
    ("403", JSON, "PlainError", "the key does not have the required scope"),
];

const FEE_FILTERS: &[(&str, &str, &str)] = &[
    ("chainId", "string", "chain id; defaults to the only chain that has fees, else to 137"),
    (
        "integrator",
        "string",
        "an older name of `chainId`: a chain id, not an integrator. In `/api/v1/{chain}/fees` the parameter of this \
         name is an integrator's address, which is `integratorAddress` here",
    ),
    ("integratorAddress", "string", "only fees of this integrator"),
    ("eventIntegrator", "string", "an older name of `integratorAddress`"),
    ("token", "string", "only fees in this token"),
    ("fromBlock", "integer", "the first block"),
    ("toBlock", "integer", "the last block, inclusive"),
    ("fromTime", "string", "start of the time range, inclusive: seconds since 1970 or a date"),
    ("toTime", "string", "end of the time range, exclusive: seconds since 1970 or a date"),
];

const FEE_PAGES: &[(&str, &str, &str)] = &[
    ("page", "integer", "page number, from 1"),
    (
        "limit",
        "integer",
        "maximum number of entries, default 20; values outside 1 to 100 are clamped",
    ),
    (
        "cursor",
        "string",
        "`nextCursor` of the previous page, instead of `page`; empty for the first page",
    ),
];

const FEE_SUMS: &[(&str, &str, &str)] = &[("period", "string", "`day`, `month` or `all`")];

const FORMAT: (&str, &str, &str) = (
    "format",
    "string",
    "`csv` or `json`; without it CSV if `Accept` names `text/csv`, else JSON. CSV allows a `limit` of up to 10000 and \
     returns the header `x-next-cursor` instead of `nextCursor`",
);

const COLLECTED: &[(&str, &str, &str)] = &[
    ("chainId", "string", "chain id; required if the event is collected from several chains"),
    ("fromBlock", "integer", "the first block"),
    ("toBlock", "integer", "the last block, inclusive"),
    ("fromTime", "string", "start of the time range, inclusive: seconds since 1970 or a date"),
    ("toTime", "string", "end of the time range, exclusive: seconds since 1970 or a date"),
    (
        "contract",
        "string",
        "only events of this contract; every other address column is a parameter too",
    ),
    FEE_PAGES[0],
    FEE_PAGES[1],
    FEE_PAGES[2],
    FORMAT,
];

const GET_ROUTES: &[GetRoute] = &[
    GetRoute {
        path: "/",
        id: "describe",
        summary: "Confirms that the server runs; with `Accept: application/json`, a summary of the API.",
        params: &[],
        answers: &[("200", JSON, "About", "summary of the API; as text, `Api Running`")],
        is_open: true,
    },
    GetRoute {
        path: "/health",
        id: "health",
        summary: "Whether the process is up.",
        params: &[],
        answers: &[("200", JSON, "Health", "the process is up")],
        is_open: true,
    },
    GetRoute {
        path: "/ready",
        id: "ready",
        summary: "Whether the server is ready for requests, and if not, why.",
        params: &[],
        answers: &[
            ("200", JSON, "Readiness", "all services are ready"),
            ("503", JSON, "Readiness", "a service is not ready"),
        ],
        is_open: true,
    },
    GetRoute {
        path: "/ready/{service}",
        id: "readyService",
        summary: "The same for one service: `rpc`, `tables` or `meter`.",
        params: &[],
        answers: &[
            ("200", JSON, "Readiness", "the service is ready"),
            ("404", JSON, "PlainError", "no such service"),
            ("503", JSON, "Readiness", "the service is not ready"),
        ],
        is_open: true,
    },
    GetRoute {
        path: "/status",
        id: "serverStatus",
        summary: "Status of chains, tables and services, for operators.",
        params: &[],
        answers: &[("200", JSON, "ServerStatus", "the status")],
        is_open: false,
    },
    GetRoute {
        path: "/metrics",
        id: "metrics",
        summary: "Metrics in the Prometheus text format.",
        params: &[],
        answers: &[
            ("200", TEXT, "", "the metrics"),
            ("404", JSON, "PlainError", "metrics are not recorded here"),
        ],
        is_open: false,
    },
    GetRoute {
        path: "/openapi.json",
        id: "openapi",
        summary: "This document.",
        params: &[],
        answers: &[("200", JSON, "", "the document")],
        is_open: true,
    },
    GetRoute {
        path: "/ws",
        id: "feed",
        summary: "A WebSocket with new blocks and transactions.",
        params: &[],
        answers: FEED,
        is_open: false,
    },
    GetRoute {
        path: "/ws/{chain}",
        id: "feedOfChain",
        summary: "A WebSocket with new blocks and transactions of a chain.",
        params: &[],
        answers: FEED,
        is_open: false,
    },
    GetRoute {
        path: "/ws/status",
        id: "feedOfStatus",
        summary: "A WebSocket with the status, every three seconds.",
        params: &[],
        answers: FEED,
        is_open: false,
    },
    GetRoute {
        path: "/fees",
        id: "collectedFees",
        summary: "Collected fees, newest first, in pages.",
        params: FEE_PAGES,
        answers: FEES,
        is_open: false,
    },
    GetRoute {
        path: "/fees/summary",
        id: "feeSums",
        summary: "Sums of collected fees by integrator and token.",
        params: FEE_SUMS,
        answers: SUMS,
        is_open: false,
    },
    GetRoute {
        path: "/collected",
        id: "collectedTables",
        summary: "The tables of collected events, with their columns.",
        params: &[],
        answers: &[
            ("200", JSON, "CollectedTables", "the tables"),
            ("404", JSON, "PlainError", "no events are collected here"),
            ("500", JSON, "PlainError", "the tables cannot be read"),
            ("503", JSON, "PlainError", "the answer took too long"),
        ],
        is_open: false,
    },
    GetRoute {
        path: "/collected/{table}",
        id: "collectedEvents",
        summary: "The rows of a collected event, newest first, in pages.",
        params: COLLECTED,
        answers: EVENTS,
        is_open: false,
    },
];

const FEED: &[(&str, &str, &str, &str)] = &[
    ("101", "", "", "the connection is now a WebSocket"),
    ("400", TEXT, "", "the request is not a WebSocket upgrade"),
];

const FEES: &[(&str, &str, &str, &str)] = &[
    ("200", JSON, "CollectedFees", "the fees"),
    ("200", CSV, "", "the fees"),
    FEES_400,
    FEES_404,
    ROWS_500,
    ROWS_503,
];

const SUMS: &[(&str, &str, &str, &str)] = &[
    ("200", JSON, "FeeSums", "the sums"),
    ("200", CSV, "", "the sums"),
    FEES_400,
    FEES_404,
    ROWS_500,
    ROWS_503,
];

const EVENTS: &[(&str, &str, &str, &str)] = &[
    ("200", JSON, "CollectedEvents", "the rows"),
    ("200", CSV, "", "the rows"),
    FEES_400,
    ("404", JSON, "PlainError", "no event is collected into this table"),
    ROWS_500,
    ROWS_503,
];

const FEES_400: (&str, &str, &str, &str) =
    ("400", JSON, "PlainError", "a parameter is invalid, or the answer would be too large");
const FEES_404: (&str, &str, &str, &str) =
    ("404", JSON, "PlainError", "no fees are collected or derived here");
const ROWS_500: (&str, &str, &str, &str) = ("500", JSON, "PlainError", "the tables cannot be read");
const ROWS_503: (&str, &str, &str, &str) = ("503", JSON, "PlainError", "the answer took too long");

/// JSON-RPC paths for POST: path, operation id, summary.
const CALLS: [(&str, &str, &str); 3] = [
    ("/", "call", "JSON-RPC of the only chain, or of `server.default_chain`; see `docs/rpc.md`."),
    ("/rpc", "callRpc", "The same."),
    ("/rpc/{chain}", "callChain", "JSON-RPC of a chain."),
];

/// Path items by path.
pub(super) fn paths() -> Map<String, Value> {
    let mut paths = Map::new();
    for route in GET_ROUTES {
        paths.insert(route.path.to_owned(), json!({"get": operation(route)}));
    }
    for (path, id, summary) in CALLS {
        let path_item = paths.entry(path).or_insert_with(|| json!({}));
        path_item["post"] = call(path, id, summary);
    }
    paths
}

fn operation(route: &GetRoute) -> Value {
    let mut responses: Map<String, Value> = Map::new();
    for (status, answer) in route.answers.iter().map(response) {
        match responses.get_mut(&status) {
            // The same response in another format.
            Some(known) => known["content"].as_object_mut().into_iter().for_each(|content| {
                content.extend(answer["content"].as_object().cloned().unwrap_or_default());
            }),
            None => drop(responses.insert(status, answer)),
        }
    }
    if !route.is_open {
        responses.extend(REFUSED.iter().map(response));
    }
    let is_of_fees = route.path.starts_with("/fees");
    let filters = if is_of_fees { FEE_FILTERS } else { &[] };
    let format = is_of_fees.then_some(&FORMAT);
    let mut parameters = in_path(route.path);
    parameters.extend(route.params.iter().chain(filters).chain(format).map(|(name, kind, about)| {
        let schema = json!({"type": kind});
        json!({"name": name, "in": "query", "required": false, "description": about, "schema": schema})
    }));
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "tags": ["server"],
        "parameters": parameters,
        "responses": responses,
    });
    if route.is_open {
        operation["security"] = json!([{}]);
    }
    operation
}

fn in_path(path: &str) -> Vec<Value> {
    let named = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| match name {
        "chain" => json!({"$ref": "#/components/parameters/chain"}),
        "table" => json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": "name of the table, as listed by `/collected`",
            "schema": {"type": "string"},
        }),
        name => json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": "the service",
            "schema": {"type": "string", "enum": ["rpc", "tables", "meter"]},
        }),
    };
    named.map(parameter).collect()
}

fn response((status, media, schema, about): &(&str, &str, &str, &str)) -> (String, Value) {
    let mut response = json!({"description": about});
    if !media.is_empty() {
        let schema = match (schema.is_empty(), *media == JSON) {
            (false, _) => json!({"$ref": format!("#/components/schemas/{schema}")}),
            (true, true) => json!({"type": "object"}),
            (true, false) => json!({"type": "string"}),
        };
        response["content"] = json!({ *media: {"schema": schema} });
    }
    ((*status).to_owned(), response)
}

fn call(path: &str, id: &str, summary: &str) -> Value {
    let schema = json!({"$ref": "#/components/schemas/RpcCall"});
    let content = json!({ JSON: {"schema": schema} });
    let answers = [
        ("200", JSON, "RpcAnswer", "the answer, or a JSON-RPC error"),
        ("204", "", "", "the request had only notifications, which have no answer"),
        (
            "400",
            JSON,
            "PlainError",
            "the body was not received completely, or is not encoded as its Content-Encoding says",
        ),
        ("404", JSON, "PlainError", "this chain is not served here"),
        ("408", JSON, "PlainError", "the body was not received in time"),
        ("413", JSON, "PlainError", "the body is too large"),
        ("415", JSON, "PlainError", "the body is not JSON, or its compression is not gzip"),
        (
            "503",
            JSON,
            "RpcAnswer",
            "temporarily unavailable: too many requests, or the chain id is not known yet",
        ),
    ];
    let responses: Map<String, Value> = answers.iter().chain(&REFUSED).map(response).collect();
    json!({
        "operationId": id,
        "summary": summary,
        "tags": ["server"],
        "parameters": in_path(path),
        "requestBody": {"required": true, "content": content},
        "responses": responses,
    })
}

/// Schemas of requests and responses.
pub(super) fn schemas() -> Map<String, Value> {
    let text = || json!({"type": "string"});
    let all = json!({
        "About": object("Summary of the API.", &["service", "version", "openapi", "paths"], json!({
            "service": text(),
            "version": text(),
            "description": text(),
            "openapi": {"type": "string", "description": "path of the complete API description"},
            "paths": {"type": "array", "items": text()},
        })),
        "PlainError": object("Why a request failed.", &["error"], json!({
            "error": text(),
        })),
        "Health": object("The process is up.", &["status", "timestamp"], json!({
            "status": {"type": "string", "enum": ["ok"]},
            "timestamp": {"type": "string", "format": "date-time"},
        })),
        "Readiness": object("Readiness of the server or of one service.", &["ready", "reasons"], json!({
            "ready": {"type": "boolean"},
            "reasons": {"type": "array", "items": {"type": "object"}},
        })),
        "ServerStatus": object("Status of the server.", &["version", "ready", "chains"], json!({
            "version": text(),
            "uptime_seconds": {"type": "integer"},
            "ready": {"type": "boolean"},
            "reasons": {"type": "array", "items": {"type": "object"}},
            "services": {"type": "object"},
            "chains": {"type": "array", "items": object("A chain.", &["chain_id", "covered"], json!({
                "chain_id": {"type": "integer"},
                "covered": {
                    "type": "array",
                    "items": {"$ref": "#/components/schemas/Range"},
                },
            }))},
        })),
        "CollectedFees": list("Fees.", &fee()),
        "FeeSums": list("Sums of fees.", &fee_sum()),
        "CollectedEvents": list("Rows of an event, keyed by column name.", &json!({
            "type": "object",
            "additionalProperties": true,
        })),
        "CollectedTables": object("Tables of collected events.", &["data"], json!({
            "data": {"type": "array", "items": object("A table.", &["chainId", "table", "columns"], json!({
                "chainId": {"type": "integer"},
                "table": text(),
                "columns": {"type": "array", "items": object("A column.", &["name", "type"], json!({
                    "name": text(),
                    "type": {"type": "string", "enum": ["integer", "text", "bytes", "amount", "address"]},
                }))},
                "blocks": {"type": "integer", "description": "number of collected blocks"},
                "lastBlock": {"type": ["integer", "null"], "description": "the newest collected block"},
            }))},
        })),
        "RpcCall": {
            "description": "A JSON-RPC 2.0 call, or a batch of them.",
            "type": ["object", "array"],
        },
        "RpcAnswer": {
            "description": "A JSON-RPC 2.0 answer, or a batch of them.",
            "type": ["object", "array"],
        },
    });
    all.as_object().cloned().unwrap_or_default()
}
