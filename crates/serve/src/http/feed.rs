//! The feed: `new_block` and `new_transaction` messages for every client of `/ws`.
//!
//! ```text
//!   changes of a chain ─▶ rendered once per block ─▶ a bounded channel ─▶ every socket
//! ```
//!
//! Guarantees: announced blocks are stored; a client that falls [`BLOCKS_KEPT`] blocks behind is notified and dropped.
//! Leaves to others: replaced blocks, which the feed does not announce; it only sends their successors.

use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use logmill_chain::render::BlockRenderer;
use logmill_chain::{Block, Outcome};
use logmill_pipeline::Chain;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::socket::Session;
use crate::rpc::subscriptions::SocketAction;

/// Number of blocks that a client may fall behind.
const BLOCKS_KEPT: usize = 256;

/// The messages of one block; `None` in place of blocks that the feed itself missed.
type Messages = Option<Arc<[Utf8Bytes]>>;

#[derive(Clone, Debug)]
pub(super) struct Feed {
    blocks: broadcast::Sender<Messages>,
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { blocks: broadcast::channel(BLOCKS_KEPT).0 }
    }

    pub(super) fn session(&self) -> FeedSession {
        FeedSession { blocks: self.blocks.subscribe() }
    }

    /// Runs until the chain ends. If the feed itself falls behind, its clients are dropped: they would miss blocks
    /// without noticing.
    pub(super) async fn run(&self, chain: &Chain) {
        let mut changes = chain.changes();
        loop {
            let change = match changes.recv().await {
                Ok(change) => change,
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "the feed fell behind and disconnects its clients");
                    let _ = self.blocks.send(None);
                    continue;
                }
                Err(RecvError::Closed) => return,
            };
            if self.blocks.receiver_count() == 0 {
                continue;
            }
            for block in &change.added {
                let block = Arc::clone(block);
                let messages = logmill_io::compute(move || messages(&block)).await;
                // It is fine if there is no receiver.
                let _ = self.blocks.send(Some(messages.into()));
            }
        }
    }
}

pub(super) struct FeedSession {
    blocks: broadcast::Receiver<Messages>,
}

impl Session for FeedSession {
    async fn receive(&mut self, _: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> SocketAction {
        match self.blocks.recv().await {
            Ok(Some(messages)) => SocketAction::Send(messages.to_vec()),
            Ok(None) => SocketAction::Close("the server skipped blocks: connect again"),
            Err(RecvError::Lagged(_)) => {
                SocketAction::Close("client too slow, blocks were skipped: connect again")
            }
            Err(RecvError::Closed) => SocketAction::Close("the chain is no longer served"),
        }
    }
}

fn messages(block: &Block) -> Vec<Utf8Bytes> {
    let timestamp = rfc3339(block.at.timestamp);
    let new_block = json!({
        "height": block.at.number,
        "id": block.at.hash,
        "timestamp": timestamp,
        "tx_count": block.listed_transactions(),
        "event_count": block.log_count(),
    });
    let mut messages = vec![message("new_block", &new_block)];
    let render = BlockRenderer::of(block).ok();
    for (position, transaction) in block.transactions.iter().enumerate() {
        let receipt = block.receipts.get(position);
        let outcome = receipt.map_or(Outcome::Unknown, |receipt| receipt.outcome);
        let mut payload = json!({
            "id": transaction.hash,
            "block_height": block.at.number,
            "status": "SEALED",
            "timestamp": timestamp,
        });
        // A sender that cannot be recovered is omitted, and so is an unknown outcome.
        let sender = render.as_ref().and_then(|render| render.transaction_view(position).ok());
        if let Some(from) = sender.and_then(|sender| sender.from) {
            payload["payer_address"] = json!(from);
        }
        match outcome {
            Outcome::Status(true) => payload["execution_status"] = json!("SUCCESS"),
            Outcome::Status(false) => {
                payload["execution_status"] = json!("FAILURE");
                payload["error_message"] = json!("execution reverted");
            }
            Outcome::StateRoot(_) | Outcome::Unknown => {}
        }
        messages.push(message("new_transaction", &payload));
    }
    messages
}

fn message(kind: &str, payload: &Value) -> Utf8Bytes {
    json!({"type": kind, "payload": payload}).to_string().into()
}

/// Seconds since 1970 as RFC 3339 text.
fn rfc3339(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.to_string())
}
