//! Follows the store: brings the known state up to date. Recovery is the same, from nothing.
//!
//! Order matters. The state of the tail is read first, then the chunks, then the batches of the tail: blocks that
//! leave the tail are in a chunk by then. If the batches do not span the range in the state, the tail has moved in
//! the meantime, and everything is read again. The same happens if the list changed and the tail now starts
//! elsewhere: such a list would hold blocks that the tail holds too. A tail that lacks blocks while its state stays
//! the same is damaged.
//!
//! Guarantees: reads only the state, the chunk list and the tail, never the logs of chunks. Leaves to others: what to
//! do with them ([`crate::state`]).

use std::ops::Bound;
use std::sync::Arc;

use logmill_io::{KeyRange, Record, Version};

use crate::chunk_list::ChunkList;
use crate::error::{Error, Result};
use crate::records::chunks::{Change, ChunksHead};
use crate::records::degraded::Degradation;
use crate::records::replacement::{ReplacementPosition, missing_replacement};
use crate::records::tail_state::TailState;
use crate::records::{identity, number_of, tail_batch};
use crate::state::{IndexState, SharedIndex};
use crate::tail::Tail;

/// How often reading is retried because the tail or the list moved.
const ATTEMPTS_MAX: usize = 16;
/// Maximum number of tail batches in memory at once.
const BATCHES_PER_SCAN: usize = 64;
/// Maximum number of changes read by one scan.
const CHANGES_PER_SCAN: usize = 256;

