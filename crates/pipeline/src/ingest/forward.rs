//! The forward ingester (`main_ingester`): follows the head.
//!
//! One step asks for the heads, fetches the missing blocks and saves them:
//!
//! - Blocks that are already final go to the index directly, many to a commit.
//! - Others form the tip. After a reorganization the common ancestor is searched, and the tip above it is replaced in
//!   one commit.
//! - Blocks of the tip that become final go to the index, and leave the tip after that.
//!
//! Guarantees: the tip always links to the index; a reorganization is one commit; one that is deeper than
//! `max_reorg_depth` or reaches below a finalized block stops the ingester with an error that says so. Leaves to
//! others: holding the writer lease, sealing ([`Writer::maintain_always`]).

mod fetch;
mod rollback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use finalized_log_index::{FinalizedBlock, Writer};
use logmill_chain::{Block, BlockRef, ChainSource, Heads};
use logmill_io::{Clock, ErrorKind};

use super::arrivals::Arrivals;
use super::{IngestSettings, Progress};
use crate::block::to_finalized;
use crate::chain::{ANNOUNCE_WITHIN, Chain, Change};
use crate::error::{Error, Result};
use crate::senders;
use rollback::{LOOK_AGAIN, Losses};

/// Maximum number of blocks that one step of the search for the common ancestor fetches.
const LOOK_BACK_MAX: u64 = 64;

/// How often in a row indexing final blocks may be postponed in favour of new blocks.
const DEFERRED_MAX: u32 = 8;

#[derive(Debug)]
pub struct Forward {
    chain: Chain,
    source: Arc<dyn ChainSource>,
    writer: Arc<Writer>,
    settings: IngestSettings,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
    arrivals: Arrivals,
    losses: Losses,
    /// How often in a row indexing has been postponed.
    deferred: AtomicU32,
}

/// Result of one look at the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Our branch is the chain's, and the stored blocks changed.
    Saved,
    /// Our branch is the chain's; there are no more blocks, or no room for them.
    Nothing,
    /// We switched to another branch; the next look tells whether it is still the chain's.
    Switched,
    /// The chain changed during the look, or nodes disagree: our branch may be dead.
    Unsure,
    /// The newest stored blocks may be gone.
    Doubtful,
}

/// What to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There are more blocks: continue at once.
    Behind,
    /// Everything that the nodes have is stored.
    CaughtUp,
    /// The chain changed meanwhile: look again after the poll interval.
    Again,
    /// The newest blocks may be gone: look again soon.
    Soon,
}

impl Forward {
    pub fn new(
        chain: Chain,
        source: Arc<dyn ChainSource>,
        writer: Arc<Writer>,
        settings: IngestSettings,
        progress: Arc<Progress>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (arrivals, losses, deferred) = Default::default();
        Self { chain, source, writer, settings, progress, clock, arrivals, losses, deferred }
    }

    /// Follows the head for as long as it is polled; returns an error that a retry would not solve. Damaged blocks are
    /// not such an error: they may be repaired while we wait.
    pub async fn run(&self) -> Result<std::convert::Infallible> {
        loop {
            let (look, poll) = (self.progress.begin_look(), self.settings.poll);
            match self.step().await {
                Ok(Step::Behind) => {}
                Ok(step @ (Step::CaughtUp | Step::Again)) => {
                    self.progress.end_look(look, step == Step::CaughtUp);
                    self.source.changed(poll).await;
                }
                Ok(Step::Soon) => self.source.changed(LOOK_AGAIN.min(poll)).await,
                Err(error) if ends(&error) => return Err(error),
                Err(error) if is_on_its_way(&error) => {
                    let (chain, text) = (self.chain.chain_id(), logmill_io::error_chain(&error));
                    tracing::debug!(chain, error = text, "a block is not available yet");
                    self.progress.set_forward_error(text);
                    self.source.changed(poll).await;
                }
                Err(error) => {
                    let (chain, text) = (self.chain.chain_id(), logmill_io::error_chain(&error));
                    tracing::warn!(chain, error = text, "cannot follow the chain, retrying");
                    if waits_for_repair(&error) {
                        self.progress.set_stalled(Some(text.clone()));
                    }
                    self.progress.set_forward_error(text);
                    self.clock.sleep(self.settings.error_wait).await;
                }
            }
        }
    }

