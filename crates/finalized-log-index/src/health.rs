//! Health, and the operator's ways out.
//!
//! | trouble | what is refused | way out, by [`Writer::resolve`] |
//! |---|---|---|
//! | finality violation | writes and reads | `Keep` if the input was wrong, else `RebuildFrom`, ingest |
//! | corruption | writes, queries that need it | `Discard` and `build_chunk`, or `RebuildFrom` |
//! | damaged records | writes and reads | restore them, or start anew under another prefix |
//! | backlog | writes | `collect_garbage(Delete)`, then `Keep` |
//!
//! Guarantees: nothing is resolved by itself, and each way out is one commit, which records the blocks that it removes
//! ([`crate::replace`]). Leaves to others: the command line around it.

use std::sync::Arc;

use logmill_io::{Batch, Condition, ErrorKind};

use crate::chunk_list::ChunkList;
use crate::error::{Error, Result};
use crate::index::{Followed, LogIndex, Snapshot};
use crate::records::chunks::{Change, ChunkEntry};
use crate::records::degraded::{Cause, Degraded};
use crate::records::replacement::ReplacementKind;
use crate::records::tail_state::TailState;
use crate::replace::ReplacedBlocks;
use crate::section::Before;
use crate::types::BlockRange;
use crate::writer::Writer;

/// How an index is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// Why it refuses to go on, if it does.
    pub degraded: Option<Degraded>,
    /// The highest indexed block.
    pub head: Option<u64>,
    /// What can be queried.
    pub coverage: Vec<BlockRange>,
    /// Below which block history was pruned on purpose.
    pub pruned_below: u64,
    /// How many chunks and pieces are published.
    pub chunks: usize,
    /// How many of them no anchor vouches for yet.
    pub chunks_unanchored: usize,
    /// Where the tail starts, once there is one.
    pub tail_start: Option<u64>,
    /// How many blocks are in the tail.
    pub tail_blocks: u64,
    /// How many logs are in published chunks and in the tail.
    pub logs: u64,
    /// The bytes of published chunks.
    pub bytes: u64,
    /// The epoch of the last writer.
    pub writer_epoch: u64,
}

/// What an operator decides about a degraded index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The index is right: go on as it is.
    Keep,
    /// Everything from this block on is thrown away, with the chunk that holds it; ingest goes on from what is left.
    RebuildFrom(u64),
    /// The chunk of this attempt is thrown away; its blocks are not covered until they are built again.
    Discard(u64),
}

/// What [`Resolution::RebuildFrom`] throws away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlan {
    /// The first block that goes, and the one that ingest goes on with.
    pub first_block: u64,
    /// How many chunks and pieces go.
    pub chunks: usize,
    /// How many blocks of the tail go: all of it.
    pub tail_blocks: u64,
    /// How many logs go.
    pub logs: u64,
}

impl LogIndex {
    /// What a rebuild from a block would throw away; none if nothing is indexed yet.
    pub fn plan_rebuild(&self, block: u64) -> Option<RebuildPlan> {
        let snapshot = self.shared.snapshot();
        let state = snapshot.tail_state.as_ref()?;
        let going = going_from(&snapshot.list, block);
        let sealed_logs: u64 = going.iter().map(|entry| u64::from(entry.logs)).sum();
        let tail_logs: u64 = snapshot.tail.iter().map(|section| u64::from(section.logs)).sum();
        Some(RebuildPlan {
            first_block: going.first().map_or(state.start, |entry| entry.blocks.start),
            chunks: going.len(),
            tail_blocks: state.end - state.start,
            logs: sealed_logs + tail_logs,
        })
    }

    /// How the index is.
    pub fn health(&self) -> HealthReport {
        let snapshot = self.shared.snapshot();
        let Snapshot { tail_state, tail, list, coverage, degraded, .. } = &*snapshot;
        let sealed_logs: u64 = list.iter().map(|entry| u64::from(entry.logs)).sum();
        let tail_logs: u64 = tail.iter().map(|section| u64::from(section.logs)).sum();
        let covered = |block: &u64| coverage.iter().any(|range| range.contains(block));
        let unanchored = list.iter().filter(|entry| !covered(&entry.blocks.start)).count();
        let head = tail_state.as_ref().and_then(|tail| tail.end.checked_sub(1)).filter(covered);
        HealthReport {
            degraded: degraded.clone(),
            head,
            coverage: coverage.clone(),
            pruned_below: list.floor,
            chunks: list.iter().count(),
            chunks_unanchored: unanchored,
            tail_start: tail_state.as_ref().map(|tail| tail.start),
            tail_blocks: tail_state.as_ref().map_or(0, |tail| tail.end - tail.start),
            logs: sealed_logs + tail_logs,
            bytes: list.iter().map(|entry| entry.bytes).sum(),
            writer_epoch: tail_state.as_ref().map_or(0, |tail| tail.epoch),
        }
    }
}

