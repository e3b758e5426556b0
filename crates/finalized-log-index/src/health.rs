//! Health, and the ways in which an operator resolves a degraded index.
//!
//! | problem | refused | remedy, by [`Writer::resolve`] |
//! |---|---|---|
//! | finality violation | writes and reads | `Keep` if the input was wrong, else `RebuildFrom` and ingest |
//! | corruption | writes, queries that need it | [`crate::rewrite`], `Discard` and `build_chunk`, or `RebuildFrom` |
//! | damaged records | writes and reads | restore them, or start a new index under another prefix |
//! | backlog | writes | `collect_garbage(Delete)`, then `Keep` |
//!
//! Guarantees: nothing is resolved automatically, and each remedy is one commit, which records the blocks that it
//! removes ([`crate::replace`]). Leaves to others: the command line.

use std::sync::Arc;

use logmill_io::{Batch, Condition, ErrorKind};

use crate::chunk_list::ChunkList;
use crate::error::{Error, Result};
use crate::index::LogIndex;
use crate::records::chunks::{Change, ChunkEntry};
use crate::records::degraded::Degradation;
use crate::records::replacement::ReplacementKind;
use crate::records::tail_state::TailState;
use crate::replace::ReplacedBlocks;
use crate::state::{IndexState, Snapshot};
use crate::types::BlockRange;
use crate::writer::Writer;

/// State of an index, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// Why it refuses to continue, if it does.
    pub degraded: Option<Degradation>,
    /// Highest indexed block.
    pub head: Option<u64>,
    /// Blocks that can be queried.
    pub coverage: Vec<BlockRange>,
    /// Block below which history was pruned on purpose.
    pub pruned_below: u64,
    /// Number of published chunks and pieces.
    pub chunks: usize,
    /// Number of those that are not linked to an anchor yet.
    pub chunks_unanchored: usize,
    /// First block of the tail, once there is one.
    pub tail_start: Option<u64>,
    /// Number of blocks in the tail.
    pub tail_blocks: u64,
    /// Number of logs in published chunks and in the tail.
    pub logs: u64,
    /// Total size of the published chunks, without bodies.
    pub bytes: u64,
    /// Epoch of the writer that last changed the tail.
    pub writer_epoch: u64,
}

/// An operator's decision about a degraded index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The index is right: continue as it is.
    Keep,
    /// Discard everything from this block on, including the whole chunk that holds it; ingest continues from there.
    RebuildFrom(u64),
    /// Discard the chunk with this token; its blocks are not covered until they are built again.
    Discard(u64),
}

impl Resolution {
    /// The reason of the replacement that it is recorded as; none if it removes nothing.
    pub fn reason(self) -> Option<String> {
        match self {
            Self::Keep => None,
            Self::RebuildFrom(block) => {
                Some(format!("an operator had everything rebuilt from block {block} on"))
            }
            Self::Discard(token) => Some(format!("an operator discarded the chunk {token:016x}")),
        }
    }
}

/// What [`Resolution::RebuildFrom`] throws away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlan {
    /// First block discarded, and the block with which ingest continues.
    pub first_block: u64,
    /// Number of chunks and pieces discarded.
    pub chunks: usize,
    /// Number of blocks of the tail discarded, which is always all of them.
    pub tail_blocks: u64,
    /// Number of logs discarded.
    pub logs: u64,
}

impl LogIndex {
    /// Plans a rebuild from a block, without doing it; none if nothing is indexed yet.
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

