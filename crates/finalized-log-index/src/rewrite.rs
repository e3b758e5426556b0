//! Rewriting stored blocks: content that was fetched again takes the place of what is stored, under the same hashes.
//!
//! ```text
//!   chunk: build/TOKEN, blobs ──▶ old entry out, new entry in, repl/SEQ   (one commit, fenced)
//!   tail:  batches and bodies of the blocks, `tail`, repl/SEQ             (one commit, fenced)
//! ```
//!
//! Guarantees: the new blocks link to the stored ones by their hashes, or nothing changes; nothing is removed before
//! its replacement is complete; blocks that are not rewritten stay as they are; a rewrite that changes nothing is not
//! recorded as a replacement. Leaves to others: fetching and verifying blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::B256;
use futures::{Stream, StreamExt, pin_mut};
use logmill_io::{Batch, Condition, ErrorKind};

use crate::bodies::{self, BodiesUpload, BodyKeys};
use crate::chunk;
use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::index::{Followed, Shared};
use crate::publish::{Attempt, Role};
use crate::records;
use crate::records::chunks::{BodiesRef, Change, ChunkEntry};
use crate::records::degraded::Cause;
use crate::records::replacement::ReplacementKind;
use crate::records::tail_batch;
use crate::records::tail_state::TailState;
use crate::replace::ReplacedBlocks;
use crate::section::{Before, Content, Section};
use crate::tail::Tail;
use crate::term::ID_MAX;
use crate::types::{BlockRange, FinalizedBlock};
use crate::writer::Writer;

/// How often a rewrite that loses races for the list of chunks tries again.
const ATTEMPTS_MAX: usize = 16;
/// The most blocks of the tail that are rewritten at once.
pub const TAIL_REWRITE_BLOCKS_MAX: usize = 64;

/// A block of a chunk that is rewritten.
#[derive(Clone, Debug)]
pub struct RewrittenBlock {
    /// The block.
    pub block: FinalizedBlock,
    /// Where its content comes from.
    pub origin: Origin,
}

/// Where the content of a rewritten block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is what is stored.
    Stored,
    /// It was fetched again, and its body says what the stored body says, though the bytes may differ.
    SameBody,
    /// It was fetched again.
    Fetched,
}

/// What a rewrite did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// What is stored now is what was stored before: at most damaged bytes were written again.
    Same,
    /// The content of blocks has changed, or may have: what was stored could not be read. Recorded as this
    /// replacement.
    Changed {
        /// Its number.
        seq: u64,
    },
}

impl Writer {
    /// Writes a chunk again, from all of its blocks in order. Content that was stored before and cannot be read any
    /// more counts as changed, unless the new bytes are those that were published.
    ///
    /// With `only_same_logs`, a chunk whose logs are not those that were published is refused.
    pub async fn rewrite_chunk(
        &self,
        token: u64,
        blocks: impl Stream<Item = Result<RewrittenBlock>>,
        reason: &str,
        only_same_logs: bool,
    ) -> Result<Rewritten> {
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
                what: "its logs, or those of a block after it, are not those that were published"
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
    ) -> Result<Rewritten> {
        let shared = self.shared();
        for _ in 0..ATTEMPTS_MAX {
            let mut followed = shared.followed.lock().await;
            shared.follow_chunks(&mut followed).await?;
            if followed.list.by_token(new.entry.token).is_some() {
                // An earlier try of this very commit, whose answer was lost.
                shared.show(&followed);
                return Ok(new.outcome(followed.list.replacements));
            }
            if followed.list.by_token(old.token).is_none() {
                // Merged, pruned or discarded meanwhile.
                return Err(unlisted(old.token));
            }
            let change = Change {
                add: vec![Arc::clone(&new.entry)],
                remove: vec![old.token],
                floor: followed.list.floor,
            };
            let key = shared.keys.attempt(new.attempt.token());
            let batch = Batch::new().delete(key, Condition::Version(new.attempt.version()));
            let batch = self.clearing_corruption(&followed, batch).fenced(self.fence());
            let replaced = new.changed.clone().map(|blocks| ReplacedBlocks {
                blocks,
                kind: ReplacementKind::Content,
                reason: reason.to_owned(),
            });
            match shared.commit_replacement(&mut followed, &change, batch, replaced).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
                Err(error) => return Err(error),
                Ok(_) => {
                    self.corruption_cleared(&mut followed);
                    shared.show(&followed);
                    return Ok(new.outcome(followed.list.replacements));
                }
            }
        }
        Err(Error::Throttled { what: "the list of chunks changes too often".to_owned() })
    }

    /// Writes blocks of the tail again, at most [`TAIL_REWRITE_BLOCKS_MAX`]. Head, finality and all other blocks stay.
    pub async fn rewrite_tail(&self, blocks: &[RewrittenBlock], reason: &str) -> Result<Rewritten> {
        if blocks.len() > TAIL_REWRITE_BLOCKS_MAX {
            let what = format!(
                "{} blocks of the tail at once, at most {TAIL_REWRITE_BLOCKS_MAX}",
                blocks.len()
            );
            return Err(Error::Invalid { what });
        }
        self.renew().await?;
        let shared = self.shared();
        // A seal under way has read the old content.
        let _sealing = self.sealing.lock().await;
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        let Some(tail) = &followed.tail else {
            return Err(Error::Invalid { what: "nothing is indexed yet".to_owned() });
        };
        let state = TailState { epoch: self.epoch().cast_unsigned(), ..tail.state.clone() };
        let rewrite = shared.tail_rewrite(tail, blocks).await?;
        if rewrite.is_needless {
            return Ok(Rewritten::Same);
        }
        let condition = followed.tail_version.map_or(Condition::Absent, Condition::Version);
        // A new version of the state, so that no other commit is based on the old content.
        let batch = Batch::new().put(shared.keys.tail_state(), state.encode(), condition);
        let batch = rewrite
            .puts
            .into_iter()
            .fold(batch, |batch, (key, record, condition)| batch.put(key, record, condition));
        let batch = self.clearing_corruption(&followed, batch).fenced(self.fence());
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
        self.corruption_cleared(&mut followed);
        shared.follow(&mut followed).await?;
        Ok(match rewrite.changed {
            Some(_) => Rewritten::Changed { seq: followed.list.replacements },
            None => Rewritten::Same,
        })
    }

    /// Takes a stored degradation away if it is about damaged bytes. Only a person takes away others.
    fn clearing_corruption(&self, followed: &Followed, batch: Batch) -> Batch {
        match &followed.degraded {
            Some(degraded) if degraded.cause == Cause::Corruption => {
                batch.delete(self.shared().keys.degraded(), Condition::Any)
            }
            _ => batch,
        }
    }

    fn corruption_cleared(&self, followed: &mut Followed) {
        followed.degraded.take_if(|degraded| degraded.cause == Cause::Corruption);
        self.shared().forget_noted_corruption();
    }
}

