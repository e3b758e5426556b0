//! What requests have in common that create something: an `Idempotency-Key`, and a body of JSON with known fields.
//!
//! Guarantees: a field that is unknown is a 400 that names it, and nothing that was sent is said back but names of
//! fields; a key that makes no sense is a 400. Leaves to others: what is done once ([`logmill_meter::requests`]).

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use bytes::Bytes;
use logmill_meter::requests::KeyedRequest;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::Caller;
use super::ask::wrong;
use crate::http::{Shared, read_body};

/// The header of the key that makes a request safe to repeat.
const KEY: &str = "idempotency-key";
/// How much of the name of an unknown field is said back.
const SHOWN_CHARS_MAX: usize = 32;

/// A request that creates something.
pub(super) struct Creation {
    pub(super) body: Bytes,
    /// None if it has no key.
    pub(super) keyed: Option<KeyedRequest>,
}

impl Creation {
    /// Reads the body of a request, and its key.
    pub(super) async fn read(
        shared: &Shared,
        caller: &Caller,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        body: Body,
    ) -> Result<Self, Response> {
        let body = read_body(shared, body).await?;
        let Some(key) = key(headers)? else { return Ok(Self { body, keyed: None }) };
        let path = format!("{method} {}", uri.path());
        let keyed = KeyedRequest::new(&caller.source, key, &path, &body);
        Ok(Self { body, keyed: Some(keyed.map_err(|error| wrong(&error.to_string()))?) })
    }

    /// The body as JSON with these fields; one that is empty says nothing.
    pub(super) fn fields<T: DeserializeOwned + Default>(
        &self,
        known: &[&str],
    ) -> Result<T, Response> {
        fields(&self.body, known)
    }

    /// Refuses a body that says something, for requests that take none.
    pub(super) fn expect_no_fields(&self) -> Result<(), Response> {
        if self.body.trim_ascii() == b"null" {
            return Ok(());
        }
        fields::<BTreeMap<String, IgnoredAny>>(&self.body, &[]).map(drop)
    }
}

/// The key of a request, if it has one.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<&str>, Response> {
    let key = headers.get(KEY).map(|key| key.to_str()).transpose();
    key.map_err(|_| wrong("Idempotency-Key must have printable ASCII characters"))
}

/// A body of JSON with these fields; one that is empty says nothing.
pub(super) fn fields<T: DeserializeOwned + Default>(
    body: &[u8],
    known: &[&str],
) -> Result<T, Response> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    // What serde says of a wrong type may hold the value, and that a secret.
    let unreadable = |error: &serde_json::Error, what: &str| {
        wrong(&format!("the body, line {}, column {}: {what}", error.line(), error.column()))
    };
    let named: BTreeMap<String, IgnoredAny> = serde_json::from_slice(body).map_err(|error| {
        unreadable(&error, if error.is_data() { "it is not an object" } else { "it is no JSON" })
    })?;
    if let Some(name) = named.keys().find(|name| !known.contains(&name.as_str())) {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let shown = shown.escape_debug();
        return Err(wrong(&match known.is_empty() {
            true => format!("{shown}: unknown field; this request takes none"),
            false => format!("{shown}: unknown field; there are {}", known.join(", ")),
        }));
    }
    serde_json::from_slice(body)
        .map_err(|error| unreadable(&error, "a field is of the wrong type or given twice"))
}
