//! The one error body of HTTP: `{"error": TEXT}`, in the read API `{"error": {"code": …, "message": TEXT}}`.
//!
//! Guarantees: a 401 says how to authenticate. Leaves to others: when to fail, and the texts.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::http::header::WWW_AUTHENTICATE;
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    /// Set in the read API.
    pub(super) code: Option<&'static str>,
    pub(super) message: Cow<'static, str>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let error = match self.code {
            Some(code) => json!({"code": code, "message": self.message}),
            None => json!(self.message),
        };
        let body = Json(json!({"error": error}));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                (self.status, [(WWW_AUTHENTICATE, "Bearer")], body).into_response()
            }
            status => (status, body).into_response(),
        }
    }
}

/// An error response without a code.
pub(super) fn problem(status: StatusCode, error: &str) -> Response {
    Problem { status, code: None, message: error.to_owned().into() }.into_response()
}
