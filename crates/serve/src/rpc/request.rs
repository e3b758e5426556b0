//! JSON-RPC 2.0 requests: parses a body into calls.
//!
//! Guarantees: an id is echoed exactly as it was written; an invalid call of a batch does not affect the others.
//! Parameters are only delimited here, without recursion, so that deep nesting is harmless. Leaves to others: parsing
//! the parameters.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::RpcError;

/// Maximum length of an id, because it is echoed.
const ID_BYTES_MAX: usize = 1_024;
/// Maximum length of a method name, because an unknown one is echoed.
const METHOD_BYTES_MAX: usize = 128;

/// One call, valid or not.
#[derive(Debug)]
pub(crate) struct Call {
    /// The id as it was written; `None` for a notification.
    pub(crate) id: Option<String>,
    pub(crate) parsed: Result<MethodCall, RpcError>,
}

/// Method and parameters of a valid call.
#[derive(Debug)]
pub(crate) struct MethodCall {
    pub(crate) method: String,
    /// Unparsed JSON.
    pub(crate) params: Option<Box<RawValue>>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) calls: Vec<Call>,
    /// Whether the answer is an array.
    pub(crate) is_batch: bool,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Distinguishes the id `null` from a missing id.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl Request {
    /// Parses a body with at most `batch_max` calls.
    pub(crate) fn read(body: &[u8], batch_max: usize) -> Self {
        let one = |call| Self { calls: vec![call], is_batch: false };
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'[') {
            return one(match serde_json::from_slice::<&RawValue>(body) {
                Ok(text) => Call::read(text.get()),
                Err(_) => Call::refused(RpcError::parse()),
            });
        }
        let calls: Vec<&RawValue> = match serde_json::from_slice(body) {
            Ok(calls) => calls,
            Err(_) => return one(Call::refused(RpcError::parse())),
        };
        if calls.is_empty() {
            return one(Call::refused(RpcError::invalid_request("empty batch")));
        }
        if calls.len() > batch_max {
            let why = format!("batch too large: {} calls, at most {batch_max}", calls.len());
            return one(Call::refused(RpcError::invalid_request(why)));
        }
        let calls = calls.into_iter().map(|call| Call::read(call.get())).collect();
        Self { calls, is_batch: true }
    }
}

impl Call {
    fn refused(error: RpcError) -> Self {
        Self { id: Some("null".to_owned()), parsed: Err(error) }
    }

    fn read(text: &str) -> Self {
        let invalid = |why: &'static str| RpcError::invalid_request(why);
        // Serde would accept an array as the fields in order.
        let is_object = text.starts_with('{');
        let fields = is_object.then(|| serde_json::from_str::<Fields<'_>>(text).ok()).flatten();
        let Some(fields) = fields else {
            return Self::refused(invalid("invalid request"));
        };
        let id = match fields.id.map(RawValue::get) {
            None => None,
            Some(id) if !is_id(id) => {
                return Self::refused(invalid(
                    "invalid request: the id must be a number, a string or null",
                ));
            }
            Some(id) => Some(id.to_owned()),
        };
        let parsed = match (fields.jsonrpc.as_deref(), fields.method) {
            (Some("2.0"), Some(method)) if method.len() <= METHOD_BYTES_MAX => {
                let params = fields.params.map(ToOwned::to_owned);
                Ok(MethodCall { method: method.into_owned(), params })
            }
            (Some("2.0"), _) => Err(invalid("invalid request: no method")),
            _ => Err(invalid("invalid request: jsonrpc is not \"2.0\"")),
        };
        // An invalid request is answered even without an id.
        let id = if parsed.is_err() { Some(id.unwrap_or_else(|| "null".to_owned())) } else { id };
        Self { id, parsed }
    }
}

fn is_id(text: &str) -> bool {
    let kind = text.bytes().next().unwrap_or(b'{');
    let is_kind = kind == b'"' || kind == b'-' || kind.is_ascii_digit() || text == "null";
    is_kind && text.len() <= ID_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the ids of the calls, and the error codes of the invalid ones.
    #[track_caller]
    fn check(body: &str, is_batch: bool, expected: &[(Option<&str>, Option<i64>)]) {
        let request = Request::read(body.as_bytes(), 3);
        let code = |call: &Call| call.parsed.as_ref().err().map(|error| error.code);
        let calls: Vec<_> =
            request.calls.iter().map(|call| (call.id.as_deref(), code(call))).collect();
        assert_eq!((request.is_batch, &calls[..]), (is_batch, expected), "{body}");
    }

    #[test]
    fn ids_are_echoed_and_invalid_requests_are_refused() {
        let call = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        for id in ["1", "-7", "1.50", "\"a\\u0041\"", "null", "123456789012345678901234567890"] {
            check(&call(id), false, &[(Some(id), None)]);
        }
        for id in ["{}", "[1]", "true", &format!("\"{}\"", "x".repeat(2_000))] {
            check(&call(id), false, &[(Some("null"), Some(-32_600))]);
        }
        check(r#"{"jsonrpc":"2.0","method":"m"}"#, false, &[(None, None)]);
        check(r#"{"id":5,"method":"m"}"#, false, &[(Some("5"), Some(-32_600))]);
        check(r#"{"jsonrpc":"1.0","id":5,"method":"m"}"#, false, &[(Some("5"), Some(-32_600))]);
        check(r#"{"jsonrpc":"2.0","id":5}"#, false, &[(Some("5"), Some(-32_600))]);
        check(r#"{"jsonrpc":"2.0","method":1}"#, false, &[(Some("null"), Some(-32_600))]);
        check("7", false, &[(Some("null"), Some(-32_600))]);
        for garbage in ["", "{", "nonsense", "[1,", "\u{1}", "{} {}"] {
            check(garbage, false, &[(Some("null"), Some(-32_700))]);
        }
    }

    #[test]
    fn batches_are_neither_empty_nor_too_long() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
        check("[]", false, &[(Some("null"), Some(-32_600))]);
        check(&format!(" \n[{call}]"), true, &[(Some("1"), None)]);
        check(
            &format!("[{call},7,[]]"),
            true,
            &[(Some("1"), None), (Some("null"), Some(-32_600)), (Some("null"), Some(-32_600))],
        );
        // An array of a request's field values is not a request.
        let unnamed = r#"["2.0",1,"m",[]]"#;
        check(&format!("[{unnamed}]"), true, &[(Some("null"), Some(-32_600))]);
        check(&format!("[{call},{call},{call},{call}]"), false, &[(Some("null"), Some(-32_600))]);
    }

    #[test]
    fn deep_nesting_is_survived() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        check(&deep, true, &[(Some("null"), Some(-32_600))]);
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{deep}}}"#);
        check(&call, false, &[(Some("1"), None)]);
    }
}
