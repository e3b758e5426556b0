//! `eth_syncing`: how far the newest stored block is behind the chain, as its nodes report it.
//!
//! Guarantees: `false` means that the stored head is within the lag that readiness allows, or that no node has reported
//! a head; missing history does not count, because queries for it fail with their own error. Leaves to others:
//! notifications ([`super::subscriptions`]).

use serde_json::{Value, json};

use super::ServedChain;
use super::answer::Answer;
use super::error::RpcResult;

/// Progress of a chain that is behind its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncProgress {
    current: u64,
    highest: u64,
}

impl SyncProgress {
    /// Returns `None` if the chain has caught up, or no node has ever reported a head.
    pub(super) async fn of(served: &ServedChain, lag_max: u64) -> RpcResult<Option<Self>> {
        let Some(highest) = served.status.reported_head() else {
            return Ok(None);
        };
        let head = served.chain.view().await?.head();
        let current = head.map_or(0, |head| head.number);
        let is_behind = head.is_none() || highest.saturating_sub(current) > lag_max;
        Ok(is_behind.then_some(Self { current, highest }))
    }

    pub(super) fn json(self) -> Value {
        let number = |number: u64| format!("{number:#x}");
        json!({
            "startingBlock": "0x0",
            "currentBlock": number(self.current),
            "highestBlock": number(self.highest),
        })
    }
}

/// `eth_syncing`.
pub(super) async fn answer(served: &ServedChain, lag_max: u64) -> RpcResult<Answer> {
    match SyncProgress::of(served, lag_max).await? {
        Some(progress) => Answer::json(&progress.json()),
        None => Answer::json(&false),
    }
}
