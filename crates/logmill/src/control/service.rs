//! The server side: one route per change, limits on all of them, one place that turns errors into responses.
//!
//! Guarantees: every response is JSON. A request that takes too long is dropped and answered with an error. After the
//! stop signal, requests under way are answered, for a bounded time. Leaves to others: which users may connect
//! ([`super::socket`]).

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Json, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use logmill_io::sql::DataFolder;
use logmill_io::{Clock, ErrorKind};
use logmill_work::Queue;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use super::change::{Cancel, Change, Enqueue, Pause, Purge, Redrive, Resume};
use super::{ErrorBody, REQUEST_BYTES_MAX, REQUEST_TIME_MAX, socket};
use crate::error::{Error, Result};
use crate::job_kinds;
use crate::output;

/// Maximum number of concurrent requests; others wait, within their own time limit.
const REQUESTS_MAX: usize = 64;
/// How long a stop waits for requests under way.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// A listening socket.
pub(crate) struct Control {
    listener: UnixListener,
    folder: PathBuf,
}

impl Control {
    /// Listens in a folder whose lock this process holds; requests wait until [`serve`].
    pub(crate) fn listen(folder: &DataFolder) -> Result<Self> {
        let listener = socket::listen(folder)?;
        Ok(Self { listener, folder: folder.path().to_path_buf() })
    }

    pub(crate) fn path(&self) -> PathBuf {
        socket::path(&self.folder)
    }
}

/// The queues to which changes are applied.
#[derive(Clone)]
pub(crate) struct Queues {
    pub(crate) all: Queue,
    /// Usage jobs, if they are in a database of their own.
    pub(crate) usage: Option<Queue>,
    /// Jobs stored beside tables, if they are in a database of their own.
    pub(crate) tables: Option<Queue>,
}

impl Queues {
    fn of(&self, kind: &str) -> &Queue {
        let usage = self.usage.as_ref().filter(|_| job_kinds::is_beside_usage(kind));
        let tables = self.tables.as_ref().filter(|_| job_kinds::is_beside_tables(kind));
        usage.or(tables).unwrap_or(&self.all)
    }
}

/// Serves until the future returned by `stop` completes, then removes the socket.
pub(crate) async fn serve<S>(control: Control, queues: Queues, stop: impl Fn() -> S) -> Result<()>
where
    S: Future<Output = ()> + Send + 'static,
{
    let clock = Arc::clone(queues.all.sql().clock());
    let Control { listener, folder } = control;
    let serving = axum::serve(listener, router(queues)).with_graceful_shutdown(stop());
    let late = async {
        stop().await;
        clock.sleep(STOP_TIME_MAX).await;
    };
    let served = tokio::select! {
        biased;
        served = serving.into_future() => served,
        // A client that sends nothing must not delay the stop.
        () = late => Ok(()),
    };
    socket::remove(&folder);
    served.map_err(|source| Error::Socket { doing: "serve", path: socket::path(&folder), source })
}

fn router(queues: Queues) -> Router {
    let clock = Arc::clone(queues.all.sql().clock());
    let limits = Limits { clock, requests: Arc::new(Semaphore::new(REQUESTS_MAX)) };
    Router::new()
        .route(Enqueue::PATH, post(change::<Enqueue>))
        .route(Cancel::PATH, post(change::<Cancel>))
        .route(Redrive::PATH, post(change::<Redrive>))
        .route(Purge::PATH, post(change::<Purge>))
        .route(Pause::PATH, post(change::<Pause>))
        .route(Resume::PATH, post(change::<Resume>))
        .fallback(async || error_response(StatusCode::NOT_FOUND, "no such path"))
        .method_not_allowed_fallback(async || {
            error_response(StatusCode::METHOD_NOT_ALLOWED, "use POST")
        })
        .layer(from_fn_with_state(limits, within_limits))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(queues)
}

async fn change<C: Change>(
    State(queues): State<Queues>,
    body: Result<Json<C>, JsonRejection>,
) -> Response {
    let Json(change) = match body {
        Ok(body) => body,
        Err(rejection) => return error_response(rejection.status(), &rejection.body_text()),
    };
    match change.apply(queues.of(change.kind())).await {
        Ok(outcome) => Json(outcome).into_response(),
        Err(error) => {
            let status = status(error.kind());
            if status.is_server_error() {
                let error = output::brief(&error.chain());
                tracing::warn!(path = C::PATH, error, "a change of jobs failed");
            }
            let error = Error::from(error);
            let hint = error.hint().map(str::to_owned);
            (
                status,
                Json(ErrorBody { error: output::brief(&logmill_io::error_chain(&error)), hint }),
            )
                .into_response()
        }
    }
}

/// Limits shared by all requests.
#[derive(Clone)]
struct Limits {
    clock: Arc<dyn Clock>,
    requests: Arc<Semaphore>,
}

async fn within_limits(State(limits): State<Limits>, request: Request, next: Next) -> Response {
    let run = async {
        // The semaphore is never closed, so a permit always comes.
        let _permit = limits.requests.acquire().await;
        next.run(request).await
    };
    tokio::select! {
        biased;
        response = run => response,
        () = limits.clock.sleep(REQUEST_TIME_MAX) => {
            let limit_s = REQUEST_TIME_MAX.as_secs();
            let error = format!("not completed within {limit_s} s; the change may or may not have happened");
            error_response(StatusCode::SERVICE_UNAVAILABLE, &error)
        }
    }
}

fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Transient => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Conflict | ErrorKind::Fenced => StatusCode::CONFLICT,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Corrupt | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn error_response(status: StatusCode, error: &str) -> Response {
    (status, Json(ErrorBody { error: error.to_owned(), hint: None })).into_response()
}