    /// Reports the state of the index.
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
    /// Carries out the operator's decision and clears the degradation, in one commit. Damage of blocks that remain
    /// stays recorded, unless the decision is [`Resolution::Keep`].
    pub async fn resolve(&self, resolution: Resolution) -> Result<()> {
        self.renew().await?;
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        let cleared = |gone: Option<BlockRange>| {
            let left = followed.degraded.as_ref().zip(gone);
            let left = left.and_then(|(degraded, gone)| degraded.left_by(&gone));
            let (batch, key) = (Batch::new().fenced(self.fence()), shared.keys.degraded());
            match left {
                None => batch.delete(key, Condition::Any),
                Some(left) => batch.put(key, left.encode(), Condition::Any),
            }
        };
        let committed = match resolution {
            Resolution::Keep => shared.stores.meta.commit(cleared(None)).await.map_err(Error::from),
            Resolution::Discard(token) => {
                let gone = followed.list.by_token(token).map(|entry| entry.blocks.clone());
                let cleared = cleared(gone);
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
                let batch = cleared(Some(state.start..u64::MAX));
                let batch = batch.put(key, state.encode(), condition);
                // If the reply is lost, the tail is loaded again.
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

    /// Stores damage that was found by other means than reading. Writes stop until these blocks are repaired or an
    /// operator resolves it.
    pub async fn report_damage(&self, blocks: BlockRange, reason: String) -> Result<()> {
        let mut followed = self.shared().followed.lock().await;
        let found = Degradation::damaged_at(blocks, reason);
        let all =
            followed.degraded.clone().map_or_else(|| found.clone(), |known| known.with(&found));
        if followed.degraded.as_ref() == Some(&all) {
            return Ok(());
        }
        self.degrade(&mut followed, all).await
    }

    /// The change and tail state that discard everything from a block on.
    fn cut_at(&self, followed: &IndexState, block: u64) -> Result<(Change, TailState)> {
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
                ..TailState::empty(first.blocks.start, first.parent_hash)
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
        // Even without an entry to remove: a change of the list makes concurrent publications plan again.
        Ok((Change { add: Vec::new(), remove, floor: followed.list.floor }, state))
    }

    /// Removes chunks that lie completely below a block; queries for their blocks then fail with [`Error::Pruned`].
    /// Damage of these blocks no longer degrades the index.
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
        let is_gone = |blocks: &BlockRange| blocks.end <= floor;
        let batch = self.clearing_damage(&followed, Batch::new(), is_gone).fenced(self.fence());
        match shared.commit_change(&mut followed, &change, batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
            Err(error) => {
                // Should it have landed, the stored damage is another: it is read again with the tail.
                followed.tail_known = false;
                return Err(error);
            }
            Ok(_) => self.damage_cleared(&mut followed, is_gone),
        }
        shared.install_snapshot(&followed);
        Ok(tokens.len())
    }
}

/// The blocks of a discarded chunk; none if no reader could see them.
fn discarded(followed: &IndexState, token: u64) -> Option<ReplacedBlocks> {
    let entry = followed.list.by_token(token)?;
    let tail = followed.tail.as_ref().map(|tail| &tail.state);
    let covered = followed.list.coverage(tail);
    covered.iter().any(|range| range.contains(&entry.blocks.start)).then(|| ReplacedBlocks {
        blocks: entry.blocks.clone(),
        kind: ReplacementKind::Removed,
        reason: Resolution::Discard(token).reason().unwrap_or_default(),
    })
}

/// The blocks removed when the index is cut back to `state`, if any.
fn cut_off(followed: &IndexState, state: &TailState, block: u64) -> Option<ReplacedBlocks> {
    let blocks = state.start..followed.tail.as_ref()?.state.end;
    (!blocks.is_empty()).then(|| ReplacedBlocks {
        blocks,
        kind: ReplacementKind::Removed,
        reason: Resolution::RebuildFrom(block).reason().unwrap_or_default(),
    })
}

/// The chunks that hold blocks from `block` on. Includes all pieces of the first chunk, so that it ends where it
/// would have ended.
fn going_from(list: &ChunkList, block: u64) -> Vec<Arc<ChunkEntry>> {
    let cut = list.iter().find(|entry| entry.blocks.end > block);
    let cut = cut.map_or(u64::MAX, |entry| entry.chunk_start);
    list.iter().filter(|entry| entry.blocks.start >= cut).cloned().collect()
}
