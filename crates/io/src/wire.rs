//! Clients of remote servers: a request goes out, an answer comes in.
//!
//! - [`Endpoint`]: the address of a server, printed without its secrets.
//! - [`Wire`]: a server that answers a body with a body; [`HttpWire`] by HTTP, [`IpcWire`] by a Unix socket.
//! - [`Feed`]: a server that pushes texts; [`WebSocketFeed`].
//! - [`guarded`]: a client for URLs from untrusted sources.
//!
//! Guarantees: answers respect their [`Limits`] in size and time; no proxy is used, and no redirect is followed
//! except by [`guarded`]; no error contains the credentials, path or query of a URL. Leaves to others: what the
//! bodies mean, and retries.

mod endpoint;
pub mod guarded;
mod http;
mod ipc;
mod json_end;
mod web_socket;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::Clock;
use crate::error::{Error, Result};

pub use endpoint::{Endpoint, Scheme};
pub use guarded::{GuardedClient, GuardedSettings};
pub use http::{HttpClient, HttpWire};
pub use ipc::IpcWire;
pub use web_socket::WebSocketFeed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the body.
    pub bytes_max: usize,
    /// Time limit until the last byte.
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireResponse {
    /// HTTP status; 200 if the transport has none.
    pub status: u16,
    /// The server's `Retry-After`, as it was sent; it may be very long.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// A server that accepts JSON and returns JSON.
#[async_trait]
pub trait Wire: Send + Sync + fmt::Debug {
    /// Sends a body and returns the answer, whatever its status.
    async fn exchange(&self, body: Bytes, limits: Limits) -> Result<WireResponse>;
}

/// A server that pushes texts after a first message.
#[async_trait]
pub trait Feed: Send + Sync + fmt::Debug {
    /// Opens a new connection and sends `hello` on it.
    async fn open(&self, hello: String, limits: Limits) -> Result<Box<dyn TextStream>>;
}

#[async_trait]
pub trait TextStream: Send {
    /// Returns the next text; `None` once the connection is closed.
    async fn next(&mut self) -> Result<Option<Bytes>>;
}

async fn within<T>(
    clock: &dyn Clock,
    doing: &'static str,
    timeout: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        () = clock.sleep(timeout) => {
            let limit_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            Err(Error::TooSlow { doing, limit_ms })
        }
    }
}
