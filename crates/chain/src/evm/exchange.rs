//! Handles HTTP responses and errors of a node before the answers are read.
//!
//! Guarantees: distinguishes a node that refuses a batch from one that refuses service, as far as the response shows
//! it. Leaves to others: retrying.

use std::sync::Arc;

use bytes::Bytes;
use logmill_io::wire::WireResponse;
use logmill_io::{Error as IoError, compute};

use super::health::RETRY_AFTER_MAX;
use super::node_error::{BatchLimit, NodeError};
use super::rpc::{self, CallResult};

/// Longer bodies are not checked for a refusal of the batch here, but read with all other answers.
const REFUSAL_BYTES_MAX: usize = 1024;

/// Answers up to this size are parsed in place; larger ones off the async threads.
const IN_PLACE_BYTES_MAX: usize = 16 * 1024;

/// Parses the answers in bodies; each body comes with its number of calls.
pub(super) async fn read_bodies<T: Send + 'static>(
    bodies: Vec<(Bytes, usize)>,
    read: Arc<impl Fn(&[CallResult<'_>]) -> Result<T, NodeError> + Send + Sync + 'static>,
) -> Result<T, NodeError> {
    let bytes: usize = bodies.iter().map(|(body, _)| body.len()).sum();
    let work = move || {
        let mut outcomes = Vec::new();
        for (body, calls) in &bodies {
            outcomes.extend(rpc::answers(body, *calls)?);
        }
        read(&outcomes)
    };
    if bytes <= IN_PLACE_BYTES_MAX { work() } else { compute(work).await }
}

/// Classifies an error of a request with `calls` calls.
pub(super) fn unanswered(error: IoError, calls: usize) -> NodeError {
    match NodeError::from(error) {
        NodeError::TooMuch { why, .. } if calls > 1 => {
            NodeError::BatchRefused { why, because: BatchLimit::Bytes }
        }
        other => other,
    }
}

/// Returns the body of a response to `calls` calls, unless its status is an error.
pub(super) fn accepted(answer: WireResponse, calls: usize) -> Result<Bytes, NodeError> {
    let status = answer.status;
    let mut why = format!("http status {status}");
    if let Some(wait) = answer.retry_after {
        why = format!("{why}, Retry-After {} s", wait.as_secs());
        if wait > RETRY_AFTER_MAX {
            why = format!("{why}, of which at most {} s are waited", RETRY_AFTER_MAX.as_secs());
        }
    }
    // Many nodes send a JSON-RPC error with an HTTP error status, and its message says more.
    let speaks = matches!(answer.body.trim_ascii_start().first(), Some(b'{' | b'['));
    match status {
        200..=299 => taken(answer.body, calls),
        429 => Err(NodeError::Failed { why, retry_after: answer.retry_after }),
        413 if calls > 1 => Err(NodeError::BatchRefused { why, because: BatchLimit::Bytes }),
        413 => Err(NodeError::TooMuch { why, better: None }),
        408 | 504 | 524 => Err(NodeError::Slow { why }),
        400 | 404 | 405 | 422 | 500 if speaks => taken(answer.body, calls),
        403 if speaks && calls > 1 => taken(answer.body, calls),
        // Gateways without batches, or with a lower limit, refuse them like this; single calls will show whether that
        // is why.
        400 | 403 | 404 | 405 | 406 | 415 | 422 | 501 if calls > 1 => {
            Err(NodeError::BatchRefused { why, because: BatchLimit::Calls })
        }
        401 | 403 => Err(NodeError::failed(format!("{why}: it does not accept our key"))),
        _ => Err(NodeError::Failed { why, retry_after: answer.retry_after }),
    }
}

/// Returns the body unless it refuses the batch, so that no further batches of that size are sent.
fn taken(body: Bytes, calls: usize) -> Result<Bytes, NodeError> {
    if calls > 1 && body.len() <= REFUSAL_BYTES_MAX {
        rpc::answers(&body, calls)?;
    }
    Ok(body)
}

/// Whether the connection broke or was not made: a different node may be at the address now.
pub(super) fn is_broken(error: &logmill_io::Error) -> bool {
    !matches!(error, logmill_io::Error::TooSlow { .. } | logmill_io::Error::TooLarge { .. })
}
