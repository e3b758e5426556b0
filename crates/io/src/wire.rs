//! Clients of other people's servers: a request goes out, an answer comes in.
//!
//! - [`Endpoint`]: where a server is; printed without its secrets.
//! - [`Wire`]: one server that takes a body and gives one back; [`HttpWire`] by HTTP, [`IpcWire`] by a Unix socket.
//! - [`Feed`]: one server that sends texts by itself; [`WebSocketFeed`].
//! - [`guarded`]: a client for addresses that strangers chose.
//!
//! Guarantees: no answer is larger or later than its [`Limits`] say, no proxy and (but for [`guarded`]) no redirect
//! is followed, and no error carries credentials, path or query of an address. Leaves to others: what the bodies
//! mean, trying again.

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

/// How large and how late an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of its body.
    pub bytes_max: usize,
    /// The longest until its last byte.
    pub timeout: Duration,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP; 200 where there is none.
    pub status: u16,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// A server that takes JSON and gives JSON.
#[async_trait]
pub trait Wire: Send + Sync + fmt::Debug {
    /// Sends a body and gives what came back, whatever its status.
    async fn exchange(&self, body: Bytes, limits: Limits) -> Result<Answer>;
}

/// A server that sends texts by itself, once asked.
#[async_trait]
pub trait Feed: Send + Sync + fmt::Debug {
    /// Opens a new connection, and says `hello` on it.
    async fn open(&self, hello: String, limits: Limits) -> Result<Box<dyn Texts>>;
}

/// An open connection of a [`Feed`].
#[async_trait]
pub trait Texts: Send {
    /// The next text; none once the connection is closed.
    async fn next(&mut self) -> Result<Option<Bytes>>;
}

/// Races work against its timeout.
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
