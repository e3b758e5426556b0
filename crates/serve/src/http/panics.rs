//! Panics of handlers: the client gets an error response, and no other request is affected.
//!
//! Guarantees: a panic becomes a 500 in the error format of the requested path. Leaves to others: panics while a body
//! is streamed, which end the connection; the panic message, which the panic hook prints.

use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;

use super::{api, problem};

pub(super) async fn catch_panics(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    // Unwind safe: handlers hold shared locks only briefly, and poisoned locks are used anyway.
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answered.unwrap_or_else(|_| {
        metrics::counter!("logmill_http_panics_total").increment(1);
        tracing::error!(path, "request handler panicked");
        match path.starts_with("/api/") {
            true => api::internal_error(),
            false => problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"),
        }
    })
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    async fn breaks() -> Response {
        panic!("told to")
    }

    #[tokio::test]
    async fn a_handler_that_panics_gets_a_500() {
        let routes = Router::new()
            .route("/fees", get(breaks))
            .route("/api/v1/1/fees", get(breaks))
            .route("/fine", get(async || "fine"))
            .layer(from_fn(catch_panics));
        let service = TowerToHyperService::new(routes);
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
            let response = service.call(request).await.expect("an answer");
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        let seeds = r#"{"error":"Internal server error"}"#.to_owned();
        assert_eq!(ask("/fees").await, (500, seeds));
        let (status, body) = ask("/api/v1/1/fees").await;
        assert!(status == 500 && body.contains(r#""code":"internal""#), "{body}");
        assert_eq!(ask("/fine").await, (200, "fine".to_owned()));
    }
}
