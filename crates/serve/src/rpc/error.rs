//! The errors of JSON-RPC: every code, and the mapping from failures to codes.
//!
//! | code | when |
//! |---|---|
//! | −32700 | the request is not JSON |
//! | −32600 | it is not a JSON-RPC 2.0 request, or a batch is empty or too long |
//! | −32601 | the method does not exist |
//! | −32602 | the parameters are invalid |
//! | −32603 | internal error, with details in the log; if a stored chunk is damaged, the message names it |
//! | −32000 | unknown block, filter or subscription |
//! | −32001 | blocks of this kind do not have the requested part |
//! | −32002 | timed out or temporarily unavailable: retry |
//! | −32005 | a limit is exceeded; `data` has the limit and, if known, a range that fits |
//! | −39001 | no block has the tag yet |
//! | 4444 | not stored here; `data` lists the covered blocks if history is missing |
//!
//! Guarantees: internal causes are logged and not sent. Leaves to others: HTTP statuses.

use std::borrow::Cow;
use std::ops::Range;

use logmill_io::ErrorKind;
use serde_json::{Value, json};

pub(crate) type RpcResult<T> = std::result::Result<T, RpcError>;

const PARSE: i64 = -32_700;
const INVALID_REQUEST: i64 = -32_600;
const METHOD_NOT_FOUND: i64 = -32_601;
const INVALID_PARAMS: i64 = -32_602;
const INTERNAL: i64 = -32_603;
const SERVER: i64 = -32_000;
const RESOURCE_NOT_FOUND: i64 = -32_001;
const UNAVAILABLE: i64 = -32_002;
const LIMIT: i64 = -32_005;
const UNKNOWN_BLOCK: i64 = -39_001;
const NOT_STORED: i64 = 4_444;

/// Maximum number of coverage intervals in an error.
const INTERVALS_MAX: usize = 1_000;

/// The error object of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: Cow<'static, str>,
    pub(crate) data: Option<Value>,
}

impl RpcError {
    fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn parse() -> Self {
        Self::new(PARSE, "parse error")
    }

    pub(crate) fn invalid_request(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(INVALID_REQUEST, why)
    }

    pub(crate) fn no_method(name: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("the method {name} does not exist/is not available"))
    }

    /// The method is answered by nodes, and none is available.
    pub(crate) fn no_node_for(name: &str) -> Self {
        let why = format!(
            "the method {name} does not exist/is not available: nodes answer it, and none is configured or \
             rpc.pass_through is off"
        );
        Self::new(METHOD_NOT_FOUND, why)
    }

    /// Blocks of this kind do not have the requested part.
    pub(crate) fn resource_not_found(what: &str) -> Self {
        Self::new(RESOURCE_NOT_FOUND, format!("Resource not found: {what}"))
    }

    /// The chain has it, but Logmill does not keep it for any block.
    pub(crate) fn not_kept(what: &str) -> Self {
        Self::new(NOT_STORED, format!("Pruned history unavailable: {what}"))
    }

    pub(crate) fn params(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(INVALID_PARAMS, why)
    }

    pub(crate) fn internal() -> Self {
        Self::new(INTERNAL, "internal error")
    }

    /// Unknown filter, subscription or block.
    pub(crate) fn unknown(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(SERVER, why)
    }

    pub(crate) fn block_not_found() -> Self {
        Self::new(SERVER, "Block not found.")
    }

    pub(crate) fn timeout() -> Self {
        Self::new(UNAVAILABLE, "request timed out")
    }

    pub(crate) fn unavailable(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(UNAVAILABLE, why)
    }

    /// No block has the tag yet.
    pub(crate) fn unknown_block(tag: &str) -> Self {
        Self::new(UNKNOWN_BLOCK, format!("Unknown block: there is no {tag} block yet"))
    }

    /// A limit is exceeded.
    pub(crate) fn limit(why: impl Into<Cow<'static, str>>, limit: u64) -> Self {
        let data = json!({"limit": limit});
        Self { data: Some(data), ..Self::new(LIMIT, why) }
    }

    /// A limit is exceeded; `from` to `to` is a range of blocks that fits.
    pub(crate) fn limit_of_range(
        why: String,
        limit: u64,
        from: u64,
        to: u64,
        reason: &str,
    ) -> Self {
        let (from, to) = (format!("0x{from:x}"), format!("0x{to:x}"));
        let data = json!({"from": from, "to": to, "limit": limit, "reason": reason});
        Self { data: Some(data), ..Self::new(LIMIT, why) }
    }

    /// The blocks are not stored here.
    pub(crate) fn not_stored(what: &str, covered: &[Range<u64>]) -> Self {
        let message = format!("Pruned history unavailable: {what}");
        Self {
            data: Some(json!({"covered": intervals(covered)})),
            ..Self::new(NOT_STORED, message)
        }
    }

    /// The error that a node returned for a call that was passed on.
    pub(crate) fn of_node(error: logmill_chain::Error) -> Self {
        match error {
            logmill_chain::Error::Rpc { code, message, data } => {
                let data = data.and_then(|data| serde_json::from_str(&data).ok());
                Self { data, ..Self::new(code, message) }
            }
            error => logged(&error, error.kind()),
        }
    }

    /// A complete answer with the id `null`.
    pub(crate) fn answer(&self) -> String {
        let mut out = b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":".to_vec();
        self.write(&mut out);
        out.push(b'}');
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Writes the JSON error object.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        out.extend_from_slice(error.to_string().as_bytes());
    }
}

