//! Lists as CSV (RFC 4180), for spreadsheets and databases.
//!
//! Guarantees: the first line names the columns, and every line has the same number of cells; a cell that a spreadsheet
//! would treat as a formula starts with an apostrophe; numbers are as in JSON. Leaves to others: the number of rows.

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Json, Response};
use serde_json::Value;

/// Maximum number of rows of one response.
pub(super) const ROWS_MAX: u64 = 10_000;

const NEXT_CURSOR: HeaderName = HeaderName::from_static("x-next-cursor");
const COMPLETE: HeaderName = HeaderName::from_static("x-complete");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Csv,
}

impl Format {
    /// The format named by the parameter `format`, else the one that the client accepts; `None` if the parameter is
    /// invalid.
    pub(super) fn choose(named: Option<&str>, headers: &HeaderMap) -> Option<Self> {
        match named {
            Some("csv") => return Some(Self::Csv),
            Some("json") => return Some(Self::Json),
            Some(_) => return None,
            None => {}
        }
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
        let mut types = accepted.flat_map(|accept| accept.split(','));
        let named = |one: &str| one.split(';').next().unwrap_or_default().trim().to_lowercase();
        let is_csv = types.any(|one| named(one) == "text/csv");
        Some(if is_csv { Self::Csv } else { Self::Json })
    }

    /// Renders a list answer: `data`, optionally with `pagination`, `complete` and `reason`.
    pub(super) fn response(self, answer: &Value, columns: &[&str]) -> Response {
        match self {
            Self::Json => Json(answer).into_response(),
            Self::Csv => {
                let rows = answer["data"].as_array().map(Vec::as_slice).unwrap_or_default();
                let mut response = Response::new(Body::from(text(columns, rows)));
                let headers = response.headers_mut();
                let kind = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
                headers.insert(CONTENT_TYPE, kind);
                let next = answer["pagination"]["nextCursor"].as_str();
                if let Some(next) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
                    headers.insert(NEXT_CURSOR, next);
                }
                if answer["complete"] == false {
                    headers.insert(COMPLETE, HeaderValue::from_static("false"));
                }
                response
            }
        }
    }
}

fn text(columns: &[&str], rows: &[Value]) -> String {
    let head = columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",");
    let mut text = format!("{head}\r\n");
    for row in rows {
        let cells = columns.iter().map(|name| cell(&row[*name])).collect::<Vec<_>>();
        text.push_str(&cells.join(","));
        text.push_str("\r\n");
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(&harmless(text)),
        other => quoted(&other.to_string()),
    }
}

/// Escapes a text that a spreadsheet would treat as a formula. Numbers stay as they are.
fn harmless(text: &str) -> String {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let first = text.trim_start_matches(' ').chars().next();
    let is_formula = matches!(first, Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '|' | '%'));
    if is_formula && !is_number { format!("'{text}") } else { text.to_owned() }
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_quoted_and_no_formula_gets_through() {
        let rows = [
            json!({"a": "x,y", "b": 5, "c": null}),
            json!({"a": "say \"hi\"\nthere", "b": "-12", "c": "=HYPERLINK(\"http://x\")"}),
            json!({"a": "+1", "b": "-1+2", "c": "@sum", "d": "not asked for"}),
            json!({"a": " =1", "b": "\t=1", "c": true}),
        ];
        let expected = "a,b,c\r\n\"x,y\",5,\r\n\"say \"\"hi\"\"\nthere\",-12,\"'=HYPERLINK(\"\"http://x\"\")\"\r\n\
             '+1,'-1+2,'@sum\r\n' =1,'\t=1,true\r\n";
        assert_eq!(text(&["a", "b", "c"], &rows), expected);
    }

    #[test]
    fn the_format_is_named_or_accepted() {
        let accept = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, value.parse().expect("a header"));
            headers
        };
        for (named, headers, expected) in [
            (None, HeaderMap::new(), Some(Format::Json)),
            (None, accept("*/*"), Some(Format::Json)),
            (None, accept("application/json, Text/CSV;q=0.9"), Some(Format::Csv)),
            (Some("json"), accept("text/csv"), Some(Format::Json)),
            (Some("csv"), HeaderMap::new(), Some(Format::Csv)),
            (Some("xml"), HeaderMap::new(), None),
        ] {
            assert_eq!(Format::choose(named, &headers), expected, "{named:?} {headers:?}");
        }
    }
}
