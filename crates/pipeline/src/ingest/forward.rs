//! The forward ingester (`main_ingester`): follows the head.
//!
//! One step asks where the chain is, brings the blocks that are missing, and saves them:
//!
//! - Blocks that are final by then go to the index at once, many to a commit.
//! - Others make up the tip. When the chain has changed, the common ancestor is looked for, and the tip is replaced
//!   from there on in one commit.
//! - Blocks of the tip that have become final go to the index, and leave the tip after that.
//!
//! Guarantees: the tip links to the index at any time; a reorganization is one commit; a chain that changes deeper than
//! `max_reorg_depth`, or below what it called final, stops the ingester with an error that says so. Leaves to others:
//! holding the writer lease, sealing ([`Writer::maintain_always`]).

use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::B256;
use finalized_log_index::{FinalizedBlock, Writer};
use futures::{StreamExt, stream};
use logmill_chain::{Block, BlockRef, ChainSource, Heads};
use logmill_io::{Clock, ErrorKind};

use super::{IngestSettings, Progress, batch_size};
use crate::block::finalized;
use crate::chain::{Chain, Change, TOLD_WITHIN};
use crate::error::{Error, Result};
use crate::senders;

/// The most blocks that one look back at the chain fetches while the common ancestor is searched.
const LOOK_BACK_MAX: u64 = 64;

/// Follows the head of one chain.
#[derive(Debug)]
pub struct Forward {
    chain: Chain,
    source: Arc<dyn ChainSource>,
    writer: Arc<Writer>,
    settings: IngestSettings,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
}

/// What a look at the chain led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// What is stored is of the chain's branch, and is more or other than before.
    Saved,
    /// What is stored is of the chain's branch; there is no more, or no room for it.
    Nothing,
    /// What is stored is of another branch now; whether that is still the chain's, the next look tells.
    Switched,
    /// The chain changes while we look: what is stored may be of a dead branch.
    Unsure,
}

/// What a step leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more: go on at once.
    Behind,
    /// All there is is stored.
    CaughtUp,
    /// The chain changed meanwhile: look again, after a while.
    Again,
}

impl Forward {
    /// An ingester that has done nothing yet.
    pub fn new(
        chain: Chain,
        source: Arc<dyn ChainSource>,
        writer: Arc<Writer>,
        settings: IngestSettings,
        progress: Arc<Progress>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { chain, source, writer, settings, progress, clock }
    }

    /// Follows the head for as long as it is polled; ends with an error that a repetition would not take away. Damage
    /// is none: it may be mended while we wait.
    pub async fn run(&self) -> Result<std::convert::Infallible> {
        loop {
            match self.step().await {
                Ok(Step::Behind) => {}
                Ok(Step::CaughtUp | Step::Again) => self.source.changed(self.settings.poll).await,
                Err(error) if ends(&error) => return Err(error),
                Err(error) => {
                    let said = logmill_io::chain(&error);
                    tracing::warn!(chain = self.chain.chain_id(), error = said, "forward ingest");
                    if waits_for_repair(&error) {
                        self.progress.stalled(Some(said.clone()));
                    }
                    self.progress.failed(said);
                    self.clock.sleep(self.settings.error_wait).await;
                }
            }
        }
    }

    /// One look at the chain, and what follows from it.
    pub async fn step(&self) -> Result<Step> {
        let heads = self.source.heads().await?;
        if self.chain.shared.tip.in_doubt() {
            self.chain.follow().await?;
        }
        self.link_to_index().await?;
        self.chain.announce_replacements().await?;
        let ours = self.chain.view().await?.head();
        self.progress.at(ours.map(|head| head.number), heads.latest.number);
        let looked = match ours {
            None => self.start(&heads).await?,
            Some(ours) => self.follow(ours, &heads).await?,
        };
        // Nothing of a dead branch may become final.
        if looked == Looked::Unsure {
            return Ok(Step::Again);
        }
        let finalized = looked != Looked::Switched && self.finalize(&heads).await?;
        let head = self.chain.view().await?.head().map(|head| head.number);
        self.progress.at(head, heads.latest.number);
        // What has become final has made room.
        let has_room = finalized && head < Some(heads.latest.number);
        Ok(if looked == Looked::Nothing && !has_room { Step::CaughtUp } else { Step::Behind })
    }

