//! The control socket: how a command reaches the server that holds the data folder.
//!
//! `control.sock` in the data folder, HTTP/1 with JSON, one endpoint per change under `/api/v1/jobs/`:
//!
//! ```text
//!   logmill jobs cancel … ── POST /api/v1/jobs/cancel {"kind":…,"key":…} ──▶ server ──▶ queue
//!                         ◀── 200 {"cancelled":true} | 4xx, 5xx {"error":…} ──
//! ```
//!
//! Guarantees: only the server's own user can connect (mode 0600 before it listens). Bodies, responses, time and
//! concurrent requests are bounded. Leaves to others: what a change does ([`change`]).

pub(crate) mod change;
mod client;
mod service;
mod socket;

pub(crate) use client::Client;
pub(crate) use service::{Control, Queues, serve};

use std::path::Path;
use std::time::Duration;

use logmill_work::queue::PAYLOAD_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Maximum request size: a payload and its envelope.
const REQUEST_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (64 << 10);
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum time that the server works on one request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a client waits for a response: longer than the server's limit, so that it receives the server's
/// timeout error.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(65);

/// Whether a server listens in a folder.
pub(crate) async fn is_served(folder: &Path) -> bool {
    socket::connect(folder).await.is_ok()
}

/// Body of a response that is not 200.
#[derive(Debug, Serialize, Deserialize)]
struct ErrorBody {
    /// Error message with its causes.
    error: String,
    /// What to do about it.
    hint: Option<String>,
}
