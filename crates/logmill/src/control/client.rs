//! The client: one request over one connection, within a time limit.
//!
//! Guarantees: a response is read completely and within a size limit, or the error says that the change may
//! have happened. Leaves to others: whether there is a server at all ([`crate::commands::jobs::Jobs::open`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use logmill_io::{Clock, Tasks};
use tokio::net::UnixStream;

use super::change::Change;
use super::{ANSWER_BYTES_MAX, ANSWER_TIME_MAX, ErrorBody, socket};
use crate::error::{Error, Result};

/// Connection to the server of a data folder.
pub(crate) struct Client {
    stream: UnixStream,
    path: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Client {
    /// Connects; fails at once if no server listens.
    pub(crate) async fn connect(folder: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        let stream = socket::connect(folder).await?;
        Ok(Self { stream, path: socket::path(folder), clock })
    }

    /// Asks the server to make a change.
    pub(crate) async fn send<C: Change>(self, change: &C) -> Result<C::Outcome> {
        let clock = Arc::clone(&self.clock);
        tokio::select! {
            biased;
            outcome = self.exchange(change) => outcome,
            () = clock.sleep(ANSWER_TIME_MAX) => {
                let waited_ms = u64::try_from(ANSWER_TIME_MAX.as_millis()).unwrap_or(u64::MAX);
                Err(Error::NoAnswerInTime { waited_ms })
            }
        }
    }

    async fn exchange<C: Change>(self, change: &C) -> Result<C::Outcome> {
        let Self { stream, path, .. } = self;
        let failed = |source| Error::Http { path: path.clone(), source };
        let body = serde_json::to_vec(change).map_err(garbled)?;
        let request = Request::post(C::PATH)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(garbled)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // Ends with this function; a broken connection shows in the response.
        let mut driver = Tasks::new();
        driver.spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| Error::Garbled { what: error.to_string() })?.to_bytes();
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(garbled);
        }
        let problem: ErrorBody = serde_json::from_slice(&body)
            .map_err(|error| Error::Garbled { what: format!("status {status}: {error}") })?;
        Err(Error::Refused { message: problem.error, hint: problem.hint })
    }
}

fn garbled(error: impl std::error::Error) -> Error {
    Error::Garbled { what: error.to_string() }
}
