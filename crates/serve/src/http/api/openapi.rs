//! The part of the read API in the OpenAPI document, generated from the same declarations as its routes.
//!
//! Guarantees: it contains every path, parameter and field of the read API. Leaves to others: the document
//! ([`crate::http::openapi`]).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::data::AS_OF;
use super::endpoint::{Endpoint, LIMIT_DEFAULT, LIMIT_MAX, Shape};
use super::endpoints;
use super::param::{Param, ParamKind};
use super::record::{Field, Form, Record};
use crate::http::operation::{Operation, object, parameter, reference, text};

/// Error responses: status, name, condition.
const FAILURES: [(&str, &str, &str); 6] = [
    ("400", "Invalid", "a parameter or cursor is invalid"),
    ("401", "Unauthorized", "an API key is required"),
    ("403", "Forbidden", "the key does not have the required scope"),
    ("404", "NotFound", "not found, or not stored, not derived or not served here"),
    ("500", "Internal", "server error; the log has the cause"),
    ("503", "Unavailable", "temporarily unavailable: retry"),
];

type Schemas = BTreeMap<String, Value>;

/// Path items by path, and the schemas that they refer to.
pub(in crate::http) fn paths() -> (Map<String, Value>, Schemas) {
    let mut schemas = Schemas::from([("Error".to_owned(), error_schema())]);
    let mut paths = Map::new();
    for endpoint in endpoints() {
        let path = format!("/api/v1/{{chain}}{}", endpoint.path);
        paths.insert(path, json!({"get": operation(endpoint, &mut schemas)}));
    }
    add_record(&AS_OF, &mut schemas);
    (paths, schemas)
}

fn operation(endpoint: &Endpoint, schemas: &mut Schemas) -> Value {
    let shared = |name: &str| json!({"$ref": format!("#/components/parameters/{name}")});
    let mut parameters = vec![shared("chain")];
    parameters.extend(endpoint.params.iter().map(|param| declared(endpoint, param)));
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
    Operation {
        id: endpoint.id,
        summary: endpoint.summary,
        description: Some(about),
        tag: None,
        parameters,
        body: None,
        responses,
        is_open: false,
    }
    .json()
}

fn declared(endpoint: &Endpoint, param: &Param) -> Value {
    let is_path = endpoint.is_in_path(param.name);
    let (form, pattern) = param.kind.form();
    let schema = match param.kind {
        ParamKind::Number => json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
        _ => json!({"type": "string", "pattern": pattern}),
    };
    let place = if is_path { "path" } else { "query" };
    let about = format!("{}: {form}", param.about);
    parameter((place, param.name), is_path || param.is_required, &about, &schema)
}

/// Parameters that many paths share.
pub(in crate::http) fn shared_parameters() -> Value {
    json!({
        "chain": parameter(
            ("path", "chain"),
            true,
            "chain id",
            &json!({"type": "integer", "minimum": 0}),
        ),
        "limit": parameter(
            ("query", "limit"),
            false,
            "maximum number of items of the page",
            &json!({
                "type": "integer",
                "minimum": 1,
                "maximum": LIMIT_MAX,
                "default": LIMIT_DEFAULT,
            }),
        ),
        "cursor": parameter(
            ("query", "cursor"),
            false,
            "`next` of the previous page",
            &json!({"type": "string"}),
        ),
    })
}

fn answer(shape: Shape, schemas: &mut Schemas) -> Value {
    let as_of = reference(AS_OF.name);
    match shape {
        Shape::One(record) => {
            add_record(record, schemas);
            // The response adds `asOf` to the fields of the record.
            json!({
                "allOf": [
                    reference(record.name),
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
                    "items": {"type": "array", "items": reference(record.name)},
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

fn add_record(record: &'static Record, schemas: &mut Schemas) {
    if schemas.contains_key(record.name) {
        return;
    }
    // Inserted before its fields, so that the recursion ends for a record that refers to itself.
    schemas.insert(record.name.to_owned(), Value::Null);
    let fields = record.all().map(|field| (field.name.to_owned(), field_schema(field, schemas)));
    let properties: Map<String, Value> = fields.collect();
    let required: Vec<String> = properties.keys().cloned().collect();
    let required: Vec<&str> = required.iter().map(String::as_str).collect();
    let schema = object(record.about, &required, properties.into());
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
            reference(record.name)
        }
        Form::List(form) => json!({"type": "array", "items": form_schema(*form, schemas)}),
    }
}

pub(in crate::http) fn failures() -> Map<String, Value> {
    let failure = |(_, name, about): (&str, &str, &str)| {
        let schema = reference("Error");
        let content = json!({"application/json": {"schema": schema}});
        (name.to_owned(), json!({"description": about, "content": content}))
    };
    FAILURES.into_iter().map(failure).collect()
}

fn error_schema() -> Value {
    let error = json!({
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": text("machine-readable code"),
            "message": text("human-readable message"),
        },
    });
    object("Why a request failed.", &["error"], json!({"error": error}))
}
