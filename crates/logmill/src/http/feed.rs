//! The feed: `new_block` and `new_transaction` messages for everybody who connects to `/ws`.
//!
//! ```text
//!   changes of a chain ─▶ rendered once per block ─▶ a bounded channel ─▶ every socket
//! ```
//!
//! Guarantees: what is told is stored; a client that falls [`BLOCKS_KEPT`] blocks behind is told so and dropped.
//! Leaves to others: blocks that were replaced, of which the feed does not tell: their successors come.

use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use logmill_chain::render::Render;
use logmill_chain::{Block, Outcome};
use logmill_pipeline::Chain;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::socket::Session;
use crate::rpc::subscriptions::Next;

/// Blocks that a client may be behind.
const BLOCKS_KEPT: usize = 256;

/// The messages of one block; none in place of blocks that the feed itself has missed.
type Messages = Option<Arc<[Utf8Bytes]>>;

/// The feed of one chain.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    blocks: broadcast::Sender<Messages>,
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { blocks: broadcast::channel(BLOCKS_KEPT).0 }
    }

    /// A client of it.
    pub(super) fn session(&self) -> FeedSession {
        FeedSession { blocks: self.blocks.subscribe() }
    }

    /// Feeds until the chain ends. If the feed itself falls behind, its clients are dropped: they would miss blocks
    /// unknowingly.
    pub(super) async fn run(&self, chain: &Chain) {
        let mut changes = chain.changes();
        loop {
            let change = match changes.recv().await {
                Ok(change) => change,
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "the feed fell behind");
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
                // Nobody listening is fine.
                let _ = self.blocks.send(Some(messages.into()));
            }
        }
    }
}

/// One client of a feed.
pub(super) struct FeedSession {
    blocks: broadcast::Receiver<Messages>,
}

impl Session for FeedSession {
    async fn hear(&mut self, _: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> Next {
        match self.blocks.recv().await {
            Ok(Some(messages)) => Next::Send(messages.to_vec()),
            Ok(None) => Next::Close("blocks were lost on the way: connect again"),
            Err(RecvError::Lagged(_)) => Next::Close("too slow: blocks were lost"),
            Err(RecvError::Closed) => Next::Close("the chain is not served any more"),
        }
    }
}

fn messages(block: &Block) -> Vec<Utf8Bytes> {
    let timestamp = moment(block.at.timestamp);
    let new_block = json!({
        "height": block.at.number,
        "id": block.at.hash,
        "timestamp": timestamp,
        "tx_count": block.transactions.len(),
        "event_count": block.log_count(),
    });
    let mut messages = vec![message("new_block", &new_block)];
    let render = Render::of(block).ok();
    for (position, transaction) in block.transactions.iter().enumerate() {
        let receipt = block.receipts.get(position);
        let outcome = receipt.map_or(Outcome::Unknown, |receipt| receipt.outcome);
        let mut payload = json!({
            "id": transaction.hash,
            "block_height": block.at.number,
            "status": "SEALED",
            "timestamp": timestamp,
        });
        // A sender that can not be worked out is left out, as is an outcome that nobody knows.
        let sender = render.as_ref().and_then(|render| render.sent(position).ok());
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

/// Seconds since 1970 as people and their libraries write it.
fn moment(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    moment.map_or_else(|| seconds.to_string(), |moment| moment.to_string())
}
