//! JSON-RPC: encodes calls and decodes responses.
//!
//! Guarantees: answers are matched to calls by id, whatever their order in the batch; an error holds at most
//! [`MESSAGE_CHARS_MAX`] characters of a node's message. Leaves to others: the meaning of results and errors.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

pub(super) const MESSAGE_CHARS_MAX: usize = 200;

/// `params` is JSON.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Cow<'static, str>,
    pub(super) params: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    /// The block range that the node suggests, as Infura does.
    pub(super) suggested: Option<(u64, u64)>,
    /// The error's `data` as JSON, such as the revert data of a contract.
    pub(super) data: Option<String>,
}

/// The answer to one call; `None` for `null`.
pub(super) type CallResult<'a> = Result<Option<&'a RawValue>, RpcError>;

/// Why a whole body has no usable answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// One error for all calls.
    Error(RpcError),
    /// Some calls of a batch have no answer.
    Incomplete(String),
    /// Not JSON-RPC.
    Malformed(String),
}

impl Call {
    pub(super) fn new(method: &'static str, params: impl Into<String>) -> Self {
        Self { method: Cow::Borrowed(method), params: params.into() }
    }

    fn write(&self, id: usize, out: &mut String) {
        let method = serde_json::to_string(&self.method).unwrap_or_default();
        let params = &self.params;
        // Writing to a string does not fail.
        let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#);
    }
}

/// Encodes a request: a batch, unless there is only one call.
pub(super) fn body(calls: &[Call]) -> Bytes {
    let mut out = String::new();
    if let [call] = calls {
        call.write(0, &mut out);
        return Bytes::from(out);
    }
    out.push('[');
    for (id, call) in calls.iter().enumerate() {
        if id > 0 {
            out.push(',');
        }
        call.write(id, &mut out);
    }
    out.push(']');
    Bytes::from(out)
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ErrorFields<'a> {
    #[serde(default)]
    code: Option<i64>,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct SuggestedRange<'a> {
    from: &'a str,
    to: &'a str,
}

/// Decodes the answers in a body, in the order of the calls.
pub(super) fn answers(body: &[u8], calls: usize) -> Result<Vec<CallResult<'_>>, BodyError> {
    let text = std::str::from_utf8(body).map_err(|_| malformed("the answer is not UTF-8"))?;
    if !text.trim_start().starts_with('[') {
        let response: Response<'_> =
            serde_json::from_str(text).map_err(|_| malformed("the answer is not JSON-RPC"))?;
        let outcome = outcome(&response);
        return match (outcome, calls) {
            (outcome, 1) => Ok(vec![outcome]),
            (Err(error), _) => Err(BodyError::Error(error)),
            (Ok(_), _) => Err(BodyError::Incomplete("it sent one answer to a batch".to_owned())),
        };
    }
    let responses: Vec<Response<'_>> =
        serde_json::from_str(text).map_err(|_| malformed("the answer is not JSON-RPC"))?;
    // Some nodes refuse a batch with a batch of one error.
    if let ([only], true) = (&responses[..], calls > 1)
        && let Err(error) = outcome(only)
    {
        return Err(BodyError::Error(error));
    }
    in_order(&responses, calls)
}

fn in_order<'a>(
    responses: &[Response<'a>],
    calls: usize,
) -> Result<Vec<CallResult<'a>>, BodyError> {
    let mut ordered: Vec<Option<CallResult<'a>>> = vec![None; calls];
    for response in responses {
        let id = response.id.and_then(|id| id.get().trim_matches('"').parse::<usize>().ok());
        let slot = id.and_then(|id| ordered.get_mut(id));
        let slot = slot.ok_or_else(|| malformed("it answered a call that was not made"))?;
        *slot = Some(outcome(response));
    }
    let all: Option<Vec<_>> = ordered.into_iter().collect();
    all.ok_or_else(|| BodyError::Incomplete("it did not answer all calls of a batch".to_owned()))
}

