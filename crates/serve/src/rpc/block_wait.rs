//! Short waits for blocks that a node has and that are not stored here yet.
//!
//! A node that mines instantly includes a transaction in a block before its sender asks for the receipt. Clients such
//! as ethers read the newest block number first and then wait for the next block: a client that got a stale number
//! waits in vain.
//!
//! Guarantees: waits are bounded, and there are none while nodes are unreachable or ingest is behind. Leaves to others:
//! ingest ([`Progress`]).
//!
//! [`Progress`]: logmill_pipeline::ingest::Progress

use std::time::Duration;

use logmill_chain::ChainSource;

use super::{Rpc, ServedChain};

/// Methods that submit a transaction.
pub(super) const SENDS: [&str; 2] = ["eth_sendRawTransaction", "eth_sendRawTransactionSync"];
/// How long the answer to a submitted transaction waits for new blocks to be stored.
const SEND_WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a call waits for a poll of the head that has just begun.
const LOOK_WAIT_MAX: Duration = Duration::from_millis(100);

impl Rpc {
    /// Waits until all blocks that the node has by now are stored, at most [`SEND_WAIT_MAX`]. This runs before the
    /// node's answer is returned, so that a client that submits a transaction here finds it in its block if the node
    /// mines instantly.
    pub(super) async fn wait_after_send(&self, served: &ServedChain, source: &dyn ChainSource) {
        let Some(progress) = served.status.progress() else { return };
        let looked = progress.next_look();
        source.nudge();
        tokio::select! {
            biased;
            () = looked => {}
            () = self.clock.sleep(SEND_WAIT_MAX) => {}
        }
    }

    /// If a node has just announced a block, or a poll of the head has just begun, waits until the new blocks are
    /// stored, at most [`LOOK_WAIT_MAX`].
    pub(super) async fn wait_for_announced_block(&self, served: &ServedChain) {
        let progress = served.status.progress();
        let under_way = progress.and_then(|progress| progress.look_under_way(LOOK_WAIT_MAX));
        if let Some(looked) = under_way {
            tokio::select! {
                biased;
                () = looked => {}
                () = self.clock.sleep(LOOK_WAIT_MAX) => {}
            }
        }
    }
}