    /// Looks at the chain once and acts on the result.
    pub async fn step(&self) -> Result<Step> {
        self.arrivals.record_announcements(self.source.announced(), self.clock.monotonic());
        let heads = self.source.heads().await?;
        self.progress.record_target(heads.latest.number);
        self.arrivals.record_head(heads.latest.number, self.clock.monotonic());
        if self.chain.shared.tip.in_doubt() {
            self.chain.follow().await?;
        }
        self.link_to_index().await?;
        self.chain.announce_replacements().await?;
        let ours = self.chain.view().await?.head();
        self.progress.set_head(ours.map(|head| head.number));
        let looked = match ours {
            None => self.start(&heads).await?,
            Some(ours) => self.follow(ours, &heads).await?,
        };
        // No block of a dead branch may be finalized.
        match looked {
            Look::Unsure => return Ok(Step::Again),
            Look::Doubtful => return Ok(Step::Soon),
            _ => {}
        }
        let may_wait = looked == Look::Saved && self.defers_finality();
        let finalized = looked != Look::Switched && !may_wait && self.finalize(&heads).await?;
        let head = self.chain.view().await?.head().map(|head| head.number);
        self.progress.set_head(head);
        // Blocks that became final have left the tip and made room.
        let has_room = finalized && head < Some(heads.latest.number);
        Ok(if looked == Look::Nothing && !has_room { Step::CaughtUp } else { Step::Behind })
    }

    /// Whether indexing final blocks is postponed because a node has announced a new block: clients wait for that one,
    /// and indexing takes two commits, however many blocks it is for.
    fn defers_finality(&self) -> bool {
        let times = self.deferred.load(Ordering::Relaxed);
        let defers = times < DEFERRED_MAX && self.source.has_news();
        self.deferred.store(if defers { times + 1 } else { 0 }, Ordering::Relaxed);
        defers
    }

    /// Drops blocks of the tip that are already indexed, after a crash between the two commits; drops the whole tip if
    /// it does not link to the index.
    async fn link_to_index(&self) -> Result<()> {
        let tip = self.chain.shared.tip.now();
        let Some(next) = self.next_indexed() else {
            return Ok(());
        };
        if tip.blocks.first().is_some_and(|first| first.at.number > next) {
            // Blocks below were discarded to be fetched again.
            let empty = self.chain.shared.tip.replace(Vec::new(), None, self.writer.fence());
            let removed: Vec<Arc<Block>> = empty.await?.gone.into_iter().rev().collect();
            self.chain.shared.announce_change(Change { removed, added: Vec::new() });
            return Ok(());
        }
        let left = tip.blocks.iter().filter(|block| block.at.number >= next).cloned();
        let left: Vec<Arc<Block>> = left.collect();
        if left.len() < tip.blocks.len() {
            self.chain.shared.tip.replace(left, tip.safe, self.writer.fence()).await?;
        }
        Ok(())
    }

    /// The block that the index expects next; none if it accepts any.
    fn next_indexed(&self) -> Option<u64> {
        let health = self.chain.index().health();
        Some(health.tail_start? + health.tail_blocks)
    }

    /// The first blocks of an empty store, from the start of the cell that holds the finalized head. If the whole index
    /// was discarded, from where it began.
    async fn start(&self, heads: &Heads) -> Result<Look> {
        let cell = self.chain.index().settings().cell_blocks;
        let finalized = heads.finalized.map_or(0, |at| at.number);
        let published = self.chain.index().chunks().last().map_or(0, |entry| entry.blocks.end);
        let boundary = finalized - finalized % cell;
        let first = boundary.max(self.settings.history_stop).max(published);
        let from = self.next_indexed().unwrap_or(first);
        if from > heads.latest.number {
            return Ok(Look::Nothing);
        }
        self.append(None, from, heads).await
    }

