//! Checks answers against the OpenAPI document: every present field is documented, and every documented field is
//! present.
//!
//! Guarantees: an unknown schema keyword is a failure. Leaves to others: which answers to check.

use std::sync::LazyLock;

use logmill_serve::http::document;
use serde_json::{Map, Value};

pub(crate) fn openapi() -> &'static Value {
    static DOCUMENT: LazyLock<Value> =
        LazyLock::new(|| serde_json::from_str(document()).expect("JSON"));
    &DOCUMENT
}

/// The documented path that matches a request's path.
pub(super) fn template(document: &Value, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let paths = document["paths"].as_object().expect("paths");
    let fits = |template: &&String| {
        let template = template.trim_start_matches("/api/v1/{chain}");
        let template: Vec<&str> = template.split('/').collect();
        template.len() == parts.len()
            && template.iter().zip(&parts).all(|(one, part)| one == part || one.starts_with('{'))
    };
    paths.keys().find(fits).unwrap_or_else(|| panic!("{path} is not in the document")).clone()
}

pub(super) fn parameters(document: &Value, path: &str) -> Vec<Value> {
    let all = document["paths"][path]["get"]["parameters"].as_array().expect("a list");
    let whole = |one: &Value| match one["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).expect("it").clone(),
        None => one.clone(),
    };
    all.iter().map(whole).collect()
}

/// Fails if an answer does not match the schema of its path.
pub(super) fn check_answer(path: &str, answer: &Value) {
    let document = openapi();
    let template = template(document, path);
    let schema = &document["paths"][&template]["get"]["responses"]["200"]["content"]["application/json"]
        ["schema"];
    check(document, schema, answer, &template);
}

/// Fails if a value does not match a schema.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(any) = schema["anyOf"].as_array() {
        let null = |one: &Value| one["type"] == "null";
        match value.is_null() {
            true => assert!(any.iter().any(null), "{at} is null"),
            false => any.iter().filter(|one| !null(one)).for_each(|one| {
                check(document, one, value, at);
            }),
        }
        return;
    }
    if let Some(one_of) = schema["oneOf"].as_array() {
        let has_all = |one: &&Value| {
            let required = resolved(document, one)["required"].clone();
            let mut names = required.as_array().into_iter().flatten();
            names.all(|name| value.get(name.as_str().unwrap_or_default()).is_some())
        };
        let meant: Vec<&Value> = one_of.iter().filter(has_all).collect();
        assert_eq!(meant.len(), 1, "{at}: {value}");
        check(document, meant[0], value, at);
        return;
    }
    let schema = resolved(document, schema);
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        other => panic!("{at}: a schema of type {other}"),
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(types.contains(&found), "{at} is {value}, not {types:?}");
    match value {
        Value::String(text) => check_text(&schema, text, at),
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                check(document, &schema["items"], item, &format!("{at}[{number}]"));
            }
        }
        Value::Object(fields) => check_object(document, &schema, fields, at),
        _ => {}
    }
}

fn check_object(document: &Value, schema: &Value, fields: &Map<String, Value>, at: &str) {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().expect("a name");
        assert!(fields.contains_key(name), "{at} has no {name}");
    }
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        let others = &schema["additionalProperties"];
        match properties.get(name) {
            Some(schema) => check(document, schema, value, &at),
            // Any value is allowed.
            None if *others == Value::Bool(true) => {}
            None if others.is_object() => check(document, others, value, &at),
            None => panic!("{at} is not documented"),
        }
    }
}

fn check_text(schema: &Value, text: &str, at: &str) {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let hex = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or("-");
        digits.len().is_multiple_of(2)
            && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let fits = match schema["pattern"].as_str() {
        None => true,
        Some("^-?[0-9]+$") => digits(text.strip_prefix('-').unwrap_or(text)),
        Some("^0x([0-9a-f]{2})*$") => hex(text),
        Some("^0x[0-9a-f]{40}$") => hex(text) && text.len() == 42,
        Some(pattern) => panic!("{at}: the pattern {pattern} is not known here"),
    };
    assert!(fits, "{at} is {text:?}");
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.iter().any(|word| word == text), "{at} is {text:?}");
    }
    if schema["format"] == "date" {
        let is_date = text.len() == 10 && text.split('-').all(digits);
        assert!(is_date, "{at} is {text:?}");
    }
}

/// Resolves references, and merges `allOf` into one object.
fn resolved(document: &Value, schema: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.strip_prefix("#/components/schemas/").expect("one of ours");
        let found = &document["components"]["schemas"][name];
        assert!(found.is_object(), "there is no {name}");
        return resolved(document, found);
    }
    let Some(parts) = schema["allOf"].as_array() else {
        return schema.clone();
    };
    let mut all = serde_json::json!({"type": "object", "properties": {}, "required": []});
    for part in parts {
        let part = resolved(document, part);
        for (name, schema) in part["properties"].as_object().expect("an object") {
            all["properties"][name] = schema.clone();
        }
        let required = part["required"].as_array().expect("names").clone();
        all["required"].as_array_mut().expect("names").extend(required);
    }
    all
}
