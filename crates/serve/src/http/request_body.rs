//! The body of a request, within limits, and its content type.
//!
//! Guarantees: a body that is announced as too large or arrives too slowly is rejected without waiting for it; a body
//! that is not read to its end closes the connection. Leaves to others: the meaning of the body.

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;

use super::{ServerState, encoding, problem};

/// Reads the whole body of a request, unless it is too large or too slow.
pub(super) async fn read_body(shared: &ServerState, body: Body) -> Result<Bytes, Response> {
    let max = shared.limits.max_body_bytes;
    // Trusts the announced length, to avoid waiting for a body that will be rejected.
    let announced = hyper::body::Body::size_hint(&body).lower();
    if announced > u64::try_from(max).unwrap_or(u64::MAX) {
        return Err(closing(encoding::too_large(max)));
    }
    // Read before a request slot is taken, so that slow senders do not occupy slots.
    let body = tokio::select! {
        biased;
        body = axum::body::to_bytes(body, max) => body,
        () = shared.clock.sleep(shared.rpc.limits().timeout) => {
            let why = "the body was not received in time";
            return Err(closing(problem(StatusCode::REQUEST_TIMEOUT, why)));
        }
    };
    body.map_err(|error| closing(encoding::unreadable(&error, max)))
}

/// A response to a request that was not read to its end: the following bytes are not a request.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The same check as in geth: a page of another site cannot send this type without a preflight.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let content_type =
        content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    let known = ["application/json", "application/json-rpc", "application/jsonrequest"];
    known.iter().any(|known| content_type.trim().eq_ignore_ascii_case(known))
}
