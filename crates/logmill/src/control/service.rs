//! The server's end: one route per change, limits on all of them, one place that turns errors into answers.
//!
//! Guarantees: every answer is JSON; a request that takes too long is dropped and answered; after the stop
//! signal requests under way are answered, for a bounded time. Leaves to others: who may connect
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

use super::{Problem, REQUEST_BYTES_MAX, REQUEST_TIME_MAX, socket};
use crate::error::{Error, Result};
use crate::jobs::change::{Cancel, Change, Enqueue, Pause, Purge, Redrive, Resume};
use crate::output;
use crate::stores;

/// The most requests at a time; others wait, within their own time.
const REQUESTS_MAX: usize = 64;
/// How long a stop waits for requests under way.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// A socket that is listened on.
pub(crate) struct Control {
    listener: UnixListener,
    folder: PathBuf,
}

impl Control {
    /// Listens in a folder that this process has; requests wait until [`serve`].
    pub(crate) fn listen(folder: &DataFolder) -> Result<Self> {
        let listener = socket::listen(folder)?;
        Ok(Self { listener, folder: folder.path().to_path_buf() })
    }

    /// Where it listens.
    pub(crate) fn path(&self) -> PathBuf {
        socket::path(&self.folder)
    }
}

/// The queues that changes are made to.
#[derive(Clone)]
pub(crate) struct Queues {
    pub(crate) all: Queue,
    /// Jobs about usage, if they are in a database of their own.
    pub(crate) usage: Option<Queue>,
}

impl Queues {
    fn of(&self, kind: &str) -> &Queue {
        let usage = self.usage.as_ref().filter(|_| stores::meter::has_jobs_of(kind));
        usage.unwrap_or(&self.all)
    }
}

/// Serves until what `stop` gives completes, then takes the socket away.
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
        // A client that sends nothing must not hold up the stop.
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
        .fallback(async || problem(StatusCode::NOT_FOUND, "there is nothing here"))
        .method_not_allowed_fallback(async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "changes are sent with POST")
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
        Err(rejection) => return problem(rejection.status(), &rejection.body_text()),
    };
    match change.apply(queues.of(change.kind())).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => {
            let status = status(error.kind());
            if status.is_server_error() {
                let error = output::brief(&error.chain());
                tracing::warn!(path = C::PATH, error, "a change failed");
            }
            let error = Error::from(error);
            let hint = error.hint().map(str::to_owned);
            (status, Json(Problem { error: output::brief(&logmill_io::chain(&error)), hint }))
                .into_response()
        }
    }
}

/// What every request shares.
#[derive(Clone)]
struct Limits {
    clock: Arc<dyn Clock>,
    requests: Arc<Semaphore>,
}

async fn within_limits(State(limits): State<Limits>, request: Request, next: Next) -> Response {
    let run = async {
        // Never closed, so a permit always comes.
        let _permit = limits.requests.acquire().await;
        next.run(request).await
    };
    tokio::select! {
        biased;
        response = run => response,
        () = limits.clock.sleep(REQUEST_TIME_MAX) => {
            let said = format!("not done within {} s; a part may be", REQUEST_TIME_MAX.as_secs());
            problem(StatusCode::SERVICE_UNAVAILABLE, &said)
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

fn problem(status: StatusCode, error: &str) -> Response {
    (status, Json(Problem { error: error.to_owned(), hint: None })).into_response()
}
