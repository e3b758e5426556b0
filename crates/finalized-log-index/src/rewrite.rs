//! Rewrites stored blocks: content that was fetched again replaces the stored content, under the same hashes.
//!
//! ```text
//!   chunk: build/TOKEN, blobs ──▶ old entry out, new entry in, repl/SEQ   (one commit, fenced)
//!   tail:  batches and bodies of the blocks, `tail`, repl/SEQ             (one commit, fenced)
//! ```
//!
//! Guarantees: the new blocks are linked to the stored ones by their hashes, or nothing changes; nothing is removed
//! before its replacement is complete; other blocks stay unchanged; a rewrite that changes nothing is not recorded as
//! a replacement. Leaves to others: fetching and verifying blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::B256;
use futures::{Stream, StreamExt, pin_mut};
use logmill_io::{Batch, Condition, ErrorKind};
use logmill_work::IntervalSet;

use crate::body_keys::BodyKeys;
use crate::body_upload::BodiesUpload;
use crate::chunk;
use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::publish::{Attempt, Role};
use crate::records;
use crate::records::chunks::{BodiesRef, Change, ChunkEntry};
use crate::records::replacement::ReplacementKind;
use crate::records::tail_batch;
use crate::records::tail_state::TailState;
use crate::replace::ReplacedBlocks;
use crate::section::{ChunkPrefix, Content, Section};
use crate::state::{IndexState, SharedIndex};
use crate::tail::Tail;
use crate::term::ID_MAX;
use crate::types::{BlockRange, FinalizedBlock};
use crate::writer::Writer;

/// How often a rewrite that loses races for the chunk list is retried.
const ATTEMPTS_MAX: usize = 16;
/// Maximum number of blocks in one [`Writer::rewrite_tail`].
pub const TAIL_REWRITE_BLOCKS_MAX: usize = 64;

/// A block of a chunk or tail that is rewritten.
#[derive(Clone, Debug)]
pub struct RewrittenBlock {
    /// Complete block, with logs and body.
    pub block: FinalizedBlock,
    /// Decides whether it counts as changed.
    pub origin: Origin,
}

/// Source of the content of a rewritten block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Copied from the stored block.
    Stored,
    /// Fetched again; its body is equivalent to the stored one, though the bytes may differ.
    SameBody,
    /// Fetched again.
    Fetched,
}

/// Outcome of a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteOutcome {
    /// The content is the same as before; at most, damaged bytes were rewritten.
    Same,
    /// Content has changed, or may have because the old content could not be read. Recorded as a replacement.
    Changed {
        /// Number of that replacement.
        seq: u64,
    },
}

impl Writer {
    /// Rewrites a chunk from all of its blocks, in order. Old content that cannot be read counts as changed, unless
    /// the new bytes equal the published ones.
    ///
    /// With `only_same_logs`, refuses logs that differ from the published ones.
    pub async fn rewrite_chunk(
        &self,
        token: u64,
        blocks: impl Stream<Item = Result<RewrittenBlock>>,
        reason: &str,
        only_same_logs: bool,
    ) -> Result<RewriteOutcome> {
        self.renew().await?;
        let shared = self.shared();
        let list = Arc::clone(&shared.snapshot().list);
        let old = list.by_token(token).cloned().ok_or_else(|| unlisted(token))?;
        let mut chunk = ChunkRewrite::new(shared, Arc::clone(&old));
        pin_mut!(blocks);
        while let Some(block) = blocks.next().await {
            chunk.push(shared, block?).await?;
        }
        let finished = chunk.finish(shared).await?;
        if only_same_logs && finished.entry.blake3 != old.blake3 {
            return Err(Error::Foreign {
                number: old.blocks.start,
                what: "its logs, or those of a later block, differ from the published ones"
                    .to_owned(),
            });
        }
        self.commit_rewrite(&old, &finished, reason).await
    }

