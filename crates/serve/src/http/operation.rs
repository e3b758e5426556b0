//! Operations, parameters, responses and schemas of the OpenAPI document, as JSON.
//!
//! Guarantees: the same declaration has the same form for all paths. Leaves to others: the content
//! ([`super::openapi`]).

use serde_json::{Map, Value, json};

use super::route::{Answer, JSON, Param, ParamType};

/// An operation of a path.
pub(super) struct Operation<'a> {
    pub(super) id: &'a str,
    pub(super) summary: &'a str,
    pub(super) description: Option<String>,
    pub(super) tag: Option<&'a str>,
    pub(super) parameters: Vec<Value>,
    pub(super) body: Option<Value>,
    pub(super) responses: Map<String, Value>,
    /// Whether no key is needed.
    pub(super) is_open: bool,
}

impl Operation<'_> {
    pub(super) fn json(self) -> Value {
        let mut operation = json!({
            "operationId": self.id,
            "summary": self.summary,
            "parameters": self.parameters,
            "responses": self.responses,
        });
        if let Some(description) = self.description {
            operation["description"] = description.into();
        }
        if let Some(tag) = self.tag {
            operation["tags"] = json!([tag]);
        }
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        if self.is_open {
            operation["security"] = json!([{}]);
        }
        operation
    }
}

/// The names of the parameters in a path.
pub(super) fn path_names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// A parameter; `place` is `path`, `query` or `header`.
pub(super) fn parameter(
    (place, name): (&str, &str),
    is_required: bool,
    about: &str,
    schema: &Value,
) -> Value {
    json!({
        "name": name,
        "in": place,
        "required": is_required,
        "description": about,
        "schema": schema,
    })
}

pub(super) fn query_parameter(param: &Param) -> Value {
    let schema = match param.kind {
        ParamType::PageSize => {
            json!({"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100})
        }
        ParamType::Integer => json!({"type": "integer"}),
        ParamType::Text if param.is_repeated => {
            json!({"type": "array", "items": {"type": "string"}})
        }
        ParamType::Text => json!({"type": "string"}),
    };
    // A prefix parameter is shown with an example name.
    let name = match param.name.ends_with('.') {
        true => format!("{}NAME", param.name),
        false => param.name.to_owned(),
    };
    parameter(("query", &name), param.is_required, param.about, &schema)
}

/// Responses by status. Several of one status are the same response in different formats.
pub(super) fn responses<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Map<String, Value> {
    let mut responses: Map<String, Value> = Map::new();
    for answer in answers {
        let (media, schema) = (answer.media, answer.schema);
        let response = responses.entry(answer.status).or_insert_with(|| json!({}));
        response["description"] = answer.about.into();
        if !media.is_empty() {
            response["content"][media] = json!({"schema": match (schema.is_empty(), media == JSON) {
                (false, _) => reference(schema),
                (true, true) => json!({"type": "object"}),
                (true, false) => json!({"type": "string"}),
            }});
        }
    }
    responses
}

pub(super) fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// Schema of an object with these properties.
pub(super) fn object(about: &str, required: &[&str], properties: Value) -> Value {
    let mut schema = json!({"type": "object", "description": about, "required": required});
    schema["properties"] = properties;
    schema
}

pub(super) fn array(of: &str) -> Value {
    json!({"type": "array", "items": reference(of)})
}

pub(super) fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

pub(super) fn number(about: &str) -> Value {
    json!({"type": "integer", "description": about})
}

pub(super) fn flag(about: &str) -> Value {
    json!({"type": "boolean", "description": about})
}

/// Schema of a value that may be null.
pub(super) fn maybe(kind: &str, about: &str) -> Value {
    json!({"type": [kind, "null"], "description": about})
}
