//! Rollback: the nodes report a head that is a lower block of our own branch.
//!
//! Either a node lags, or blocks are gone. They are considered gone, and leave the tip in one commit, after
//! [`LOOKS_BEFORE`] consecutive looks that each find the head below ours, on our branch, and no node with a block at
//! our height. Any other result resets the count, so that lagging nodes, even several behind one address, do not move
//! the chain back and forth.
//!
//! Guarantees: never removes a finalized block, nor more than `max_reorg_depth` blocks: those stay, and readiness
//! reports that the head went back. Leaves to others: diverging branches ([`Forward::reorganize`]).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alloy_primitives::B256;
use logmill_chain::{BlockRef, Heads};

use super::{Forward, Look};
use crate::error::Result;

/// Number of consecutive looks that must find our blocks gone.
const LOOKS_BEFORE: u32 = 5;

/// Time between two such looks, unless a new head is announced earlier.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Maximum wait for resting nodes in one look.
const ASK_MAX: Duration = Duration::from_secs(2);

/// How often in a row our newest block was not found.
#[derive(Debug, Default)]
pub(super) struct Losses {
    state: Mutex<(B256, u32)>,
}

impl Losses {
    /// Counts one more look that did not find this block; returns the number of such looks in a row.
    fn add(&self, hash: B256) -> u32 {
        let mut state = self.state();
        let (lost, looks) = *state;
        *state = (hash, if lost == hash { looks.saturating_add(1) } else { 1 });
        state.1
    }

    /// Resets the count.
    fn forget(&self) {
        self.state().1 = 0;
    }

    fn state(&self) -> MutexGuard<'_, (B256, u32)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forward {
    /// Handles a head that is below ours, on our branch.
    pub(super) async fn shortened(&self, ours: BlockRef, heads: &Heads) -> Result<Look> {
        let head = heads.latest.number;
        let finalized = self.chain.view().await?.finalized().map(|at| at.number);
        let lost_final = finalized.filter(|number| *number > head);
        let kept_to = lost_final.unwrap_or(head);
        let depth = ours.number - kept_to;
        if depth > self.settings.max_reorg_depth || !self.is_gone(ours).await {
            self.forget_losses();
            self.progress.set_stalled(None);
            return Ok(Look::Nothing);
        }
        if self.losses.add(ours.hash) < LOOKS_BEFORE {
            return Ok(Look::Doubtful);
        }
        let chain = self.chain.chain_id();
        if self.progress.set_lost_final(lost_final)
            && let Some(finalized) = lost_final
        {
            tracing::warn!(
                chain,
                head,
                finalized,
                "the head went back below a final block that no node has: final blocks are kept"
            );
        }
        if depth == 0 {
            return Ok(Look::Nothing);
        }
        self.losses.forget();
        let tip = self.chain.shared.tip.now();
        let kept = tip.blocks.iter().filter(|block| block.at.number <= kept_to).cloned().collect();
        tracing::warn!(chain, head, depth, "the head went back: no node has the blocks above it");
        self.put_tip(kept, heads).await?;
        self.arrivals.forget_above(kept_to);
        self.progress.count_reorg(depth);
        Ok(Look::Saved)
    }

    /// Records that our newest block is not gone.
    pub(super) fn forget_losses(&self) {
        self.losses.forget();
        self.progress.set_lost_final(None);
    }

    /// Whether the nodes answer that no block of this height exists. Nodes that do not answer do not count.
    async fn is_gone(&self, ours: BlockRef) -> bool {
        let asked = self.source.blocks(ours.number..ours.number + 1);
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            () = self.clock.sleep(ASK_MAX) => return false,
        };
        matches!(answer, Err(logmill_chain::Error::NotYet { .. }))
    }

    /// Records that nodes disagree: one reported another branch, and the next returned the stored block.
    pub(super) fn disagreed(&self, number: u64) -> Look {
        self.progress.set_last_error(format!("the nodes disagree on block {number}"));
        Look::Unsure
    }
}