/// Ranges in the form that clients see: both ends inclusive, and only the newest [`INTERVALS_MAX`].
pub(crate) fn intervals(covered: &[Range<u64>]) -> Value {
    let newest = covered.len().saturating_sub(INTERVALS_MAX);
    let shown = covered[newest..].iter().filter(|range| !range.is_empty()).map(|range| {
        json!({"from": format!("0x{:x}", range.start), "to": format!("0x{:x}", range.end - 1)})
    });
    shown.collect()
}

impl From<logmill_pipeline::Error> for RpcError {
    fn from(error: logmill_pipeline::Error) -> Self {
        use finalized_log_index::Error as IndexError;
        use logmill_pipeline::Error;
        match &error {
            Error::NotCovered { covered, .. } | Error::Pruned { covered, .. } => {
                Self::not_stored(&error.to_string(), covered)
            }
            Error::BlockNotFound { .. } | Error::Index(IndexError::BlockNotFound { .. }) => {
                Self::block_not_found()
            }
            Error::Index(IndexError::QueryTooBroad { actual, max }) => too_broad(*actual, *max),
            Error::Index(IndexError::DeadlineExceeded { .. }) => Self::timeout(),
            Error::Index(IndexError::InvalidFilter { what }) | Error::Invalid { what } => {
                Self::params(what.clone())
            }
            Error::Index(IndexError::Degraded { .. }) => {
                logged(&error, ErrorKind::Internal);
                Self::unavailable("the index is degraded and refuses queries")
            }
            // The runbook relies on the name of the chunk; no other detail is sent to clients.
            Error::Index(index) if index.damaged_chunk().is_some() => {
                let chunk = index.damaged_chunk().unwrap_or_default().to_owned();
                logged(&error, ErrorKind::Corrupt);
                Self::new(INTERNAL, format!("stored data is damaged or missing: {chunk}"))
            }
            _ => logged(&error, error.kind()),
        }
    }
}

impl From<logmill_chain::Error> for RpcError {
    fn from(error: logmill_chain::Error) -> Self {
        logged(&error, error.kind())
    }
}

impl From<finalized_log_index::Error> for RpcError {
    fn from(error: finalized_log_index::Error) -> Self {
        Self::from(logmill_pipeline::Error::from(error))
    }
}

pub(crate) fn too_broad(actual: usize, max: usize) -> RpcError {
    let why =
        format!("query too broad: {actual} addresses or topics at one position, at most {max}");
    RpcError::limit(why, u64::try_from(max).unwrap_or(u64::MAX))
}

/// Logs an internal failure, and returns an error that tells the client only whether to retry.
fn logged(error: &dyn std::error::Error, kind: ErrorKind) -> RpcError {
    tracing::warn!(
        error = crate::one_line::brief(&logmill_io::error_chain(error)),
        "JSON-RPC call failed"
    );
    match kind {
        ErrorKind::Transient | ErrorKind::Conflict | ErrorKind::Fenced => {
            RpcError::unavailable("not available at the moment")
        }
        _ => RpcError::internal(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use finalized_log_index::Error as IndexError;
    use logmill_pipeline::Error;

    #[test]
    fn every_failure_has_its_code() {
        let covered = vec![0..5, 9..12];
        for (error, code) in [
            (Error::NotCovered { wanted: 3..8, covered: covered.clone() }, 4_444),
            (Error::Pruned { floor: 3, covered: covered.clone() }, 4_444),
            (Error::BlockNotFound { hash: Default::default() }, -32_000),
            (IndexError::QueryTooBroad { actual: 3, max: 2 }.into(), -32_005),
            (IndexError::DeadlineExceeded { limit_ms: 3 }.into(), -32_002),
            (IndexError::InvalidFilter { what: "x".to_owned() }.into(), -32_602),
            (IndexError::Degraded { reason: "x".to_owned() }.into(), -32_002),
            (
                IndexError::Corrupt { what: "secret place".to_owned(), chunk: None, block: None }
                    .into(),
                -32_603,
            ),
            (Error::Corrupt { what: "secret place".to_owned() }, -32_603),
            (logmill_io::Error::corrupt("secret place").into(), -32_603),
        ] {
            let said = format!("{error:?}");
            let error = RpcError::from(error);
            assert_eq!(error.code, code, "{said}");
            assert!(!error.message.contains("secret place"));
        }
        let chunk = "the chunk of blocks 3 to 7 (attempt 00f3)".to_owned();
        let what = "secret place".to_owned();
        for damaged in [
            IndexError::Corrupt { what, chunk: Some(chunk.clone()), block: None },
            IndexError::ChunkMissing { chunk: chunk.clone() },
        ] {
            let error = RpcError::from(Error::from(damaged));
            assert_eq!(error.code, -32_603);
            assert!(error.message.contains(&chunk), "{}", error.message);
            assert!(!error.message.contains("secret place"));
        }
        let error = RpcError::from(Error::NotCovered { wanted: 3..8, covered });
        let shown = json!([{"from": "0x0", "to": "0x4"}, {"from": "0x9", "to": "0xb"}]);
        assert_eq!(error.data, Some(json!({"covered": shown})));
    }
}
