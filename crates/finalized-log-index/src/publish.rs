//! Publication: an attempt writes its blob, then one commit makes it count.
//!
//! ```text
//!   build/TOKEN written ──▶ blob written ──▶ chunks, chg/SEQ written, build/TOKEN deleted   (one commit)
//! ```
//!
//! The commit is conditional on the list being the one that was planned with, and on the attempt's record being
//! there. Losing the first race means planning again; losing the second means that the attempt was given up.
//!
//! Guarantees: a blob is listed whole or not at all; an attempt publishes at most once, also when answers are lost
//! and it is tried again. Leaves to others: what is published ([`crate::seal`], [`crate::history`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Batch, Condition, ErrorKind, Fence, MetaStoreExt, Version};

use crate::bodies::EncodedBodies;
use crate::chunk::EncodedChunk;
use crate::chunk_list::Planned;
use crate::error::{Error, Result};
use crate::follow::version_at;
use crate::index::{Followed, Shared};
use crate::metric;
use crate::records::attempt;
use crate::records::chunks::{BodiesRef, Change, ChunkEntry, ChunksHead, blob_name};
use crate::records::tail_state::TailState;

/// How often a publication that loses races plans again.
const ATTEMPTS_MAX: usize = 64;
/// Every so many changes, all entries are listed.
pub(crate) const CHECKPOINT_EVERY: u64 = 1_000;

/// An attempt to publish.
#[derive(Debug)]
pub(crate) struct Attempt {
    token: u64,
    version: Version,
    /// When it was begun or renewed.
    renewed: Duration,
}

/// What a chunk is, beside its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) chunk_start: u64,
    pub(crate) ends_chunk: bool,
    pub(crate) anchored: bool,
    /// The blobs of bodies that were written for it, or that it takes over.
    pub(crate) bodies: Vec<BodiesRef>,
}

/// What a publication does beside listing its entry.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// The pieces that the entry takes the place of.
    pub(crate) replaced: Vec<u64>,
    /// The state of the tail once the entry is listed.
    pub(crate) tail: Option<TailState>,
    /// The records of the tail that are not needed any more.
    pub(crate) delete: Vec<logmill_io::Key>,
    /// What must hold.
    pub(crate) fence: Option<Fence>,
}

impl Attempt {
    /// Its name.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// The version of its record.
    pub(crate) fn version(&self) -> Version {
        self.version
    }
}

impl Shared {
    /// Begins an attempt: from now on blobs under its name are safe from garbage collection, for a time.
    pub(crate) async fn begin_attempt(&self) -> Result<Attempt> {
        let token = self.stores.entropy.next_u64();
        let version = self.put_attempt(token, Condition::Absent).await?;
        Ok(Attempt { token, version, renewed: self.stores.clock.monotonic() })
    }

    /// Renews an attempt of which half the time has passed.
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

    /// Writes a blob of bodies.
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

    /// Writes a chunk's blob.
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
        metric::chunk_written(entry.bytes);
        Ok(Arc::new(entry))
    }

    /// Lists an uploaded entry; with a new state of the tail, also the version of that.
    pub(crate) async fn publish(
        &self,
        followed: &mut Followed,
        attempt: &Attempt,
        entry: &Arc<ChunkEntry>,
        beside: &Beside,
    ) -> Result<(Arc<ChunkEntry>, Option<Version>)> {
        for _ in 0..ATTEMPTS_MAX {
            self.follow_chunks(followed).await?;
            if followed.list.by_token(attempt.token).is_some() {
                // An earlier try of this very publication, whose answer was lost.
                return Ok((Arc::clone(entry), None));
            }
            let tail = self.tail_to_plan_with(followed, beside).await?;
            let change = match followed.list.plan_add(entry, &beside.replaced, tail.as_ref())? {
                Planned::Published(published) => return Ok((published, None)),
                Planned::Change(change) => change,
            };
            let mut batch = self.batch_of(attempt, beside, followed.tail_version);
            if tail.is_none() {
                // The first commit of a tail looks at the list; so whichever is second sees the other.
                batch = batch.check(self.keys.tail_state(), Condition::Absent);
            }
            match self.commit_change(followed, &change, batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    metric::cas_retried();
                    self.still_open(followed, attempt).await?;
                }
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(Error::Standby),
                Err(error) => return Err(error),
                Ok(versions) => {
                    let moved = beside.tail.as_ref().map(|_| version_at(&versions, 0));
                    return Ok((Arc::clone(entry), moved.transpose()?));
                }
            }
        }
        Err(Error::Throttled { what: "the list of chunks changes too often".to_owned() })
    }

    /// The tail that a publication must not contradict. It is read after the list: should the tail be thrown away in
    /// between, the list changes too, and the commit is a conflict.
    async fn tail_to_plan_with(
        &self,
        followed: &Followed,
        beside: &Beside,
    ) -> Result<Option<TailState>> {
        if beside.tail.is_some() {
            return Ok(beside.tail.clone());
        }
        if self.has_writer() && followed.tail_known {
            return Ok(followed.tail.as_ref().map(|tail| tail.state.clone()));
        }
        let record = self.stores.meta.get(&self.keys.tail_state()).await?;
        record.map(|record| TailState::decode(&record.value)).transpose()
    }

    fn batch_of(&self, attempt: &Attempt, beside: &Beside, tail: Option<Version>) -> Batch {
        let mut batch = Batch::new();
        if let Some(state) = &beside.tail {
            let condition = tail.map_or(Condition::Absent, Condition::Version);
            batch = batch.put(self.keys.tail_state(), state.encode(), condition);
        }
        let key = self.keys.attempt(attempt.token);
        batch = batch.delete(key, Condition::Version(attempt.version));
        for key in &beside.delete {
            batch = batch.delete(key.clone(), Condition::Any);
        }
        match &beside.fence {
            Some(fence) => batch.fenced(fence.clone()),
            None => batch,
        }
    }

    /// Whether an attempt that lost a race may try again.
    async fn still_open(&self, followed: &mut Followed, attempt: &Attempt) -> Result<()> {
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
        followed: &mut Followed,
        change: &Change,
        batch: Batch,
    ) -> Result<Vec<Option<Version>>> {
        let replacements = followed.list.replacements;
        self.commit_list(followed, change, batch, replacements).await
    }

    /// Commits a change of the list, which then counts so many replacements.
    pub(crate) async fn commit_list(
        &self,
        followed: &mut Followed,
        change: &Change,
        batch: Batch,
        replacements: u64,
    ) -> Result<Vec<Option<Version>>> {
        let mut list = (*followed.list).clone();
        list.apply(change)?;
        list.replacements = replacements;
        let checkpoint = list.seq - list.seq % CHECKPOINT_EVERY;
        let head = ChunksHead { seq: list.seq, checkpoint, replacements };
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
