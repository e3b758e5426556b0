//! The OpenAPI document: the read API and metering, generated from the same declarations as their routes, and
//! [`others`].
//!
//! Guarantees: it contains every served path, parameter and field, and nothing else. Leaves to others: the file
//! `docs/openapi.json`, which a test compares with it.

mod others;
mod rows;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::call::{LIMIT_DEFAULT, LIMIT_MAX};
use super::data::AS_OF;
use super::endpoint::{Endpoint, Shape};
use super::endpoints;
use super::param::{Param, ParamKind};
use super::record::{Field, Form, Record};
use crate::http::metering;

const ABOUT: &str = "Data that Logmill derives from a chain: transactions, accounts, tokens, collections, pools, \
    stake and fees, of final blocks and of the tip together. Lists are read page by page: pass `next` of a page as \
    `cursor` until it is null; a page may be shorter than `limit`. Amounts are strings in the smallest unit, with \
    `decimals` beside them. `asOf` describes the blocks that an answer is based on.";

/// Error responses: status, name, condition.
const FAILURES: [(&str, &str, &str); 6] = [
    ("400", "Invalid", "a parameter or cursor is invalid"),
    ("401", "Unauthorized", "an API key is required"),
    ("403", "Forbidden", "the key does not have the required scope"),
    ("404", "NotFound", "not found, or not stored, not derived or not served here"),
    ("500", "Internal", "server error; the log has the cause"),
    ("503", "Unavailable", "temporarily unavailable: retry"),
];

pub(super) fn document() -> Value {
    let mut schemas = BTreeMap::new();
    schemas.insert("Error".to_owned(), error_schema());
    let mut paths = Map::new();
    for endpoint in endpoints() {
        let path = format!("/api/v1/{{chain}}{}", endpoint.path);
        paths.insert(path, json!({"get": operation(endpoint, &mut schemas)}));
    }
    add_record(&AS_OF, &mut schemas);
    paths.extend(metering::openapi::paths());
    schemas.extend(metering::openapi::schemas());
    paths.extend(others::paths());
    schemas.extend(others::schemas());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Logmill",
            "description": ABOUT,
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "the server that serves this document"}],
        "paths": paths,
        "components": {
            "parameters": shared_parameters(),
            "responses": failures(),
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-apikey"},
            },
        },
        // Without keys, every client on this machine has access.
        "security": [{"bearer": []}, {"key": []}, {}],
    })
}

type Schemas = BTreeMap<String, Value>;

fn operation(endpoint: &Endpoint, schemas: &mut Schemas) -> Value {
    let shared = |name: &str| json!({"$ref": format!("#/components/parameters/{name}")});
    let mut parameters = vec![shared("chain")];
    parameters.extend(endpoint.params.iter().map(|param| parameter(endpoint, param)));
    if let Shape::Page(_) = endpoint.shape {
        parameters.extend([shared("limit"), shared("cursor")]);
    }
    let mut about = endpoint.summary.to_owned();
    if let [first, rest @ ..] = endpoint.needs {
        let names = rest.iter().fold(format!("`{first}`"), |all, name| format!("{all}, `{name}`"));
        about.push_str(&format!(" Derived by {names}."));
    }
    let mut responses = Map::new();
    for (status, name, _) in FAILURES {
        let reference = format!("#/components/responses/{name}");
        responses.insert(status.to_owned(), json!({"$ref": reference}));
    }
    let schema = answer(endpoint.shape, schemas);
    let content = json!({"application/json": {"schema": schema}});
    responses.insert("200".to_owned(), json!({"description": "the answer", "content": content}));
    json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "description": about,
        "parameters": parameters,
        "responses": responses,
    })
}

fn parameter(endpoint: &Endpoint, param: &Param) -> Value {
    let is_path = endpoint.is_in_path(param.name);
    let (form, pattern) = param.kind.form();
    let schema = match param.kind {
        ParamKind::Number => json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
        _ => json!({"type": "string", "pattern": pattern}),
    };
    json!({
        "name": param.name,
        "in": if is_path { "path" } else { "query" },
        "required": is_path || param.is_required,
        "description": format!("{}: {form}", param.about),
        "schema": schema,
    })
}

