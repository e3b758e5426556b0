//! The part of metering in the OpenAPI document, generated from the same declarations as its routes.
//!
//! Guarantees: it contains every path, parameter and specific status of metering. Leaves to others: the document
//! ([`crate::http::openapi`]).

mod figures;
mod hooks;
mod usage;

use logmill_meter::requests::KEY_BYTES_MAX;
use serde_json::{Map, Value, json};

use super::routes;
use crate::http::operation::{
    Operation, parameter, path_names, query_parameter, reference, responses,
};
use crate::http::route::{Answer, Route, json_answer};

/// Errors that all of these paths share.
const FAILURES: [Answer; 6] = [
    json_answer("400", "MeterError", "a parameter or the body is invalid"),
    json_answer("401", "MeterError", "an API key is required"),
    json_answer("403", "MeterError", "the key does not have the required scope"),
    json_answer("404", "MeterError", "not found"),
    json_answer("500", "MeterError", "internal error"),
    json_answer("503", "MeterError", "temporarily unavailable, or no event types are configured"),
];

const UNSUPPORTED: Answer =
    json_answer("415", "MeterError", "the Content-Encoding or the content type is not supported");

/// Description of the `Idempotency-Key` header.
const KEY: &str = "makes the request safe to repeat: for 24 hours the same key with the same \
                    request gets the response of the first one, and with another request a 409; \
                    usage without an id gets the key as its id";

/// Path items by path.
pub(in crate::http) fn paths() -> Map<String, Value> {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes::all() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    paths
}

fn operation(route: &Route) -> Value {
    let description =
        route.scope.map(|scope| format!("{} Needs the scope `{}`.", route.summary, scope.name()));
    let body = (!route.bodies.is_empty()).then(|| {
        let content = route.bodies.iter();
        let content = content.map(|(media, schema)| {
            ((*media).to_owned(), json!({"schema": reference(schema)}))
        });
        json!({
            "required": true,
            "description": "uncompressed, or compressed with gzip and sent with `Content-Encoding: gzip`",
            "content": Map::from_iter(content),
        })
    });
    let is_possible =
        |failure: &&Answer| route.scope.is_some() || !matches!(failure.status, "401" | "403");
    let failures = FAILURES.iter().filter(is_possible);
    let unsupported = Some(&UNSUPPORTED).filter(|_| !route.bodies.is_empty());
    Operation {
        id: route.id,
        summary: route.summary,
        description,
        tag: Some("metering"),
        parameters: parameters(route),
        body,
        responses: responses(failures.chain(unsupported).chain(route.answers)),
        is_open: route.scope.is_none(),
    }
    .json()
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = path_names(route.path)
        .map(|name| parameter(("path", name), true, "percent-encoded", &json!({"type": "string"})));
    let key = (route.method == "post").then(|| {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX});
        parameter(("header", "Idempotency-Key"), false, KEY, &schema)
    });
    let encoding = (!route.bodies.is_empty()).then(|| {
        let about = "compression of the body; any other value is a 415";
        let schema = json!({"type": "string", "enum": ["gzip", "x-gzip", "identity"]});
        parameter(("header", "Content-Encoding"), false, about, &schema)
    });
    in_path.chain(route.params.iter().map(query_parameter)).chain(key).chain(encoding).collect()
}

/// The schemas that these paths refer to.
pub(in crate::http) fn schemas() -> Map<String, Value> {
    let all = [usage::requests(), usage::answers(), figures::all(), hooks::all()];
    all.into_iter().flatten().collect()
}

type Schemas = Vec<(String, Value)>;

fn named(name: &str, schema: Value) -> (String, Value) {
    (name.to_owned(), schema)
}