    async fn commit_rewrite(
        &self,
        old: &Arc<ChunkEntry>,
        new: &FinishedRewrite,
        reason: &str,
    ) -> Result<RewriteOutcome> {
        let shared = self.shared();
        // All bytes of the chunk are new. Of a copied block, only readability is known, so it counts as repaired only
        // as part of the whole chunk.
        let mended = |blocks: &BlockRange| *blocks == old.blocks || new.fetched.covers(blocks);
        for _ in 0..ATTEMPTS_MAX {
            let mut followed = shared.followed.lock().await;
            shared.follow_chunks(&mut followed).await?;
            if followed.list.by_token(new.entry.token).is_some() {
                // An earlier try of this very commit, whose answer was lost.
                self.damage_cleared(&mut followed, mended);
                shared.install_snapshot(&followed);
                return Ok(new.outcome(followed.list.replacements.seq));
            }
            if followed.list.by_token(old.token).is_none() {
                // It was merged, pruned or discarded in the meantime.
                return Err(unlisted(old.token));
            }
            let change = Change {
                add: vec![Arc::clone(&new.entry)],
                remove: vec![old.token],
                floor: followed.list.floor,
            };
            let key = shared.keys.attempt(new.attempt.token());
            let batch = Batch::new().delete(key, Condition::Version(new.attempt.version()));
            let batch = self.clearing_damage(&followed, batch, mended).fenced(self.fence());
            let replaced = new.changed.clone().map(|blocks| ReplacedBlocks {
                blocks,
                kind: ReplacementKind::Content,
                reason: reason.to_owned(),
            });
            match shared.commit_replacement(&mut followed, &change, batch, replaced).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
                Err(error) => {
                    // Should it have landed, the stored damage is another: it is read again with the tail.
                    followed.tail_known = false;
                    return Err(error);
                }
                Ok(_) => {
                    self.damage_cleared(&mut followed, mended);
                    shared.install_snapshot(&followed);
                    return Ok(new.outcome(followed.list.replacements.seq));
                }
            }
        }
        Err(Error::Throttled { what: "the chunk list changes too often".to_owned() })
    }

    /// Rewrites at most [`TAIL_REWRITE_BLOCKS_MAX`] blocks of the tail. The head and all other blocks stay unchanged.
    pub async fn rewrite_tail(
        &self,
        blocks: &[RewrittenBlock],
        reason: &str,
    ) -> Result<RewriteOutcome> {
        if blocks.len() > TAIL_REWRITE_BLOCKS_MAX {
            let what = format!(
                "{} blocks of the tail in one rewrite, at most {TAIL_REWRITE_BLOCKS_MAX}",
                blocks.len()
            );
            return Err(Error::Invalid { what });
        }
        self.renew().await?;
        let shared = self.shared();
        // A seal in progress has read the old content.
        let _sealing = self.sealing.lock().await;
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        let Some(tail) = &followed.tail else {
            return Err(Error::Invalid { what: "nothing is indexed yet".to_owned() });
        };
        let state = TailState { epoch: self.epoch().cast_unsigned(), ..tail.state.clone() };
        let rewrite = shared.tail_rewrite(tail, blocks).await?;
        let numbers = blocks.iter().map(|one| one.block.number..one.block.number.saturating_add(1));
        let numbers: IntervalSet = numbers.collect();
        let mended = |blocks: &BlockRange| numbers.covers(blocks);
        let is_known_damaged = followed
            .degraded
            .as_ref()
            .is_some_and(|degraded| degraded.without(mended).as_ref() != Some(degraded));
        if rewrite.is_needless && !is_known_damaged {
            shared.forget_noted_damage(mended);
            shared.install_snapshot(&followed);
            return Ok(RewriteOutcome::Same);
        }
        let condition = followed.tail_version.map_or(Condition::Absent, Condition::Version);
        // A new version of the state, so that no other commit builds on the old content.
        let batch = Batch::new().put(shared.keys.tail_state(), state.encode(), condition);
        let batch = rewrite
            .puts
            .into_iter()
            .fold(batch, |batch, (key, record, condition)| batch.put(key, record, condition));
        let batch = self.clearing_damage(&followed, batch, mended).fenced(self.fence());
        let change = Change { floor: followed.list.floor, ..Change::default() };
        let replaced = rewrite.changed.clone().map(|blocks| ReplacedBlocks {
            blocks,
            kind: ReplacementKind::Content,
            reason: reason.to_owned(),
        });
        followed.tail_known = false;
        match shared.commit_replacement(&mut followed, &change, batch, replaced).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
            committed => drop(committed?),
        }
        self.damage_cleared(&mut followed, mended);
        shared.follow(&mut followed).await?;
        Ok(match rewrite.changed {
            Some(_) => RewriteOutcome::Changed { seq: followed.list.replacements.seq },
            None => RewriteOutcome::Same,
        })
    }

    /// Removes damage of rewritten or pruned blocks from the stored degradation. Other damage stays, and only an
    /// operator clears other causes.
    pub(crate) fn clearing_damage(
        &self,
        followed: &IndexState,
        batch: Batch,
        is_mended: impl Fn(&BlockRange) -> bool,
    ) -> Batch {
        let Some(degraded) = &followed.degraded else {
            return batch;
        };
        let key = self.shared().keys.degraded();
        match degraded.without(is_mended) {
            None => batch.delete(key, Condition::Any),
            Some(left) if left != *degraded => batch.put(key, left.encode(), Condition::Any),
            Some(_) => batch,
        }
    }

    /// Forgets the same damage after the commit.
    pub(crate) fn damage_cleared(
        &self,
        followed: &mut IndexState,
        is_mended: impl Fn(&BlockRange) -> bool,
    ) {
        let degraded = followed.degraded.take();
        followed.degraded = degraded.and_then(|degraded| degraded.without(&is_mended));
        self.shared().forget_noted_damage(is_mended);
    }
}

