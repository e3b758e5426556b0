//! WebSockets: one loop for all sessions, such as JSON-RPC with subscriptions and the feed of blocks.
//!
//! Guarantees: the close frame carries the reason if the client still reads; a lost client is detected by its silence.
//! A message waits until the previous one is sent, so nothing accumulates here. What accumulates is the chain's own
//! bounded stream of changes, and falling behind in it ends the socket. Leaves to others: a client that does not read
//! ([`super::connection`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use futures::SinkExt;
use logmill_io::{Clock, in_crowd};
use tokio::sync::{Semaphore, watch};

use super::connection::stop_requested;
use crate::rpc::subscriptions::{SocketAction, Subscriptions};
use crate::rpc::{Rpc, ServedChain};

/// Idle time after which a client is pinged; after the same time again it counts as lost.
const PING_WAIT: Duration = Duration::from_secs(30);
/// Maximum size of an answer on a WebSocket, which is held in memory as a whole.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// The server side of a conversation.
pub(super) trait Session: Send {
    /// Answers a message; `None` if there is nothing to send.
    fn receive(&mut self, text: Bytes) -> impl Future<Output = Option<Utf8Bytes>> + Send;

    /// Waits for a message that the session sends by itself. Cancellation safe.
    fn next(&mut self) -> impl Future<Output = SocketAction> + Send;
}

/// Runs a session until either side ends it, on a runtime where sockets delay only each other.
pub(super) async fn run_session(
    socket: WebSocket,
    session: impl Session + 'static,
    clock: Arc<dyn Clock>,
    stop: watch::Receiver<bool>,
) {
    in_crowd(run_session_here(socket, session, clock, stop)).await;
}

async fn run_session_here(
    mut socket: WebSocket,
    mut session: impl Session,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    metrics::gauge!("logmill_websockets").increment(1);
    if let Some((code, why)) = exchange_messages(&mut socket, &mut session, &clock, &mut stop).await
    {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(why) };
        // A client that is gone does not receive it.
        let _ = socket.send(Message::Close(Some(frame))).await;
    }
    metrics::gauge!("logmill_websockets").decrement(1);
}

/// Returns why the server ends the session; `None` if the client did.
async fn exchange_messages(
    socket: &mut WebSocket,
    session: &mut impl Session,
    clock: &Arc<dyn Clock>,
    stop: &mut watch::Receiver<bool>,
) -> Option<(u16, &'static str)> {
    let mut is_silent = false;
    loop {
        tokio::select! {
            biased;
            () = stop_requested(stop) => {
                return Some((close_code::AWAY, "the server is stopping"));
            }
            received = socket.recv() => {
                is_silent = false;
                let text = match received? {
                    Ok(Message::Text(text)) => Bytes::from(text),
                    Ok(Message::Binary(bytes)) => bytes,
                    Ok(Message::Ping(_) | Message::Pong(_)) => continue,
                    Ok(Message::Close(_)) => return None,
                    Err(_) => return Some((close_code::PROTOCOL, "invalid frame, or message too large")),
                };
                if let Some(answer) = session.receive(text).await {
                    socket.send(Message::Text(answer)).await.ok()?;
                }
            }
            next = session.next() => match next {
                SocketAction::Send(messages) => {
                    // One write to the socket for all messages.
                    for message in messages {
                        socket.feed(Message::Text(message)).await.ok()?;
                    }
                    socket.flush().await.ok()?;
                }
                SocketAction::Close(why) => {
                    metrics::counter!("logmill_websockets_dropped_total").increment(1);
                    return Some((close_code::POLICY, why));
                }
            },
            () = clock.sleep(PING_WAIT) => {
                if is_silent {
                    return Some((close_code::POLICY, "no response to a ping"));
                }
                is_silent = true;
                socket.send(Message::Ping(Bytes::new())).await.ok()?;
            }
        }
    }
}

pub(super) struct RpcSession {
    rpc: Arc<Rpc>,
    served: Arc<ServedChain>,
    requests: Arc<Semaphore>,
    subscriptions: Subscriptions,
}

impl RpcSession {
    pub(super) fn new(rpc: Arc<Rpc>, served: Arc<ServedChain>, requests: Arc<Semaphore>) -> Self {
        let subscriptions = Subscriptions::new(&rpc, Arc::clone(&served));
        Self { rpc, served, requests, subscriptions }
    }
}

impl Session for RpcSession {
    /// Returns the answer as one message, because a WebSocket frame cannot be sent in pieces here.
    async fn receive(&mut self, text: Bytes) -> Option<Utf8Bytes> {
        let bytes_max = self.rpc.limits().max_response_bytes.min(ANSWER_BYTES_MAX);
        let answers = self.rpc.answers(&self.served, &self.requests, &text, bytes_max).await;
        let mut answers = match answers {
            Ok(answers) => answers,
            Err(error) => return Some(error.answer().into()),
        };
        let mut whole = Vec::new();
        while let Some(piece) = answers.next(Some(&mut self.subscriptions)).await {
            whole.extend_from_slice(&piece);
        }
        if whole.is_empty() {
            return None;
        }
        Utf8Bytes::try_from(whole).ok()
    }

    async fn next(&mut self) -> SocketAction {
        self.subscriptions.next().await
    }
}

#[cfg(test)]
mod tests;
