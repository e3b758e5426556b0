//! Publication: an attempt writes its blob, then one commit lists it and so makes it visible.
//!
//! ```text
//!   build/TOKEN written ──▶ blob written ──▶ chunks, chg/SEQ written, build/TOKEN deleted   (one commit)
//! ```
//!
//! The commit is conditional on the list being the one that the plan was based on, and on the attempt's record being
//! there. If the list has changed, the publication is planned again; if the record is gone, garbage collection has
//! given the attempt up.
//!
//! Guarantees: a blob is listed completely or not at all; an attempt publishes at most once, even if a reply is lost
//! and the commit is retried. Leaves to others: what is published ([`crate::seal`], [`crate::history`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Batch, Condition, ErrorKind, Fence, MetaStoreExt, Version};

use crate::bodies::blob::EncodedBodies;
use crate::chunk::EncodedChunk;
use crate::chunk_list::PublishPlan;
use crate::error::{Error, Result};
use crate::follow::version_at;
use crate::records::attempt;
use crate::records::chunks::{BodiesRef, Change, ChunkEntry, ChunksHead, blob_name};
use crate::records::replacement::ReplacementPosition;
use crate::records::tail_state::TailState;
use crate::state::{IndexState, SharedIndex};

/// How often a publication that loses races is planned again.
const ATTEMPTS_MAX: usize = 64;
/// Number of changes after which a checkpoint lists all entries.
pub(crate) const CHECKPOINT_EVERY: u64 = 1_000;

/// A build attempt; see [`crate::records::attempt`].
#[derive(Debug)]
pub(crate) struct Attempt {
    token: u64,
    version: Version,
    /// Monotonic time when it began or was last renewed.
    renewed: Duration,
}

/// The parts of an entry that do not follow from the encoded chunk.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) chunk_start: u64,
    pub(crate) ends_chunk: bool,
    pub(crate) anchored: bool,
    /// Blobs of bodies that were written for it, or that it takes over.
    pub(crate) bodies: Vec<BodiesRef>,
}

/// What the publishing commit does besides listing its entry.
#[derive(Debug, Default)]
pub(crate) struct PublishEffects {
    /// Tokens of the pieces that the entry replaces.
    pub(crate) replaced: Vec<u64>,
    /// State of the tail after the commit.
    pub(crate) tail: Option<TailState>,
    /// Tail records that become obsolete.
    pub(crate) delete: Vec<logmill_io::Key>,
    /// The commit fails if this fence has moved.
    pub(crate) fence: Option<Fence>,
}

impl Attempt {
    /// Names the record and the blobs of the attempt.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Version of the attempt's record.
    pub(crate) fn version(&self) -> Version {
        self.version
    }
}

impl SharedIndex {
    /// Begins an attempt, which protects blobs with its token from garbage collection for a limited time.
    pub(crate) async fn begin_attempt(&self) -> Result<Attempt> {
        let token = self.stores.entropy.next_u64();
        let version = self.put_attempt(token, Condition::Absent).await?;
        Ok(Attempt { token, version, renewed: self.stores.clock.monotonic() })
    }

    /// Renews an attempt if half of its time has passed.
    pub(crate) async fn keep_attempt(&self, attempt: &mut Attempt) -> Result<()> {
        let now = self.stores.clock.monotonic();
        if now.saturating_sub(attempt.renewed) < self.settings.build_ttl / 2 {
            return Ok(());
        }
        let renewed = self.put_attempt(attempt.token, Condition::Version(attempt.version)).await;
        attempt.version = renewed.map_err(|error| match error {
            Error::Store(error) if error.kind() == ErrorKind::Conflict => {
                Error::AttemptOver { token: format!("{:016x}", attempt.token) }
            }
            error => error,
        })?;
        attempt.renewed = now;
        Ok(())
    }

    async fn put_attempt(&self, token: u64, condition: Condition) -> Result<Version> {
        let until = self.stores.meta.now().await?.after(self.settings.build_ttl);
        let key = self.keys.attempt(token);
        Ok(self.stores.meta.put(key, attempt::encode(until), condition).await?)
    }

    pub(crate) async fn upload_bodies(
        &self,
        attempt: &Attempt,
        encoded: EncodedBodies,
    ) -> Result<BodiesRef> {
        let entry = BodiesRef {
            blocks: encoded.blocks,
            token: attempt.token,
            bytes: crate::codec::as_u64(encoded.bytes.len()),
            directory_at: encoded.directory_at,
            blake3: *blake3::hash(&encoded.bytes).as_bytes(),
        };
        self.stores.blobs.put(&entry.blob_name(&self.keys.blobs())?, encoded.bytes).await?;
        Ok(entry)
    }

    /// Writes a chunk's blob and returns its entry, which is not listed yet.
    pub(crate) async fn upload(
        &self,
        attempt: &Attempt,
        chunk: &EncodedChunk,
        role: Role,
    ) -> Result<Arc<ChunkEntry>> {
        let token = attempt.token;
        let entry = ChunkEntry {
            blocks: chunk.blocks.clone(),
            parent_hash: chunk.parent_hash,
            last_hash: chunk.last_hash,
            logs: chunk.logs,
            values: chunk.values,
            index_bytes: chunk.index_bytes,
            token,
            bytes: crate::codec::as_u64(chunk.bytes.len()),
            blake3: *blake3::hash(&chunk.bytes).as_bytes(),
            directory_at: chunk.directory_at,
            chunk_start: role.chunk_start,
            ends_chunk: role.ends_chunk,
            anchored: role.anchored,
            bodies: role.bodies,
        };
        let name = blob_name(&self.keys.blobs(), &entry.blocks, token)?;
        self.stores.blobs.put(&name, chunk.bytes.clone()).await?;
        self.metrics.chunk_written(entry.bytes);
        Ok(Arc::new(entry))
    }

