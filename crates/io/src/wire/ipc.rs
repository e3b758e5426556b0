//! JSON over a Unix socket, as nodes offer it to local programs.
//!
//! A connection carries one request at a time; concurrent requests use several connections, and a few idle ones
//! are kept. A connection with any failure is dropped, so an answer cannot be mistaken for that of another
//! request.
//!
//! Guarantees: an answer is one JSON value, at most as large as allowed. Leaves to others: its meaning.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::endpoint::Endpoint;
use super::json_end::JsonEnd;
use super::{Limits, Wire, WireResponse, within};
use crate::clock::Clock;
use crate::error::{Error, Result};

const IDLE_MAX: usize = 8;

/// Buffer space reserved for each read.
const READ_BYTES: usize = 64 * 1024;

pub struct IpcWire {
    to: Endpoint,
    clock: Arc<dyn Clock>,
    idle: Mutex<Vec<UnixStream>>,
}

impl IpcWire {
    /// Does not connect yet.
    pub fn new(to: Endpoint, clock: Arc<dyn Clock>) -> Self {
        Self { to, clock, idle: Mutex::new(Vec::new()) }
    }

    async fn ask(&self, body: Bytes, limits: Limits) -> Result<WireResponse> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match idle {
            Some(stream) if is_open(&stream) => stream,
            _ => self.connect().await?,
        };
        let answer = self.talk(&mut stream, &body, limits).await?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(stream);
        }
        Ok(WireResponse { status: 200, retry_after: None, body: answer })
    }

    async fn connect(&self) -> Result<UnixStream> {
        let Some(path) = self.to.path() else {
            return Err(Error::invalid(format!("{} is not a Unix socket", self.to)));
        };
        UnixStream::connect(path).await.map_err(|source| self.failed("connect to", source))
    }

    async fn talk(&self, stream: &mut UnixStream, body: &[u8], limits: Limits) -> Result<Bytes> {
        stream.write_all(body).await.map_err(|source| self.failed("write to", source))?;
        stream.write_all(b"\n").await.map_err(|source| self.failed("write to", source))?;
        let mut answer = BytesMut::new();
        let mut end = JsonEnd::default();
        loop {
            answer.reserve(READ_BYTES);
            let before = answer.len();
            let read = stream.read_buf(&mut answer).await;
            if read.map_err(|source| self.failed("read from", source))? == 0 {
                let source = std::io::ErrorKind::UnexpectedEof.into();
                return Err(self.failed("read from", source));
            }
            if answer.len() > limits.bytes_max {
                return Err(Error::TooLarge {
                    what: self.to.place(),
                    limit_bytes: limits.bytes_max,
                });
            }
            if let Some(at) = end.find(&answer[before..]) {
                answer.truncate(before + at);
                return Ok(answer.freeze());
            }
        }
    }

    fn failed(&self, doing: &'static str, source: std::io::Error) -> Error {
        Error::Socket { doing, place: self.to.place(), source: Box::new(source) }
    }
}

/// Whether an idle connection is still open and has no unread bytes, except line ends after the last answer.
fn is_open(stream: &UnixStream) -> bool {
    let mut left = [0; 16];
    match stream.try_read(&mut left) {
        Ok(0) => false,
        Ok(read) => left[..read].iter().all(u8::is_ascii_whitespace),
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[async_trait]
impl Wire for IpcWire {
    async fn exchange(&self, body: Bytes, limits: Limits) -> Result<WireResponse> {
        within(&*self.clock, "send a request by ipc", limits.timeout, self.ask(body, limits)).await
    }
}

impl fmt::Debug for IpcWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpcWire({})", self.to)
    }
}
