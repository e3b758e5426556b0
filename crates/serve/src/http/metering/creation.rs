//! Common parts of requests that create something: an `Idempotency-Key`, and a JSON body with known fields.
//!
//! Guarantees: an unknown field is a 400 that names it, and errors repeat no other input; an invalid key is a 400.
//! Leaves to others: executing a request once ([`logmill_meter::requests`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use logmill_meter::requests::KeyedRequest;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::Caller;
use super::params::bad_request;
use crate::http::{ServerState, problem, read_body};

/// Header with the key that makes a request safe to repeat.
const KEY: &str = "idempotency-key";
/// Maximum length of an unknown field's name that is repeated in an error.
const SHOWN_CHARS_MAX: usize = 32;

pub(super) struct Creation {
    body: Bytes,
    /// `None` without the header.
    keyed: Option<KeyedRequest>,
}

/// Extractor for handlers that create something: the request, or the response that rejects it. The caller is
/// authenticated before.
pub(super) type CreationRequest = Result<Creation, Response>;

impl FromRequest<Arc<ServerState>> for Creation {
    type Rejection = Response;

    async fn from_request(request: Request, shared: &Arc<ServerState>) -> Result<Self, Response> {
        let (head, body) = request.into_parts();
        let Some(caller) = head.extensions.get::<Caller>() else {
            tracing::error!(path = head.uri.path(), "a route has no authentication guard");
            return Err(problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"));
        };
        let body = read_body(shared, body).await?;
        let Some(key) = key(&head.headers)? else { return Ok(Self { body, keyed: None }) };
        let path = format!("{} {}", head.method, head.uri.path());
        let keyed = KeyedRequest::new(&caller.source, key, &path, &body);
        Ok(Self { body, keyed: Some(keyed.map_err(|error| bad_request(&error.to_string()))?) })
    }
}

impl Creation {
    /// The key of a request whose body must be empty.
    pub(super) fn without_fields(self) -> Result<Option<KeyedRequest>, Response> {
        self.expect_no_fields()?;
        Ok(self.keyed)
    }

    /// The body as JSON with these fields, and the key.
    pub(super) fn with_fields<T: DeserializeOwned + Default>(
        self,
        known: &[&str],
    ) -> Result<(T, Option<KeyedRequest>), Response> {
        Ok((fields(&self.body, known)?, self.keyed))
    }

    /// Rejects a body with fields, for requests that take none.
    fn expect_no_fields(&self) -> Result<(), Response> {
        if self.body.trim_ascii() == b"null" {
            return Ok(());
        }
        fields::<BTreeMap<String, IgnoredAny>>(&self.body, &[]).map(drop)
    }
}

/// The `Idempotency-Key` header, if present.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<&str>, Response> {
    let key = headers.get(KEY).map(|key| key.to_str()).transpose();
    key.map_err(|_| bad_request("Idempotency-Key must have printable ASCII characters"))
}

/// Parses a JSON body with these fields; an empty body means the defaults.
pub(super) fn fields<T: DeserializeOwned + Default>(
    body: &[u8],
    known: &[&str],
) -> Result<T, Response> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    // An error of serde about a wrong type may contain the value, which may be a secret.
    let unreadable = |error: &serde_json::Error, what: &str| {
        bad_request(&format!("the body, line {}, column {}: {what}", error.line(), error.column()))
    };
    let named: BTreeMap<String, IgnoredAny> = serde_json::from_slice(body).map_err(|error| {
        unreadable(&error, if error.is_data() { "it is not an object" } else { "it is not JSON" })
    })?;
    if let Some(name) = named.keys().find(|name| !known.contains(&name.as_str())) {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let shown = shown.escape_debug();
        return Err(bad_request(&match known.is_empty() {
            true => format!("{shown}: unknown field; this request takes none"),
            false => format!("{shown}: unknown field; the fields are {}", known.join(", ")),
        }));
    }
    serde_json::from_slice(body)
        .map_err(|error| unreadable(&error, "a field is of the wrong type or given twice"))
}