fn unlisted(token: u64) -> Error {
    let what = format!("the chunk of attempt {token:016x} is no longer listed; try again");
    Error::Throttled { what }
}

/// A chunk that is being rewritten.
struct ChunkRewrite {
    old: Arc<ChunkEntry>,
    section: Section,
    next: u64,
    last_hash: B256,
    bodies: BodiesUpload,
    /// New blocks, and whether the body of each is known to equal the stored one.
    new: BTreeMap<u64, bool>,
}

/// A rewritten chunk that is not listed yet.
struct FinishedRewrite {
    attempt: Attempt,
    entry: Arc<ChunkEntry>,
    /// Blocks whose content has changed, or may have.
    changed: Option<BlockRange>,
    /// Blocks whose content was not copied from the old chunk.
    fetched: IntervalSet,
}

impl FinishedRewrite {
    fn outcome(&self, seq: u64) -> RewriteOutcome {
        match self.changed {
            Some(_) => RewriteOutcome::Changed { seq },
            None => RewriteOutcome::Same,
        }
    }
}

impl ChunkRewrite {
    fn new(shared: &SharedIndex, old: Arc<ChunkEntry>) -> Self {
        Self {
            section: Section::new(
                shared.settings.bounds(),
                old.blocks.start,
                ChunkPrefix::default(),
            ),
            next: old.blocks.start,
            last_hash: old.parent_hash,
            bodies: BodiesUpload::default(),
            new: BTreeMap::new(),
            old,
        }
    }

