//! The OpenAPI document of the read API and of metering, made of the same declarations as their routes.
//!
//! Guarantees: every path, parameter and field that is served is in it, and nothing else. Leaves to others: the file
//! `docs/openapi.json`, which a test compares with it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::call::{LIMIT_DEFAULT, LIMIT_MAX};
use super::data::AS_OF;
use super::endpoint::{Endpoint, Shape};
use super::endpoints;
use super::param::{Param, ParamKind};
use super::record::{Field, Form, Record};
use crate::http::metering;

const ABOUT: &str = "What Logmill has derived from a chain: transactions, accounts, tokens, collections, pools, stake \
    and fees, final blocks and those of the tip as one. Lists are read page by page: pass `next` of a page as `cursor` \
    until it is null; a page may be shorter than `limit`. Amounts are strings in the smallest unit, with `decimals` \
    beside them. `asOf` says what an answer is based on.";

/// The answers that are errors: status, name, when.
const FAILURES: [(&str, &str, &str); 6] = [
    ("400", "Invalid", "a parameter or a cursor makes no sense"),
    ("401", "Unauthorized", "a key is needed"),
    ("403", "Forbidden", "the key does not allow this"),
    ("404", "NotFound", "there is none, or it is not stored, not derived or not served here"),
    ("500", "Internal", "something is wrong here"),
    ("503", "Unavailable", "not at the moment: ask again"),
];

/// The document.
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
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Logmill",
            "description": ABOUT,
            "version": env!("CARGO_PKG_VERSION"),
        },
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
        // Without keys, everybody on the machine may ask.
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

/// The parameters of many paths.
fn shared_parameters() -> Value {
    json!({
        "chain": {
            "name": "chain",
            "in": "path",
            "required": true,
            "description": "the chain's id",
            "schema": {"type": "integer", "minimum": 0},
        },
        "limit": {
            "name": "limit",
            "in": "query",
            "required": false,
            "description": "the most items of the page",
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
            "description": "`next` of the page before",
            "schema": {"type": "string"},
        },
    })
}

fn answer(shape: Shape, schemas: &mut Schemas) -> Value {
    let as_of = json!({"$ref": "#/components/schemas/AsOf"});
    match shape {
        Shape::One(record) => {
            add_record(record, schemas);
            // The record has what it is based on beside its own fields.
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
                        "description": "the cursor of the next page; null if this is the last",
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
    // First, so that a record that leads back to itself comes to an end.
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
        "description": "Why a request could not be answered.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {
                    "code": {"type": "string", "description": "for machines"},
                    "message": {"type": "string", "description": "for people"},
                },
            },
        },
    })
}