impl Writer {
    /// Carries out what the operator decided, and takes the degradation away, in one commit.
    pub async fn resolve(&self, resolution: Resolution) -> Result<()> {
        self.renew().await?;
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        let cleared = Batch::new().delete(shared.keys.degraded(), Condition::Any);
        let cleared = cleared.fenced(self.fence());
        let committed = match resolution {
            Resolution::Keep => shared.stores.meta.commit(cleared).await.map_err(Error::from),
            Resolution::Discard(token) => {
                let change = followed.list.plan_remove(&[token], 0).ok_or_else(|| {
                    Error::Invalid { what: format!("there is no chunk of attempt {token:016x}") }
                })?;
                let replaced = discarded(&followed, token);
                shared.commit_replacement(&mut followed, &change, cleared, replaced).await
            }
            Resolution::RebuildFrom(block) => {
                let (change, state) = self.cut_at(&followed, block)?;
                let replaced = cut_off(&followed, &state, block);
                let condition = followed.tail_version.map_or(Condition::Absent, Condition::Version);
                let key = shared.keys.tail_state();
                let batch = cleared.put(key, state.encode(), condition);
                // Should the answer be lost, the tail is loaded anew.
                followed.tail_known = false;
                shared.commit_replacement(&mut followed, &change, batch, replaced).await
            }
        };
        match committed {
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
            committed => drop(committed?),
        }
        followed.tail_known = false;
        followed.degraded = None;
        shared.forget_noted();
        shared.follow(&mut followed).await
    }

    /// Stores damage that was found by other means than reading: writes stop until it is repaired or resolved.
    pub async fn report_damage(&self, reason: String) -> Result<()> {
        let mut followed = self.shared().followed.lock().await;
        if followed.degraded.is_some() {
            return Ok(());
        }
        self.degrade(&mut followed, Cause::Corruption, reason).await
    }

    /// What is left when everything from a block on goes.
    fn cut_at(&self, followed: &Followed, block: u64) -> Result<(Change, TailState)> {
        let Some(tail) = &followed.tail else {
            return Err(Error::Invalid { what: "nothing is indexed yet".to_owned() });
        };
        let going = going_from(&followed.list, block);
        let epoch = self.epoch().cast_unsigned();
        let generation = tail.state.generation + 1;
        let state = match going.first() {
            Some(first) => TailState {
                epoch,
                generation,
                start: first.blocks.start,
                start_parent: first.parent_hash,
                end: first.blocks.start,
                head_hash: first.parent_hash,
                chunk_start: first.blocks.start,
                before: Before::default(),
            },
            None => TailState {
                epoch,
                generation,
                end: tail.state.start,
                head_hash: tail.state.start_parent,
                ..tail.state.clone()
            },
        };
        let remove = going.iter().map(|entry| entry.token).collect();
        // Also without an entry to remove: a change of the list makes publications under way plan again.
        Ok((Change { add: Vec::new(), remove, floor: followed.list.floor }, state))
    }

    /// Removes chunks that lie wholly below a block, with their lookups; whoever asks for them is told so.
    pub async fn prune_below(&self, block: u64) -> Result<usize> {
        self.renew().await?;
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        shared.follow_chunks(&mut followed).await?;
        let going = followed.list.iter().filter(|entry| entry.blocks.end <= block);
        let going: Vec<(u64, u64)> = going.map(|entry| (entry.token, entry.blocks.end)).collect();
        let floor = going.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let tokens: Vec<u64> = going.iter().map(|(token, _)| *token).collect();
        let Some(change) = followed.list.plan_remove(&tokens, floor) else {
            return Ok(0);
        };
        let fenced = Batch::new().fenced(self.fence());
        match shared.commit_change(&mut followed, &change, fenced).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
            committed => drop(committed?),
        }
        shared.show(&followed);
        Ok(tokens.len())
    }
}

/// The blocks of a chunk that is discarded; none if no reader could see them.
fn discarded(followed: &Followed, token: u64) -> Option<ReplacedBlocks> {
    let entry = followed.list.by_token(token)?;
    let tail = followed.tail.as_ref().map(|tail| &tail.state);
    let covered = followed.list.coverage(tail);
    covered.iter().any(|range| range.contains(&entry.blocks.start)).then(|| ReplacedBlocks {
        blocks: entry.blocks.clone(),
        kind: ReplacementKind::Removed,
        reason: format!("an operator discarded the chunk {token:016x}"),
    })
}

/// The blocks that go when the index is cut back to `state`; none if none do.
fn cut_off(followed: &Followed, state: &TailState, block: u64) -> Option<ReplacedBlocks> {
    let blocks = state.start..followed.tail.as_ref()?.state.end;
    (!blocks.is_empty()).then(|| ReplacedBlocks {
        blocks,
        kind: ReplacementKind::Removed,
        reason: format!("an operator had everything rebuilt from block {block} on"),
    })
}

/// The chunks that hold blocks from `block` on, with all pieces of the first, so that it ends where it would
/// have ended.
fn going_from(list: &ChunkList, block: u64) -> Vec<Arc<ChunkEntry>> {
    let cut = list.iter().find(|entry| entry.blocks.end > block);
    let cut = cut.map_or(u64::MAX, |entry| entry.chunk_start);
    list.iter().filter(|entry| entry.blocks.start >= cut).cloned().collect()
}