    /// Lists an uploaded entry. Returns the published entry and, if the commit wrote a tail state, the version of
    /// that.
    pub(crate) async fn publish(
        &self,
        followed: &mut IndexState,
        attempt: &Attempt,
        entry: &Arc<ChunkEntry>,
        effects: &PublishEffects,
    ) -> Result<(Arc<ChunkEntry>, Option<Version>)> {
        for _ in 0..ATTEMPTS_MAX {
            self.follow_chunks(followed).await?;
            if followed.list.by_token(attempt.token).is_some() {
                // An earlier try of this publication succeeded, but its reply was lost.
                return Ok((Arc::clone(entry), None));
            }
            let tail = self.tail_to_plan_with(followed, effects).await?;
            let change = match followed.list.plan_add(entry, &effects.replaced, tail.as_ref())? {
                PublishPlan::Published(published) => return Ok((published, None)),
                PublishPlan::Change(change) => change,
            };
            let mut batch = self.batch_of(attempt, effects, followed.tail_version);
            if tail.is_none() {
                // The first commit of a tail checks the list; so whichever of the two commits comes second sees the
                // other.
                batch = batch.check(self.keys.tail_state(), Condition::Absent);
            }
            match self.commit_change(followed, &change, batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    self.metrics.cas_retried();
                    self.ensure_attempt_open(followed, attempt).await?;
                }
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(Error::Standby),
                Err(error) => return Err(error),
                Ok(versions) => {
                    let moved = effects.tail.as_ref().map(|_| version_at(&versions, 0));
                    return Ok((Arc::clone(entry), moved.transpose()?));
                }
            }
        }
        Err(Error::Throttled { what: "the chunk list changes too often".to_owned() })
    }

    /// The tail that a publication must not contradict. It is read after the list: if the tail is discarded in
    /// between, the list changes too, and the commit fails with a conflict.
    async fn tail_to_plan_with(
        &self,
        followed: &IndexState,
        effects: &PublishEffects,
    ) -> Result<Option<TailState>> {
        if effects.tail.is_some() {
            return Ok(effects.tail.clone());
        }
        if self.has_writer() && followed.tail_known {
            return Ok(followed.tail.as_ref().map(|tail| tail.state.clone()));
        }
        let record = self.stores.meta.get(&self.keys.tail_state()).await?;
        record.map(|record| TailState::decode(&record.value)).transpose()
    }

    fn batch_of(
        &self,
        attempt: &Attempt,
        effects: &PublishEffects,
        tail: Option<Version>,
    ) -> Batch {
        let mut batch = Batch::new();
        if let Some(state) = &effects.tail {
            let condition = tail.map_or(Condition::Absent, Condition::Version);
            batch = batch.put(self.keys.tail_state(), state.encode(), condition);
        }
        let key = self.keys.attempt(attempt.token);
        batch = batch.delete(key, Condition::Version(attempt.version));
        for key in &effects.delete {
            batch = batch.delete(key.clone(), Condition::Any);
        }
        match &effects.fence {
            Some(fence) => batch.fenced(fence.clone()),
            None => batch,
        }
    }

    /// Fails unless an attempt that lost a race may retry.
    async fn ensure_attempt_open(
        &self,
        followed: &mut IndexState,
        attempt: &Attempt,
    ) -> Result<()> {
        if self.stores.meta.get(&self.keys.attempt(attempt.token)).await?.is_some() {
            return Ok(());
        }
        self.follow_chunks(followed).await?;
        if followed.list.by_token(attempt.token).is_some() {
            return Ok(());
        }
        Err(Error::AttemptOver { token: format!("{:016x}", attempt.token) })
    }

    /// Commits a change of the list together with `batch`: the visibility barrier of everything that chunks hold.
    pub(crate) async fn commit_change(
        &self,
        followed: &mut IndexState,
        change: &Change,
        batch: Batch,
    ) -> Result<Vec<Option<Version>>> {
        let replacements = followed.list.replacements;
        self.commit_list(followed, change, batch, replacements).await
    }

    /// Like [`SharedIndex::commit_change`], and moves the end of the log of replacements.
    pub(crate) async fn commit_list(
        &self,
        followed: &mut IndexState,
        change: &Change,
        batch: Batch,
        replacements: ReplacementPosition,
    ) -> Result<Vec<Option<Version>>> {
        let mut list = (*followed.list).clone();
        list.apply(change)?;
        list.replacements = replacements;
        let checkpoint = list.seq - list.seq % CHECKPOINT_EVERY;
        let head = ChunksHead { seq: list.seq, checkpoint, replacements: replacements.seq };
        let condition = followed.list_version.map_or(Condition::Absent, Condition::Version);
        let position = batch.len();
        let mut batch = batch.put(self.keys.chunks(), head.encode(), condition).put(
            self.keys.change(list.seq),
            change.encode(),
            Condition::Absent,
        );
        if checkpoint == list.seq {
            let all = list.checkpoint().encode();
            batch = batch.put(self.keys.checkpoint(list.seq), all, Condition::Absent);
        }
        let versions = self.stores.meta.commit(batch).await?;
        followed.list_version = Some(version_at(&versions, position)?);
        followed.list = Arc::new(list);
        Ok(versions)
    }
}