    async fn follow(&self, ours: BlockRef, heads: &Heads) -> Result<Look> {
        let latest = heads.latest;
        if latest.number <= ours.number {
            let known = self.chain.view().await?.block_ref(latest.number).await?;
            return match known {
                // Another branch, at most as long as ours; or a node that lags.
                Some(known) if known.hash != latest.hash => {
                    self.reorganize(ours, heads, Vec::new()).await
                }
                Some(_) if latest.number < ours.number => self.shortened(ours, heads).await,
                _ => {
                    self.forget_losses();
                    self.progress.set_stalled(None);
                    Ok(Look::Nothing)
                }
            };
        }
        self.forget_losses();
        self.append(Some(ours), ours.number + 1, heads).await
    }

    /// Fetches and saves the next blocks.
    async fn append(&self, ours: Option<BlockRef>, from: u64, heads: &Heads) -> Result<Look> {
        let fetched = match self.room() {
            // No block could be stored. One is fetched to find out whether our branch is still the chain's.
            0 => self.source.blocks(from..from + 1).await?,
            _ => self.fetch(from, heads).await?,
        };
        let Some(first) = fetched.first() else {
            return Err(logmill_chain::Error::NotYet { number: from }.into());
        };
        match ours {
            Some(ours) if ours.hash != first.at.parent_hash => {
                self.reorganize(ours, heads, fetched).await
            }
            _ => self.save(fetched, heads).await,
        }
    }

    /// Number of blocks that the tip has room for.
    fn room(&self) -> usize {
        let waiting = self.chain.shared.tip.now().blocks.len();
        self.settings.max_unfinal_blocks.max(1).saturating_sub(waiting)
    }

    /// Saves blocks that follow ours: final ones in the index, others in the tip, as far as it has room.
    async fn save(&self, mut blocks: Vec<Block>, heads: &Heads) -> Result<Look> {
        let tip = self.chain.shared.tip.now();
        let finalized_to = heads.finalized.map(|at| at.number);
        let is_final = |block: &Block| finalized_to.is_some_and(|to| block.at.number <= to);
        let direct =
            if tip.blocks.is_empty() { blocks.iter().filter(|b| is_final(b)).count() } else { 0 };
        let room = self.room();
        let fits = blocks.len() <= direct + room;
        blocks.truncate(direct + room);
        self.recover_senders(&mut blocks).await;
        let (count, logs) = counts(&blocks);
        let first = blocks.first().map_or(0, |block| block.at.number);
        let rest: Vec<Arc<Block>> = blocks.split_off(direct).into_iter().map(Arc::new).collect();
        if !blocks.is_empty() {
            self.save_final(blocks, heads).await?;
        }
        if !rest.is_empty() {
            let all = tip.blocks.iter().cloned().chain(rest).collect();
            self.put_tip(all, heads).await?;
        }
        let stored = first..first + count;
        self.arrivals.record_readable(self.chain.chain_id(), stored, self.clock.monotonic());
        self.progress.count_forward(count, logs);
        if fits {
            self.progress.set_stalled(None);
        } else {
            self.stall(self.chain.shared.tip.now().blocks.len());
        }
        Ok(if count > 0 { Look::Saved } else { Look::Nothing })
    }

    async fn recover_senders(&self, blocks: &mut [Block]) {
        if self.settings.store_senders {
            senders::recover(blocks).await;
        }
    }

    fn stall(&self, blocks: usize) {
        let why = format!(
            "{blocks} blocks wait to become final, and max_unfinal_blocks allows no more: is finality stalled?"
        );
        // Log once, not at every look.
        if self.progress.set_stalled(Some(why.clone())) {
            tracing::warn!(chain = self.chain.chain_id(), why, "forward ingest is stalled");
        }
    }

    /// Saves blocks that were already final when fetched.
    async fn save_final(&self, blocks: Vec<Block>, heads: &Heads) -> Result<()> {
        if let Some(at) = heads.finalized
            && let Some(block) = blocks.iter().find(|block| block.at.number == at.number)
            && block.at.hash != at.hash
        {
            let (number, stored, reported) = (at.number, block.at.hash, at.hash);
            return Err(Error::FinalityReverted { number, stored, reported });
        }
        // Discarded blocks that are fetched again are not announced again.
        let first = self.chain.shared.next_unannounced(&[]);
        let near = |block: &Block| {
            heads.latest.number - block.at.number < ANNOUNCE_WITHIN && block.at.number >= first
        };
        let announced: Vec<Arc<Block>> =
            blocks.iter().filter(|block| near(block)).cloned().map(Arc::new).collect();
        self.index(blocks).await?;
        self.chain.shared.announce_change(Change { removed: Vec::new(), added: announced });
        Ok(())
    }