fn outcome<'a>(response: &Response<'a>) -> CallResult<'a> {
    let Some(error) = response.error.filter(|error| error.get() != "null") else {
        return Ok(response.result.filter(|result| result.get() != "null"));
    };
    let fields: Option<ErrorFields<'_>> = serde_json::from_str(error.get()).ok();
    let Some(fields) = fields else {
        return Err(RpcError {
            code: 0,
            message: one_line(error.get()),
            suggested: None,
            data: None,
        });
    };
    let suggested = fields.data.and_then(|data| {
        let range: SuggestedRange<'_> = serde_json::from_str(data.get()).ok()?;
        Some((quantity(range.from)?, quantity(range.to)?))
    });
    let message = fields.message.as_deref().map_or_else(|| "no message".to_owned(), one_line);
    let data = fields.data.filter(|data| data.get() != "null").map(|data| data.get().to_owned());
    Err(RpcError { code: fields.code.unwrap_or(0), message, suggested, data })
}

/// A node's message on one line, shortened.
pub(super) fn one_line(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(MESSAGE_CHARS_MAX).collect()
}

/// Parses a hexadecimal number with its prefix.
pub(super) fn quantity(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

fn malformed(what: &str) -> BodyError {
    BodyError::Malformed(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, calls: usize) -> Result<Vec<Result<Option<String>, RpcError>>, BodyError> {
        let text =
            |outcome: CallResult<'_>| outcome.map(|json| json.map(|json| json.get().to_owned()));
        Ok(answers(body.as_bytes(), calls)?.into_iter().map(text).collect())
    }

    #[test]
    fn answers_are_found_by_id_in_any_order() {
        let body = r#"[{"id":"1","result":null},{"jsonrpc":"2.0","id":0,"result":{"a":[1]}}]"#;
        assert_eq!(read(body, 2), Ok(vec![Ok(Some(r#"{"a":[1]}"#.to_owned())), Ok(None)]));
    }

    #[test]
    fn an_error_is_that_of_its_call_or_of_all() {
        let one = r#"{"id":0,"error":{"code":-32005,"message":"slow\ndown","data":{"from":"0x1","to":"0x9"}}}"#;
        let error = RpcError {
            code: -32_005,
            message: "slow down".to_owned(),
            suggested: Some((1, 9)),
            data: Some(r#"{"from":"0x1","to":"0x9"}"#.to_owned()),
        };
        assert_eq!(read(one, 1), Ok(vec![Err(error.clone())]));
        assert_eq!(read(one, 2), Err(BodyError::Error(error.clone())));
        assert_eq!(read(&format!("[{one}]"), 2), Err(BodyError::Error(error)));
    }

    #[test]
    fn invalid_answers_are_rejected() {
        let deep = "[".repeat(100_000);
        let cases = [
            "",
            "hello",
            "{}x",
            "<html>",
            "[1,2]",
            r#"[{"id":0,"result":1}]"#,
            r#"[{"id":7,"result":1}]"#,
            r#"{"id":0,"result":1}"#,
            "\u{0}",
            deep.as_str(),
        ];
        for body in cases {
            let answer = read(body, 2);
            let refused = matches!(answer, Err(BodyError::Malformed(_) | BodyError::Incomplete(_)));
            assert!(refused, "{body:.40}: {answer:?}");
        }
        assert!(answers(&[0xff, 0xfe], 1).is_err());
    }

    #[test]
    fn a_long_message_is_cut() {
        let body =
            format!(r#"{{"id":0,"error":{{"code":1,"message":"{}"}}}}"#, "x".repeat(100_000));
        let answer = answers(body.as_bytes(), 1).expect("an answer").remove(0);
        assert_eq!(answer.expect_err("an error").message.len(), MESSAGE_CHARS_MAX);
    }

    #[test]
    fn a_method_cannot_break_out_of_its_call() {
        let call = Call { method: Cow::Borrowed("a\",\"x\":\""), params: "[]".to_owned() };
        let json: serde_json::Value = serde_json::from_slice(&body(&[call])).expect("JSON");
        assert_eq!(json["method"], "a\",\"x\":\"");
    }
}