/// Parameters that many paths share.
fn shared_parameters() -> Value {
    json!({
        "chain": {
            "name": "chain",
            "in": "path",
            "required": true,
            "description": "chain id",
            "schema": {"type": "integer", "minimum": 0},
        },
        "limit": {
            "name": "limit",
            "in": "query",
            "required": false,
            "description": "maximum number of items of the page",
            "schema": {
                "type": "integer",
                "minimum": 1,
                "maximum": LIMIT_MAX,
                "default": LIMIT_DEFAULT,
            },
        },
        "cursor": {
            "name": "cursor",
            "in": "query",
            "required": false,
            "description": "`next` of the previous page",
            "schema": {"type": "string"},
        },
    })
}

fn answer(shape: Shape, schemas: &mut Schemas) -> Value {
    let as_of = json!({"$ref": "#/components/schemas/AsOf"});
    match shape {
        Shape::One(record) => {
            add_record(record, schemas);
            // The response adds `asOf` to the fields of the record.
            json!({
                "allOf": [
                    {"$ref": reference(record)},
                    {"type": "object", "required": ["asOf"], "properties": {"asOf": as_of}},
                ],
            })
        }
        Shape::Page(record) => {
            add_record(record, schemas);
            json!({
                "type": "object",
                "required": ["asOf", "items", "next"],
                "properties": {
                    "items": {"type": "array", "items": {"$ref": reference(record)}},
                    "next": {
                        "type": ["string", "null"],
                        "description": "cursor of the next page; null on the last page",
                    },
                    "asOf": as_of,
                },
            })
        }
    }
}

fn reference(record: &Record) -> String {
    format!("#/components/schemas/{}", record.name)
}

fn add_record(record: &'static Record, schemas: &mut Schemas) {
    if schemas.contains_key(record.name) {
        return;
    }
    // Inserted before its fields, so that the recursion ends for a record that refers to itself.
    schemas.insert(record.name.to_owned(), Value::Null);
    let fields = record.all().map(|field| (field.name.to_owned(), field_schema(field, schemas)));
    let properties: Map<String, Value> = fields.collect();
    let required: Vec<&String> = properties.keys().collect();
    let schema = json!({
        "type": "object",
        "description": record.about,
        "required": required,
        "properties": properties,
    });
    schemas.insert(record.name.to_owned(), schema);
}

fn field_schema(field: &Field, schemas: &mut Schemas) -> Value {
    let mut schema = form_schema(field.form, schemas);
    if field.is_nullable {
        schema = match schema.get("type").cloned() {
            Some(kind) => {
                schema["type"] = json!([kind, "null"]);
                if let Some(Value::Array(words)) = schema.get_mut("enum") {
                    words.push(Value::Null);
                }
                schema
            }
            None => json!({"anyOf": [schema, {"type": "null"}]}),
        };
    }
    schema["description"] = field.about.into();
    schema
}

fn form_schema(form: Form, schemas: &mut Schemas) -> Value {
    match form {
        Form::Number => json!({"type": "integer"}),
        Form::Amount => json!({"type": "string", "pattern": "^-?[0-9]+$"}),
        Form::Text => json!({"type": "string"}),
        Form::Bytes => json!({"type": "string", "pattern": "^0x([0-9a-f]{2})*$"}),
        Form::Address => json!({"type": "string", "pattern": "^0x[0-9a-f]{40}$"}),
        Form::Flag => json!({"type": "boolean"}),
        Form::Date => json!({"type": "string", "format": "date"}),
        Form::Word(words) => {
            let words: Vec<&str> = words.iter().map(|(_, word)| *word).collect();
            json!({"type": "string", "enum": words})
        }
        Form::Words(_) => json!({"type": "array", "items": {"type": "string"}}),
        Form::Object(record) => {
            add_record(record, schemas);
            json!({"$ref": reference(record)})
        }
        Form::List(form) => json!({"type": "array", "items": form_schema(*form, schemas)}),
    }
}

fn failures() -> Map<String, Value> {
    let failure = |(_, name, about): (&str, &str, &str)| {
        let schema = json!({"$ref": "#/components/schemas/Error"});
        let content = json!({"application/json": {"schema": schema}});
        (name.to_owned(), json!({"description": about, "content": content}))
    };
    FAILURES.into_iter().map(failure).collect()
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "description": "Why a request failed.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {
                    "code": {"type": "string", "description": "machine-readable code"},
                    "message": {"type": "string", "description": "human-readable message"},
                },
            },
        },
    })
}
