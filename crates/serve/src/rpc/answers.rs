//! Answers: runs the calls of a request one after the other and streams their results as they are rendered.
//!
//! ```text
//!   [ {"jsonrpc":"2.0","id":1,"result":[ log log log … ]} , {"jsonrpc":"2.0","id":2,"error":{…}} ]
//!   └────────────── a piece ──────────────┘└────────── a piece ──────────────┘
//! ```
//!
//! Guarantees: memory holds the results of one call at a time, and about one piece of the rendered logs; a request as
//! a whole has one deadline and one byte limit; an answer that has begun is completed. Leaves to others: running calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use finalized_log_index::Log;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{Answer, LogAnswer, log_bytes, write_log};
use super::error::{RpcError, RpcResult};
use super::request::{Call, Request};
use super::subscriptions::Subscriptions;
use super::{Rpc, ServedChain};

/// Approximate size of a streamed piece.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Upper estimate of the JSON around a result, without the id.
const ENVELOPE_BYTES: usize = 64;

/// Streams the answers to a request.
#[derive(Debug)]
pub(crate) struct Answers {
    rpc: Arc<Rpc>,
    served: Arc<ServedChain>,
    calls: std::vec::IntoIter<Call>,
    is_batch: bool,
    /// Whether an answer was written already.
    has_begun: bool,
    has_ended: bool,
    /// The logs being written, the position of the next one, and the JSON after the last.
    under_way: Option<(Vec<Log>, usize, Vec<u8>)>,
    bytes_max: usize,
    bytes_left: usize,
    /// On the monotonic clock.
    deadline: Duration,
    /// Held until everything is sent, because results held for a slow client count against the limit too.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Answers {
    /// Answers `request` in at most `bytes_max` bytes. The permit is held until everything is sent.
    pub(crate) fn new(
        rpc: Arc<Rpc>,
        served: Arc<ServedChain>,
        request: Request,
        bytes_max: usize,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let deadline = rpc.clock.monotonic() + rpc.limits.timeout;
        Self {
            rpc,
            served,
            calls: request.calls.into_iter(),
            is_batch: request.is_batch,
            has_begun: false,
            has_ended: false,
            under_way: None,
            bytes_max,
            bytes_left: bytes_max,
            deadline,
            _permit: permit,
        }
    }

    /// Returns the next piece, or `None` after the last. A request with only notifications has no pieces.
    pub(crate) async fn next(&mut self, mut session: Option<&mut Subscriptions>) -> Option<Bytes> {
        let mut out = Vec::new();
        while out.len() < PIECE_BYTES && !self.has_ended {
            if let Some((logs, position, after)) = &mut self.under_way {
                write_logs(&mut out, logs, position);
                if *position == logs.len() {
                    out.extend_from_slice(after);
                    self.under_way = None;
                }
                continue;
            }
            match self.calls.next() {
                Some(call) => self.answer(call, &mut out, session.as_deref_mut()).await,
                None => {
                    self.has_ended = true;
                    if self.is_batch && self.has_begun {
                        out.push(b']');
                    }
                }
            }
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    async fn answer(&mut self, call: Call, out: &mut Vec<u8>, session: Option<&mut Subscriptions>) {
        let outcome = match call.parsed {
            Ok(call) => self.run(&call.method, call.params.as_deref(), session).await,
            Err(error) => Err(error),
        };
        // A notification is run for its effect and gets no answer, not even an error.
        let Some(id) = call.id else { return };
        if self.is_batch {
            out.push(if self.has_begun { b',' } else { b'[' });
        }
        self.has_begun = true;
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(id.as_bytes());
        let bytes = id.len() + ENVELOPE_BYTES;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        match outcome.and_then(|answer| self.within_limit(answer)) {
            Ok(Answer::Text(text)) => {
                out.extend_from_slice(b",\"result\":");
                out.extend_from_slice(&text);
                out.push(b'}');
            }
            Ok(Answer::Logs(LogAnswer { before, logs, mut after })) => {
                out.extend_from_slice(b",\"result\":");
                out.extend_from_slice(&before);
                out.push(b'[');
                after.splice(..0, *b"]");
                after.push(b'}');
                self.under_way = Some((logs, 0, after));
            }
            Err(error) => {
                out.extend_from_slice(b",\"error\":");
                error.write(out);
                out.push(b'}');
            }
        }
    }

    async fn run(
        &self,
        method: &str,
        params: Option<&serde_json::value::RawValue>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let left = self.deadline.saturating_sub(self.rpc.clock.monotonic());
        if left.is_zero() {
            return Err(RpcError::timeout());
        }
        tokio::select! {
            biased;
            answer = self.rpc.call(&self.served, method, params, session) => answer,
            () = self.rpc.clock.sleep(left) => Err(RpcError::timeout()),
        }
    }

    /// Rejects an answer that exceeds the remaining bytes of the request.
    fn within_limit(&mut self, answer: Answer) -> RpcResult<Answer> {
        let bytes = answer.bytes_max();
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                Ok(answer)
            }
            None => Err(self.too_large(&answer)),
        }
    }

    fn too_large(&self, answer: &Answer) -> RpcError {
        let max = self.bytes_max;
        let limit = u64::try_from(max).unwrap_or(u64::MAX);
        let why = format!("query exceeds max response size {max}");
        let Answer::Logs(LogAnswer { logs, .. }) = answer else {
            return RpcError::limit(why, limit);
        };
        // Suggest the range that ends before the block that exceeds the limit.
        let mut bytes = 0;
        let over = logs.iter().find(|log| {
            bytes += log_bytes(log);
            bytes > self.bytes_left
        });
        let (Some(first), Some(over)) = (logs.first(), over) else {
            return RpcError::limit(why, limit);
        };
        if over.block_number <= first.block_number {
            return RpcError::limit(why, limit);
        }
        let (from, to) = (first.block_number, over.block_number - 1);
        let why = format!("{why}, retry with the range {from}-{to}");
        RpcError::limit_of_range(why, limit, from, to, "bytes")
    }
}

fn write_logs(out: &mut Vec<u8>, logs: &[Log], position: &mut usize) {
    while let Some(log) = logs.get(*position) {
        if *position > 0 {
            out.push(b',');
        }
        write_log(out, log, false);
        *position += 1;
        if out.len() >= PIECE_BYTES {
            return;
        }
    }
}