impl SharedIndex {
    /// Brings the known state up to date and installs a snapshot.
    pub(crate) async fn follow(&self, followed: &mut IndexState) -> Result<()> {
        if followed.tail_known && self.has_writer() && self.follow_as_writer(followed).await? {
            return Ok(());
        }
        let mut lacking = None;
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.stores.meta.get(&self.keys.tail_state()).await?;
            let degraded = self.stores.meta.get(&self.keys.degraded()).await?;
            let degraded = degraded.map(|record| Degradation::decode(&record.value)).transpose()?;
            let seq_before = followed.list.seq;
            self.follow_chunks(followed).await?;
            if followed.list.seq != seq_before && self.start_moved(stored.as_ref()).await? {
                continue;
            }
            let version = stored.as_ref().map(|record| record.version);
            if self.follow_tail(followed, stored).await? {
                followed.degraded = degraded;
                followed.tail_known = true;
                self.install_snapshot(followed);
                return Ok(());
            }
            // The same version twice: no writer has moved the tail in the meantime.
            if lacking == Some(version) {
                return Err(Error::corrupt("the tail lacks blocks, or its state is missing"));
            }
            lacking = Some(version);
        }
        Err(Error::Throttled { what: "the tail changes faster than it can be read".to_owned() })
    }

    /// Follows only the chunks; returns false if another writer has changed the tail, which must be loaded again.
    async fn follow_as_writer(&self, followed: &mut IndexState) -> Result<bool> {
        let seq_before = followed.list.seq;
        self.follow_chunks(followed).await?;
        if followed.list.seq != seq_before {
            let stored = self.stores.meta.get(&self.keys.tail_state()).await?;
            if stored.map(|record| record.version) != followed.tail_version {
                return Ok(false);
            }
        }
        self.install_snapshot(followed);
        Ok(true)
    }

    /// Whether the start of the tail has moved since its state was read. It moves only together with a change of the
    /// chunks; a list read in between would hold blocks that the tail holds too.
    async fn start_moved(&self, stored: Option<&Record>) -> Result<bool> {
        let now = self.stores.meta.get(&self.keys.tail_state()).await?;
        let (Some(stored), Some(now)) = (stored, &now) else {
            return Ok(stored.is_some() || now.is_some());
        };
        let (stored, now) = (TailState::decode(&stored.value)?, TailState::decode(&now.value)?);
        Ok((stored.generation, stored.start) != (now.generation, now.start))
    }

    /// Brings the chunk list up to date.
    pub(crate) async fn follow_chunks(&self, followed: &mut IndexState) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(record) = self.stores.meta.get(&self.keys.chunks()).await? else {
                if self.is_any(&self.keys.changes()).await? {
                    self.unless_moved(ChunksHead::default(), "its head").await?;
                    continue;
                }
                let is_marked = followed.list.replacements.mark != 0;
                if followed.list_version.take().is_some() || !is_marked {
                    let replacements = self.position_at(0).await?;
                    followed.list = Arc::new(ChunkList::empty(replacements));
                }
                return Ok(());
            };
            let head = ChunksHead::decode(&record.value)?;
            let is_marked = followed.list.replacements.mark != 0;
            if head.seq != followed.list.seq || followed.list_version.is_none() || !is_marked {
                let Some(mut list) = self.load_list(&followed.list, head).await? else {
                    continue;
                };
                list.replacements = match &*followed.list {
                    known
                        if is_marked
                            && known.replacements.seq == head.replacements
                            && known.seq <= head.seq =>
                    {
                        known.replacements
                    }
                    _ => self.position_at(head.replacements).await?,
                };
                if list.replacements != followed.list.replacements {
                    // Batches read before may have been rewritten.
                    followed.tail_known = false;
                }
                followed.list = Arc::new(list);
            }
            followed.list_version = Some(record.version);
            return Ok(());
        }
        Err(Error::Throttled {
            what: "the chunk list changes faster than it can be read".to_owned(),
        })
    }

    /// The list as of `head`, from the known list or from the checkpoint; none if the needed records have been
    /// deleted.
    async fn load_list(&self, known: &ChunkList, head: ChunksHead) -> Result<Option<ChunkList>> {
        if known.seq <= head.seq && known.seq >= head.checkpoint {
            let mut list = known.clone();
            if self.replay(&mut list, head.seq).await? {
                return Ok(Some(list));
            }
        }
        let mut list = ChunkList::default();
        if head.checkpoint > 0 {
            let key = self.keys.checkpoint(head.checkpoint);
            let Some(record) = self.stores.meta.get(&key).await? else {
                return self.unless_moved(head, "its checkpoint").await;
            };
            list = ChunkList::from_checkpoint(&Change::decode(&record.value)?, head.checkpoint)?;
        }
        if self.replay(&mut list, head.seq).await? {
            return Ok(Some(list));
        }
        self.unless_moved(head, "a change").await
    }

    /// Returns none if the list has a newer checkpoint by now; else the missing record is an error.
    async fn unless_moved(&self, head: ChunksHead, what: &str) -> Result<Option<ChunkList>> {
        let record = self.stores.meta.get(&self.keys.chunks()).await?;
        let now = record.map(|record| ChunksHead::decode(&record.value)).transpose()?;
        let moved = |now: ChunksHead| now.checkpoint > head.checkpoint || head.seq == 0;
        if now.is_some_and(moved) {
            return Ok(None);
        }
        Err(Error::corrupt(format!("the chunk list at change {} lacks {what}", head.seq)))
    }

    async fn is_any(&self, range: &KeyRange) -> Result<bool> {
        Ok(!self.stores.meta.scan(range, 1).await?.is_empty())
    }

    /// Applies the changes up to `seq`; returns false if one is missing.
    async fn replay(&self, list: &mut ChunkList, seq: u64) -> Result<bool> {
        while list.seq < seq {
            let after = self.keys.change(list.seq);
            let range = self.keys.changes().after(after);
            let records = self.stores.meta.scan(&range, CHANGES_PER_SCAN).await?;
            if records.is_empty() {
                return Ok(false);
            }
            for (key, record) in records {
                if list.seq == seq {
                    break;
                }
                if number_of(&key)? != list.seq + 1 {
                    return Ok(false);
                }
                list.apply(&Change::decode(&record.value)?)?;
            }
        }
        Ok(true)
    }

    /// The position after replacement `seq`.
    pub(crate) async fn position_at(&self, seq: u64) -> Result<ReplacementPosition> {
        if seq == 0 {
            return Ok(ReplacementPosition { seq, mark: self.identity().await?.unwrap_or(0) });
        }
        let record = self.stores.meta.get(&self.keys.replacement(seq)).await?;
        let record = record.ok_or_else(|| missing_replacement(seq))?;
        Ok(ReplacementPosition::after(seq, &record.value))
    }

    /// The random number that identifies this index, if it was drawn.
    pub(crate) async fn identity(&self) -> Result<Option<u64>> {
        let record = self.stores.meta.get(&self.keys.identity()).await?;
        record.map(|record| identity::decode(&record.value)).transpose()
    }

    /// Brings the tail up to a stored state; returns false if its batches are gone.
    async fn follow_tail(&self, followed: &mut IndexState, stored: Option<Record>) -> Result<bool> {
        // Unknown until all of it is read: this may fail or be cancelled halfway.
        let was_known = std::mem::replace(&mut followed.tail_known, false);
        let known = followed.tail.take().filter(|_| was_known);
        let Some(record) = stored else {
            followed.tail_version = None;
            return Ok(!self.is_any(&self.keys.all_tail_batches()).await?);
        };
        let state = TailState::decode(&record.value)?;
        let mut tail = match known {
            Some(tail) if continues(&tail, &state) => tail,
            _ => Tail::new(self.settings.bounds(), &state),
        };
        if !self.read_batches(&mut tail, &state).await? {
            return Ok(false);
        }
        if tail.state.head_hash != state.head_hash {
            return Err(Error::corrupt("the tail does not end with the head's hash"));
        }
        tail.trim(&state);
        tail.state = state;
        followed.tail = Some(tail);
        followed.tail_version = Some(record.version);
        Ok(true)
    }

    /// Appends the batches between the end of `tail` and the end of `state`; returns false if some are missing.
    async fn read_batches(&self, tail: &mut Tail, state: &TailState) -> Result<bool> {
        let mut range = self.keys.tail_batches(state.generation);
        let next = self.keys.tail_batch(state.generation, tail.state.end);
        if self.stores.meta.get(&next).await?.is_some() {
            range.start = Bound::Included(next);
        }
        while tail.state.end < state.end {
            let records = self.stores.meta.scan(&range, BATCHES_PER_SCAN).await?;
            let Some((last, _)) = records.last() else {
                return Ok(false);
            };
            range = range.after(last.clone());
            for (position, (key, record)) in records.iter().enumerate() {
                // A batch adds nothing if the next batch starts at or before the first block needed.
                let next = records.get(position + 1).map(|(key, _)| number_of(key)).transpose()?;
                if next.is_some_and(|next| next <= tail.state.end) {
                    continue;
                }
                if !append_batch(tail, number_of(key)?, &record.value)? {
                    return Ok(false);
                }
            }
        }
        Ok(tail.state.end == state.end)
    }
}

