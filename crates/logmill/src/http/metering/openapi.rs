//! The part of metering in the OpenAPI document, generated from the same declarations as its routes.
//!
//! Guarantees: it contains every path, parameter and specific status of metering. Leaves to others: the document
//! ([`crate::http::api`]).

mod figures;
mod hooks;
mod usage;

use logmill_meter::requests::KEY_BYTES_MAX;
use serde_json::{Map, Value, json};

use super::route::{self, Param, Route};

/// Errors that all of these paths share: status, condition.
const FAILURES: [(&str, &str); 6] = [
    ("400", "a parameter or the body is invalid"),
    ("401", "an API key is required"),
    ("403", "the key does not have the required scope"),
    ("404", "not found"),
    ("500", "internal error"),
    ("503", "temporarily unavailable, or no event types are configured"),
];

/// Description of the `Idempotency-Key` header.
const KEY: &str = "makes the request safe to repeat: for 24 hours the same key with the same \
                    request gets the response of the first one, and with another request a 409; \
                    usage without an id gets the key as its id";

/// Path items by path.
pub(in crate::http) fn paths() -> Map<String, Value> {
    let mut paths: Map<String, Value> = Map::new();
    for route in route::all() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    paths
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "tags": ["metering"],
        "parameters": parameters(route),
        "responses": responses(route),
    });
    match route.scope {
        None => operation["security"] = json!([{}]),
        Some(scope) => {
            let about = format!("{} Needs the scope `{}`.", route.summary, scope.name());
            operation["description"] = about.into();
        }
    }
    if !route.bodies.is_empty() {
        let content: Map<String, Value> = route.bodies.iter().map(content).collect();
        operation["requestBody"] = json!({
            "required": true,
            "description": "uncompressed, or compressed with gzip and sent with `Content-Encoding: gzip`",
            "content": content,
        });
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path =
        route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": "percent-encoded",
            "schema": {"type": "string"},
        })
    });
    let key = (route.method == "post").then(|| {
        json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": false,
            "description": KEY,
            "schema": {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX},
        })
    });
    let encoding = (!route.bodies.is_empty()).then(|| {
        json!({
            "name": "Content-Encoding",
            "in": "header",
            "required": false,
            "description": "compression of the body; any other value is a 415",
            "schema": {"type": "string", "enum": ["gzip", "x-gzip", "identity"]},
        })
    });
    in_path.chain(route.params.iter().map(parameter)).chain(key).chain(encoding).collect()
}

fn parameter(param: &Param) -> Value {
    let schema = match param.name {
        "limit" => json!({"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}),
        _ if param.is_repeated => json!({"type": "array", "items": {"type": "string"}}),
        _ => json!({"type": "string"}),
    };
    // A prefix parameter is shown with an example name.
    let name = match param.name.ends_with('.') {
        true => format!("{}NAME", param.name),
        false => param.name.to_owned(),
    };
    json!({
        "name": name,
        "in": "query",
        "required": param.is_required,
        "description": param.about,
        "schema": schema,
    })
}

fn responses(route: &Route) -> Map<String, Value> {
    let mut responses = Map::new();
    for (status, about) in FAILURES {
        let is_of_keys = matches!(status, "401" | "403");
        if route.scope.is_some() || !is_of_keys {
            responses.insert(status.to_owned(), response("MeterError", about));
        }
    }
    if !route.bodies.is_empty() {
        let about = "the Content-Encoding or the content type is not supported";
        responses.insert("415".to_owned(), response("MeterError", about));
    }
    for (status, schema, about) in route.failures.iter().chain(route.answers) {
        responses.insert((*status).to_owned(), response(schema, about));
    }
    responses
}

fn response(schema: &str, about: &str) -> Value {
    match schema.is_empty() {
        true => json!({"description": about}),
        false => {
            let content: Map<String, Value> =
                Map::from_iter([content(&("application/json", schema))]);
            json!({"description": about, "content": content})
        }
    }
}

fn content((media, schema): &(&str, &str)) -> (String, Value) {
    ((*media).to_owned(), json!({"schema": reference(schema)}))
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// The schemas that these paths refer to.
pub(in crate::http) fn schemas() -> Map<String, Value> {
    let all = [usage::requests(), usage::answers(), figures::all(), hooks::all()];
    all.into_iter().flatten().collect()
}

type Schemas = Vec<(String, Value)>;

/// Schema of an object with these properties.
fn object(about: &str, required: &[&str], properties: Value) -> Value {
    let mut schema = json!({"type": "object", "description": about, "required": required});
    schema["properties"] = properties;
    schema
}

fn named(name: &str, schema: Value) -> (String, Value) {
    (name.to_owned(), schema)
}

fn array(of: &str) -> Value {
    json!({"type": "array", "items": reference(of)})
}

fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

fn number(about: &str) -> Value {
    json!({"type": "integer", "description": about})
}

fn flag(about: &str) -> Value {
    json!({"type": "boolean", "description": about})
}

fn maybe(kind: &str, about: &str) -> Value {
    json!({"type": [kind, "null"], "description": about})
}
