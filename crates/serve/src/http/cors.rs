//! CORS: which pages of other sites a browser lets send requests.
//!
//! Guarantees: only origins named in the settings are allowed; a preflight is answered before keys are checked, because
//! browsers send none with it; `Vary` marks every response as dependent on the origin. Leaves to others: keys, and the
//! check against pages of other sites ([`super::auth`]), which the same origins pass.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{ServerState, problem};

const ORIGINS_MAX: usize = 1_000;
/// What pages may send and read.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "accept, authorization, content-encoding, content-type, idempotency-key, x-apikey",
);
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "content-encoding, link, retry-after, x-complete, x-damaged-events, x-next-cursor",
);
/// Time in seconds for which a browser may cache a preflight response.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Headers by which a browser asks whether a public page may reach a private network.
const ASK_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Origins whose pages have access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Whether every origin is allowed.
    is_any: bool,
    named: Vec<String>,
}

impl Origins {
    /// Parses a setting: `scheme://host` or `scheme://host:port`, separated by commas, or `*` for all.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut origins = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry {
                "*" => origins.is_any = true,
                entry if is_origin(entry) => origins.named.push(entry.to_ascii_lowercase()),
                entry => {
                    return Err(format!(
                        "{entry:?} is not an origin: write scheme://host or scheme://host:port, without a \
                         path, or * for all"
                    ));
                }
            }
        }
        if origins.named.len() > ORIGINS_MAX {
            return Err(format!("too many origins, at most {ORIGINS_MAX}"));
        }
        Ok(origins)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_any && self.named.is_empty()
    }

    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// The origin of a request, if it is allowed.
    pub(super) fn allowed<'h>(&self, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        let is_named = || self.named.iter().any(|named| named.eq_ignore_ascii_case(text));
        (self.is_any || is_named()).then_some(origin)
    }
}

/// Whether a text has the form of an `Origin` header.
fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let is_bare = !authority.as_str().contains('@') && !authority.host().is_empty();
    uri.scheme().is_some()
        && is_bare
        && !text.ends_with('/')
        && uri.path_and_query().is_none_or(|path| path == "/")
}

/// Answers preflights, and adds the CORS headers to every other response.
pub(super) async fn cors(
    State(shared): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let origins = shared.limits.keys.origins();
    if origins.is_empty() {
        return next.run(request).await;
    }
    let headers = request.headers();
    let allowed = origins.allowed(headers).cloned();
    let is_preflight =
        request.method() == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match (is_preflight, &allowed) {
        (false, _) => next.run(request).await,
        (true, None) => {
            let why = "this origin is not allowed: server.cors_origins does not name it";
            problem(StatusCode::FORBIDDEN, why)
        }
        (true, Some(_)) => preflight(headers.contains_key(ASK_PRIVATE)),
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}

fn preflight(asks_private: bool) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if asks_private {
        headers.insert(ALLOW_PRIVATE, HeaderValue::from_static("true"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_what_browsers_send() {
        let origins = "https://app.example, http://localhost:3000, https://[::1]:8443";
        let origins = Origins::parse(origins).expect("three");
        for (origin, expected) in [
            ("https://app.example", true),
            ("https://APP.example", true),
            ("http://localhost:3000", true),
            ("https://[::1]:8443", true),
            ("http://app.example", false),
            ("https://app.example:444", false),
            ("https://app.example.evil.example", false),
            ("https://xapp.example", false),
            ("null", false),
            ("*", false),
        ] {
            let headers = HeaderMap::from_iter([(ORIGIN, origin.parse().expect("a value"))]);
            assert_eq!(origins.allowed(&headers).is_some(), expected, "{origin}");
            let any = Origins::parse("*").expect("all");
            assert!(any.is_any() && any.allowed(&headers).is_some());
        }
        assert!(origins.allowed(&HeaderMap::new()).is_none());
        assert!(Origins::parse("").expect("none").is_empty());
        for wrong in [
            "app.example",
            "https://app.example/",
            "https://app.example/page",
            "https://user@app.example",
            "https://",
            "https://*.example app",
            "null",
        ] {
            assert!(Origins::parse(wrong).is_err(), "{wrong}");
        }
    }
}