    /// Drops blocks of the tip that are indexed, as a crash came between the two; and all, if they do not link.
    async fn link_to_index(&self) -> Result<()> {
        let tip = self.chain.shared.tip.now();
        let Some(next) = self.next_indexed() else {
            return Ok(());
        };
        if tip.blocks.first().is_some_and(|first| first.at.number > next) {
            // Blocks below were thrown away to be fetched again.
            let empty = self.chain.shared.tip.replace(Vec::new(), None, self.writer.fence());
            let removed: Vec<Arc<Block>> = empty.await?.gone.into_iter().rev().collect();
            self.chain.shared.tell(Change { removed, added: Vec::new() });
            return Ok(());
        }
        let left = tip.blocks.iter().filter(|block| block.at.number >= next).cloned();
        let left: Vec<Arc<Block>> = left.collect();
        if left.len() < tip.blocks.len() {
            self.chain.shared.tip.replace(left, tip.safe, self.writer.fence()).await?;
        }
        Ok(())
    }

    /// The block that the index takes next; none if any will do.
    fn next_indexed(&self) -> Option<u64> {
        let health = self.chain.index().health();
        Some(health.tail_start? + health.tail_blocks)
    }

    /// The first blocks of an empty store: from the boundary of the cell that holds the finalized head. If all that was
    /// indexed was thrown away, from where it began.
    async fn start(&self, heads: &Heads) -> Result<Looked> {
        let cell = self.chain.index().settings().cell_blocks;
        let finalized = heads.finalized.map_or(0, |at| at.number);
        let published = self.chain.index().chunks().last().map_or(0, |entry| entry.blocks.end);
        let boundary = finalized - finalized % cell;
        let first = boundary.max(self.settings.history_stop).max(published);
        let from = self.next_indexed().unwrap_or(first);
        if from > heads.latest.number {
            return Ok(Looked::Nothing);
        }
        self.append(None, from, heads).await
    }

    async fn follow(&self, ours: BlockRef, heads: &Heads) -> Result<Looked> {
        let latest = heads.latest;
        if latest.number <= ours.number {
            let known = self.chain.view().await?.block_ref(latest.number).await?;
            return match known {
                // Another branch, as long as ours or shorter; or a node that is behind.
                Some(known) if known.hash != latest.hash => {
                    self.reorganize(ours, heads, Vec::new()).await
                }
                _ => {
                    self.progress.stalled(None);
                    Ok(Looked::Nothing)
                }
            };
        }
        self.append(Some(ours), ours.number + 1, heads).await
    }