    /// Indexes blocks in batches of `commit_blocks`.
    async fn index(&self, blocks: Vec<Block>) -> Result<()> {
        let commit = self.chain.index().settings().commit_blocks;
        let prepared: Vec<FinalizedBlock> =
            logmill_io::compute(move || blocks.into_iter().map(to_finalized).collect()).await;
        for some in prepared.chunks(commit.max(1)) {
            self.writer.ingest_finalized_blocks(some).await?;
        }
        Ok(())
    }

    /// Replaces the tip and notifies listeners of the change.
    async fn put_tip(&self, blocks: Vec<Arc<Block>>, heads: &Heads) -> Result<()> {
        let replaced =
            self.chain.shared.tip.replace(blocks, heads.safe, self.writer.fence()).await?;
        let removed: Vec<Arc<Block>> = replaced.gone.into_iter().rev().collect();
        self.chain.shared.announce_change(Change { removed, added: replaced.added });
        Ok(())
    }

    /// Moves blocks of the tip that are final by now to the index. Returns false if there are none.
    async fn finalize(&self, heads: &Heads) -> Result<bool> {
        let tip = self.chain.shared.tip.now();
        let Some(at) = heads.finalized else {
            return self.note_safe(heads).await.map(|()| false);
        };
        if let Some(block) = tip.blocks.iter().find(|block| block.at.number == at.number)
            && block.at.hash != at.hash
        {
            // Our branch is dead from this block on, or from below it.
            let ours = tip.blocks.last().map_or(block.at, |last| last.at);
            return Ok(self.reorganize(ours, heads, Vec::new()).await? == Look::Switched);
        }
        let is_final = |block: &Arc<Block>| block.at.number <= at.number;
        let (done, left): (Vec<_>, Vec<_>) = tip.blocks.iter().cloned().partition(is_final);
        if done.is_empty() {
            return self.note_safe(heads).await.map(|()| false);
        }
        self.index(done.iter().map(|block| (**block).clone()).collect()).await?;
        // Only after publication, so that every reader finds the blocks in one of the two.
        self.chain.shared.tip.replace(left, heads.safe, self.writer.fence()).await?;
        Ok(true)
    }

    async fn note_safe(&self, heads: &Heads) -> Result<()> {
        let tip = self.chain.shared.tip.now();
        if tip.safe != heads.safe && !tip.blocks.is_empty() {
            let blocks = tip.blocks.clone();
            self.chain.shared.tip.replace(blocks, heads.safe, self.writer.fence()).await?;
        }
        Ok(())
    }

    /// Handles a reorganization: finds the common ancestor and replaces the tip above it in one commit. `above` are
    /// known blocks of the other branch above `ours`: without them, nodes that disagree could make us alternate between
    /// the branches forever.
    async fn reorganize(&self, ours: BlockRef, heads: &Heads, above: Vec<Block>) -> Result<Look> {
        let tip = self.chain.shared.tip.now();
        let lowest = (ours.number + 1).saturating_sub(self.settings.max_reorg_depth);
        let mut end = ours.number.min(heads.latest.number) + 1;
        let too_deep =
            || Error::ReorgTooDeep { number: lowest, max: self.settings.max_reorg_depth };
        let view = self.chain.view().await?;
        if let Some(at) = view.finalized().filter(|at| at.number >= end) {
            let (number, stored, reported) = (at.number, at.hash, heads.latest.hash);
            return Err(Error::FinalityReverted { number, stored, reported });
        }
        if end <= lowest {
            return Err(too_deep());
        }
        // Where nothing is indexed yet, the tip keeps its first height.
        let first = tip.blocks.first().filter(|_| view.finalized().is_none());
        let first = first.map_or(0, |block| block.at.number);
        let mut branch: Vec<Block> = Vec::new();
        let mut step = 1;
        loop {
            let start = end.saturating_sub(step).max(lowest).max(first);
            step = (step * 2).min(LOOK_BACK_MAX);
            let last = branch.first().or(above.first()).map(|first| first.at.parent_hash);
            let fetched = self.of_branch(start..end, last).await?;
            let Some(start) = fetched.first().map(|first| first.at.number) else {
                // The chain changed during the search; the next step looks again.
                return Ok(self.disagreed(end - 1));
            };
            branch.splice(0..0, fetched);
            if let Some(ancestor) = self.ancestor(&branch, start).await? {
                branch.extend(above);
                return self.switch(ancestor, branch, &tip.blocks, heads).await;
            }
            if start == lowest {
                return Err(too_deep());
            }
            end = start;
        }
    }