/// The version that one operation of a batch wrote.
pub(crate) fn version_at(versions: &[Option<Version>], position: usize) -> Result<Version> {
    let version = versions.get(position).copied().flatten();
    version.ok_or_else(|| Error::corrupt("the store returned no version for a write"))
}

/// Appends the new blocks of a batch; returns false if blocks before it are missing.
fn append_batch(tail: &mut Tail, number: u64, record: &[u8]) -> Result<bool> {
    let (blocks, bodies) = tail_batch::decode(record)?;
    let known = |number: u64| number < tail.state.end;
    let fresh: Vec<_> = blocks.into_iter().skip_while(|block| known(block.number)).collect();
    let Some(first) = fresh.first() else {
        return Ok(true);
    };
    if first.number != tail.state.end {
        return Ok(false);
    }
    if first.parent_hash != tail.state.head_hash {
        return Err(Error::corrupt("batches of the tail do not follow each other"));
    }
    let first = first.number;
    tail.append(&fresh);
    tail.note_bodies(bodies.from(first));
    tail.note_batch(number);
    Ok(true)
}

/// Whether `tail` can become `state` by appending blocks and dropping sealed ones.
fn continues(tail: &Tail, state: &TailState) -> bool {
    tail.state.generation == state.generation
        && tail.state.start <= state.start
        && tail.state.end <= state.end
        && tail.state.end >= state.start
}