fn unlisted(token: u64) -> Error {
    let what = format!("the chunk of attempt {token:016x} is not listed any more: try again");
    Error::Throttled { what }
}

/// A chunk that is being written again.
struct ChunkRewrite {
    old: Arc<ChunkEntry>,
    section: Section,
    next: u64,
    last_hash: B256,
    bodies: BodiesUpload,
    /// New blocks, and whether the body of each is known to be the one that was stored.
    new: BTreeMap<u64, bool>,
}

/// A chunk that was written again and is not listed yet.
struct FinishedRewrite {
    attempt: Attempt,
    entry: Arc<ChunkEntry>,
    /// The blocks whose content has changed, or may have.
    changed: Option<BlockRange>,
}

impl FinishedRewrite {
    fn outcome(&self, seq: u64) -> Rewritten {
        match self.changed {
            Some(_) => Rewritten::Changed { seq },
            None => Rewritten::Same,
        }
    }
}

impl ChunkRewrite {
    fn new(shared: &Shared, old: Arc<ChunkEntry>) -> Self {
        Self {
            section: Section::new(shared.settings.bounds(), old.blocks.start, Before::default()),
            next: old.blocks.start,
            last_hash: old.parent_hash,
            bodies: BodiesUpload::default(),
            new: BTreeMap::new(),
            old,
        }
    }

    async fn push(&mut self, shared: &Shared, rewritten: RewrittenBlock) -> Result<()> {
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
            let what = "the chunk has too many logs with it".to_owned();
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
            // Where blobs of bodies ended before, so that the same bodies make the same blobs.
            self.bodies.end_blob(shared).await?;
        }
        self.bodies.push(shared, number, block.body).await
    }

    async fn finish(self, shared: &Shared) -> Result<FinishedRewrite> {
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
        Ok(FinishedRewrite { attempt, entry, changed })
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

/// A block that does not follow the stored one before it.
fn foreign_parent(block: &FinalizedBlock, stored: B256) -> Error {
    let what =
        format!("its parent is {}, but the stored block before it is {stored}", block.parent_hash);
    Error::Foreign { number: block.number, what }
}

/// A block with another hash than the stored one.
fn foreign_hash(number: u64, stored: B256, got: B256) -> Error {
    Error::Foreign {
        number,
        what: format!("it is stored as {stored}, and {got} came to replace it"),
    }
}

/// What a rewrite of blocks of the tail does.
struct TailRewrite {
    puts: Vec<(logmill_io::Key, bytes::Bytes, Condition)>,
    /// The blocks whose content has changed, or may have.
    changed: Option<BlockRange>,
    /// Everything is stored as it is already.
    is_needless: bool,
}

impl Shared {
    /// Whether a block's stored body can be read and is that of `block`.
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
                for (number, body) in bodies::records_of(std::slice::from_ref(block)).await {
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

    /// Whether a block's body in the tail can be read and is that of `block`.
    async fn has_tail_body(&self, generation: u64, block: &FinalizedBlock) -> Result<bool> {
        let record = self.stores.meta.get(&self.keys.body(generation, block.number)).await?;
        let stored = record.map(|record| records::body::decode(&record.value)).transpose();
        Ok(stored.is_ok_and(|stored| stored == block.body))
    }

    /// The record of a batch of these blocks.
    fn encode_batch(&self, blocks: &[FinalizedBlock], keys: &BodyKeys) -> bytes::Bytes {
        let first = &blocks[0];
        let state = TailState {
            epoch: 0,
            generation: 0,
            start: first.number,
            start_parent: first.parent_hash,
            end: first.number,
            head_hash: first.parent_hash,
            chunk_start: first.number,
            before: Before::default(),
        };
        Tail::new(self.settings.bounds(), &state).append(blocks).encode(keys)
    }
}

impl TailRewrite {
    fn note_changed(&mut self, number: u64) {
        let before = self.changed.take().unwrap_or(number..number + 1);
        self.changed = Some(before.start.min(number)..before.end.max(number + 1));
    }
}