    /// Number of the common ancestor: the highest block of `branch` that is also ours, or the parent of its first
    /// block. None if that parent is not ours either.
    async fn ancestor(&self, branch: &[Block], start: u64) -> Result<Option<u64>> {
        let view = self.chain.view().await?;
        let Some(first) = branch.first() else {
            return Ok(None);
        };
        if let Some(at) = view.finalized().filter(|at| at.number >= start) {
            // The branch reaches down to finalized blocks, so it must contain them.
            let reported = branch.iter().find(|block| block.at.number == at.number);
            let reported = reported.map_or(first.at.hash, |block| block.at.hash);
            if reported != at.hash {
                let (number, stored) = (at.number, at.hash);
                return Err(Error::FinalityReverted { number, stored, reported });
            }
        }
        for block in branch.iter().rev() {
            let known = view.block_ref(block.at.number).await?;
            if known.is_some_and(|known| known.hash == block.at.hash) {
                return Ok(Some(block.at.number));
            }
        }
        let Some(before) = start.checked_sub(1) else {
            return Ok(None);
        };
        let known = view.block_ref(before).await?;
        let tip_starts_here =
            known.is_none() && view.covered().iter().all(|range| range.start >= start);
        Ok((known.is_some_and(|known| known.hash == first.at.parent_hash) || tip_starts_here)
            .then_some(before))
    }

    async fn switch(
        &self,
        ancestor: u64,
        branch: Vec<Block>,
        tip: &[Arc<Block>],
        heads: &Heads,
    ) -> Result<Look> {
        if branch.last().is_none_or(|last| last.at.number <= ancestor) {
            // The branch has no block that we lack. We cannot decide which node is right.
            return Ok(self.disagreed(ancestor));
        }
        let kept = tip.iter().filter(|block| block.at.number <= ancestor).cloned();
        let mut fresh = branch;
        fresh.retain(|block| block.at.number > ancestor);
        self.recover_senders(&mut fresh).await;
        // No more than the tip has room for, but never fewer than before.
        let room = self.settings.max_unfinal_blocks.max(tip.len());
        let all: Vec<Arc<Block>> = kept.chain(fresh.into_iter().map(Arc::new)).take(room).collect();
        let depth = tip.last().map_or(0, |last| last.at.number.saturating_sub(ancestor));
        tracing::info!(chain = self.chain.chain_id(), ancestor, depth, "the chain was reorganized");
        self.put_tip(all, heads).await?;
        self.arrivals.forget_above(ancestor);
        self.progress.count_reorg(depth);
        Ok(Look::Switched)
    }
}

fn counts(blocks: &[Block]) -> (u64, u64) {
    let logs: usize = blocks.iter().map(Block::log_count).sum();
    (blocks.len() as u64, logs as u64)
}

/// Whether a retry is useless: an operator has to look, another process writes now, or a store must be reopened.
fn ends(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Fenced) || error.is_fatal()
}

/// Whether a node has announced the block and will serve it soon: that needs no wait after an error.
fn is_on_its_way(error: &Error) -> bool {
    use logmill_chain::Error as Of;
    matches!(error, Error::Chain(Of::NotYet { .. } | Of::Late { .. }))
}

fn waits_for_repair(error: &Error) -> bool {
    let degraded = matches!(error, Error::Index(finalized_log_index::Error::Degraded { .. }));
    degraded || error.kind() == ErrorKind::Corrupt
}