    async fn push(&mut self, shared: &SharedIndex, rewritten: RewrittenBlock) -> Result<()> {
        let RewrittenBlock { block, origin } = rewritten;
        block.validate()?;
        let number = block.number;
        if number != self.next || !self.old.blocks.contains(&number) {
            return Err(Error::InvalidSequence { expected: self.next, got: number });
        }
        if block.parent_hash != self.last_hash {
            return Err(foreign_parent(&block, self.last_hash));
        }
        if u64::from(self.section.logs()) + as_u64(block.logs.len()) > u64::from(ID_MAX) {
            let what = "with it, the chunk has too many logs".to_owned();
            return Err(Error::InvalidBlock { number, what });
        }
        if origin != Origin::Stored {
            let is_same =
                origin == Origin::SameBody || shared.has_body(&self.old, number, &block).await;
            self.new.insert(number, is_same);
        }
        self.section.push(&block);
        self.last_hash = block.hash;
        self.next = number + 1;
        if self.old.bodies.iter().any(|bodies| bodies.blocks.start == number) {
            // Cut blobs of bodies where they ended before, so that the same bodies make the same blobs.
            self.bodies.end_blob(shared).await?;
        }
        self.bodies.push(shared, number, block.body).await
    }

    async fn finish(self, shared: &SharedIndex) -> Result<FinishedRewrite> {
        let old = self.old;
        if self.next != old.blocks.end {
            return Err(Error::Invalid {
                what: format!("the blocks of {:?} end before {}", old.blocks, self.next),
            });
        }
        if self.last_hash != old.last_hash {
            let number = old.blocks.end - 1;
            return Err(foreign_hash(number, old.last_hash, self.last_hash));
        }
        let content = Content {
            first_block: old.blocks.start,
            parent_hash: old.parent_hash,
            run: self.section.finish(),
        };
        let (mut attempt, bodies) = self.bodies.finish(shared).await?;
        let encoded = logmill_io::compute(move || chunk::encode(content)).await;
        shared.keep_attempt(&mut attempt).await?;
        let role = Role {
            chunk_start: old.chunk_start,
            ends_chunk: old.ends_chunk,
            anchored: old.anchored,
            bodies,
        };
        let entry = shared.upload(&attempt, &encoded, role).await?;
        let is_same = |number: u64, same: bool| same || has_same_blob(&old, &entry, number);
        let same_bodies = self.new.iter().all(|(number, same)| is_same(*number, *same));
        let hull = self.new.keys().next().zip(self.new.keys().next_back());
        let hull = hull.map(|(first, last)| *first..*last + 1);
        let changed = hull.filter(|_| entry.blake3 != old.blake3 || !same_bodies);
        let fetched = self.new.keys().map(|number| *number..number + 1).collect();
        Ok(FinishedRewrite { attempt, entry, changed, fetched })
    }
}

/// Whether the blob with the body of a block has the bytes that were published before.
fn has_same_blob(old: &ChunkEntry, new: &ChunkEntry, number: u64) -> bool {
    let of = |entry: &ChunkEntry| -> Option<BodiesRef> {
        entry.bodies.iter().find(|bodies| bodies.blocks.contains(&number)).cloned()
    };
    match (of(old), of(new)) {
        (Some(old), Some(new)) => old.blocks == new.blocks && old.blake3 == new.blake3,
        (None, None) => true,
        _ => false,
    }
}

/// Error for a block whose parent is not the stored one.
fn foreign_parent(block: &FinalizedBlock, stored: B256) -> Error {
    let what =
        format!("its parent is {}, but the stored previous block is {stored}", block.parent_hash);
    Error::Foreign { number: block.number, what }
}

/// Error for a block whose hash is not the stored one.
fn foreign_hash(number: u64, stored: B256, got: B256) -> Error {
    Error::Foreign {
        number,
        what: format!("its stored hash is {stored}, but {got} was to replace it"),
    }
}

/// Plan of a rewrite of tail blocks.
struct TailRewrite {
    puts: Vec<(logmill_io::Key, bytes::Bytes, Condition)>,
    /// Blocks whose content has changed, or may have.
    changed: Option<BlockRange>,
    /// Everything is already stored as requested.
    is_needless: bool,
}