    /// Fetches and saves the next blocks.
    async fn append(&self, ours: Option<BlockRef>, from: u64, heads: &Heads) -> Result<Looked> {
        let fetched = self.fetch(from, heads).await?;
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

    /// The next blocks, as many as fit: several fetches side by side.
    async fn fetch(&self, from: u64, heads: &Heads) -> Result<Vec<Block>> {
        let behind = (heads.latest.number + 1).saturating_sub(from);
        let batch = batch_size(&self.settings, behind);
        let workers = u64::try_from(self.settings.latest_workers.max(1)).unwrap_or(1);
        let starts = (0..workers).map(|worker| from + worker * batch);
        let ranges: Vec<Range<u64>> = starts
            .map(|start| start..(start + batch).min(heads.latest.number + 1))
            .filter(|range| !range.is_empty())
            .collect();
        let wanted: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        let fetches = ranges.into_iter().map(|range| self.source.blocks(range));
        let fetches: Vec<_> =
            stream::iter(fetches).buffered(self.settings.latest_workers.max(1)).collect().await;
        let mut blocks: Vec<Block> = Vec::new();
        for (fetched, wanted) in fetches.into_iter().zip(wanted) {
            let fetched: Vec<Block> = match fetched {
                Ok(fetched) => fetched,
                // What comes before the first that failed is saved; the rest is asked for again.
                Err(_) if !blocks.is_empty() => return Ok(blocks),
                Err(error) => return Err(error.into()),
            };
            let links = |last: &Block| {
                fetched.first().is_none_or(|first| first.at.parent_hash == last.at.hash)
            };
            if !blocks.last().is_none_or(links) {
                return Ok(blocks);
            }
            let whole = u64::try_from(fetched.len()).is_ok_and(|count| count == wanted);
            blocks.extend(fetched);
            if !whole {
                return Ok(blocks);
            }
        }
        Ok(blocks)
    }

    /// Saves blocks that follow ours: final ones in the index, others in the tip, as far as there is room.
    async fn save(&self, mut blocks: Vec<Block>, heads: &Heads) -> Result<Looked> {
        let tip = self.chain.shared.tip.now();
        let finalized_to = heads.finalized.map(|at| at.number);
        let is_final = |block: &Block| finalized_to.is_some_and(|to| block.at.number <= to);
        let direct =
            if tip.blocks.is_empty() { blocks.iter().filter(|b| is_final(b)).count() } else { 0 };
        let room = self.settings.max_unfinal_blocks.max(1).saturating_sub(tip.blocks.len());
        let fits = blocks.len() <= direct + room;
        blocks.truncate(direct + room);
        self.recover_senders(&mut blocks).await;
        let (count, logs) = counts(&blocks);
        let rest: Vec<Arc<Block>> = blocks.split_off(direct).into_iter().map(Arc::new).collect();
        if !blocks.is_empty() {
            self.save_final(blocks, heads).await?;
        }
        if !rest.is_empty() {
            let all = tip.blocks.iter().cloned().chain(rest).collect();
            self.put_tip(all, heads).await?;
        }
        self.progress.forward(count, logs);
        if fits {
            self.progress.stalled(None);
        } else {
            self.stall(self.chain.shared.tip.now().blocks.len());
        }
        Ok(if count > 0 { Looked::Saved } else { Looked::Nothing })
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
        tracing::warn!(chain = self.chain.chain_id(), why, "forward ingest waits");
        self.progress.stalled(Some(why));
    }

    /// Saves blocks that were final when they came.
    async fn save_final(&self, blocks: Vec<Block>, heads: &Heads) -> Result<()> {
        if let Some(at) = heads.finalized
            && let Some(block) = blocks.iter().find(|block| block.at.number == at.number)
            && block.at.hash != at.hash
        {
            let (number, stored, said) = (at.number, block.at.hash, at.hash);
            return Err(Error::FinalityReverted { number, stored, said });
        }
        // Blocks that were thrown away and come again are no news.
        let unheard = self.chain.shared.unheard(&[]);
        let near = |block: &Block| {
            heads.latest.number - block.at.number < TOLD_WITHIN && block.at.number >= unheard
        };
        let told: Vec<Arc<Block>> =
            blocks.iter().filter(|block| near(block)).cloned().map(Arc::new).collect();
        self.index(blocks).await?;
        self.chain.shared.tell(Change { removed: Vec::new(), added: told });
        Ok(())
    }

    /// Indexes blocks, a commit's worth at a time.
    async fn index(&self, blocks: Vec<Block>) -> Result<()> {
        let commit = self.chain.index().settings().commit_blocks;
        let prepared: Vec<FinalizedBlock> =
            logmill_io::compute(move || blocks.into_iter().map(finalized).collect()).await;
        for some in prepared.chunks(commit.max(1)) {
            self.writer.ingest_finalized_blocks(some).await?;
        }
        Ok(())
    }

    /// Makes these blocks the tip, and tells listeners what changed.
    async fn put_tip(&self, blocks: Vec<Arc<Block>>, heads: &Heads) -> Result<()> {
        let replaced =
            self.chain.shared.tip.replace(blocks, heads.safe, self.writer.fence()).await?;
        let removed: Vec<Arc<Block>> = replaced.gone.into_iter().rev().collect();
        self.chain.shared.tell(Change { removed, added: replaced.added });
        Ok(())
    }

    /// Blocks of the tip that are final by now go to the index, and then leave the tip. False if there is none.
    async fn finalize(&self, heads: &Heads) -> Result<bool> {
        let tip = self.chain.shared.tip.now();
        let Some(at) = heads.finalized else {
            return self.note_safe(heads).await.map(|()| false);
        };
        if let Some(block) = tip.blocks.iter().find(|block| block.at.number == at.number)
            && block.at.hash != at.hash
        {
            // Our branch is dead from there on or below.
            let ours = tip.blocks.last().map_or(block.at, |last| last.at);
            return Ok(self.reorganize(ours, heads, Vec::new()).await? == Looked::Switched);
        }
        let is_final = |block: &Arc<Block>| block.at.number <= at.number;
        let (done, left): (Vec<_>, Vec<_>) = tip.blocks.iter().cloned().partition(is_final);
        if done.is_empty() {
            return self.note_safe(heads).await.map(|()| false);
        }
        self.index(done.iter().map(|block| (**block).clone()).collect()).await?;
        // After publication: no reader can find them nowhere.
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

    /// The chain has changed: finds where the branches part, and replaces the tip from there on in one commit.
    /// `above` are blocks of the other branch above `ours`, if some are known: without them, nodes that do not agree
    /// could have us go from one branch to the other for ever.
    async fn reorganize(&self, ours: BlockRef, heads: &Heads, above: Vec<Block>) -> Result<Looked> {
        let tip = self.chain.shared.tip.now();
        // The lowest block that may be replaced.
        let lowest = (ours.number + 1).saturating_sub(self.settings.max_reorg_depth);
        let mut end = ours.number.min(heads.latest.number) + 1;
        let too_deep =
            || Error::ReorgTooDeep { number: lowest, max: self.settings.max_reorg_depth };
        let view = self.chain.view().await?;
        if let Some(at) = view.finalized().filter(|at| at.number >= end) {
            let (number, stored, said) = (at.number, at.hash, heads.latest.hash);
            return Err(Error::FinalityReverted { number, stored, said });
        }
        if end <= lowest {
            return Err(too_deep());
        }
        // Where nothing is indexed yet, the tip keeps its beginning.
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
                // The chain changes while we look; the next step looks again.
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

    /// One node has told of another branch, and the next gives the block that is stored.
    fn disagreed(&self, number: u64) -> Looked {
        self.progress.failed(format!("the nodes do not agree on block {number}"));
        Looked::Unsure
    }

    /// Blocks of the branch whose last has this hash: by their numbers; or that one alone, if nodes do not agree. None
    /// if the branch is gone.
    async fn of_branch(&self, range: Range<u64>, last: Option<B256>) -> Result<Vec<Block>> {
        let fetched = self.source.blocks(range.clone()).await?;
        let whole = fetched.len() as u64 == range.end - range.start;
        let is_last = |block: &Block| last.is_none_or(|last| block.at.hash == last);
        if whole && fetched.last().is_some_and(is_last) {
            return Ok(fetched);
        }
        let Some(last) = last else {
            return Ok(Vec::new());
        };
        let block = self.source.block_by_hash(last).await?;
        Ok(block.filter(|block| block.at.number + 1 == range.end).into_iter().collect())
    }

    /// The number of the block below which both branches are one: the parent of the first of `branch` that is not
    /// ours. None if even the parent of the first is not.
    async fn ancestor(&self, branch: &[Block], start: u64) -> Result<Option<u64>> {
        let view = self.chain.view().await?;
        let Some(first) = branch.first() else {
            return Ok(None);
        };
        if let Some(at) = view.finalized().filter(|at| at.number >= start) {
            // The branch reaches down to what is final: it must have it.
            let said = branch.iter().find(|block| block.at.number == at.number);
            let said = said.map_or(first.at.hash, |block| block.at.hash);
            if said != at.hash {
                return Err(Error::FinalityReverted { number: at.number, stored: at.hash, said });
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
    ) -> Result<Looked> {
        if branch.last().is_none_or(|last| last.at.number <= ancestor) {
            // What we have came again: it is not for us to say which node is right.
            return Ok(self.disagreed(ancestor));
        }
        let kept = tip.iter().filter(|block| block.at.number <= ancestor).cloned();
        let mut fresh = branch;
        fresh.retain(|block| block.at.number > ancestor);
        self.recover_senders(&mut fresh).await;
        // No more than there is room for, unless it was there before.
        let room = self.settings.max_unfinal_blocks.max(tip.len());
        let all: Vec<Arc<Block>> = kept.chain(fresh.into_iter().map(Arc::new)).take(room).collect();
        let depth = tip.last().map_or(0, |last| last.at.number.saturating_sub(ancestor));
        tracing::info!(chain = self.chain.chain_id(), ancestor, depth, "the chain has changed");
        self.put_tip(all, heads).await?;
        self.progress.reorganized(depth);
        Ok(Looked::Switched)
    }
}

fn counts(blocks: &[Block]) -> (u64, u64) {
    let logs: usize = blocks.iter().map(Block::log_count).sum();
    (blocks.len() as u64, logs as u64)
}

/// Whether trying again is of no use: an operator has to look, or another process writes now.
fn ends(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Fenced)
}

/// Whether something stored is damaged.
fn waits_for_repair(error: &Error) -> bool {
    let degraded = matches!(error, Error::Index(finalized_log_index::Error::Degraded { .. }));
    degraded || error.kind() == ErrorKind::Corrupt
}
