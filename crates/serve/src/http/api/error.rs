//! The errors of the read API: every code, and the failure it stands for.
//!
//! | status | code | when |
//! |---|---|---|
//! | 400 | `invalid_parameter` | a parameter is missing, unknown, repeated or invalid |
//! | 400 | `invalid_cursor` | the cursor was not issued by this list |
//! | 401, 403 | `unauthorized`, `forbidden` | no key, or a key without the required scope |
//! | 404 | `not_found` | nothing known has this identity |
//! | 404 | `not_stored` | the blocks that could contain it are not stored here |
//! | 404 | `not_derived` | its table is not derived here; the message names the processor |
//! | 404 | `chain_not_served` | this chain is not served here |
//! | 405 | `method_not_allowed` | only GET is supported |
//! | 503 | `unavailable` | temporarily unavailable, or the time limit was reached: retry |
//! | 500 | `internal` | a server error; the log has the cause |
//!
//! Guarantees: internal causes are logged and not sent. Leaves to others: when to fail, keys
//! ([`crate::http::guard`]), and the body ([`crate::http::error_body`]).

use std::borrow::Cow;

use axum::http::StatusCode;
use logmill_io::ErrorKind;
use logmill_pipeline::processors;

use crate::http::error_body::Problem;

pub(super) type ApiResult<T> = std::result::Result<T, ApiError>;

/// An error that has a code.
pub(super) type ApiError = Problem;

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code: Some(code), message: message.into() }
    }

    /// A missing or invalid parameter.
    pub(super) fn parameter(name: &str, why: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_parameter", format!("{name}: {why}"))
    }

    /// A request whose path or query cannot be decoded.
    pub(super) fn unreadable() -> Self {
        let why = "path and query must be percent-encoded UTF-8";
        Self::new(StatusCode::BAD_REQUEST, "invalid_parameter", why)
    }

    /// A cursor that this list did not issue.
    pub(super) fn cursor() -> Self {
        let why = "cursor: not a `next` value of this list";
        Self::new(StatusCode::BAD_REQUEST, "invalid_cursor", why)
    }

    pub(super) fn not_found(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", what)
    }

    /// An object that may be in blocks that are not stored.
    pub(super) fn not_stored(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_stored", what)
    }

    /// An object that no processor derives here.
    pub(super) fn not_derived(processor: &str) -> Self {
        let why = format!("not derived here: the processor {processor} has not run");
        Self::new(StatusCode::NOT_FOUND, "not_derived", why)
    }

    pub(super) fn no_chain() -> Self {
        let why = "this chain is not served here; the path must have a chain id in decimal digits";
        Self::new(StatusCode::NOT_FOUND, "chain_not_served", why)
    }

    pub(super) fn no_method() -> Self {
        let why = "only GET is supported";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", why)
    }

    /// A temporary failure.
    pub(super) fn unavailable(why: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why)
    }

    /// Logs the cause and hides it from the client.
    pub(super) fn internal(what: &str) -> Self {
        tracing::warn!(error = what, "request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error")
    }

    pub(super) fn is_not_derived(&self) -> bool {
        self.code == Some("not_derived")
    }

    /// Used in metrics.
    pub(super) fn code(&self) -> &'static str {
        self.code.unwrap_or_default()
    }
}

impl From<logmill_pipeline::Error> for ApiError {
    fn from(error: logmill_pipeline::Error) -> Self {
        use logmill_pipeline::Error;
        match &error {
            Error::NotDerived { table, chain_id } => {
                let all = processors::all(&processors::Settings::of_chain(*chain_id));
                let fills = |one: &&std::sync::Arc<dyn logmill_pipeline::derive::Processor>| {
                    one.tables().iter().any(|of| of.name == *table)
                };
                Self::not_derived(all.iter().find(fills).map_or(table, |one| one.name()))
            }
            Error::NotCovered { .. } | Error::Pruned { .. } | Error::BlockNotFound { .. } => {
                Self::not_stored(error.to_string())
            }
            _ => failed(&error, error.kind()),
        }
    }
}

impl From<logmill_chain::Error> for ApiError {
    fn from(error: logmill_chain::Error) -> Self {
        failed(&error, error.kind())
    }
}

impl From<logmill_io::Error> for ApiError {
    fn from(error: logmill_io::Error) -> Self {
        failed(&error, error.kind())
    }
}

/// An internal failure: the cause is logged, and the client learns only whether to retry.
fn failed(error: &dyn std::error::Error, kind: ErrorKind) -> ApiError {
    let cause = crate::one_line::brief(&logmill_io::error_chain(error));
    match kind {
        ErrorKind::Transient | ErrorKind::Conflict | ErrorKind::Fenced => {
            tracing::warn!(error = cause, "request failed");
            ApiError::unavailable("not available at the moment")
        }
        _ => ApiError::internal(&cause),
    }
}

#[cfg(test)]
mod tests {
    use logmill_pipeline::Error;

    use super::*;

    #[test]
    fn every_failure_has_its_code_and_reveals_no_details() {
        let check = |error: Error, status: u16, code: &str, says: &str| {
            let error = ApiError::from(error);
            assert_eq!((error.status.as_u16(), error.code()), (status, code));
            assert!(error.message.contains(says), "{}", error.message);
            assert!(!error.message.contains("secret"), "{}", error.message);
        };
        let not_derived = |table| Error::NotDerived { table, chain_id: 1 };
        check(not_derived("ft_transfers"), 404, "not_derived", "token_worker");
        check(not_derived("unheard_of"), 404, "not_derived", "unheard_of");
        check(Error::NotCovered { wanted: 3..8, covered: vec![] }, 404, "not_stored", "blocks 3");
        check(Error::Corrupt { what: "a secret".to_owned() }, 500, "internal", "internal");
        let busy = logmill_io::Error::TooSlow { doing: "secret", limit_ms: 1 };
        check(busy.into(), 503, "unavailable", "at the moment");
    }
}
