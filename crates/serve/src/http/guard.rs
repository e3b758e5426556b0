//! The guard of all paths: API keys, request slots and the time limit.
//!
//! Guarantees: a request without a key of the required scope is counted and refused before its handler runs. Leaves to
//! others: which path needs which scope ([`super::route`]).

use std::future::Future;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::ServerState;
use super::auth::{KeyRejection, Scope};
use super::error_body::Problem;

/// Error for requests from pages of other sites while no keys are configured.
const FOREIGN: &str = "without API keys only requests from this machine are served: use localhost or 127.0.0.1 as the \
    host, name the origin of the page in server.cors_origins, or set server.keys";

/// The paths that a guard protects.
#[derive(Clone)]
pub(super) struct Guarded {
    pub(super) shared: Arc<ServerState>,
    pub(super) scope: Scope,
    /// Whether errors have a code.
    pub(super) is_coded: bool,
}

/// Rejects requests without a key of the required scope.
pub(super) async fn guard(
    State(guarded): State<Guarded>,
    request: Request,
    next: Next,
) -> Response {
    let Guarded { shared, scope, is_coded } = &guarded;
    match authorize(shared, request.headers(), *scope) {
        Ok(_) => next.run(request).await,
        Err(rejection) if *is_coded => rejection.coded().into_response(),
        Err(rejection) => rejection.plain(*scope).into_response(),
    }
}

/// Returns the name of the caller's key, if keys are configured.
pub(super) fn authorize<'a>(
    shared: &'a ServerState,
    headers: &HeaderMap,
    scope: Scope,
) -> Result<Option<&'a str>, KeyRejection> {
    shared.limits.keys.check(headers, scope).inspect_err(|_| {
        metrics::counter!("logmill_http_refused_total").increment(1);
    })
}

impl KeyRejection {
    /// The error without a code, which names the scope.
    pub(super) fn plain(self, scope: Scope) -> Problem {
        let problem = self.coded();
        let message = match self {
            Self::Forbidden => format!("{} {}", problem.message, scope.name()).into(),
            Self::Unknown | Self::Foreign => problem.message,
        };
        Problem { code: None, message, ..problem }
    }

    fn coded(self) -> Problem {
        let (status, code, message) = match self {
            Self::Unknown => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "an API key is required, as `Authorization: Bearer …` or `x-apikey`",
            ),
            Self::Forbidden => {
                (StatusCode::FORBIDDEN, "forbidden", "the key does not have the required scope")
            }
            Self::Foreign => (StatusCode::FORBIDDEN, "forbidden", FOREIGN),
        };
        Problem { status, code: Some(code), message: message.into() }
    }
}

impl ServerState {
    /// Runs a request once a slot is free; `None` if the time limit of requests passes before it is answered.
    pub(super) async fn within_limits<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let work = async {
            // The semaphore is never closed.
            let _room = self.requests.acquire().await;
            work.await
        };
        tokio::select! {
            biased;
            answer = work => Some(answer),
            () = self.clock.sleep(self.rpc.limits().timeout) => None,
        }
    }
}
