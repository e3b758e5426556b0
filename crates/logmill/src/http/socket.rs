//! WebSockets: one loop for both kinds, JSON-RPC with its subscriptions, and the feed of blocks.
//!
//! Guarantees: whatever ends a socket is said in its closing frame, where the client still listens; a client that is
//! gone is noticed by its silence. A message waits for the one before it to be sent, so nothing piles up here: what
//! piles up is the chain's own bounded stream of changes, and falling behind in it ends the socket. Leaves to others:
//! a client that does not read ([`super::connection`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use logmill_io::Clock;
use tokio::sync::{Semaphore, watch};

use super::connection::told;
use crate::rpc::subscriptions::{Next, Subscriptions};
use crate::rpc::{Rpc, Served};

/// How often a silent client is asked whether it is there; after as long again it is taken for gone.
const PING_WAIT: Duration = Duration::from_secs(30);
/// The largest answer on a WebSocket, which is held whole.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// One side of a conversation.
pub(super) trait Session: Send {
    /// Answers a message; none if there is nothing to say.
    fn hear(&mut self, text: Bytes) -> impl Future<Output = Option<Utf8Bytes>> + Send;

    /// Waits for something to say by itself. Nothing is lost if it is given up while waiting.
    fn next(&mut self) -> impl Future<Output = Next> + Send;
}

/// Talks until one side ends it.
pub(super) async fn talk(
    mut socket: WebSocket,
    mut session: impl Session,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    metrics::gauge!("logmill_websockets").increment(1);
    if let Some((code, why)) = converse(&mut socket, &mut session, &clock, &mut stop).await {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(why) };
        // Who is gone does not hear it.
        let _ = socket.send(Message::Close(Some(frame))).await;
    }
    metrics::gauge!("logmill_websockets").decrement(1);
}

/// Why we end it; none if the client has.
async fn converse(
    socket: &mut WebSocket,
    session: &mut impl Session,
    clock: &Arc<dyn Clock>,
    stop: &mut watch::Receiver<bool>,
) -> Option<(u16, &'static str)> {
    let mut is_silent = false;
    loop {
        tokio::select! {
            biased;
            () = told(stop) => {
                return Some((close_code::AWAY, "the server stops"));
            }
            heard = socket.recv() => {
                is_silent = false;
                let text = match heard? {
                    Ok(Message::Text(text)) => Bytes::from(text),
                    Ok(Message::Binary(bytes)) => bytes,
                    Ok(Message::Ping(_) | Message::Pong(_)) => continue,
                    Ok(Message::Close(_)) => return None,
                    Err(_) => return Some((close_code::PROTOCOL, "not understood, or too large")),
                };
                if let Some(answer) = session.hear(text).await {
                    socket.send(Message::Text(answer)).await.ok()?;
                }
            }
            next = session.next() => match next {
                Next::Send(messages) => {
                    for message in messages {
                        socket.send(Message::Text(message)).await.ok()?;
                    }
                }
                Next::Close(why) => {
                    metrics::counter!("logmill_websockets_dropped_total").increment(1);
                    return Some((close_code::POLICY, why));
                }
            },
            () = clock.sleep(PING_WAIT) => {
                if is_silent {
                    return Some((close_code::POLICY, "no answer to a ping"));
                }
                is_silent = true;
                socket.send(Message::Ping(Bytes::new())).await.ok()?;
            }
        }
    }
}

/// JSON-RPC over a WebSocket.
pub(super) struct RpcSession {
    rpc: Arc<Rpc>,
    served: Arc<Served>,
    requests: Arc<Semaphore>,
    subscriptions: Subscriptions,
}

impl RpcSession {
    pub(super) fn new(rpc: Arc<Rpc>, served: Arc<Served>, requests: Arc<Semaphore>) -> Self {
        let subscriptions = Subscriptions::new(served.chain.clone());
        Self { rpc, served, requests, subscriptions }
    }
}

impl Session for RpcSession {
    /// The answer as one message: a frame of a WebSocket can not be sent in pieces here.
    async fn hear(&mut self, text: Bytes) -> Option<Utf8Bytes> {
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

    async fn next(&mut self) -> Next {
        self.subscriptions.next().await
    }
}