impl SharedIndex {
    /// Whether the stored body can be read and equals that of `block`.
    async fn has_body(&self, entry: &ChunkEntry, number: u64, block: &FinalizedBlock) -> bool {
        let stored = entry.bodies.iter().find(|bodies| bodies.blocks.contains(&number));
        let stored = match stored {
            Some(bodies) => self.bodies.body(bodies, number).await,
            None => Ok(None),
        };
        stored.is_ok_and(|stored| stored == block.body.as_ref().map(|body| body.bytes.clone()))
    }

    async fn tail_rewrite(&self, tail: &Tail, blocks: &[RewrittenBlock]) -> Result<TailRewrite> {
        let generation = tail.state.generation;
        let mut by_batch: BTreeMap<u64, Vec<&RewrittenBlock>> = BTreeMap::new();
        for rewritten in blocks {
            let block = &rewritten.block;
            block.validate()?;
            let number = block.number;
            if number < tail.state.start {
                // It was sealed while its new content was fetched.
                let what = format!("block {number} has left the tail; try again");
                return Err(Error::Throttled { what });
            }
            let inside = (tail.state.start..tail.state.end).contains(&number);
            let batch = tail.batch_of(number).filter(|_| inside).ok_or_else(|| Error::Invalid {
                what: format!("block {number} is not in the tail"),
            })?;
            by_batch.entry(batch).or_default().push(rewritten);
        }
        let mut rewrite = TailRewrite { puts: Vec::new(), changed: None, is_needless: true };
        for (first, fresh) in by_batch {
            let key = self.keys.tail_batch(generation, first);
            let record = self.stores.meta.get(&key).await?;
            let record = record.ok_or_else(|| Error::corrupt("a batch of the tail is missing"))?;
            let (mut stored, mut keys) = tail_batch::decode(&record.value)?;
            let mut rewritten = false;
            for RewrittenBlock { block, origin } in fresh {
                let place = stored.iter_mut().find(|stored| stored.number == block.number);
                let place =
                    place.ok_or_else(|| Error::corrupt("a batch of the tail lacks blocks"))?;
                if place.hash != block.hash {
                    return Err(foreign_hash(block.number, place.hash, block.hash));
                }
                if place.parent_hash != block.parent_hash {
                    return Err(foreign_parent(block, place.parent_hash));
                }
                let same_logs = place.logs == block.logs && place.timestamp == block.timestamp;
                let same_body = self.has_tail_body(generation, block).await?;
                if same_logs && same_body {
                    continue;
                }
                rewrite.is_needless = false;
                if !same_logs || *origin == Origin::Fetched {
                    rewrite.note_changed(block.number);
                }
                *place = FinalizedBlock { body: None, ..block.clone() };
                keys = keys.without(block.number);
                keys.join(BodyKeys::of(std::slice::from_ref(block)));
                rewritten = true;
                for (number, body) in records::body::encode_all(std::slice::from_ref(block)).await {
                    let key = self.keys.body(generation, number);
                    rewrite.puts.push((key, body, Condition::Any));
                }
            }
            if rewritten {
                let batch = self.encode_batch(&stored, &keys);
                rewrite.puts.push((key, batch, Condition::Version(record.version)));
            }
        }
        Ok(rewrite)
    }

    /// Whether the body in the tail can be read and equals that of `block`.
    async fn has_tail_body(&self, generation: u64, block: &FinalizedBlock) -> Result<bool> {
        let record = self.stores.meta.get(&self.keys.body(generation, block.number)).await?;
        let stored = record.map(|record| records::body::decode(&record.value)).transpose();
        Ok(stored.is_ok_and(|stored| stored == block.body))
    }

    fn encode_batch(&self, blocks: &[FinalizedBlock], keys: &BodyKeys) -> bytes::Bytes {
        let first = &blocks[0];
        let state = TailState::empty(first.number, first.parent_hash);
        Tail::new(self.settings.bounds(), &state).append(blocks).encode(keys)
    }
}

impl TailRewrite {
    fn note_changed(&mut self, number: u64) {
        let before = self.changed.take().unwrap_or(number..number + 1);
        self.changed = Some(before.start.min(number)..before.end.max(number + 1));
    }
}
